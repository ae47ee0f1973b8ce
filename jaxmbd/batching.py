"""Batches over all devices: a vectorised function in blocks that fit the caches, sharded over CPU cores or GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxmbd.cpu import one_routine

CACHED = 512  # bytes of one number of all copies of a block that stays in a core's cache, on a CPU


def batched(
    f: Callable, in_axes: Any = 0, *, chunk: int | None = None, devices: Sequence[Any] | None = None
) -> Callable:
    """`jax.vmap(f, in_axes)` on all devices, each taking an equal share of the batch block by block.

    Args:
      f: a function for one copy.
      in_axes: as for `jax.vmap`: 0 for what differs from copy to copy, None for what is shared; leaves of a pytree may
        differ. Only leading axes can be mapped.
      chunk: copies that are computed together on one device; when left out, 128 in float32 and 64 in float64 on a CPU
        (their numbers then stay in the core's cache) and a device's whole share elsewhere.
      devices: all of the default platform when left out. A CPU is one device unless `prepare_cpu()` was called before
        JAX was first used.

    Returns: a compiled function whose results have the batch as their leading axis. It can be differentiated, and used
    inside other compiled functions. A reverse pass computes every block again and stores nothing else.
    Raises: ValueError when the mapped arguments have no common batch size.
    """
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is {chunk}; expected one or more copies.")

    def call(*args):
        leaves, structure = jax.tree.flatten(args)
        mapped = _mapped(args, in_axes)
        moving = [x for x, m in zip(leaves, mapped, strict=True) if m]
        shared = [x for x, m in zip(leaves, mapped, strict=True) if not m]
        sizes = {jnp.shape(x)[:1] for x in moving}
        if len(sizes) != 1 or () in sizes or (0,) in sizes:
            raise ValueError(f"The mapped arguments have leading sizes {sorted(sizes)}; expected one size above zero.")
        ((batch,),) = sizes

        own = list(devices if devices is not None else jax.devices())[:batch]
        real = [jnp.finfo(x.dtype).bits // 8 for x in moving if jnp.issubdtype(x.dtype, jnp.inexact)]
        block = chunk or (CACHED // max([4, *real]) if own[0].platform == "cpu" else batch)
        blocks = -(-batch // (len(own) * block))
        block = -(-batch // (len(own) * blocks))
        total = len(own) * blocks * block

        def one(shared, moving):
            rest, own = iter(shared), iter(moving)
            return f(*jax.tree.unflatten(structure, [next(own) if m else next(rest) for m in mapped]))

        def share(shared, moving):
            if blocks == 1:
                return jax.vmap(one, (None, 0))(shared, moving)
            # the reverse pass computes a block again: what it needs of it then stays in the cache, too
            compute = jax.checkpoint(partial(jax.vmap(one, (None, 0)), shared), prevent_cse=False)
            result = lax.map(compute, jax.tree.map(lambda x: x.reshape(blocks, block, *x.shape[1:]), moving))
            return jax.tree.map(lambda x: x.reshape(blocks * block, *x.shape[2:]), result)

        def blockwise(result, shared, moving):
            def compute(i, result):
                part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, i * block, block), moving)
                new = jax.vmap(one, (None, 0))(shared, part)
                return jax.tree.map(lambda x, new: lax.dynamic_update_slice_in_dim(x, new, i * block, 0), result, new)

            return lax.fori_loop(0, blocks, compute, result)

        if own[0].platform == "cpu":
            share = one_routine(share, blockwise if blocks > 1 else None)
        if total > batch:  # copies that fill up the last block are cut off at the end
            rows = np.arange(total) % batch
            moving = [jnp.asarray(x)[rows] for x in moving]
        if len(own) > 1:
            mesh = jax.make_mesh((len(own),), ("batch",), (AxisType.Auto,), devices=own)
            split = NamedSharding(mesh, P("batch"))
            share = jax.shard_map(share, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P("batch"), check_vma=False)
            moving = [lax.with_sharding_constraint(x, split) for x in moving]
        result = share(shared, moving)
        return jax.tree.map(lambda x: x[:batch], result) if total > batch else result

    return jax.jit(call)


def _mapped(args: tuple, in_axes: Any) -> list[bool]:
    """Which leaves of the arguments differ from copy to copy."""
    if not isinstance(in_axes, tuple):
        in_axes = (in_axes,) * len(args)
    if len(in_axes) != len(args):
        raise ValueError(f"in_axes has {len(in_axes)} entries for {len(args)} arguments; expected one for each.")
    if not set(jax.tree.leaves(in_axes)) <= {0}:
        raise ValueError(f"in_axes = {in_axes}; expected 0 or None for every argument.")
    return jax.tree.leaves(
        jax.tree.map(
            lambda axis, part: [axis is not None] * len(jax.tree.leaves(part)), in_axes, args, is_leaf=_is_none
        )
    )


def _is_none(x) -> bool:
    return x is None
