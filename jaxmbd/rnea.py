"""Inverse dynamics: from motion to forces, by the recursive Newton-Euler algorithm.

Outwards the accelerations, inwards the forces (Jain & Rodriguez 1990, Eq. 4.1; Slaats 1991, section 3.3):

    f_k = inertia force of body k - applied wrench + sum over children of phi f_child,   tau_k = mode . f_k

Gravity is the acceleration -g of the base (only in what the bodies feel).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.forces import Wrench, passive_forces, wrench_forces
from jaxmbd.kinematics import at_base, place, promote
from jaxmbd.newton_euler import Bodies, Known, forces_inward, moving_bodies, slot_forces
from jaxmbd.packing import (
    Packed,
    Place,
    accelerations_to_slots,
    from_slots,
    full_accelerations,
    locate,
    pack,
    reduced_forces,
    to_slots,
)
from jaxmbd.spatial import Force, Mat3, Vec3
from jaxmbd.system import System
from jaxmbd.tree import scan_outward


@jax.jit
def inverse_dynamics(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    a: Float[Array, " nv"],
    wrenches: tuple[Wrench, ...] = (),
    t: float | Float[Array, ""] = 0.0,
) -> Float[Array, " nv"]:
    """Generalised forces that produce an acceleration: tau = M a + bias - passive forces - J^T wrenches.

    Args:
      q: coordinates.
      v: velocities.
      a: accelerations v_dot, entry by entry.
      wrenches: external wrenches acting on the bodies.
      t: time [s], where the base moves.

    Returns: forces dual to v [N m, N].
    Source: Jain & Rodriguez (1990), Eq. 4.1.
    """
    q, v, a, t, system = promote(system, q, v, a, t)
    return needed_forces(system, pack(system), q, v, a, wrenches, t)


def needed_forces(
    system: System, packed: Packed, q, v, a, wrenches: tuple[Wrench, ...], t, known: Known | None = None
) -> Float[Array, " nv"]:
    """Inverse dynamics of a system that is packed already: what forces on independent velocities a needs.

    Args:
      known: this motion, where it has been worked out before; for the derivative alone.
    """
    forces = body_forces(system, packed, q, v, a, wrenches, t, gravity=True, known=known)
    forces = forces + system.armature * full_accelerations(system, a)
    return reduced_forces(system, forces - passive_forces(system, q, v))


@jax.jit
def bias_force(
    system: System, q: Float[Array, " nq"], v: Float[Array, " nv"], t: float | Float[Array, ""] = 0.0
) -> Float[Array, " nv"]:
    """Coriolis, centrifugal and gravity forces C v + g: inverse dynamics at a = 0, without passive forces."""
    q, v, a, t, system = promote(system, q, v, None, t)
    forces = body_forces(system, pack(system), q, v, a, (), t, gravity=True)
    if system.coupling_rate is not None:  # the rotors of followers on a curve accelerate
        forces = forces + system.armature * full_accelerations(system, a)
    return reduced_forces(system, forces)


@jax.jit
def gravity_force(system: System, q: Float[Array, " nq"], t: float | Float[Array, ""] = 0.0) -> Float[Array, " nv"]:
    """Generalised forces that hold the bodies against gravity at rest (the base at rest too, in its pose at t)."""
    q, v, a, t, system = promote(system, q, None, None, t)
    if system.base_motion is not None:
        system = dataclasses.replace(system, base_motion=jax.tree_util.Partial(held, system.base_motion(t)))
    return reduced_forces(system, body_forces(system, pack(system), q, v, a, (), t, gravity=True))


def held(pose, t):
    """Motion of a base that stands still."""
    return pose


def body_forces(
    system: System,
    packed: Packed,
    q,
    v,
    a,
    wrenches: tuple[Wrench, ...],
    t,
    gravity: bool,
    known: Known | None = None,
) -> Float[Array, " nv_full"]:
    """Forces on every velocity, followers included, that move the bodies: no armature, no passive forces."""
    x = locate(system, packed, q, v)
    base = at_base(system, x, t, up(system) if gravity else None)
    tree, a = system.topology.layout.tree, accelerations_to_slots(system, a)
    tau = slot_forces(tree, packed.slots, x, to_slots(system, v), a, base, known)
    if wrenches:
        tau = tau - _applied(system, packed, x, base.rotation, wrenches)
    return from_slots(system, tau)


def up(system: System) -> Float[Array, "6"]:
    """Acceleration of a base on which everything weighs."""
    return jnp.concatenate([jnp.zeros(3, system.gravity.dtype), -system.gravity])


def _applied(system: System, packed: Packed, x: Place, R_base: Mat3, wrenches) -> Float[Array, " slots"]:
    """Generalised forces of the wrenches on every slot."""

    def step(R, xs):
        R, l, mode = place(R, *xs)
        return R, (R, l, mode)

    R, l, mode = scan_outward(system.topology.layout.tree, step, R_base, (packed.slots, x))
    return forces_inward(system.topology.layout.tree, wrench_forces(system, packed, R, wrenches), l, mode)[0]


def inertial_forces(
    system: System,
    packed: Packed,
    x: Place,
    v,
    a,
    wrenches: tuple[Wrench, ...],
    t,
    gravity: bool,
    rotations: bool = False,
) -> tuple[Bodies, tuple[Mat3, Mat3] | None]:
    """What every slot's body needs for its motion, less the wrenches; its shift, mode and inertia.

    Args:
      v, a: per slot.
      gravity: whether the bodies are to be held against gravity too.
      rotations: whether the orientations of every slot's parent and of the slot are wanted too.
    """
    base = at_base(system, x, t, up(system) if gravity else None)

    def keep(parent, state):
        return (parent.rotation, state.rotation) if wrenches or rotations else None

    body, kept = moving_bodies(system.topology.layout.tree, packed.slots, x, v, a, base, keep)
    if wrenches:
        body = body._replace(force=body.force - wrench_forces(system, packed, kept[1], wrenches))
    return body, kept


def still_bodies(system: System, packed: Packed, q: Float[Array, " nq"]) -> Bodies:
    """The same at rest and without forces, for what depends on q alone."""
    x = locate(system, packed, q, None)
    zero = Force(Vec3.zero(), Vec3.zero())

    def step(R, xs):
        slot, x = xs
        R, l, mode = place(R, slot, x)
        return R, (l, mode, slot.inertia.rotated(R))

    l, mode, inertia = scan_outward(system.topology.layout.tree, step, Mat3.identity(), (packed.slots, x))
    return Bodies(jax.tree.map(lambda _: jnp.zeros_like(inertia.mass), zero), l, mode, inertia)
