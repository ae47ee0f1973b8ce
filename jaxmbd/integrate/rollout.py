"""Long scans whose reverse pass stores few states.

`rows` numbered blocks of steps are scanned; `segment` steps lie between two stored states. The reverse pass runs each
segment again from its state and stores the states inside it, then each step again. With T steps and segments of sqrt(T)
it holds 2 sqrt(T) states in place of T, for one forward pass more (Griewank & Walther 2008, chapter 12, two levels).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

LONG = 256  # steps from which on storing every state is no longer the default


def automatic_segment(steps: int) -> int:
    """Steps between two stored states: one for short runs, about sqrt(steps) for long ones.

    Of the numbers about the root that which leaves the fewest rows beyond the steps + 1 of a run.
    """
    if steps < LONG:
        return 1
    rows, root = steps + 1, math.sqrt(steps)
    return min(range(round(0.75 * root), round(1.3 * root) + 1), key=lambda n: (-rows % n, abs(n - root)))


def scan_rows(
    row: Callable[[Any, Any], tuple[Any, Any]], carry: Any, rows: int, rows_per_segment: int, remat: bool
) -> tuple[Any, Any]:
    """`carry, y = row(carry, r)` for r = 0 ... rows - 1, and the stacked ys.

    Args:
      rows_per_segment: rows between two stored carries. Where it does not divide `rows`, `row` is called with some r
        beyond the end: it must leave the carry as it is then.
      remat: whether to compute again in the reverse pass; False stores everything that each row computed.
    """
    if not remat:
        return lax.scan(row, carry, jnp.arange(rows))
    row = jax.checkpoint(row, prevent_cse=False)
    if rows_per_segment <= 1 or rows <= rows_per_segment:
        return lax.scan(row, carry, jnp.arange(rows))
    inner = rows_per_segment
    outer = -(-rows // inner)

    @jax.checkpoint
    def segment(carry, first):
        return lax.scan(row, carry, first + jnp.arange(inner))

    carry, ys = lax.scan(segment, carry, inner * jnp.arange(outer))
    return carry, jax.tree.map(lambda y: y.reshape(outer * inner, *y.shape[2:])[:rows], ys)
