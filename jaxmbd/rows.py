"""Rows of an array that a sweep reads and writes, kept so that the copies of a batch lie side by side.

`vmap` puts the batch before the rows, and XLA keeps it there: a row is then one number of each copy, all of them apart,
and the write a `scatter`. These two operations put it behind. `scan` wants the carry of a loop the other way round; XLA
chooses the layout in which turning it over costs nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

_take, _put = Primitive("take_row"), Primitive("put_row")


def take_row(rows: Array, i) -> Array:
    """rows[i]."""
    return _take.bind(rows, i)


def put_row(rows: Array, row: Array, i) -> Array:
    """`rows` with row i replaced."""
    return _put.bind(rows, row, i)


def _taken(rows, i):
    return lax.dynamic_index_in_dim(rows, i, 0, keepdims=False)


def _with_row(rows, row, i):
    return lax.dynamic_update_index_in_dim(rows, row, i, 0)


@_take.def_abstract_eval
def _(rows, i):
    return ShapedArray(rows.shape[1:], rows.dtype)


@_put.def_abstract_eval
def _(rows, row, i):
    return ShapedArray(rows.shape, rows.dtype)


def _check_schedule(axis) -> None:
    if axis is not None:
        raise NotImplementedError(
            "The row's number has a batch; rows are read and written by one schedule for all copies."
        )


def _batched_take(values, axes):
    rows, i = values
    _check_schedule(axes[1])
    return take_row(jnp.moveaxis(rows, axes[0], -1), i), rows.ndim - 2


def _batched_put(values, axes):
    rows, row, i = values
    _check_schedule(axes[2])
    copies = next(x.shape[axis] for x, axis in zip(values, axes, strict=True) if axis is not None)
    rows, row = (
        jnp.broadcast_to(x[..., None], (*x.shape, copies)) if axis is None else jnp.moveaxis(x, axis, -1)
        for x, axis in zip((rows, row), axes, strict=False)
    )
    return put_row(rows, row, i), rows.ndim - 1


def _take_jvp(primals, tangents):
    (rows, i), (d_rows, _) = primals, tangents
    return take_row(rows, i), take_row(d_rows, i)


def _put_jvp(primals, tangents):
    (rows, row, i), (d_rows, d_row, _) = primals, tangents
    return put_row(rows, row, i), put_row(ad.instantiate_zeros(d_rows), ad.instantiate_zeros(d_row), i)


def _take_transpose(cotangent, rows, i):
    zeros = jnp.zeros(rows.aval.shape, rows.aval.dtype)
    return put_row(zeros, ad.instantiate_zeros(cotangent), i), None


def _put_transpose(cotangent, rows, row, i):
    cotangent = ad.instantiate_zeros(cotangent)
    to_rows = put_row(cotangent, jnp.zeros_like(cotangent[0]), i) if ad.is_undefined_primal(rows) else None
    return to_rows, take_row(cotangent, i) if ad.is_undefined_primal(row) else None, None


for primitive, f, batched, jvp, transpose in (
    (_take, _taken, _batched_take, _take_jvp, _take_transpose),
    (_put, _with_row, _batched_put, _put_jvp, _put_transpose),
):
    primitive.def_impl(jax.jit(f))
    mlir.register_lowering(primitive, mlir.lower_fun(f, multiple_results=False))
    batching.primitive_batchers[primitive] = batched
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
