"""Time steppers on a configuration group. They know no mechanism: `problem` moves, differentiates and accelerates."""

from jaxmbd.integrate.alpha import GeneralizedAlpha
from jaxmbd.integrate.commutator_free import CommutatorFree4
from jaxmbd.integrate.diagonal import SDIRK3, DiagonallyImplicit, ImplicitMidpoint, Tableau
from jaxmbd.integrate.newmark import Newmark, PredictorCorrector
from jaxmbd.integrate.radau import RadauIIA
from jaxmbd.integrate.steppers import Problem, RungeKuttaMuntheKaas4, SemiImplicitEuler, Stepper
from jaxmbd.integrate.variational import VariationalMidpoint

__all__ = [
    "SDIRK3",
    "CommutatorFree4",
    "DiagonallyImplicit",
    "GeneralizedAlpha",
    "ImplicitMidpoint",
    "Newmark",
    "PredictorCorrector",
    "Problem",
    "RadauIIA",
    "RungeKuttaMuntheKaas4",
    "SemiImplicitEuler",
    "Stepper",
    "Tableau",
    "VariationalMidpoint",
]
