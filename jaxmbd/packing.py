"""From a system's primary numbers to what one sweep step needs, inside the traced function.

`pack` depends on the system alone: it merges welded links into bodies (parallel axes), places every frame on the slot
that carries it, and reduces each screw to the constants of its pose, R(q) = K0 + cos(q) K1 + sin(q) K2. `locate` adds
what depends on q. Both work on all slots at once; nothing is computed joint by joint but user functions.

Frames: a slot's frame is its outboard joint frame. For all built-in joints the modes are constant in that frame.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.joints import Mapped, unit
from jaxmbd.spatial import Inertia, Mat3, Motion, Sym3, Vec3
from jaxmbd.system import System


class Slot(NamedTuple):
    """Constants of one velocity: pose, mode in outboard axes, inertia about the slot's origin in its axes."""

    home: Mat3
    cosine: Mat3
    sine: Mat3
    origin: Vec3
    advance: Vec3
    mode: Motion
    inertia: Inertia
    rotor: Vec3 | None


class Extra(NamedTuple):
    """Parts of a slot's pose that no screw describes: quaternion and mapped joints (zero on other slots)."""

    rotation: Mat3
    origin: Vec3
    enters: Array  # whether the slot starts a joint; each screw of a product counts as one
    mode: Motion | None  # mapped joints only: modes that depend on q, outboard axes
    velocity_product: Motion | None  # mapped joints only: relative acceleration at v_dot = 0, outboard axes


class Place(NamedTuple):
    """What the pose and velocity of one slot depend on besides its constants."""

    q: Array
    cos: Array
    sin: Array
    extra: Extra | None


class Packed(eqx.Module):
    """Constants of a system in sweep order, and the placement of links and frames on slots."""

    slots: Slot
    armature: Float[Array, " slots"]
    frame_rotation: Float[Array, "links_and_frames 3 3"]
    frame_position: Float[Array, "links_and_frames 3"]
    joint_rotation: Float[Array, "joints 3 3"]
    """Home rotation of each joint's inboard frame in the frame of the slot before it."""


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
    # ... and in the body's own frame, the outboard frame of its joint
    of_body = np.append(layout.joint_of_body, -1)[np.append(layout.body_of_link, layout.nb)]
    moving = of_body >= 0
    Rc_body = jnp.where(moving[:, None, None], Rc[of_body], identity) if len(parent) else R
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

    # poses: the tree's pose before the first slot of a joint, offsets inside a joint, then the screw
    R_joint = R[parent] @ Rp
    p_joint = p[parent] + _apply(R[parent], pp)
    first, screw = layout.slot_first, layout.slot_is_screw
    R_home = jnp.where(first[:, None, None], R_joint[layout.slot_joint], identity)
    p_home = jnp.where(first[:, None], p_joint[layout.slot_joint], 0.0)
    if len(system.axis):
        axis = jnp.where(screw[:, None], unit(system.axis)[layout.slot_screw], 0.0)
        gain = jnp.where(layout.slot_turning, system.pitch[layout.slot_screw], 1.0)
        R_off = so3.matrix(system.offset_rotation)[layout.slot_screw]
        R_off = jnp.where(screw[:, None, None], R_off, identity)
        p_off = jnp.where(screw[:, None], system.offset_position[layout.slot_screw], 0.0)
        p_home = p_home + _apply(R_home, p_off)
        R_home = R_home @ R_off
    else:
        axis, gain = jnp.zeros((ns, 3), dtype), jnp.zeros(ns, dtype)
    along = axis[:, :, None] * axis[:, None, :]
    # a slot that does not turn has angle 0: its pose K0 + K1 is the home pose. The first slot of a quaternion joint has
    # none of its own: `Extra` gives it whole
    fixed = jnp.where((screw | ~first)[:, None, None], identity, 0.0)
    mode = jnp.concatenate([jnp.where(layout.slot_turning[:, None], axis, 0.0), gain[:, None] * axis], 1)
    slots = Slot(
        home=Mat3.of(R_home @ jnp.where(screw[:, None, None], along, fixed)),
        cosine=Mat3.of(R_home @ jnp.where(screw[:, None, None], identity - along, 0.0)),
        sine=Mat3.of(R_home @ so3.skew(axis)),
        origin=Vec3.of(p_home),
        advance=Vec3.of(gain[:, None] * _apply(R_home, axis)),
        mode=Motion.of(mode + jnp.asarray(layout.slot_unit, dtype)),
        inertia=inertia,
        rotor=rotor,
    )
    return Packed(
        slots=slots,
        armature=system.armature[layout.slot_velocity],
        frame_rotation=jnp.concatenate([R[:-1], R_frame]),
        frame_position=jnp.concatenate([p[:-1], p_frame]),
        joint_rotation=R_joint,
    )


def locate(system: System, packed: Packed, q: Float[Array, " nq"], v: Float[Array, " nv"] | None) -> Place:
    """The inputs of every slot's pose, from coordinates (and velocities, which only mapped joints need)."""
    layout = system.topology.layout
    q = full_coordinates(system, q)
    number = jnp.where(layout.slot_is_screw, q[layout.slot_coordinate], 0.0) if len(q) else jnp.zeros(0, q.dtype)
    angle = jnp.where(layout.slot_turning, number, 0.0)
    return Place(number, jnp.cos(angle), jnp.sin(angle), _extra(system, packed, q, v))


def _extra(system, packed, q, v) -> Extra | None:
    topology, layout = system.topology, system.topology.layout
    if not layout.quaternion and not layout.mapped:
        return None
    joints = layout.quaternion + layout.mapped
    turns, origins, modes, products = [], [], [], []
    for i in joints:
        entry, start = topology.joints[i], int(layout.q_start[i])
        own = q[start : start + entry.nq]
        mode, product = jnp.zeros((6, entry.nv), q.dtype), jnp.zeros(6, q.dtype)
        if entry.is_mapped:
            joint = Mapped(system.functions[layout.mapped.index(i)], entry.nq)
            pose = joint.pose(own)
            turn, origin = pose.rotation, pose.position
            speeds = jnp.zeros(entry.nv, q.dtype)
            if v is not None:
                speeds = full_velocities(system, v)[layout.v_start[i] : layout.v_start[i + 1]]
            inboard = joint.modes(own)
            mode = jnp.concatenate([turn.T @ inboard[:3], turn.T @ inboard[3:]])
            product = _velocity_product(mode, turn, joint.rate(own, speeds), speeds)
        else:
            turn = so3.matrix(own[:4])
            origin = own[4:] if entry.translating else jnp.zeros(3, q.dtype)
        turns.append(packed.joint_rotation[i] @ turn)
        origins.append(packed.joint_rotation[i] @ origin)
        modes.append(mode.T)
        products.append(product)
    row = {joint: n for n, joint in enumerate(joints)}
    at = np.array(
        [
            row.get(j, len(joints)) if f else len(joints)
            for j, f in zip(layout.slot_joint, layout.slot_first, strict=True)
        ]
    )

    def rows(values):
        stacked = jnp.stack(values)
        return jnp.concatenate([stacked, jnp.zeros((1, *stacked.shape[1:]), stacked.dtype)])[at]

    mode = product = None
    if layout.mapped:
        per_slot = jnp.concatenate([*modes, jnp.zeros((1, 6), q.dtype)])
        starts = dict(zip(joints, np.cumsum([0, *(topology.joints[i].nv for i in joints)]), strict=False))
        first_of = {j: s for s, j in reversed(list(enumerate(layout.slot_joint)))}
        pick = [
            starts[j] + s - first_of[j] if j in starts else len(per_slot) - 1 for s, j in enumerate(layout.slot_joint)
        ]
        mode, product = Motion.of(per_slot[np.array(pick)]), Motion.of(rows(products))
    return Extra(
        Mat3.of(rows(turns)),
        Vec3.of(rows(origins)),
        jnp.asarray(layout.slot_first | layout.slot_is_screw),
        mode,
        product,
    )


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
    ratio = jnp.ones(layout.nq_full, q.dtype).at[layout.q_coupled].set(system.ratio)
    return ratio * q[layout.q_source] + jnp.zeros(layout.nq_full, q.dtype).at[layout.q_coupled].set(system.offset)


def full_velocities(system: System, v: Float[Array, " nv"]) -> Float[Array, " nv_full"]:
    """Velocities (or accelerations) of all joints, those that follow others included: G v."""
    layout = system.topology.layout
    if not system.topology.couplings:
        return v
    return jnp.ones(layout.nv_full, v.dtype).at[layout.v_coupled].set(system.ratio) * v[layout.v_source]


def reduced_forces(system: System, tau: Float[Array, " nv_full"]) -> Float[Array, " nv"]:
    """Generalised forces on the independent velocities: G^T tau."""
    layout = system.topology.layout
    if not system.topology.couplings:
        return tau
    ratio = jnp.ones(layout.nv_full, tau.dtype).at[layout.v_coupled].set(system.ratio)
    return jax.ops.segment_sum(ratio * tau, layout.v_source, system.nv)


def to_slots(system: System, v: Float[Array, " nv"]) -> Float[Array, " slots"]:
    """Velocities, accelerations (or independent forces) in sweep order."""
    return full_velocities(system, v)[system.topology.layout.slot_velocity]


def from_slots(system: System, forces: Float[Array, " slots"]) -> Float[Array, " nv_full"]:
    """Numbers per slot in declaration order."""
    return forces[system.topology.layout.velocity_slot]


def tensors(inertia: Float[Array, "n 6"]) -> Float[Array, "n 3 3"]:
    """Symmetric tensors from their six numbers."""
    return inertia[:, np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])]


def _T(R):
    return jnp.swapaxes(R, -1, -2)


def _apply(R, p):
    return jnp.einsum("nij,nj->ni", R, p)
