"""Reactions: the wrench that every joint of a moving system transmits, and its parts.

The sweeps give what every joint transmits (`jaxmbd/transmitted.py`; welds inside a body: `jaxmbd/welds.py`). A joint's
wrench Lambda splits along its modes (Schwertassek & Senger 1988, Eqs. 3.28-3.34): with the modes
S = [free, driven] and their duals W = S (S^T S)^-1, which are dual for a constrained basis orthogonal to S,

    lambda = S^T Lambda,   applied = W_free lambda_free,   driving = W_driven lambda_driven,   constraint = the rest

so that the constraint part does no work on any motion that the joint allows. Closures and other constraints act on
the links at their frames; a constraint between two frames is listed beside the joints, all of its wrench a constraint.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxmbd.aba import accelerations
from jaxmbd.batch_last import batch_last
from jaxmbd.constraints.dynamics import constrained
from jaxmbd.constraints.rows import OnFrames, frame_forces
from jaxmbd.dual_parts import dual_parts
from jaxmbd.entries import entries, inverse
from jaxmbd.forces import Wrench
from jaxmbd.kinematics import promote
from jaxmbd.packing import Packed, from_slots, pack
from jaxmbd.spatial import Force, Mat3, Motion, Vec3
from jaxmbd.system import System
from jaxmbd.topology import Topology
from jaxmbd.transmitted import SlotState, Transmitted, base_state, by_forces, by_motion, outer_forces
from jaxmbd.tree import each
from jaxmbd.welds import Welds, weld_joints, weld_record, weld_wrenches, welds_move


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
    outer, welds = [], None
    if weld_joints(topology):
        R = None if found.state is None else found.state.rotation
        outer = list(outer_forces(system, packed, R, base, wrenches, closing))
        welds = weld_record(system, packed, base, found, outer)
    seen = None if (at, axes) == ("outboard", "world") else _frames(system, packed, base, found)
    record = _Joints(found.force, found.along, found.l, found.mode.motion, _driven(system, driven), welds, seen)
    parts = batch_last(partial(_parts, topology, [link for link, _ in outer], (at, axes)), record)
    wrench, applied, driving = parts
    names, starts = tuple(j.name for j in topology.joints), tuple(int(i) for i in layout.v_start)
    pairs = [(c.name, on) for c, on in zip(topology.constraints, closing, strict=bool(closing)) if len(on.frames) == 2]
    if pairs:
        names, starts = names + tuple(name for name, _ in pairs), starts + (starts[-1],) * len(pairs)
        wrench = jnp.concatenate([wrench, jnp.stack([_between(on, at, axes) for _, on in pairs])])
        applied, driving = (jnp.pad(x, ((0, len(pairs)), (0, 0))) for x in (applied, driving))
    return Reactions(wrench, applied, driving, from_slots(system, found.along), names, starts)


class _Frames(NamedTuple):
    """The joints' inboard frames: orientation of the slots and the base, and constants of every joint."""

    rotation: Mat3  # of the slots
    base: Mat3
    origin: Vec3  # in the axes and at the origin of the parent's body
    axes: Mat3


class _Joints(NamedTuple):
    """What the wrenches of all joints and their parts follow from: numbers of slots, [slots], and of welds."""

    force: Force
    along: Float[Array, " slots"]
    l: Vec3
    mode: Motion
    driven: Bool[Array, " slots"] | None  # None where laws alone drive joints
    welds: Welds | None
    frames: _Frames | None


def _parts(topology: Topology, pushed: Sequence[int], view: tuple[str, str], record: _Joints):
    """Wrenches of all joints, and their applied and driving parts: [joints, 6, *batch]."""
    layout = topology.layout
    force, rows = record.force, np.full(len(topology.joints), layout.tree.size)
    # a body's origin is that of its joint's outboard frame
    rows[layout.joint_of_body] = layout.last_slot
    if record.welds is not None:
        in_welds = weld_wrenches(topology, pushed, record.welds)
        force = jax.tree.map(lambda *x: jnp.concatenate(x), force, in_welds)
        welds = weld_joints(topology)
        rows[welds] = layout.tree.size + np.arange(len(welds))
    wrench = jax.tree.map(lambda x: entries(x, rows), force)
    driven = record.driven
    if driven is None:
        by_law = np.zeros(layout.nv_full, bool)
        by_law[layout.v_keep] = layout.driven
        driven = by_law[layout.slot_velocity].reshape(-1, *[1] * (record.along.ndim - 1))
    parts = [wrench, *dual_parts(topology, record.mode, record.l, record.along, driven)]
    if record.frames is not None:
        parts = [_seen_from_inboard(topology, record, view, part) for part in parts]
    return each(lambda *parts: tuple(jnp.stack(jax.tree.leaves(part)) for part in parts), *parts)


def _between(on: OnFrames, at: str, axes: str) -> Float[Array, "6"]:
    """What a constraint between two frames does to its second, at the origin and in the axes that are asked for."""
    moment, force = on.wrench[1, :3], on.wrench[1, 3:]
    if at == "inboard":
        moment = moment + jnp.cross(on.position[1] - on.position[0], force)
    R = on.rotation[0].T if axes == "inboard" else jnp.eye(3, dtype=force.dtype)
    return jnp.concatenate([R @ moment, R @ force])


def _frames(system: System, packed: Packed, base: SlotState, found: Transmitted) -> _Frames:
    """The inboard frames of all joints."""
    identity, none = jnp.eye(3, dtype=system.gravity.dtype)[None], jnp.zeros((1, 3), system.gravity.dtype)
    parent = np.array([j.parent for j in system.topology.joints], int)
    R_link = jnp.concatenate([packed.frame_rotation, identity])[parent]
    p_link = jnp.concatenate([packed.frame_position, none])[parent]
    origin = Vec3.of(p_link) + Mat3.of(R_link) @ Vec3.of(system.in_parent_position)
    assert found.state is not None
    return _Frames(found.state.rotation, base.rotation, origin, Mat3.of(packed.joint_rotation))


def _seen_from_inboard(topology: Topology, record: _Joints, view: tuple[str, str], part: Force) -> Force:
    """Wrenches of all joints at the inboard frames' origins, in their axes, or both."""
    at, axes = view
    layout, frames = topology.layout, record.frames
    assert frames is not None
    n = layout.tree.size
    slots = np.array([layout.slot_of_link(j.parent) % (n + 1) for j in topology.joints])
    # the row after the slots, also number -1, is that of the base
    R = jax.tree.map(lambda x, y: entries(jnp.concatenate([x, y[None]]), slots), frames.rotation, frames.base)
    if at == "inboard":
        # from the origin of the parent's body to both frames; a weld's frames are one
        own = np.where(layout.joint_slots < n, layout.joint_slots, -1)
        moves = np.array([j.nv > 0 for j in topology.joints]).reshape(-1, *[1] * (part.force.x.ndim - 1))
        apart = sum((jax.tree.map(partial(entries, index=column), record.l) for column in own.T), Vec3.zero())
        apart = apart - R @ frames.origin
        part = part.shift(jax.tree.map(lambda x: jnp.where(moves, x, 0.0), apart))
    if axes == "inboard":
        back = (R @ frames.axes).T
        part = Force(back @ part.moment, back @ part.force)
    return part


def _driven(system: System, given: Bool[Array, " nv"] | None) -> Bool[Array, " slots"] | None:
    """Which slots are driven, by laws or otherwise; None where laws alone drive."""
    if given is None:
        return None
    layout = system.topology.layout
    return entries(given | layout.driven, inverse(layout.v_keep, layout.nv_full)[layout.slot_velocity])
