"""Bodies, joints and sites of a compiled MuJoCo model, declared to a `Builder`.

MuJoCo gives a body any number of joints, each with an anchor in the body's frame, and measures coordinates from a
reference (`ref`). Here each joint has a link: all but a body's last one move a massless carrier. With the anchor p, the
axis a and the reference r, the body frame goes through T(p) exp(a (q - r)) T(-p), so r sits in the outboard pose.
"""

from __future__ import annotations

import math

import numpy as np

from jaxmbd import joint_kinds as kinds
from jaxmbd.builder import Builder
from jaxmbd.io.mjcf_engine import Model, engine
from jaxmbd.io.mjcf_names import Names
from jaxmbd.io.quaternions import rotation_matrix
from jaxmbd.pose import Pose

BASE_JOINT = "root"
FREE, BALL, SLIDE, HINGE = range(4)  # mjtJoint


def add_tree(b: Builder, model: Model, names: Names, freed: int | None) -> None:
    """Declare bodies, joints and sites in MuJoCo's order; body `freed` gets a free joint named "root"."""
    for i in range(1, model.nbody):
        parent = names.bodies[model.body_parentid[i]]
        at = Pose(model.body_pos[i], model.body_quat[i])
        first, count = int(model.body_jntadr[i]), int(model.body_jntnum[i])
        for j in range(first, first + count - 1):
            b.carrier(names.carriers[j])
            _add_joint(b, model, names, j, parent, names.carriers[j], at)
            parent, at = names.carriers[j], Pose()
        turn = rotation_matrix(tuple(model.body_iquat[i]))
        tensor = turn @ np.diag(model.body_inertia[i]) @ turn.T
        name = names.bodies[i]
        b.body(name, mass=float(model.body_mass[i]), com=model.body_ipos[i], inertia=tensor)
        if count:
            _add_joint(b, model, names, first + count - 1, parent, name, at)
        elif i == freed:
            home = np.concatenate([model.body_quat[i], model.body_pos[i]])
            b.joint(BASE_JOINT, kinds.free(), parent=parent, child=name, home=home)
        else:
            b.joint(names.welds[i], kinds.fixed(), parent=parent, child=name, in_parent=at)
    for i, name in enumerate(names.sites):
        on = names.bodies[model.site_bodyid[i]]
        b.frame(name, on=on, pose=Pose(model.site_pos[i], model.site_quat[i]))


def coordinates(model: Model, qpos: np.ndarray, j: int) -> np.ndarray:
    """Our coordinates of a joint from MuJoCo's qpos: a free joint's quaternion comes first here."""
    start, kind = int(model.jnt_qposadr[j]), model.jnt_type[j]
    own = qpos[start : start + {FREE: 7, BALL: 4}.get(kind, 1)]
    return np.concatenate([own[3:], own[:3]]) if kind == FREE else own


def velocities(model: Model, qpos: np.ndarray, qvel: np.ndarray, j: int) -> np.ndarray:
    """Our velocities of a joint from MuJoCo's qvel: a free joint's are [angular, linear] in body axes here."""
    start, kind = int(model.jnt_dofadr[j]), model.jnt_type[j]
    own = qvel[start : start + {FREE: 6, BALL: 3}.get(kind, 1)]
    if kind != FREE:
        return own
    turn = coordinates(model, qpos, j)[:4]
    return np.concatenate([own[3:], rotation_matrix(tuple(turn / np.linalg.norm(turn))).T @ own[:3]])


def _add_joint(b: Builder, model: Model, names: Names, j: int, parent: str, child: str, at: Pose) -> None:
    kind, pos, axis = model.jnt_type[j], model.jnt_pos[j], model.jnt_axis[j]
    home = coordinates(model, model.qpos0, j)
    in_parent, in_child = at @ Pose(pos), Pose(pos)
    if kind == FREE:
        joint, in_parent, in_child = kinds.free(), Pose(), Pose()  # qpos0 is the body's place in the world
    elif kind == BALL:
        joint = kinds.spherical()
    elif kind == SLIDE:
        joint, in_child = kinds.prismatic(axis), Pose(pos + home[0] * axis)
    else:
        joint, in_child = kinds.revolute(axis), Pose(pos, _turn(axis, home[0]))
    scalar = kind in (SLIDE, HINGE)
    lower, upper = model.jnt_range[j] if scalar and model.jnt_limited[j] else (-np.inf, np.inf)
    dofs = slice(int(model.jnt_dofadr[j]), int(model.jnt_dofadr[j]) + joint.nv)
    off = disabled(model)
    b.joint(
        names.joints[j],
        joint,
        parent=parent,
        child=child,
        in_parent=in_parent,
        in_child=in_child,
        stiffness=0.0 if "spring" in off else float(np.ravel(model.jnt_stiffness[j])[0]),
        rest=coordinates(model, model.qpos_spring, j),
        home=home,
        damping=0.0 if "damper" in off else _per_dof(model.dof_damping, dofs),
        friction=0.0 if "frictionloss" in off else _per_dof(model.dof_frictionloss, dofs),
        armature=_per_dof(model.dof_armature, dofs),
        lower=lower,
        upper=upper,
        effort=np.abs(model.jnt_actfrcrange[j]).max() if scalar and model.jnt_actfrclimited[j] else np.inf,
    )


def _per_dof(values: np.ndarray, dofs: slice) -> np.ndarray:
    """Numbers of a joint's velocities; the three (or two times three) of a quaternion joint are equal in MJCF."""
    return np.asarray(values[dofs], float)


def disabled(model: Model) -> set[str]:
    """What <option><flag .../></option> switches off."""
    mujoco = engine()

    bits = {name.removeprefix("mjDSBL_").lower(): int(bit) for name, bit in mujoco.mjtDisableBit.__members__.items()}
    off = {name for name, bit in bits.items() if name != "mjndisable" and model.opt.disableflags & bit}
    if "passive" in off:  # the name for both in older versions of MuJoCo
        off = off - {"passive"} | {"spring", "damper"}
    if "constraint" in off:
        off |= {"equality", "frictionloss"}
    return off


def _turn(axis: np.ndarray, angle: float) -> np.ndarray:
    return np.append(math.cos(angle / 2), math.sin(angle / 2) * axis)
