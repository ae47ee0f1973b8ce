"""Ready mechanisms for tests, experiments and notebooks. SI units, gravity along -z."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxmbd.builder import Builder
from jaxmbd.joint_kinds import free, revolute, spherical
from jaxmbd.joints import Joint
from jaxmbd.machines import cable, human_figure, space_manipulator, teleoperator
from jaxmbd.pose import Pose
from jaxmbd.system import System
from jaxmbd.values import Numbers

__all__ = [
    "binary_tree",
    "cable",
    "chain",
    "double_pendulum",
    "furuta",
    "heavy_top",
    "human_figure",
    "pendulum",
    "pendulum_chain",
    "quadruped",
    "rigid_body",
    "rod_inertia",
    "space_manipulator",
    "teleoperator",
]

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


def heavy_top(
    mass: float = 15.0,
    com: Numbers = (0.0, 1.0, 0.0),
    inertia: Numbers = (0.234375, 0.46875, 0.234375),
    gravity: Numbers = GRAVITY,
) -> System:
    """A body on the ball joint `pivot` at the origin; `inertia` is its principal moments about the com [kg m^2].

    Source: the numbers are those of Bruels & Cardona (2010).
    """
    b = Builder(gravity=gravity)
    b.body("top", mass=mass, com=com, inertia=np.diag(np.asarray(inertia, float)))
    b.joint("pivot", spherical(), child="top")
    return b.build()


def furuta(
    arm: float = 0.278,
    lengths: Sequence[float] = (0.15, 0.148),
    masses: Sequence[float] = (0.3, 0.075),
    inertias: Sequence[float] = (0.0248, 0.00386),
    damping: Sequence[float] = (1e-4, 2.8e-4),
    gravity: Numbers = GRAVITY,
) -> System:
    """Rotary pendulum: `arm` turns about z on `motor`; `pendulum` hangs at its end and turns about it on `hinge`.

    Args:
      arm: length of the arm, which lies along x at angle zero [m].
      lengths: distances of the centres of mass from the joints [m].
      masses: of arm and pendulum [kg].
      inertias: about the centres of mass, across the slender links [kg m^2].
      damping: of `motor` and `hinge` [N m s/rad].

    Source: Cazzolato & Prime (2011), angle of the pendulum from the downward vertical.
    """
    b = Builder(gravity=gravity)
    b.body("arm", mass=masses[0], com=(lengths[0], 0, 0), inertia=inertias[0] * np.diag([0.0, 1.0, 1.0]))
    b.body("pendulum", mass=masses[1], com=(0, 0, -lengths[1]), inertia=inertias[1] * np.diag([1.0, 1.0, 0.0]))
    b.joint("motor", revolute((0.0, 0.0, 1.0)), child="arm", damping=damping[0])
    end = Pose((arm, 0.0, 0.0))
    b.joint("hinge", revolute((1.0, 0.0, 0.0)), parent="arm", child="pendulum", in_parent=end, damping=damping[1])
    b.frame("tip", on="pendulum", pose=Pose((0.0, 0.0, -2 * lengths[1])))
    return b.build()


def quadruped(gravity: Numbers = GRAVITY) -> System:
    """A trunk of 8 kg, free in space on `root`, and four legs of three hinges: 18 freedoms. Frames `fl_foot`, ..."""
    b = Builder(gravity=gravity)
    b.body("trunk", mass=8.0, inertia=np.diag([0.06, 0.16, 0.19]))
    b.joint("root", free(), child="trunk")
    for leg, x, y in (("fl", 0.2, 0.1), ("fr", 0.2, -0.1), ("hl", -0.2, 0.1), ("hr", -0.2, -0.1)):
        parent, at = "trunk", Pose((x, y, 0.0))
        for part, mass, length, axis in (
            ("hip", 0.6, 0.05, (1.0, 0.0, 0.0)),
            ("thigh", 0.9, 0.2, (0.0, 1.0, 0.0)),
            ("calf", 0.2, 0.2, (0.0, 1.0, 0.0)),
        ):
            inertia = rod_inertia(mass, length) + 1e-3 * mass * np.eye(3)
            b.body(f"{leg}_{part}", mass=mass, com=(0, 0, -length / 2), inertia=inertia)
            b.joint(f"{leg}_{part}_joint", revolute(axis), parent=parent, child=f"{leg}_{part}", in_parent=at)
            parent, at = f"{leg}_{part}", Pose((0.0, 0.0, -length))
        b.frame(f"{leg}_foot", on=parent, pose=at)
    return b.build()
