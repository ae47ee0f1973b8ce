"""Reactions: the wrench that every joint of a moving system transmits, and its parts.

Outwards the motion, then the force that every link needs, then inwards the sum over what a joint carries, welds
included. A joint's wrench Lambda splits along its modes (Schwertassek & Senger 1988, Eqs. 3.28-3.34): with the modes
S = [free, driven] and their duals W = S (S^T S)^-1, which are dual for a constrained basis orthogonal to S,

    lambda = S^T Lambda,   applied = W_free lambda_free,   driving = W_driven lambda_driven,   constraint = the rest

so that the constraint part does no work on any motion that the joint allows. Closures and other constraints act on
the links at their frames; a constraint between two frames is listed beside the joints, all of its wrench a constraint.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.aba import accelerations
from jaxmbd.constraints.dynamics import constrained
from jaxmbd.constraints.rows import OnFrames, frame_forces
from jaxmbd.forces import BodyForces, Wrench
from jaxmbd.kinematics import at_base, move, promote, vectors
from jaxmbd.packing import Mode, Packed, accelerations_to_slots, locate, pack, tensors, to_slots
from jaxmbd.spatial import Force, Inertia, Mat3, Motion, Sym3, Vec3
from jaxmbd.system import System
from jaxmbd.topology import WORLD
from jaxmbd.tree import scan_inward, scan_outward


class JointReaction(eqx.Module):
    """What acts through one joint on its outboard body: six-vectors [moment [N m]; force [N]].

    `wrench` is the sum of `applied` (along the duals of the free modes: actuators at the joint, springs, dampers,
    friction, rotor inertia), `driving` (of velocities driven by a law) and `constraint`. `forces` are the projections
    of the wrench on the joint's modes, one a velocity. Gears and couplings act along free modes, so in `applied`.
    """

    wrench: Float[Array, "6"]
    applied: Float[Array, "6"]
    driving: Float[Array, "6"]
    constraint: Float[Array, "6"]
    forces: Float[Array, " nv_joint"]


class Reactions(eqx.Module):
    """Reactions of all joints, welds included, then of constraints between two frames; `r["hinge"]` is one of them."""

    wrench: Float[Array, "joints 6"]
    applied: Float[Array, "joints 6"]
    driving: Float[Array, "joints 6"]
    forces: Float[Array, " nv_full"]
    names: tuple[str, ...] = eqx.field(static=True)
    """Joints, then constraints between two frames."""
    starts: tuple[int, ...] = eqx.field(static=True)

    def __getitem__(self, name: str) -> JointReaction:
        if name not in self.names:
            raise KeyError(f"No joint {name!r}. Joints: {', '.join(self.names)}.")
        i = self.names.index(name)
        wrench, applied, driving = (x[..., i, :] for x in (self.wrench, self.applied, self.driving))
        forces = self.forces[..., self.starts[i] : self.starts[i + 1]]
        return JointReaction(wrench, applied, driving, wrench - applied - driving, forces)


@partial(jax.jit, static_argnames=("at", "axes"))
def reactions(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    wrenches: tuple[Wrench, ...] = (),
    t: float | Float[Array, ""] = 0.0,
    *,
    at: str = "outboard",
    axes: str = "world",
) -> Reactions:
    """Wrenches that the joints transmit while the system moves under forces tau.

    Args:
      q: coordinates.
      v: velocities.
      tau: generalised forces dual to v [N m, N].
      wrenches: external wrenches acting on the bodies.
      t: time [s], where the base moves or joints are driven.
      at: reference point, the origin of the joint's "outboard" or "inboard" frame.
      axes: "world", or "inboard" for those of the joint's inboard frame.

    Returns: what every joint exerts on its outboard body; the inboard body gets the opposite. Constraints between two
      frames (cut joints, rods, rolling wheels) follow by name, their first frame as the inboard one; where constraints
      are redundant, wrenches in the loop are those of the shortest multipliers (see `closure_wrenches`).
    Cost: that of forward and inverse dynamics together.
    Source: Schwertassek & Senger (1988), Eqs. 3.28-3.34; Slaats (1991), Eq. 2.1.
    """
    for name, value, allowed in (("at", at, ("outboard", "inboard")), ("axes", axes, ("world", "inboard"))):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; expected one of {allowed}.")
    q, v, tau, t, system = promote(system, q, v, tau, t)
    packed, multipliers = pack(system), None
    if system.constraints:
        a, _, multipliers = constrained(system, packed, q, v, tau, None, wrenches, t)
    else:
        a = accelerations(system, packed, q, v, tau, wrenches, t)
    return reactions_of_motion(system, packed, q, v, a, wrenches, t, multipliers, at, axes)


def reactions_of_motion(
    system: System,
    packed: Packed,
    q,
    v,
    a,
    wrenches: tuple[Wrench, ...],
    t,
    multipliers: Float[Array, " nc"] | None = None,
    at: str = "outboard",
    axes: str = "world",
) -> Reactions:
    """The same for accelerations, and multipliers of constraints, that are known already."""
    topology, layout = system.topology, system.topology.layout
    links, l_slot, mode, R_base = _links(system, packed, q, v, a, t)
    closing = [] if multipliers is None else frame_forces(system, packed, q, v, t, multipliers)
    own = _forces_on_links(system, links, wrenches)
    for constraint in closing:
        own = _less_constraint(system, links, own, constraint)

    # joint by joint: from the parent link's origin to the child link's, and from there to the joint's frames
    parent, child = np.array([[j.parent, j.child] for j in topology.joints], int).reshape(-1, 2).T
    R_parent = jax.tree.map(lambda r, base: jnp.append(r, base)[parent], links.rotation, R_base)
    offset_parent = jax.tree.map(lambda x: jnp.append(x, 0.0)[parent], links.offset)
    l = _sums(l_slot, layout.joint_slots) + _taken(links.offset, child) - offset_parent
    to_inboard = R_parent @ Vec3.of(system.in_parent_position)
    to_outboard = _taken(links.rotation, child) @ Vec3.of(system.in_child_position)

    def step(total, xs):
        own, l = xs
        total = total + own
        return total.shift(l), total

    order = layout.joint_order
    xs = (_taken(own, child[order]), _taken(l, order))
    total = scan_inward(layout.joint_tree, step, Force(Vec3.zero(), Vec3.zero()), xs)
    wrench = _taken(total, np.argsort(order)).shift(-to_outboard)

    applied, driving, forces = _split(system, l_slot, mode, wrench)
    parts = [wrench, applied, driving]
    if at == "inboard":
        parts = [part.shift(l + to_outboard - to_inboard) for part in parts]
    if axes == "inboard":
        R = (R_parent @ Mat3.of(so3.matrix(system.in_parent_rotation))).T
        parts = [Force(R @ part.moment, R @ part.force) for part in parts]
    names, starts = tuple(j.name for j in topology.joints), tuple(int(i) for i in layout.v_start)
    wrench, applied, driving = (vectors(part) for part in parts)
    pairs = [(c.name, on) for c, on in zip(topology.constraints, closing, strict=bool(closing)) if len(on.frames) == 2]
    if pairs:
        names, starts = names + tuple(name for name, _ in pairs), starts + (starts[-1],) * len(pairs)
        wrench = jnp.concatenate([wrench, jnp.stack([_between(on, at, axes) for _, on in pairs])])
        applied, driving = (jnp.pad(x, ((0, len(pairs)), (0, 0))) for x in (applied, driving))
    return Reactions(wrench, applied, driving, forces, names, starts)


class _Links(NamedTuple):
    """Every link in world axes: orientation, its origin seen from that of its body, and the motion of its origin."""

    rotation: Mat3
    offset: Vec3
    omega: Vec3
    alpha: Vec3
    linear: Vec3  # acceleration of the origin, with gravity as an acceleration of the base


def _links(system: System, packed: Packed, q, v, a, t) -> tuple[_Links, Vec3, Mode, Mat3]:
    """Motion of all links; shift and mode of every slot; orientation of the base."""
    layout, n = system.topology.layout, len(system.topology.links)
    x = locate(system, packed, q, v)
    up = jnp.concatenate([jnp.zeros(3, q.dtype), -system.gravity])
    base = at_base(system, x, t, up)

    def step(parent, xs):
        state, l, mode = move(parent, *xs)
        return state, (state.rotation, state.omega, state.acceleration, l, mode)

    xs = (packed.slots, x, to_slots(system, v), accelerations_to_slots(system, a))
    R, omega, acceleration, l, mode = scan_outward(layout.tree, step, base, xs)
    on = np.append(layout.last_slot, layout.tree.size)[layout.body_of_link]  # the base is the row after the slots

    def rows(slots, of_base):
        return jax.tree.map(lambda s, b: jnp.append(s, jnp.asarray(b, s.dtype))[on], slots, of_base)

    R, omega = rows(R, base.rotation), rows(omega, base.omega)
    offset = R @ Vec3.of(packed.frame_position[:n])
    at_slot = rows(acceleration, base.acceleration)
    linear = at_slot.linear + at_slot.angular.cross(offset) + omega.cross(omega.cross(offset))
    R = R @ Mat3.of(packed.frame_rotation[:n])
    return _Links(R, offset, omega, at_slot.angular, linear), l, mode, base.rotation


def _forces_on_links(system: System, links: _Links, wrenches: tuple[Wrench, ...]) -> Force:
    """What every link needs from its joints, at its origin in world axes: inertia force and weight, less wrenches."""
    topology, R = system.topology, links.rotation
    none = Vec3(*jnp.zeros((3, len(topology.links)), system.gravity.dtype))
    at_com = Inertia(system.link_mass, none, Sym3.of(tensors(system.link_inertia)))
    inertia = at_com.shift(Vec3.of(system.link_com)).rotated(R)
    force = inertia.inertial_force(links.omega, links.alpha, links.linear)
    if topology.gyrostatic:
        rotor = links.omega.cross(R @ Vec3.of(system.rotor_momentum))
        force = Force(force.moment + rotor, force.force)
    for wrench in wrenches:
        if isinstance(wrench, BodyForces):
            raise ValueError(
                "Reactions need to know which link a force acts on; give `frame_wrenches` of the elements' loads in "
                "place of `wrenches`."
            )
        index = system.frame_index(wrench.frame)
        frame = index - len(topology.links)
        link = index if frame < 0 else topology.frames[frame][1]
        if link == WORLD:
            continue
        R_link = jax.tree.map(lambda x, link=link: x[link], R)
        point, moment, pull = (x.astype(system.gravity.dtype) for x in (wrench.point, wrench.moment, wrench.force))
        R_frame = jnp.eye(3, dtype=point.dtype)
        if frame >= 0:
            R_frame = so3.matrix(system.frame_rotation[frame])
            point = system.frame_position[frame] + R_frame @ point
        moment, pull = (R_frame @ moment, R_frame @ pull) if wrench.axes == "local" else (moment, pull)
        moment, pull = Vec3.of(moment), Vec3.of(pull)
        if wrench.axes == "local":
            moment, pull = R_link @ moment, R_link @ pull
        acting = Force(moment, pull).shift(R_link @ Vec3.of(point))
        force = jax.tree.map(lambda sum_, part, link=link: sum_.at[link].add(-part), force, acting)
    return force


def _less_constraint(system: System, links: _Links, own: Force, on: OnFrames) -> Force:
    """What the links need from their joints once a constraint has given its part."""
    n = len(system.topology.links)
    for frame, wrench in zip(on.frames, on.wrench, strict=True):
        link = int(frame) if frame < n else system.topology.frames[frame - n][1]
        if link == WORLD:
            continue
        acting = Force.of(wrench)
        if frame >= n:
            R = jax.tree.map(lambda x, link=link: x[link], links.rotation)
            acting = acting.shift(R @ Vec3.of(system.frame_position[frame - n]))
        own = jax.tree.map(lambda sum_, part, link=link: sum_.at[link].add(-part), own, acting)
    return own


def _between(on: OnFrames, at: str, axes: str) -> Float[Array, "6"]:
    """What a constraint between two frames does to its second, at the origin and in the axes that are asked for."""
    moment, force = on.wrench[1, :3], on.wrench[1, 3:]
    if at == "inboard":
        moment = moment + jnp.cross(on.position[1] - on.position[0], force)
    R = on.rotation[0].T if axes == "inboard" else jnp.eye(3, dtype=force.dtype)
    return jnp.concatenate([R @ moment, R @ force])


def _split(system: System, l: Vec3, mode: Mode, wrench: Force) -> tuple[Force, Force, Float[Array, " nv_full"]]:
    """Parts of the joints' wrenches along the duals of the free and of the driven modes; projections on all modes."""
    layout, topology = system.topology.layout, system.topology
    slots, n, dtype = layout.joint_slots, layout.tree.size, system.gravity.dtype
    # modes at the origin of the joint's outboard frame: that of its last slot
    later = np.full((n, max(slots.shape[1] - 1, 1)), n)
    for row in slots:
        own = [int(i) for i in row if i < n]
        for k, i in enumerate(own):
            later[i, : len(own) - k - 1] = own[k + 1 :]
    unit = mode.motion
    unit = Motion(unit.angular, Vec3(*jnp.zeros((3, n), dtype)) if unit.linear is None else unit.linear)
    modes = vectors(unit.shift(_sums(l, later)))
    S = jnp.concatenate([modes, jnp.zeros((1, 6), dtype)])[slots]  # [joints, k, 6]
    total = vectors(wrench)
    along = jnp.einsum("jki,ji->jk", S, total)
    present = slots < n
    driven = np.zeros(n + 1, bool)
    for entry in topology.drives:
        start = layout.v_start[entry.joint]
        driven[layout.velocity_slot[[start + k for k in entry.velocities]]] = True
    gram = jnp.einsum("jki,jmi->jkm", S, S) + jnp.asarray(np.eye(slots.shape[1]) * ~present[:, None, :], dtype)
    of_free, of_driven = present & ~driven[slots], driven[slots]
    loads = jnp.stack([jnp.where(of_free, along, 0.0), jnp.where(of_driven, along, 0.0)], -1)
    if slots.shape[1] == 1:
        weights = loads / gram
    else:
        # where modes depend on one another (gimbal lock) the smallest weights that do, by a ridge and one refinement
        size = jnp.einsum("jkk->j", gram)[:, None, None]
        ridge = jnp.finfo(dtype).eps ** 0.75 * size * jnp.eye(slots.shape[1], dtype=dtype)[None]
        inverse = jnp.linalg.inv(gram + ridge)
        weights = inverse @ loads
        weights = weights + inverse @ (loads - gram @ weights)
    applied, driving = jnp.moveaxis(jnp.einsum("jki,jkn->jin", S, weights), -1, 0)
    forces = jnp.zeros(n + 1, dtype).at[slots].set(along)[:n][layout.velocity_slot]
    return Force.of(applied), Force.of(driving), forces


def _taken(record, rows: np.ndarray):
    return jax.tree.map(lambda x: x[rows], record)


def _sums(record, rows: np.ndarray):
    """Sums over the named rows of each leaf; the row after the last counts nothing."""
    return jax.tree.map(lambda x: jnp.append(x, 0.0)[rows].sum(-1), record)
