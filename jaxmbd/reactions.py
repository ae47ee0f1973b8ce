"""Reactions: the wrench that every joint of a moving system transmits, and its parts.

The sweeps give what every joint transmits (`jaxmbd/transmitted.py`; welds inside a body: `jaxmbd/welds.py`). A joint's
wrench Lambda splits along its modes (Schwertassek & Senger 1988, Eqs. 3.28-3.34): with the modes
S = [free, driven] and their duals W = S (S^T S)^-1, which are dual for a constrained basis orthogonal to S,

    lambda = S^T Lambda,   applied = W_free lambda_free,   driving = W_driven lambda_driven,   constraint = the rest

so that the constraint part does no work on any motion that the joint allows. Closures and other constraints act on
the links at their frames; a constraint between two frames is listed beside the joints, all of its wrench a constraint.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxmbd.aba import accelerations
from jaxmbd.batch_last import batch_last
from jaxmbd.constraints.dynamics import constrained
from jaxmbd.constraints.rows import OnFrames, frame_forces
from jaxmbd.forces import Wrench
from jaxmbd.kinematics import promote, vectors
from jaxmbd.packing import Packed, from_slots, pack
from jaxmbd.spatial import Force, Mat3, Motion, Vec3
from jaxmbd.system import System
from jaxmbd.transmitted import SlotState, Transmitted, base_state, by_forces, by_motion, outer_forces
from jaxmbd.welds import weld_joints, weld_wrenches, welds_move


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
    packed = pack(system)
    if system.constraints:
        a, _, multipliers = constrained(system, packed, q, v, tau, None, wrenches, t)
        return reactions_of_motion(system, packed, q, v, a, wrenches, t, multipliers, at, axes)
    if system.topology.couplings:
        a = accelerations(system, packed, q, v, tau, wrenches, t)
        return reactions_of_motion(system, packed, q, v, a, wrenches, t, None, at, axes)
    stateful = (at, axes) != ("outboard", "world") or welds_move(system.topology)
    found = by_forces(stateful, system, packed, q, v, tau, wrenches, t)
    return _joint_by_joint(system, packed, base_state(system, packed, q, v, t), found, wrenches, [], at, axes)


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
    driven: Bool[Array, " nv"] | None = None,
) -> Reactions:
    """The same for accelerations, and multipliers of constraints, that are known already.

    Args:
      driven: velocities whose motion is given besides those that laws drive.
    """
    closing = [] if multipliers is None else frame_forces(system, packed, q, v, t, multipliers)
    found = by_motion(system, packed, q, v, a, wrenches, t, closing)
    base = base_state(system, packed, q, v, t)
    return _joint_by_joint(system, packed, base, found, wrenches, closing, at, axes, driven)


def _joint_by_joint(
    system: System,
    packed: Packed,
    base: SlotState,
    found: Transmitted,
    wrenches: tuple[Wrench, ...],
    closing: list[OnFrames],
    at: str,
    axes: str,
    driven: Bool[Array, " nv"] | None = None,
) -> Reactions:
    """Wrenches and their parts of all joints and of constraints between two frames."""
    topology, layout = system.topology, system.topology.layout
    welds, size = weld_joints(topology), layout.tree.size
    # a body's origin is that of its joint's outboard frame
    force, rows = found.force, np.full(len(topology.joints), size)
    rows[layout.joint_of_body] = layout.last_slot
    if welds:
        R = None if found.state is None else found.state.rotation
        outer = list(outer_forces(system, packed, R, base, wrenches, closing))
        in_welds = weld_wrenches(system, packed, base, found, outer)
        force, rows[welds] = (force, in_welds), size + np.arange(len(welds))
    wrench = vectors(batch_last(partial(_in_order, rows), force))
    parts = [wrench, *_split(system, found, driven)]
    if (at, axes) != ("outboard", "world"):
        parts = _seen_from_inboard(system, packed, base, found, parts, at, axes)
    wrench, applied, driving = parts
    names, starts = tuple(j.name for j in topology.joints), tuple(int(i) for i in layout.v_start)
    pairs = [(c.name, on) for c, on in zip(topology.constraints, closing, strict=bool(closing)) if len(on.frames) == 2]
    if pairs:
        names, starts = names + tuple(name for name, _ in pairs), starts + (starts[-1],) * len(pairs)
        wrench = jnp.concatenate([wrench, jnp.stack([_between(on, at, axes) for _, on in pairs])])
        applied, driving = (jnp.pad(x, ((0, len(pairs)), (0, 0))) for x in (applied, driving))
    return Reactions(wrench, applied, driving, from_slots(system, found.along), names, starts)


def _in_order(rows: np.ndarray, force) -> Force:
    """The named rows of forces on slots, with those on welds after them: run by run, which is cheaper than a gather."""
    if isinstance(force, tuple):
        force = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), *force)
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    if len(runs) > 8:
        return jax.tree.map(lambda x: x[rows], force)
    return jax.tree.map(lambda x: jnp.concatenate([x[run[0] : run[-1] + 1] for run in runs]), force)


def _seen_from_inboard(
    system: System, packed: Packed, base: SlotState, found: Transmitted, parts: list, at: str, axes: str
) -> list:
    """Parts of the joints' wrenches at the inboard frames' origins, in their axes, or both."""
    topology, layout = system.topology, system.topology.layout
    parent = np.array([j.parent for j in topology.joints], int)
    slots = np.array([layout.slot_of_link(link) for link in parent])
    assert found.state is not None
    R_parent = jax.tree.map(lambda x, y: jnp.append(x, y)[slots], found.state.rotation, base.rotation)
    parts = [Force.of(part) for part in parts]
    if at == "inboard":
        # from the origin of the parent's body to both frames; a weld's frames are one
        dtype = system.gravity.dtype
        identity, none = jnp.eye(3, dtype=dtype)[None], jnp.zeros((1, 3), dtype)
        R_link = jnp.concatenate([packed.frame_rotation, identity])[parent]
        p_link = jnp.concatenate([packed.frame_position, none])[parent]
        inboard = R_parent @ Vec3.of(p_link + jnp.einsum("nij,nj->ni", R_link, system.in_parent_position))
        moves = np.array([j.nv > 0 for j in topology.joints])
        apart = _sums(found.l, layout.joint_slots) - inboard
        parts = [part.shift(jax.tree.map(lambda x: jnp.where(moves, x, 0.0), apart)) for part in parts]
    if axes == "inboard":
        back = (R_parent @ Mat3.of(packed.joint_rotation)).T
        parts = [Force(back @ part.moment, back @ part.force) for part in parts]
    return [vectors(part) for part in parts]


def _between(on: OnFrames, at: str, axes: str) -> Float[Array, "6"]:
    """What a constraint between two frames does to its second, at the origin and in the axes that are asked for."""
    moment, force = on.wrench[1, :3], on.wrench[1, 3:]
    if at == "inboard":
        moment = moment + jnp.cross(on.position[1] - on.position[0], force)
    R = on.rotation[0].T if axes == "inboard" else jnp.eye(3, dtype=force.dtype)
    return jnp.concatenate([R @ moment, R @ force])


def _split(system: System, found: Transmitted, given) -> tuple[Float[Array, "joints 6"], Float[Array, "joints 6"]]:
    """Parts of the joints' wrenches along the duals of the free and of the driven modes, from their projections."""
    layout = system.topology.layout
    slots, n, dtype = layout.joint_slots, layout.tree.size, system.gravity.dtype
    # modes at the origin of the joint's outboard frame: that of its last slot
    later = np.full((n, max(slots.shape[1] - 1, 1)), n)
    for row in slots:
        own = [int(i) for i in row if i < n]
        for k, i in enumerate(own):
            later[i, : len(own) - k - 1] = own[k + 1 :]
    unit = found.mode.motion
    unit = Motion(unit.angular, Vec3(*jnp.zeros((3, n), dtype)) if unit.linear is None else unit.linear)
    modes = vectors(unit.shift(_sums(found.l, later)))
    S = jnp.concatenate([modes, jnp.zeros((1, 6), dtype)])[slots]  # [joints, k, 6]
    along = jnp.append(found.along, 0.0)[slots]
    present = slots < n
    driven = jnp.asarray(layout.driven) if given is None else given | layout.driven
    driven = jnp.zeros(layout.nv_full, bool).at[layout.v_keep].set(driven)[layout.slot_velocity]
    driven = jnp.append(driven, False)[slots]
    gram = jnp.einsum("jki,jmi->jkm", S, S) + jnp.asarray(np.eye(slots.shape[1]) * ~present[:, None, :], dtype)
    loads = jnp.stack([jnp.where(driven, 0.0, along), jnp.where(driven, along, 0.0)], -1)
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
    return applied, driving


def _sums(record, rows: np.ndarray):
    """Sums over the named rows of each leaf; the row after the last counts nothing."""
    return jax.tree.map(lambda x: jnp.append(x, 0.0)[rows].sum(-1), record)
