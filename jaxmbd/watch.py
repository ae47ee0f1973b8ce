"""Handing values from compiled programs to a watcher on the host, batches and all. Nothing happens without a watcher.

`jaxmbd.debug` puts a watcher here; functions that have something to show ask `watching()` while they are traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

Inspect = Callable[[tuple[int, ...] | None, Any], None]
"""Called with the index within the batch (empty without one) and the values of that copy."""

_settlers: list[Callable[[], None]] = []


def watching() -> bool:
    """Whether somebody watches."""
    return bool(_settlers)


def start(settle: Callable[[], None]) -> None:
    """Begin to watch; `settle` raises what was found so far, if anything."""
    _settlers.append(settle)


def stop() -> None:
    """End the innermost watch."""
    _settlers.pop()


def show(inspect: Inspect, values: Any, through: Array) -> Array:
    """Show values to `inspect` when the program runs; returns `through`, which carries the program on.

    Args:
      values: a pytree of arrays, each of the shape it has for one copy.
      through: some array that the program goes on with, so that the call is not left out as unused.
    """
    frozen = jax.lax.stop_gradient(values)
    leaves, structure = jax.tree.flatten(frozen)
    ranks = [np.ndim(leaf) for leaf in leaves]

    def on_host(*arrays):
        arrays = [np.asarray(array) for array in arrays]
        axes = max((array.ndim - rank for array, rank in zip(arrays, ranks, strict=True)), default=0)
        shapes = [array.shape[:axes] for array in arrays]
        batch = np.broadcast_shapes(*shapes) if shapes else ()
        for index in np.ndindex(*batch):
            one = [
                array[tuple(0 if n == 1 else i for i, n in zip(index, shape, strict=True))]
                for array, shape in zip(arrays, shapes, strict=True)
            ]
            inspect(index, jax.tree.unflatten(structure, one))
        return np.zeros(batch, through.dtype)

    result = jax.ShapeDtypeStruct((), through.dtype)
    return through + jax.pure_callback(on_host, result, *leaves, vmap_method="expand_dims")


def settle(result: Any) -> None:
    """Wait for a result and raise what the watcher found, unless the result belongs to a program still traced."""
    if watching() and not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(result)):
        jax.block_until_ready(result)
        _settlers[-1]()
