"""Joints as data: pose, free modes, dual basis, rate term and kinematical equation (Schwertassek & Senger 1988).

Three records describe every joint of the library: a serial product of screws (each revolute, prismatic or helical), a
quaternion joint (spherical, or free when it also translates), and a mapped joint whose pose is a user's function. The
names `revolute`, `universal`, ... are constructor functions. No algorithm asks what kind a joint is.

Frames: poses place the outboard joint frame in the inboard one; six-vectors [angular; linear] are taken at the outboard
frame's origin in inboard axes.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.pose import Pose
from jaxmbd.values import Numbers, concrete, floats, shape


class Joint(eqx.Module):
    """The joint record of Schwertassek & Senger (1988), section 4."""

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """What the field calls this joint."""

    @property
    @abc.abstractmethod
    def nq(self) -> int:
        """Number of coordinates."""

    @property
    @abc.abstractmethod
    def nv(self) -> int:
        """Number of velocities."""

    @abc.abstractmethod
    def pose(self, q: Float[Array, " nq"], t: float = 0.0) -> Pose:
        """Placement of the outboard frame in the inboard one: B(p, t), z(p, t), Eq. 3.4."""

    @abc.abstractmethod
    def N(self, q: Float[Array, " nq"], t: float = 0.0) -> Float[Array, "nq nv"]:
        """The matrix of the kinematical equation q_dot = N(q) v (Y_1 in Eq. 3.23)."""

    @abc.abstractmethod
    def neutral(self) -> Float[np.ndarray, " nq"]:
        """Coordinates at which the outboard frame has its home pose."""

    def modes(self, q: Float[Array, " nq"], t: float = 0.0) -> Float[Array, "6 nv"]:
        """Free mode vectors phi: relative velocity = modes @ v (Eq. 3.10), by differentiating the pose."""
        q = jnp.asarray(q)
        R = self.pose(q, t).rotation
        dR, dp = jax.jacfwd(lambda q: (self.pose(q, t).rotation, self.pose(q, t).position))(q)
        W = jnp.einsum("ijk,lj->kil", dR, R)
        angular = 0.5 * jnp.stack([W[:, 2, 1] - W[:, 1, 2], W[:, 0, 2] - W[:, 2, 0], W[:, 1, 0] - W[:, 0, 1]])
        return jnp.concatenate([angular, dp]) @ self.N(q, t)

    def driven_modes(self, q: Float[Array, " nq"], t: float = 0.0) -> Float[Array, "6 0"]:
        """Modes whose velocity is prescribed: none."""
        return jnp.zeros((6, 0), jnp.asarray(q).dtype)

    def locked_modes(self, q: Float[Array, " nq"], t: float = 0.0) -> Float[Array, "6 nlocked"]:
        """An orthonormal basis of the directions that the joint forbids (Eq. 3.13, orthogonal completion)."""
        moving = jnp.concatenate([self.modes(q, t), self.driven_modes(q, t)], 1)
        return jnp.linalg.svd(moving, full_matrices=True)[0][:, moving.shape[1] :]

    def dual(self, q: Float[Array, " nq"], t: float = 0.0) -> Float[Array, "6 6"]:
        """Dual basis psi: dual.T @ [modes, driven_modes, locked_modes] = 1 (Eq. 3.20).

        Raises: ValueError where the modes depend linearly on one another (gimbal lock, say), for concrete values.
        """
        basis = jnp.concatenate([self.modes(q, t), self.driven_modes(q, t), self.locked_modes(q, t)], 1)
        known = concrete(basis)
        if known is not None:
            smallest = np.linalg.svd(known, compute_uv=False)[-1]
            if smallest < 1e2 * np.finfo(basis.dtype).eps:
                raise ValueError(
                    f"The modes of this {self.kind} joint depend linearly on one another at q = {q} (smallest "
                    f"singular value {smallest:.1e}), so that no dual basis exists. Take another state, or a joint "
                    "without this singularity (spherical in place of gimbal)."
                )
        return jnp.linalg.inv(basis).T

    def rate(self, q: Float[Array, " nq"], v: Float[Array, " nv"], t: float = 0.0) -> Float[Array, "6"]:
        """Relative acceleration at v_dot = 0, in inboard axes: the rate of the modes along the motion times v."""
        q, v = jnp.asarray(q), jnp.asarray(v)
        return jax.jvp(lambda q: self.modes(q, t), (q,), (self.N(q, t) @ v,))[1] @ v


class Screws(Joint):
    """A serial product of screws: v = q_dot, one number each, an angle [rad] or a displacement [m].

    Each screw turns by q about its axis; a helical one also advances by pitch * q along it. A screw that does not turn
    (prismatic) advances by q. An offset pose stands before each screw.
    """

    axis: Float[Array, "k 3"]
    pitch: Float[Array, " k"]
    offset_position: Float[Array, "k 3"]
    offset_quaternion: Float[Array, "k 4"]
    turning: tuple[bool, ...] = eqx.field(static=True)
    helical: tuple[bool, ...] = eqx.field(static=True)
    name: str = eqx.field(static=True)

    @property
    def kind(self) -> str:
        return self.name

    @property
    def nq(self) -> int:
        return len(self.turning)

    @property
    def nv(self) -> int:
        return len(self.turning)

    def neutral(self):
        return np.zeros(self.nq)

    def N(self, q, t=0.0):
        return jnp.eye(self.nv, dtype=jnp.asarray(q).dtype)

    def pose(self, q, t=0.0):
        q = jnp.asarray(q)
        X = Pose(jnp.zeros(3, q.dtype), so3.identity(q.dtype))
        for i, turns in enumerate(self.turning):
            axis = unit(self.axis[i])
            turn = so3.exp(q[i] * axis) if turns else so3.identity(q.dtype)
            gain = self.pitch[i] if self.helical[i] else 0.0 if turns else 1.0
            advance = gain * q[i] * axis
            X = X @ Pose(self.offset_position[i], self.offset_quaternion[i]) @ Pose(advance, turn)
        return X


class Quaternion(Joint):
    """Relative rotation by a quaternion, v = angular velocity in outboard axes; free when it also translates.

    Free: q = [quaternion, position of the outboard origin in inboard axes], v = [angular, linear] of the outboard
    frame in its own axes.
    """

    translating: bool = eqx.field(static=True)

    @property
    def kind(self) -> str:
        return "free" if self.translating else "spherical"

    @property
    def nq(self) -> int:
        return 7 if self.translating else 4

    @property
    def nv(self) -> int:
        return 6 if self.translating else 3

    def neutral(self):
        return np.eye(self.nq)[0]

    def pose(self, q, t=0.0):
        q = jnp.asarray(q)
        return Pose(q[4:] if self.translating else jnp.zeros(3, q.dtype), q[:4])

    def N(self, q, t=0.0):
        q = jnp.asarray(q)
        w, v = q[0], q[1:4]
        rotational = 0.5 * jnp.concatenate([-v[None], w * jnp.eye(3, dtype=q.dtype) + so3.skew(v)])
        if not self.translating:
            return rotational
        return jnp.zeros((7, 6), q.dtype).at[:4, :3].set(rotational).at[4:, 3:].set(so3.matrix(q[:4]))


class Mapped(Joint):
    """Pose given by a user's function of nq coordinates, v = q_dot; modes and their rate come by differentiation."""

    function: Callable[[Array], Pose]
    coordinates: int = eqx.field(static=True)

    @property
    def kind(self) -> str:
        return "mapped"

    @property
    def nq(self) -> int:
        return self.coordinates

    @property
    def nv(self) -> int:
        return self.coordinates

    def neutral(self):
        return np.zeros(self.nq)

    def pose(self, q, t=0.0):
        q = jnp.asarray(q)
        return jax.tree.map(lambda x: jnp.asarray(x, q.dtype), self.function(q))  # its constants may be wider than q

    def N(self, q, t=0.0):
        return jnp.eye(self.nv, dtype=jnp.asarray(q).dtype)


class Driven(Joint):
    """A joint of which some velocities follow a law in time: kinematic excitation (Schwertassek & Senger, Eq. 3.15).

    Its driven modes keep their slots in q and v; modes that stay free are `modes`.
    """

    joint: Joint
    law: Callable[[Array], Array]
    velocities: tuple[int, ...] = eqx.field(static=True)
    level: str = eqx.field(static=True)

    @property
    def kind(self) -> str:
        return self.joint.kind

    @property
    def nq(self) -> int:
        return self.joint.nq

    @property
    def nv(self) -> int:
        return self.joint.nv

    def pose(self, q, t=0.0):
        return self.joint.pose(q, t)

    def N(self, q, t=0.0):
        return self.joint.N(q, t)

    def neutral(self):
        return self.joint.neutral()

    def _all_modes(self, q, t):
        return self.joint.modes(q, t)

    def modes(self, q, t=0.0):
        free = [i for i in range(self.nv) if i not in self.velocities]
        return self._all_modes(q, t)[:, np.array(free, int)]

    def driven_modes(self, q, t=0.0):
        return self._all_modes(q, t)[:, np.array(self.velocities, int)]

    def rate(self, q, v, t=0.0):
        return self.joint.rate(q, v, t)


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
    if position is not None and joint.nq != joint.nv and len(chosen) < joint.nv:
        raise ValueError(
            f"A {joint.kind} joint can only be driven as a whole by a position law, since its velocities are no rates "
            "of single coordinates; give a speed law for some of its velocities."
        )
    law = position if position is not None else speed
    return Driven(joint, as_pytree(cast(Callable, law)), chosen, "position" if speed is None else "speed")


def unit(axis: Float[Array, "*n 3"]) -> Float[Array, "*n 3"]:
    """Axes at unit length."""
    return axis / jnp.sqrt(jnp.sum(axis * axis, -1, keepdims=True))


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


def mapped(function: Callable[[Array], Pose], nq: int) -> Mapped:
    """A joint from a function q [nq] -> Pose. `function` may be an `eqx.Module`: its numbers are differentiated too."""
    return Mapped(as_pytree(function), nq)


def as_pytree(function: Callable) -> Callable:
    """A function that can sit among the leaves of a system: modules as they are, plain functions as static data."""
    return cast(Callable, function if isinstance(cast(Any, function), eqx.Module) else jax.tree_util.Partial(function))
