"""The joints by name: constructor functions for the records of `joints.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxmbd.joints import Driven, Joint, Mapped, PoseAndRates, Quaternion, Screws, as_pytree
from jaxmbd.pose import Pose
from jaxmbd.values import Numbers, concrete, floats, shape


def _screws(kind: str, axes: Sequence[Numbers], turning: Sequence[bool], pitches: Sequence = ()) -> Screws:
    for axis in axes:
        if shape(axis) != (3,):
            raise ValueError(f"The axis of a {kind} joint has shape {shape(axis)}; expected three numbers.")
        known = concrete(axis)
        if known is not None and not np.linalg.norm(known) > 0:
            raise ValueError(f"The axis of a {kind} joint is {axis}; expected a direction of non-zero length.")
    k = len(axes)
    return Screws(
        axis=floats(cast(Numbers, axes)) if axes else floats(np.zeros((0, 3))),
        pitch=floats(pitches if pitches else np.zeros(k)),
        offset_position=floats(np.zeros((k, 3))),
        offset_quaternion=floats(np.tile([1.0, 0.0, 0.0, 0.0], (k, 1))),
        turning=tuple(turning),
        helical=(bool(pitches),) * k,
        name=kind,
    )


def fixed() -> Screws:
    """A weld: no freedom. The bodies it joins are merged."""
    return _screws("fixed", [], [])


def revolute(axis: Numbers) -> Screws:
    """Rotation about an axis: q [rad]."""
    return _screws("revolute", [axis], [True])


def continuous(axis: Numbers) -> Screws:
    """Rotation without limits about an axis: q [rad], one angle that may exceed a turn."""
    return _screws("continuous", [axis], [True])


def prismatic(axis: Numbers) -> Screws:
    """Translation along an axis: q [m]."""
    return _screws("prismatic", [axis], [False])


def screw(axis: Numbers, pitch: Numbers) -> Screws:
    """Rotation q [rad] about an axis with an advance of pitch [m/rad] times q along it."""
    return _screws("screw", [axis], [True], [pitch])


def cylindrical(axis: Numbers) -> Screws:
    """Rotation about and translation along one axis: q = [angle [rad], displacement [m]]."""
    return _screws("cylindrical", [axis, axis], [True, False])


def universal(axis1: Numbers, axis2: Numbers) -> Screws:
    """Two rotations: about axis1 of the inboard and axis2 of the outboard frame, q [rad] (a massless spider)."""
    return _screws("universal", [axis1, axis2], [True, True])


def planar(normal: Numbers = (0.0, 0.0, 1.0)) -> Screws:
    """Motion in a plane: q = [x, y [m], angle [rad]].

    Frames: x, y and the normal are the axes of the inboard frame turned the shortest way from its z to `normal`.
    """
    n = np.asarray(normal, float)
    if n.shape != (3,) or not np.linalg.norm(n) > 0:
        raise ValueError(f"The normal of a planar joint is {normal}; expected three numbers, not all zero.")
    n = n / np.linalg.norm(n)
    half = n + np.array([0.0, 0.0, 1.0])
    x, y = np.eye(3)[:2]
    if np.linalg.norm(half) > 1e-12:
        # half a turn about z, then half a turn about the half-way vector: together the shortest turn from z to n
        x, y = (e - 2 * half * (half @ e) / (half @ half) for e in (x, y))
    else:
        y = -y
    return _screws("planar", [x, y, n], [False, False, True])


def gimbal(sequence: str = "xyz") -> Screws:
    """Three successive rotations about the moved axes of a sequence such as "xyz" or "zxz": q [rad]."""
    if len(sequence) != 3 or set(sequence) - set("xyz"):
        raise ValueError(
            f"The sequence of a gimbal joint is {sequence!r}; expected three letters of x, y, z, as 'xyz'."
        )
    if sequence[0] == sequence[1] or sequence[1] == sequence[2]:
        raise ValueError(f"The gimbal sequence {sequence!r} repeats an axis at once; neighbours must differ.")
    return _screws("gimbal", [np.eye(3)["xyz".index(s)] for s in sequence], [True] * 3)


def translational() -> Screws:
    """Three translations along the inboard axes: q [m]."""
    return _screws("translational", list(np.eye(3)), [False] * 3)


def spherical() -> Quaternion:
    """Ball joint: q = quaternion (w, x, y, z), v = relative angular velocity in outboard axes [rad/s]."""
    return Quaternion(translating=False)


def free() -> Quaternion:
    """All six freedoms: q = [quaternion, position [m]], v = [angular, linear] in outboard axes [rad/s, m/s]."""
    return Quaternion(translating=True)


def screw_product(factors: Sequence[Screws | Pose]) -> Screws:
    """Serial product of screw joints, with fixed poses between them where given.

    `screw_product([revolute(a), Pose((0, 0, 0.1)), revolute(b)])` turns about a, goes 0.1 m along the turned z, and
    turns about b there.
    """
    offset, parts = Pose(), []
    for factor in factors:
        if isinstance(factor, Pose):
            offset = offset @ factor
        elif isinstance(factor, Screws) and factor.nq:
            first = offset @ Pose(factor.offset_position[0], factor.offset_quaternion[0])
            position, quaternion = jnp.asarray(factor.offset_position), jnp.asarray(factor.offset_quaternion)
            moved = position.at[0].set(first.position), quaternion.at[0].set(first.quaternion)
            parts.append(eqx.tree_at(lambda f: (f.offset_position, f.offset_quaternion), factor, moved))
            offset = Pose()
        else:
            raise ValueError(
                f"A screw product was given {factor!r}; expected joints made of screws "
                "(revolute, prismatic, ...) and poses."
            )
    if not parts:
        raise ValueError("A screw product needs at least one joint; for no freedom use fixed().")
    if not np.array_equal(np.asarray(offset.position), np.zeros(3)) or not np.array_equal(
        np.asarray(offset.quaternion), [1, 0, 0, 0]
    ):
        raise ValueError("A screw product ends with a pose; give it as `in_child` (inverted) of the joint instead.")
    return Screws(
        axis=jnp.concatenate([p.axis for p in parts]),
        pitch=jnp.concatenate([p.pitch for p in parts]),
        offset_position=jnp.concatenate([p.offset_position for p in parts]),
        offset_quaternion=jnp.concatenate([p.offset_quaternion for p in parts]),
        turning=tuple(t for p in parts for t in p.turning),
        helical=tuple(h for p in parts for h in p.helical),
        name="screw product",
    )


def mapped(function: Callable[[Array], Pose], nq: int, *, N: Callable[[Array], Array] | None = None) -> Mapped:
    """A joint from a function of its coordinates.

    Args:
      function: q [nq] -> pose of the outboard frame in the inboard one.
      nq: number of coordinates.
      N: q -> matrix [nq, nv] of q_dot = N(q) v. Its columns are the rates of the coordinates that the joint allows: as
        many as coordinates for other velocities than their rates, fewer for a non-holonomic joint (a blade, a rolling
        wheel). v = q_dot when left out.

    Both may be `eqx.Module`s: their numbers are differentiated too.
    Raises: ValueError when N is no matrix of nq rows and at most nq columns.
    Source: Schwertassek & Senger (1988), Eqs. 3.6-3.10, 3.23.
    """
    if N is None:
        return Mapped(as_pytree(function), nq)
    found = jax.eval_shape(N, jnp.zeros(nq)).shape
    if len(found) != 2 or found[0] != nq or not 0 < found[1] <= nq:
        raise ValueError(
            f"N of a mapped joint with {nq} coordinates has shape {list(found)}; expected [{nq}, nv] with 1 to {nq} "
            "columns, the rates of the coordinates that each velocity gives."
        )
    return Mapped(PoseAndRates(as_pytree(function), as_pytree(N)), nq, found[1])


def driven(
    joint: Joint,
    *,
    position: Callable[[Array], Array] | None = None,
    speed: Callable[[Array], Array] | None = None,
    velocities: Sequence[int] | None = None,
) -> Driven:
    """A joint that is driven by a law in time, wholly or in some of its velocities.

    Args:
      joint: the joint record.
      position: coordinates as a function of time t [s]: one number a driven velocity [rad, m]; for a quaternion joint
        all its coordinates.
      speed: driven velocities as a function of time [rad/s, m/s], kappa(t) of Schwertassek & Senger (1988), Eq. 3.15;
        the coordinates follow by integration.
      velocities: which velocities of the joint are driven; all when left out.

    A law with numbers to differentiate is an `eqx.Module`.
    Raises: ValueError unless exactly one law is given for existing velocities.
    """
    if isinstance(joint, Driven):
        raise ValueError("This joint record is driven already; give one law for all its driven velocities.")
    if (position is None) == (speed is None):
        raise ValueError("A driven joint takes one law: position=function(t) or speed=function(t).")
    chosen = tuple(range(joint.nv)) if velocities is None else tuple(int(i) for i in velocities)
    if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= i < joint.nv for i in chosen):
        raise ValueError(
            f"velocities = {chosen} of a {joint.kind} joint; expected some of 0 to {joint.nv - 1}, each once."
        )
    if position is not None and isinstance(joint, Mapped) and joint.speeds is not None:
        raise ValueError(
            "A mapped joint with its own N(q) takes no position law, since its velocities are no rates of coordinates; "
            "give a speed law."
        )
    if position is not None and joint.nq != joint.nv and len(chosen) < joint.nv:
        raise ValueError(
            f"A {joint.kind} joint can only be driven as a whole by a position law, since its velocities are no rates "
            "of single coordinates; give a speed law for some of its velocities."
        )
    law = position if position is not None else speed
    return Driven(joint, as_pytree(cast(Callable, law)), chosen, "position" if speed is None else "speed")
