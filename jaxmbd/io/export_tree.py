"""A system as other formats see it: links whose frame is that of their joint, joints as hinges, sliders, balls.

URDF and MJCF have no pose of a joint in its child: there, a link's frame is the joint's. Where a system has such a
pose, the link's frame is moved and everything on the link is expressed in the new one; where it has none, every number
is passed on as it is. Plain NumPy in double precision.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np

from jaxmbd.closures import CutJoint
from jaxmbd.joints import Quaternion, Screws
from jaxmbd.parts import JointPart, parts_of
from jaxmbd.system import System


@dataclasses.dataclass(frozen=True)
class Placement:
    """Position [m] and rotation matrix of a frame in another."""

    position: np.ndarray
    rotation: np.ndarray

    def __matmul__(self, inner: Placement) -> Placement:
        if inner.is_identity:
            return self
        if self.is_identity:
            return inner
        return Placement(self.position + self.rotation @ inner.position, self.rotation @ inner.rotation)

    def inverse(self) -> Placement:
        return Placement(-self.rotation.T @ self.position, self.rotation.T)

    @property
    def is_identity(self) -> bool:
        return not self.position.any() and bool(np.array_equal(self.rotation, np.eye(3)))


@dataclasses.dataclass(frozen=True)
class Screw:
    """One hinge or slider of a joint; `home` is its frame in that of the one before it, at home pose."""

    home: Placement
    axis: np.ndarray
    turning: bool
    numbers: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Link:
    """A link and the joint above it, both in the frame of the joint's outboard side."""

    name: str
    parent: str
    joint: str
    kind: str
    home: Placement  # of the joint's inboard frame in the frame of the parent
    screws: tuple[Screw, ...]
    translating: bool | None  # for a quaternion joint
    numbers: dict[str, np.ndarray]
    mass: float
    com: np.ndarray
    inertia: np.ndarray  # [3, 3] about the com
    frames: tuple[tuple[str, Placement], ...]
    carrier: bool


@dataclasses.dataclass
class Losses:
    """What a format cannot say: `motion` changes the motion, `record` does not."""

    format: str
    motion: list[str] = dataclasses.field(default_factory=list)
    record: list[str] = dataclasses.field(default_factory=list)

    def report(self, strict: bool) -> list[str]:
        """All of them; raises (strict) or warns when the motion would change."""
        if self.motion:
            listed = "\n  ".join(self.motion)
            if strict:
                raise ValueError(
                    f"{self.format} cannot say {len(self.motion)} things that change the motion. With strict=False "
                    f"they are left out, and named in the text and a warning:\n  {listed}"
                )
            warnings.warn(f"{self.format} text without what it cannot say:\n  {listed}", stacklevel=3)
        return self.motion + self.record


def links_of(system: System, lost: Losses) -> tuple[list[Link], list[tuple[str, Placement]]]:
    """The links in order of their joints, and the frames on the world.

    Raises: ValueError for joints that are neither screws nor quaternions, helical ones, and numbers with batch axes.
    """
    if np.ndim(system.link_mass) != 1:
        raise ValueError(
            f"The masses have shape {np.shape(system.link_mass)}; a file describes one system, not a batch."
        )
    lost.motion += [
        f"joint {system.topology.joints[d.joint].name!r}: its law, it is free" for d in system.topology.drives
    ]
    parts = parts_of(system.without_drive())
    impossible = [_impossible(name, part) for name, part in parts.joints.items()]
    if any(impossible):
        raise ValueError(f"{lost.format} cannot say:\n  " + "\n  ".join(text for text in impossible if text))
    if system.base_motion is not None:
        lost.motion.append("the motion of the base")
    moved = {part.child: _placement(part.in_child) for part in parts.joints.values()}  # new frame in the old one
    moved["world"] = Placement(np.zeros(3), np.eye(3))
    frames: dict[str, list[tuple[str, Placement]]] = {link: [] for link in moved}
    for name, (on, pose) in parts.frames.items():
        frames[on].append((name, moved[on].inverse() @ _placement(pose)))
    links = []
    for name, part in parts.joints.items():
        body, frame = parts.bodies[part.child], moved[part.child]
        com, inertia = (double(body[key]) for key in ("com", "inertia"))
        inertia = inertia[np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])]
        if not frame.is_identity:
            com = frame.rotation.T @ (com - frame.position)
            inertia = frame.rotation.T @ inertia @ frame.rotation
            lost.record.append(f"link {part.child!r} has the frame of joint {name!r} here")
        if np.any(body["rotor_momentum"]):
            lost.motion.append(f"link {part.child!r}: rotor momentum {list(map(float, body['rotor_momentum']))} N m s")
        numbers = {key: double(value) for key, value in part.numbers.items()}
        if not np.array_equal(numbers["home"], part.joint.neutral()):
            lost.record.append(f"joint {name!r}: home {numbers['home'].tolist()}; readers start at zero")
        home = moved[part.parent].inverse() @ _placement(part.in_parent)
        translating = part.joint.translating if isinstance(part.joint, Quaternion) else None
        mass, own = float(double(body["mass"])), tuple(frames[part.child])
        links.append(
            Link(
                part.child,
                part.parent,
                name,
                part.joint.kind,
                home,
                _screws(part),
                translating,
                numbers,
                mass,
                com,
                inertia,
                own,
                part.child in parts.carriers,
            )
        )
    return links, frames["world"]


@dataclasses.dataclass(frozen=True)
class Closure:
    """A cut joint with at most one freedom in space, or a ball: two links, its place on each, the axis in the first."""

    name: str
    kind: str  # "fixed", "revolute", "prismatic" or "spherical"
    links: tuple[str, str]
    places: tuple[Placement, Placement]
    axis: np.ndarray


def closures_of(system: System, lost: Losses) -> list[Closure]:
    """Closures that other formats know; the other constraints are lost. Frames count as links."""
    parts, found = parts_of(system.without_drive()), []
    moved = {part.child: _placement(part.in_child).inverse() for part in parts.joints.values()}
    for name, c in parts.constraints.items():
        joint = c.record.joint if isinstance(c.record, CutJoint) and c.record.motion is None else None
        axis, kind = np.array([1.0, 0.0, 0.0]), ""
        if isinstance(joint, Quaternion):
            kind = "spherical"
        elif isinstance(joint, Screws) and joint.nv == 0:
            kind = "fixed"
        elif isinstance(joint, Screws) and joint.nv == 1 and not joint.helical[0]:
            axis, kind = double(joint.axis[0]), "revolute" if joint.turning[0] else "prismatic"
        if not kind:
            lost.motion.append(f"constraint {name!r} ({c.record.kind}), which is left out")
            continue
        none = Placement(np.zeros(3), np.eye(3))
        first, second = (moved.get(frame, none) for frame in c.frames)
        found.append(Closure(name, kind, (c.frames[0], c.frames[1]), (first, second), axis / np.linalg.norm(axis)))
    return found


def couplings_of(system: System, lost: Losses) -> list[tuple[str, str, float, float]]:
    """Follower, leader, ratio and offset of the linear couplings; the others are lost."""
    topology, found = system.topology, []
    for i, pair in enumerate(topology.couplings):
        follower, leader = (topology.joints[joint].name for joint in pair)
        if i in topology.curves:
            lost.motion.append(f"joint {follower!r}: it follows {leader!r} by a function, here it is free")
        else:
            found.append((follower, leader, float(double(system.ratio[i])), float(double(system.offset[i]))))
    return found


def outward(links: list[Link]) -> list[Link]:
    """The links, parents first."""
    known, order, pending = {"world"}, [], list(links)
    while pending:
        ready = [link for link in pending if link.parent in known]
        order += ready
        known |= {link.name for link in ready}
        pending = [link for link in pending if link.name not in known]
    return order


def rpy_of(R: np.ndarray) -> tuple[float, float, float]:
    """Roll, pitch, yaw [rad] about fixed axes of R = Rz(yaw) Ry(pitch) Rx(roll), to round-off also at pitch = pi/2."""
    yaw = np.arctan2(R[1, 0], R[0, 0])
    s, c = np.sin(yaw), np.cos(yaw)
    pitch = np.arctan2(-R[2, 0], c * R[0, 0] + s * R[1, 0])
    roll = np.arctan2(s * R[0, 2] - c * R[1, 2], c * R[1, 1] - s * R[0, 1])
    return float(roll), float(pitch), float(yaw)


def quaternion_of(R: np.ndarray) -> np.ndarray:
    """(w, x, y, z) of a rotation matrix: the eigenvector of the largest eigenvalue of Bar-Itzhack's matrix."""
    K = np.zeros((4, 4))
    K[0, 0], K[1:, 1:] = np.trace(R), R + R.T - np.trace(R) * np.eye(3)
    K[0, 1:] = K[1:, 0] = R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]
    q = np.linalg.eigh(K)[1][:, -1]
    return q if q[0] >= 0 else -q


def double(values: Any) -> np.ndarray:
    """Double precision; of single precision the shortest decimals, so that 0.1 stays 0.1."""
    array = np.asarray(values)
    if array.dtype.itemsize >= 8:
        return array
    return np.array([float(str(x)) for x in array.ravel()]).reshape(array.shape)


def text(values: Any) -> str:
    """Numbers with as many digits as read back as the same ones; a zero without sign."""
    return " ".join(repr(float(x) + 0.0) for x in np.ravel(values))


def _screws(part: JointPart) -> tuple[Screw, ...]:
    joint = part.joint
    if not isinstance(joint, Screws):
        return ()
    axes = double(joint.axis)
    axes = axes / np.linalg.norm(axes, axis=-1, keepdims=True)
    return tuple(
        Screw(
            Placement(double(joint.offset_position[k]), _matrix(joint.offset_quaternion[k])),
            axes[k],
            turning,
            {key: float(double(value[k])) for key, value in part.numbers.items()},
        )
        for k, turning in enumerate(joint.turning)
    )


def _impossible(name: str, part: JointPart) -> str:
    if isinstance(part.joint, Screws):
        return f"joint {name!r}: a screw with pitch" if any(part.joint.helical) else ""
    return "" if isinstance(part.joint, Quaternion) else f"joint {name!r}: its pose is a function"


def _placement(pose) -> Placement:
    return Placement(double(pose.position), _matrix(pose.quaternion))


def _matrix(quaternion) -> np.ndarray:
    quaternion = double(quaternion)
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
