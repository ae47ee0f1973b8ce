"""Wrenches given from outside: constant ones, functions of time, and functions of a frame's motion."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.elements.protocol import ForceElement, FrameState, Sides
from jaxmbd.forces import Wrench
from jaxmbd.joints import as_pytree
from jaxmbd.kinematics import FrameMotion
from jaxmbd.spatial import Force, Vec3


class ConstantWrench(ForceElement):
    """A `Wrench`: dead in world axes, or a follower with axes="local"."""

    frames: Sides = eqx.field(static=True)
    wrench: Wrench

    def __init__(self, wrench: Wrench):
        self.frames, self.wrench = (wrench.frame,), wrench

    @property
    def points(self):
        return (self.wrench.point,)

    def wrenches(self, motion, t):
        moment, force = Vec3.of(self.wrench.moment), Vec3.of(self.wrench.force)
        return (_turned(self.wrench.axes, motion[0], moment, force),)


class WrenchLaw(ForceElement):
    """A wrench as a function of time and, if it asks for it, of the motion of its frame."""

    frames: Sides = eqx.field(static=True)
    law: Callable
    point: Float[Array, "3"] | None
    axes: str = eqx.field(static=True)
    moving: bool = eqx.field(static=True)

    def __init__(
        self,
        frame: str,
        law: Callable,
        *,
        axes: str = "world",
        of: str = "time",
        point: Float[Array, "3"] | None = None,
    ):
        """Args:
        frame: link or frame that the wrench acts on.
        law: t -> six numbers [moment [N m]; force [N]]; with of="motion", (motion, t) -> the same, where motion has
          `rotation` [3, 3], `position` [3] and `velocity` [6] of the point in world axes. A function with numbers to
          differentiate is an `eqx.Module`.
        axes: "world", or "local" for a follower.
        of: "time" or "motion".
        point: where the force acts, in the frame's axes [m].
        """
        for value, name, known in ((axes, "axes", ("world", "local")), (of, "of", ("time", "motion"))):
            if value not in known:
                raise ValueError(f"{name} of a wrench law is {value!r}; expected {known[0]!r} or {known[1]!r}.")
        self.frames, self.law, self.axes, self.moving = (frame,), as_pytree(law), axes, of == "motion"
        self.point = None if point is None else jnp.asarray(point, float)

    @property
    def points(self):
        return (self.point,)

    def wrenches(self, motion, t):
        six = self.law(_arrays(motion[0]), t) if self.moving else self.law(t)
        six = jnp.asarray(six, motion[0].position.x.dtype)
        if six.shape != (6,):
            raise ValueError(f"The law of a wrench on {self.frames[0]!r} gives shape {six.shape}; expected (6,).")
        return (_turned(self.axes, motion[0], Vec3.of(six[:3]), Vec3.of(six[3:])),)


def _turned(axes: str, state: FrameState, moment: Vec3, force: Vec3) -> Force:
    if axes == "local":
        return Force(state.rotation @ moment, state.rotation @ force)
    return Force(moment, force)


def _arrays(state: FrameState) -> FrameMotion:
    """A frame's motion as ordinary arrays; its acceleration is not known before the forces are, and is zero here."""
    rows = [jnp.stack([row.x, row.y, row.z], -1) for row in state.rotation.rows]
    velocity = jnp.stack([*_three(state.omega), *_three(state.velocity)], -1)
    return FrameMotion(jnp.stack(rows, -2), jnp.stack(_three(state.position), -1), velocity, jnp.zeros_like(velocity))


def _three(v: Vec3):
    return v.x, v.y, v.z
