"""Runs with events: impacts, latches, stops. Each is found within its step, and its time can be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxmbd.drives import driven_motion
from jaxmbd.integrate import SemiImplicitEuler, Stepper
from jaxmbd.integrate.events import first_crossing
from jaxmbd.integrate.rollout import automatic_segment, scan_rows
from jaxmbd.integrate.steppers import require_single_steps
from jaxmbd.joints import as_pytree
from jaxmbd.kinematics import promote
from jaxmbd.manifold import q_dot
from jaxmbd.packing import pack
from jaxmbd.simulate import Mechanism, whole_steps
from jaxmbd.system import System
from jaxmbd.values import Numbers


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
    last state. `complete` is false where `max_events` were used up before the end was reached.
    """

    t: Float[Array, " nt"]
    q: Float[Array, "nt nq"]
    v: Float[Array, "nt nv"]
    event: Int[Array, " nt"]
    complete: Bool[Array, ""]
    count: Float[Array, " m"]
    """How often each event happened."""

    def times(self, event: int, n: int) -> Float[Array, " n"]:
        """The first n times of an event, infinite where it happened less often."""
        happened = self.event == event
        rows = jnp.argsort(~happened, stable=True)[:n]
        return jnp.where(happened[rows], self.t[rows], jnp.inf)


def simulate_events(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"] | None = None,
    *,
    events: Sequence[Event],
    duration: float,
    dt: float,
    control: Callable[[Array, Array, Array, Array], Array] | None = None,
    changes: Callable[[Array], Mapping[str, Any]] | None = None,
    stepper: Stepper | None = None,
    t0: Numbers = 0.0,
    max_events: int = 32,
    tolerance: float = 1e-9,
    remat: bool = True,
) -> EventRun:
    """Motion in equal steps, which end early where an event happens and then go on to the next whole step.

    Args:
      events: what to look for. The earliest sign change in each step is found, also of a function that changes its
        sign twice within the step where the cubic through its values and rates at the step's ends shows that. Of
        several that do so in one step the one whose cubic dips first is followed, and oscillations with less than some
        three steps a period may be missed: take a shorter dt.
      control: forces tau [nv] as a function of (t, q, v, count), where count [m] is how often each event happened.
      changes: numbers of the system by path, as for `System.replace`, from count: a latch that opens, a brake.
      max_events: rows set aside for events. A ball that comes to rest bounces without end: use `with_limits` or a
        contact force for that, or a stop.
      tolerance: of an event's time [s]; in float32 no better than some roundings of dt.
      remat: as for `simulate`.

    Cost: two steps a step (one to look, one to go), and some ten more in a step with an event; in a batch those are
      made for all copies.
    """
    if not events:
        raise ValueError("No events were given; expected one or more, or use simulate.")
    q, v, _, t0, _ = promote(system, q, v, None, t0)
    steps, stepper = whole_steps(duration, dt), stepper or SemiImplicitEuler()
    require_single_steps(stepper, "simulate_events")
    control, changes = (None if f is None else as_pytree(f) for f in (control, changes))
    numbers = (t0, dt if not steps else duration / steps, tolerance)
    return _run(system, q, v, numbers, tuple(events), control, changes, stepper, steps, max_events, remat)


@partial(jax.jit, static_argnames=("steps", "max_events", "remat"))
def _run(system, q, v, numbers, events, control, changes, stepper, steps, max_events, remat):
    t0, dt, tolerance = (jnp.asarray(x, q.dtype) for x in numbers)
    system = system.astype(q.dtype)
    q, v, _ = driven_motion(system, q, v, t0)
    directions = jnp.array([event.direction for event in events])
    stops = jnp.array([event.stop for event in events])

    def conditions(t, q, v):
        return jnp.stack([jnp.asarray(event.condition(t, q, v), q.dtype).reshape(()) for event in events])

    def iterate(carry, row):
        t, q, v, node, count, fresh, alive = carry
        current = system if changes is None else system.replace(changes(count))

        def tau(t, q, v):
            return jnp.zeros_like(v) if control is None else jnp.asarray(control(t, q, v, count), q.dtype)

        mechanism = Mechanism(current, pack(current), tau)
        going = alive & (node <= steps)
        target = t0 + node * dt
        h = jnp.where(going, target - t, dt)

        def advance(h):
            return stepper.step(mechanism, t, q, v, h)

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
        q1, v1, _ = advance(h)
        t1 = jnp.where(happens, t + h, target)
        q1, v1, _ = driven_motion(current, q1, v1, t1)
        hit = happens & (jnp.arange(len(events)) == crossing.which)
        for i, event in enumerate(events):
            if event.effect is not None:
                new = event.effect(t1, q1, v1)
                q1, v1 = (jnp.where(hit[i], jnp.asarray(n, q.dtype), old) for n, old in zip(new, (q1, v1), strict=True))
        early = happens & (target - t1 > 1e-6 * dt)
        moved = (t1, q1, v1, node + ~early, count + hit, hit, alive & ~jnp.any(hit & stops))
        kept = jax.tree.map(lambda new, old: jnp.where(going, new, old), moved, carry)
        return kept, (kept[0], kept[1], kept[2], jnp.where(happens, crossing.which, -1))

    none = jnp.zeros(len(events), bool)
    start = (t0, q, v, jnp.ones((), int), none.astype(q.dtype), none, jnp.ones((), bool))
    rows = steps + max_events
    end, (t, qs, vs, event) = scan_rows(iterate, start, rows, automatic_segment(rows), remat)
    first = (t0[None], q[None], v[None], jnp.full((1,), -1, event.dtype))
    parts = (jnp.concatenate(pair) for pair in zip(first, (t, qs, vs, event), strict=True))
    return EventRun(*parts, complete=~end[6] | (end[3] > steps), count=end[4])
