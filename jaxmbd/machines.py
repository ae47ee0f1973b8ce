"""Larger ready mechanisms: a space manipulator, a human-like figure, cables and booms as chains, a teleoperator arm.

They are the applications that Passerello & Huston (1972) name; `models` offers them.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from jaxmbd.builder import Builder
from jaxmbd.joint_kinds import fixed, free, gimbal, prismatic, revolute, spherical, universal
from jaxmbd.joints import Joint
from jaxmbd.pose import Pose
from jaxmbd.system import System
from jaxmbd.values import Numbers

SLUG, INCH = 14.593902937206364, 0.0254
"""Kilogrammes in a slug, metres in an inch."""


def space_manipulator(
    root: Joint | None = None, shoulder: Joint | None = None, units: Literal["SI", "paper"] = "SI"
) -> System:
    """A weightless main body `B1` with two arms of two links (`B2`, `B3` and `B4`, `B5`), a disc at the end of each.

    Joints: `root` (free when left out), `shoulder2` and `shoulder4` (angles x-y-z when left out), `elbow3` and `elbow5`
    (hinges about y): 14 velocities. Frames `tip3`, `tip5` at the discs. The upper links are thin rods without axial
    inertia.

    Args:
      root: joint of B1 to inertial space, at its mass centre.
      shoulder: joint of both arms.
      units: "SI", or "paper": slug, inch, second, so that forces are slug in/s^2 = lb/12.

    Source: Passerello & Huston (1972), Fig. 10.
    """
    if units not in ("SI", "paper"):
        raise ValueError(f"units is {units!r}; expected 'SI' or 'paper' (slug, inch, second).")
    m, l = (SLUG, INCH) if units == "SI" else (1.0, 1.0)
    b = Builder(gravity=(0.0, 0.0, 0.0))
    rod: dict[str, Any] = dict(mass=0.5 * m, com=(0.0, 0.0, -18.0 * l), inertia=np.diag([54.0, 54.0, 0.0]) * m * l**2)
    b.body("B1", mass=10.0 * m, inertia=240.0 * np.eye(3) * m * l**2)
    b.joint("root", root or free(), child="B1")
    for upper, lower in ((2, 3), (4, 5)):
        b.body(f"B{upper}", **rod)
        b.body(f"B{lower}", **rod)
        b.body(f"disc{lower}", mass=0.25 * m, inertia=np.diag([0.5, 0.5, 1.0]) * m * l**2)
        end = Pose((0.0, 0.0, -36.0 * l))
        b.joint(f"shoulder{upper}", shoulder or gimbal("xyz"), "B1", f"B{upper}", Pose((0.0, 0.0, -6.0 * l)))
        b.joint(f"elbow{lower}", revolute((0.0, 1.0, 0.0)), f"B{upper}", f"B{lower}", end)
        b.joint(f"weld{lower}", fixed(), f"B{lower}", f"disc{lower}", end)
        b.frame(f"tip{lower}", on=f"disc{lower}")
    return b.build()


def human_figure(mass: float = 75.0, height: float = 1.75, gravity: Numbers = (0.0, 0.0, -9.81)) -> System:
    """A human-like figure of 15 bodies and 36 freedoms, standing upright with its arms hanging; x forwards, y left.

    The pelvis is free (`root`); `waist` and `neck` are ball joints, as are shoulders and hips; elbows and knees are
    hinges, wrists and ankles universal joints, named after side and outboard body, as `left_shank_joint`. Frames
    `left_sole`, ... under the ankles.

    Args:
      mass: [kg].
      height: [m].
      gravity: [m/s^2].

    Mass fractions and lengths of limbs follow Winter (2009, table 4.1) in round figures; inertias are those of uniform
    cylinders. A model for motion studies, of no individual.
    """
    b = Builder(gravity=gravity)

    def segment(name, fraction, length, width, up=False):
        m, l, r = fraction * mass, length * height, 0.5 * width * height
        across, along = m * (3 * r * r + l * l) / 12, 0.5 * m * r * r
        b.body(name, mass=m, com=(0.0, 0.0, 0.5 * l if up else -0.5 * l), inertia=np.diag([across, across, along]))

    def at(x=0.0, y=0.0, z=0.0):
        return Pose((x * height, y * height, z * height))

    segment("pelvis", 0.142, 0.10, 0.19, up=True)
    segment("trunk", 0.355, 0.19, 0.18, up=True)
    segment("head", 0.081, 0.18, 0.10, up=True)
    b.joint("root", free(), child="pelvis")
    b.joint("waist", spherical(), "pelvis", "trunk", at(z=0.10))
    b.joint("neck", spherical(), "trunk", "head", at(z=0.19))
    for side, sign in (("left", 1.0), ("right", -1.0)):
        limbs = (
            ("upper_arm", 0.028, 0.186, 0.05, spherical(), "trunk", at(y=0.11 * sign, z=0.18)),
            ("forearm", 0.016, 0.146, 0.04, revolute((0.0, -1.0, 0.0)), f"{side}_upper_arm", at(z=-0.186)),
            ("hand", 0.006, 0.108, 0.03, universal((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)), f"{side}_forearm", at(z=-0.146)),
            ("thigh", 0.100, 0.245, 0.09, spherical(), "pelvis", at(y=0.052 * sign)),
            ("shank", 0.0465, 0.246, 0.06, revolute((0.0, 1.0, 0.0)), f"{side}_thigh", at(z=-0.245)),
            ("foot", 0.0145, 0.039, 0.10, universal((0.0, 1.0, 0.0), (1.0, 0.0, 0.0)), f"{side}_shank", at(z=-0.246)),
        )
        for part, fraction, length, width, joint, parent, place in limbs:
            segment(f"{side}_{part}", fraction, length, width)
            b.joint(f"{side}_{part}_joint", joint, parent, f"{side}_{part}", place)
        b.frame(f"{side}_sole", on=f"{side}_foot", pose=at(z=-0.039))
    return b.build()


def cable(
    n: int = 20,
    length: float = 10.0,
    mass: float = 2.0,
    bending: float = 0.0,
    damping: float = 0.0,
    spatial: bool = False,
    gravity: Numbers = (0.0, 0.0, -9.81),
) -> System:
    """A cable or boom as n equal thin rods end to end along -z, on joints `joint0`, ... with springs; frame `tip`.

    A finite-element model of rods: its slow frequencies err by order 1/n^2. Without bending stiffness it is a hanging
    chain; with it and without gravity a beam clamped to the world.

    Args:
      n: number of rods.
      length, mass: of the whole [m, kg].
      bending: stiffness E I [N m^2]; each joint gets that over the length of rod it stands for, the clamp over half.
      damping: of every joint [N m s/rad].
      spatial: universal joints (x, y) in place of hinges about y.
      gravity: [m/s^2].

    Source: Passerello & Huston (1972), summary and conclusions.
    """
    if n < 1:
        raise ValueError(f"A cable of {n} rods; expected one or more.")
    l, m = length / n, mass / n
    b, parent, at = Builder(gravity=gravity), "world", Pose()
    for i in range(n):
        # a trace of inertia about the rod's axis keeps single rods regular on universal joints
        b.body(f"rod{i}", mass=m, com=(0.0, 0.0, -l / 2), inertia=m * l**2 / 12 * np.diag([1.0, 1.0, 1e-6]))
        joint = universal((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)) if spatial else revolute((0.0, 1.0, 0.0))
        stiffness = bending / l * (1.0 if i else 2.0)
        b.joint(f"joint{i}", joint, parent, f"rod{i}", at, stiffness=stiffness, damping=damping)
        parent, at = f"rod{i}", Pose((0.0, 0.0, -l))
    b.frame("tip", on=parent, pose=at)
    return b.build()


def teleoperator(gravity: Numbers = (0.0, 0.0, -9.81)) -> System:
    """A manipulator arm with the freedoms of a human one, 7 and a gripper; arm straight up along z at q = 0.

    `shoulder` (angles z-y-z: azimuth, elevation, twist), `elbow` (hinge y), `wrist` (angles z-y-x), and the jaws
    `left_jaw` (slide [m]) with `right_jaw` coupled to it in the opposite sense. Frame `grip` between the jaws.
    """
    b = Builder(gravity=gravity)
    links = (
        ("upper_arm", 8.0, 0.45, 0.06, gimbal("zyz"), "shoulder"),
        ("forearm", 5.0, 0.40, 0.05, revolute((0.0, 1.0, 0.0)), "elbow"),
        ("hand", 1.5, 0.12, 0.05, gimbal("zyx"), "wrist"),
    )
    parent, at = "world", Pose((0.0, 0.0, 0.5))
    for name, mass, length, radius, joint, label in links:
        across, along = mass * (3 * radius**2 + length**2) / 12, 0.5 * mass * radius**2
        b.body(name, mass=mass, com=(0.0, 0.0, length / 2), inertia=np.diag([across, across, along]))
        b.joint(label, joint, parent, name, at, damping=0.5)
        parent, at = name, Pose((0.0, 0.0, length))
    for side, y in (("left", 1.0), ("right", -1.0)):
        b.body(f"{side}_finger", mass=0.1, com=(0.0, 0.0, 0.03), inertia=1e-5 * np.eye(3))
        b.joint(f"{side}_jaw", prismatic((0.0, 1.0, 0.0)), "hand", f"{side}_finger", Pose((0.0, 0.02 * y, 0.12)))
    b.couple("right_jaw", "left_jaw", ratio=-1.0)
    b.frame("grip", on="hand", pose=Pose((0.0, 0.0, 0.17)))
    return b.build()
