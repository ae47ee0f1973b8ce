"""Where within a step the first of several functions changes sign: found to a tolerance, differentiable.

The search brackets the sign change (regula falsi in the Illinois form, with bisection in between) and is not
differentiated; the derivative of the place x is that of g(x, p) = 0, dx = -(dg/dp) dp / (dg/dx).

A function that changes its sign twice ends with the sign that it began with. The cubic through its values and rates at
both ends of the step tells whether and where it comes near zero in between; there the function itself is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

_MOST = 100
_LOOKS = 8  # at a function that seems to dip through zero and back
_NEAR = 0.25  # part of its smaller end value that its cubic comes down to for such a look


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
    rate_after: Float[Array, " m"],
    fresh: Bool[Array, " m"],
    directions: Int[Array, " m"],
    tolerance: Float[Array, ""],
) -> Crossing:
    """The first of m functions that changes sign within a step.

    Args:
      values: of the functions after a part x of the step, 0 < x <= 1.
      before, after: of the functions at x = 0 and x = 1.
      rate, rate_after: of the functions at x = 0 and x = 1, per step.
      fresh: functions that are zero at x = 0 because of their own event there: that root does not count, and the sign
        is that of the rate.
      directions: -1 for functions that count when they fall through zero, 1 when they rise, 0 for both.
      tolerance: of x.
    """
    frozen = lax.stop_gradient((before, after, rate))
    fresh = fresh | (frozen[0] == 0)
    sign = jnp.sign(jnp.where(fresh, frozen[2], frozen[0]))

    def changed(sign, g):
        return (sign * g <= 0) & (sign != 0) & ((directions == 0) | (directions == -sign.astype(int)))

    # the stretch [lo, hi] of the step that holds the first change: all of it, unless a function dips in between
    dips, middle, at_middle = _dip(values, *frozen, lax.stop_gradient(rate_after), sign, fresh)
    late_sign = jnp.where(dips, jnp.sign(at_middle), sign)
    early = jnp.any(changed(sign, at_middle)) | ~dips
    sign = jnp.where(early, sign, late_sign)
    crossing = changed(sign, jnp.where(early, at_middle, frozen[1]))
    there = jnp.any(crossing)
    first_lo, first_hi = jnp.where(early, 0.0, middle), jnp.where(early, middle, 1.0)

    def first(g, x):
        """Positive before the first crossing, negative after it: a fresh root at x = 0 is divided out."""
        g = jnp.where(fresh, g / x, g)
        return jnp.min(jnp.where(crossing, sign * g, jnp.inf))

    def search(state):
        lo, hi, g_lo, g_hi, side, best, at_best, g_best, n = state
        gap = g_hi - g_lo
        x = hi - g_hi * (hi - lo) / jnp.where(gap == 0, 1.0, gap)
        x = jnp.where((n % 3 == 2) | ~((x > lo) & (x < hi)), 0.5 * (lo + hi), x)
        at_x = lax.stop_gradient(values(x))
        g = first(at_x, x)
        up, better = g > 0, jnp.abs(g) < g_best
        # the end that stays twice is weighed half
        g_hi_next = jnp.where(up, jnp.where(side > 0, 0.5 * g_hi, g_hi), g)
        g_lo_next = jnp.where(up, g, jnp.where(side < 0, 0.5 * g_lo, g_lo))
        ends = jnp.where(up, x, lo), jnp.where(up, hi, x), g_lo_next, g_hi_next, jnp.where(up, 1, -1)
        best = (jnp.where(better, new, old) for new, old in ((x, best), (at_x, at_best), (jnp.abs(g), g_best)))
        return *ends, *best, n + 1

    one = jnp.ones((), before.dtype)
    # a fresh function over x starts with its rate
    start = jnp.where(early, jnp.where(fresh, frozen[2], frozen[0]), jnp.where(fresh, at_middle / middle, at_middle))
    g_start = jnp.min(jnp.where(crossing, sign * start, jnp.inf))
    at_end = jnp.where(early, at_middle, frozen[1])
    g_end = first(at_end, first_hi)
    small = 0.1 * tolerance * (g_start - g_end)

    def unfinished(state):
        lo, hi, *_, g_best, n = state
        return there & (hi - lo > tolerance) & (g_best > small) & (n < _MOST)

    none = jnp.zeros((), int)
    bracket = (first_lo, first_hi, g_start, g_end, none, first_hi, at_end, jnp.abs(g_end), none)
    found, at_root = lax.while_loop(unfinished, search, bracket)[5:7]
    which = jnp.argmin(jnp.where(crossing, sign * jnp.where(fresh, at_root / found, at_root), jnp.inf))

    def residual(x):
        return jnp.where(there, values(x)[which], x - 1.0)

    def tangent_solve(slope, y):
        steep = slope(one)
        # a function that only touches zero has no differentiable crossing: its time counts as fixed
        return jnp.where(steep == 0, 0.0, y / jnp.where(steep == 0, 1.0, steep))

    part = lax.custom_root(residual, jnp.where(there, found, one), lambda _, x: x, tangent_solve)
    return Crossing(there, which, part)


def _dip(values, before, after, rate, rate_after, sign, fresh):
    """Whether a function changes its sign and comes back, a place where it has the other one, and all values there.

    Without such a function: the end of the step. Each look costs a step, and is made where a cubic comes near zero.
    """
    # the cubic's slope is rate + 2 b x + 3 c x^2; its minimum (of sign * g) is the root with rising slope
    rise = after - before
    b, c = 3.0 * rise - 2.0 * rate - rate_after, rate + rate_after - 2.0 * rise
    g, r, b, c, end = sign * before, sign * rate, sign * b, sign * c, sign * after
    root = b * b - 3.0 * c * r
    size = jnp.sqrt(jnp.where(root > 0, root, 1.0))
    above, below = (b > 0), (b <= 0) & (c > 0)
    x = jnp.where(above, -r / jnp.where(above, b + size, 1.0), (size - b) / jnp.where(below, 3.0 * c, 1.0))
    low = g + x * (r + x * (b + x * c))
    inside = (root > 0) & (above | below) & (x > 0) & (x < 1)
    near = inside & ~fresh & (g > 0) & (end > 0) & (low < _NEAR * jnp.minimum(g, end))
    # the first of those whose cubic passes zero, or the one that comes nearest
    least = jnp.where(near, jnp.minimum(g, end), 1.0)
    which = jnp.argmin(jnp.where(near, jnp.where(low < 0, x - 1.0, low / least), jnp.inf))
    own = sign[which]

    def unfinished(state):
        *_, dips, n = state
        return jnp.any(near) & ~dips & (n < _LOOKS)

    def look(state):
        """At the lowest place that is guessed; then at the vertex of the parabola through it and its neighbours."""
        lo, hi, g_lo, g_hi, at, _, _, n = state
        found = lax.stop_gradient(values(at))
        g = own * found[which]
        left, right = (g - g_lo) / (at - lo), (g_hi - g) / (hi - at)
        bend = (right - left) / (hi - lo)
        vertex = 0.5 * (lo + at) - 0.5 * left / jnp.where(bend > 0, bend, 1.0)
        inside = (bend > 0) & (vertex > lo) & (vertex < hi) & (jnp.abs(vertex - at) > 1e-3 * (hi - lo))
        guess = jnp.where(inside, vertex, jnp.where(hi - at > at - lo, 0.5 * (at + hi), 0.5 * (at + lo)))
        up = guess < at  # the minimum lies before the place that was looked at
        ends = jnp.where(up, lo, at), jnp.where(up, at, hi), jnp.where(up, g_lo, g), jnp.where(up, g, g_hi)
        there = jnp.any(near & (sign * found < 0))
        return *ends, jnp.where(there, at, guess), found, there, n + 1

    one, none = jnp.ones((), before.dtype), jnp.zeros((), int)
    start = (0.0 * one, one, g[which], end[which], x[which], after, jnp.zeros((), bool), none)
    *_, at, found, dips, _ = lax.while_loop(unfinished, look, start)
    return dips, jnp.where(dips, at, 1.0), jnp.where(dips, found, after)
