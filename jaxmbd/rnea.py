"""Inverse dynamics: from motion to forces, by the recursive Newton-Euler algorithm.

Outwards the accelerations, inwards the forces (Jain & Rodriguez 1990, Eq. 4.1; Slaats 1991, section 3.3):

    f_k = inertia force of body k - applied wrench + sum over children of phi f_child,   tau_k = mode . f_k

Gravity is the acceleration -g of the base (only in what the bodies feel).
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.forces import Wrench, passive_forces, wrench_forces
from jaxmbd.kinematics import at_base, move, place, promote
from jaxmbd.packing import (
    Mode,
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
from jaxmbd.spatial import Force, Inertia, Mat3, Vec3
from jaxmbd.system import System
from jaxmbd.tree import scan_inward, scan_outward


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
    packed = pack(system)
    tau = body_forces(system, packed, q, v, a, wrenches, t, gravity=True)
    armature = system.armature * full_accelerations(system, a)
    return reduced_forces(system, tau + armature - passive_forces(system, q, v))


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
        system = dataclasses.replace(system, base_motion=jax.tree_util.Partial(_held, system.base_motion(t)))
    return reduced_forces(system, body_forces(system, pack(system), q, v, a, (), t, gravity=True))


def _held(pose, t):
    return pose


def body_forces(
    system: System, packed: Packed, q, v, a, wrenches: tuple[Wrench, ...], t, gravity: bool
) -> Float[Array, " nv_full"]:
    """Forces on every velocity, followers included, that move the bodies: no armature, no passive forces."""
    x = locate(system, packed, q, v)
    body = inertial_forces(
        system, packed, x, to_slots(system, v), accelerations_to_slots(system, a), wrenches, t, gravity
    )

    def step(f, xs):
        own, l, mode = xs
        f = f + own
        return f.shift(l), mode.motion.dot(f)

    zero = Force(Vec3.zero(), Vec3.zero())
    xs = (body.force, body.l, body.mode)
    return from_slots(system, scan_inward(system.topology.layout.tree, step, zero, xs))


class Bodies(NamedTuple):
    """What the outward sweep leaves behind for every slot: world axes, the slot's own origin."""

    force: Force  # needed for the motion, less what acts from outside
    l: Vec3  # shift from the parent's origin
    mode: Mode
    inertia: Inertia


def inertial_forces(
    system: System, packed: Packed, x: Place, v, a, wrenches: tuple[Wrench, ...], t, gravity: bool
) -> Bodies:
    """Outward sweep: the force that each slot's body needs for its motion, its shift, mode and inertia.

    Args:
      v, a: per slot.
      gravity: whether the bodies are to be held against gravity too.
    """
    up = None if not gravity else jnp.concatenate([jnp.zeros(3, system.gravity.dtype), -system.gravity])

    def step(parent, xs):
        slot, x, v, a = xs
        state, l, mode = move(parent, slot, x, v, a)
        inertia = slot.inertia.rotated(state.rotation)
        f = inertia.inertial_force(state.omega, state.acceleration.angular, state.acceleration.linear)
        if slot.rotor is not None:
            f = Force(f.moment + state.omega.cross(state.rotation @ slot.rotor), f.force)
        return state, (Bodies(f, l, mode, inertia), state.rotation if wrenches else None)

    start = at_base(system, x, t, up)
    body, R = scan_outward(system.topology.layout.tree, step, start, (packed.slots, x, v, a))
    if wrenches:
        body = body._replace(force=body.force - wrench_forces(system, packed, R, wrenches))
    return body


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
