"""Systems made from systems: joints locked, bodies attached, systems grafted on one another, put side by side, scaled.

Each function returns a new system that equals the one written down by hand with `Builder`; the old one stays as it is.
All of them are differentiable, in the numbers of the old systems and in those that are given here: a locked angle, a
payload's mass. They change the topology, so a new system compiles anew; to change numbers alone use `System.replace`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd.builder import Builder
from jaxmbd.closures import Constraint, CutJoint, Distance, Gear
from jaxmbd.joint_kinds import fixed
from jaxmbd.joints import Quaternion, Screws
from jaxmbd.parts import Parts, parts_of
from jaxmbd.pose import Pose
from jaxmbd.rolling import KnifeEdge, RollingBall, RollingDisc
from jaxmbd.system import System
from jaxmbd.values import Numbers, concrete, floats


def lock(system: System, joints: Mapping[str, Numbers]) -> System:
    """The system with joints locked: each becomes a weld at the given coordinates, and leaves q and v.

    Args:
      joints: joint name -> its coordinates [rad, m, quaternion], one number or as many as the joint has. Joints that
        follow a locked one are locked where it puts them.

    Constraints stay; those that a locked joint can no longer violate become redundant, which does no harm.

    Raises: ValueError for unknown names, followers, joints whose coordinate a constraint (a gear) sees, wrong shapes.
    """
    parts = parts_of(system)
    at: dict[str, Float[Array, " nq"]] = {}
    for name, value in joints.items():
        if name not in parts.joints:
            raise ValueError(f"No joint {name!r} to lock. Joints: {', '.join(parts.joints)}.")
        if name in parts.couplings:
            leader = parts.couplings[name].leader
            raise ValueError(f"Joint {name!r} follows {leader!r} and cannot be locked by itself; lock the leader.")
        nq = parts.joints[name].joint.nq
        q = floats(value)
        if q.shape != (nq,) and not (nq == 1 and q.shape == ()):
            kind = parts.joints[name].joint.kind
            raise ValueError(f"Joint {name!r} ({kind}) was locked at shape {q.shape}; expected {nq} coordinates.")
        at[name] = q.reshape(nq)
    for follower, c in list(parts.couplings.items()):
        if c.leader in at:
            q = at[c.leader]
            at[follower] = c.ratio * q + c.offset if c.function is None else jnp.reshape(c.function(q[0]), (1,))
            del parts.couplings[follower]
    for constraint, c in parts.constraints.items():
        for name in set(c.joints) & at.keys():
            raise ValueError(
                f"Joint {name!r} cannot be locked: the constraint {constraint!r} ({c.record.kind}) sees its "
                "coordinate. Build the system without that constraint, or hold the joint by with_drive."
            )
    for name, q in at.items():
        part = parts.joints[name]
        if not part.joint.nv:
            raise ValueError(f"Joint {name!r} is fixed already.")
        known = concrete(q)
        shown = "a traced value" if known is None else ", ".join(f"{x:.9g}" for x in known)
        parts.notes.append(f"joint {name!r} ({part.joint.kind}) is locked at {shown}")
        part.in_parent, part.joint = part.in_parent @ part.joint.pose(jnp.asarray(q)), fixed()
    return _built(parts, system)


def attach(
    system: System,
    name: str,
    to: str,
    mass: Numbers = 0.0,
    com: Numbers = (0.0, 0.0, 0.0),
    inertia: Numbers | None = None,
    pose: Pose | None = None,
) -> System:
    """The system with one more body, a payload or tool, welded to a body or frame by the joint `<name>_weld`.

    Args:
      name: of the new body.
      to: body or frame that carries it, or "world".
      mass, com, inertia: as for `Builder.body`: [kg], [m], [kg m^2] about the com, in the new body's axes.
      pose: the new body in `to`; in the same place when left out.
    """
    payload = Builder()
    payload.body(name, mass, com, inertia)
    payload.joint(f"{name}_weld", fixed(), child=name)
    return graft(system, payload.build(), on=to, pose=pose)


def graft(system: System, other: System, on: str, pose: Pose | None = None, prefix: str = "") -> System:
    """The system with another one grafted on it: the other's world is fixed to a body or frame.

    Args:
      other: bodies, joints, frames, couplings and constraints are taken over after the system's own; gravity is not.
      on: body or frame of `system`, or "world".
      pose: the other's world in `on`; in the same place when left out.
      prefix: put before each name of `other`.
    """
    if other.base_motion is not None:
        raise ValueError("The system to graft has a moving base, but it gets a body for its base; build it without.")
    b = Builder(system.gravity, system.base_motion)
    b.system(system)
    b.system(other, prefix, on, pose)
    return _typed(b.build(), system)


def combine(systems: Mapping[str, System | tuple[System, Pose]], gravity: Numbers | None = None) -> System:
    """Several systems side by side in one world.

    Args:
      systems: prefix -> system, or (system, pose of its world in the common one). The prefix is put before each of the
        system's names; "" keeps them.
      gravity: [m/s^2], of the common world; that of the systems when left out.

    Raises: ValueError when the systems disagree about gravity, or when one has a moving base.
    """
    items = {prefix: s if isinstance(s, tuple) else (s, None) for prefix, s in systems.items()}
    if not items:
        raise ValueError("There is no system to combine.")
    first = next(iter(items.values()))[0]
    for prefix, (system, _) in items.items():
        if system.base_motion is not None:
            raise ValueError(f"System {prefix!r} has a moving base; give `base_motion` to a Builder of your own.")
        own, common = concrete(system.gravity), concrete(first.gravity)
        if gravity is None and own is not None and common is not None and not np.array_equal(own, common):
            raise ValueError(
                f"Gravity of {prefix!r} is {own} m/s^2 and that of {next(iter(items))!r} {common} m/s^2; "
                "say which one holds with gravity=..."
            )
    b = Builder(first.gravity if gravity is None else gravity)
    for prefix, (system, pose) in items.items():
        b.system(system, prefix, "world", pose)
    return _typed(b.build(), first)


def scale(system: System, length: Numbers = 1.0, mass: Numbers = 1.0, time: Numbers = 1.0) -> System:
    """A larger, heavier or slower likeness: every number times the factors of its unit (m, kg, s).

    A mass goes with `mass`, an inertia with mass * length^2, a rotational spring with mass * length^2 / time^2, a
    sliding damper with mass / time, and so on, limits included. Gravity belongs to the world and stays: motions are
    similar to the old ones when length = time^2, or without gravity. A copy of the same material has mass = length^3.

    Raises: ValueError for a system with functions: mapped or driven joints, couplings on a curve, constraints that are.

    Source: dimensional analysis (E. Buckingham, Phys. Rev. 4 (1914) 345-376).
    """
    layout = system.topology.layout
    if layout.mapped:
        name = system.topology.joints[layout.mapped[0]].name
        raise ValueError(f"Joint {name!r} is mapped: the lengths in its function cannot be scaled from here.")
    if system.topology.drives:
        name = system.topology.joints[system.topology.drives[0].joint].name
        raise ValueError(
            f"Joint {name!r} is driven by a law, whose lengths and times cannot be scaled from here; scale "
            "`system.without_drive()` and drive the joints anew."
        )
    if system.topology.curves:
        name = system.topology.joints[system.topology.couplings[system.topology.curves[0]][0]].name
        raise ValueError(f"Joint {name!r} follows by a function, whose lengths cannot be scaled from here.")
    L, M, T = (jnp.asarray(x, system.gravity.dtype) for x in (length, mass, time))
    sliding = np.ones(layout.nv_full, bool)
    sliding[layout.slot_velocity] = layout.slot_turn == 0
    q_sliding = np.ones(layout.nq_full, bool)
    q_sliding[layout.full_group.plain_q] = sliding[layout.full_group.plain_v]
    q_sliding[layout.full_group.turn_q] = False
    coordinate = jnp.where(sliding, L, 1.0)  # [m] or [rad]
    force = M * jnp.where(sliding, L, L * L) / T**2  # [N] or [N m]
    on = system.topology.couplings
    follower, leader = (np.array([layout.v_start[pair[end]] for pair in on], int) for end in (0, 1))
    lengths = ("link_com", "in_parent_position", "in_child_position", "offset_position", "frame_position", "pitch")
    factors = {name: L for name in lengths} | {
        "link_mass": M,
        "link_inertia": M * L * L,
        "rotor_momentum": M * L * L / T,
        "stiffness": force / coordinate,
        "rest": jnp.where(q_sliding, L, 1.0),
        "home": jnp.where(q_sliding, L, 1.0),
        "damping": force * T / coordinate,
        "friction": force,
        "friction_speed": coordinate / T,
        "armature": force * T**2 / coordinate,
        "lower": coordinate,
        "upper": coordinate,
        "effort": force,
        "speed": coordinate / T,
        "ratio": coordinate[follower] / coordinate[leader],
        "offset": coordinate[follower],
    }
    if system.limit_stiffness is not None:
        factors |= {"limit_stiffness": force / coordinate, "limit_damping": force * T / coordinate}
        factors |= {"limit_width": coordinate}
    scaled = {name: _times(getattr(system, name), by) for name, by in factors.items()}
    constraints = tuple(
        _scaled_constraint(record, entry.name, L, coordinate[np.array([layout.v_start[j] for j in entry.joints], int)])
        for record, entry in zip(system.constraints, system.topology.constraints, strict=True)
    )
    return dataclasses.replace(system, constraints=constraints, **scaled)


def _scaled_constraint(record: Constraint, name: str, L, coordinate) -> Constraint:
    """A constraint whose lengths have grown by L; `coordinate` are the factors of the joints that it sees."""
    if isinstance(record, CutJoint) and record.motion is None:
        if isinstance(record.joint, Quaternion):
            return record
        if isinstance(record.joint, Screws):
            lengths = {"pitch": L * record.joint.pitch, "offset_position": L * record.joint.offset_position}
            return dataclasses.replace(record, joint=dataclasses.replace(record.joint, **lengths))
    if isinstance(record, Distance):
        return Distance(L * record.length)
    if isinstance(record, Gear):
        first, second = coordinate
        return Gear(record.ratio * second / first, record.offset * second)
    if isinstance(record, RollingDisc | RollingBall):
        return dataclasses.replace(record, radius=L * record.radius)
    if isinstance(record, KnifeEdge):
        return record
    raise ValueError(
        f"Constraint {name!r} ({record.kind}) is a function, whose lengths and times cannot be scaled from here."
    )


def _times(leaf, factor):
    """Their product; limits at infinity stay there, without a product whose derivative would be infinite."""
    finite = jnp.isfinite(leaf)
    return jnp.where(finite, jnp.where(finite, leaf, 0.0) * factor, leaf)


def _built(parts: Parts, like: System) -> System:
    b = Builder(like.gravity, like.base_motion)
    b.system(parts)
    return _typed(b.build(), like)


def _typed(system: System, like: System) -> System:
    """The system in the floating-point type of the one it came from."""
    return system.astype(like.gravity.dtype)
