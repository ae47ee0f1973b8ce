"""Joints as data: pose, free modes, dual basis, rate term and kinematical equation (Schwertassek & Senger 1988).

Three records describe every joint of the library: a serial product of screws (each revolute, prismatic or helical), a
quaternion joint (spherical, or free when it also translates), and a mapped joint whose pose is a user's function. The
names `revolute`, `universal`, ... are constructor functions. No algorithm asks what kind a joint is.

Frames: poses place the outboard joint frame in the inboard one; six-vectors [angular; linear] are taken at the outboard
frame's origin in inboard axes.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.modes import dual_basis
from jaxmbd.pose import Pose


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
        return dual_basis(basis, f"At q = {q} the modes of this {self.kind} joint")

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


class PoseAndRates(eqx.Module):
    """A mapped joint's pose with the matrix N(q) of its kinematical equation."""

    pose: Callable[[Array], Pose]
    N: Callable[[Array], Array]

    def __call__(self, q: Float[Array, " nq"]) -> Pose:
        return self.pose(q)


class Mapped(Joint):
    """Pose given by a user's function of nq coordinates; modes and their rate come by differentiation.

    v = q_dot; or, where `speeds` are counted apart, q_dot = N(q) v with the N of a `PoseAndRates`: quasi-velocities,
    and fewer of them than coordinates where the joint is non-holonomic.
    """

    function: Callable[[Array], Pose]
    coordinates: int = eqx.field(static=True)
    speeds: int | None = eqx.field(static=True, default=None)

    @property
    def kind(self) -> str:
        return "mapped"

    @property
    def nq(self) -> int:
        return self.coordinates

    @property
    def nv(self) -> int:
        return self.coordinates if self.speeds is None else self.speeds

    def neutral(self):
        return np.zeros(self.nq)

    def pose(self, q, t=0.0):
        q = jnp.asarray(q)
        return jax.tree.map(lambda x: jnp.asarray(x, q.dtype), self.function(q))  # its constants may be wider than q

    def N(self, q, t=0.0):
        q = jnp.asarray(q)
        if self.speeds is None:
            return jnp.eye(self.nv, dtype=q.dtype)
        return jnp.asarray(cast(PoseAndRates, self.function).N(q), q.dtype)


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


def unit(axis: Float[Array, "*n 3"]) -> Float[Array, "*n 3"]:
    """Axes at unit length."""
    return axis / jnp.sqrt(jnp.sum(axis * axis, -1, keepdims=True))


def as_pytree(function: Callable) -> Callable:
    """A function that can sit among the leaves of a system: modules as they are, plain functions as static data."""
    ready = isinstance(cast(Any, function), eqx.Module | jax.tree_util.Partial)
    return cast(Callable, function if ready else jax.tree_util.Partial(function))
