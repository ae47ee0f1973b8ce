"""Work on arrays whose copies of a batch lie along the last axis, whatever `vmap` would prefer.

Compiled for a CPU, elementwise work on wide arrays is vectorised over the batch in this way alone.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap


def batch_last(f: Callable, record, at: int = -1):
    """f(record of arrays [slots, *batch]), whose batch stays last under `vmap`, which itself would put it first.

    `at` is where f leaves the last axis of the batch.
    """

    @jax.custom_jvp
    @custom_vmap
    def mapped(record):
        return f(record)

    def rule(size, in_batched, record):
        def last(x, batched):
            return jnp.moveaxis(x, 0, -1) if batched else jnp.broadcast_to(x[..., None], (*x.shape, size))

        result = batch_last(f, jax.tree.map(last, record, in_batched[0]), at)
        return jax.tree.map(lambda x: jnp.moveaxis(x, at, 0), result), jax.tree.map(lambda _: True, result)

    mapped.fun.def_vmap(rule)
    mapped.defjvp(lambda primals, tangents: jax.tree.map(_batch_first, jax.jvp(f, primals, tangents)))
    return mapped(record)


def _batch_first(x):
    """x, which `vmap` then keeps with the batch first, as the rule above does: a derivative must not differ in that."""
    return x.reshape(-1).reshape(x.shape)
