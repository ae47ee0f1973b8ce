"""Pose: a position and a rotation, the placement of one frame in another."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.values import Numbers, floats


class Pose(eqx.Module):
    """Placement of a frame b in a frame a: x_a = rotation @ x_b + position.

    Frames: `position` [m] is the origin of b in axes of a; `quaternion` (w, x, y, z) maps axes of b to axes of a and is
    normalised on use.
    """

    position: Float[Array, "3"]
    quaternion: Float[Array, "4"]

    def __init__(self, position: Numbers = (0.0, 0.0, 0.0), rotation: Numbers | None = None):
        """Args:
        position: [m].
        rotation: a quaternion (w, x, y, z) or a rotation matrix [3, 3]; no rotation when left out.
        """
        self.position = floats(position)
        if self.position.shape != (3,):
            raise ValueError(f"A pose's position has shape {self.position.shape}; expected (3,), in metres.")
        q = floats((1.0, 0.0, 0.0, 0.0)) if rotation is None else floats(rotation)
        if q.shape == (3, 3):
            q = _from_matrix(q)
        if q.shape != (4,):
            raise ValueError(
                f"A pose's rotation has shape {q.shape}; expected a quaternion (w, x, y, z) or a matrix [3, 3]. "
                "For roll-pitch-yaw use Pose.from_rpy, for an axis and an angle Pose.from_axis_angle."
            )
        self.quaternion = q

    @property
    def rotation(self) -> Float[Array, "3 3"]:
        """Rotation matrix, axes of b to axes of a."""
        return so3.matrix(self.quaternion)

    @staticmethod
    def from_rpy(position: Numbers, rpy: Numbers) -> Pose:
        """From roll, pitch, yaw [rad] about fixed x, y, z axes, in that order (URDF's convention)."""
        return Pose(position, _from_rpy(floats(rpy)))

    @staticmethod
    def from_axis_angle(position: Numbers, axis: Numbers, angle: float) -> Pose:
        """From a rotation by `angle` [rad] about `axis` (any length)."""
        return Pose(position, _from_axis_angle(floats(axis), angle))

    def __matmul__(self, inner: Pose) -> Pose:
        """Composition X_ab @ X_bc = X_ac."""
        position = self.position + self.rotation @ inner.position
        return Pose(position, so3.multiply(so3.normalize(self.quaternion), so3.normalize(inner.quaternion)))

    def inverse(self) -> Pose:
        """The placement of a in b."""
        return Pose(-self.rotation.T @ self.position, so3.conjugate(self.quaternion))


@jax.jit
def _from_rpy(rpy):
    r, p, y = (so3.exp(rpy[i] * jnp.eye(3, dtype=rpy.dtype)[i]) for i in range(3))
    return so3.multiply(y, so3.multiply(p, r))


@jax.jit
def _from_axis_angle(axis, angle):
    return so3.exp(angle * axis / jnp.linalg.norm(axis))


_from_matrix = jax.jit(so3.from_matrix)
