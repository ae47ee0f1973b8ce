"""Fields that act on all moving bodies: a user's own, and gravity of a central body with its gradient."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.elements.protocol import BodyElement
from jaxmbd.joints import as_pytree
from jaxmbd.spatial import Force, Vec3
from jaxmbd.values import Numbers, floats


class Field(BodyElement):
    """Force per unit mass as a function of place and time, on the centre of mass of every body.

    Variations of the field over one body are left out (see `CentralGravity`). `System.gravity` acts besides.
    """

    acceleration: Callable | None
    specific_potential: Callable | None

    def __init__(
        self,
        acceleration: Callable[[Float[Array, "3"], Float[Array, ""]], Float[Array, "3"]] | None = None,
        *,
        potential: Callable[[Float[Array, "3"], Float[Array, ""]], Float[Array, ""]] | None = None,
    ):
        """Args:
        acceleration: (position [m], time [s]) -> force per unit mass [m/s^2], world axes.
        potential: (position, time) -> potential per unit mass [J/kg] in its place; the force is its negative gradient.
          A function with numbers to differentiate is an `eqx.Module`.

        Raises: ValueError unless exactly one of the two is given.
        """
        if (acceleration is None) == (potential is None):
            raise ValueError("A field takes either acceleration or potential; give exactly one of them.")
        self.acceleration = None if acceleration is None else as_pytree(acceleration)
        self.specific_potential = None if potential is None else as_pytree(potential)

    def wrenches(self, bodies, t):
        place = jnp.stack([bodies.position.x, bodies.position.y, bodies.position.z], -1)
        if self.specific_potential is not None:
            pull = -jax.vmap(jax.grad(self.specific_potential), (0, None))(place, t)
        else:
            assert self.acceleration is not None
            pull = jax.vmap(self.acceleration, (0, None))(place, t)
        return Force(Vec3.zero(), bodies.mass * Vec3.of(pull))

    def potential(self, bodies, t):
        if self.specific_potential is None:
            return 0.0
        place = jnp.stack([bodies.position.x, bodies.position.y, bodies.position.z], -1)
        return bodies.mass * jax.vmap(self.specific_potential, (0, None))(place, t)


class CentralGravity(BodyElement):
    """Gravity of a spherical body, with its gradient over each body of the system: force and torque to second order.

    U = -mu m / r - mu (tr I - 3 u.I u) / (2 r^3), u the direction from the centre and I about the centre of mass. The
    torque is 3 mu / r^3 u x I u, and the force has the gradient of both terms. `System.gravity` acts besides: set it
    to zero.
    Source: Hughes (1986), Spacecraft Attitude Dynamics, section 8.1.
    """

    mu: Float[Array, ""]
    centre: Float[Array, "3"]

    def __init__(self, mu: Numbers, centre: Numbers = (0.0, 0.0, 0.0)):
        """Args:
        mu: gravitational parameter [m^3/s^2].
        centre: [m], world axes.
        """
        self.mu, self.centre = jnp.asarray(floats(mu)), jnp.asarray(floats(centre))
        if self.mu.shape != () or self.centre.shape != (3,):
            raise ValueError(f"mu and centre have shapes {self.mu.shape}, {self.centre.shape}; expected () and (3,).")

    def _geometry(self, bodies):
        r = bodies.position - Vec3.of(self.centre)
        inverse = 1.0 / jnp.sqrt(r.dot(r))
        u, I = inverse * r, bodies.inertia
        return inverse, u, I @ u, I.xx + I.yy + I.zz

    def wrenches(self, bodies, t):
        inverse, u, Iu, trace = self._geometry(bodies)
        g = self.mu * inverse * inverse
        second = 1.5 * g * inverse * inverse
        force = (g * bodies.mass + second * (trace - 5.0 * u.dot(Iu))) * u + (2.0 * second) * Iu
        return Force((3.0 * g * inverse) * u.cross(Iu), -force)

    def potential(self, bodies, t):
        inverse, u, Iu, trace = self._geometry(bodies)
        return -self.mu * inverse * (bodies.mass + 0.5 * inverse * inverse * (trace - 3.0 * u.dot(Iu)))
