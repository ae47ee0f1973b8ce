"""A commutator-free fourth-order method: it moves q along constant velocities only, and needs no group.

    Y2 = exp(h/2 k1) q,  Y3 = exp(h/2 k2) q,  Y4 = exp(h (k3 - k1/2)) Y2,
    q1 = exp(h/12 (-k1 + 2 k2 + 2 k3 + 3 k4)) exp(h/12 (3 k1 + 2 k2 + 2 k3 - k4)) q

where exp(u) q moves q for unit time at constant velocity u and k_i are the velocities of the classical Runge-Kutta
method (Celledoni, Marthinsen & Owren 2003, section 4).
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from jaxmbd.integrate.steppers import Stepper


class CommutatorFree4(Stepper):
    """Fourth order for every joint, those with an N(q) of their own (non-holonomic, quasi-velocities) included.

    `RungeKuttaMuntheKaas4` is of second order where such joints move; elsewhere it does a little less work.
    """

    def step(self, problem, t, q, v, h):
        reach = jnp.array([0.0, 0.5, 0.5, 1.0], v.dtype)

        def stage(previous, x):
            k, a, second = previous
            i, c = x
            start = jnp.where(i == 3, second, q)
            y = problem.retract(start, h * jnp.where(i == 3, k - 0.5 * v, c * k))
            k = v + c * h * a
            a = problem.acceleration(t + c * h, y, k)
            return (k, a, jnp.where(i == 1, y, second)), (k, a)

        # a scan, so that the dynamics is compiled once and not four times
        _, (k, a) = lax.scan(stage, (v, jnp.zeros_like(v), q), (jnp.arange(4), reach))
        weights = jnp.array([[3.0, 2.0, 2.0, -1.0], [-1.0, 2.0, 2.0, 3.0]], v.dtype) / 12.0
        half = problem.retract(q, h * (weights[0] @ k))
        return problem.retract(half, h * (weights[1] @ k)), v + h * (jnp.sum(weights, 0) @ a), a[0]
