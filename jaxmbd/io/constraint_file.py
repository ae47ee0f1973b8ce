"""Constraints in a `.jaxmbd` file: what kind, on which frames and joints, and their numbers by name.

{"C": {"type": "closure", "frames": ["coupler_end", "rocker_end"], "joint": "revolute", "turning": [true],
"axis": [[0.0, -1.0, 0.0]]},
"rod": {"type": "distance", "frames": ["a", "world"], "length": 0.5}}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmbd.closures import Constraint, CutJoint, Distance, Gear, cut_joint
from jaxmbd.joints import Mapped, Quaternion, Screws
from jaxmbd.rolling import KnifeEdge, RollingBall, RollingDisc
from jaxmbd.system import System
from jaxmbd.topology import ConstraintEntry, Topology

# type in the file -> (class, numbers and their shapes)
_PLAIN: dict[str, tuple[type[Constraint], dict[str, tuple[int, ...]]]] = {
    "distance": (Distance, {"length": ()}),
    "gear": (Gear, {"ratio": (), "offset": ()}),
    "knife edge": (KnifeEdge, {}),
    "rolling disc": (RollingDisc, {"radius": ()}),
    "rolling ball": (RollingBall, {"radius": ()}),
}
_SCREWS = {"axis": (3,), "pitch": (), "offset_position": (3,), "offset_quaternion": (4,)}
_USUAL = {"pitch": 0.0, "offset_position": np.zeros(3), "offset_quaternion": np.eye(4)[0]}

Numbers = Callable[[np.ndarray], Any]


def constraint_records(system: System, numbers: Numbers) -> dict[str, Any]:
    """The constraints of a system by name; `numbers` writes an array.

    Raises: ValueError naming constraints that are functions, which no file can hold.
    """
    plain = {made: kind for kind, (made, _) in _PLAIN.items()}
    found: dict[str, Any] = {}
    functions, dtype = [], system.gravity.dtype
    names = [*system.topology.frame_names, "world"]
    for record, entry in zip(system.constraints, system.topology.constraints, strict=True):
        strange = [x.dtype.name for x in jax.tree.leaves(record) if x.dtype != dtype]
        if strange:
            raise ValueError(f"Constraint {entry.name!r} is {strange[0]}, gravity {dtype.name}; use System.astype.")
        on: dict[str, Any] = {"frames": [names[i] for i in entry.frames]} if entry.frames else {}
        if entry.joints:
            on["joints"] = [system.topology.joints[i].name for i in entry.joints]
        if type(record) in plain:
            kind = plain[type(record)]
            values = {name: numbers(np.asarray(getattr(record, name))) for name in _PLAIN[kind][1]}
            found[entry.name] = {"type": kind, **on, **values}
        elif isinstance(record, CutJoint) and record.motion is None and not isinstance(record.joint, Mapped):
            found[entry.name] = {"type": "closure", **on, **_joint_record(record.joint, numbers)}
        else:
            functions.append(f"{entry.name!r} ({entry.kind})")
    if functions:
        raise ValueError(
            f"Constraints {', '.join(functions)} are given by functions of Python, which no file can hold. Keep the "
            "program that builds the system; pickle holds functions that it can import."
        )
    return found


def _joint_record(joint: Any, numbers: Numbers) -> dict[str, Any]:
    if isinstance(joint, Quaternion):
        return {"joint": joint.kind}
    assert isinstance(joint, Screws)
    record: dict[str, Any] = {"joint": joint.kind, "turning": list(joint.turning), "helical": list(joint.helical)}
    for name, shape in _SCREWS.items():
        value = np.asarray(getattr(joint, name))
        usual = np.broadcast_to(_USUAL.get(name, np.nan), (len(joint.turning), *shape)).astype(value.dtype)
        if value.shape != usual.shape or value.tobytes() != usual.tobytes():
            record[name] = numbers(value)
    return record


def constraints_of(
    records: dict[str, Any], topology: Topology, dtype: np.dtype
) -> tuple[tuple[Constraint, ...], tuple[ConstraintEntry, ...]]:
    """The constraints of a file, and their entries in the topology.

    Raises: ValueError or KeyError naming the constraint and what is wrong.
    """
    frames = {"world": -1} | {name: i for i, name in enumerate(topology.frame_names)}
    joints = {entry.name: i for i, entry in enumerate(topology.joints)}
    made, entries = [], []
    for name, record in records.items():
        kind, on, of = record["type"], record.get("frames", []), record.get("joints", [])
        for end in on:
            if end not in frames:
                raise ValueError(f"constraint {name!r} names the frame {end!r}, which is not in the file.")
        for joint in of:
            if joint not in joints:
                raise ValueError(f"constraint {name!r} names the joint {joint!r}, which is not in the file.")
        known = {"type", "frames", "joints"}
        if kind == "closure":
            constraint: Constraint = cut_joint(_joint(name, record, dtype))
            known |= {"joint", "turning", "helical", *_SCREWS}
        elif kind in _PLAIN:
            build, shapes = _PLAIN[kind]
            constraint = build(*(_array(record[n], shape, f"{name}.{n}", dtype) for n, shape in shapes.items()))
            known |= set(shapes)
        else:
            raise ValueError(f"constraint {name!r} has the type {kind!r}; known: closure, {', '.join(_PLAIN)}.")
        if set(record) - known:
            raise ValueError(f"constraint {name!r} has {sorted(set(record) - known)}, which this format does not know.")
        if (len(on), len(of)) != constraint.takes:
            raise ValueError(f"constraint {name!r} acts on {len(on)} frames and {len(of)} joints: {constraint.takes}.")
        made.append(constraint)
        entries.append(
            ConstraintEntry(
                name, constraint.kind, tuple(frames[f] for f in on), tuple(joints[j] for j in of), constraint.rows
            )
        )
    return tuple(made), tuple(entries)


def _joint(name: str, record: dict[str, Any], dtype: np.dtype) -> Screws | Quaternion:
    if "turning" not in record:
        return Quaternion(False)
    turning, helical = tuple(record["turning"]), tuple(record["helical"])
    values = {}
    for number, shape in _SCREWS.items():
        usual = np.broadcast_to(_USUAL.get(number, 0.0), (len(turning), *shape))
        values[number] = _array(record.get(number, usual), (len(turning), *shape), f"{name}.{number}", dtype)
    return Screws(**values, turning=turning, helical=helical, name=record["joint"])


def _array(value: Any, shape: tuple[int, ...], where: str, dtype: np.dtype):
    array = np.asarray(value, float).astype(dtype)
    if 0 in shape and isinstance(value, list):  # nested lists end where nothing is inside
        array = np.zeros((*array.shape[: array.ndim - shape.index(0) - 1], *shape), dtype)
    if array.shape[array.ndim - len(shape) :] != shape:
        raise ValueError(f"{where} has shape {array.shape}; expected {shape}, batch axes in front.")
    return jnp.asarray(array)
