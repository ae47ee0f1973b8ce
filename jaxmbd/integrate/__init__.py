"""Time steppers on a configuration group. They know no mechanism: `problem` moves, differentiates and accelerates."""

from jaxmbd.integrate.steppers import Problem, RungeKuttaMuntheKaas4, SemiImplicitEuler, Stepper

__all__ = ["Problem", "RungeKuttaMuntheKaas4", "SemiImplicitEuler", "Stepper"]
