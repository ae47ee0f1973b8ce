"""From a graph of joints to a tree and cut joints.

Where a body is the child of several joints, loops are closed. One joint stays in the tree, the others are cut and
become closures. A joint that carries what a cut joint cannot (a drive, springs, damping, friction, armature), or whose
coordinates a cut joint would have to search for, stays; then the joint with the fewest freedoms, since a cut joint
costs 6 less its freedoms in rows; then the one declared first. A body that only joints towards the world lead to is
reached against their direction: hinges and slides are turned round (parent and child change places, the axis changes
sign), their coordinate keeps its meaning.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np

from jaxmbd.closures import cut_joint, has_closed_form
from jaxmbd.joints import Screws
from jaxmbd.values import concrete

_CARRIED = ("stiffness", "damping", "friction", "armature")


def span(bodies: list[str], joints: dict[str, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The joints of a spanning tree, in declaration order, and the names of the joints that are cut.

    Args:
      joints: declared joints; `cut` is True or False where the user chose, None where the program may.

    Raises: ValueError when a joint would have to be cut that cannot be, or turned round that cannot be.
    """
    count: dict[str, int] = {}
    for j in joints.values():
        count[j["child"]] = count.get(j["child"], 0) + 1
    if all(n == 1 for n in count.values()) and not any(j["cut"] for j in joints.values()) and "world" not in count:
        return joints, []
    order = sorted(
        (name for name, j in joints.items() if not j["cut"]),
        key=lambda name: (joints[name]["cut"] is None and _readily(joints[name]), joints[name]["joint"].nv),
    )
    names = list(joints)
    reached, tree = {"world"}, {}
    while True:
        # forward joints first; among them by the order above, at the earliest level at which a body can be reached
        step = next((n for n in order if joints[n]["parent"] in reached and joints[n]["child"] not in reached), None)
        if step is None:
            step = next(
                (n for n in order if joints[n]["child"] in reached and joints[n]["parent"] not in reached), None
            )
            if step is None:
                break
            tree[step] = _turned_round(step, joints[step])
        else:
            tree[step] = joints[step]
        reached.add(tree[step]["child"])
    closed = [name for name in names if name not in tree and {joints[name]["parent"], joints[name]["child"]} <= reached]
    for name in closed:
        reason = _cuttable(joints[name])
        if reason is not None:
            raise ValueError(
                f"Joint {name!r} closes a loop and would be cut, but {reason}. Cut another joint of the loop "
                "with cut=True."
            )
    left = {name: tree[name] if name in tree else joints[name] for name in names if name not in closed}
    return left, closed


def _readily(declared: dict[str, Any]) -> bool:
    return _cuttable(declared) is None and has_closed_form(declared["joint"])


def _cuttable(declared: dict[str, Any]) -> str | None:
    """Why a joint cannot be cut; None when it can."""
    if declared["driven"]:
        return "it is driven; declare it as a closure of a driven joint"
    for label in _CARRIED:
        known = concrete(declared[label])
        if known is None or np.any(known):
            return f"it has {label}, which a cut joint does not carry"
    try:
        cut_joint(declared["joint"])
    except ValueError as error:
        return f"it cannot: {error}"
    return None


def _turned_round(name: str, declared: dict[str, Any]) -> dict[str, Any]:
    joint = declared["joint"]
    if not isinstance(joint, Screws) or joint.nv > 1 or np.any(concrete(joint.offset_position)):
        raise ValueError(
            f"Joint {name!r} ({joint.kind}) leads from {declared['parent']!r} to {declared['child']!r}, against the "
            "tree; only hinges, slides and screws can be turned round. Swap its parent and child."
        )
    swapped = {"parent": declared["child"], "child": declared["parent"]}
    swapped |= {"in_parent": declared["in_child"], "in_child": declared["in_parent"]}
    return {**declared, **swapped, "joint": eqx.tree_at(lambda j: j.axis, joint, -joint.axis)}


def closed(
    loops: list[str], joints: dict[str, dict[str, Any]], frames: dict[str, Any], constraints: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Frames and constraints with those of the joints that are cut: `NAME:parent`, `NAME:child`, and the closure."""
    frames, own = dict(frames), {}
    for name in loops:
        j = joints[name]
        ends = f"{name}:parent", f"{name}:child"
        for end, on, pose in zip(ends, (j["parent"], j["child"]), (j["in_parent"], j["in_child"]), strict=True):
            if end in frames:
                raise ValueError(f"Joint {name!r} is cut and needs the frame {end!r}, but that name is taken already.")
            frames[end] = on, pose
        if name in constraints:
            raise ValueError(f"The constraint {name!r} has the name of a joint that is cut; give it another.")
        own[name] = cut_joint(j["joint"]), ends, ()
    return frames, own | constraints
