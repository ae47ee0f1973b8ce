"""A URDF file to a System: one body a link, one joint a joint, in file order.

The root link is placed in the world by a joint named "root": fixed, or free with `floating=True`. A root link that is
itself named "world" is the inertial frame and becomes no body; with `floating=True` the one link that is fixed to it is
freed instead. Everything taken as default, ignored or implausible is a line of `system.report`; what leaves the
dynamics undefined is an `UrdfError` that lists all of it.
"""

import collections
import dataclasses
import os
import warnings
from typing import Literal

import numpy as np

from jaxmbd import joint_kinds as kinds
from jaxmbd.builder import Builder
from jaxmbd.io import urdf_tree, urdf_xml
from jaxmbd.io.urdf_doubts import doubt_inertia
from jaxmbd.io.urdf_records import Defect, Findings, Joint, LoopJoint, Model, Origin, UrdfError
from jaxmbd.pose import Pose
from jaxmbd.system import System

WORLD = "world"
BASE_JOINT = "root"


def load_urdf(
    path: str | os.PathLike[str],
    floating: bool = False,
    mimic: Literal["eliminate", "independent"] = "eliminate",
    loops: Literal["closed", "open"] = "closed",
    strict: bool = True,
) -> System:
    """The System that a URDF file describes; `load` explains the arguments.

    Raises:
        UrdfError: the dynamics is not defined; every defect is listed with its element, name and line.
    """
    found = Findings()
    model = urdf_xml.read(path, found)
    urdf_tree.check(model, found)
    mimics = urdf_tree.check_mimics(model.joints, found)
    _check_names(model, floating, found)
    fatal = [defect for defect in found.defects if strict or defect.remedy is None]
    tree = None if fatal else urdf_tree.prune(model, mimics, found.notes)
    if tree is None:
        raise UrdfError(model.file, tuple(fatal or found.defects))
    for defect in found.defects:
        found.doubts.append(f"{defect}: {defect.remedy}")
    tree = _without_idle_joints(tree, model.file, mimic, strict, found)
    base, joints = _base(tree, model.file, floating, found)
    for link in tree.links:
        doubt_inertia(link, found)
    if found.doubts:
        warnings.warn("\n  ".join([f"{model.file} is loaded, but:", *found.doubts]), stacklevel=3)

    b = Builder()
    b.note(_summary(model, tree))
    _add_links(b, tree, found)
    if base:
        _add_base(b, base, tree, floating)
    for joint in joints:
        _add_joint(b, joint)
    _add_mimics(b, tree, mimic, found)
    for loop in tree.loops:
        _add_loop(b, loop, loops, found)
    for line in (*found.doubts, *found.notes):
        b.note(line)
    if model.ignored:
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(model.ignored.items()))
        b.note(f"ignored, no part of the dynamics: {counted}")
    try:
        return b.build()
    except ValueError as error:
        raise UrdfError(model.file, (Defect(1, "<robot>", str(error), None),)) from error


def _check_names(model: Model, floating: bool, found: Findings) -> None:
    for joint in model.joints:
        if joint.child == WORLD:
            text = f"link '{WORLD}' hangs on it, but that name means the inertial frame; rename the link"
            found.defect(joint.line, str(joint), text)
        if floating and joint.name == BASE_JOINT:
            text = "floating=True adds a joint of this name; rename it, or load with floating=False"
            found.defect(joint.line, str(joint), text)


def _without_idle_joints(
    tree: urdf_tree.TreeModel, file: str, mimic: str, strict: bool, found: Findings
) -> urdf_tree.TreeModel:
    """The tree with every joint fixed that moves no inertia; with `strict` there must be none."""
    text = "moves neither mass nor inertia, so forces on it have no finite answer; give its links mass or fix it"
    idle = urdf_tree.idle_joints(tree, mimic == "eliminate")
    defects = [Defect(joint.line, str(joint), text, "it is fixed") for joint in idle]
    if strict and defects:
        raise UrdfError(file, tuple(defects))
    found.doubts.extend(f"{defect}: {defect.remedy}" for defect in defects)
    names = {joint.name for joint in idle}
    return dataclasses.replace(
        tree,
        joints=tuple(dataclasses.replace(j, type="fixed") if j.name in names else j for j in tree.joints),
        mimics={name: m for name, m in tree.mimics.items() if not names & {name, m.leader}},
    )


def _base(tree: urdf_tree.TreeModel, file: str, floating: bool, found: Findings) -> tuple[str, tuple[Joint, ...]]:
    """The link that the base joint carries ("" for none) and the joints that stay."""
    if tree.root != WORLD:
        return tree.root, tree.joints
    if not floating:
        return "", tree.joints
    first = [joint for joint in tree.joints if joint.parent == WORLD]
    if len(first) == 1 and first[0].type == "floating":
        found.note(first[0].line, str(first[0]), "is a free joint on 'world' already, floating=True adds none")
        return "", tree.joints
    if len(first) == 1 and first[0].type == "fixed":
        was = first[0].origin.position
        text = f"becomes the free joint '{BASE_JOINT}' of link '{first[0].child}', whose place was {was} in the file"
        found.note(first[0].line, str(first[0]), text)
        return first[0].child, tuple(joint for joint in tree.joints if joint is not first[0])
    listed = ", ".join(f"'{joint.name}' ({joint.type})" for joint in first) or "no joint"
    text = (
        f"the root link 'world' is the inertial frame and carries {listed}; floating=True needs one fixed joint there. "
        "Rename the link to let it float, or load with floating=False"
    )
    line = next(link.line for link in tree.links if link.name == WORLD)
    raise UrdfError(file, (Defect(line, f"link '{WORLD}'", text, None),))


def _add_links(b: Builder, tree: urdf_tree.TreeModel, found: Findings) -> None:
    for link in tree.links:
        inertial = link.inertial
        if link.name == WORLD:
            if inertial is not None:
                found.note(link.line, str(link), "is the inertial frame, its mass and inertia are left out")
        elif inertial is None:
            b.body(link.name)
        else:
            b.body(link.name, inertial.mass, inertial.com, inertial.tensor, doubt=False)


def _add_mimics(b: Builder, tree: urdf_tree.TreeModel, mimic: str, found: Findings) -> None:
    for follower, relation in tree.mimics.items():
        said = f"= {relation.ratio!r} * '{relation.leader}' + {relation.offset!r}"
        if mimic == "eliminate":
            b.couple(follower, relation.leader, ratio=relation.ratio, offset=relation.offset)
            found.note(relation.line, f"joint '{follower}'", f"mimic eliminated: '{follower}' {said}")
        else:
            found.note(relation.line, f"joint '{follower}'", f'mimic="independent": it stays free of {said[2:]}')


def _add_base(b: Builder, child: str, tree: urdf_tree.TreeModel, floating: bool) -> None:
    taken = {joint.name for joint in tree.joints}
    name = BASE_JOINT if BASE_JOINT not in taken else f"{BASE_JOINT}_of_{child}"
    b.joint(name, kinds.free() if floating else kinds.fixed(), parent=WORLD, child=child)


def _add_joint(b: Builder, joint: Joint) -> None:
    placed = {"parent": joint.parent, "child": joint.child, "in_parent": _pose(joint.origin)}
    if joint.type == "fixed":
        b.joint(joint.name, kinds.fixed(), **placed)
        return
    constructors = {
        "revolute": kinds.revolute,
        "continuous": kinds.continuous,
        "prismatic": kinds.prismatic,
        "planar": kinds.planar,  # the axis is the normal of the plane
        "floating": lambda _: kinds.free(),
    }
    b.joint(
        joint.name,
        constructors[joint.type](joint.axis),
        **placed,
        damping=joint.damping,
        friction=joint.friction,
        lower=joint.lower,
        upper=joint.upper,
        effort=joint.effort,
        speed=joint.speed,
    )


def _add_loop(b: Builder, loop: LoopJoint, loops: str, found: Findings) -> None:
    said = f"{loop.type} between '{loop.links[0]}' and '{loop.links[1]}'"
    if loops == "open":
        found.note(loop.line, str(loop), f'loops="open": left out ({said})')
        return
    constructors = {"revolute": kinds.revolute, "continuous": kinds.continuous, "prismatic": kinds.prismatic}
    fixed = {"fixed": kinds.fixed, "spherical": kinds.spherical}
    ends = []
    for label, link, origin in zip(("link1", "link2"), loop.links, loop.origins, strict=True):
        ends.append(link if origin == Origin() else f"{loop.name}:{label}")
        if origin != Origin():
            b.frame(ends[-1], link, _pose(origin))
    joint = fixed[loop.type]() if loop.type in fixed else constructors[loop.type](loop.axis)
    b.closure(loop.name, joint, *ends)
    found.note(loop.line, str(loop), f"closes a loop, {said}: a constraint without coordinates")


def _pose(origin: Origin) -> Pose:
    return Pose(np.array(origin.position), np.array(origin.quaternion))


def _summary(model: Model, tree: urdf_tree.TreeModel) -> str:
    kinds_ = collections.Counter(joint.type for joint in tree.joints)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds_.items())
    damped = sum(1 for joint in tree.joints if joint.damping)
    rubbing = sum(1 for joint in tree.joints if joint.friction)
    return (
        f"{model.file}: robot '{model.name}', root link '{tree.root}', {len(tree.links)} links, joints: "
        f"{listed or 'none'}; {damped} with damping, {rubbing} with dry friction"
    )
