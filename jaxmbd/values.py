"""Numbers as users give them: their type, their shape, and whether their value is known yet."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float

Numbers = ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]]
"""Arrays, numbers, and nested sequences of numbers."""


def floats(value: Numbers) -> Float[Array, "..."]:
    """An array of floating-point numbers: of the type given, or the default type for integers."""
    array = jnp.asarray(value)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def shape(value: Numbers) -> tuple[int, ...]:
    """The shape of a number, an array or nested sequences."""
    return jnp.asarray(value).shape


def concrete(value: Numbers) -> np.ndarray | None:
    """The value as a NumPy array; None while JAX traces it."""
    array = jnp.asarray(value)
    return None if isinstance(array, Tracer) else np.asarray(array)
