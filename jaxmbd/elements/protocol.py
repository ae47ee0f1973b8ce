"""What a force element is: from the motion of frames, of bodies or of joints to what acts on them.

Elements are written in components (`Vec3`, `Mat3`, `Force` with operators), elementwise: one formula serves one pair of
frames, whose components are numbers, and a row of n pairs, whose components are arrays [n]. No small matrix is formed,
under `vmap` as well.

A user's own element is a subclass with its numbers as fields and one method; `potential` and `dissipation` complete its
energy balance.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.spatial import Force, Mat3, Scalar, Sym3, Vec3
from jaxmbd.values import Numbers, floats

Names = str | Sequence[str]
Sides = tuple[str | tuple[str, ...], ...]


class FrameState(NamedTuple):
    """Motion of a frame, or of the n frames of one side of an element: world axes, at the frame's origin."""

    rotation: Mat3
    position: Vec3
    omega: Vec3
    velocity: Vec3


class BodyState(NamedTuple):
    """Motion and inertia of all moving bodies [nb], in the order of `System.body_names`: world axes, at their coms."""

    mass: Scalar
    inertia: Sym3
    rotation: Mat3
    position: Vec3
    omega: Vec3
    velocity: Vec3


class ForceElement(eqx.Module):
    """A force between frames. `frames` names one link or frame a side, or a tuple of n of them a side.

    The motion of each side and what acts on it refer to the origin of the frame, displaced by the side's entry of
    `points`.
    """

    frames: eqx.AbstractVar[Sides]

    @property
    def points(self) -> tuple[Float[Array, "*n 3"] | None, ...]:
        """Where on each frame the element is attached, in the frame's axes [m]; None for its origin."""
        return (None,) * len(self.frames)

    @abc.abstractmethod
    def wrenches(self, motion: tuple[FrameState, ...], t: Scalar) -> tuple[Force, ...]:
        """What acts on each side: moment [N m] and force [N], world axes, at the side's point."""

    def potential(self, motion: tuple[FrameState, ...], t: Scalar) -> Scalar:
        """Stored energy [J]; one number, or one for each of the n."""
        return 0.0

    def dissipation(self, motion: tuple[FrameState, ...], t: Scalar) -> Scalar:
        """Power turned into heat [W], not negative; one number, or one for each of the n."""
        return 0.0


class BodyElement(eqx.Module):
    """A force on every moving body, as a field gives."""

    @abc.abstractmethod
    def wrenches(self, bodies: BodyState, t: Scalar) -> Force:
        """What acts on every body [nb]: world axes, at its centre of mass."""

    def potential(self, bodies: BodyState, t: Scalar) -> Scalar:
        """Stored energy [J]."""
        return 0.0

    def dissipation(self, bodies: BodyState, t: Scalar) -> Scalar:
        """Power turned into heat [W], not negative."""
        return 0.0


class JointState(NamedTuple):
    """What a joint force sees: coordinates and velocities of its joints, the command for them and its own state z."""

    q: Float[Array, " joint_nq"]
    v: Float[Array, " joint_nv"]
    command: Float[Array, " joint_nv"]
    z: Float[Array, " nz"]


class JointElement(eqx.Module):
    """Generalised forces on some joints. It may carry a state z of its own, which moves on step by step.

    With `commanded`, the control's entries for these joints are a command to the element, and no force by themselves.
    """

    joints: eqx.AbstractVar[tuple[str, ...]]
    commanded: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def effort(self, at: JointState, t: Scalar) -> Float[Array, " joint_nv"]:
        """Generalised forces dual to the joints' velocities [N m, N]."""

    def initial_state(self, size: int) -> Float[Array, " nz"]:
        """z at the start of a simulation; `size` is the number of the joints' velocities."""
        return jnp.zeros(0)

    def state_after(self, at: JointState, t: Scalar, h: Scalar) -> Float[Array, " nz"]:
        """z a time h after a step began at t with `at`, whose command is held over the step."""
        return at.z

    def armature(self) -> Float[Array, "..."] | None:
        """Inertia that the element adds to its joints' velocities [kg m^2, kg], one number or one a velocity."""
        return None

    def potential(self, at: JointState, t: Scalar) -> Scalar:
        """Stored energy [J]."""
        return 0.0

    def dissipation(self, at: JointState, t: Scalar) -> Scalar:
        """Power turned into heat [W], not negative."""
        return 0.0


Element = ForceElement | BodyElement | JointElement


def sides(*groups: Names) -> Sides:
    """Frames of the sides of an element: single names, or as many a side; a single name beside others is repeated.

    Raises: ValueError when the sides name different numbers of frames.
    """
    single = tuple(group for group in groups if isinstance(group, str))
    if len(single) == len(groups):
        return single
    lengths = {len(group) for group in groups if not isinstance(group, str)}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            f"The sides of an element name {[1 if isinstance(g, str) else len(g) for g in groups]} frames; expected as "
            "many on every side, or one."
        )
    (n,) = lengths
    return tuple((group,) * n if isinstance(group, str) else tuple(group) for group in groups)


def parameter(value: Numbers, name: str, frames: Sides, size: tuple[int, ...] = ()) -> Float[Array, "..."]:
    """A physical number of an element: of shape `size`, or [n, *size], one for each of the n frames of a side.

    Raises: ValueError when the shape does not fit.
    """
    array = jnp.asarray(floats(value))
    allowed = [size] if isinstance(frames[0], str) else [size, (len(frames[0]), *size)]
    if array.shape not in allowed:
        raise ValueError(
            f"{name} has shape {array.shape}; expected {' or '.join(map(str, allowed))} for an element on "
            f"{frames[0] if isinstance(frames[0], str) else len(frames[0])!r}."
        )
    return array


def point(value: Numbers | None, name: str, frames: Sides) -> Float[Array, "*n 3"] | None:
    """A point of attachment, or None."""
    return None if value is None else parameter(value, name, frames, (3,))


def safe_inverse_root(square: Scalar) -> Scalar:
    """1 / sqrt(x), and zero with zero derivatives at x = 0."""
    positive = square > 0
    return jnp.where(positive, 1.0 / jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def astype(element: Element, dtype) -> Element:
    """The element with every floating-point number in another type."""

    def cast(leaf):
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    return jax.tree.map(cast, element)
