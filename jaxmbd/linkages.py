"""Ready mechanisms with closed loops, for tests, experiments and notebooks. SI units, gravity along -z.

Planar ones move in the plane x, z; positive angles turn x towards z. Bars are thin, uniform and lie along their own x.
"""

from __future__ import annotations

import numpy as np

from jaxmbd.builder import Builder
from jaxmbd.joint_kinds import prismatic, revolute, spherical, universal
from jaxmbd.models import GRAVITY, rod_inertia
from jaxmbd.pose import Pose
from jaxmbd.system import System
from jaxmbd.values import Numbers

TURN = (0.0, -1.0, 0.0)
"""Axis of planar hinges: positive angles turn x towards z."""


def _bar(b: Builder, name: str, length: float, mass: float) -> None:
    # a bar's inertia about its own axis never matters in the plane; a hundredth keeps it solid
    b.body(name, mass, (length / 2, 0, 0), rod_inertia(mass, length, (1, 0, 0)) + 1e-2 * mass * length**2 * np.eye(3))


def four_bar(
    crank: float = 0.4,
    coupler: float = 1.0,
    rocker: float = 0.8,
    ground: float = 1.1,
    density: float = 1.0,
    gravity: Numbers = GRAVITY,
) -> System:
    """Four-bar linkage: hinges A (ground-crank), B (crank-coupler), D (ground-rocker) in the tree, C closes the loop.

    Frames `coupler_end` and `rocker_end` are the two sides of C and hold the lengths of coupler and rocker; `B` and `D`
    hold those of crank and ground in `in_parent.position`; `trace` is the coupler's point to be followed.

    Args:
      density: mass per length of the bars [kg/m].
    """
    b = Builder(gravity=gravity)
    for name, length in (("crank", crank), ("coupler", coupler), ("rocker", rocker)):
        _bar(b, name, length, density * length)
    b.joint("A", revolute(TURN), "world", "crank")
    b.joint("B", revolute(TURN), "crank", "coupler", in_parent=Pose((crank, 0, 0)))
    b.joint("D", revolute(TURN), "world", "rocker", in_parent=Pose((ground, 0, 0)))
    b.frame("coupler_end", on="coupler", pose=Pose((coupler, 0, 0)))
    b.frame("rocker_end", on="rocker", pose=Pose((rocker, 0, 0)))
    b.frame("trace", on="coupler", pose=Pose((coupler / 2, 0, coupler / 4)))
    b.closure("C", revolute(TURN), "coupler_end", "rocker_end")
    return b.build()


def n_four_bar(n: int, gravity: Numbers = GRAVITY) -> System:
    """n windows of n + 1 equal pivoted bars and n couplers, 1 m and 1 kg each (IFToMM benchmark A02).

    Bars `bar0`, ... on hinges `pivot0`, ..., couplers `coupler1`, ... on hinges `top1`, ... of the bar before them.
    """
    b = Builder(gravity=gravity)
    for i in range(n + 1):
        b.body(f"bar{i}", 1.0, (0.5, 0, 0), rod_inertia(1.0, 1.0, (1, 0, 0)))
        b.joint(f"pivot{i}", revolute(TURN), "world", f"bar{i}", in_parent=Pose((float(i), 0, 0)))
    for i in range(1, n + 1):
        b.body(f"coupler{i}", 1.0, (0.5, 0, 0), rod_inertia(1.0, 1.0, (1, 0, 0)))
        b.joint(f"top{i}", revolute(TURN), f"bar{i - 1}", f"coupler{i}", in_parent=Pose((1.0, 0, 0)))
        b.frame(f"left{i}", on=f"coupler{i}", pose=Pose((1.0, 0, 0)))
        b.frame(f"right{i}", on=f"bar{i}", pose=Pose((1.0, 0, 0)))
        b.closure(f"loop{i}", revolute(TURN), f"left{i}", f"right{i}")
    return b.build()


def slider_crank(crank: float = 0.15, rod: float = 0.3, masses=(0.36, 0.151104, 0.075552), gravity=(0, 0, 0)) -> System:
    """Crank on `turn`, connecting rod on `pin`, block on the slide `block` along x; `wrist` closes the loop."""
    b = Builder(gravity=gravity)
    b.body("crank", masses[0], (crank / 2, 0, 0), rod_inertia(masses[0], crank, (1, 0, 0)))
    b.body("rod", masses[1], (rod / 2, 0, 0), rod_inertia(masses[1], rod, (1, 0, 0)))
    b.body("slider", masses[2], inertia=1e-4 * np.eye(3))
    b.joint("turn", revolute(TURN), "world", "crank")
    b.joint("pin", revolute(TURN), "crank", "rod", in_parent=Pose((crank, 0, 0)))
    b.joint("block", prismatic((1, 0, 0)), "world", "slider")
    b.frame("rod_end", on="rod", pose=Pose((rod, 0, 0)))
    b.closure("wrist", revolute(TURN), "rod_end", "slider")
    return b.build()


def bennett(a: float = 0.6, twist: float = 0.7, other: float = 0.9, gravity: Numbers = GRAVITY) -> System:
    """Bennett's spatial four-bar: four hinges, no two parallel, and yet one freedom (two rows of five count).

    Lengths a and `other` alternate, twists too, with a / sin(twist) = other / sin(other twist) (Bennett 1903).
    """
    twists = (twist, np.arcsin(other / a * np.sin(twist)))
    lengths = (a, other)
    b = Builder(gravity=gravity)
    hinge = revolute((0, 0, 1))
    ends = [Pose((lengths[i % 2], 0, 0)) @ Pose.from_axis_angle((0, 0, 0), (1, 0, 0), twists[i % 2]) for i in range(4)]
    parent, at = "world", Pose()
    for i in range(3):
        _bar(b, f"link{i}", lengths[i % 2], 1.0)
        b.joint(f"hinge{i}", hinge, parent, f"link{i}", in_parent=at)
        parent, at = f"link{i}", ends[i]
    b.frame("last", on=parent, pose=at)
    b.frame("first", on="world", pose=ends[3].inverse())
    b.closure("loop", hinge, "last", "first")
    return b.build()


def stewart_platform(
    base: float = 1.0, top: float = 0.6, height: float = 1.0, leg_mass: float = 1.0, mass: float = 10.0
) -> System:
    """Stewart-Gough platform: six legs with a universal joint below, a slide `slide0`, ... and a ball joint above.

    The body `platform` hangs on the ball joint of leg 0; those of the other legs close five loops. At q = 0 the
    platform is level at `height`, and the slides at their middle.
    """
    b = Builder()
    half = leg_mass / 2
    b.body("platform", mass, inertia=mass * top**2 * np.diag([0.25, 0.25, 0.5]))
    spread = np.deg2rad(10.0)
    for i in range(6):
        side, sector = (-1) ** i, (i + 1) // 2 * 2 * np.pi / 3
        foot = base * np.array([np.cos(sector + side * spread), np.sin(sector + side * spread), 0.0])
        turned = sector + side * (np.pi / 3 - spread)
        head = np.array([top * np.cos(turned), top * np.sin(turned), height])
        length = float(np.linalg.norm(head - foot))
        along = (head - foot) / length
        across = np.cross([0, 0, 1], along)
        across /= np.linalg.norm(across)
        R = np.stack([across, np.cross(along, across), along], 1)
        b.body(f"cylinder{i}", half, (0, 0, length / 4), rod_inertia(half, length / 2) + 1e-3 * half * np.eye(3))
        b.body(f"piston{i}", half, (0, 0, -length / 4), rod_inertia(half, length / 2) + 1e-3 * half * np.eye(3))
        b.joint(f"foot{i}", universal((1, 0, 0), (0, 1, 0)), "world", f"cylinder{i}", in_parent=Pose(foot, R))
        b.joint(f"slide{i}", prismatic((0, 0, 1)), f"cylinder{i}", f"piston{i}", in_parent=Pose((0, 0, length)))
        local = Pose(head - [0, 0, height], R)
        b.joint(f"ball{i}", spherical(), f"piston{i}", "platform", in_child=local)
    return b.build()
