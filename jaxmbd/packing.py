"""From a system's primary numbers to what one sweep step needs, inside the traced function.

`pack` depends on the system alone: it merges welded links into bodies (parallel axes), turns every slot's frame so that
its axis is z, and places links and frames on the slots that carry them. `locate` adds what depends on q. Both work on
all slots at once; nothing is computed joint by joint but user functions.

Frames: a slot's frame has its origin at the outboard joint frame's and its z along the slot's axis, which is constant
in that frame for all built-in joints: in world axes it is a column of the slot's orientation and costs nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.entries import columns, entries, inverse
from jaxmbd.joints import Mapped, unit
from jaxmbd.spatial import Inertia, Mat3, Motion, Scalar, Sym3, Vec3
from jaxmbd.system import System
from jaxmbd.tree import each


class Slot(NamedTuple):
    """Constants of one velocity: home pose in the slot before it, what the velocity does along z, inertia."""

    home: Mat3
    origin: Vec3
    turn: Scalar | None  # unit velocity turns about z by this; None where every slot is a hinge
    slide: Scalar | None  # ... and slides along z by this
    inertia: Inertia
    rotor: Vec3 | None


class Mode(NamedTuple):
    """A slot's mode in world axes: its axis and how it turns and slides; or the whole mode, with mapped joints."""

    axis: Vec3 | None
    turn: Scalar | None
    slide: Scalar | None
    whole: Motion | None

    @property
    def motion(self) -> Motion:
        """The mode as a six-vector at the slot's origin (Featherstone's S, H* of Jain & Rodriguez)."""
        if self.whole is not None:
            return self.whole
        assert self.axis is not None
        if self.turn is None:
            return Motion(self.axis, None)
        return Motion(self.turn * self.axis, self.slide * self.axis)


class Extra(NamedTuple):
    """Parts of a slot's pose that no screw describes: quaternion and mapped joints (zero on other slots)."""

    rotation: Mat3
    origin: Vec3
    enters: Array  # whether the slot starts a joint; each screw of a product counts as one
    mode: Motion | None  # mapped joints only: modes that depend on q, in the slot's axes
    velocity_product: Motion | None  # mapped joints only: relative acceleration at v_dot = 0, likewise


class Place(NamedTuple):
    """What the pose and velocity of one slot depend on besides its constants."""

    q: Array
    cos: Array
    sin: Array
    extra: Extra | None


class Packed(eqx.Module):
    """Constants of a system in sweep order, and the placement of links and frames on slots."""

    slots: Slot
    frame_rotation: Float[Array, "links_and_frames 3 3"]
    frame_position: Float[Array, "links_and_frames 3"]
    joint_rotation: Float[Array, "joints 3 3"]
    """Home rotation of each joint's inboard frame in the frame of the slot before it."""
    slot_frame: Float[Array, "slots 3 3"]
    """Orientation of every slot's frame in its joint's outboard frame."""


def pack(system: System) -> Packed:
    """Constants of the sweeps, O(links) vectorised work."""
    topology, layout = system.topology, system.topology.layout
    dtype = system.gravity.dtype
    n_links, ns = len(topology.links), layout.tree.size
    parent = np.array([j.parent for j in topology.joints], int)
    child = np.array([j.child for j in topology.joints], int)
    identity = jnp.eye(3, dtype=dtype)[None]
    Rp, pp = so3.matrix(system.in_parent_rotation), system.in_parent_position
    Rc, pc = so3.matrix(system.in_child_rotation), system.in_child_position

    # every link in the frame of its body's root link (or of the world): outwards along the welds. The last row is the
    # world
    R = jnp.tile(identity, (n_links + 1, 1, 1))
    p = jnp.zeros((n_links + 1, 3), dtype)
    for weld in layout.weld_levels:
        R_weld = Rp[weld] @ _T(Rc[weld])
        p_weld = pp[weld] - _apply(R_weld, pc[weld])
        outer = R[parent[weld]]
        p = p.at[child[weld]].set(p[parent[weld]] + _apply(outer, p_weld))
        R = R.at[child[weld]].set(outer @ R_weld)
    # axes of the screws, frames with z along them
    if len(system.axis):
        along = so3.frame_along(unit(system.axis))[layout.slot_screw]
        frame = jnp.where(layout.slot_is_screw[:, None, None], along, jnp.asarray(layout.slot_frame, dtype))
    else:
        frame = jnp.asarray(layout.slot_frame, dtype)
    # ... and every link in the frame of its body, that of its joint's last slot
    of_body = np.append(layout.joint_of_body, -1)[np.append(layout.body_of_link, layout.nb)]
    moving = of_body >= 0
    last = frame[np.append(layout.last_slot, -1)[np.append(layout.body_of_link, layout.nb)]] if ns else identity
    Rc_body = jnp.where(moving[:, None, None], Rc[of_body] @ last, identity) if len(parent) else R
    pc_body = jnp.where(moving[:, None], pc[of_body], 0.0) if len(parent) else p
    R, p = _T(Rc_body) @ R, _apply(_T(Rc_body), p - pc_body)

    on = np.array([link for _, link in topology.frames], int)
    R_frame = R[on] @ so3.matrix(system.frame_rotation)
    p_frame = p[on] + _apply(R[on], system.frame_position)

    # inertia of every body about its frame's origin; bodies keep their declaration order, massless slots get the last
    # row
    com = p[:-1] + _apply(R[:-1], system.link_com)
    tensor = R[:-1] @ tensors(system.link_inertia) @ _T(R[:-1])
    square = jnp.sum(com * com, -1)[:, None, None] * identity
    tensor = tensor + system.link_mass[:, None, None] * (square - com[:, :, None] * com[:, None, :])
    segments = np.where(layout.body_of_link >= 0, layout.body_of_link, layout.nb)

    def per_slot(values):
        sums = jax.ops.segment_sum(values, segments, layout.nb + 1)
        return sums.at[layout.nb].set(0.0)[layout.slot_body]

    inertia = Inertia(
        per_slot(system.link_mass),
        Vec3.of(per_slot(system.link_mass[:, None] * com)),
        Sym3.of(per_slot(tensor)),
    )
    rotor = Vec3.of(per_slot(_apply(R[:-1], system.rotor_momentum))) if topology.gyrostatic else None

    # home poses: that of the joint for its first slot, then from slot to slot inside a joint
    R_joint = R[parent] @ Rp
    p_joint = p[parent] + _apply(R[parent], pp)
    first = layout.slot_first
    before = _T(jnp.roll(frame, 1, axis=0))
    R_home = jnp.where(first[:, None, None], R_joint[layout.slot_joint], before)
    p_home = jnp.where(first[:, None], p_joint[layout.slot_joint], 0.0)
    slide = jnp.asarray(layout.slot_slide, dtype)
    if len(system.axis):
        offset = jnp.where(layout.slot_is_screw[:, None], system.offset_position[layout.slot_screw], 0.0)
        turned = so3.matrix(system.offset_rotation)[layout.slot_screw]
        p_home = p_home + _apply(R_home, offset)
        R_home = R_home @ jnp.where(layout.slot_is_screw[:, None, None], turned, identity)
        slide = jnp.where(layout.slot_helical, system.pitch[layout.slot_screw], slide)
    # the first slot of a quaternion or mapped joint has no orientation of its own: `Extra` gives it whole
    R_home = jnp.where((layout.slot_is_screw | ~first)[:, None, None], R_home @ frame, 0.0)
    hinges = layout.only_hinges
    slots = Slot(
        home=Mat3.of(R_home),
        origin=Vec3.of(p_home),
        turn=None if hinges else jnp.asarray(layout.slot_turn, dtype),
        slide=None if hinges else slide,
        inertia=inertia,
        rotor=rotor,
    )
    return Packed(
        slots=slots,
        frame_rotation=jnp.concatenate([R[:-1], R_frame]),
        frame_position=jnp.concatenate([p[:-1], p_frame]),
        joint_rotation=R_joint,
        slot_frame=frame,
    )


def locate(system: System, packed: Packed, q: Float[Array, " nq"], v: Float[Array, " nv"] | None) -> Place:
    """The inputs of every slot's pose, from coordinates (and velocities, which only mapped joints need)."""
    layout = system.topology.layout
    q = full_coordinates(system, q)
    number = entries(q, np.where(layout.slot_is_screw, layout.slot_coordinate, -1))
    angle = entries(q, np.where(layout.slot_turning, layout.slot_coordinate, -1))
    cos, sin = each(so3.cos_sin, angle)
    return Place(number, cos, sin, _extra(system, packed, q, v))


def mapped_joint(system: System, i: int) -> Mapped:
    """The record of the mapped joint with index i."""
    entry, functions = system.topology.joints[i], system.functions
    return Mapped(functions[system.topology.layout.mapped.index(i)], entry.nq, entry.nv if entry.quasi else None)


def _extra(system, packed, q, v) -> Extra | None:
    layout = system.topology.layout
    if not layout.quaternion and not layout.mapped:
        return None
    poses = [_quaternion_poses(system, packed, q)] if layout.quaternion else []
    modes, products = [], []
    for i in layout.mapped:
        pose, mode, product = _mapped(system, packed, i, q, v)
        poses.append(pose)
        modes.append(mode)
        products.append(product)
    joints = layout.quaternion + layout.mapped
    row = {joint: n for n, joint in enumerate(joints)}
    first = zip(layout.slot_joint, layout.slot_first, strict=True)
    at = np.array([row.get(j, -1) if is_first else -1 for j, is_first in first])
    turn, origin = jax.tree.map(lambda *parts: entries(jnp.concatenate(parts), at), *poses)
    mode = product = None
    if layout.mapped:
        of_mapped = at - len(layout.quaternion)
        product = jax.tree.map(lambda *parts: entries(jnp.stack(parts), np.maximum(of_mapped, -1)), *products)
        starts = dict(zip(layout.mapped, np.cumsum([0, *(len(m) for m in modes)]), strict=False))
        pick = [starts[j] + s - layout.first_slot[j] if j in starts else -1 for s, j in enumerate(layout.slot_joint)]
        mode = Motion.of(entries(jnp.concatenate(modes), np.array(pick)))
    enters = jnp.logical_or(layout.slot_first, layout.slot_is_screw)  # by JAX: see `_scan` in tree.py
    return Extra(turn, origin, enters, mode, product)


def _quaternion_poses(system, packed, q) -> tuple[Mat3, Vec3]:
    """Orientation and origin of the first slot of every quaternion joint in the slot before it."""
    layout, joints = system.topology.layout, np.array(system.topology.layout.quaternion)
    start = layout.q_start[joints]
    translating = np.array([system.topology.joints[i].translating for i in joints])
    number = columns(entries(q, start[:, None] + np.arange(4)))
    shift = Vec3(*columns(entries(q, np.where(translating[:, None], start[:, None] + np.arange(4, 7), -1))))
    outer = Mat3.of(packed.joint_rotation[joints])
    frame = Mat3.of(packed.slot_frame[np.array([layout.first_slot[i] for i in joints])])

    def pose(number, shift, outer, frame):
        turn = Mat3(*so3.matrix_entries(*number))
        return outer @ turn @ frame, outer @ shift

    return each(pose, number, shift, outer, frame)


def _mapped(system, packed, i, q, v):
    """The same of one mapped joint, with its modes (a row each) and its relative acceleration at v_dot = 0."""
    layout, entry = system.topology.layout, system.topology.joints[i]
    joint, start = mapped_joint(system, i), int(layout.q_start[i])
    own = q[start : start + entry.nq]
    pose = joint.pose(own)
    turn, origin = pose.rotation, pose.position
    speeds = jnp.zeros(entry.nv, q.dtype)
    if v is not None:
        speeds = full_velocities(system, v)[layout.v_start[i] : layout.v_start[i + 1]]
    inboard = joint.modes(own)
    mode = jnp.concatenate([turn.T @ inboard[:3], turn.T @ inboard[3:]])
    product = _velocity_product(mode, turn, joint.rate(own, speeds), speeds)
    outer = packed.joint_rotation[i]
    turn = outer @ turn @ packed.slot_frame[layout.first_slot[i]]
    return (Mat3.of(turn[None]), Vec3.of((outer @ origin)[None])), mode.T, Motion.of(product)


def _velocity_product(mode, turn, rate, v):
    """What a sweep has to add at a mapped joint's first slot, so that its slots together have the rate `rate`.

    Slot j of a joint contributes the Coriolis term (omega_in + omega_j) x (linear mode v_j), of which omega_j -
    omega_in, the relative velocity up to j, is already part of `rate`.
    """
    relative = jnp.cumsum(mode[:3] * v[None], axis=1)
    counted = jnp.sum(jnp.cross(relative, mode[3:] * v[None], axis=0), axis=1)
    return jnp.concatenate([turn.T @ rate[:3], turn.T @ rate[3:] - counted])


def full_coordinates(system: System, q: Float[Array, " nq"]) -> Float[Array, " nq_full"]:
    """Coordinates of all joints, those that follow others included."""
    layout = system.topology.layout
    if not system.topology.couplings:
        return q
    at = inverse(layout.q_coupled, layout.nq_full)
    return _ratios(system, at) * entries(q, layout.q_source) + entries(system.offset, at)


def full_velocities(system: System, v: Float[Array, " nv"]) -> Float[Array, " nv_full"]:
    """Velocities (or accelerations) of all joints, those that follow others included: G v."""
    layout = system.topology.layout
    if not system.topology.couplings:
        return v
    return _ratios(system, inverse(layout.v_coupled, layout.nv_full)) * entries(v, layout.v_source)


def _ratios(system: System, at: np.ndarray) -> Array:
    """Ratios of followers to their leaders, one for all others."""
    return entries(system.ratio, at) + (at < 0).astype(system.ratio.dtype)


def full_accelerations(system: System, a: Float[Array, " nv"]) -> Float[Array, " nv_full"]:
    """Accelerations of all joints: G a, and what followers on a curve accelerate beside it."""
    full = full_velocities(system, a)
    if system.coupling_rate is None:
        return full
    layout = system.topology.layout
    return full + entries(system.coupling_rate, inverse(layout.v_coupled, layout.nv_full))


def reduced_forces(system: System, tau: Float[Array, " nv_full"]) -> Float[Array, " nv"]:
    """Generalised forces on the independent velocities: G^T tau."""
    layout = system.topology.layout
    if not system.topology.couplings:
        return tau
    own, felt = entries(tau, layout.v_keep), system.ratio * entries(tau, layout.v_coupled)
    leader = layout.v_source[layout.v_coupled]
    if len(set(leader)) < len(leader):
        return own + jax.ops.segment_sum(felt, leader, system.nv)
    return own + entries(felt, inverse(leader, system.nv))


def slot_armature(system: System) -> Float[Array, " slots"]:
    """Armature in sweep order."""
    return entries(system.armature, system.topology.layout.slot_velocity)


def to_slots(system: System, v: Float[Array, " nv"]) -> Float[Array, " slots"]:
    """Velocities (or independent forces) in sweep order."""
    return entries(full_velocities(system, v), system.topology.layout.slot_velocity)


def accelerations_to_slots(system: System, a: Float[Array, " nv"]) -> Float[Array, " slots"]:
    """Accelerations in sweep order."""
    return entries(full_accelerations(system, a), system.topology.layout.slot_velocity)


def from_slots(system: System, forces: Float[Array, " slots"]) -> Float[Array, " nv_full"]:
    """Numbers per slot in declaration order."""
    return entries(forces, system.topology.layout.velocity_slot)


def tensors(inertia: Float[Array, "n 6"]) -> Float[Array, "n 3 3"]:
    """Symmetric tensors from their six numbers."""
    return inertia[:, np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])]


def _T(R):
    return jnp.swapaxes(R, -1, -2)


def _apply(R, p):
    return jnp.einsum("nij,nj->ni", R, p)
