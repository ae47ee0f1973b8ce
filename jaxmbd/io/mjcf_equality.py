"""Equality constraints of a compiled MuJoCo model: which joints follow others, which close loops, which are left.

A joint equality says q1 - q1_0 = c0 + c1 (q2 - q2_0) + ... + c4 (q2 - q2_0)^4. It is a coupling here, exact where
MuJoCo's is a soft constraint. Any number of them, in any order, reduces to followers of independent leaders, as long as
nobody has to lead what follows on a curve.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import Polynomial

from jaxmbd import joint_kinds as kinds
from jaxmbd.builder import Builder
from jaxmbd.io.mjcf_engine import Model, engine
from jaxmbd.io.mjcf_names import Names
from jaxmbd.io.mjcf_tree import disabled
from jaxmbd.pose import Pose

CONNECT, WELD, JOINT = range(3)  # mjtEq


@dataclasses.dataclass(frozen=True)
class Loop:
    """A connect or weld between two bodies or sites, by name, and where it sits on each of them."""

    name: str
    kind: str
    first: str
    second: str
    in_first: Pose
    in_second: Pose

    def __str__(self) -> str:
        return f"{self.kind} of '{self.first}' with '{self.second}'"


@dataclasses.dataclass
class Equalities:
    """Followers as {follower: (leader, polynomial)}, loops, and lines about those that are not taken over."""

    couplings: dict[str, tuple[str, Polynomial]] = dataclasses.field(default_factory=dict)
    loops: list[Loop] = dataclasses.field(default_factory=list)
    doubts: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def equalities_of(model: Model, names: Names) -> Equalities:
    """Sort the equality constraints of a model."""
    mujoco = engine()

    result = Equalities()
    off = "equality" in disabled(model)
    for i in range(model.neq):
        kind, first, second = int(model.eq_type[i]), int(model.eq_obj1id[i]), int(model.eq_obj2id[i])
        label = mujoco.mjtEq(kind).name.removeprefix("mjEQ_").lower()
        name = mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_EQUALITY, i) or f"equality{i}"
        if off or not model.eq_active0[i]:
            result.notes.append(f"{label} equality '{name}' is switched off in the file: left out")
        elif kind in (CONNECT, WELD):
            places = names.sites if model.eq_objtype[i] == mujoco.mjtObj.mjOBJ_SITE else names.bodies
            in_first, in_second = Pose(), Pose()
            if model.eq_objtype[i] != mujoco.mjtObj.mjOBJ_SITE:
                data = model.eq_data[i]
                if kind == CONNECT:
                    in_first, in_second = Pose(data[:3]), Pose(data[3:6])
                else:
                    in_first = Pose(data[3:6], data[6:10])
            result.loops.append(Loop(name, label, places[first], places[second], in_first, in_second))
        elif kind == JOINT:
            _take_joint(model, names, i, name, result)
        else:
            result.doubts.append(f"{label} equality '{name}' is not taken over")
    return result


def close(b: Builder, loops: list[Loop]) -> None:
    """Declare rigid closures: a connect is a ball joint, a weld a fixed one; frames `NAME:first` and `NAME:second`."""
    for loop in loops:
        ends = f"{loop.name}:first", f"{loop.name}:second"
        b.frame(ends[0], on=loop.first, pose=loop.in_first)
        b.frame(ends[1], on=loop.second, pose=loop.in_second)
        b.closure(loop.name, kinds.spherical() if loop.kind == "connect" else kinds.fixed(), *ends)


def _take_joint(model: Model, names: Names, i: int, name: str, result: Equalities) -> None:
    first, second, c = int(model.eq_obj1id[i]), int(model.eq_obj2id[i]), model.eq_data[i, :5]
    follower = names.joints[first]
    if second < 0:
        result.doubts.append(f"joint equality '{name}' holds '{follower}' at one value: not taken over, it moves")
        return
    leader = names.joints[second]
    q0 = [float(model.qpos0[model.jnt_qposadr[j]]) for j in (first, second)]
    relation = Polynomial(c)(Polynomial([-q0[1], 1.0])) + q0[0]
    problem = couple(result.couplings, follower, leader, relation)
    if problem:
        result.doubts.append(f"joint equality '{name}' ('{follower}' and '{leader}') {problem}")


def couple(couplings: dict[str, tuple[str, Polynomial]], follower: str, leader: str, relation: Polynomial) -> str:
    """Add q_follower = relation(q_leader), keeping every leader independent; says why where it cannot."""
    line = Polynomial([0.0, 1.0])
    head, outer = couplings.get(follower, (follower, line))
    base, inner = couplings.get(leader, (leader, line))
    composed = relation(inner).trim()  # q_follower = composed(base), and = outer(head)
    if head == base:
        same = np.allclose((composed - outer).coef, 0.0, rtol=0.0, atol=1e-9 * max(1.0, np.abs(composed.coef).max()))
        return "says again what others say" if same else "contradicts others: not taken over"
    outer = outer.trim()
    if outer.degree() == 0:
        return "ties a joint that others hold at one value: not taken over"
    if outer.degree() > 1:
        return "ties a joint that follows another on a curve: not taken over"
    of_head = ((composed - outer.coef[0]) / outer.coef[1]).trim()
    for name, (old, to_head) in list(couplings.items()):
        if old == head:
            couplings[name] = (base, to_head(of_head).trim())
    couplings[head] = (base, of_head)
    return ""


class Curve(eqx.Module):
    """A polynomial of a leader's coordinate, by its coefficients from the constant upwards."""

    coefficients: Float[Array, " degree_plus_1"]

    def __call__(self, x: Float[Array, ""]) -> Float[Array, ""]:
        value = jnp.zeros_like(x)
        for k in reversed(range(len(self.coefficients))):
            value = value * x + self.coefficients[k]
        return value
