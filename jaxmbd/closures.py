"""Constraints as data: what a cut joint, a rod, a gear or a rolling wheel forbids.

A constraint sees the frames it was given (and coordinates of joints) and returns rows: `residual`, zero where the
positions are allowed (holonomic), and `rate`, zero where the velocities are (non-holonomic, affine in the velocities).
Jacobians and accelerations follow by differentiation, so a constraint is written once, on position or velocity level.

A cut joint is a joint: its rows are the modes that the record locks, written as functions of the relative pose with the
joint's own coordinates eliminated: in closed form, or by a search for them (`locked.py`) where there is none. They are
exact on position level, not only to first order.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.joints import Driven, Joint, Mapped, Quaternion, Screws, as_pytree, unit
from jaxmbd.locked import locked_rates, locked_rows, turned
from jaxmbd.values import Numbers, concrete, floats


class At(NamedTuple):
    """What a constraint sees: its frames in world axes, the coordinates of its joints, and time [s].

    `velocity` and `v` are None on position level.
    """

    rotation: Float[Array, "k 3 3"]
    position: Float[Array, "k 3"]
    velocity: Float[Array, "k 6"] | None
    q: Float[Array, " m"]
    v: Float[Array, " m"] | None
    t: Float[Array, ""]

    @property
    def relative(self) -> tuple[Float[Array, "3 3"], Float[Array, "3"]]:
        """Rotation and position of the second frame in the first."""
        R = self.rotation[0].T
        return R @ self.rotation[1], R @ (self.position[1] - self.position[0])


class Constraint(eqx.Module):
    """Rows on position level, then rows on velocity level. Final subclasses hold their numbers as leaves."""

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """What the field calls this constraint."""

    @property
    @abc.abstractmethod
    def rows(self) -> tuple[int, int]:
        """Number of holonomic and of non-holonomic rows."""

    @property
    def takes(self) -> tuple[int, int]:
        """Number of frames and of joints that it acts on."""
        return 2, 0

    def residual(self, at: At) -> Float[Array, " rows"]:
        """Holonomic rows: zero where the positions are allowed [m, rad or what the constraint says]."""
        return jnp.zeros(0, at.position.dtype)

    def rate(self, at: At) -> Float[Array, " rows"]:
        """Non-holonomic rows: zero where the velocities are allowed [m/s, rad/s]; affine in the velocities."""
        return jnp.zeros(0, at.position.dtype)


class CutJoint(Constraint):
    """The locked modes of a joint between two frames: joint.nv freedoms are left, 6 - joint.nv rows are closed.

    Positions come first [m], in axes of the first frame (of the second for joints that turn before they slide), then
    alignments, about half the tangent of half the angle each [rad near zero].

    With `motion` the joint is driven: its coordinates are a function of time and all six rows are closed (the locked
    and the driven modes). Where it is `searched`, its coordinates have no closed form.
    """

    joint: Joint
    motion: Callable[[Array], Array] | None = None
    searched: bool = eqx.field(static=True, default=False)

    @property
    def kind(self) -> str:
        return self.joint.kind if self.motion is None else f"driven {self.joint.kind}"

    @property
    def rows(self) -> tuple[int, int]:
        if self.motion is not None:
            return 6, 0
        nq = self.joint.nq if self.searched else self.joint.nv
        return 6 - nq, nq - self.joint.nv

    def residual(self, at):
        R, p = at.relative
        if self.motion is not None:
            target = self.joint.pose(jnp.asarray(self.motion(at.t), p.dtype).reshape(self.joint.nq))
            return jnp.concatenate([p - target.position, turned(target.rotation.T @ R)])
        if self.searched:
            return locked_rows(self.joint, R, p)
        if isinstance(self.joint, Quaternion):
            return p
        assert isinstance(self.joint, Screws)
        axis = unit(self.joint.axis)
        turns = [i for i, turning in enumerate(self.joint.turning) if turning]
        slides = [i for i, turning in enumerate(self.joint.turning) if not turning]
        slid = R.T @ p if turns and slides and slides[0] > turns[-1] else p
        parts = [_across(axis[np.array(slides, int)], slid)]
        if not turns:
            parts.append(turned(R))
        elif len(turns) == 1:
            n = axis[turns[0]]
            x, y, _ = so3.frame_along(n).T
            image = R @ n
            if self.joint.helical[turns[0]]:
                parts = [_across(n[None], p), _advance(R, n, n @ p, self.joint.pitch[turns[0]])[None]]
            parts.append(jnp.stack([x @ image, y @ image]) * 2.0 / jnp.maximum(1.0 + n @ image, 1e-3))
        elif len(turns) == 2:
            first, second = axis[turns[0]], axis[turns[1]]
            parts.append((first @ R @ second - first @ second)[None])
        return jnp.concatenate(parts)

    def rate(self, at):
        if not self.rows[1]:
            return super().rate(at)
        assert at.velocity is not None
        V, inboard = at.velocity, at.rotation[0].T
        linear = V[1, 3:] - V[0, 3:] - jnp.cross(V[0, :3], at.position[1] - at.position[0])
        twist = jnp.concatenate([inboard @ (V[1, :3] - V[0, :3]), inboard @ linear])
        return locked_rates(self.joint, *at.relative, twist)


def _across(directions, p):
    """Components of p across the directions of sliding."""
    if len(directions) == 0:
        return p
    if len(directions) == 1:
        x, y, _ = so3.frame_along(directions[0]).T
        return jnp.stack([x @ p, y @ p])
    if len(directions) == 2:
        return (unit(jnp.cross(directions[0], directions[1])) @ p)[None]
    return p[:0]


def _advance(R, n, along, pitch):
    """Displacement along a screw's axis less pitch times its angle; turns are counted by the displacement."""
    x, y, _ = so3.frame_along(n).T
    angle = jnp.arctan2(y @ R @ x - x @ R @ y, x @ R @ x + y @ R @ y)
    whole = jnp.round((along / jnp.where(pitch == 0.0, 1.0, pitch) - angle) / (2.0 * jnp.pi))
    return along - pitch * (angle + 2.0 * jnp.pi * whole)


def cut_joint(joint: Joint) -> CutJoint:
    """The constraint that a joint between two frames is.

    Args:
      joint: of a driven joint all velocities must follow a law of positions.

    Raises: ValueError for joints that lock nothing, and where a screw with an advance stands beside other screws.
    """
    if isinstance(joint, Driven):
        if len(joint.velocities) < joint.nv or joint.level != "position":
            raise ValueError(
                f"Of this {joint.kind} joint some velocities are driven, or speeds: a cut joint can follow a law that "
                "gives all its positions. Let the joint stand in the tree."
            )
        return CutJoint(joint.joint, joint.law)
    if joint.nv >= 6:
        raise ValueError(f"A {joint.kind} joint locks nothing, so it closes no loop; leave the closure out.")
    if has_closed_form(joint):
        return CutJoint(joint)
    if isinstance(joint, Screws) and any(joint.helical):
        raise ValueError(
            f"Of this {joint.kind} joint one screw advances as it turns, beside offsets or other screws: which turn it "
            "is in cannot be told from a pose, so it must stand in the tree. Cut the loop at another joint; an offset "
            "before a single screw belongs into its frame."
        )
    if not isinstance(joint, Mapped | Screws) or joint.nq > 6:
        raise ValueError(
            f"A {joint.kind} joint of {joint.nq} coordinates cannot be cut: a pose tells no more than six. Let it "
            "stand in the tree."
        )
    return CutJoint(joint, None, True)


def has_closed_form(joint: Joint) -> bool:
    """Whether a cut joint's coordinates are eliminated without a search: plain products, slides apart from turns."""
    if isinstance(joint, Quaternion):
        return not joint.translating
    if not isinstance(joint, Screws) or joint.nv > 5:
        return False
    positions, quaternions = concrete(joint.offset_position), concrete(joint.offset_quaternion)
    plain = positions is not None and quaternions is not None and not np.any(positions)
    plain = plain and bool(np.all(quaternions == np.array([1.0, 0.0, 0.0, 0.0])))
    turns = [i for i, turning in enumerate(joint.turning) if turning]
    slides = [i for i, turning in enumerate(joint.turning) if not turning]
    apart = not turns or not slides or slides[-1] < turns[0] or slides[0] > turns[-1]
    lone = not any(joint.helical) or joint.nv == 1
    return plain and apart and lone and len(turns) <= 3 and len(slides) <= 3


class Distance(Constraint):
    """Two frames' origins at a fixed distance: a massless rod with ball ends."""

    length: Float[Array, ""]

    @property
    def kind(self) -> str:
        return "distance"

    @property
    def rows(self) -> tuple[int, int]:
        return 1, 0

    def residual(self, at):
        d = at.position[1] - at.position[0]
        return ((d @ d - self.length**2) / (2.0 * self.length))[None]


def distance(length: Numbers) -> Distance:
    """The origins of two frames stay `length` [m] apart; the residual is the excess, to first order."""
    known = concrete(length)
    if known is not None and not np.all(known > 0):
        raise ValueError(f"The length of a rod is {length} m; expected more than zero. For zero use mb.spherical().")
    return Distance(floats(length))


class Gear(Constraint):
    """Two joint coordinates in a fixed ratio: second = ratio * first + offset."""

    ratio: Float[Array, ""]
    offset: Float[Array, ""]

    @property
    def kind(self) -> str:
        return "gear"

    @property
    def rows(self) -> tuple[int, int]:
        return 1, 0

    @property
    def takes(self) -> tuple[int, int]:
        return 0, 2

    def residual(self, at):
        return (at.q[1] - self.ratio * at.q[0] - self.offset)[None]


def gear(ratio: Numbers, offset: Numbers = 0.0) -> Gear:
    """Two joints of one freedom in mesh: q_second = ratio * q_first + offset.

    Args:
      ratio: [1] between two hinges, [m/rad] between a pinion and its rack.
      offset: [rad] or [m].
    """
    return Gear(floats(ratio), floats(offset))


class _Own(Constraint):
    """Rows by a user's function of what the constraint sees."""

    function: Callable[[At], Array]
    size: int = eqx.field(static=True)
    frames: int = eqx.field(static=True)
    joints: int = eqx.field(static=True)

    @property
    def takes(self) -> tuple[int, int]:
        return self.frames, self.joints

    def values(self, at: At) -> Float[Array, " rows"]:
        """The function's numbers, as many as were announced."""
        return jnp.reshape(jnp.asarray(self.function(at), at.position.dtype), (self.size,))


class Holonomic(_Own):
    """Rows on position level by a user's function."""

    @property
    def kind(self) -> str:
        return "holonomic"

    @property
    def rows(self) -> tuple[int, int]:
        return self.size, 0

    def residual(self, at):
        return self.values(at)


class Nonholonomic(_Own):
    """Rows on velocity level by a user's function."""

    @property
    def kind(self) -> str:
        return "non-holonomic"

    @property
    def rows(self) -> tuple[int, int]:
        return 0, self.size

    def rate(self, at):
        return self.values(at)


def holonomic(function: Callable[[At], Any], rows: int = 1, frames: int = 2, joints: int = 0) -> Holonomic:
    """A constraint on positions, function(at) = 0 (rheonomic where it uses `at.t`).

    Args:
      function: of the frames `at.rotation[i]`, `at.position[i]` (world axes), the joints' coordinates `at.q` and the
        time `at.t`; twice differentiable. An `eqx.Module` brings numbers that are differentiated too.
      rows: how many numbers it returns.
      frames, joints: how many of each it is given.
    """
    return Holonomic(as_pytree(function), rows, frames, joints)


def nonholonomic(function: Callable[[At], Any], rows: int = 1, frames: int = 2, joints: int = 0) -> Nonholonomic:
    """A constraint on velocities, function(at) = R(q, t) v - c(q, t) = 0, affine in the velocities.

    Args:
      function: as for `holonomic`, with the frames' velocities `at.velocity[i]` ([angular; linear], world axes) and the
        joints' `at.v`; once differentiable.
      rows, frames, joints: as for `holonomic`.
    """
    return Nonholonomic(as_pytree(function), rows, frames, joints)
