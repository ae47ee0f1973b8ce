"""Diagonally implicit Runge-Kutta methods for stiff systems, in the group's exponential chart.

Stage i solves a_i = a(t + c_i h, q exp(u_i), v_i) with v_i = v + h sum A_ij a_j and u_i = h sum A_ij w_j, where w_j is
the rate of the chart's coordinate u at body velocity v_j (Munthe-Kaas 1998). A method is a table of numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmbd.integrate.implicit import newton
from jaxmbd.integrate.steppers import Stepper, chart_rate


class Tableau(NamedTuple):
    """Coefficients of a diagonally implicit method: a [s, s] lower triangular, weights b, instants c."""

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]


MIDPOINT = Tableau(((0.5,),), (1.0,), (0.5,))


def _alexander() -> Tableau:
    """The L-stable method of order 3 with three stages (Alexander 1977, Theorem 5)."""
    g = 0.43586652150845899942
    b1, b2 = -(6 * g * g - 16 * g + 1) / 4, (6 * g * g - 20 * g + 5) / 4
    return Tableau(((g, 0.0, 0.0), ((1 - g) / 2, g, 0.0), (b1, b2, g)), (b1, b2, g), (g, (1 + g) / 2, 1.0))


ALEXANDER = _alexander()


class DiagonallyImplicit(Stepper):
    """A diagonally implicit Runge-Kutta method given by its tableau; the acceleration it returns is the step's mean.

    Args:
      iterations: of Newton's method in each stage. Each forms the Jacobian of the accelerations, [nv, nv].
    """

    tableau: Tableau = eqx.field(static=True)
    iterations: int = eqx.field(static=True, default=3)

    def step(self, problem, t, q, v, h):
        A, b, c = (np.asarray(x) for x in self.tableau)
        stages = len(b)

        def stage(known, row):
            rates, accelerations, i, guess = known
            weights, c, own = row
            u0, v0 = h * (weights @ rates), v + h * (weights @ accelerations)

            def at(a):
                v_stage = v0 + h * own * a
                w = v_stage
                for _ in range(2):  # u depends on w: twice substituted, it is right to the order of the method
                    w = chart_rate(problem, u0 + h * own * w, v_stage)
                return w, v_stage

            def residual(a):
                w, v_stage = at(a)
                return a - problem.acceleration(t + c * h, problem.retract(q, u0 + h * own * w), v_stage)

            a = newton(residual, guess, self.iterations)
            return (rates.at[i].set(at(a)[0]), accelerations.at[i].set(a), i + 1, a), None

        zero = jnp.zeros((stages, len(v)), v.dtype)
        below, own = (jnp.asarray(x, v.dtype) for x in (np.tril(A, -1), np.diag(A)))
        first = jnp.zeros_like(v)
        known = (zero, zero, 0, first)
        # a scan, so that Newton's method is compiled once
        (rates, accelerations, _, _), _ = lax.scan(stage, known, (below, jnp.asarray(c, v.dtype), own))
        b = jnp.asarray(b, v.dtype)
        mean = b @ accelerations
        return problem.retract(q, h * (b @ rates)), v + h * mean, mean


class ImplicitMidpoint(DiagonallyImplicit):
    """Implicit midpoint rule: second order, A-stable, symmetric; fast oscillations are kept, not damped."""

    tableau: Tableau = eqx.field(static=True, default=MIDPOINT)


class SDIRK3(DiagonallyImplicit):
    """Alexander's method: third order, L-stable. What is too fast for the step is damped away."""

    tableau: Tableau = eqx.field(static=True, default=ALEXANDER)
