"""The library's own file format, `.jaxmbd`: a system as JSON text, its numbers by name. Round trips are exact.

    {"format": "jaxmbd system", "version": 1, "dtype": "float64", "gravity": [0.0, 0.0, -9.81],
     "links": {NAME: {"mass": ..., "com": [...], ...}},
     "joints": {NAME: {"kind": ..., "parent": ..., "child": ..., "axis": [[...]], "damping": [...], ...}},
     "frames": {NAME: {"on": ..., "position": [...]}}, "couplings": {FOLLOWER: {"leader": ..., "ratio": ...}},
     "constraints": {NAME: {"type": ..., "frames": [...], ...}}, "limits_act": true, ...}

Units and frames are those of `System.get`. What is left out has its default: zero, no rotation, no limit. Numbers are
written with the fewest digits that read back as the same bits. A leaf with batch axes in front keeps them ("batch").
Version 2 added constraints and limits in force; files without them are written as version 1, for older readers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxmbd.io.constraint_file import constraint_records, constraints_of
from jaxmbd.parts import holds
from jaxmbd.system import System
from jaxmbd.topology import WORLD, JointEntry, Topology

FORMAT = "jaxmbd system"
VERSION = 2
SUFFIX = ".jaxmbd"

_FLAGS = ("gyrostatic", "dense")  # of a topology
_TURN = (1.0, 0.0, 0.0, 0.0)
# group -> attribute in the file -> (leaf, what it has one row for, default of a row)
_LEAVES: dict[str, dict[str, tuple[str, str, Any]]] = {
    "links": {
        "mass": ("link_mass", "one", 0.0),
        "com": ("link_com", "one", (0.0,) * 3),
        "inertia": ("link_inertia", "one", (0.0,) * 6),
        "rotor_momentum": ("rotor_momentum", "one", (0.0,) * 3),
    },
    "joints": {
        "in_parent.position": ("in_parent_position", "one", (0.0,) * 3),
        "in_parent.rotation": ("in_parent_rotation", "one", _TURN),
        "in_child.position": ("in_child_position", "one", (0.0,) * 3),
        "in_child.rotation": ("in_child_rotation", "one", _TURN),
        "axis": ("axis", "screw", (0.0, 0.0, 1.0)),
        "pitch": ("pitch", "screw", 0.0),
        "offset.position": ("offset_position", "screw", (0.0,) * 3),
        "offset.rotation": ("offset_rotation", "screw", _TURN),
        "rest": ("rest", "q", 0.0),
        "home": ("home", "q", 0.0),
        "stiffness": ("stiffness", "v", 0.0),
        "damping": ("damping", "v", 0.0),
        "friction": ("friction", "v", 0.0),
        "friction_speed": ("friction_speed", "v", 1e-2),
        "armature": ("armature", "v", 0.0),
        "lower": ("lower", "v", -np.inf),
        "upper": ("upper", "v", np.inf),
        "effort": ("effort", "v", np.inf),
        "speed": ("speed", "v", np.inf),
    },
    "frames": {
        "position": ("frame_position", "one", (0.0,) * 3),
        "rotation": ("frame_rotation", "one", _TURN),
    },
    "couplings": {"ratio": ("ratio", "one", 1.0), "offset": ("offset", "one", 0.0)},
}
_STOPS = {
    "limit.stiffness": ("limit_stiffness", "v", 0.0),
    "limit.damping": ("limit_damping", "v", 0.0),
    "limit.width": ("limit_width", "v", 1e-2),
}
"""Attributes of joints where limits act (`System.with_limits`)."""


def _leaves(limits_act: bool) -> dict[str, dict[str, tuple[str, str, Any]]]:
    """`_LEAVES`, with those of limits in force."""
    return _LEAVES if not limits_act else _LEAVES | {"joints": _LEAVES["joints"] | _STOPS}


def save(system: System, path: str | os.PathLike[str]) -> None:
    """Write a system to a `.jaxmbd` file: text, by name, versioned; `load` gives it back bit for bit.

    Batch axes in front of any leaf are kept.

    Raises: ValueError for functions, which no file can hold: mapped and driven joints, curved couplings, moving bases,
      constraints by functions and points on curves.
    """
    path = pathlib.Path(path)
    if path.suffix != SUFFIX:
        raise ValueError(f"{path.name!r}: a system is saved with the suffix {SUFFIX!r}.")
    path.write_text(_text(_record(system)), encoding="utf-8")


def load_system(path: str | os.PathLike[str]) -> System:
    """Read what `save` wrote, of this version or an older one.

    Raises: ValueError naming the file, the element and what is wrong with it.
    """
    path = pathlib.Path(path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name}: this is no JSON text: {error}.") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(f'{path.name}: expected an object with "format": {FORMAT!r}; was it written by jaxmbd.save?')
    version = record.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise ValueError(
            f"{path.name} has version {version!r} of the format; this jaxmbd reads 1 to {VERSION}. Update jaxmbd."
        )
    try:
        return _system(record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path.name}: {text}") from error


def _record(system: System) -> dict[str, Any]:
    topology = system.topology
    if system.functions:
        names = ", ".join(repr(topology.joints[i].name) for i in topology.layout.mapped)
        raise ValueError(
            f"Joints {names} are given by functions of Python, which no file can hold. Keep the program that builds "
            "the system, or replace them by screws; pickle holds functions that it can import."
        )
    if system.base_motion is not None:
        raise ValueError("The base moves by a function of Python, which no file can hold; save the system without it.")
    if topology.drives:
        names = ", ".join(repr(topology.joints[drive.joint].name) for drive in topology.drives)
        raise ValueError(
            f"Joints {names} are driven by laws, functions of Python, which no file can hold. Save "
            "`system.without_drive()` and drive the joints again after loading."
        )
    if topology.curves:
        names = ", ".join(repr(topology.joints[topology.couplings[i][0]].name) for i in topology.curves)
        raise ValueError(f"Joints {names} follow others by functions of Python, which no file can hold.")
    limits_act = system.limit_stiffness is not None
    leaves = {leaf for group in _leaves(limits_act).values() for leaf, _, _ in group.values()} | {"gravity"}
    kept = leaves | {"functions", "base_motion", "drives", "curves", "topology", "constraints"}
    for field in dataclasses.fields(system):
        if field.name not in kept and holds(getattr(system, field.name)):
            raise ValueError(f"Version {VERSION} of the file format does not hold {field.name!r} of a system.")
    constraints = constraint_records(system, _numbers)
    dtype = np.dtype(system.gravity.dtype)
    names = ("world", *topology.links)
    joints = [entry.name for entry in topology.joints]
    record: dict[str, Any] = {
        "format": FORMAT,
        "version": 2 if constraints or limits_act else 1,
        "dtype": dtype.name,
        "gravity": _numbers(np.asarray(system.gravity)),
        "links": {n: {"carrier": True} if i in topology.carriers else {} for i, n in enumerate(topology.links)},
        "joints": {entry.name: _entry_record(entry, names) for entry in topology.joints},
        "frames": {name: {"on": names[on + 1]} for name, on in topology.frames},
        "couplings": {joints[f]: {"leader": joints[leader]} for f, leader in topology.couplings},
        **{flag: getattr(topology, flag) for flag in _FLAGS},
        "notes": list(topology.notes),
    }
    if constraints:
        record["constraints"] = constraints
    if limits_act:
        record["limits_act"] = True
    batch = {"gravity": list(np.shape(system.gravity)[:-1])}
    for group, attributes in _leaves(limits_act).items():
        for attribute, (leaf, per, default) in attributes.items():
            array, counts = np.asarray(getattr(system, leaf)), _counts(topology, group, per)
            front = array.ndim - 1 - np.ndim(default)
            if front < 0 or array.shape[front:] != (sum(counts), *np.shape(default)):
                raise ValueError(f"Leaf {leaf!r} has shape {array.shape}; batch axes must stand in front.")
            if array.dtype != dtype:
                raise ValueError(f"Leaf {leaf!r} is {array.dtype.name}, gravity {dtype.name}; use System.astype.")
            batch[leaf] = list(array.shape[:front])
            rows = np.split(array, np.cumsum(counts)[:-1], front) if counts else []
            for i, (element, own) in enumerate(zip(record[group].values(), rows, strict=True)):
                usual = _default(topology, i, attribute, default, counts[i]).astype(dtype)
                if own.size and (front or own.tobytes() != usual.tobytes()):
                    element[attribute] = _numbers(own[(slice(None),) * front + (0,)] if per == "one" else own)
    record["batch"] = {leaf: axes for leaf, axes in batch.items() if axes}
    return record


def _system(record: dict[str, Any]) -> System:
    dtype = jnp.dtype(record["dtype"])
    names = ["world", *record["links"]]
    index = {name: i - 1 for i, name in enumerate(names)}
    entries = tuple(_entry(name, joint, index) for name, joint in record["joints"].items())
    _check_tree(entries, names)
    joints = [entry.name for entry in entries]
    topology = Topology(
        links=tuple(record["links"]),
        joints=entries,
        frames=tuple((name, _known(index, frame["on"], name)) for name, frame in record["frames"].items()),
        couplings=tuple(
            (joints.index(follower), joints.index(coupling["leader"]))
            for follower, coupling in record["couplings"].items()
        ),
        **{flag: record.get(flag, False) for flag in _FLAGS},
        notes=tuple(record["notes"]),
        carriers=frozenset(i for i, link in enumerate(record["links"].values()) if link.get("carrier")),
    )
    constraints, placed = constraints_of(record.get("constraints", {}), topology, dtype)
    topology = dataclasses.replace(topology, constraints=placed)
    groups = _leaves(record.get("limits_act", False))
    batch = record.get("batch", {})
    gravity = _array(record["gravity"], (*batch.get("gravity", ()), 3), "gravity", dtype)
    leaves = {"gravity": jnp.asarray(gravity)}
    for group, attributes in groups.items():
        for attribute, (leaf, per, default) in attributes.items():
            counts, axes = _counts(topology, group, per), tuple(batch.get(leaf, ()))
            rows = [np.zeros((*axes, 0, *np.shape(default)), dtype)]
            for i, (name, element) in enumerate(record[group].items()):
                usual = _default(topology, i, attribute, default, counts[i])
                where = f"{name}.{attribute}"
                if attribute not in element:
                    rows.append(np.broadcast_to(usual, (*axes, *usual.shape)).astype(dtype))
                elif per == "one":
                    rows.append(
                        np.expand_dims(_array(element[attribute], axes + usual.shape[1:], where, dtype), len(axes))
                    )
                else:
                    rows.append(_array(element[attribute], axes + usual.shape, where, dtype))
            leaves[leaf] = jnp.asarray(np.concatenate(rows, len(axes)))
    for group, attributes in groups.items():
        for name, element in record[group].items():
            unknown = set(element) - set(attributes) - _STATIC[group]
            if unknown:
                raise ValueError(f"{name!r} of {group} has {sorted(unknown)}, which this format does not know.")
    return System(
        **leaves,
        functions=(),
        constraints=constraints,
        base_motion=None,
        drives=(),
        curves=(),
        coupling_rate=None,
        topology=topology,
    )


_ENTRY = {f.name: f for f in dataclasses.fields(JointEntry) if f.name not in ("name", "nq", "nv")}
_STATIC = {"links": {"carrier"}, "joints": set(_ENTRY), "frames": {"on"}, "couplings": {"leader"}}


def _entry_record(entry: JointEntry, names: tuple[str, ...]) -> dict[str, Any]:
    """The static part of a joint; fields at their defaults are left out."""
    record = {name: getattr(entry, name) for name, f in _ENTRY.items() if getattr(entry, name) != f.default}
    return record | {"parent": names[entry.parent + 1], "child": names[entry.child + 1]}


def _entry(name: str, record: dict[str, Any], index: dict[str, int]) -> JointEntry:
    static: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items() if k in _ENTRY}
    static |= {end: _known(index, record[end], name) for end in ("parent", "child")}
    if static.get("turning") is not None:
        nq = nv = len(static["turning"])
    elif static.get("translating") is not None:
        nq, nv = (7, 6) if static["translating"] else (4, 3)
    else:
        raise ValueError(f"joint {name!r} has neither 'turning' nor 'translating', so that its freedoms are unknown.")
    return JointEntry(name=name, nq=nq, nv=nv, **static)


def _known(index: dict[str, int], link: str, name: str) -> int:
    if link not in index:
        raise ValueError(f"{name!r} names the link {link!r}, which is not in the file.")
    return index[link]


def _check_tree(entries: tuple[JointEntry, ...], names: list[str]) -> None:
    """Every link hangs on one joint, and all of them on the world."""
    above: dict[int, int] = {}
    for entry in entries:
        if entry.child == WORLD or entry.child in above:
            raise ValueError(f"joint {entry.name!r} has the child {names[entry.child + 1]!r}, which is held already.")
        above[entry.child] = entry.parent
    for link in range(len(names) - 1):
        at, seen = link, set()
        while at != WORLD:
            if at not in above or at in seen:
                raise ValueError(f"link {names[link + 1]!r} does not hang on the world by a chain of joints.")
            seen.add(at)
            at = above[at]


def _counts(topology: Topology, group: str, per: str) -> list[int]:
    """How many rows of a leaf each element of a group has."""
    layout = topology.layout
    starts = {"screw": layout.screw_start, "q": layout.q_start, "v": layout.v_start}
    if per in starts:
        return [int(n) for n in np.diff(starts[per])]
    return [1] * len({"links": topology.links, "joints": topology.joints}.get(group, getattr(topology, group)))


def _default(topology: Topology, i: int, attribute: str, default: Any, count: int) -> np.ndarray:
    if attribute in ("rest", "home") and topology.joints[i].translating is not None:
        return np.eye(count)[0]
    return np.broadcast_to(np.asarray(default, float), (count, *np.shape(default)))


def _array(value: Any, shape: tuple[int, ...], where: str, dtype: np.dtype) -> np.ndarray:
    array = np.asarray(value, float).astype(dtype)
    if array.shape != shape:
        raise ValueError(f"{where} has shape {array.shape}; expected {shape}.")
    return array


def _numbers(array: np.ndarray) -> Any:
    """Nested lists of the shortest decimals that read back as the same bits; what JSON has no number for, as text."""
    if array.ndim:
        return [_numbers(row) for row in array]
    return float(str(array)) if np.isfinite(array) else str(array)


def _text(record: dict[str, Any]) -> str:
    """JSON with one line an attribute, so that two versions of a model can be compared line by line."""

    def lines(value, depth):
        if isinstance(value, dict) and value:
            inner = "  " * (depth + 1)
            items = [f"{inner}{json.dumps(k)}: {lines(v, depth + 1)}" for k, v in value.items()]
            return "{\n" + ",\n".join(items) + "\n" + "  " * depth + "}"
        return json.dumps(value, allow_nan=False)

    return lines(record, 0) + "\n"
