"""Where within a step the first of several functions changes sign: found to a tolerance, differentiable.

The search brackets the sign change (regula falsi in the Illinois form, with bisection in between) and is not
differentiated; the derivative of the place x is that of g(x, p) = 0, dx = -(dg/dp) dp / (dg/dx).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

_MOST = 100


class Crossing(NamedTuple):
    """The first sign change within a step."""

    there: Bool[Array, ""]
    which: Int[Array, ""]
    part: Float[Array, ""]
    """The part of the step before it, one where there is none."""


def first_crossing(
    values: Callable[[Float[Array, ""]], Float[Array, " m"]],
    before: Float[Array, " m"],
    after: Float[Array, " m"],
    rate: Float[Array, " m"],
    fresh: Bool[Array, " m"],
    directions: Int[Array, " m"],
    tolerance: Float[Array, ""],
) -> Crossing:
    """The first of m functions that changes sign within a step.

    Args:
      values: of the functions after a part x of the step, 0 < x <= 1.
      before, after: of the functions at x = 0 and x = 1.
      rate: of the functions at x = 0, per step.
      fresh: functions that are zero at x = 0 because of their own event there: that root does not count, and the sign
        is that of the rate.
      directions: -1 for functions that count when they fall through zero, 1 when they rise, 0 for both.
      tolerance: of x.
    """
    frozen = lax.stop_gradient((before, after, rate))
    fresh = fresh | (frozen[0] == 0)
    sign = jnp.sign(jnp.where(fresh, frozen[2], frozen[0]))
    crossing = (sign * frozen[1] <= 0) & (sign != 0) & ((directions == 0) | (directions == -sign.astype(int)))
    there = jnp.any(crossing)

    def first(g, x):
        """Positive before the first crossing, negative after it: a fresh root at x = 0 is divided out."""
        g = jnp.where(fresh, g / x, g)
        return jnp.min(jnp.where(crossing, sign * g, jnp.inf))

    def search(state):
        lo, hi, g_lo, g_hi, side, best, g_best, n = state
        gap = g_hi - g_lo
        x = hi - g_hi * (hi - lo) / jnp.where(gap == 0, 1.0, gap)
        x = jnp.where((n % 3 == 2) | ~((x > lo) & (x < hi)), 0.5 * (lo + hi), x)
        g = first(lax.stop_gradient(values(x)), x)
        up, better = g > 0, jnp.abs(g) < g_best
        # the end that stays twice is weighed half
        g_hi_next = jnp.where(up, jnp.where(side > 0, 0.5 * g_hi, g_hi), g)
        g_lo_next = jnp.where(up, g, jnp.where(side < 0, 0.5 * g_lo, g_lo))
        ends = jnp.where(up, x, lo), jnp.where(up, hi, x), g_lo_next, g_hi_next, jnp.where(up, 1, -1)
        return *ends, jnp.where(better, x, best), jnp.where(better, jnp.abs(g), g_best), n + 1

    one = jnp.ones((), before.dtype)
    start = jnp.where(fresh, frozen[2], frozen[0])
    g_start = jnp.min(jnp.where(crossing, sign * start, jnp.inf))
    g_end = jnp.min(jnp.where(crossing, sign * frozen[1], jnp.inf))
    small = 0.1 * tolerance * (g_start - g_end)

    def unfinished(state):
        lo, hi, *_, g_best, n = state
        return there & (hi - lo > tolerance) & (g_best > small) & (n < _MOST)

    none = jnp.zeros((), int)
    bracket = (0.0 * one, one, g_start, g_end, none, one, jnp.abs(g_end), none)
    found = lax.while_loop(unfinished, search, bracket)[5]
    at_root = lax.stop_gradient(values(found))
    which = jnp.argmin(jnp.where(crossing, sign * jnp.where(fresh, at_root / found, at_root), jnp.inf))

    def residual(x):
        return jnp.where(there, values(x)[which], x - 1.0)

    def tangent_solve(slope, y):
        steep = slope(one)
        # a function that only touches zero has no differentiable crossing: its time counts as fixed
        return jnp.where(steep == 0, 0.0, y / jnp.where(steep == 0, 1.0, steep))

    part = lax.custom_root(residual, jnp.where(there, found, one), lambda _, x: x, tangent_solve)
    return Crossing(there, which, part)
