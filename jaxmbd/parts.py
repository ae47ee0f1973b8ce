"""A finished system taken apart again: what to tell a `Builder` for each body, joint, frame, coupling and constraint.

Editing a model means taking it apart, changing some parts and building it anew. Numbers pass through untouched, traced
ones too, so an edited system is differentiable in the numbers of the one that it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from jaxmbd.closures import Constraint
from jaxmbd.joints import Joint
from jaxmbd.pose import Pose
from jaxmbd.system import System
from jaxmbd.topology import WORLD

PASSIVE = ("stiffness", "damping", "friction", "friction_speed", "armature", "lower", "upper", "effort", "speed")
"""Numbers of a joint that come one a velocity; leaves of `System` and arguments of `Builder.joint` by these names."""

# leaves of System that `parts_of` passes on, and what the caller keeps
_TAKEN = {
    *("link_mass", "link_com", "link_inertia", "rotor_momentum", "frame_position", "frame_rotation", "ratio", "offset"),
    *("in_parent_position", "in_parent_rotation", "in_child_position", "in_child_rotation", *PASSIVE),
    *("axis", "pitch", "offset_position", "offset_rotation", "functions", "drives", "curves"),  # in the parts
    *("gravity", "base_motion", "topology", "rest", "home", "constraints"),
}


@dataclass
class JointPart:
    """A joint: its record, the bodies and frames that it joins, and its other numbers by the builder's names."""

    joint: Joint
    parent: str
    child: str
    in_parent: Pose
    in_child: Pose
    numbers: dict[str, Any]


@dataclass
class CouplingPart:
    """A coupling: arguments of `Builder.couple`."""

    leader: str
    ratio: Array
    offset: Array
    function: Callable[[Array], Array] | None


@dataclass
class ConstraintPart:
    """A constraint: its record, and the frames and joints it acts on."""

    record: Constraint
    frames: tuple[str, ...]
    joints: tuple[str, ...]


@dataclass
class Parts:
    """Bodies (arguments of `Builder.body`), which of them are carriers, joints, frames (body, pose), couplings and
    constraints.

    All go by name, couplings by that of the follower.
    """

    bodies: dict[str, dict[str, Any]]
    carriers: set[str]
    joints: dict[str, JointPart]
    frames: dict[str, tuple[str, Pose]]
    couplings: dict[str, CouplingPart]
    constraints: dict[str, ConstraintPart]
    notes: list[str]


def holds(value: Any) -> bool:
    """Whether an optional field of a system holds something: it is neither None nor empty."""
    return value is not None and not (isinstance(value, tuple) and not value)


def parts_of(system: System) -> Parts:
    """The parts of a system in order of declaration.

    Raises: ValueError when the system holds something that would get lost.
    """
    strange = [f.name for f in fields(system) if f.name not in _TAKEN and holds(getattr(system, f.name))]
    if strange:
        hint = " Take system.without_limits(), and with_limits at the end." if "limit_stiffness" in strange else ""
        raise ValueError(f"A system with {', '.join(strange)} cannot be taken apart and built anew.{hint}")
    system, topology, layout = _known(system), system.topology, system.topology.layout

    def link(i: int) -> str:
        return "world" if i == WORLD else topology.links[i]

    bodies = {
        name: {
            "mass": system.link_mass[i],
            "com": system.link_com[i],
            "inertia": system.link_inertia[i],
            "rotor_momentum": system.rotor_momentum[i],
        }
        for i, name in enumerate(topology.links)
    }
    joints = {}
    for i, entry in enumerate(topology.joints):
        q, v = (slice(int(s[i]), int(s[i + 1])) for s in (layout.q_start, layout.v_start))
        joints[entry.name] = JointPart(
            system.joint(entry.name),
            link(entry.parent),
            link(entry.child),
            Pose(system.in_parent_position[i], system.in_parent_rotation[i]),
            Pose(system.in_child_position[i], system.in_child_rotation[i]),
            {name: getattr(system, name)[v] for name in PASSIVE} | {"rest": system.rest[q], "home": system.home[q]},
        )
    frames = {
        name: (link(on), Pose(system.frame_position[i], system.frame_rotation[i]))
        for i, (name, on) in enumerate(topology.frames)
    }
    curve = dict(zip(topology.curves, system.curves, strict=True))
    couplings = {
        topology.joints[f].name: CouplingPart(
            topology.joints[leader].name, system.ratio[i], system.offset[i], curve.get(i)
        )
        for i, (f, leader) in enumerate(topology.couplings)
    }
    names = [*topology.frame_names, "world"]
    constraints = {
        entry.name: ConstraintPart(
            record, tuple(names[i] for i in entry.frames), tuple(topology.joints[i].name for i in entry.joints)
        )
        for record, entry in zip(system.constraints, topology.constraints, strict=True)
    }
    carriers = {topology.links[i] for i in topology.carriers}
    return Parts(bodies, carriers, joints, frames, couplings, constraints, list(topology.notes))


def _known(system: System) -> System:
    """Known numbers of JAX's default type as NumPy arrays, which are quick to take apart and lose nothing."""
    default = jax.dtypes.canonicalize_dtype(float)
    return jax.tree.map(lambda x: x if isinstance(x, Tracer) or x.dtype != default else np.asarray(x), system)
