"""Model files to a System, by file suffix."""

import os
import pathlib
from typing import Literal

from jaxmbd.io.mjcf import load_mjcf
from jaxmbd.io.system_file import SUFFIX, load_system
from jaxmbd.system import System


def load(
    path: str | os.PathLike[str],
    floating: bool = False,
    mimic: Literal["eliminate", "independent"] = "eliminate",
    loops: Literal["closed", "open"] = "closed",
    strict: bool = True,
) -> System:
    """The System that a model file describes. `system.report` says what was read, taken as default, or ignored.

    Coordinates come in file order. Units are SI. Meshes are never opened, but by MJCF for bodies that have no other
    inertia. Limits are recorded, not applied.

    Args:
        path: a `.urdf` file, an `.xml` file in MuJoCo's format (MJCF; needs the extra `mjcf`; `load_mjcf` gives its
            actuators and keyframes too), or a `.jaxmbd` file that `save` wrote, to which the other arguments do not
            apply.
        floating: put a free joint named "root" under the root link; otherwise the root link is fixed to the world. A
            root link named "world" is the world itself; then the one link fixed to it is freed, at the identity pose
            (with MJCF at its place in the file).
        mimic: "eliminate" removes each follower's coordinate exactly (chains and offsets included); "independent"
            leaves all joints free.
        loops: "closed" keeps what closes loops (MJCF's connect and weld, URDF's extension `<loop_joint>`) as
            constraints, "open" leaves it out, and says so in the report.
        strict: refuse a file whose dynamics is not defined. With False, defective parts, and what then no longer hangs
            on the root, are dropped; each is a line of the report and of a warning. Of MJCF: refuse to open files
            outside the model's folder.

    Raises:
        ValueError: an unknown option or suffix.
        UrdfError: (a ValueError) the file's defects, all at once, each with element, name and line.
        MjcfError: (a ValueError) likewise, and what MuJoCo's compiler says.
        ImportError: an MJCF file without the package `mujoco`.

    Warns:
        UserWarning: values that define a dynamics, but an implausible one, such as an inertia that no body has; forces
            of an MJCF file that are not taken over.
    """
    for name, value, allowed in (("mimic", mimic, ("eliminate", "independent")), ("loops", loops, ("closed", "open"))):
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is not known; expected {allowed[0]!r} or {allowed[1]!r}.")
    path = pathlib.Path(path)
    suffix = path.suffix.lower()
    if suffix == SUFFIX:
        if (floating, mimic, loops, strict) != (False, "eliminate", "closed", True):
            raise ValueError(f"'{path.name}' holds a finished system: floating, mimic, loops and strict do not apply.")
        return load_system(path)
    if suffix == ".xml":
        return load_mjcf(path, floating=floating, mimic=mimic, loops=loops, strict=strict).system
    if suffix not in (".urdf", ".xacro"):
        raise ValueError(
            f"'{path.name}': the suffix '{path.suffix}' is not known; expected .urdf, or .xml (MJCF), or .jaxmbd."
        )
    from jaxmbd.io.urdf import load_urdf  # here, so that importing jaxmbd does not import lxml

    return load_urdf(path, floating=floating, mimic=mimic, loops=loops, strict=strict)
