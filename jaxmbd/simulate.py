"""Simulation: a system, a control and a stepper become a trajectory.

The rollout is one `lax.scan`, nested in two levels for long runs, and rematerialised in the reverse pass: a gradient
stores a state a step, or about two sqrt(steps) states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxmbd.border import BlackBox, watch_run
from jaxmbd.constraints.drift import Baumgarte, Projection, projected
from jaxmbd.constraints.dynamics import hybrid
from jaxmbd.drives import driven_motion
from jaxmbd.elements.acting import (
    checked,
    initial_states,
    prepared,
    states_after,
    with_rotors,
)
from jaxmbd.integrate import SemiImplicitEuler, Stepper
from jaxmbd.integrate.rollout import LONG, automatic_segment, scan_rows
from jaxmbd.integrate.steppers import RememberingStepper
from jaxmbd.joints import as_pytree
from jaxmbd.kinematics import promote
from jaxmbd.mechanism import Mechanism
from jaxmbd.packing import pack
from jaxmbd.record import Quantity, Recording, State, Trajectory, recorder
from jaxmbd.stateful import Control, StatefulControl
from jaxmbd.system import System
from jaxmbd.values import Numbers
from jaxmbd.watch import settle, watching

_PROJECTION = Projection()


def simulate(
    system: System,
    q: Float[Array, " nq"] | State,
    v: Float[Array, " nv"] | None = None,
    *,
    duration: float,
    dt: float,
    control: Control | StatefulControl | Numbers | None = None,
    forces: Sequence = (),
    stepper: Stepper | None = None,
    t0: Numbers = 0.0,
    every: int = 1,
    record: Sequence[str] | Mapping[str, str | Quantity] | None = None,
    remat: bool = True,
    segment: int | None = None,
    drift: Projection | Baumgarte | None = _PROJECTION,
) -> Any:
    """Motion from a state over a duration in equal steps.

    Args:
      q: coordinates at the start (joints driven by a law start and stay where it says); or a `State`, as the `end` of
        another run, to go on from.
      v: velocities at the start, zero when left out.
      duration: [s], a whole number of steps.
      dt: step [s].
      control: forces tau [nv] as a function of (t, q, v), evaluated as often as the stepper asks; or an array
        [steps, nv], each row held over its step; or a `StatefulControl`; no forces when left out. A function with
        numbers to differentiate is an `eqx.Module`. A plain function is part of the compiled program: define it once,
        outside loops.
      forces: force elements (`jaxmbd.elements`) and `Wrench`es that act beside the control; where an actuator sits on a
        joint, the control's entries for it are the command.
      stepper: `SemiImplicitEuler()` when left out.
      t0: time at the start [s].
      every: keep each so-manieth instant only; the number of steps is a multiple of it.
      record: what to keep in place of whole states: names ("q", "v", "a", "tau", "energy", "kinetic", "potential",
        "momentum", "com", "memory", a frame's "tool.position", ".rotation", ".velocity", ".acceleration", or a joint's
        "hinge.reaction", its wrench as in `reactions`), or a dictionary of names and functions of (t, q, v).
      remat: compute again in the reverse pass what a step computed; False stores it.
      segment: steps between two states that the reverse pass stores: the number to turn for memory. Left out, it is
        one for runs of up to 255 steps and the root of their number for longer ones. See docs/simulation.md.
      drift: what keeps constraints closed: `Projection()` after every step, `Baumgarte()`, or None for nothing. The
        start should satisfy them (`assemble`). Systems without constraints take no notice.

    Returns: a `Trajectory`, or a `Recording` where `record` is given.
    Raises: ValueError when duration is no whole number of steps or a shape does not fit; KeyError for unknown names.
    """
    steps = whole_steps(duration, dt)
    if every < 1 or steps % every:
        raise ValueError(f"every = {every} does not divide the {steps} steps; expected a divisor, one or more.")
    if segment is not None and segment < 1:
        raise ValueError(f"segment = {segment} steps; expected one or more, or None for a choice by the run's length.")
    memory = z = past = None
    if isinstance(q, State):
        if v is not None:
            raise ValueError("A State was given with velocities; expected one of them (the state has its own).")
        q, v, t0, memory, z, past = q.q, q.v, q.t, q.memory, q.z, q.past
    given = applied(control, steps, system.nv)
    q, v, _, t0, _ = promote(system, q, v, None, t0)
    wanted = None if record is None else recorder(system, record)
    plan = _Plan(steps, every, automatic_segment(steps) if segment is None else segment, remat, watching())
    dt = duration / steps if steps else dt
    start, elements = State(t0, q, v, memory, z, past), checked(system, forces)
    run = _rollout(system, start, dt, given, elements, stepper or SemiImplicitEuler(), wanted, drift, plan)
    settle(run)
    return run


class _Plan(NamedTuple):
    """Static numbers of a run."""

    steps: int
    every: int
    segment: int
    remat: bool
    watched: bool


def whole_steps(duration: float, dt: float) -> int:
    """The number of steps in a duration.

    Raises: ValueError when there is no whole number of them.
    """
    if not (np.isfinite(duration) and np.isfinite(dt) and duration >= 0 and dt > 0):
        raise ValueError(f"duration = {duration} s and dt = {dt} s; expected a positive step and no negative duration.")
    steps = round(duration / dt)
    if abs(steps * dt - duration) > 1e-6 * max(duration, dt):
        raise ValueError(
            f"duration = {duration} s is no whole number of steps of {dt} s ({duration / dt:.6g}); "
            f"take duration={max(steps, 1) * dt:.12g}, or another dt."
        )
    return steps


@partial(jax.jit, static_argnames="plan")
def _rollout(system, start, dt, control, elements, stepper, recorder, drift, plan):
    q, v, _, t0, _ = promote(system, start.q, start.v, None, start.t)
    elements = prepared(elements, q.dtype)
    system = with_rotors(system.astype(q.dtype), elements)
    packed, dt = pack(system), jnp.asarray(dt, q.dtype)
    q, v, _ = driven_motion(system, q, v, t0)
    drift = drift if system.constraints else None
    rates = drift.rates(dt) if isinstance(drift, Baumgarte) else None
    memory, z = start.memory, initial_states(system, elements) if start.z is None else start.z
    remembering = isinstance(stepper, RememberingStepper)
    past = None if not remembering else stepper.start(v) if start.past is None else start.past
    stateful = isinstance(control, StatefulControl)
    if stateful and memory is None:
        memory = control.start(t0, q, v)
    # whole trajectories end with accelerations and forces: their last instant is the start of one step more, whose end
    # is dropped. Another program for that instant would compile as long as the run itself.
    forces = recorder is None or recorder.needs_forces
    steps, every, apart = plan.steps, plan.every, 1
    if plan.segment == 1 and plan.steps < LONG and recorder is None:
        # reverse mode stores every state: then steps one by one, some of which are given back, are best. No step is
        # skipped after the end, and none asks whether it is to be
        every, apart = 1, plan.every
    rows, per_segment = steps // every + 1, max(plan.segment // every, 1)
    beyond = -rows % per_segment if plan.remat and per_segment < rows else 0  # rows of the last segment after the end
    overruns = not forces or every > 1 or beyond > rows // 50  # a few steps cost less than asking before every step

    def control_at(memory, i, t, q, v):
        """Forces as a function of (t, q, v) during step i, and the control's next memory."""
        tau, memory = control.plan(memory, t, q, v, dt) if stateful else (_forces(control, system.nv, i), memory)
        return lambda t, q, v: jnp.asarray(tau(t, q, v), q.dtype), memory

    def step(state, i):
        q, v, memory, z, past = state
        t = t0 + i * dt
        cast_tau, memory = control_at(memory, i, t, q, v)

        def z_at(time):
            return states_after(system, elements, q, v, z, cast_tau(t, q, v), t, time - t) if z.size else z

        mechanism = Mechanism(system, packed, cast_tau, elements, z_at, rates)
        if remembering:
            q_next, v_next, a, past = stepper.advance(mechanism, t, q, v, dt, past)
        else:
            q_next, v_next, a = stepper.step(mechanism, t, q, v, dt)
        acting, wrenches = mechanism.loads(t, q, v)
        if system.topology.drives:
            acting = hybrid(system, packed, q, v, acting, None, wrenches, t)[1]
            q_next, v_next, _ = driven_motion(system, q_next, v_next, t + dt)
        if isinstance(drift, Projection):
            q_next, v_next = projected(system, packed, q_next, v_next, t + dt, drift.iterations)
        return (q_next, v_next, memory, z_at(t + dt), past), (a, acting)

    def skip(state, i):
        return state, (jnp.zeros_like(v), jnp.zeros_like(v))

    def guarded(state, i):
        """A step, unless the run is over; the last instant's own step leaves the state where it is."""
        new, seen = lax.cond(i < steps + forces, step, skip, state, i) if overruns else step(state, i)
        if forces:
            new = jax.tree.map(lambda new, old: jnp.where(i < steps, new, old), new, state)
        return new, seen

    def boxed(state, i):
        """The same in debug mode: the first step with a number that is not finite goes into the black box."""
        *plain, box = state
        q, v, memory, z, _ = plain
        t = t0 + i * dt
        new, (a, tau) = guarded(tuple(plain), i)
        command = control_at(memory, i, t, q, v)[0](t, q, v)
        case = BlackBox(i, t, q, v, z, command, tau, a, new[0], new[1])
        sound = jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in (tau, a, new[0], new[1])]))
        box = jax.tree.map(lambda kept, now: jnp.where((box.step < 0) & ~sound, now, kept), box, case)
        return (*new, box), (a, tau)

    def row(state, r):
        q, v, memory, z, _ = state[:5]
        t = t0 + r * every * dt
        if every == 1:
            state, (a, tau) = advance(state, r)
        else:
            inside = jax.checkpoint(advance, prevent_cse=False) if plan.remat else advance
            state, (a, tau) = lax.scan(inside, state, r * every + jnp.arange(every))
            a, tau = a[0], tau[0]
        if recorder is None:
            return state, (t, q, v, a, tau, z if z.size else None)
        return state, (t, recorder(system, elements, t, q, v, a, tau, memory))

    advance, state = guarded, (q, v, memory, z, past)
    if plan.watched:
        zero = jnp.zeros_like(v)
        advance, state = boxed, (q, v, memory, z, past, BlackBox(jnp.array(-1), t0, q, v, z, zero, zero, zero, q, v))
    stored = plan.segment == 1 and every > 1  # every state is, and each step runs again by itself: no need for rows to
    (q, v, memory, z, past, *box), kept = scan_rows(row, state, rows, per_segment, plan.remat and not stored)
    if box:
        q = watch_run(system, elements, box[0], q)
    end = State(t0 + steps * dt, q, v, memory, z if z.size else None, past)
    if recorder is None:
        t, q, v, a, tau, z = jax.tree.map(lambda x: x[::apart], kept)
        return Trajectory(t, q, v, a, tau, end, z)
    t, values = kept
    return Recording(t, values, end)


def applied(control: Callable | StatefulControl | Numbers | None, steps: int, nv: int):
    """A control as a pytree: a function, or the forces of every step.

    Raises: ValueError for an array of another shape than [steps, nv].
    """
    if control is None:
        return None
    if callable(control) or isinstance(control, StatefulControl):
        return as_pytree(cast(Callable, control))
    held = jnp.asarray(cast(Any, control))
    if held.shape != (steps, nv):
        raise ValueError(f"control has shape {held.shape}; expected (steps, nv) = ({steps}, {nv}).")
    return held


def _forces(control, nv, i):
    """Forces during step i: none, a function, or a row that is held."""
    if callable(control):
        return control
    row = jnp.zeros(nv) if control is None or not len(control) else control[jnp.minimum(i, len(control) - 1)]
    return lambda t, q, v: row
