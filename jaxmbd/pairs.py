"""Pairs of slots: derivatives of the generalised forces of a tree, put together from what each slot contributes.

Every slot meets all others at once with the copies of a batch along the last axis, whatever `vmap` would prefer.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxmbd.cpu import one_routine
from jaxmbd.entries import entries, inverse
from jaxmbd.spatial import Force, Motion, Vec3
from jaxmbd.system import System
from jaxmbd.tree import ancestors, packs


class Part(NamedTuple):
    """What every slot contributes to its pairs with others: world axes, its own origin."""

    position: Vec3  # against the base's origin
    S: Motion
    Q: Motion
    P: Motion
    R: Motion
    inertia_S: Force  # I S, and B^T S
    coriolis_S: Vec3
    by_q: Force  # what a turn of this slot's joint asks of the slots inboard of it
    by_v: Force


class Own(NamedTuple):
    """What acts inside each joint, in sweep order."""

    stiffness: Float[Array, " slots"]  # where coordinates add
    damping: Float[Array, " slots"]
    armature: Float[Array, " slots"]
    turning: tuple[Vec3, Vec3] | None  # springs of quaternion joints: `quaternion_stiffness`


def pairs(system: System, record: tuple[Part, Own | None]):
    """dtau/dq, dtau/dv and M of a tree [rows, *batch, columns], in sweep order."""
    part, own = record
    layout, trailing = system.topology.layout, (1,) * (part.position.x.ndim - 1)
    outboard = ancestors(layout.tree.parents).T
    joint = layout.slot_joint[:, None] == layout.slot_joint
    together = joint & np.isin(layout.slot_joint, layout.quaternion)
    inside, springs = _turning(system, joint, own)
    masks = (outboard | together, outboard.T & ~together, *inside, np.eye(len(joint), dtype=bool))

    def row(part, xs):
        (one, own, springs), masks = jax.tree.map(lambda x: x[None], xs[0]), [m.reshape(-1, *trailing) for m in xs[1]]
        below, above, *inside, diagonal = masks
        apart = one.position - part.position
        down, up = one.inertia_S.shift(apart), one.S.shift(-apart)  # at the origins of the others
        lower = [
            part.P.dot(down) + one.coriolis_S.dot(part.Q.angular),
            part.R.dot(down) + one.coriolis_S.dot(part.S.angular),
            part.S.dot(down),
        ]
        upper = [up.dot(part.by_q), up.dot(part.by_v), up.dot(part.inertia_S)]
        rows = [jnp.where(below, x, jnp.where(above, y, 0.0)) for x, y in zip(lower, upper, strict=True)]
        if own is not None:
            acting = (own.stiffness, own.damping, own.armature)
            rows = [x + jnp.where(diagonal, y, 0.0) for x, y in zip(rows, acting, strict=True)]
        for mask, spring in zip(inside, springs, strict=True):
            rows[0] = rows[0] + jnp.where(mask, spring, 0.0)
        return rows

    # a routine of its own keeps the arithmetic vectorised; its row is turned over while it is in the nearest cache
    routine = row if packs() else one_routine(row)

    def turned(_, xs):
        return None, tuple(jnp.moveaxis(table, 0, -1) for table in routine(part, xs))

    own = own and own._replace(turning=None)
    return lax.scan(turned, None, ((part, own, springs), masks))[1]


def _turning(system: System, joint: np.ndarray, own: Own | None) -> tuple[list, list]:
    """For each direction of a quaternion joint its column of every row, and the pull of the joint's springs there."""
    if own is None or own.turning is None:
        return [], []
    layout, size = system.topology.layout, len(joint)
    group = layout.full_group
    slots = [np.where(v >= 0, layout.velocity_slot[v], -1) for v in (group.turn_v, group.shift_v)]
    slots = np.concatenate(slots, 1)
    forces = jnp.stack([x for pull in own.turning for x in (pull.x, pull.y, pull.z)], 1)
    forces = entries(forces.reshape(-1, *forces.shape[2:]), inverse(slots.ravel(), size))
    directions = [k for k, column in enumerate(slots.T) if np.any(column >= 0)]
    columns = [joint & np.isin(np.arange(size), slots[:, k]) for k in directions]
    return columns, [forces[:, k] for k in directions]
