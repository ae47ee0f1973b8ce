"""Springs with dampers: between two points, and about an axis between two frames."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.elements.protocol import ForceElement, Names, Sides, parameter, point, safe_inverse_root, sides
from jaxmbd.joints import unit
from jaxmbd.spatial import Force, Vec3
from jaxmbd.values import Numbers


class Spring(ForceElement):
    """Spring and damper in line between two points: tension stiffness (l - rest) + damping dl/dt.

    l = sqrt(distance^2 + smoothing^2). Without smoothing, the direction of a spring of length zero is not defined: what
    depends on it (rest and damping) then has no effect and no derivative, while a spring of free length zero is exactly
    linear there. With smoothing, all derivatives are continuous everywhere.
    """

    frames: Sides = eqx.field(static=True)
    stiffness: Float[Array, "*n"]
    damping: Float[Array, "*n"]
    rest: Float[Array, "*n"]
    smoothing: Float[Array, "*n"]
    point_a: Float[Array, "*n 3"] | None
    point_b: Float[Array, "*n 3"] | None

    def __init__(
        self,
        a: Names,
        b: Names,
        stiffness: Numbers,
        damping: Numbers = 0.0,
        rest: Numbers = 0.0,
        *,
        point_a: Numbers | None = None,
        point_b: Numbers | None = None,
        smoothing: Numbers = 0.0,
    ):
        """Args:
        a, b: links or frames, or as many on both sides for a row of springs.
        stiffness: [N/m].
        damping: [N s/m].
        rest: free length [m].
        point_a, point_b: where the ends are, in the frames' axes [m]; their origins when left out.
        smoothing: [m].
        """
        self.frames = f = sides(a, b)
        self.stiffness, self.damping = parameter(stiffness, "stiffness", f), parameter(damping, "damping", f)
        self.rest, self.smoothing = parameter(rest, "rest", f), parameter(smoothing, "smoothing", f)
        self.point_a, self.point_b = point(point_a, "point_a", f), point(point_b, "point_b", f)

    @property
    def points(self):
        return self.point_a, self.point_b

    def _stretch(self, motion):
        a, b = motion
        d = b.position - a.position
        square = d.dot(d) + self.smoothing * self.smoothing
        inverse = safe_inverse_root(square)
        rate = inverse * d.dot(b.velocity - a.velocity)
        return d, square, inverse, rate

    def wrenches(self, motion, t):
        d, _, inverse, rate = self._stretch(motion)
        pull = (self.stiffness - (self.stiffness * self.rest - self.damping * rate) * inverse) * d
        zero = Vec3.zero()
        return Force(zero, pull), Force(zero, -pull)

    def potential(self, motion, t):
        _, square, inverse, _ = self._stretch(motion)
        # at length zero without the direction's part, as the force: so its second derivatives are those of the force
        at_zero = square + self.rest * self.rest
        return 0.5 * self.stiffness * jnp.where(square > 0, (square * inverse - self.rest) ** 2, at_zero)

    def dissipation(self, motion, t):
        return self.damping * self._stretch(motion)[3] ** 2


class TorsionSpring(ForceElement):
    """Spring and damper about an axis: moment -stiffness (angle - rest) - damping d(angle)/dt.

    The angle is the twist of frame b relative to frame a about the axis, that of a hinge with this axis; where the
    frames move otherwise too, the moment is the gradient of the spring's energy. It jumps half a turn from `rest`.
    """

    frames: Sides = eqx.field(static=True)
    axis: Float[Array, "*n 3"]
    stiffness: Float[Array, "*n"]
    damping: Float[Array, "*n"]
    rest: Float[Array, "*n"]

    def __init__(
        self, a: Names, b: Names, axis: Numbers, stiffness: Numbers, damping: Numbers = 0.0, rest: Numbers = 0.0
    ):
        """Args:
        a, b: links or frames, or as many on both sides.
        axis: direction in the axes of frame a; of any length.
        stiffness: [N m/rad].
        damping: [N m s/rad].
        rest: angle without moment [rad].
        """
        self.frames = f = sides(a, b)
        self.axis = parameter(axis, "axis", f, (3,))
        self.stiffness, self.damping = parameter(stiffness, "stiffness", f), parameter(damping, "damping", f)
        self.rest = parameter(rest, "rest", f)

    def _twist(self, motion):
        """Angle from rest, its gradient along turns of b relative to a (world axes), and its rate.

        With C the rotation from b to a and n the axis: tan(angle) = n.vee(C - C^T) / (tr C - n.C n).
        """
        a, b = motion
        n = Vec3.of(unit(self.axis))
        C = a.rotation.T @ b.rotation
        w = Vec3(C.zy - C.yz, C.xz - C.zx, C.yx - C.xy)
        trace, turned = C.xx + C.yy + C.zz, C @ n
        y, x = n.dot(w), trace - n.dot(turned)
        dy, dx = trace * n - C.T @ n, -w - turned.cross(n)
        square = x * x + y * y
        defined = square > 0
        gain = jnp.where(defined, 1.0 / jnp.where(defined, square, 1.0), 0.0)
        c, s = jnp.cos(self.rest), jnp.sin(self.rest)
        angle = jnp.arctan2(jnp.where(defined, y * c - x * s, 0.0), jnp.where(defined, x * c + y * s, 1.0))
        gradient = a.rotation @ (gain * (x * dy - y * dx))
        return angle, gradient, gradient.dot(b.omega - a.omega)

    def wrenches(self, motion, t):
        angle, gradient, rate = self._twist(motion)
        moment, zero = (self.stiffness * angle + self.damping * rate) * gradient, Vec3.zero()
        return Force(moment, zero), Force(-moment, zero)

    def potential(self, motion, t):
        return 0.5 * self.stiffness * self._twist(motion)[0] ** 2

    def dissipation(self, motion, t):
        return self.damping * self._twist(motion)[2] ** 2
