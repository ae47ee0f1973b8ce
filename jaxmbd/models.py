"""Ready mechanisms for tests, experiments and notebooks. SI units, gravity along -z."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxmbd.builder import Builder
from jaxmbd.joints import Joint, free, revolute
from jaxmbd.pose import Pose
from jaxmbd.system import System
from jaxmbd.values import Numbers

GRAVITY = (0.0, 0.0, -9.81)


def rod_inertia(mass: float, length: float, axis: Sequence[float] = (0.0, 0.0, 1.0)) -> np.ndarray:
    """Inertia of a thin uniform rod about its com [kg m^2], its length along a unit axis."""
    a = np.asarray(axis, float)
    return mass * length**2 / 12 * (np.eye(3) - np.outer(a, a))


def pendulum(mass: float = 1.0, length: float = 1.0, inertia: float = 0.0, gravity: Numbers = GRAVITY) -> System:
    """A body on a hinge about y, its com at `length` below; `inertia` is about the com along y [kg m^2]."""
    return pendulum_chain([mass], [length], [inertia], gravity)


def double_pendulum(
    masses: Sequence[float] = (1.0, 1.0), lengths: Sequence[float] = (1.0, 1.0), gravity: Numbers = GRAVITY
) -> System:
    """Two point masses on massless rods, hinged about y; relative angles from the downward vertical."""
    return pendulum_chain(masses, lengths, np.zeros(len(masses)), gravity)


def pendulum_chain(
    masses: Sequence[float],
    lengths: Sequence[float],
    inertias: Sequence[float] | np.ndarray,
    gravity: Numbers = GRAVITY,
) -> System:
    """Bodies `link0`, `link1`, ... in a row on hinges `hinge0`, ... about y, each com at its lower end."""
    b = Builder(gravity=gravity)
    parent, at = "world", Pose()
    for i, (m, length, inertia) in enumerate(zip(masses, lengths, inertias, strict=True)):
        b.body(f"link{i}", mass=m, com=(0.0, 0.0, -length), inertia=np.diag([inertia] * 3))
        b.joint(f"hinge{i}", revolute((0.0, 1.0, 0.0)), parent=parent, child=f"link{i}", in_parent=at)
        parent, at = f"link{i}", Pose((0.0, 0.0, -length))
    b.frame("tip", on=parent, pose=at)
    return b.build()


def chain(
    n: int, length: float = 0.5, mass: float = 1.0, gravity: Numbers = GRAVITY, root: Joint | None = None
) -> System:
    """n equal thin rods end to end along z, on hinges `joint0`, ... about y and x in turn; frame `tip` at the end.

    Args:
      root: the first joint, in place of a hinge.
    """
    b = Builder(gravity=gravity)
    parent, at = "world", Pose()
    for i in range(n):
        b.body(
            f"link{i}", mass=mass, com=(0, 0, length / 2), inertia=rod_inertia(mass, length) + 1e-4 * mass * np.eye(3)
        )
        joint = revolute((0.0, 1.0, 0.0) if i % 2 == 0 else (1.0, 0.0, 0.0))
        b.joint(f"joint{i}", root if root and not i else joint, parent=parent, child=f"link{i}", in_parent=at)
        parent, at = f"link{i}", Pose((0.0, 0.0, length))
    b.frame("tip", on=parent, pose=at)
    return b.build()


def binary_tree(n: int, length: float = 0.3, mass: float = 1.0, gravity: Numbers = GRAVITY) -> System:
    """n rods in a balanced binary tree on hinges; body i hangs on body (i - 1) // 2."""
    b = Builder(gravity=gravity)
    for i in range(n):
        b.body(
            f"link{i}", mass=mass, com=(0, 0, length / 2), inertia=rod_inertia(mass, length) + 1e-4 * mass * np.eye(3)
        )
        side = 0.5 if i % 2 else -0.5
        at = Pose.from_rpy((0.0, 0.0, length), (0.0, side, 0.0)) if i else Pose()
        parent = f"link{(i - 1) // 2}" if i else "world"
        axis = (0.0, 1.0, 0.0) if i % 3 else (1.0, 0.0, 0.0)
        b.joint(f"joint{i}", revolute(axis), parent=parent, child=f"link{i}", in_parent=at)
    return b.build()


def rigid_body(
    mass: float = 1.0, inertia: Numbers = (1.0, 2.0, 3.0), com: Numbers = (0, 0, 0), gravity: Numbers = (0, 0, 0)
) -> System:
    """One body, free in space; `inertia` is its principal moments about the com [kg m^2]."""
    b = Builder(gravity=gravity)
    b.body("body", mass=mass, com=com, inertia=np.diag(np.asarray(inertia, float)))
    b.joint("root", free(), child="body")
    return b.build()
