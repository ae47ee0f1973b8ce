"""Simulation: a system, a control and a stepper become a trajectory.

The rollout is one `lax.scan`. Each step is rematerialised in the reverse pass, so that a gradient stores one state a
step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxmbd.constraints.drift import Baumgarte, Projection, projected
from jaxmbd.constraints.dynamics import accelerations, hybrid
from jaxmbd.curves import linearised
from jaxmbd.drives import driven_motion
from jaxmbd.forces import passive_damping
from jaxmbd.integrate import SemiImplicitEuler, Stepper
from jaxmbd.joints import as_pytree
from jaxmbd.kinematics import promote
from jaxmbd.manifold import bracket, integrate
from jaxmbd.packing import Packed, full_velocities, pack, reduced_forces
from jaxmbd.system import System
from jaxmbd.values import Numbers

Control = Callable[[Array, Array, Array], Array]


_PROJECTION = Projection()


class Trajectory(eqx.Module):
    """States at nt = steps + 1 instants, the start included.

    `a` and `tau` belong to the step that begins at each instant, as the stepper and the control see it; where joints
    are driven by a law, `tau` is the driving force (its power is tau * v).
    """

    t: Float[Array, " nt"]
    q: Float[Array, "nt nq"]
    v: Float[Array, "nt nv"]
    a: Float[Array, "nt nv"]
    tau: Float[Array, "nt nv"]


class Mechanism(eqx.Module):
    """A system with applied forces tau, as steppers see it."""

    system: System
    packed: Packed
    tau: Callable[[Array, Array, Array], Array]
    stabilization: Float[Array, "2"] | None = None

    def acceleration(self, t, q, v):
        tau = self.tau(t, q, v)
        return accelerations(self.system, self.packed, q, v, tau, (), t, stabilization=self.stabilization)

    def implicit_acceleration(self, t, q, v, h):
        """Passive forces at the end of the step: h D + h^2 K is armature, and -h K v is added to the forces."""
        system = linearised(self.system, q, v)
        full = full_velocities(system, v)
        damping, stiffness = passive_damping(system, full), system.stiffness
        tau = self.tau(t, q, v) - reduced_forces(system, h * stiffness * full)
        armature = h * damping + h * h * stiffness
        return accelerations(system, self.packed, q, v, tau, (), t, armature, self.stabilization)

    def retract(self, q, u):
        return integrate(self.system, q, u)

    def bracket(self, u, w):
        return bracket(self.system, u, w)


def simulate(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"] | None = None,
    *,
    duration: float,
    dt: float,
    control: Control | Numbers | None = None,
    stepper: Stepper | None = None,
    t0: Numbers = 0.0,
    remat: bool = True,
    drift: Projection | Baumgarte | None = _PROJECTION,
) -> Trajectory:
    """Motion from a state over a duration in equal steps.

    Args:
      q: coordinates at the start; joints driven by a law start and stay where it says.
      v: velocities at the start, zero when left out.
      duration: [s], a whole number of steps.
      dt: step [s].
      control: forces tau [nv] as a function of (t, q, v), evaluated as often as the stepper asks; or an array [steps,
      nv],
        each row held over its step; no forces when left out. A function with numbers to differentiate is an
        `eqx.Module`. A plain function is part of the compiled program: define it once, outside loops.
      stepper: `SemiImplicitEuler()` when left out.
      t0: time at the start [s].
      remat: rematerialise each step in the reverse pass: it then stores one state a step, and works about a third more.
        False stores what each step computed.
      drift: what keeps constraints closed: `Projection()` after every step, `Baumgarte()`, or None for nothing. The
        start should satisfy them (`assemble`). Systems without constraints take no notice.

    Raises: ValueError when duration is no whole number of steps or a shape does not fit.
    """
    steps = _whole_steps(duration, dt)
    if control is None or callable(control):
        forces = None if control is None else as_pytree(control)
    else:
        forces = jnp.asarray(control)
        if forces.shape != (steps, system.nv):
            raise ValueError(f"control has shape {forces.shape}; expected (steps, nv) = ({steps}, {system.nv}).")
    q, v, _, t0, _ = promote(system, q, v, None, t0)
    return _rollout(
        system, q, v, t0, duration / steps if steps else dt, forces, stepper or SemiImplicitEuler(), steps, remat, drift
    )


def _whole_steps(duration: float, dt: float) -> int:
    if not (np.isfinite(duration) and np.isfinite(dt) and duration >= 0 and dt > 0):
        raise ValueError(f"duration = {duration} s and dt = {dt} s; expected a positive step and no negative duration.")
    steps = round(duration / dt)
    if abs(steps * dt - duration) > 1e-6 * max(duration, dt):
        raise ValueError(
            f"duration = {duration} s is no whole number of steps of {dt} s ({duration / dt:.6g}); "
            f"take duration={max(steps, 1) * dt:.12g}, or another dt."
        )
    return steps


@partial(jax.jit, static_argnames=("steps", "remat"))
def _rollout(system, q, v, t0, dt, control, stepper, steps, remat, drift):
    q, v, _, t0, _ = promote(system, q, v, None, t0)
    system = system.astype(q.dtype)
    packed, dt = pack(system), jnp.asarray(dt, q.dtype)
    q, v, _ = driven_motion(system, q, v, t0)
    drift = drift if system.constraints else None
    rates = drift.rates(dt) if isinstance(drift, Baumgarte) else None
    held = jnp.zeros((1, system.nv), q.dtype) if control is None or callable(control) else control.astype(q.dtype)

    def step(state, i):
        q, v = state
        t = t0 + i * dt
        row = held[jnp.minimum(i, len(held) - 1)] if len(held) else jnp.zeros(system.nv, q.dtype)

        def tau(t, q, v):
            return jnp.asarray(control(t, q, v), q.dtype) if callable(control) else row

        q_next, v_next, a = stepper.step(Mechanism(system, packed, tau, rates), t, q, v, dt)
        acting = tau(t, q, v)
        if system.topology.drives:
            acting = hybrid(system, packed, q, v, acting, None, (), t)[1]
            q_next, v_next, _ = driven_motion(system, q_next, v_next, t + dt)
        if isinstance(drift, Projection):
            q_next, v_next = projected(system, packed, q_next, v_next, t + dt, drift.iterations)
        return (q_next, v_next), (t, q, v, a, acting)

    if remat:
        step = jax.checkpoint(step, prevent_cse=False)
    # the last instant is the start of one step more, whose end is dropped
    return Trajectory(*lax.scan(step, (q, v), jnp.arange(steps + 1))[1])
