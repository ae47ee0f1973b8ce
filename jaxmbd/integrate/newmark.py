"""Newmark's formulas on the configuration group: implicit, or as predictor and corrector.

    v1 = v + h ((1 - gamma) a + gamma a1),   q1 = q exp(h v + h^2 ((1/2 - beta) a + beta a1)),   a1 = a(t + h, q1, v1)

(Newmark 1959; on the rotation group Simo & Vu-Quoc 1988.) With beta = 1/4 and gamma = 1/2 the order is two. A predictor
and corrector take a1 = a at first and substitute: step 6 of the recursive algorithm of Slaats (1991, section 3.5).
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import lax

from jaxmbd.integrate.implicit import newton
from jaxmbd.integrate.steppers import Stepper


class Newmark(Stepper):
    """Newmark's implicit method, solved by Newton's. Second order and A-stable for the default numbers.

    Args:
      beta, gamma: gamma above 1/2 damps what is too fast for the step, at first order.
      iterations: of Newton's method, each with the Jacobian of the accelerations, [nv, nv].
    """

    beta: float = 0.25
    gamma: float = 0.5
    iterations: int = eqx.field(static=True, default=3)

    def step(self, problem, t, q, v, h):
        a = problem.acceleration(t, q, v)

        def residual(a1):
            return a1 - problem.acceleration(t + h, *_moved(problem, self, q, v, a, a1, h))

        a1 = newton(residual, a, self.iterations)
        return *_moved(problem, self, q, v, a, a1, h), a


class PredictorCorrector(Stepper):
    """Newmark's formulas by prediction and correction: explicit, second order, an evaluation a correction and one more.

    Args:
      corrections: one gives the order; each further one brings the result closer to the implicit method's.
    """

    beta: float = 0.25
    gamma: float = 0.5
    corrections: int = eqx.field(static=True, default=2)

    def step(self, problem, t, q, v, h):
        def evaluate(a, i):
            first = i == 0
            q_at, v_at = _moved(problem, self, q, v, a[0], a[1], h)
            at = (jnp.where(first, t, t + h), jnp.where(first, q, q_at), jnp.where(first, v, v_at))
            new = problem.acceleration(*at)
            return (jnp.where(first, new, a[0]), new), None

        # the first evaluation is at the start; a scan, so that the dynamics is compiled once
        (a, a1), _ = lax.scan(evaluate, (jnp.zeros_like(v), jnp.zeros_like(v)), jnp.arange(self.corrections + 1))
        return *_moved(problem, self, q, v, a, a1, h), a


def _moved(problem, method, q, v, a, a1, h):
    """Newmark's formulas for q and v at the end of the step."""
    u = h * v + h * h * ((0.5 - method.beta) * a + method.beta * a1)
    return problem.retract(q, u), v + h * ((1.0 - method.gamma) * a + method.gamma * a1)
