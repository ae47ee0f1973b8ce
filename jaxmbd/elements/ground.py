"""Grounds for contacts and tyres: a signed gap to every point of space, and its gradient.

A ground is a module with one method, `gap(p)`, written in components; a user's own is a few lines. The normal is the
exact gradient of the gap, so that contact forces on curved ground belong to an energy.
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.joints import unit
from jaxmbd.spatial import Scalar, Vec3
from jaxmbd.values import Numbers, floats


class Ground(eqx.Module):
    """A surface at rest in inertial space."""

    @abc.abstractmethod
    def gap(self, p: Vec3) -> Scalar:
        """Distance of a point above the ground [m], negative below; at least to first order near the surface."""

    def gap_and_normal(self, p: Vec3) -> tuple[Scalar, Vec3]:
        """The gap and its gradient (of length one near the surface)."""
        gap, pull = jax.vjp(self.gap, p)
        return gap, pull(jnp.ones_like(gap))[0]


class Plane(Ground):
    """A plane through a point with a normal, upwards through the origin when left out."""

    point: Float[Array, "3"]
    normal: Float[Array, "3"]

    def __init__(self, point: Numbers = (0.0, 0.0, 0.0), normal: Numbers = (0.0, 0.0, 1.0)):
        """Args:
        point: [m], world axes.
        normal: out of the ground; of any length.
        """
        self.point, self.normal = jnp.asarray(floats(point)), jnp.asarray(floats(normal))
        if self.point.shape != (3,) or self.normal.shape != (3,):
            raise ValueError(
                f"The point and normal of a plane have shapes {self.point.shape} and {self.normal.shape}; "
                "expected (3,)."
            )

    def gap(self, p):
        return self.gap_and_normal(p)[0]

    def gap_and_normal(self, p):
        n, o = Vec3.of(unit(self.normal)), Vec3.of(self.point)
        gap = n.dot(p - o)
        zero = jnp.zeros_like(gap)
        return gap, Vec3(n.x + zero, n.y + zero, n.z + zero)


class HeightField(Ground):
    """Heights above the x-y plane on a regular grid, joined by cubic splines: slope and curvature are continuous.

    The gap is (z - h) / sqrt(1 + |grad h|^2), a distance to first order. Beyond the grid's border the height is that of
    the border.
    """

    coefficients: Float[Array, "nx ny"]
    origin: Float[Array, "2"]
    spacing: Float[Array, "2"]

    def __init__(self, heights: Numbers, origin: Numbers = (0.0, 0.0), spacing: Numbers = (1.0, 1.0)):
        """Args:
        heights: [nx, ny], at least two each way; row i at x = origin[0] + i spacing[0] [m].
        origin: x and y of the first height [m].
        spacing: distance of the grid's lines along x and y [m].
        """
        z = jnp.asarray(floats(heights))
        self.origin, self.spacing = jnp.asarray(floats(origin)), jnp.asarray(floats(spacing))
        if z.ndim != 2 or min(z.shape) < 2 or self.origin.shape != (2,) or self.spacing.shape != (2,):
            raise ValueError(
                f"heights, origin and spacing have shapes {z.shape}, {self.origin.shape} and {self.spacing.shape}; "
                "expected [nx, ny] with at least two heights each way, (2,) and (2,)."
            )
        self.coefficients = _spline(_spline(z).T).T

    def height(self, x: Scalar, y: Scalar) -> Scalar:
        """Height of the ground at a place [m]."""
        nx, ny = (n - 2 for n in self.coefficients.shape)
        i, wx = _weights((x - self.origin[0]) / self.spacing[0], nx)
        j, wy = _weights((y - self.origin[1]) / self.spacing[1], ny)
        rows = (sum(w * self.coefficients[i + a, j + b] for b, w in enumerate(wy)) for a in range(4))
        return sum(w * row for w, row in zip(wx, rows, strict=True))

    def gap(self, p):
        h, slope_x, slope_y = self._height_and_slopes(p.x, p.y)
        return (p.z - h) / jnp.sqrt(1.0 + slope_x * slope_x + slope_y * slope_y)

    def _height_and_slopes(self, x, y):
        one, zero = jnp.ones_like(x), jnp.zeros_like(x)
        h, slope_x = jax.jvp(self.height, (x, y), (one, zero))
        return h, slope_x, jax.jvp(self.height, (x, y), (zero, one))[1]


def _spline(values: Float[Array, "n m"]) -> Float[Array, "n_plus_2 m"]:
    """Coefficients of the cubic spline through the rows, one more at either end: no second derivative there."""
    n = values.shape[0]
    inner = (jnp.eye(n, n + 2) + 4.0 * jnp.eye(n, n + 2, 1) + jnp.eye(n, n + 2, 2)) / 6.0
    end = jnp.zeros((1, n + 2)).at[0, :3].set(jnp.array([1.0, -2.0, 1.0]))
    matrix = jnp.concatenate([end, inner, end[:, ::-1]]).astype(values.dtype)
    zero = jnp.zeros((1, values.shape[1]), values.dtype)
    return jnp.linalg.solve(matrix, jnp.concatenate([zero, values, zero]))


def _weights(u: Scalar, n: int) -> tuple[Array, tuple[Scalar, ...]]:
    """Cell of a place u in grid units among n lines, and the weights of the four coefficients from its number on."""
    u = jnp.clip(u, 0.0, n - 1.0)
    cell = jnp.clip(jax.lax.stop_gradient(jnp.floor(u)), 0, n - 2).astype(int)
    s = u - cell
    r = 1.0 - s
    s2, r2 = s * s, r * r
    return cell, (r2 * r / 6.0, 2 / 3 - s2 * (1.0 - 0.5 * s), 2 / 3 - r2 * (1.0 - 0.5 * r), s2 * s / 6.0)
