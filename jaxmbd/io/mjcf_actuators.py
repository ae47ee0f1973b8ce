"""Actuators and keyframes of a compiled MuJoCo model, as records of this library."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxmbd.actuators import Actuators, Transmission
from jaxmbd.io.mjcf_engine import Model, engine
from jaxmbd.io.mjcf_names import Names
from jaxmbd.io.mjcf_records import Keyframe
from jaxmbd.io.mjcf_tree import HINGE, SLIDE, coordinates, disabled, velocities
from jaxmbd.system import System


def actuators_of(model: Model, names: Names) -> tuple[Actuators, np.ndarray, list[str]]:
    """The actuators that are a map of state and control, the controls of MuJoCo that they take, and what is left."""
    left: list[str] = []
    kept: list[tuple[int, Transmission]] = []
    for i, name in enumerate(names.actuators):
        transmission = _transmission(model, names, i)
        problem = transmission if isinstance(transmission, str) else _stateful(model, i)
        if isinstance(transmission, str) or problem:
            left.append(f"actuator '{name}' is not taken over: {problem}")
        else:
            kept.append((i, transmission))
    rows = np.array([i for i, _ in kept], int)
    controls = getattr(model, "actuator_ctrladr", np.arange(len(names.actuators)))[rows]
    bias = np.where((model.actuator_biastype[rows] == 0)[:, None], 0.0, model.actuator_biasprm[rows, :3])
    gain = model.actuator_gainprm[rows, :3] * ([1.0, 1.0, 1.0] if not len(rows) else _affine(model, rows))
    clamped = model.actuator_ctrllimited[controls].astype(bool) & ("clampctrl" not in disabled(model))
    bounded = [j for j in range(model.njnt) if model.jnt_actfrclimited[j] and model.jnt_type[j] in (SLIDE, HINGE)]
    terms = [x for i, transmission in kept for x in _coefficients(model, i, transmission)]
    actuators = Actuators(
        gear=jnp.asarray(model.actuator_gear[rows], float),
        gain=jnp.asarray(gain, float),
        bias=jnp.asarray(bias, float),
        ctrl_range=_range(model.actuator_ctrlrange[controls], clamped),
        force_range=_range(model.actuator_forcerange[rows], model.actuator_forcelimited[rows].astype(bool)),
        coefficients=jnp.asarray(np.array(terms, float)),
        joint_range=_range(model.jnt_actfrcrange[bounded], np.ones(len(bounded), bool)),
        names=tuple(names.actuators[i] for i in rows),
        transmissions=tuple(transmission for _, transmission in kept),
        bounded_joints=tuple(names.joints[j] for j in bounded),
        lag=_lag(model, rows),
    )
    return actuators, controls, left


def keyframes_of(model: Model, names: Names, system: System, controls: np.ndarray) -> dict[str, Keyframe]:
    """Every keyframe by name. Coordinates of followers are dropped; they follow."""
    layout, frames = system.topology.layout, {}
    of_file = {name: j for j, name in enumerate(names.joints)}
    for k, key in enumerate(names.keyframes):
        qpos, qvel = model.key_qpos[k], model.key_qvel[k]
        q, v = np.array(system.home), np.zeros(layout.nv_full)
        for i, joint in enumerate(system.topology.joints):
            if joint.name in of_file and joint.nv:
                j = of_file[joint.name]
                q[layout.q_start[i] : layout.q_start[i + 1]] = coordinates(model, qpos, j)
                v[layout.v_start[i] : layout.v_start[i + 1]] = velocities(model, qpos, qvel, j)
        ctrl = model.key_ctrl[k][controls]
        time, *state = (jnp.asarray(x, float) for x in (model.key_time[k], q[layout.q_keep], v[layout.v_keep], ctrl))
        frames[key] = Keyframe(time, *state)
    return frames


def reflected(model: Model, i: int) -> tuple[float, float]:
    """Armature [kg m^2, kg] and damping of an actuator at its joint, gear squared included (MuJoCo 4)."""
    armature, damping = getattr(model, "actuator_armature", None), getattr(model, "actuator_damping", None)
    if armature is None or damping is None:
        return 0.0, 0.0
    square = float(model.actuator_gear[i, 0]) ** 2
    return square * float(armature[i]), square * float(damping[i])


def on_one_joint(model: Model, i: int) -> int | None:
    """The hinge or slide that an actuator acts on directly, or None."""
    j = int(model.actuator_trnid[i, 0])
    return j if model.actuator_trntype[i] in (0, 1) and model.jnt_type[j] in (SLIDE, HINGE) else None


def _transmission(model: Model, names: Names, i: int) -> Transmission | str:
    """What an actuator pulls at, or why that is not taken over."""
    mujoco = engine()

    kinds = mujoco.mjtTrn
    kind, first, second = int(model.actuator_trntype[i]), int(model.actuator_trnid[i, 0]), model.actuator_trnid[i, 1]
    if kind in (kinds.mjTRN_JOINT, kinds.mjTRN_JOINTINPARENT):
        return Transmission("joint", (names.joints[first],), kind == kinds.mjTRN_JOINTINPARENT)
    if kind == kinds.mjTRN_TENDON:
        wraps = _wraps(model, first)
        if not np.all(model.wrap_type[wraps] == mujoco.mjtWrap.mjWRAP_JOINT):
            return "it pulls a spatial tendon"
        return Transmission("tendon", tuple(names.joints[j] for j in model.wrap_objid[wraps]))
    if kind == kinds.mjTRN_SITE and second < 0:
        return Transmission("frame", (names.sites[first],))
    label = next((n.removeprefix("mjTRN_").lower() for n, k in kinds.__members__.items() if int(k) == kind), str(kind))
    return f"transmission {label}" + (" with refsite" if kind == kinds.mjTRN_SITE else "")


def _stateful(model: Model, i: int) -> str:
    """Why an actuator is no map of state and control; empty where it is one."""
    mujoco = engine()

    for kind, enum, prefix, known in (
        ("dyntype", mujoco.mjtDyn, "mjDYN_", {"none", "filter", "filterexact"}),
        ("gaintype", mujoco.mjtGain, "mjGAIN_", {"fixed", "affine"}),
        ("biastype", mujoco.mjtBias, "mjBIAS_", {"none", "affine"}),
    ):
        label = enum(int(getattr(model, f"actuator_{kind}")[i])).name.removeprefix(prefix).lower()
        if label not in known:
            state = " (it has an activation state)" if kind == "dyntype" else ""
            return f"{kind} {label}{state}"
    if model.actuator_dyntype[i] != mujoco.mjtDyn.mjDYN_NONE and (
        model.actuator_actlimited[i] or model.actuator_actearly[i]
    ):
        return "its activation is limited, or acts early"
    delay = getattr(model, "actuator_delay", None)
    if delay is not None and np.any(delay[i]):
        return "it acts with a delay"
    if model.opt.disableactuator >> min(max(int(model.actuator_group[i]), 0), 30) & 1:
        return f"its group {int(model.actuator_group[i])} is switched off in the file"
    return "actuation is switched off in the file" if "actuation" in disabled(model) else ""


def _lag(model: Model, rows: np.ndarray):
    """Time constants of the actuators that follow their control with a lag; None where none does."""
    none = int(engine().mjtDyn.mjDYN_NONE)
    lagging = model.actuator_dyntype[rows] != none
    return jnp.asarray(np.where(lagging, model.actuator_dynprm[rows, 0], 0.0), float) if lagging.any() else None


def _affine(model: Model, rows: np.ndarray) -> np.ndarray:
    """Which gain parameters count: all of an affine gain, the first of a fixed one."""
    affine = model.actuator_gaintype[rows] == 1
    return np.stack([np.ones(len(rows)), affine, affine], 1)


def _coefficients(model: Model, i: int, transmission: Transmission) -> list[float]:
    if transmission.kind == "tendon":
        return [float(x) for x in model.wrap_prm[_wraps(model, int(model.actuator_trnid[i, 0]))]]
    return [1.0] if transmission.kind == "joint" else []


def _wraps(model: Model, tendon: int) -> slice:
    start = int(model.tendon_adr[tendon])
    return slice(start, start + int(model.tendon_num[tendon]))


def _range(bounds: np.ndarray, limited: np.ndarray):
    return jnp.asarray(np.where(limited[:, None], bounds, [-np.inf, np.inf]).reshape(-1, 2), float)
