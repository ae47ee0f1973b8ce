"""A System to MJCF text (MuJoCo's format), after a fit or an edit."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np

from jaxmbd.inertia import Inertial, doubt
from jaxmbd.io.export_tree import Link, Losses, Placement, couplings_of, double, links_of, outward, quaternion_of, text
from jaxmbd.system import System

_SMALLEST = 1e-15  # MuJoCo refuses moving bodies with less mass or inertia (mjMINVAL)


def to_mjcf(system: System, name: str = "robot", strict: bool = True) -> str:
    """The MJCF text of a system, for MuJoCo.

    Every joint becomes hinges, slides, a ball or a free joint. A free joint that is not on the world, or whose numbers
    differ between turning and sliding, becomes three slides and a ball. Frames become sites. A link's frame becomes
    that of its joint. Limits, which only stand on record here, act in MuJoCo.

    Args:
      name: of the model.
      strict: refuse a system that MJCF cannot say (dry friction, couplings (soft in MuJoCo), rotors, ball springs about
        another rest, ...) with a list; with False what comes nearest is written, and the list is in a warning and in
        the text.

    Raises: ValueError for what MJCF cannot say, and (whatever `strict` is) for pitches, functions, and bodies that
    MuJoCo refuses: moving ones without mass.
    """
    lost = Losses("MJCF")
    links, world_frames = links_of(system, lost)
    _check_inertia(system)
    root = ET.Element("mujoco", model=name)
    ET.SubElement(root, "compiler", angle="radian", inertiafromgeom="false", autolimits="true")
    ET.SubElement(root, "option", gravity=text(double(system.gravity)))
    elements = {"world": ET.SubElement(root, "worldbody")}
    _sites(elements["world"], tuple(world_frames))
    carriers = {link.name: link for link in links if link.carrier}
    for link in outward(links):
        if not link.carrier:
            chain = [link]
            while chain[0].parent in carriers:
                chain.insert(0, carriers[chain[0].parent])
            elements[link.name] = _body(elements[chain[0].parent], chain, lost)
    _couplings(root, system, lost)
    lost.motion += [f"constraint {c.name!r} ({c.kind}), which is left out" for c in system.topology.constraints]
    for line in reversed(lost.report(strict)):
        root.insert(0, ET.Comment(f" not in this file: {line} ".replace("--", "- -")))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _body(parent: ET.Element, chain: list[Link], lost: Losses) -> ET.Element:
    """A body with all its joints: those of the carriers on the way to it, and its own."""
    link, identity = chain[-1], Placement(np.zeros(3), np.eye(3))
    steps, at = [], identity
    for part in chain:
        at = at @ part.home
        for k, screw in enumerate(part.screws, 1):
            name = part.joint if len(part.screws) == 1 else f"{part.joint}_{k}"
            steps.append((name, screw, at @ screw.home))
            at = identity
    # axes and anchors of all screws in the frame of the body, the last one's, at home pose
    inner, joints = at, []
    for name, screw, step in reversed(steps):
        back = inner.inverse()
        joints.insert(0, (name, screw, back.position, back.rotation @ screw.axis))
        inner = step @ inner
    body = ET.SubElement(parent, "body", {"name": link.name} | _place(inner))
    _inertial(body, link, lost)
    for name, screw, anchor, axis in joints:
        kind = "hinge" if screw.turning else "slide"
        element = ET.SubElement(body, "joint", name=name, type=kind, axis=text(axis))
        if anchor.any():
            element.set("pos", text(anchor))
        numbers = {key: np.array([value]) for key, value in screw.numbers.items()}
        _numbers(element, name, numbers, lost)
        if screw.numbers["stiffness"]:
            element.set("springref", text(screw.numbers["rest"]))
    for part in chain:
        if len(part.screws) > 1:
            lost.record.append(f"joint {part.joint!r} ({part.kind}) is {len(part.screws)} joints of one body here")
        if part is not link:
            lost.record += [f"frame {name!r}, on the carrier {part.name!r}" for name, _ in part.frames]
    if link.translating is not None:
        _quaternion_joint(body, link, lost, alone=len(chain) == 1)
    _sites(body, link.frames)
    return body


def _inertial(body: ET.Element, link: Link, lost: Losses) -> None:
    """The link's own inertia; what MuJoCo refuses on a moving body, points and rods, on a body welded to it."""
    if not link.mass:
        if link.inertia.any():
            lost.motion.append(f"link {link.name!r}: inertia without mass")
        return
    tensor, found = link.inertia, doubt(Inertial(link.mass, link.com, link.inertia), rounding=1e-12)
    if found:
        lost.motion.append(f"link {link.name!r}, of which MuJoCo takes the nearest valid inertia: {found}")
    second, axes = np.linalg.eigh(0.5 * np.trace(tensor) * np.eye(3) - tensor)
    if tensor.any() and second[0] < 1e-12 * second[2]:
        # a plate or rod: MuJoCo demands A + B >= C without room for rounding
        second = np.maximum(second, 1e-12 * second[2])
        tensor = (axes * (second.sum() - second)) @ axes.T
    moments, axes = np.linalg.eigh(tensor)
    element = body
    if moments[0] < _SMALLEST:
        element = ET.SubElement(body, "body", name=f"{link.name}_inertial")
    inertial = ET.SubElement(element, "inertial", pos=text(link.com), mass=text(link.mass))
    if moments[0] < 1e-9 * moments[2]:
        axes[:, 0] *= np.sign(np.linalg.det(axes))
        inertial.set("quat", text(quaternion_of(axes)))
        inertial.set("diaginertia", text(np.maximum(moments, 0.0)))
    elif np.array_equal(tensor, np.diag(np.diagonal(tensor))):
        inertial.set("diaginertia", text(np.diagonal(tensor)))
    else:
        inertial.set("fullinertia", text(tensor[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]))


def _quaternion_joint(body: ET.Element, link: Link, lost: Losses, alone: bool) -> None:
    numbers = link.numbers
    turning = {key: value[:3] for key, value in numbers.items() if key not in ("rest", "home")}
    sliding = {key: value[3:] for key, value in numbers.items() if key not in ("rest", "home")}
    rest, at_rest = numbers["rest"], np.eye(len(numbers["rest"]))[0]
    if link.translating:
        if sliding["armature"].any():  # in MuJoCo it resists the rate of the velocity in other axes
            lost.motion.append(f"joint {link.joint!r}: armature {sliding['armature'].tolist()} along its body's axes")
        uniform = all(not np.ptp(numbers[key]) for key in ("stiffness", "damping", "armature", "friction"))
        if alone and link.parent == "world" and link.home.is_identity and uniform and not numbers["stiffness"].any():
            _numbers(ET.SubElement(body, "joint", name=link.joint, type="free"), link.joint, numbers, lost)
            return
        for k, axis in enumerate(np.eye(3)):
            element = ET.SubElement(body, "joint", name=f"{link.joint}_{'xyz'[k]}", type="slide", axis=text(axis))
            own = {key: value[k : k + 1] for key, value in sliding.items()}
            _numbers(element, link.joint, own, lost)
            if own["stiffness"].any():
                element.set("springref", text(rest[4 + k]))
        for key in ("damping", "friction"):
            if np.ptp(sliding[key]):
                lost.motion.append(f"joint {link.joint!r}: {key} {sliding[key].tolist()} along its body's axes")
        lost.record.append(f"joint {link.joint!r} (free) is three slides and a ball here")
    if turning["stiffness"].any() and not np.allclose(np.abs(rest[:4]), at_rest[:4], atol=1e-12):
        lost.motion.append(f"joint {link.joint!r}: spring about {rest[:4].tolist()}, in MuJoCo about no rotation")
    name = f"{link.joint}_ball" if link.translating else link.joint
    _numbers(ET.SubElement(body, "joint", name=name, type="ball"), link.joint, turning, lost)


def _numbers(element: ET.Element, joint: str, numbers: dict[str, np.ndarray], lost: Losses) -> None:
    """Passive numbers and limits of one MuJoCo joint, which has one of each."""
    for key, attribute in (
        ("stiffness", "stiffness"),
        ("damping", "damping"),
        ("armature", "armature"),
        ("friction", "frictionloss"),
    ):
        if np.ptp(numbers[key]):
            lost.motion.append(f"joint {joint!r}: {key} {numbers[key].tolist()}, one number is said")
        if numbers[key].any():
            element.set(attribute, text(numbers[key][0]))
    if numbers["friction"].any():
        lost.motion.append(f"joint {joint!r}: smooth dry friction, in MuJoCo frictionloss, a constraint")
    lower, upper = numbers["lower"], numbers["upper"]
    if len(lower) == 1 and np.isfinite([lower[0], upper[0]]).any():
        element.set("range", text((max(lower[0], -1e10), min(upper[0], 1e10))))
    elif np.isfinite([lower, upper]).any():
        lost.record.append(f"joint {joint!r}: limits {lower.tolist()} to {upper.tolist()}")
    if len(lower) == 1 and np.isfinite(numbers["effort"][0]):
        element.set("actuatorfrcrange", text((-numbers["effort"][0], numbers["effort"][0])))
    if np.isfinite(numbers["speed"]).any():
        lost.record.append(f"joint {joint!r}: speed limit {numbers['speed'].tolist()}")


def _couplings(root: ET.Element, system: System, lost: Losses) -> None:
    couplings = couplings_of(system, lost)
    equality = ET.SubElement(root, "equality") if couplings else root
    for follower, leader, ratio, offset in couplings:
        curve = text((offset, ratio, 0.0, 0.0, 0.0))
        ET.SubElement(equality, "joint", joint1=follower, joint2=leader, polycoef=curve)
        lost.motion.append(f"joint {follower!r} = {ratio!r} * {leader!r} + {offset!r}: a soft constraint in MuJoCo")


def _check_inertia(system: System) -> None:
    """MuJoCo refuses moving bodies that have no mass or inertia themselves or in what is welded to them."""
    topology, layout, solid = system.topology, system.topology.layout, np.asarray(system.link_mass) > _SMALLEST
    light = [
        repr(topology.links[root])
        for body, root in enumerate(layout.root_links)
        if root not in topology.carriers and not solid[layout.body_of_link == body].any()
    ]
    if light:
        raise ValueError(f"MuJoCo refuses moving bodies without mass: {', '.join(light)}.")


def _sites(body: ET.Element, frames: tuple[tuple[str, Placement], ...]) -> None:
    for name, place in frames:
        ET.SubElement(body, "site", {"name": name} | _place(place))


def _place(place: Placement) -> dict[str, str]:
    if place.is_identity:
        return {}
    return {"pos": text(place.position), "quat": text(quaternion_of(place.rotation))}
