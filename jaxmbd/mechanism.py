"""A system with what acts on it, as steppers see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxmbd.constraints.balance import constraint_motion, equations
from jaxmbd.constraints.dynamics import accelerations, driven_by_law, free_columns
from jaxmbd.constraints.impulsive import instant, jump
from jaxmbd.constraints.rows import residual, rows
from jaxmbd.curves import linearised
from jaxmbd.drives import driven_motion
from jaxmbd.elements.acting import Acting, generalised_forces
from jaxmbd.energy import lagrangian
from jaxmbd.factor import inverse_mass_product, mass_product
from jaxmbd.forces import limit_forces, passive_damping, passive_forces
from jaxmbd.limits import stops
from jaxmbd.manifold import bracket, difference, integrate
from jaxmbd.packing import Packed, full_coordinates, full_velocities, reduced_forces
from jaxmbd.system import System


class Mechanism(eqx.Module):
    """A system with applied forces tau, as steppers see it."""

    system: System
    packed: Packed
    tau: Callable[[Array, Array, Array], Array]
    forces: tuple = ()
    z: Callable[[Array], Array] | None = None
    stabilization: Float[Array, "2"] | None = None

    def loads(self, t, q, v) -> tuple[Array, tuple]:
        """Generalised forces, and wrenches."""
        if not self.forces:
            return self.tau(t, q, v), ()
        z = v[:0] if self.z is None else self.z(t)
        system = linearised(self.system, q, v)
        acting = Acting(system, self.packed, self.forces, q, v, z, self.tau(t, q, v), t)
        return acting.tau(), acting.body_forces()

    def acceleration(self, t, q, v):
        tau, wrenches = self.loads(t, q, v)
        return accelerations(self.system, self.packed, q, v, tau, wrenches, t, stabilization=self.stabilization)

    def implicit_acceleration(self, t, q, v, h, during=None):
        """Passive forces at the end of the step: h D + h^2 K is armature, and -h K v is added to the forces.

        Limits act with the force and stiffness at the coordinates that v leads to: a joint that would run into a stop
        within the step meets it before.
        """
        system = linearised(self.system, q, v)
        full = full_velocities(system, v)
        damping, stiffness = passive_damping(system, full), system.stiffness
        forces = -h * stiffness * full
        if system.limit_stiffness is not None:
            here, ahead = full_coordinates(system, q), full_coordinates(system, self.retract(q, h * v))
            stop = stops(system, ahead)
            forces = forces + limit_forces(system, ahead, full) - limit_forces(system, here, full)
            damping, stiffness = damping + stop.damping, stiffness + stop.stiffness
        tau, wrenches = self.loads(t, q, v)
        if during is not None:
            forces = forces + passive_forces(system, q, v) - passive_forces(system, q, during)
        tau = tau + reduced_forces(system, forces)
        armature = h * damping + h * h * stiffness
        v = v if during is None else during
        return accelerations(system, self.packed, q, v, tau, wrenches, t, armature, self.stabilization)

    def retract(self, q, u):
        return integrate(self.system, q, u)

    def bracket(self, u, w):
        return bracket(self.system, u, w)

    def difference(self, q0, q1):
        return difference(self.system, q0, q1)

    def lagrangian(self, t, q, v):
        self._has_an_action()
        return lagrangian(linearised(self.system, q, v), self.packed, q, v, t)

    def force(self, t, q, v):
        system = linearised(self.system, q, v)
        full = full_velocities(system, v)
        damping = passive_damping(system, full)
        if system.limit_stiffness is not None:
            damping = damping + stops(system, full_coordinates(system, q)).damping
        tau, wrenches = self.loads(t, q, v)
        if wrenches:
            tau = tau + generalised_forces(system, self.packed, q, wrenches)
        return tau - reduced_forces(system, damping * full)

    def momentum(self, t, q, v):
        return mass_product(linearised(self.system, q, v), self.packed, q, v) + self._momentum_at_rest(t, q)

    def velocity(self, t, q, p):
        rest = driven_motion(self.system, q, jnp.zeros_like(p), t)[1]
        system, driven = linearised(self.system, q, rest), driven_by_law(self.system)
        missing = p - self.momentum(t, q, rest)
        if system.constraints:
            at = instant(system, self.packed, q, rest, t, driven)
            return rest + jump(system, self.packed, q, at, missing, at.rate)[0]
        missing = missing if driven is None else jnp.where(driven, 0.0, missing)
        return rest + inverse_mass_product(system, self.packed, q, driven)(missing)

    def given(self, t, q, h):
        layout, drives = self.system.topology.layout, self.system.topology.drives
        if not drives:
            return None
        rest = jnp.zeros(self.system.nv, q.dtype)
        by_position = np.zeros(self.system.nv, bool)
        for entry, at_v in zip(drives, layout.drive_v, strict=True):
            by_position[at_v] = entry.level == "position"
        way = self.difference(q, driven_motion(self.system, q, rest, t + h)[0])
        speeds = driven_motion(self.system, q, rest, t + 0.5 * h)[1]
        return jnp.where(by_position, way / h, speeds), layout.driven

    def _momentum_at_rest(self, t, q):
        """What a moving base and internal rotors give the bodies at v = 0."""
        rest = jnp.zeros(self.system.nv, q.dtype)
        if self.system.base_motion is None and not self.system.topology.gyrostatic:
            return rest
        return jax.grad(self.lagrangian, 2)(t, q, rest)

    def preconditioner(self, t, q, v, h):
        system = linearised(self.system, q, v)
        damping, stiffness = passive_damping(system, full_velocities(system, v)), system.stiffness
        if system.limit_stiffness is not None:
            stop = stops(system, full_coordinates(system, self.retract(q, 0.5 * h * v)))
            damping, stiffness = damping + stop.damping, stiffness + stop.stiffness
        system = dataclasses.replace(system, armature=system.armature + 0.5 * h * damping + 0.25 * h * h * stiffness)
        system, packed, q, driven = *lax.stop_gradient((system, self.packed, q)), driven_by_law(system)
        if not system.constraints:
            return inverse_mass_product(system, packed, q, driven)
        at, n = lax.stop_gradient(instant(system, packed, q, v, t, driven)), len(v)
        return lambda b: jnp.concatenate(jump(system, packed, q, at, b[:n], b[n:]))

    def closure(self, t, q):
        return residual(self.system, self.packed, q, t) if self.system.constraints else jnp.zeros(0, q.dtype)

    def closure_jacobian(self, t, q):
        if not self.system.constraints:
            return jnp.zeros((0, self.system.nv), q.dtype)
        r = rows(self.system, self.packed, q, jnp.zeros(self.system.nv, q.dtype), t)
        return free_columns(r.jacobian, driven_by_law(self.system))

    def equations(self, t, q, v, a):
        tau, wrenches = self.loads(t, q, v)
        return equations(self.system, self.packed, q, v, a, tau, wrenches, t)

    def constraint_motion(self, t, q, v):
        return constraint_motion(self.system, self.packed, q, v, t)

    def _has_an_action(self):
        topology = self.system.topology
        names = [c.name for c in topology.constraints if c.rows[1]]
        if names:
            raise ValueError(
                f"A variational stepper takes no constraints on velocities ({', '.join(map(repr, names))}); "
                "use another stepper, such as RadauIIA()."
            )
        names = [joint.name for joint in topology.joints if joint.quasi]
        if names:
            raise ValueError(
                f"A variational stepper takes no joints with an N(q) of their own ({', '.join(map(repr, names))}): "
                "nothing tells the mean velocity between two configurations. Use another stepper."
            )
