"""Entries of an array by an index that is known before anything runs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

MOST_RUNS = 8  # of consecutive entries that are put together from slices


def entries(x: Array, index: np.ndarray) -> Array:
    """x[index] along the first axis, zeros where the index is -1.

    Nearly every such index consists of a few runs of consecutive numbers. Slices leave the arithmetic around them
    vectorised; what is fused with a gather is worked out number by number, and its transpose is a loop.
    """
    flat = np.ravel(index)
    runs = _runs(flat)
    present = [run for run in runs if run.size and run[0] >= 0]
    if np.array_equal(flat, np.arange(len(x))):
        found = x
    elif len(present) == 1:  # padding leaves the batch of a `vmap` where it is
        before = len(runs[0]) if runs[0][0] < 0 else 0
        zero = jnp.zeros((), x.dtype)
        around = (before, len(flat) - before - len(present[0]), 0)
        found = lax.pad(_run(x, present[0]), zero, [around, *[(0, 0, 0)] * (x.ndim - 1)])
    elif len(runs) > MOST_RUNS:
        missing = len(present) < len(runs)
        found = (jnp.concatenate([x, jnp.zeros_like(x, shape=(1, *x.shape[1:]))]) if missing else x)[flat]
    else:
        found = jnp.concatenate([_run(x, run) for run in runs])
    return found.reshape(*np.shape(index), *x.shape[1:])


def columns(x: Array) -> tuple[Array, ...]:
    """The columns of an array [rows, columns]."""
    return tuple(x[:, k] for k in range(x.shape[1]))


def inverse(index: np.ndarray, size: int) -> np.ndarray:
    """The index that puts entries back: what was entry index[i] of `size` comes from entry i; -1 where nothing was.

    Entries whose index is -1 have no place to go back to.
    """
    back, there = np.full(size, -1), np.flatnonzero(index >= 0)
    back[index[there]] = there
    return back


def arranged(order: np.ndarray, *parts: Array) -> Array:
    """Numbers that follow one another in `parts`, put into order."""
    ends = np.cumsum([0, *(part.size for part in parts)])
    places = [np.where((order >= a) & (order < b), order - a, -1) for a, b in zip(ends, ends[1:], strict=False)]
    flat = [jnp.ravel(part) for part in parts]
    if all(sum(run[0] >= 0 for run in _runs(place) if run.size) <= 1 for place in places):
        pieces = [entries(part, place) for part, place in zip(flat, places, strict=True) if part.size]
        return sum(pieces[1:], pieces[0]) if pieces else flat[0]
    return entries(jnp.concatenate(flat), order)


def _runs(index: np.ndarray) -> list[np.ndarray]:
    """Consecutive numbers, or -1 alone, side by side."""
    absent = index < 0
    goes_on = (index[1:] == index[:-1] + 1) & ~absent[:-1] | absent[1:] & absent[:-1]
    return np.split(index, 1 + np.flatnonzero(~goes_on))


def _run(x, run: np.ndarray):
    if len(run) and run[0] >= 0:
        return lax.slice_in_dim(x, int(run[0]), int(run[-1]) + 1)
    return jnp.zeros_like(x, shape=(len(run), *x.shape[1:]))
