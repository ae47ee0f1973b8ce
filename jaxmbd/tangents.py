"""Tangents of records with many numbers, of which few vary: what does not vary costs nothing.

For rules of `jax.custom_jvp` with `symbolic_zeros=True`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array


def varied(primals: tuple, tangents: tuple) -> tuple[Callable[..., tuple], list, list]:
    """The numbers among the primals that vary, their tangents, and the function that puts such numbers into place."""
    leaves, structure = jax.tree.flatten(primals)
    moving = structure.flatten_up_to(tangents)
    active = [
        i
        for i, tangent in enumerate(moving)
        if not _is_zero(tangent) and jnp.issubdtype(jnp.result_type(leaves[i]), jnp.inexact)
    ]

    def rebuilt(*values):
        changed = list(leaves)
        for i, value in zip(active, values, strict=True):
            changed[i] = value
        return jax.tree.unflatten(structure, changed)

    return rebuilt, [leaves[i] for i in active], [moving[i] for i in active]


def no_tangents(record):
    """Tangents of what carries no derivative."""
    return jax.tree.map(
        lambda x: np.zeros(x.shape, jax.dtypes.float0) if x.dtype == bool else jnp.zeros_like(x), record
    )


def filled(primal, tangent):
    """A record of tangents with its zeros; None where there is nothing else."""
    leaves = jax.tree.leaves(tangent, is_leaf=_is_zero)
    if all(_is_zero(t) for t in leaves):
        return None
    return jax.tree.map(lambda p, t: jnp.zeros_like(p) if _is_zero(t) else t, primal, tangent)


def filled_fields(record, tangents):
    """The same field by field."""
    return type(record)(*(filled(p, t) for p, t in zip(record, tangents, strict=True)))


def jvp_where(f: Callable, at: tuple, tangents: tuple):
    """Value and tangent of f, where tangents of None are arguments that do not vary."""
    active = [i for i, t in enumerate(tangents) if t is not None]

    def of_active(*values):
        changed = list(at)
        for i, value in zip(active, values, strict=True):
            changed[i] = value
        return f(*changed)

    return jax.jvp(of_active, [at[i] for i in active], [tangents[i] for i in active])


def for_each_copy(record, like: Array):
    """Numbers that copies of a batch share, laid out copy by copy: `like` is a number of the copy.

    The reverse mode then adds up over the copies once. Inside a sweep it would do so slot by slot, and work out for
    each sum again what it is of.
    """
    one = jnp.where(jnp.isfinite(like), 1.0, jnp.nan).astype(like.dtype)
    return jax.tree.map(lambda x: x * one, record)


def _is_zero(x) -> bool:
    return isinstance(x, SymbolicZero)
