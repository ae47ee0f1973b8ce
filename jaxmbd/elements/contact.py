"""Compliant contact with the ground: points, spheres and radial tyres.

The normal force is that of Hunt & Crossley (1975): stiffness times a power of the penetration, times a factor linear in
its rate, so that it is continuous at touch-down and its damping belongs to the energy balance. Friction is Coulomb's,
regularised: it grows with the slip speed as v / sqrt(v^2 + v_s^2).
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd.elements.ground import Ground, Plane
from jaxmbd.elements.protocol import ForceElement, Names, Sides, parameter, point, sides
from jaxmbd.spatial import Force, Vec3
from jaxmbd.values import Numbers, concrete


class Contact(ForceElement):
    """Contact of spheres, or points, with the ground.

    Normal force N = stiffness d^exponent (1 + 3/2 dissipation d_dot), never negative, with the penetration d; friction
    -friction N v / sqrt(v^2 + slip_speed^2) against the velocity v of the sphere's material at the ground.
    Source: Hunt & Crossley (1975), Interpretation of coefficient of restitution, J. Appl. Mech. 42, 440-445.
    """

    frames: Sides = eqx.field(static=True)
    ground: Ground
    radius: Float[Array, "*n"]
    stiffness: Float[Array, "*n"]
    dissipation_factor: Float[Array, "*n"]
    friction: Float[Array, "*n"]
    slip_speed: Float[Array, "*n"]
    point: Float[Array, "*n 3"] | None
    exponent: float = eqx.field(static=True)

    def __init__(
        self,
        frame: Names,
        stiffness: Numbers,
        dissipation: Numbers = 0.0,
        friction: Numbers = 0.0,
        *,
        radius: Numbers = 0.0,
        ground: Ground | None = None,
        slip_speed: Numbers = 0.01,
        point: Numbers | None = None,
        exponent: float = 1.5,
    ):
        """Args:
        frame: link or frame at the centre of the sphere, or several.
        stiffness: [N/m^exponent].
        dissipation: factor of the penetration's rate [s/m]; the coefficient of restitution is about 1 - dissipation *
          impact speed for a small one.
        friction: coefficient.
        radius: [m]; zero for a point.
        ground: a `Plane` through the origin with its normal along z when left out.
        slip_speed: speed at which friction has 0.71 of its full value [m/s]; slower it creeps, instead of sticking.
        point: centre of the sphere in the frame's axes [m].
        exponent: 1.5 for Hertz' contact of a sphere, 1 for a linear spring.
        """
        if exponent < 1:
            raise ValueError(f"The exponent of a contact is {exponent}; expected at least 1.")
        self.frames = f = sides(frame)
        self.ground, self.exponent = Plane() if ground is None else ground, float(exponent)
        self.radius, self.stiffness = parameter(radius, "radius", f), parameter(stiffness, "stiffness", f)
        self.dissipation_factor = parameter(dissipation, "dissipation", f)
        self.friction, self.slip_speed = parameter(friction, "friction", f), parameter(slip_speed, "slip_speed", f)
        known = concrete(slip_speed)
        if known is not None and not np.all(known > 0):
            raise ValueError(f"The slip_speed of a contact is {slip_speed} m/s; expected a positive speed.")
        self.point = _point(point, f)

    @property
    def points(self):
        return (self.point,)

    def _normal(self, motion):
        """Gap, its gradient, penetration, its rate, elastic and whole normal force per unit gradient."""
        (m,) = motion
        gap, normal = self.ground.gap_and_normal(m.position)
        depth = self.radius - gap
        rate = -normal.dot(m.velocity)
        elastic = self.stiffness * _power(depth, self.exponent)
        force = elastic * jnp.maximum(1.0 + 1.5 * self.dissipation_factor * rate, 0.0)
        return gap, normal, depth, rate, elastic, force

    def _friction(self, motion, gap, normal, force):
        """Lever from the centre to the ground, friction force and the heat it makes."""
        (m,) = motion
        square = normal.dot(normal)
        safe = jnp.where(square > 0, square, 1.0)
        lever = (-gap / safe) * normal
        v = m.velocity + m.omega.cross(lever)
        slip = v - (v.dot(normal) / safe) * normal
        secant = self.friction * force * jnp.sqrt(safe / (slip.dot(slip) + self.slip_speed**2))
        return lever, -secant * slip, secant * slip.dot(slip)

    def wrenches(self, motion, t):
        gap, normal, _, _, _, force = self._normal(motion)
        lever, friction, _ = self._friction(motion, gap, normal, force)
        return (Force(lever.cross(friction), force * normal + friction),)

    def potential(self, motion, t):
        depth, p = self._normal(motion)[2], self.exponent
        return self.stiffness * _power(depth, p + 1.0) / (p + 1.0)

    def dissipation(self, motion, t):
        gap, normal, _, rate, elastic, force = self._normal(motion)
        return (force - elastic) * rate + self._friction(motion, gap, normal, force)[2]


class Tyre(ForceElement):
    """Radial spring and damper between a wheel's centre and the ground: stiffness (radius - h) - damping dh/dt.

    h is the height of the centre above the ground, whose normal is the force's direction; there is no lateral and no
    rolling force. Without `lift_off` the tyre also pulls, as in linear models of vehicles.
    Source: Attia (2005), section 2.5, Table 2.3.
    """

    frames: Sides = eqx.field(static=True)
    ground: Ground
    radius: Float[Array, "*n"]
    stiffness: Float[Array, "*n"]
    damping: Float[Array, "*n"]
    lift_off: bool = eqx.field(static=True)
    point: Float[Array, "*n 3"] | None

    def __init__(
        self,
        frame: Names,
        radius: Numbers,
        stiffness: Numbers,
        damping: Numbers = 0.0,
        *,
        ground: Ground | None = None,
        lift_off: bool = False,
        point: Numbers | None = None,
    ):
        """Args:
        frame: link or frame at the wheel's centre, or several.
        radius: unloaded [m].
        stiffness: [N/m].
        damping: [N s/m].
        ground: a `Plane` through the origin with its normal along z when left out.
        lift_off: no force where the centre is higher than the radius, and never a pull.
        point: the wheel's centre in the frame's axes [m].
        """
        self.frames = f = sides(frame)
        self.ground, self.lift_off = Plane() if ground is None else ground, bool(lift_off)
        self.radius, self.stiffness = parameter(radius, "radius", f), parameter(stiffness, "stiffness", f)
        self.damping, self.point = parameter(damping, "damping", f), _point(point, f)

    @property
    def points(self):
        return (self.point,)

    def _radial(self, motion):
        (m,) = motion
        gap, normal = self.ground.gap_and_normal(m.position)
        depth, rate = self.radius - gap, -normal.dot(m.velocity)
        if self.lift_off:
            touching = depth > 0
            depth = jnp.where(touching, depth, 0.0)
            elastic = self.stiffness * depth
            return (
                normal,
                depth,
                rate,
                elastic,
                jnp.where(touching, jnp.maximum(elastic + self.damping * rate, 0.0), 0.0),
            )
        elastic = self.stiffness * depth
        return normal, depth, rate, elastic, elastic + self.damping * rate

    def wrenches(self, motion, t):
        normal, _, _, _, force = self._radial(motion)
        return (Force(Vec3.zero(), force * normal),)

    def potential(self, motion, t):
        return 0.5 * self.stiffness * self._radial(motion)[1] ** 2

    def dissipation(self, motion, t):
        _, _, rate, elastic, force = self._radial(motion)
        return (force - elastic) * rate


def _point(value, frames):
    return point(value, "point", frames)


def _power(depth, exponent: float):
    """depth^exponent, zero above the ground, with finite derivatives at touch-down."""
    inside = depth > 0
    safe = jnp.where(inside, depth, 1.0)
    if exponent == 1.5:
        value = safe * jnp.sqrt(safe)
    elif exponent == 2.5:
        value = safe * safe * jnp.sqrt(safe)
    else:
        value = safe**exponent
    return jnp.where(inside, value, 0.0)
