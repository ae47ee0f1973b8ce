"""What a URDF file says, as plain records, and what there is to say about the file itself.

Numbers are Python floats in SI units and in the file's own frames; nothing here knows XML or dynamics.
"""

import collections
import dataclasses

import numpy as np

JOINT_TYPES = ("revolute", "continuous", "prismatic", "fixed", "floating", "planar")
LOOP_TYPES = ("fixed", "revolute", "continuous", "prismatic", "spherical")
ONE_COORDINATE = ("revolute", "continuous", "prismatic")


@dataclasses.dataclass(frozen=True)
class Defect:
    """One thing that leaves the dynamics undefined, and what `strict=False` does about it (None: it refuses too)."""

    line: int
    where: str
    text: str
    remedy: str | None

    def __str__(self) -> str:
        return f"line {self.line}: {self.where}: {self.text}"


class UrdfError(ValueError):
    """A URDF file whose dynamics is not defined; `defects` lists everything that was found."""

    def __init__(self, file: str, defects: tuple[Defect, ...]):
        self.defects = tuple(sorted(defects, key=lambda defect: defect.line))
        count = "1 defect" if len(defects) == 1 else f"{len(defects)} defects"
        super().__init__("\n  ".join([f"{file}: {count}", *map(str, self.defects)]))


@dataclasses.dataclass
class Findings:
    """What a reading run has to say: `defects` refuse the file, `doubts` warn, `notes` only inform."""

    defects: list[Defect] = dataclasses.field(default_factory=list)
    doubts: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def defect(self, line: int, where: str, text: str, remedy: str | None = None) -> None:
        self.defects.append(Defect(line, where, text, remedy))

    def doubt(self, line: int, where: str, text: str) -> None:
        self.doubts.append(f"line {line}: {where}: {text}")

    def note(self, line: int, where: str, text: str) -> None:
        self.notes.append(f"line {line}: {where}: {text}")


@dataclasses.dataclass(frozen=True)
class Origin:
    """Pose of a frame in its parent: position [m] and quaternion (w, x, y, z)."""

    position: tuple[float, ...] = (0.0, 0.0, 0.0)
    quaternion: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Inertial:
    """Mass [kg], centre of mass [m] and inertia [kg m²] about it, both in link axes."""

    mass: float
    com: tuple[float, ...]
    tensor: np.ndarray


@dataclasses.dataclass(frozen=True)
class Link:
    """One `<link>`; without an inertial it is a massless frame."""

    name: str
    line: int
    inertial: Inertial | None

    def __str__(self) -> str:
        return f"link '{self.name}'"


@dataclasses.dataclass(frozen=True)
class Mimic:
    """q = ratio · q(leader) + offset."""

    line: int
    leader: str
    ratio: float
    offset: float


@dataclasses.dataclass(frozen=True)
class Joint:
    """One `<joint>`; `usable` is False when a defect inside leaves its motion undefined."""

    name: str
    line: int
    type: str
    parent: str
    child: str
    usable: bool
    origin: Origin
    axis: tuple[float, ...]
    damping: float
    friction: float
    lower: float
    upper: float
    effort: float
    speed: float
    mimic: Mimic | None

    def __str__(self) -> str:
        return f"joint '{self.name}'"


@dataclasses.dataclass(frozen=True)
class LoopJoint:
    """One `<loop_joint>`, an extension of URDF: a joint that closes a loop between frames on two links."""

    name: str
    line: int
    type: str
    links: tuple[str, str]
    origins: tuple[Origin, Origin]
    axis: tuple[float, ...]  # in the first frame
    usable: bool

    def __str__(self) -> str:
        return f"loop joint '{self.name}'"


@dataclasses.dataclass(frozen=True)
class Model:
    """A URDF file as it stands, in file order; `ignored` counts the elements without a dynamic meaning."""

    file: str
    name: str
    links: tuple[Link, ...]
    joints: tuple[Joint, ...]
    loops: tuple[LoopJoint, ...]
    ignored: collections.Counter[str]
