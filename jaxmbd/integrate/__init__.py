"""Time steppers on a configuration group. They know no mechanism: `problem` moves, differentiates and accelerates."""

from jaxmbd.integrate.commutator_free import CommutatorFree4
from jaxmbd.integrate.steppers import Problem, RungeKuttaMuntheKaas4, SemiImplicitEuler, Stepper

__all__ = ["CommutatorFree4", "Problem", "RungeKuttaMuntheKaas4", "SemiImplicitEuler", "Stepper"]
