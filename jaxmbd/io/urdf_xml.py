"""URDF elements to plain records: read numbers, take URDF's defaults, collect every defect with its file line.

Nothing here knows dynamics. Elements without a dynamic meaning are only counted.

Source: the URDF XML reference of the Robot Operating System (ROS wiki, urdf/XML): attribute names, defaults, rpy order.
"""

import collections
import math
import os
import pathlib
import re
from typing import NamedTuple

import numpy as np
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  (a compiled module without type stubs)

from jaxmbd.io.quaternions import quaternion_from_rpy, rotation_matrix
from jaxmbd.io.urdf_file import parse
from jaxmbd.io.urdf_records import (
    JOINT_TYPES,
    LOOP_TYPES,
    Findings,
    Inertial,
    Joint,
    Link,
    LoopJoint,
    Mimic,
    Model,
    Origin,
)
from jaxmbd.io.xml_file import tag

LARGEST = 1e100  # whose square is still a number
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE | re.ASCII)


def read(path: str | os.PathLike[str], found: Findings) -> Model:
    """All links and joints of a URDF file, in file order; defects, doubts and notes go into `found`."""
    root = parse(path)
    links, joints, loops, ignored = [], [], [], collections.Counter()
    for element in root:
        kind = tag(element)
        if kind not in ("link", "joint", "loop_joint"):
            ignored[kind] += 1
            continue
        name = element.get("name", "").strip()
        if not name:
            found.defect(element.sourceline, f"<{kind}>", "has no name, but every link and joint needs one", "dropped")
            continue
        if kind == "loop_joint":
            loops.append(_loop_joint(element, name, found))
            continue
        if kind == "link":
            links.append(_link(element, name, found))
            known = ("inertial",)
        else:
            joints.append(_joint(element, name, found))
            known = ("origin", "parent", "child", "axis", "dynamics", "limit", "mimic")
        ignored.update(tag(part) for part in element if tag(part) not in known)
    if not links:
        found.defect(root.sourceline, "<robot>", "holds no usable <link>; a robot needs at least one")
    return Model(pathlib.Path(path).name, root.get("name", ""), tuple(links), tuple(joints), tuple(loops), ignored)


class _Scope(NamedTuple):
    """The link or joint, or part of it, that is being read, and what becomes of it with `strict=False` if it is bad."""

    owner: str
    found: Findings
    remedy: str

    def defect(self, element: etree._Element, text: str) -> None:
        self.found.defect(element.sourceline, self.owner, text, self.remedy)

    def note(self, element: etree._Element, text: str) -> None:
        self.found.note(element.sourceline, self.owner, text)

    def part(self, element: etree._Element, kind: str) -> etree._Element | None:
        """The one child element of a kind, or None."""
        parts = [part for part in element if tag(part) == kind]
        if len(parts) > 1:
            lines = ", ".join(str(part.sourceline) for part in parts)
            self.defect(parts[1], f"has {len(parts)} <{kind}> elements (lines {lines}), expected one")
        return parts[0] if parts else None

    def numbers(
        self, element: etree._Element | None, key: str, default: tuple[float, ...], infinite: bool = False
    ) -> tuple[float, ...]:
        """The numbers of an attribute, as many as `default` has; `default` where it is absent, or bad (a defect)."""
        text = None if element is None else element.get(key)
        if element is None or text is None:
            return default
        words = text.split()
        values = tuple(float(w) for w in words if _NUMBER.fullmatch(w) or _INFINITE.fullmatch(w))
        if len(words) == len(values) == len(default) and (infinite or all(abs(x) < LARGEST for x in values)):
            return values
        expected = "one finite number" if len(default) == 1 else f"{len(default)} finite numbers separated by blanks"
        hint = "; it looks like xacro, which must be expanded first" if "$" in text else ""
        self.defect(element, f'<{tag(element)} {key}="{text[:80]}">: expected {expected}{hint}')
        return default

    def number(self, element: etree._Element | None, key: str, default: float, infinite: bool = False) -> float:
        return self.numbers(element, key, (default,), infinite)[0]


def _origin(element: etree._Element, scope: _Scope) -> Origin:
    return _pose(scope.part(element, "origin"), scope)


def _pose(part: etree._Element | None, scope: _Scope) -> Origin:
    position = scope.numbers(part, "xyz", (0.0, 0.0, 0.0))
    if part is None or part.get("quat_xyzw") is None:
        return Origin(position, quaternion_from_rpy(*scope.numbers(part, "rpy", (0.0, 0.0, 0.0))))
    x, y, z, w = scope.numbers(part, "quat_xyzw", (0.0, 0.0, 0.0, 1.0))
    size = math.hypot(x, y, z, w)
    if size == 0.0 or part.get("rpy") is not None:
        scope.defect(part, f"<{tag(part)}> has a zero quat_xyzw, or rpy beside it; expected one rotation")
        return Origin(position)
    return Origin(position, (w / size, x / size, y / size, z / size))


def _link(element: etree._Element, name: str, found: Findings) -> Link:
    scope, line = _Scope(f"link '{name}'", found, "the inertial is dropped"), element.sourceline
    before = len(found.defects)
    part = scope.part(element, "inertial")
    if part is None:
        return Link(name, line, None)
    origin = _origin(part, scope)
    mass_part, inertia_part = scope.part(part, "mass"), scope.part(part, "inertia")
    if mass_part is None or mass_part.get("value") is None:
        scope.defect(part, '<inertial> gives no mass, expected <mass value="...">')
    mass = scope.number(mass_part, "value", 0.0)
    if mass < 0.0:
        scope.defect(part, f"the mass is {mass!r} kg, expected zero or more")
    if inertia_part is None:
        scope.note(part, "no <inertia>: read as a point mass")
    elif lacking := [key for key in ("ixx", "iyy", "izz") if inertia_part.get(key) is None]:
        scope.defect(inertia_part, f"<inertia> lacks {', '.join(lacking)}, expected all three moments")
    xx, xy, xz, yy, yz, zz = (
        scope.number(inertia_part, key, 0.0) for key in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
    )
    if len(found.defects) > before:
        return Link(name, line, None)
    rotation = rotation_matrix(origin.quaternion)
    tensor = rotation @ np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]) @ rotation.T
    return Link(name, line, Inertial(mass, origin.position, tensor))


def _joint(element: etree._Element, name: str, found: Findings) -> Joint:
    scope = _Scope(f"joint '{name}'", found, "the joint is dropped")
    before = len(found.defects)
    kind = element.get("type", "")
    if kind not in JOINT_TYPES:
        said = f"type '{kind}' is not known" if kind else "has no type"
        scope.defect(element, f"{said}, expected one of {', '.join(JOINT_TYPES)}")
    ends = {}
    for end in ("parent", "child"):
        part = scope.part(element, end)
        ends[end] = "" if part is None else part.get("link", "").strip()
        if not ends[end]:
            scope.defect(element, f'names no {end} link, expected <{end} link="...">')
    origin = _origin(element, scope)
    axis = (1.0, 0.0, 0.0) if kind in ("fixed", "floating") else _axis(element, scope)
    usable = len(found.defects) == before
    damping, friction = _dynamics(element, scope._replace(remedy="its dynamics are dropped"))
    lower, upper, effort, speed = _limits(element, kind, scope._replace(remedy="its limits are dropped"))
    return Joint(
        name=name,
        line=element.sourceline,
        type=kind,
        parent=ends["parent"],
        child=ends["child"],
        usable=usable,
        origin=origin,
        axis=axis,
        damping=damping,
        friction=friction,
        lower=lower,
        upper=upper,
        effort=effort,
        speed=speed,
        mimic=_mimic(element, scope._replace(remedy="its mimic is dropped")),
    )


def _loop_joint(element: etree._Element, name: str, found: Findings) -> LoopJoint:
    scope = _Scope(f"loop joint '{name}'", found, "the loop joint is dropped")
    before = len(found.defects)
    kind = element.get("type", "")
    if kind not in LOOP_TYPES:
        said = f"type '{kind}' is not known" if kind else "has no type"
        scope.defect(element, f"{said}, expected one of {', '.join(LOOP_TYPES)}")
    ends = []
    for end in ("link1", "link2"):
        part = scope.part(element, end)
        link = "" if part is None else part.get("link", "").strip()
        if not link:
            scope.defect(element, f'names no {end}, expected <{end} link="..." xyz="0 0 0" rpy="0 0 0"/>')
        ends.append((link, _pose(part, scope)))
    axis = _axis(element, scope) if kind in ("revolute", "continuous", "prismatic") else (1.0, 0.0, 0.0)
    (first, at_first), (second, at_second) = ends
    usable = len(found.defects) == before
    return LoopJoint(name, element.sourceline, kind, (first, second), (at_first, at_second), axis, usable)


def _axis(element: etree._Element, scope: _Scope) -> tuple[float, ...]:
    """The unit axis, (1, 0, 0) by URDF's rule where none is given."""
    part = scope.part(element, "axis")
    if part is None or part.get("xyz") is None:
        scope.note(element, "no <axis>: (1, 0, 0) by URDF's rule")
        return (1.0, 0.0, 0.0)
    axis = scope.numbers(part, "xyz", (1.0, 0.0, 0.0))
    size = math.hypot(*axis)
    if size == 0.0:
        scope.defect(part, "the axis is zero, expected a direction")
        return (1.0, 0.0, 0.0)
    unit = tuple(x / size for x in axis)
    if abs(size - 1.0) > 1e-5:  # more than the rounding of a unit vector that was written with six digits
        scope.note(part, f"axis {axis} of length {size:.6g} normalised to {unit}")
    return unit


def _dynamics(element: etree._Element, scope: _Scope) -> tuple[float, float]:
    part = scope.part(element, "dynamics")
    damping, friction = scope.number(part, "damping", 0.0), scope.number(part, "friction", 0.0)
    for key, value in (("damping", damping), ("friction", friction)):
        if value < 0.0:
            scope.defect(part, f"its {key} is {value!r}, expected zero or more: it would feed energy in")
            return 0.0, 0.0
    return damping, friction


def _limits(element: etree._Element, kind: str, scope: _Scope) -> tuple[float, float, float, float]:
    """lower, upper, effort, speed; infinite where not given. An empty range and a bound of zero are placeholders."""
    before = len(scope.found.defects)
    part = None if kind == "fixed" else scope.part(element, "limit")
    lower, upper = (scope.number(part, key, 0.0, infinite=True) for key in ("lower", "upper"))
    effort, speed = (scope.number(part, key, math.inf, infinite=True) for key in ("effort", "velocity"))
    if part is None or len(scope.found.defects) > before:
        return -math.inf, math.inf, math.inf, math.inf
    if kind not in ("revolute", "prismatic"):
        lower, upper = -math.inf, math.inf
    if lower >= upper:
        scope.note(part, f"limits lower = {lower!r}, upper = {upper!r} leave no range: read as not given")
        lower, upper = -math.inf, math.inf
    if effort <= 0.0 or speed <= 0.0:
        scope.note(part, f"limits effort = {effort!r}, velocity = {speed!r}: zero or less is read as not given")
    return lower, upper, effort if effort > 0.0 else math.inf, speed if speed > 0.0 else math.inf


def _mimic(element: etree._Element, scope: _Scope) -> Mimic | None:
    before = len(scope.found.defects)
    part = scope.part(element, "mimic")
    if part is None:
        return None
    leader = part.get("joint", "").strip()
    if not leader:
        scope.defect(part, '<mimic> names no joint, expected <mimic joint="...">')
    ratio, offset = scope.number(part, "multiplier", 1.0), scope.number(part, "offset", 0.0)
    return Mimic(part.sourceline, leader, ratio, offset) if len(scope.found.defects) == before else None
