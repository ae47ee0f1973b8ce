"""What an MJCF file holds beyond bodies, joints, couplings and actuators: each thing named, with why it is left out.

Doubts change how the mechanism moves in free motion, and warn; notes are about contacts, limits, measuring and looks.
"""

from __future__ import annotations

import collections

import numpy as np

from jaxmbd.io.mjcf_actuators import on_one_joint, reflected
from jaxmbd.io.mjcf_engine import Model, engine
from jaxmbd.io.mjcf_names import Names
from jaxmbd.io.mjcf_tree import BALL, FREE, HINGE, SLIDE, disabled


def summary(file: str, name: str, model: Model) -> str:
    """One line on what was read, passive forces counted."""
    kinds = collections.Counter({FREE: "free", BALL: "ball", SLIDE: "slide", HINGE: "hinge"}[k] for k in model.jnt_type)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    per_joint = {
        "damping": model.dof_damping,
        "dry friction": model.dof_frictionloss,
        "armature": model.dof_armature,
    }
    counts = {what: len({int(j) for j in model.dof_jntid[values > 0]}) for what, values in per_joint.items()}
    counts["springs"] = int(np.count_nonzero(model.jnt_stiffness))
    said = ", ".join(f"{count} with {what}" for what, count in counts.items())
    return f"{file}: model '{name}', {model.nbody - 1} bodies, joints: {listed}; {said}"


def add_notes(model: Model, names: Names, notes: list[str]) -> None:
    """Lines on what is taken over with a change, and on what has no part in free motion."""
    mujoco = engine()

    if np.any(model.dof_frictionloss):
        notes.append("frictionloss becomes smooth dry friction, friction * tanh(v / friction_speed), 0.01 rad/s or m/s")
    limited = [names.joints[j] for j in range(model.njnt) if model.jnt_limited[j]]
    scalar = sum(1 for j in range(model.njnt) if model.jnt_limited[j] and model.jnt_type[j] != BALL)
    if scalar:
        notes.append(f"recorded, without acting by themselves: limits of {_count(scalar, 'joint')}")
    if len(limited) > scalar:
        balls = [names.joints[j] for j in range(model.njnt) if model.jnt_limited[j] and model.jnt_type[j] == BALL]
        notes.append(f"not taken over, angle limits of ball joints: {_quoted(balls)}")
    mocap = [names.bodies[i] for i in range(model.nbody) if model.body_mocapid[i] >= 0]
    if mocap:
        notes.append(f"mocap bodies stand fixed where the file has them: {_quoted(mocap)}")
    touching = int(np.count_nonzero((model.geom_contype != 0) | (model.geom_conaffinity != 0)))
    if touching or model.npair:
        pairs = _count(model.npair, "explicit pair")
        notes.append(f"not taken over, contact: {_count(touching, 'geom')} that can touch, {pairs}")
    tendons = [i for i in range(model.ntendon) if model.tendon_limited[i]]
    if tendons:
        notes.append(f"not taken over, limits of tendons: {_quoted(_named(model, 'tendon', i) for i in tendons)}")
    if model.nsensor:
        kinds = collections.Counter(
            mujoco.mjtSensor(int(k)).name.removeprefix("mjSENS_").lower() for k in model.sensor_type
        )
        notes.append(f"not taken over, sensors: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}")
    method = mujoco.mjtIntegrator(int(model.opt.integrator)).name.removeprefix("mjINT_")
    notes.append(f"not taken over, time step {float(model.opt.timestep)!r} s and integrator {method}: see `simulate`")
    off = sorted(disabled(model))
    if off:
        notes.append(f"switched off in the file: {', '.join(off)}")
    counts = {"camera": model.ncam, "light": model.nlight, "custom number": model.nnumeric, "custom text": model.ntext}
    seen = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    if seen:
        notes.append(f"ignored, no part of the dynamics: {seen}")


def add_doubts(model: Model, names: Names, doubts: list[str]) -> None:
    """Lines on forces that MuJoCo would apply in free motion and that are left out, or differ."""
    off = disabled(model)

    def listed(kind: str, holders, text: str) -> None:
        found = [holder for holder in holders if holder]
        if found:
            doubts.append(f"not taken over, {text}: {kind} {_quoted(found)}")

    joints, dofs = range(model.njnt), range(model.nv)
    free = [j for j in joints if model.jnt_type[j] == FREE]
    acting = {"stiffness": "spring", "damping": "damper", "frictionloss": "frictionloss", "armature": ""}
    for field, flag in acting.items():
        values = _extra(model, f"tendon_{field}")
        pulling = (_named(model, "tendon", i) for i in range(model.ntendon) if np.any(values[i]) and flag not in off)
        listed("tendons", pulling, f"{field} of tendons")
    curved = _extra(model, "jnt_stiffnesspoly")
    listed("joints", (names.joints[j] for j in joints if np.any(curved[j])), "non-linear stiffness")
    curved = _extra(model, "dof_dampingpoly")
    bent = sorted({int(model.dof_jntid[d]) for d in dofs if np.any(curved[d])})
    listed("joints", (names.joints[j] for j in bent), "non-linear damping")
    yielding = _extra(model, "jnt_springyield")
    listed("joints", (names.joints[j] for j in joints if np.any(yielding[j] > 0)), "yielding springs")
    for field, what in (("dof_armature", "armature"), ("dof_frictionloss", "dry friction")):
        held = [names.joints[j] for j in free if np.any(getattr(model, field)[model.jnt_dofadr[j]])]
        if held:
            doubts.append(
                f"{what} of free joints acts on their velocities in body axes, not in world axes: {_quoted(held)}"
            )
    if "gravity" not in off:
        floating = (names.bodies[i] for i in range(model.nbody) if model.body_gravcomp[i])
        listed("bodies", floating, "gravity compensation")
    if model.opt.density or model.opt.viscosity:
        fluid = f"density {float(model.opt.density)!r} kg/m^3, viscosity {float(model.opt.viscosity)!r} Pa s"
        doubts.append(f"not taken over, forces of the fluid around: {fluid}")
    if model.nflex:
        doubts.append(f"not taken over, elasticity of {model.nflex} flexes; their nodes are bodies without springs")
    if model.nplugin:
        doubts.append(f"not taken over: {model.nplugin} plugins")
    for i, name in enumerate(names.actuators):
        curved = _extra(model, "actuator_dampingpoly")
        if (any(reflected(model, i)) and on_one_joint(model, i) is None) or (len(curved) and np.any(curved[i])):
            doubts.append(f"not taken over, armature and damping of actuator '{name}'")


def _extra(model: Model, field: str) -> np.ndarray:
    """A field that only newer versions of MuJoCo have; zeros without it."""
    rows = {"jnt": model.njnt, "dof": model.nv, "actuator": model.nu, "tendon": model.ntendon}[field.split("_")[0]]
    return getattr(model, field, np.zeros((rows, 1)))


def _named(model: Model, kind: str, i: int) -> str:
    mujoco = engine()

    return mujoco.mj_id2name(model, getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}"), i) or f"{kind}{i}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _quoted(names) -> str:
    return ", ".join(f"'{name}'" for name in names)
