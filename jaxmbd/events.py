"""Runs with events: impacts, latches, stops. Each is found within its step, and its time can be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxmbd.border import BlackBox, watch_run
from jaxmbd.constraints.drift import Baumgarte, Projection, projected
from jaxmbd.drives import driven_motion
from jaxmbd.elements.acting import checked, initial_states, prepared, states_after, with_rotors
from jaxmbd.integrate import SemiImplicitEuler, Stepper
from jaxmbd.integrate.events import first_crossing
from jaxmbd.integrate.rollout import automatic_segment, scan_rows
from jaxmbd.integrate.steppers import require_single_steps
from jaxmbd.joints import as_pytree
from jaxmbd.kinematics import promote
from jaxmbd.manifold import q_dot
from jaxmbd.mechanism import Mechanism
from jaxmbd.packing import pack
from jaxmbd.record import State
from jaxmbd.simulate import applied, whole_steps
from jaxmbd.stateful import StatefulControl
from jaxmbd.system import System
from jaxmbd.values import Numbers
from jaxmbd.watch import settle, watching

_PROJECTION = Projection()


class Event(eqx.Module):
    """Something that happens when a function of (t, q, v) changes its sign.

    Args:
      condition: the function, a number; it should pass through zero, not touch it.
      effect: new (q, v) from (t, q, v) at the event, as after an impact; nothing when left out.
      direction: -1 when falling through zero, 1 when rising, 0 for both.
      stop: whether the run of this system ends there.
    """

    condition: Callable[[Array, Array, Array], Array]
    effect: Callable[[Array, Array, Array], tuple[Array, Array]] | None
    direction: int = eqx.field(static=True)
    stop: bool = eqx.field(static=True)

    def __init__(self, condition: Callable, effect: Callable | None = None, direction: int = 0, stop: bool = False):
        if direction not in (-1, 0, 1):
            raise ValueError(f"The direction of an event is {direction!r}; expected -1, 0 or 1.")
        self.condition = as_pytree(condition)
        self.effect = None if effect is None else as_pytree(effect)
        self.direction, self.stop = direction, stop


class EventRun(eqx.Module):
    """States at the instants of the steps and, between them, of the events (after their effect).

    `event` is the index of the event at an instant, -1 where there is none. Rows after the end of the run repeat its
    last state. `complete` is false where `max_events` were used up before the end was reached. `z` holds the own states
    of force elements (of actuators with lag), None where they have none; `end` is the last state, for resuming.
    """

    t: Float[Array, " nt"]
    q: Float[Array, "nt nq"]
    v: Float[Array, "nt nv"]
    event: Int[Array, " nt"]
    complete: Bool[Array, ""]
    count: Float[Array, " m"]
    """How often each event happened."""
    end: State
    z: Float[Array, "nt nz"] | None = None

    def times(self, event: int, n: int) -> Float[Array, " n"]:
        """The first n times of an event, infinite where it happened less often."""
        happened = self.event == event
        rows = jnp.argsort(~happened, stable=True)[:n]
        return jnp.where(happened[rows], self.t[rows], jnp.inf)


def simulate_events(
    system: System,
    q: Float[Array, " nq"] | State,
    v: Float[Array, " nv"] | None = None,
    *,
    events: Sequence[Event],
    duration: float,
    dt: float,
    control: Callable[[Array, Array, Array, Array], Array] | Numbers | None = None,
    forces: Sequence = (),
    changes: Callable[[Array], Mapping[str, Any]] | None = None,
    stepper: Stepper | None = None,
    t0: Numbers = 0.0,
    max_events: int = 32,
    tolerance: float = 1e-9,
    remat: bool = True,
    drift: Projection | Baumgarte | None = _PROJECTION,
) -> EventRun:
    """Motion in equal steps, which end early where an event happens and then go on to the next whole step.

    Args:
      q: coordinates at the start; or a `State`, as the `end` of another run, to go on from.
      events: what to look for. The earliest sign change in each step is found, also of a function that changes its
        sign twice within the step where the cubic through its values and rates at the step's ends shows that. Of
        several that do so in one step the one whose cubic dips first is followed, and oscillations with less than some
        three steps a period may be missed: take a shorter dt.
      control: forces tau [nv] as a function of (t, q, v, count), where count [m] is how often each event happened; or
        an array [steps, nv], each row held over its step.
      forces: force elements and `Wrench`es, as for `simulate`; an actuator with lag takes its command anew after an
        event.
      changes: numbers of the system by path, as for `System.replace`, from count: a latch that opens, a brake.
      max_events: rows set aside for events. A ball that comes to rest bounces without end: use `with_limits` or a
        contact force for that, or a stop.
      tolerance: of an event's time [s]; in float32 no better than some roundings of dt.
      remat, drift: as for `simulate`. What an effect does is not projected: it should keep the constraints (`impact`,
        `impulse_response`).

    Cost: two steps a step (one to look, one to go), and some ten more in a step with an event; in a batch those are
      made for all copies.
    """
    if not events:
        raise ValueError("No events were given; expected one or more, or use simulate.")
    if isinstance(control, StatefulControl):
        raise ValueError(
            f"{type(control).__name__} plans whole steps, which events cut short; give a function of (t, q, v, count), "
            "or force elements with states of their own."
        )
    z = None
    if isinstance(q, State):
        if v is not None:
            raise ValueError("A State was given with velocities; expected one of them (the state has its own).")
        q, v, t0, z = q.q, q.v, q.t, q.z
    steps, stepper = whole_steps(duration, dt), stepper or SemiImplicitEuler()
    require_single_steps(stepper, "simulate_events")
    law = applied(control, steps, system.nv)
    q, v, _, t0, _ = promote(system, q, v, None, t0)
    loads = _Loads(law, checked(system, forces), None if changes is None else as_pytree(changes))
    numbers = (t0, dt if not steps else duration / steps, tolerance)
    plan = _Plan(steps, max_events, remat, watching())
    run = _run(system, q, v, z, numbers, tuple(events), loads, stepper, drift, plan)
    settle(run)
    return run


class _Loads(NamedTuple):
    """What acts during a run: a control, force elements, and changes of the system's numbers."""

    control: Any
    elements: tuple
    changes: Any


class _Plan(NamedTuple):
    """Static numbers of a run."""

    steps: int
    max_events: int
    remat: bool
    watched: bool


@partial(jax.jit, static_argnames="plan")
def _run(system, q, v, z, numbers, events, loads, stepper, drift, plan):
    t0, dt, tolerance = (jnp.asarray(x, q.dtype) for x in numbers)
    system, steps = system.astype(q.dtype), plan.steps
    elements = prepared(loads.elements, q.dtype)
    z = initial_states(system, elements) if z is None else z
    q, v, _ = driven_motion(system, q, v, t0)
    drift = drift if system.constraints else None
    rates = drift.rates(dt) if isinstance(drift, Baumgarte) else None
    directions = jnp.array([event.direction for event in events])
    stops = jnp.array([event.stop for event in events])

    def conditions(t, q, v):
        return jnp.stack([jnp.asarray(event.condition(t, q, v), q.dtype).reshape(()) for event in events])

    def made(system):
        system = with_rotors(system, elements)
        return system, pack(system)

    unchanged = made(system) if loads.changes is None else None

    def iterate(carry, row):
        t, q, v, z, node, count, fresh, alive = carry
        current, packed = made(system.replace(loads.changes(count))) if unchanged is None else unchanged

        def tau(t, q, v):
            if loads.control is None or not steps:
                return jnp.zeros_like(v)
            if callable(loads.control):
                return jnp.asarray(loads.control(t, q, v, count), q.dtype)
            return jnp.asarray(loads.control[jnp.minimum(node, steps) - 1], q.dtype)

        def z_at(time):
            return states_after(current, elements, q, v, z, tau(t, q, v), t, time - t) if z.size else z

        mechanism = Mechanism(current, packed, tau, elements, z_at, rates)
        going = alive & (node <= steps)
        target = t0 + node * dt
        h = jnp.where(going, target - t, dt)

        def advance(h):
            q1, v1, a = stepper.step(mechanism, t, q, v, h)
            q1, v1, _ = driven_motion(current, q1, v1, t + h)
            if isinstance(drift, Projection):
                q1, v1 = projected(current, packed, q1, v1, t + h, drift.iterations)
            return q1, v1, a

        def after(h):
            q_at, v_at, _ = advance(h)
            return conditions(t + h, q_at, v_at)

        whole = jax.lax.stop_gradient(advance(h))
        motion = (jnp.ones_like(t), q_dot(current, q, v), whole[2])
        here, rate = jax.jvp(conditions, (t, q, v), motion)
        motion = (jnp.ones_like(t), q_dot(current, *whole[:2]), whole[2])
        there, rate_there = jax.lax.stop_gradient(jax.jvp(conditions, (t + h, *whole[:2]), motion))
        crossing = first_crossing(
            lambda x: after(x * h), here, there, h * rate, h * rate_there, fresh, directions, tolerance / dt
        )
        happens = going & crossing.there
        h = crossing.part * h
        q1, v1, a = advance(h)
        t1 = jnp.where(happens, t + h, target)
        hit = happens & (jnp.arange(len(events)) == crossing.which)
        for i, event in enumerate(events):
            if event.effect is not None:
                new = event.effect(t1, q1, v1)
                q1, v1 = (jnp.where(hit[i], jnp.asarray(n, q.dtype), old) for n, old in zip(new, (q1, v1), strict=True))
        early = happens & (target - t1 > 1e-6 * dt)
        moved = (t1, q1, v1, z_at(t1), node + ~early, count + hit, hit, alive & ~jnp.any(hit & stops))
        kept = jax.tree.map(lambda new, old: jnp.where(going, new, old), moved, carry)
        case = None
        if plan.watched:
            box = BlackBox(node - 1, t, q, v, z, tau(t, q, v), mechanism.loads(t, q, v)[0], a, q1, v1)
            case = going, box
        return kept, (*kept[:4], jnp.where(happens, crossing.which, -1)), case

    def row(state, r):
        """In debug mode the first step with a number that is not finite goes into the black box."""
        carry, seen, case = iterate(state[0], r)
        if case is None:
            return (carry, None), seen
        going, now = case
        sound = jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in (now.tau, now.a, now.q1, now.v1)]))
        first = going & (state[1].step < 0) & ~sound
        return (carry, jax.tree.map(lambda kept, new: jnp.where(first, new, kept), state[1], now)), seen

    none, zero = jnp.zeros(len(events), bool), jnp.zeros_like(v)
    start = (t0, q, v, z, jnp.ones((), int), none.astype(q.dtype), none, jnp.ones((), bool))
    box = BlackBox(jnp.array(-1), t0, q, v, z, zero, zero, zero, q, v) if plan.watched else None
    rows = steps + plan.max_events
    (end, box), (t, qs, vs, zs, event) = scan_rows(row, (start, box), rows, automatic_segment(rows), plan.remat)
    last = State(end[0], end[1], end[2], z=end[3] if z.size else None)
    if box is not None:
        last = eqx.tree_at(lambda s: s.q, last, watch_run(system, elements, box, last.q))
    first = (t0[None], q[None], v[None], z[None], jnp.full((1,), -1, event.dtype))
    t, qs, vs, zs, event = (jnp.concatenate(pair) for pair in zip(first, (t, qs, vs, zs, event), strict=True))
    complete = ~end[7] | (end[4] > steps)
    return EventRun(t, qs, vs, event, complete, end[5], last, zs if z.size else None)
