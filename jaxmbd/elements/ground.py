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
        return self._surface(x, y)[0]

    def gap(self, p):
        return self.gap_and_normal(p)[0]

    def gap_and_normal(self, p):
        h, hx, hy, hxx, hxy, hyy = self._surface(p.x, p.y)
        inverse = 1.0 / jnp.sqrt(1.0 + hx * hx + hy * hy)
        gap = (p.z - h) * inverse
        bend = gap * inverse * inverse
        normal = Vec3(
            -hx * inverse - bend * (hx * hxx + hy * hxy), -hy * inverse - bend * (hx * hxy + hy * hyy), inverse
        )
        return gap, normal

    def _surface(self, x, y) -> tuple[Scalar, ...]:
        """Height, its two slopes and three second derivatives."""
        nx, ny = (n - 2 for n in self.coefficients.shape)
        i, along_x = _weights(x, self.origin[0], self.spacing[0], nx)
        j, along_y = _weights(y, self.origin[1], self.spacing[1], ny)
        c = [[self.coefficients[i + a, j + b] for b in range(4)] for a in range(4)]
        # rows[k][a]: derivative k along y at the a-th line
        rows = [[_sum(w, c[a]) for a in range(4)] for w in along_y]
        return tuple(_sum(along_x[k], rows[m]) for k, m in ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2)))


def _sum(weights, values) -> Scalar:
    return sum((w * v for w, v in zip(weights[1:], values[1:], strict=True)), weights[0] * values[0])


def _spline(values: Float[Array, "n m"]) -> Float[Array, "n_plus_2 m"]:
    """Coefficients of the cubic spline through the rows, one more at either end: no second derivative there."""
    n = values.shape[0]
    inner = (jnp.eye(n, n + 2) + 4.0 * jnp.eye(n, n + 2, 1) + jnp.eye(n, n + 2, 2)) / 6.0
    end = jnp.zeros((1, n + 2)).at[0, :3].set(jnp.array([1.0, -2.0, 1.0]))
    matrix = jnp.concatenate([end, inner, end[:, ::-1]]).astype(values.dtype)
    zero = jnp.zeros((1, values.shape[1]), values.dtype)
    return jnp.linalg.solve(matrix, jnp.concatenate([zero, values, zero]))


def _weights(x: Scalar, origin: Scalar, spacing: Scalar, n: int) -> tuple[Array, tuple[tuple[Scalar, ...], ...]]:
    """Cell of a place among n lines, and weights of the four coefficients from its number on: value and two slopes."""
    u = (x - origin) / spacing
    inside = (u >= 0.0) & (u <= n - 1.0)
    u = jnp.clip(u, 0.0, n - 1.0)
    cell = jnp.clip(jax.lax.stop_gradient(jnp.floor(u)), 0, n - 2).astype(int)
    s = u - cell
    r = 1.0 - s
    first, second = jnp.where(inside, 1.0 / spacing, 0.0), jnp.where(inside, 1.0 / spacing**2, 0.0)
    value = (r * r * r / 6.0, 2 / 3 - s * s * (1.0 - 0.5 * s), 2 / 3 - r * r * (1.0 - 0.5 * r), s * s * s / 6.0)
    slope = tuple(first * w for w in (-0.5 * r * r, s * (1.5 * s - 2.0), r * (2.0 - 1.5 * r), 0.5 * s * s))
    return cell, (value, slope, tuple(second * w for w in (r, 3.0 * s - 2.0, 3.0 * r - 2.0, s)))
