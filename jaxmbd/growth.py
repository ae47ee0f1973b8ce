"""How fast gradients grow along a motion, beside the growth that the motion itself has: chaos told from a fault.

A gradient through n steps is a product of n step Jacobians. It grows as fast as neighbouring motions depart, which is
a property of the mechanism and is found without the stepper's derivative: from the tangent system of the equations of
motion, du = dv + [du, v] along the group and dv' = da, integrated by the fourth-order method. If both grow alike, large
gradients are right; if the product grows faster, the step is too long or something is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxmbd.elements.acting import prepared, stateless, with_rotors
from jaxmbd.integrate import SemiImplicitEuler, Stepper
from jaxmbd.integrate.steppers import require_single_steps
from jaxmbd.joints import as_pytree
from jaxmbd.kinematics import promote
from jaxmbd.mechanism import Mechanism
from jaxmbd.packing import pack
from jaxmbd.simulate import whole_steps
from jaxmbd.stateful import Control
from jaxmbd.system import System


class Growth(eqx.Module):
    """Factors by which small changes of the start have grown, at nt instants (root mean square over random changes).

    `steps` is that of the derivative of the stepper's steps, hence of gradients; `tangent` that of the tangent system.
    """

    t: Float[Array, " nt"]
    steps: Float[Array, " nt"]
    tangent: Float[Array, " nt"]

    @property
    def rates(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean exponential rates of both over the run [1/s]: estimates of the largest Lyapunov exponent."""
        span = self.t[-1] - self.t[0]
        return jnp.log(self.steps[-1]) / span, jnp.log(self.tangent[-1]) / span


def gradient_growth(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"] | None = None,
    *,
    duration: float,
    dt: float,
    control: Control | None = None,
    forces: Sequence = (),
    stepper: Stepper | None = None,
    directions: int = 8,
    seed: int = 0,
) -> Growth:
    """Growth of gradients through a run, beside that of the tangent system along the same motion.

    Args:
      duration, dt, control, forces, stepper: as for `simulate`; dt also is the step of the tangent system. No force
        elements with a lag.
      directions: random changes of the start, in tangent coordinates [rad, m] and velocities alike.
      seed: of the random changes.
    """
    steps, stepper = whole_steps(duration, dt), stepper or SemiImplicitEuler()
    require_single_steps(stepper, "gradient_growth")
    if system.topology.drives:
        names = ", ".join(repr(system.topology.joints[d.joint].name) for d in system.topology.drives)
        raise ValueError(f"Joints driven by laws ({names}) do not depart; take the growth without_drive().")
    if system.constraints:
        names = ", ".join(map(repr, system.constraint_names))
        raise ValueError(f"Random changes of the start would break the constraints {names}; take the growth of a tree.")
    q, v, _, _, _ = promote(system, q, v, None, 0.0)
    law, elements = None if control is None else as_pytree(control), stateless(system, forces, "gradient_growth")
    changes = jax.random.normal(jax.random.key(seed), (directions, 2, system.nv), q.dtype)
    return _growth(system, q, v, changes, law, elements, stepper, duration / steps, steps)


@partial(jax.jit, static_argnames="steps")
def _growth(system, q, v, changes, control, elements, stepper, dt, steps):
    elements = prepared(elements, q.dtype)
    system = with_rotors(system.astype(q.dtype), elements)
    dt, packed = jnp.asarray(dt, q.dtype), pack(system)

    def tau(t, q, v):
        return jnp.zeros_like(v) if control is None else jnp.asarray(control(t, q, v), q.dtype)

    mechanism = Mechanism(system, packed, tau, elements)

    def through_step(t, q, v, q1, change):
        """The step's derivative between tangents at its start and its end."""

        def step(change):
            q_end, v_end, _ = stepper.step(mechanism, t, mechanism.retract(q, change[0]), v + change[1], dt)
            return jnp.stack([mechanism.difference(q1, q_end), v_end])

        return jax.jvp(step, (jnp.zeros_like(change),), (change,))[1]

    def tangent_rate(t, q, v, change):
        def acceleration(u, v):
            return mechanism.acceleration(t, mechanism.retract(q, u), v)

        zero = jnp.zeros_like(v)
        turned = change[1] - mechanism.bracket(v, change[0])
        return jnp.stack([turned, jax.jvp(acceleration, (zero, v), tuple(change))[1]])

    def tangent_step(t, q, v, a, change):
        """One step of the classical method; between its ends the motion is q exp(s v + s^2 a / 2), v + s a."""
        total = jnp.zeros_like(change)

        def stage(carry, numbers):
            total, last = carry
            c, b = numbers
            s = c * dt
            at = mechanism.retract(q, s * v + 0.5 * s * s * a), v + s * a
            rate = jax.vmap(lambda x: tangent_rate(t + s, *at, x))(change + s * last)
            return (total + b * rate, rate), None

        reach = jnp.array([0.0, 0.5, 0.5, 1.0], q.dtype)
        weight = jnp.array([1.0, 2.0, 2.0, 1.0], q.dtype) / 6.0
        return change + dt * lax.scan(stage, (total, total), (reach, weight))[0][0]

    def size(x):
        return jnp.sqrt(jnp.mean(jnp.sum(x * x, (1, 2))))

    def advance(carry, i):
        q, v, ours, own, log_ours, log_own = carry
        t = i * dt
        q1, v1, _ = stepper.step(mechanism, t, q, v, dt)
        ours = jax.vmap(lambda x: through_step(t, q, v, q1, x))(ours)
        own = tangent_step(t, q, v, (v1 - v) / dt, own)
        # kept at size one, so that fast growth stays within the numbers
        grown, own_grown = size(ours), size(own)
        log_ours, log_own = log_ours + jnp.log(grown), log_own + jnp.log(own_grown)
        return (q1, v1, ours / grown, own / own_grown, log_ours, log_own), (log_ours, log_own)

    start = changes / size(changes)
    zero = jnp.zeros((), q.dtype)
    _, logs = lax.scan(advance, (q, v, start, start, zero, zero), jnp.arange(steps))
    ours, own = (jnp.exp(jnp.concatenate([zero[None], log])) for log in logs)
    return Growth(jnp.arange(steps + 1) * dt, ours, own)
