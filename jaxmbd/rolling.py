"""Rolling and blades: constraints on velocities that no coordinates satisfy (non-holonomic)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.closures import At, Constraint
from jaxmbd.values import Numbers, concrete, floats, shape


class KnifeEdge(Constraint):
    """The second frame's origin does not move along its own y axis, as seen from the first."""

    @property
    def kind(self) -> str:
        return "knife edge"

    @property
    def rows(self) -> tuple[int, int]:
        return 0, 1

    def rate(self, at):
        assert at.velocity is not None
        spin, drift = at.velocity[0, :3], at.velocity[0, 3:]
        relative = at.velocity[1, 3:] - drift - jnp.cross(spin, at.position[1] - at.position[0])
        return (at.rotation[1][:, 1] @ relative)[None]


def knife_edge() -> KnifeEdge:
    """A blade along x of the second frame: no velocity along its y. A skate, a sleigh, a wheel that rolls freely."""
    return KnifeEdge()


class RollingDisc(Constraint):
    """A thin disc rolls without slipping on the plane z = 0 of the first frame.

    Its axis is y of the second frame, its centre that frame's origin. One holonomic row keeps it on the plane [m], two
    non-holonomic rows hold the contact point along x and y of the plane [m/s]. Undefined where the disc lies flat.
    """

    radius: Float[Array, ""]

    @property
    def kind(self) -> str:
        return "rolling disc"

    @property
    def rows(self) -> tuple[int, int]:
        return 1, 2

    def _reach(self, R):
        """From the centre to the contact point, axes of the plane."""
        n = R[:, 1]
        down = n[2] * n - jnp.array([0.0, 0.0, 1.0], n.dtype)
        return self.radius * down / jnp.sqrt(down @ down)

    def residual(self, at):
        R, p = at.relative
        return (p + self._reach(R))[2:]

    def rate(self, at):
        R, _ = at.relative
        return _slip(at, self._reach(R))


class RollingBall(Constraint):
    """A ball about the second frame's origin rolls without slipping on the plane z = 0 of the first frame."""

    radius: Float[Array, ""]

    @property
    def kind(self) -> str:
        return "rolling ball"

    @property
    def rows(self) -> tuple[int, int]:
        return 1, 2

    def residual(self, at):
        return at.relative[1][2:] - self.radius

    def rate(self, at):
        down = jnp.array([0.0, 0.0, -1.0], at.position.dtype)
        return _slip(at, self.radius * down)


def _slip(at: At, reach):
    """Velocity x, y of the second body's point at `reach` from the frame's origin, relative to the first (its axes)."""
    assert at.velocity is not None
    R = at.rotation[0]
    arm = R @ reach
    from_first = at.position[1] + arm - at.position[0]
    point = at.velocity[1, 3:] + jnp.cross(at.velocity[1, :3], arm)
    ground = at.velocity[0, 3:] + jnp.cross(at.velocity[0, :3], from_first)
    return (R.T @ (point - ground))[:2]


def rolling_disc(radius: Numbers) -> RollingDisc:
    """A thin wheel of a radius [m] on the plane z = 0 of the first frame; its axle is y of the second frame."""
    return RollingDisc(_positive(radius))


def rolling_ball(radius: Numbers) -> RollingBall:
    """A ball of a radius [m] about the second frame's origin on the plane z = 0 of the first frame."""
    return RollingBall(_positive(radius))


def _positive(radius: Numbers):
    if shape(radius) != ():
        raise ValueError(f"The radius of a rolling body has shape {shape(radius)}; expected one number [m].")
    known = concrete(radius)
    if known is not None and not known > 0:
        raise ValueError(f"The radius of a rolling body is {radius} m; expected more than zero.")
    return floats(radius)
