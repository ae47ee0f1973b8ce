"""A System to URDF text, after a fit or an edit."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np

from jaxmbd.io.export_tree import Link, Losses, Placement, Screw, closures_of, couplings_of, links_of, rpy_of, text
from jaxmbd.joint_kinds import planar
from jaxmbd.system import System


def to_urdf(system: System, name: str = "robot", strict: bool = True) -> str:
    """The URDF text of a system; `load` of it gives a system of the same motion, to round-off.

    The world is a link of that name, so that nothing has to be said on reading. Joints of several screws become chains
    of joints `<joint>_1`, `<joint>_2`, ... with massless links between. Frames become massless links. A link's frame
    becomes that of its joint. Infinite limits are written as zero, as is usual in such files: no limit. Closures that
    weld, hinge, slide or leave a ball joint are written as `<loop_joint>`, an extension (docs/files.md).

    Args:
      name: of the robot.
      strict: refuse a system that URDF cannot say (springs, armature, rotors, friction speeds, other constraints,
        other gravity than (0, 0, -9.81), ...) with a list; with False these are left out, and listed in a warning and
        in the text.

    Raises: ValueError for what URDF cannot say, and (whatever `strict` is) for ball joints, pitches and functions.
    """
    lost = Losses("URDF")
    links, world_frames = links_of(system, lost)
    balls = [link.joint for link in links if link.translating is False]
    if balls:
        raise ValueError(f"URDF has no ball joint; joints {', '.join(map(repr, balls))} cannot be said.")
    if not np.allclose(system.gravity, (0.0, 0.0, -9.81), rtol=1e-6, atol=1e-6):
        lost.motion.append(f"gravity {np.asarray(system.gravity).tolist()} m/s^2: readers take (0, 0, -9.81)")
    taken = set(system.frame_names) | {link.joint for link in links}
    robot = ET.Element("robot", name=name)
    ET.SubElement(robot, "link", name="world")
    mimics = _mimics(system, lost)
    for link in sorted(links, key=lambda link: system.topology.links.index(link.name)):
        _link(robot, link)
    for link in links:
        _passive(link, lost)
        _joints(robot, link, taken, mimics, lost)
    for link, frames in [("world", world_frames), *((link.name, link.frames) for link in links)]:
        for frame, place in frames:
            ET.SubElement(robot, "link", name=frame)
            _joint(robot, _free_name(f"{frame}_joint", taken), "fixed", link, frame, place)
    for c in closures_of(system, lost):
        element = ET.SubElement(robot, "loop_joint", name=c.name, type=c.kind)
        for end, link, place in zip(("link1", "link2"), c.links, c.places, strict=True):
            ET.SubElement(element, end, link=link, xyz=text(place.position), rpy=text(rpy_of(place.rotation)))
        if c.kind in ("revolute", "prismatic"):
            ET.SubElement(element, "axis", xyz=text(c.axis))
        lost.record.append(f"constraint {c.name!r} is a <loop_joint> here, an extension that many readers pass over")
    for line in reversed(lost.report(strict)):
        robot.insert(0, ET.Comment(f" not in this file: {line} ".replace("--", "- -")))
    ET.indent(robot)
    return ET.tostring(robot, encoding="unicode") + "\n"


def _link(robot: ET.Element, link: Link) -> None:
    element = ET.SubElement(robot, "link", name=link.name)
    if not link.mass and not link.inertia.any():
        return
    inertial = ET.SubElement(element, "inertial")
    ET.SubElement(inertial, "origin", xyz=text(link.com), rpy="0 0 0")
    ET.SubElement(inertial, "mass", value=text(link.mass))
    keys = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
    ET.SubElement(inertial, "inertia", dict(zip(keys, map(text, link.inertia[np.triu_indices(3)]), strict=True)))


def _joints(robot: ET.Element, link: Link, taken: set[str], mimics: dict, lost: Losses) -> None:
    """The joint above a link, or the chain of joints that stands for it."""
    if link.translating:
        element = _joint(robot, link.joint, "floating", link.parent, link.name, link.home)
        _dynamics(element, link.joint, link.numbers, lost)
    elif not link.screws:
        _joint(robot, link.joint, "fixed", link.parent, link.name, link.home)
    elif len(link.screws) == 1:
        _screw(robot, link.joint, link.kind, link.parent, link.name, link.home, link.screws[0], mimics, lost)
    elif _is_planar(link):
        element = _joint(robot, link.joint, "planar", link.parent, link.name, link.home)
        ET.SubElement(element, "axis", xyz=text(link.screws[2].axis))
        _dynamics(element, link.joint, link.numbers, lost)
    else:
        parent, home, last = link.parent, link.home, len(link.screws)
        for k, screw in enumerate(link.screws, 1):
            name = _free_name(f"{link.joint}_{k}", taken)
            child = link.name if k == last else name
            if k < last:
                ET.SubElement(robot, "link", name=child)
            _screw(robot, name, "", parent, child, home, screw, {}, lost)
            parent, home = child, Placement(np.zeros(3), np.eye(3))
        lost.record.append(f"joint {link.joint!r} ({link.kind}) is a chain of {last} joints here")


def _screw(robot, name, kind, parent, child, home, screw: Screw, mimics, lost: Losses) -> None:
    n = screw.numbers
    limited = np.isfinite([n["lower"], n["upper"]])
    if screw.turning:
        kind = kind if kind in ("revolute", "continuous") else "revolute" if limited.any() else "continuous"
    else:
        kind = "prismatic"
    element = _joint(robot, name, kind, parent, child, home @ screw.home)
    ET.SubElement(element, "axis", xyz=text(screw.axis))
    if limited.any() and (kind == "continuous" or not limited.all()):
        lost.record.append(f"joint {name!r}: limits {n['lower']!r} to {n['upper']!r}")
    if kind != "continuous" or np.isfinite([n["effort"], n["speed"]]).any():
        limit = {"lower": text(n["lower"]), "upper": text(n["upper"])} if limited.all() and kind != "continuous" else {}
        # URDF demands both and has no word for infinity: files write zero, readers take it as not given
        effort, speed = (n[key] if np.isfinite(n[key]) else 0.0 for key in ("effort", "speed"))
        ET.SubElement(element, "limit", limit | {"effort": text(effort), "velocity": text(speed)})
    if n["damping"] or n["friction"]:
        ET.SubElement(element, "dynamics", damping=text(n["damping"]), friction=text(n["friction"]))
    if name in mimics:
        leader, ratio, offset = mimics[name]
        ET.SubElement(element, "mimic", joint=leader, multiplier=text(ratio), offset=text(offset))


def _joint(robot, name: str, kind: str, parent: str, child: str, place: Placement) -> ET.Element:
    element = ET.SubElement(robot, "joint", name=name, type=kind)
    ET.SubElement(element, "parent", link=parent)
    ET.SubElement(element, "child", link=child)
    if not place.is_identity:
        ET.SubElement(element, "origin", xyz=text(place.position), rpy=text(rpy_of(place.rotation)))
    return element


def _dynamics(element, joint: str, numbers: dict[str, np.ndarray], lost: Losses) -> None:
    """Damping and friction of a joint with several velocities, for which URDF has one number each."""
    values = {}
    for key in ("damping", "friction"):
        values[key] = text(numbers[key][0])
        if np.ptp(numbers[key]):
            lost.motion.append(f"joint {joint!r}: {key} {numbers[key].tolist()}, one number is said")
    if numbers["damping"].any() or numbers["friction"].any():
        ET.SubElement(element, "dynamics", values)
    lost.record += [
        f"joint {joint!r}: {key} {numbers[key].tolist()}"
        for key in ("lower", "upper", "effort", "speed")
        if np.isfinite(numbers[key]).any()
    ]


def _passive(link: Link, lost: Losses) -> None:
    numbers = link.numbers
    for key, unit in (("stiffness", "spring"), ("armature", "armature")):
        if numbers[key].any():
            lost.motion.append(f"joint {link.joint!r}: {unit} {numbers[key].tolist()}")
    usual = np.isclose(numbers["friction_speed"], 1e-2, rtol=1e-6)
    if (numbers["friction"].astype(bool) & ~usual).any():
        lost.motion.append(f"joint {link.joint!r}: friction_speed {numbers['friction_speed'].tolist()}")


def _is_planar(link: Link) -> bool:
    """Whether the screws are those that a reader makes of URDF's planar joint about the last axis."""
    if [screw.turning for screw in link.screws] != [False, False, True]:
        return False
    if not all(screw.home.is_identity for screw in link.screws):
        return False
    usual = np.asarray(planar(link.screws[2].axis).axis)
    return bool(np.allclose(usual, [screw.axis for screw in link.screws], atol=4 * np.finfo(usual.dtype).eps))


def _mimics(system: System, lost: Losses) -> dict[str, tuple[str, float, float]]:
    return {follower: (leader, ratio, offset) for follower, leader, ratio, offset in couplings_of(system, lost)}


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
