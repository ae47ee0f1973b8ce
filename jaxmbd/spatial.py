"""Spatial algebra in components: small pytrees whose leaves are scalars.

Inside a sweep every vector, matrix and inertia is one of these records. Under `vmap` each leaf becomes one contiguous
[batch] array, so that a sweep step compiles to fused elementwise arithmetic and no small matrix product remains. The
operators use nothing but +, -, * on the leaves: they run alike on Python floats, NumPy arrays and traced JAX values.

Frames: a record carries no frame. The sweeps express everything in world axes at each body's own origin, so that
`shift` between bodies is a pure translation, the operator phi of Jain & Rodriguez (1990), Eq. 3.8.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, dataclass_transform, overload

import jax

Scalar = Any  # a float, a NumPy or JAX array, or a tracer: one number per system


class _Linear:
    """Entrywise addition, subtraction and scaling of a record of components."""

    def __add__(self, other):
        return type(self)(*(a + b for a, b in zip(_entries(self), _entries(other), strict=True)))

    def __sub__(self, other):
        return type(self)(*(a - b for a, b in zip(_entries(self), _entries(other), strict=True)))

    def __neg__(self):
        return type(self)(*(-a for a in _entries(self)))

    def __rmul__(self, scale: Scalar):
        return type(self)(*(scale * a for a in _entries(self)))


def _entries(record) -> tuple:
    return tuple(vars(record).values())


@dataclass_transform(frozen_default=True)
def _record(cls):
    """A frozen dataclass whose fields are pytree children."""
    cls = dataclass(frozen=True)(cls)
    return jax.tree_util.register_dataclass(cls, [f.name for f in fields(cls)], [])


@_record
class Vec3(_Linear):
    """A vector (x, y, z)."""

    x: Scalar
    y: Scalar
    z: Scalar

    @staticmethod
    def of(array) -> Vec3:
        """From an array [..., 3]: components [...]."""
        return Vec3(array[..., 0], array[..., 1], array[..., 2])

    @staticmethod
    def zero() -> Vec3:
        return Vec3(0.0, 0.0, 0.0)

    def dot(self, o: Vec3) -> Scalar:
        return self.x * o.x + self.y * o.y + self.z * o.z

    def cross(self, o: Vec3) -> Vec3:
        return Vec3(self.y * o.z - self.z * o.y, self.z * o.x - self.x * o.z, self.x * o.y - self.y * o.x)


@_record
class Mat3(_Linear):
    """A 3x3 matrix by rows."""

    xx: Scalar
    xy: Scalar
    xz: Scalar
    yx: Scalar
    yy: Scalar
    yz: Scalar
    zx: Scalar
    zy: Scalar
    zz: Scalar

    @staticmethod
    def of(array) -> Mat3:
        """From an array [..., 3, 3]: components [...]."""
        return Mat3(*(array[..., i, j] for i in range(3) for j in range(3)))

    @staticmethod
    def identity() -> Mat3:
        return Mat3(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)

    @staticmethod
    def outer(a: Vec3, b: Vec3) -> Mat3:
        return Mat3(
            a.x * b.x, a.x * b.y, a.x * b.z, a.y * b.x, a.y * b.y, a.y * b.z, a.z * b.x, a.z * b.y, a.z * b.z
        )  # fmt: skip

    @property
    def rows(self) -> tuple[Vec3, Vec3, Vec3]:
        return Vec3(self.xx, self.xy, self.xz), Vec3(self.yx, self.yy, self.yz), Vec3(self.zx, self.zy, self.zz)

    @property
    def columns(self) -> tuple[Vec3, Vec3, Vec3]:
        return self.T.rows

    @staticmethod
    def of_columns(x: Vec3, y: Vec3, z: Vec3) -> Mat3:
        return Mat3(x.x, y.x, z.x, x.y, y.y, z.y, x.z, y.z, z.z)

    @property
    def T(self) -> Mat3:
        return Mat3(self.xx, self.yx, self.zx, self.xy, self.yy, self.zy, self.xz, self.yz, self.zz)

    @overload
    def __matmul__(self, o: Vec3) -> Vec3: ...
    @overload
    def __matmul__(self, o: Mat3) -> Mat3: ...
    @overload
    def __matmul__(self, o: Motion) -> Motion: ...
    def __matmul__(self, o):
        """Matrix times vector, matrix, or (rotation times) six-vector."""
        if isinstance(o, Motion):
            return Motion(self @ o.angular, None if o.linear is None else self @ o.linear)
        x, y, z = self.rows
        if isinstance(o, Vec3):
            return Vec3(x.dot(o), y.dot(o), z.dot(o))
        a, b, c = o.T.rows
        return Mat3(x.dot(a), x.dot(b), x.dot(c), y.dot(a), y.dot(b), y.dot(c), z.dot(a), z.dot(b), z.dot(c))


@_record
class Sym3(_Linear):
    """A symmetric 3x3 matrix."""

    xx: Scalar
    xy: Scalar
    xz: Scalar
    yy: Scalar
    yz: Scalar
    zz: Scalar

    @staticmethod
    def of(array) -> Sym3:
        """From an array [..., 3, 3], its upper triangle: components [...]."""
        return Sym3(*(array[..., i, j] for i in range(3) for j in range(i, 3)))

    @property
    def columns(self) -> tuple[Vec3, Vec3, Vec3]:
        return Vec3(self.xx, self.xy, self.xz), Vec3(self.xy, self.yy, self.yz), Vec3(self.xz, self.yz, self.zz)

    def __matmul__(self, v: Vec3) -> Vec3:
        x, y, z = self.columns
        return Vec3(x.dot(v), y.dot(v), z.dot(v))

    def rotated(self, R: Mat3) -> Sym3:
        """R S R^T: the same tensor in the axes that R maps to."""
        a, b, c = (self @ row for row in R.rows)
        x, y, z = R.rows
        return Sym3(x.dot(a), x.dot(b), x.dot(c), y.dot(b), y.dot(c), z.dot(c))


@_record
class Motion(_Linear):
    """A velocity-like six-vector (angular, linear) at a reference point.

    A linear part of None is zero by structure: the mode of a hinge costs half of what a general mode does.
    """

    angular: Vec3
    linear: Vec3 | None

    @staticmethod
    def of(array) -> Motion:
        """From an array [..., 6]: components [...]."""
        return Motion(Vec3.of(array[..., :3]), Vec3.of(array[..., 3:]))

    @property
    def linear_part(self) -> Vec3:
        """The linear part, with zeros where there is none."""
        if self.linear is not None:
            return self.linear
        zero = 0.0 * self.angular.x
        return Vec3(zero, zero, zero)

    def __add__(self, o: Motion) -> Motion:
        if o.linear is None or self.linear is None:
            return Motion(self.angular + o.angular, self.linear if o.linear is None else o.linear)
        return Motion(self.angular + o.angular, self.linear + o.linear)

    def __rmul__(self, scale: Scalar) -> Motion:
        return Motion(scale * self.angular, None if self.linear is None else scale * self.linear)

    def dot(self, f: Force) -> Scalar:
        """Power of a force on this motion, both at one reference point."""
        power = self.angular.dot(f.moment)
        return power if self.linear is None else power + self.linear.dot(f.force)

    def shift(self, l: Vec3) -> Motion:
        """The motion of the same rigid body at a point displaced by l (phi^T)."""
        sweep = self.angular.cross(l)
        return Motion(self.angular, sweep if self.linear is None else self.linear + sweep)


@_record
class Force(_Linear):
    """A force-like six-vector (moment, force) at a reference point."""

    moment: Vec3
    force: Vec3

    @staticmethod
    def of(array) -> Force:
        """From an array [..., 6]: components [...]."""
        return Force(Vec3.of(array[..., :3]), Vec3.of(array[..., 3:]))

    def shift(self, l: Vec3) -> Force:
        """The equivalent force at a point from which its reference point is displaced by l (phi)."""
        return Force(self.moment + l.cross(self.force), self.force)


@_record
class Inertia(_Linear):
    """Rigid-body inertia about a reference point: mass [kg], first moment m c [kg m], inertia tensor [kg m^2]."""

    mass: Scalar
    first_moment: Vec3
    tensor: Sym3

    def rotated(self, R: Mat3) -> Inertia:
        return Inertia(self.mass, R @ self.first_moment, self.tensor.rotated(R))

    def __matmul__(self, a: Motion) -> Force:
        h = self.first_moment
        turning = Force(self.tensor @ a.angular, a.angular.cross(h))
        if a.linear is None:
            return turning
        return turning + Force(h.cross(a.linear), self.mass * a.linear)

    def shift(self, l: Vec3) -> Inertia:
        """The same inertia about a point from which the reference point is displaced by l."""
        h = self.first_moment + self.mass * l
        tensor = self.tensor + _parallel_axis(self.first_moment, l) + _parallel_axis(l, h)
        return Inertia(self.mass, h, tensor)

    def inertial_force(self, omega: Vec3, alpha: Vec3, acceleration: Vec3) -> Force:
        """Force that the motion needs: d'Alembert's force with reversed sign, at the reference point.

        Source: Slaats (1991), Eqs. 3.46-3.48 (Newton-Euler at the body's reference point).
        """
        gyroscopic = Force(omega.cross(self.tensor @ omega), omega.cross(omega.cross(self.first_moment)))
        return self @ Motion(alpha, acceleration) + gyroscopic


def _parallel_axis(a: Vec3, b: Vec3) -> Sym3:
    """The symmetric tensor (a.b) 1 - (a b^T + b a^T)/2, so that m [(c.c) 1 - c c^T] = f(m c, c)."""
    d = a.dot(b)
    return Sym3(
        d - a.x * b.x,
        -0.5 * (a.x * b.y + a.y * b.x),
        -0.5 * (a.x * b.z + a.z * b.x),
        d - a.y * b.y,
        -0.5 * (a.y * b.z + a.z * b.y),
        d - a.z * b.z,
    )


@_record
class ArticulatedInertia(_Linear):
    """Symmetric 6x6 map from a motion to a force: [[angular, coupling], [coupling^T, linear]]."""

    angular: Sym3
    coupling: Mat3
    linear: Sym3

    def __add__(self, o) -> ArticulatedInertia:
        """Sum with another articulated inertia, or with a rigid body's inertia."""
        if isinstance(o, Inertia):
            h, c, m = o.first_moment, self.coupling, self.linear
            coupling = Mat3(c.xx, c.xy - h.z, c.xz + h.y, c.yx + h.z, c.yy, c.yz - h.x, c.zx - h.y, c.zy + h.x, c.zz)
            linear = Sym3(m.xx + o.mass, m.xy, m.xz, m.yy + o.mass, m.yz, m.zz + o.mass)
            return ArticulatedInertia(self.angular + o.tensor, coupling, linear)
        return ArticulatedInertia(self.angular + o.angular, self.coupling + o.coupling, self.linear + o.linear)

    @staticmethod
    def zero() -> ArticulatedInertia:
        return ArticulatedInertia(Sym3(*[0.0] * 6), Mat3(*[0.0] * 9), Sym3(*[0.0] * 6))

    def __matmul__(self, s: Motion) -> Force:
        turning = Force(self.angular @ s.angular, self.coupling.T @ s.angular)
        if s.linear is None:
            return turning
        return turning + Force(self.coupling @ s.linear, self.linear @ s.linear)

    def without(self, g: Force, u: Force) -> ArticulatedInertia:
        """P - g u^T, symmetric because g is parallel to u: what is left after one mode is eliminated."""
        gm, um, gf, uf = g.moment, u.moment, g.force, u.force
        return ArticulatedInertia(
            self.angular - _symmetric_outer(gm, um),
            self.coupling - Mat3.outer(gm, uf),
            self.linear - _symmetric_outer(gf, uf),
        )

    def shift(self, l: Vec3) -> ArticulatedInertia:
        """phi P phi^T: seen from a point from which the reference point is displaced by l."""
        a, b = self.angular, self.coupling
        mx, my, mz = (l.cross(column) for column in self.linear.columns)
        moved = b + Mat3(mx.x, my.x, mz.x, mx.y, my.y, mz.y, mx.z, my.z, mz.z)
        bx, by, bz = (l.cross(row) for row in b.rows)
        cx, cy, cz = (l.cross(row) for row in moved.rows)
        angular = Sym3(
            a.xx + bx.x + cx.x,
            a.xy + by.x + cx.y,
            a.xz + bz.x + cx.z,
            a.yy + by.y + cy.y,
            a.yz + bz.y + cy.z,
            a.zz + bz.z + cz.z,
        )
        return ArticulatedInertia(angular, moved, self.linear)


def _symmetric_outer(a: Vec3, b: Vec3) -> Sym3:
    """The upper triangle of a b^T, for parallel a and b."""
    return Sym3(a.x * b.x, a.x * b.y, a.x * b.z, a.y * b.y, a.y * b.z, a.z * b.z)
