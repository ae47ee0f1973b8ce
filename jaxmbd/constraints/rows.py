"""Constraint rows of a system: residuals, Jacobian, velocities and accelerations at v_dot = 0.

A constraint sees frames. Its rows' derivative along the frames' motion is taken once, small and forward; the frames'
Jacobians and accelerations come from the sweeps:

    J = G J_frames,   rate = J v + c,   acceleration = J v_dot + gamma0,   gamma0 = G A_frames(v_dot = 0) + dG/dt V

Constraints of equal structure (forty hinges, say) are evaluated together. Rows stand in declaration order, holonomic
before non-holonomic within one constraint.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd.closures import At, Constraint
from jaxmbd.crba import coupling_matrix
from jaxmbd.curves import linearised
from jaxmbd.jacobian import point_jacobian
from jaxmbd.kinematics import Base, SlotMotion, SlotPlaces, base_motion, slot_motion, slot_places
from jaxmbd.packing import Packed, full_accelerations, full_coordinates, full_velocities
from jaxmbd.system import System
from jaxmbd.topology import Topology
from jaxmbd.tree import ancestors


class Rows(NamedTuple):
    """The constraint rows at a state."""

    residual: Float[Array, " nc"]
    """Position residual; zero on non-holonomic rows."""
    jacobian: Float[Array, "nc nv"]
    mesh: Float[Array, " nc"]
    """Size of each row before the frames' motions cancel: what a row's entries are zero compared with."""
    rate: Float[Array, " nc"]
    gamma: Float[Array, " nc"]
    """Acceleration of the rows at v_dot = 0."""


class Group(NamedTuple):
    """Constraints of equal structure, evaluated together."""

    members: list[int]
    frames: np.ndarray  # [n, k], into links and frames, -1 the world
    coordinates: np.ndarray  # [n, m], into q_full
    velocities: np.ndarray  # [n, m], into v_full


def count(topology: Topology) -> int:
    """Number of constraint rows nc."""
    return sum(sum(c.rows) for c in topology.constraints)


def spans(topology: Topology) -> list[slice]:
    """The rows of every constraint."""
    ends = np.cumsum([0, *(sum(c.rows) for c in topology.constraints)])
    return [slice(int(a), int(b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]


def holonomic(topology: Topology) -> np.ndarray:
    """Which rows are on position level, [nc]."""
    return np.array([k < c.rows[0] for c in topology.constraints for k in range(sum(c.rows))], bool)


def groups(system: System) -> list[Group]:
    """Constraints sorted by structure."""
    topology, layout = system.topology, system.topology.layout
    found: dict = {}
    for i, record in enumerate(system.constraints):
        leaves, structure = jax.tree.flatten(record)
        found.setdefault((structure, tuple(jnp.shape(x) for x in leaves)), []).append(i)
    entries = topology.constraints
    return [
        Group(
            members,
            np.array([entries[i].frames for i in members], int),
            np.array([[layout.q_start[j] for j in entries[i].joints] for i in members], int),
            np.array([[layout.v_start[j] for j in entries[i].joints] for i in members], int),
        )
        for members in found.values()
    ]


def _order(topology: Topology, sorted_groups: list[Group]) -> np.ndarray:
    """Gather that puts the rows of all groups, one after the other, into declaration order."""
    at = spans(topology)
    return np.argsort(np.concatenate([np.arange(at[i].start, at[i].stop) for g in sorted_groups for i in g.members]))


def _stacked(system: System, group: Group) -> Constraint:
    return jax.tree.map(lambda *x: jnp.stack(x), *(system.constraints[i] for i in group.members))


class Frames(NamedTuple):
    """Links and frames, the world last (index -1), in world axes."""

    rotation: Float[Array, "frames 3 3"]
    position: Float[Array, "frames 3"]
    arm: Float[Array, "frames 3"]  # from the slot's origin
    slot: np.ndarray


def _frames(system: System, packed: Packed, rotation, position, t) -> Frames:
    links = [*range(len(system.topology.links)), *(link for _, link in system.topology.frames), -1]
    slot = np.array([system.topology.layout.slot_of_link(link) for link in links], int)
    base = base_motion(system, t)
    R = jnp.concatenate([rotation, base.rotation[None]])[slot]
    p = jnp.concatenate([position, base.position[None]])[slot]
    identity = jnp.eye(3, dtype=R.dtype)[None]
    arm = jnp.einsum("nij,nj->ni", R[:-1], packed.frame_position)
    arm = jnp.concatenate([arm, jnp.zeros((1, 3), R.dtype)])
    return Frames(R @ jnp.concatenate([packed.frame_rotation, identity]), p + arm, arm, slot)


def residual(system: System, packed: Packed, q: Float[Array, " nq"], t) -> Float[Array, " nc"]:
    """Position residual of all rows, zero on non-holonomic ones [m, rad or what a constraint says]."""
    system = linearised(system, q, jnp.zeros(system.nv, q.dtype))
    places = slot_places(system, packed, q, t)
    frames = _frames(system, packed, places.rotation, places.position, t)
    return _residual(system, frames, q, t)


def _residual(system, frames: Frames, q, t):
    full, parts, sorted_groups = full_coordinates(system, q), [], groups(system)

    def one(record, R, p, x):
        rows = record.residual(At(R, p, None, x, None, t))
        return jnp.concatenate([rows, jnp.zeros(record.rows[1], q.dtype)])

    for g in sorted_groups:
        R, p = frames.rotation[g.frames], frames.position[g.frames]
        parts.append(jax.vmap(one)(_stacked(system, g), R, p, full[g.coordinates]).reshape(-1))
    return jnp.concatenate(parts)[_order(system.topology, sorted_groups)]


def _rate(record: Constraint, R, p, V, x, x_dot, t):
    """Velocity of all rows of one constraint."""
    R_dot = jnp.swapaxes(jnp.cross(V[:, None, :3], jnp.swapaxes(R, 1, 2)), 1, 2)

    def position(R, p, x, t):
        return record.residual(At(R, p, None, x, None, t))

    _, moving = jax.jvp(position, (R, p, x, t), (R_dot, V[:, 3:], x_dot, jnp.ones_like(t)))
    return jnp.concatenate([moving, record.rate(At(R, p, V, x, x_dot, t))])


def _velocities(frames: Frames, motion: SlotMotion, base: Base) -> Float[Array, "frames 6"]:
    """Velocities of all frames at their own origins."""
    V = jnp.concatenate([motion.velocity, base.velocity[None]])[frames.slot]
    return jnp.concatenate([V[:, :3], V[:, 3:] + jnp.cross(V[:, :3], frames.arm)], 1)


def rates(system: System, packed: Packed, q: Float[Array, " nq"], v: Float[Array, " nv"], t) -> Float[Array, " nc"]:
    """Velocities of all rows."""
    system = linearised(system, q, v)
    motion, base = slot_motion(system, packed, q, v, jnp.zeros_like(v), t), base_motion(system, t)
    frames = _frames(system, packed, motion.rotation, motion.position, t)
    V, sorted_groups = _velocities(frames, motion, base), groups(system)
    full_q, full_v = full_coordinates(system, q), full_velocities(system, v)
    parts = []
    for g in sorted_groups:
        state = frames.rotation[g.frames], frames.position[g.frames], V[g.frames]
        at_joints = full_q[g.coordinates], full_v[g.velocities]
        parts.append(jax.vmap(_rate, (0,) * 6 + (None,))(_stacked(system, g), *state, *at_joints, t).reshape(-1))
    return jnp.concatenate(parts)[_order(system.topology, sorted_groups)]


def rows(system: System, packed: Packed, q: Float[Array, " nq"], v: Float[Array, " nv"], t) -> Rows:
    """Everything about the rows at a state; one outward sweep."""
    topology, layout, system = system.topology, system.topology.layout, linearised(system, q, v)
    motion = slot_motion(system, packed, q, v, jnp.zeros_like(v), t)
    base = base_motion(system, t)
    frames = _frames(system, packed, motion.rotation, motion.position, t)
    V = _velocities(frames, motion, base)
    A = jnp.concatenate([motion.acceleration, base.acceleration[None]])[frames.slot]
    spin = jnp.cross(V[:, :3], frames.arm)
    A = jnp.concatenate([A[:, :3], A[:, 3:] + jnp.cross(A[:, :3], frames.arm) + jnp.cross(V[:, :3], spin)], 1)
    used = sorted({int(f) for c in topology.constraints for f in c.frames})
    J = _frame_jacobians(system, SlotPlaces(motion.rotation, motion.position, motion.mode), frames, used)
    place = {f: n for n, f in enumerate(used)}

    full_q, full_v = full_coordinates(system, q), full_velocities(system, v)
    full_a = full_accelerations(system, jnp.zeros_like(v))
    sorted_groups = groups(system)
    parts = []

    def one(record, R, p, V, A, x, x_dot, x_ddot):
        def rate(V, x_dot):
            return _rate(record, R, p, V, x, x_dot, t)

        G, G_x = jax.jacfwd(rate, (0, 1))(jnp.zeros_like(V), jnp.zeros_like(x_dot))
        R_dot = jnp.swapaxes(jnp.cross(V[:, None, :3], jnp.swapaxes(R, 1, 2)), 1, 2)
        speed, gamma = jax.jvp(
            lambda *state: _rate(record, *state),
            (R, p, V, x, x_dot, t),
            (R_dot, V[:, 3:], A, x_dot, x_ddot, jnp.ones_like(t)),
        )
        closed = jnp.concatenate([record.residual(At(R, p, None, x, None, t)), jnp.zeros(record.rows[1], q.dtype)])
        return closed, G, G_x, speed, gamma

    for g in sorted_groups:
        record = _stacked(system, g)
        state = (frames.rotation[g.frames], frames.position[g.frames], V[g.frames], A[g.frames])
        at_joints = full_q[g.coordinates], full_v[g.velocities], full_a[g.velocities]
        closed, G, G_x, speed, gamma = jax.vmap(one)(record, *state, *at_joints)
        at = np.array([[place[int(f)] for f in row] for row in g.frames], int).reshape(g.frames.shape)
        jacobian = (
            jnp.einsum("nrkc,nkcv->nrv", G, J[at]) if g.frames.size else jnp.zeros((*G.shape[:2], layout.nv_full))
        )
        mesh = jnp.einsum("nrkc,nkcv->nrv", jnp.abs(G), jnp.abs(J[at])) if g.frames.size else jnp.zeros_like(jacobian)
        jacobian, mesh = jacobian.astype(q.dtype), mesh.astype(q.dtype)
        if g.coordinates.size:
            n = np.arange(len(g.members))[:, None]
            jacobian = jnp.swapaxes(jnp.swapaxes(jacobian, 1, 2).at[n, g.velocities].add(jnp.swapaxes(G_x, 1, 2)), 1, 2)
            mesh = jnp.maximum(mesh, jnp.max(jnp.abs(G_x), -1, keepdims=True))
        flat = (closed, jacobian, jnp.max(mesh, -1, initial=0.0), speed, gamma)
        parts.append([part.reshape(-1, *part.shape[2:]) for part in flat])
    order = _order(topology, sorted_groups)
    closed, jacobian, mesh, speed, gamma = (jnp.concatenate(part)[order] for part in zip(*parts, strict=True))
    if topology.couplings:
        jacobian = jacobian @ coupling_matrix(system)
    return Rows(closed, jacobian, mesh, speed, gamma)


def _frame_jacobians(system: System, places: SlotPlaces, frames: Frames, used: list[int]) -> Float[Array, "used 6 nv"]:
    """Jacobians of the frames that constraints use, velocities of all joints."""
    layout = system.topology.layout
    on_path = np.zeros((len(used), layout.tree.size), bool)
    path = ancestors(layout.tree.parents)
    for n, f in enumerate(used):
        if frames.slot[f] >= 0:
            on_path[n] = path[:, frames.slot[f]]
    J = jax.vmap(lambda point: point_jacobian(places, point))(frames.position[np.array(used, int)])
    return jnp.where(on_path[:, None, :], J, 0.0)[:, :, layout.velocity_slot]


def wrench_map(system: System, packed: Packed, q, v, t) -> Float[Array, "constraints 6 nc"]:
    """From multipliers to the wrench [moment; force] on each constraint's last frame, world axes, at its origin."""
    topology, at, system = system.topology, spans(system.topology), linearised(system, q, v)
    places = slot_places(system, packed, q, t)
    frames = _frames(system, packed, places.rotation, places.position, t)
    full_q, full_v = full_coordinates(system, q), full_velocities(system, v)
    maps = jnp.zeros((len(at), 6, count(topology)), q.dtype)
    for g in groups(system):
        if not g.frames.size:
            continue  # gears act on joints, not on frames

        def one(record, R, p, x, x_dot):
            zero = jnp.zeros((len(p), 6), p.dtype)
            return jax.jacfwd(lambda V: _rate(record, R, p, V, x, x_dot, t))(zero)[:, -1].T

        state = frames.rotation[g.frames], frames.position[g.frames], full_q[g.coordinates], full_v[g.velocities]
        for i, block in zip(g.members, jax.vmap(one)(_stacked(system, g), *state), strict=True):
            maps = maps.at[i, :, at[i]].set(block)
    return maps


class OnFrames(NamedTuple):
    """What one constraint does to each of its frames: [moment; force] at the frame's origin, world axes."""

    frames: np.ndarray  # [k], into links and frames, -1 the world
    wrench: Float[Array, "k 6"]
    rotation: Float[Array, "k 3 3"]
    position: Float[Array, "k 3"]


def frame_forces(system: System, packed: Packed, q, v, t, multipliers: Float[Array, " nc"]) -> list[OnFrames]:
    """The constraints' wrenches on all of their frames, constraint by constraint: the transpose of their rates."""
    topology, at, system = system.topology, spans(system.topology), linearised(system, q, v)
    places = slot_places(system, packed, q, t)
    frames = _frames(system, packed, places.rotation, places.position, t)
    full_q, full_v = full_coordinates(system, q), full_velocities(system, v)
    found: dict[int, OnFrames] = {}
    for g in groups(system):

        def one(record, R, p, x, x_dot, weights):
            def power(V):
                return weights @ _rate(record, R, p, V, x, x_dot, t)

            zero = jnp.zeros((len(p), 6), p.dtype)
            return jax.grad(power)(zero)

        R, p = frames.rotation[g.frames], frames.position[g.frames]
        weights = jnp.stack([multipliers[at[i]] for i in g.members])
        wrench = jax.vmap(one)(_stacked(system, g), R, p, full_q[g.coordinates], full_v[g.velocities], weights)
        for n, i in enumerate(g.members):
            found[i] = OnFrames(g.frames[n], wrench[n], R[n], p[n])
    return [found[i] for i in range(len(topology.constraints))]
