"""Radau IIA methods for equations of motion with constraints on position and velocity level at once.

The equations of Gear, Leimkuhler & Gupta (1985), on the configuration group,

    q' = N(q) (v + (M^-1 J^T) mu),   M v' = f + J^T lambda,   residual(q, t) = 0,   rate(q, v, t) = 0

are of index two. Radau IIA methods are stiffly accurate, so the last stage is the end of the step and satisfies both
kinds of rows to rounding: nothing drifts and nothing is projected. With s stages q and v are of order 2 s - 1 (Hairer,
Lubich & Roche 1989, Theorem 4.6). mu is zero in the exact solution; its directions are taken at the step's start.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxmbd.integrate.implicit import saddle_newton
from jaxmbd.integrate.steppers import Stepper, chart_rate


def radau(stages: int) -> tuple[np.ndarray, np.ndarray]:
    """A [s, s] and c [s] of the Radau IIA method: collocation at the zeros of P_s - P_(s-1), shifted to [0, 1]."""
    legendre = np.polynomial.legendre.Legendre
    c = 0.5 * (1.0 + np.sort((legendre.basis(stages) - legendre.basis(stages - 1)).roots().real))
    c[-1] = 1.0
    k = np.arange(1, stages + 1)
    powers = c[:, None] ** (k - 1)  # sum_j A_ij c_j^(k-1) = c_i^k / k
    return (c[:, None] ** k / k) @ np.linalg.inv(powers), c


class RadauIIA(Stepper):
    """Radau IIA method, L-stable and stiffly accurate: for stiff forces, and for constraints without any drift.

    Holonomic rows are satisfied on position and on velocity level at the end of every step, non-holonomic rows on
    velocity level, redundant ones included; `drift=None` is right with it. Trees are integrated too.

    Args:
      stages: two for order 3, three for order 5.
      iterations: of Newton's method over all stages, s (velocities + rows) unknowns; the first already has q and v
        right to second order.

    Where a joint has an N(q) of its own the order is two. The acceleration it returns is the step's mean.
    """

    stages: int = eqx.field(static=True, default=2)
    iterations: int = eqx.field(static=True, default=4)

    def __check_init__(self):
        if self.stages not in (2, 3):
            raise ValueError(f"A Radau IIA method with {self.stages} stages was asked for; expected 2 or 3.")

    def step(self, problem, t, q, v, h):
        A, c = radau(self.stages)
        A, times = jnp.asarray(A, v.dtype), t + jnp.asarray(c, v.dtype) * h
        motion, weight, held = problem.constraint_motion(t, q, v)
        s, n, nc, nh = self.stages, len(v), len(weight), len(held)

        def at(x):
            """Positions, velocities, accelerations and multipliers of all stages."""
            a = x[: s * n].reshape(s, n)
            multipliers, mu = x[s * n : s * (n + nc)].reshape(s, nc), x[s * (n + nc) :].reshape(s, nh)
            v_stages = v[None] + h * A @ a
            speed = v_stages + mu @ motion[held]
            w = speed
            for _ in range(s + 1):  # u depends on w: each substitution gains an order
                u = h * A @ w
                w = jax.vmap(lambda u, speed: chart_rate(problem, u, speed))(u, speed)
            return jax.vmap(problem.retract, (None, 0))(q, h * A @ w), v_stages, a, multipliers

        def residual(x):
            *state, multipliers = at(x)
            e = jax.vmap(problem.equations)(times, *state)
            forces = jnp.einsum("sc,scn->sn", multipliers, e.jacobian)
            parts = (e.balance - forces, e.rate / h, e.residual / h)
            return jnp.concatenate([part.reshape(-1) for part in parts])

        damping = jnp.concatenate([jnp.zeros(s * n, v.dtype), jnp.tile(weight, s), jnp.tile(weight[held], s)])
        x = saddle_newton(residual, jnp.zeros(s * (n + nc + nh), v.dtype), damping, self.iterations)
        q_stages, v_stages, _, _ = at(x)
        return q_stages[-1], v_stages[-1], (v_stages[-1] - v) / h
