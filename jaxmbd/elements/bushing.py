"""Elastic connection in all six directions between two frames: the unconstrained joint of Schwertassek & Senger.

The relative pose of b in a is e = (rotation vector theta of C = R_a^T R_b, displacement R_a^T (p_b - p_a)); the energy
is e . K e / 2, and the load on b is its exact gradient, so that nothing is gained or lost at large turns.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.elements.protocol import ForceElement, Names, Sides, point, sides
from jaxmbd.spatial import Force, Mat3, Scalar, Vec3
from jaxmbd.values import Numbers, floats


class Bushing(ForceElement):
    """Springs and dampers along and about all axes of frame a: load -K e - D de/dt on b.

    Source: Schwertassek & Senger (1988), Fig. 5. The rotational part jumps where the relative rotation is half a turn.
    """

    frames: Sides = eqx.field(static=True)
    stiffness: Float[Array, "..."]
    damping: Float[Array, "..."]
    point_a: Float[Array, "*n 3"] | None
    point_b: Float[Array, "*n 3"] | None
    full: tuple[bool, bool] = eqx.field(static=True)

    def __init__(
        self,
        a: Names,
        b: Names,
        stiffness: Numbers,
        damping: Numbers = (0.0,) * 6,
        *,
        point_a: Numbers | None = None,
        point_b: Numbers | None = None,
    ):
        """Args:
        a, b: links or frames that coincide where the bushing is at rest; or as many on both sides.
        stiffness: six numbers [N m/rad x 3, N/m x 3] or a symmetric matrix [6, 6], angular before linear, axes of a;
          one for all pairs, or one each.
        damping: likewise [N m s/rad, N s/m]; its symmetric part should not be negative.
        point_a, point_b: where the bushing's centres are, in the frames' axes [m].
        """
        self.frames = f = sides(a, b)
        self.stiffness, full_k = _six(stiffness, "stiffness", f)
        self.damping, full_d = _six(damping, "damping", f)
        self.full = full_k, full_d
        self.point_a, self.point_b = point(point_a, "point_a", f), point(point_b, "point_b", f)

    @property
    def points(self):
        return self.point_a, self.point_b

    def _deflection(self, motion):
        """e [6 numbers], de/dt, the rotation vector and the displacement in world axes."""
        a, b = motion
        theta = rotation_vector(a.rotation.T @ b.rotation)
        d = b.position - a.position
        slide = a.rotation.T @ d
        omega = a.rotation.T @ (b.omega - a.omega)
        speed = a.rotation.T @ (b.velocity - a.velocity - a.omega.cross(d))
        rate = _rates(theta, omega)
        e = (theta.x, theta.y, theta.z, slide.x, slide.y, slide.z)
        return e, (rate.x, rate.y, rate.z, speed.x, speed.y, speed.z), theta, d

    def wrenches(self, motion, t):
        e, rate, theta, d = self._deflection(motion)
        k, c = _product(self.stiffness, self.full[0], e), _product(self.damping, self.full[1], rate)
        load = [x + y for x, y in zip(k, c, strict=True)]
        R = motion[0].rotation
        moment, force = R @ _moment(theta, Vec3(*load[:3])), R @ Vec3(*load[3:])
        return Force(moment + d.cross(force), force), Force(-moment, -force)

    def potential(self, motion, t):
        e = self._deflection(motion)[0]
        return 0.5 * sum(x * y for x, y in zip(e, _product(self.stiffness, self.full[0], e), strict=True))

    def dissipation(self, motion, t):
        rate = self._deflection(motion)[1]
        return sum(x * y for x, y in zip(rate, _product(self.damping, self.full[1], rate), strict=True))


def _six(value: Numbers, name: str, frames: Sides) -> tuple[Array, bool]:
    """Six numbers or a matrix [6, 6], or n of them; and whether it is a matrix."""
    array = jnp.asarray(floats(value))
    groups = [()] if isinstance(frames[0], str) else [(), (len(frames[0]),)]
    for group in reversed(groups):
        for size, full in (((6,), False), ((6, 6), True)):
            # of n = 6 frames, [6, 6] is one matrix for all: a row each is given as [6, 6, 6]
            if array.shape == (*group, *size) and not (group == (6,) and size == (6,)):
                return array, full
    raise ValueError(
        f"The {name} of a bushing has shape {array.shape}; expected (6,) or (6, 6), or one a pair of frames."
    )


def _product(K: Array, full: bool, e: tuple[Scalar, ...]) -> list[Scalar]:
    if not full:
        return [K[..., i] * e[i] for i in range(6)]
    return [sum((K[..., i, j] * e[j] for j in range(1, 6)), K[..., i, 0] * e[0]) for i in range(6)]


def rotation_vector(C: Mat3) -> Vec3:
    """Rotation vector of a rotation matrix in components, of length at most pi; safe everywhere."""
    a, b, c = C.zy - C.yz, C.xz - C.zx, C.yx - C.xy
    d, e, f = C.yx + C.xy, C.xz + C.zx, C.zy + C.yz
    xx, yy, zz = C.xx, C.yy, C.zz
    pivots = (1.0 + xx + yy + zz, 1.0 + xx - yy - zz, 1.0 - xx + yy - zz, 1.0 - xx - yy + zz)
    rows = ((pivots[0], a, b, c), (a, pivots[1], d, e), (b, d, pivots[2], f), (c, e, f, pivots[3]))
    best, (w, x, y, z) = pivots[0], rows[0]
    for pivot, row in zip(pivots[1:], rows[1:], strict=True):
        larger = pivot > best
        best = jnp.where(larger, pivot, best)
        w, x, y, z = (jnp.where(larger, new, old) for new, old in zip(row, (w, x, y, z), strict=True))
    scale = jnp.where(w < 0, -1.0, 1.0).astype(w.dtype) / jnp.sqrt(w * w + x * x + y * y + z * z)
    w, v = scale * w, scale * Vec3(x, y, z)
    square = v.dot(v)
    small = square < 1e-4
    sine = jnp.sqrt(jnp.where(small, 1.0, square))
    series = 1.0 + square * (1 / 6 + square * (3 / 40 + square * (5 / 112 + square * 35 / 1152)))
    return (2.0 * jnp.where(small, series, jnp.arctan2(sine, w) / sine)) * v


def _gain(theta: Vec3) -> Scalar:
    """(1 - (x/2) cot(x/2)) / x^2 with x = |theta|: the quadratic term of the inverse left Jacobian."""
    square = theta.dot(theta)
    small = square < 0.04
    half = 0.5 * jnp.sqrt(jnp.where(small, 1.0, square))
    exact = (1.0 - half * jnp.cos(half) / jnp.sin(half)) / jnp.where(small, 1.0, square)
    series = 1 / 12 + square * (1 / 720 + square * (1 / 30240 + square * (1 / 1209600 + square / 47900160)))
    return jnp.where(small, series, exact)


def _rates(theta: Vec3, omega: Vec3) -> Vec3:
    """d(theta)/dt at the angular velocity omega: omega - theta x omega / 2 + k theta x (theta x omega)."""
    first = theta.cross(omega)
    return omega - 0.5 * first + _gain(theta) * theta.cross(first)


def _moment(theta: Vec3, g: Vec3) -> Vec3:
    """The moment of a gradient g in theta: the transpose of the map in `_rates`."""
    first = theta.cross(g)
    return g + 0.5 * first + _gain(theta) * theta.cross(first)
