"""Variational midpoint rule: the discrete Euler-Lagrange equations on the configuration group.

The action of one step is S(q0, q1) = h L(q_m, w) with the mean velocity w = log(q0^-1 q1) / h and q_m half way along
it. Its slopes along the group's tangents at the two ends are the momenta there (Marsden & West 2001, section 1.5;
forces as in section 3.2.1):

    p0 = -D1 S - (h/2) f - J(q0)^T l,   g(q1) = 0
    p1 =  D2 S + (h/2) f + J(q1)^T m,   J(q1) v1 = -dg/dt

The first line is solved for w and the impulses l of the holonomic constraints g, the second for v1 and m (the discrete
equations with constraints, Marsden & West 2001, section 3.5; in this form RATTLE's). What laws drive follows them, and
its rows fall away. Because S does not change when the whole mechanism is moved, the momentum of free flight stays to
rounding; because the map is symplectic, energy does not drift.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jaxmbd.integrate.implicit import preconditioned_newton
from jaxmbd.integrate.steppers import Stepper


class VariationalMidpoint(Stepper):
    """Discrete Euler-Lagrange equations with the midpoint rule. Second order, symplectic, keeps momenta of symmetries.

    The equations are solved by Newton's method with the mass matrix (and the joints' dampers and springs) in place of
    the Jacobian, as in Lee, Liu, Park & Srinivasa (2016): an iteration costs O(bodies), and shrinks the error by about
    h times the motion's fastest rate. Forces, dampers and dry friction act at the midpoint. Closed loops and other
    holonomic constraints are unknowns of the same iterations, redundant rows included; `drift=None` is right with them.
    Joints driven by laws follow these (where a law gives speeds, with that of the midpoint).

    Args:
      iterations: of Newton's method; 8 reach rounding in float64 where h times the fastest rate is below 0.01.
    """

    iterations: int = eqx.field(static=True, default=8)

    def step(self, problem, t, q, v, h):
        middle, zero = t + 0.5 * h, jnp.zeros_like(v)

        def slopes(w):
            """D1 S and D2 S, the work of the forces included, from the slopes of L at the midpoint."""
            half, end = problem.retract(q, 0.5 * h * w), problem.retract(q, h * w)

            def moved(start_shift, end_shift):
                """How w h and the midpoint move with the ends. Only its slopes are used: its value would be noisy."""
                start = problem.retract(q, start_shift)
                u = problem.difference(start, problem.retract(end, end_shift))
                return u, problem.difference(half, problem.retract(start, 0.5 * u))

            def lagrangian(shift, w):
                return problem.lagrangian(middle, problem.retract(half, shift), w)

            pull, p = jax.grad(lagrangian, (0, 1))(zero, w)
            _, pullback = jax.vjp(moved, zero, zero)
            return pullback((p, h * (pull + problem.force(middle, half, w))))

        given, n = problem.given(t, q, h), len(v)
        p, J = problem.momentum(t, q, v), problem.closure_jacobian(t, q)

        def mean(x):
            """Mean velocities from the unknowns: velocities, of which laws may drive some, and impulses."""
            return x[:n] if given is None else jnp.where(given[1], given[0], x[:n])

        def residual(x):
            w = mean(x)
            balance = -slopes(w)[0] - p - x[n:] @ J
            balance = balance if given is None else jnp.where(given[1], 0.0, balance)
            return jnp.concatenate([balance, -problem.closure(t + h, problem.retract(q, h * w)) / h])

        inverse = problem.preconditioner(*lax.stop_gradient((t, q, v, h)))
        start = jnp.concatenate([v, jnp.zeros(len(J), v.dtype)])
        w = mean(preconditioned_newton(residual, start, inverse, self.iterations))
        q1 = problem.retract(q, h * w)
        v1 = problem.velocity(t + h, q1, slopes(w)[1])
        return q1, v1, (v1 - v) / h
