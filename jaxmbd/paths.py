"""Physical numbers by path, as `link.mass` or `joint.axis`: which leaf of a system they sit in, where, in what unit."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
from jaxtyping import Array

from jaxmbd.topology import JointEntry, Topology
from jaxmbd.values import concrete

# attribute of a path -> (leaf of System, unit)
_LINK = {
    "mass": ("link_mass", "kg"),
    "com": ("link_com", "m, link axes"),
    "inertia": ("link_inertia", "kg m^2 about the com, link axes: Ixx Ixy Ixz Iyy Iyz Izz"),
    "rotor_momentum": ("rotor_momentum", "N m s, link axes"),
}
# numbers that must not be negative (friction_speed and limit_width: nor zero)
_POSITIVE = ("link_mass", "stiffness", "damping", "friction", "friction_speed", "armature")
_POSITIVE += ("limit_stiffness", "limit_damping", "limit_width")
_JOINT = {
    "in_parent.position": ("in_parent_position", "m"),
    "in_parent.rotation": ("in_parent_rotation", "quaternion w x y z"),
    "in_child.position": ("in_child_position", "m"),
    "in_child.rotation": ("in_child_rotation", "quaternion w x y z"),
}
_SCREW = {"axis": ("axis", "direction"), "pitch": ("pitch", "m/rad")}
_VELOCITY = {
    "stiffness": ("stiffness", "N m/rad or N/m"),
    "damping": ("damping", "N m s/rad or N s/m"),
    "friction": ("friction", "N m or N"),
    "friction_speed": ("friction_speed", "rad/s or m/s"),
    "armature": ("armature", "kg m^2 or kg"),
    "lower": ("lower", "rad or m"),
    "upper": ("upper", "rad or m"),
    "effort": ("effort", "N m or N"),
    "speed": ("speed", "rad/s or m/s"),
    "limit_stiffness": ("limit_stiffness", "N m/rad or N/m"),
    "limit_damping": ("limit_damping", "N m s/rad or N s/m"),
    "limit_width": ("limit_width", "rad or m"),
}
_COORDINATE = {"rest": ("rest", "rad or m"), "home": ("home", "rad or m")}
_FRAME = {"position": ("frame_position", "m"), "rotation": ("frame_rotation", "quaternion w x y z")}
_COUPLING = {"ratio": ("ratio", "1"), "offset": ("offset", "rad or m")}


def locate(topology: Topology, path: str) -> tuple[str, Any, str]:
    """The leaf of System, the index into it and the unit of a path.

    Raises: KeyError with all attributes and their units, and the nearest path that exists.
    """
    layout = topology.layout
    if path == "gravity":
        return "gravity", slice(None), "m/s^2"
    for attribute, (leaf, unit) in (_LINK | _JOINT | _SCREW | _VELOCITY | _COORDINATE).items():
        name = path.removesuffix("." + attribute)
        if name == path:
            continue
        if attribute in _LINK:
            if name in topology.links:
                return leaf, topology.links.index(name), unit
            continue
        found = [i for i, j in enumerate(topology.joints) if j.name == name]
        if found:
            i = found[0]
            if attribute in _JOINT:
                return leaf, i, unit
            start = {"axis": layout.screw_start, "pitch": layout.screw_start}
            bounds = layout.q_start if attribute in _COORDINATE else start.get(attribute, layout.v_start)
            first, size = int(bounds[i]), int(bounds[i + 1] - bounds[i])
            if not size or (attribute == "pitch" and not any(topology.joints[i].helical)):
                raise KeyError(f"{path!r}: a {topology.joints[i].kind} joint has no {attribute} [{unit}].")
            return leaf, first if size == 1 else slice(first, first + size), _own_unit(unit, topology.joints[i])
    for attribute, (leaf, unit) in (_FRAME | _COUPLING).items():
        name = path.removesuffix("." + attribute)
        names = [f for f, _ in topology.frames]
        if attribute in _COUPLING:
            names = [topology.joints[f].name for f, _ in topology.couplings]
            if name in names and names.index(name) in topology.curves:
                raise KeyError(f"{path!r}: joint {name!r} follows its leader by a function, without a {attribute}.")
        if name != path and name in names:
            return leaf, names.index(name), unit
    units = _LINK | _JOINT | _SCREW | _VELOCITY | _COORDINATE | _FRAME | _COUPLING
    known = "; ".join(f"{attribute} [{unit}]" for attribute, (_, unit) in units.items())
    names = [*topology.links, *(j.name for j in topology.joints), *(f for f, _ in topology.frames)]
    near = difflib.get_close_matches(path, [f"{n}.{a}" for n in names for a in units], 1, 0.8)
    raise KeyError(
        f"No number at {path!r}.{f' Did you mean {near[0]!r}?' if near else ''} A path is 'gravity' [m/s^2], or "
        f"the name of a link, joint, frame or following joint and one of: {known}. "
        f"Links: {', '.join(topology.links)}. Joints: {', '.join(j.name for j in topology.joints)}."
    )


def _own_unit(unit: str, joint: JointEntry) -> str:
    """That of two units ("N m or N") which a joint has, if it only turns or only slides."""
    turning, _, sliding = unit.partition(" or ")
    if joint.turning and sliding and len(set(joint.turning)) == 1:
        return turning if joint.turning[0] else sliding
    return unit


def check_value(path: str, leaf: str, unit: str, new: Array) -> None:
    """Raise, naming the unit, when a known value cannot be right: not finite, negative, or no direction."""
    value = concrete(new)
    if value is None:
        return
    limits = leaf in ("lower", "upper", "effort", "speed")
    if np.isnan(value).any() if limits else not np.isfinite(value).all():
        raise ValueError(f"{path!r} was given {value} [{unit}]; expected finite numbers.")
    if leaf in _POSITIVE and (value < 0).any():
        raise ValueError(f"{path!r} was given {value} [{unit}]; expected zero or more.")
    if leaf in ("friction_speed", "limit_width") and not value.all():
        raise ValueError(f"{path!r} was given {value} [{unit}]; expected more than zero.")
    if (leaf == "axis" or leaf.endswith("_rotation")) and not value.any(-1).all():
        raise ValueError(f"{path!r} was given {value} [{unit}]; expected a {unit} of non-zero length.")
