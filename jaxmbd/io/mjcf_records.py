"""What an MJCF file gives: the system, beside it actuators and keyframes; and the error of a file that is not read."""

import dataclasses

import equinox as eqx
from jaxtyping import Array, Float

from jaxmbd.actuators import Actuators
from jaxmbd.io.urdf_records import Defect
from jaxmbd.system import System


class MjcfError(ValueError):
    """An MJCF file that is not read; `defects` lists everything that was found."""

    def __init__(self, file: str, defects: tuple[Defect, ...]):
        self.defects = tuple(sorted(defects, key=lambda defect: defect.line))
        count = "1 defect" if len(defects) == 1 else f"{len(defects)} defects"
        super().__init__("\n  ".join([f"{file}: {count}", *map(str, self.defects)]))


class Keyframe(eqx.Module):
    """A state that a file keeps under a name, in this library's coordinates."""

    time: Float[Array, ""]
    q: Float[Array, " nq"]
    v: Float[Array, " nv"]
    ctrl: Float[Array, " nu"]


@dataclasses.dataclass(frozen=True)
class MjcfFile:
    """All that is taken from an MJCF file. `system.report` names the rest."""

    system: System
    actuators: Actuators
    keyframes: dict[str, Keyframe]
