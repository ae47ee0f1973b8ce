"""What a finished declaration must satisfy: names exist, and joints, couplings and constraints are sound."""

from __future__ import annotations

from typing import Any

from jaxmbd.joints import Joint, Mapped, Quaternion, Screws
from jaxmbd.topology import JointEntry
from jaxmbd.values import shape

Declared = dict[str, Any]


def quasi(joint: Joint) -> bool:
    """Whether a joint has speeds that are no rates of its coordinates."""
    return isinstance(joint, Mapped) and joint.speeds is not None


def check_names(
    bodies: Declared, joints: Declared, frames: Declared, constraints: Declared, index: dict[str, int]
) -> None:
    """Joints, frames and constraints name things that exist."""
    for name, j in joints.items():
        for end in ("parent", "child"):
            if j[end] not in index:
                raise ValueError(
                    f"Joint {name!r}: its {end} {j[end]!r} is no body. Bodies: world, {', '.join(bodies)}."
                )
        if j["parent"] == j["child"]:
            raise ValueError(f"Joint {name!r} joins {j['child']!r} to itself; expected two bodies.")
    for name, (on, _) in frames.items():
        if on not in index:
            raise ValueError(f"Frame {name!r} is on {on!r}, which is no body.")
    check_constraints(constraints, {*index, *frames}, joints)


def check_tree(
    bodies: Declared, joints: Declared, constraints: Declared, couplings: Declared, drives: Declared
) -> None:
    """Every body has exactly one joint towards the base; couplings and constraints are of joints in the tree."""
    inboard = {j["child"]: name for name, j in joints.items()}
    rooted = {"world"}
    for body in bodies:
        if body not in inboard:
            raise ValueError(
                f"Body {body!r} is the child of no joint. Attach it, with mb.free() if it floats "
                "or mb.fixed() if it does not."
            )
        path, at = [body], joints[inboard[body]]["parent"]
        while at not in rooted and at in inboard:
            if at in path:
                raise ValueError(f"Bodies {' - '.join([*path, at])} form a circle; a tree must start at 'world'.")
            path.append(at)
            at = joints[inboard[at]]["parent"]
        rooted.update(path)
    for name, (_, _, used) in constraints.items():
        for joint in used:
            if joint not in joints:
                raise ValueError(f"Constraint {name!r}: joint {joint!r} is cut; declare it with cut=False.")
    for follower, (leader, ratio, offset) in couplings.items():
        for joint in (follower, leader):
            if joint not in joints:
                raise ValueError(f"The coupling of {follower!r} to {leader!r} names no joint {joint!r}.")
            record = joints[joint]["joint"]
            if record.nv != 1 or record.nq != 1 or quasi(record):
                raise ValueError(f"The coupling of {follower!r} to {leader!r}: {joint!r} must have one freedom.")
        if follower in drives:
            raise ValueError(f"Joint {follower!r} follows {leader!r} and cannot be driven; drive {leader!r}.")
        if leader == follower or leader in couplings:
            raise ValueError(
                f"The coupling of {follower!r}: its leader {leader!r} follows another joint; "
                "name the joint at the head."
            )
        for value, label in ((ratio, "ratio"), (offset, "offset")):
            if shape(value) != ():
                raise ValueError(f"The coupling of {follower!r}: {label} must be one number.")


def check_constraints(constraints: dict[str, Any], frames: set[str], joints: dict[str, dict[str, Any]]) -> None:
    """Constraints act on frames that exist and on joints of one freedom."""
    for name, (_, on, of) in constraints.items():
        for frame in on:
            if frame not in frames:
                raise ValueError(f"Constraint {name!r} names no link or frame {frame!r}.")
        for joint in of:
            record = joints[joint]["joint"] if joint in joints else None
            if record is None or record.nq != 1 or record.nv != 1 or quasi(record):
                raise ValueError(
                    f"Constraint {name!r}: {joint!r} is no joint of one freedom; expected one of "
                    f"{', '.join(n for n, j in joints.items() if j['joint'].nq == 1)}."
                )


def joint_entry(name: str, declared: dict[str, Any], index: dict[str, int]) -> JointEntry:
    """The static part of a declared joint."""
    joint = declared["joint"]
    return JointEntry(
        name=name,
        kind=joint.kind,
        parent=index[declared["parent"]],
        child=index[declared["child"]],
        nq=joint.nq,
        nv=joint.nv,
        turning=joint.turning if isinstance(joint, Screws) else None,
        helical=joint.helical if isinstance(joint, Screws) else (),
        translating=joint.translating if isinstance(joint, Quaternion) else None,
        quasi=quasi(joint),
    )
