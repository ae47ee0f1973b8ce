"""An MJCF file to a System, actuators and keyframes, through the compiler of the `mujoco` package.

Defaults, includes, frames, units and inertias of geoms are the compiler's work; every number is taken from the compiled
model. q equals MuJoCo's qpos, `ref` included, but a free joint's quaternion comes first; `neutral_q` is qpos0.
"""

from __future__ import annotations

import os
import pathlib
import warnings
from typing import Literal

import jax.numpy as jnp
import numpy as np

from jaxmbd.builder import Builder
from jaxmbd.io.mjcf_actuators import actuators_of, keyframes_of, on_one_joint, reflected
from jaxmbd.io.mjcf_engine import Model
from jaxmbd.io.mjcf_equality import Curve, Equalities, close, equalities_of
from jaxmbd.io.mjcf_names import Names, names_of
from jaxmbd.io.mjcf_records import MjcfError, MjcfFile
from jaxmbd.io.mjcf_report import add_doubts, add_notes, summary
from jaxmbd.io.mjcf_tree import BASE_JOINT, FREE, add_tree, disabled
from jaxmbd.io.urdf_records import Defect
from jaxmbd.system import System


def load_mjcf(
    path: str | os.PathLike[str],
    floating: bool = False,
    mimic: Literal["eliminate", "independent"] = "eliminate",
    loops: Literal["closed", "open"] = "closed",
    strict: bool = True,
) -> MjcfFile:
    """The system of an MJCF file with its actuators and keyframes; `load` gives the system alone.

    Needs the package `mujoco` (extra `mjcf`). Several joints of one body stay several joints, by their names in the
    file; unnamed things are called by kind and MuJoCo's index (`joint3`). Sites become frames. `system.report` names
    everything that is not taken over: contacts, tendons, sensors, muscles and so on.

    Args:
        path: an `.xml` file with <mujoco> at its root.
        floating: put a free joint named "root" under the one body that is fixed to the world.
        mimic: "eliminate" makes joint equalities exact couplings, linear or on a curve: their followers have no
            coordinate; "independent" leaves all joints free.
        loops: "closed" keeps connect and weld constraints as rigid closures (MuJoCo's are soft), by their names in the
            file; "open" leaves them out.
        strict: refuse to open files outside the model's folder.

    Raises:
        ImportError: the package `mujoco` is not installed.
        MjcfError: (a ValueError) the file is not well formed, MuJoCo's compiler refuses it, it must not be trusted, it
            or a joint moves no inertia.

    Warns:
        UserWarning: forces that MuJoCo applies in free motion and that are not taken over, as springs of tendons.
    """
    from jaxmbd.io.mjcf_file import compile_file  # here, so that importing jaxmbd does not import lxml

    path = pathlib.Path(path)
    notes: list[str] = []
    doubts: list[str] = []
    model = compile_file(path, strict, notes)
    names = names_of(model, notes)
    equalities = equalities_of(model, names)
    freed = _freed(path.name, model, names, notes) if floating else None

    b = Builder(gravity=np.zeros(3) if "gravity" in disabled(model) else model.opt.gravity)
    _add_couplings(b, model, names, equalities, mimic, notes)
    actuators, controls, left = actuators_of(model, names)
    doubts += equalities.doubts
    told = 'loops="open", left out' if loops == "open" else "closed rigidly"
    add_doubts(model, names, doubts)
    notes += [*equalities.notes, *(f"{told}: {loop}" for loop in equalities.loops), *left]
    add_notes(model, names, notes)
    for line in (summary(path.name, _title(model), model), *doubts, *notes):
        b.note(line)
    try:
        add_tree(b, model, names, freed)
        if loops == "closed":
            close(b, equalities.loops)
        system = b.build()
    except ValueError as error:
        raise MjcfError(path.name, (Defect(1, "<mujoco>", str(error), None),)) from error
    system = _with_reflected(system, model, names)
    if doubts:
        warnings.warn("\n  ".join([f"{path.name} is loaded, but:", *doubts]), stacklevel=2)
    return MjcfFile(system, actuators, keyframes_of(model, names, system, controls))


def _freed(file: str, model: Model, names: Names, notes: list[str]) -> int | None:
    """The body that floating=True sets free, or None where the file has it free already."""
    first = [i for i in range(1, model.nbody) if model.body_parentid[i] == 0]
    if len(first) == 1 and model.body_jntnum[first[0]] and model.jnt_type[model.body_jntadr[first[0]]] == FREE:
        notes.append(f"body '{names.bodies[first[0]]}' is free already, floating=True adds nothing")
        return None
    if BASE_JOINT in names.joints:
        text = "floating=True adds a joint of this name; rename it, or load with floating=False"
        raise MjcfError(file, (Defect(1, f"joint '{BASE_JOINT}'", text, None),))
    if len(first) == 1 and not model.body_jntnum[first[0]]:
        return first[0]
    listed = ", ".join(f"'{names.bodies[i]}' (joints: {int(model.body_jntnum[i])})" for i in first) or "no body"
    text = f"carries {listed}; floating=True needs one body without joints there. Load with floating=False"
    raise MjcfError(file, (Defect(1, "<worldbody>", text, None),))


def _add_couplings(
    b: Builder, model: Model, names: Names, equalities: Equalities, mimic: str, notes: list[str]
) -> None:
    def kept(k: int, joint: str) -> float:
        return float(model.key_qpos[k, model.jnt_qposadr[names.joints.index(joint)]])

    for follower, (leader, relation) in equalities.couplings.items():
        powers = (f" * '{leader}'", "", *(f" * '{leader}'^{k}" for k in range(2, len(relation.coef))))
        numbers = [float(c) for c in (*relation.coef, 0.0)]
        numbers[0], numbers[1] = numbers[1], numbers[0]  # "2.0 * 'j' + 1.0", and higher powers after that
        said = " + ".join(f"{number!r}{power}" for number, power in zip(numbers, powers, strict=False))
        if mimic == "independent":
            notes.append(f"mimic=\"independent\": '{follower}' stays free of {said}")
            continue
        if relation.degree() > 1:
            b.couple(follower, leader, function=Curve(jnp.asarray(relation.coef, float)))
        else:
            b.couple(follower, leader, ratio=numbers[0], offset=numbers[1])
        notes.append(f"joint equality eliminated, exact and not soft: '{follower}' = {said}")
        for k, key in enumerate(names.keyframes):
            given, follows = kept(k, follower), float(relation(kept(k, leader)))
            if abs(given - follows) > 1e-6:
                text = f"keyframe '{key}' has '{follower}' at {given!r}, where it would follow with {follows!r}"
                notes.append(text + ": it follows")


def _with_reflected(system: System, model: Model, names: Names) -> System:
    """The system with the rotor inertia and damping of actuators added at the joints that they drive."""
    changed = {}
    for i in range(len(names.actuators)):
        j, numbers = on_one_joint(model, i), reflected(model, i)
        for attribute, value in zip(("armature", "damping"), numbers, strict=True):
            if j is not None and value and not (attribute == "damping" and "damper" in disabled(model)):
                place = f"{names.joints[j]}.{attribute}"
                changed[place] = changed.get(place, system.get(place)) + value
    return system.replace(changed) if changed else system


def _title(model: Model) -> str:
    return model.names[: model.names.index(b"\0")].decode()
