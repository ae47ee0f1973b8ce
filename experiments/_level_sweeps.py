"""Sweeps over a tree level by level, unrolled: one batch as wide as the level, neither a scan nor padding.

The package's own step functions, other executors: `by_levels()` puts them in the place of `scan_outward`,
`scan_inward` and `each`. A chain would take as many copies of a step as it has bodies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from jaxmbd import tree as trees


def _levels(tree) -> list[np.ndarray]:
    """The elements of each level, the roots first."""
    depth = np.array(trees.levels(tree.parents))
    return [np.flatnonzero(depth == d) for d in range(1, depth.max() + 1)]


def _upwards(tree, levels) -> list[np.ndarray]:
    """For every level but the first, where in the level above the parents are."""
    parents = np.array(tree.parents)
    return [np.searchsorted(above, parents[level]) for above, level in zip(levels, levels[1:], strict=False)]


def outward(tree, step: Callable, base: Any, xs: Any) -> Any:
    """As `scan_outward`."""
    levels = _levels(tree)
    state = _repeated(base, len(levels[0]))
    ys = []
    for level, place in zip(levels, [None, *_upwards(tree, levels)], strict=True):
        if place is not None:
            state = jax.tree.map(lambda s, place=place: s[place], state)
        state, y = jax.vmap(step)(state, jax.tree.map(lambda x, level=level: x[level], xs))
        ys.append(y)
    return _in_order(levels, ys)


def inward(tree, step: Callable, zero: Any, xs: Any) -> Any:
    """As `scan_inward`."""
    levels = _levels(tree)
    upwards = [*_upwards(tree, levels), None]
    ys, below = [], None
    for level, place in zip(levels[::-1], upwards[::-1], strict=True):
        total = _repeated(zero, len(level))
        if place is not None:
            total = jax.tree.map(lambda t, c, place=place: t.astype(c.dtype).at[place].add(c), total, below)
        below, y = jax.vmap(step)(total, jax.tree.map(lambda x, level=level: x[level], xs))
        ys.append(y)
    return _in_order(levels, ys[::-1])


def each(f: Callable, *xs: Any) -> Any:
    """As `tree.each`."""
    return jax.vmap(f)(*xs)


def _repeated(state, count: int):
    """The same state for `count` elements."""
    return jax.tree.map(lambda s: jnp.broadcast_to(s, (count, *jnp.shape(s))), state)


def _in_order(levels, ys):
    """The outputs of all levels in the order of the elements."""
    order = np.argsort(np.concatenate(levels))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[order], *ys)


@contextmanager
def by_levels() -> Iterator[None]:
    """While it lasts, everything that is traced sweeps level by level."""
    users = [m for name, m in sys.modules.items() if name.startswith("jaxmbd.") and m is not trees]
    with ExitStack() as stack:
        for name, sweep in (("scan_outward", outward), ("scan_inward", inward), ("each", each)):
            for module in users:
                if getattr(module, name, None) is getattr(trees, name):
                    stack.enter_context(patch.object(module, name, sweep))
        jax.clear_caches()
        yield
    jax.clear_caches()
