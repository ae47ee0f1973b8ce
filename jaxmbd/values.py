"""Numbers as users give them: their type, their shape, and whether their value is known yet.

Known values stay NumPy arrays until a system is finished: building one number by number on a device would be slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float

Numbers = ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]]
"""Arrays, numbers, and nested sequences of numbers."""


def floats(value: Numbers) -> Float[Array, "..."]:
    """An array of floating-point numbers: of the type of a JAX array, or else of JAX's default type."""
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)):
        array = jnp.asarray(value)
        return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)
    return cast(Array, np.asarray(value, jax.dtypes.canonicalize_dtype(float)))


def shape(value: Numbers) -> tuple[int, ...]:
    """The shape of a number, an array or nested sequences."""
    return floats(value).shape


def concrete(value: Numbers) -> np.ndarray | None:
    """The value as a NumPy array; None while JAX traces it."""
    array = floats(value)
    return None if isinstance(array, Tracer) else np.asarray(array)


def stacked(values: Sequence[Numbers], size: tuple[int, ...]) -> Float[Array, "n ..."]:
    """Values of one size as the rows of a JAX array."""
    return joined([floats(value)[None] for value in values], size)


def joined(values: Sequence[Numbers], size: tuple[int, ...]) -> Float[Array, "n ..."]:
    """Arrays of rows of one size, one after the other, as a JAX array."""
    parts = [floats(value) for value in values]
    if not parts:
        return jnp.zeros((0, *size))
    if any(isinstance(part, jax.Array) for part in parts):
        return jnp.concatenate(parts)
    return jnp.asarray(np.concatenate(parts))
