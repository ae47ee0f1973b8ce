"""Equality constraints of a compiled MuJoCo model: which joints follow others, which close loops, which are left.

A joint equality says q1 - q1_0 = c0 + c1 (q2 - q2_0) + ... + c4 (q2 - q2_0)^4. A linear one is a coupling here, exact
where MuJoCo's is a soft constraint. Any number of them, in any order, reduces to followers of independent leaders.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxmbd.io.mjcf_engine import Model, engine
from jaxmbd.io.mjcf_names import Names
from jaxmbd.io.mjcf_tree import disabled

CONNECT, WELD, JOINT = range(3)  # mjtEq


@dataclasses.dataclass(frozen=True)
class Loop:
    """A connect or weld between two bodies or sites, by name; `index` is MuJoCo's."""

    index: int
    kind: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.kind} of '{self.first}' with '{self.second}'"


@dataclasses.dataclass
class Equalities:
    """Followers as {follower: (leader, ratio, offset)}, loops, and lines about those that are not taken over."""

    couplings: dict[str, tuple[str, float, float]] = dataclasses.field(default_factory=dict)
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
            result.loops.append(Loop(i, label, places[first], places[second]))
        elif kind == JOINT:
            _take_joint(model, names, i, name, result)
        else:
            result.doubts.append(f"{label} equality '{name}' is not taken over")
    return result


def _take_joint(model: Model, names: Names, i: int, name: str, result: Equalities) -> None:
    first, second, c = int(model.eq_obj1id[i]), int(model.eq_obj2id[i]), model.eq_data[i, :5]
    follower = names.joints[first]
    if second < 0:
        result.doubts.append(f"joint equality '{name}' holds '{follower}' at one value: not taken over, it moves")
        return
    leader = names.joints[second]
    if np.any(c[2:5]):
        relation = " + ".join(f"{float(x)!r} x^{k}" for k, x in enumerate(c) if x)
        text = f"joint equality '{name}' ('{follower}' follows '{leader}' by {relation}) is not linear: not taken over"
        result.doubts.append(text)
        return
    q0 = [float(model.qpos0[model.jnt_qposadr[j]]) for j in (first, second)]
    problem = couple(result.couplings, follower, leader, float(c[1]), q0[0] + float(c[0]) - float(c[1]) * q0[1])
    if problem:
        result.doubts.append(f"joint equality '{name}' ('{follower}' and '{leader}') {problem}")


def couple(
    couplings: dict[str, tuple[str, float, float]], follower: str, leader: str, ratio: float, offset: float
) -> str:
    """Add q_follower = ratio * q_leader + offset, keeping every leader independent; says why where it cannot."""
    head, r1, o1 = couplings.get(follower, (follower, 1.0, 0.0))
    base, r2, o2 = couplings.get(leader, (leader, 1.0, 0.0))
    slope, shift = ratio * r2, ratio * o2 + offset  # q_follower = slope * base + shift, and = r1 * head + o1
    if head == base:
        same = np.isclose(r1, slope, rtol=1e-9, atol=0.0) and np.isclose(o1, shift, rtol=1e-9, atol=1e-12)
        return "says again what others say" if same else "contradicts others: not taken over"
    if r1 == 0.0:
        return "ties a joint that others hold at one value: not taken over"
    slope, shift = slope / r1, (shift - o1) / r1  # head = slope * base + shift
    for name, (old, r, o) in list(couplings.items()):
        if old == head:
            couplings[name] = (base, r * slope, r * shift + o)
    couplings[head] = (base, slope, shift)
    return ""
