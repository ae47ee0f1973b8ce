"""Events: a bouncing ball in closed form, a latch, stops per system of a batch, derivatives of their times."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import models

G = 9.81
RKMK4 = mb.RungeKuttaMuntheKaas4()


def slide():
    """A mass on a vertical slide: constant acceleration, which a Runge-Kutta step integrates exactly."""
    b = mb.Builder()
    b.body("ball", mass=1.0)
    b.joint("height", mb.prismatic((0.0, 0.0, 1.0)), child="ball")
    return b.build()


BALL = slide()


class Bounce(eqx.Module):
    restitution: jax.Array

    def __call__(self, t, q, v):
        return q, -self.restitution * v


def height(t, q, v):
    return q[0]


@jax.jit
def dropped(start, restitution):
    impact = mb.Event(height, Bounce(restitution), direction=-1)
    return mb.simulate_events(
        BALL, start[None], events=[impact], duration=1.5, dt=0.05, stepper=RKMK4, max_events=8, tolerance=1e-12
    )


def test_bouncing_ball_in_closed_form():
    """Times and speeds of all impacts in a batch of heights and coefficients: to the search's tolerance."""
    starts, coefficients = jnp.array([0.4, 1.0, 2.5]), jnp.array([0.8, 0.6, 1.0])
    run = jax.vmap(dropped)(starts, coefficients)
    assert run.complete.all()
    for i, (start, e) in enumerate(zip(np.asarray(starts), np.asarray(coefficients), strict=True)):
        flights = np.sqrt(2 * start / G) * np.array([1, *(2 * e**k for k in range(1, 12))])
        times = np.cumsum(flights)
        times = times[times < 1.5]
        found = np.asarray(run.t[i][run.event[i] == 0])
        np.testing.assert_allclose(found, times, atol=1e-10)
        speeds = np.asarray(run.v[i, :, 0][run.event[i] == 0])
        np.testing.assert_allclose(speeds, np.sqrt(2 * G * start) * e ** np.arange(1, len(times) + 1), atol=1e-9)
        assert int(run.count[i, 0]) == len(times)
        np.testing.assert_allclose(run.t[i, -1], 1.5, rtol=1e-14)
        grid = np.asarray(run.t[i])[np.asarray(run.event[i]) == -1]
        np.testing.assert_allclose(np.unique(grid.round(9)), np.arange(31) * 0.05, atol=1e-9)
        assert np.min(run.q[i]) > -1e-10


MARKS = {0.2: 0, 0.18: 1, 0.16: -1}  # heights, and the direction of height less position


@jax.jit
def thrown(speed):
    """A ball thrown up past marks; one step of 0.4 s holds the way up and the way down. Another function of time."""
    events = [mb.Event(lambda t, q, v, h=h: h - q[0], direction=d) for h, d in MARKS.items()]
    events.append(mb.Event(lambda t, q, v: jnp.cos(2 * jnp.pi * t) + 0.97, direction=1))
    return mb.simulate_events(
        BALL,
        jnp.zeros(1),
        speed[None],
        events=events,
        duration=0.8,
        dt=0.4,
        stepper=RKMK4,
        max_events=12,
        tolerance=1e-12,
    )


def test_two_sign_changes_within_one_step():
    """Up and down past a mark in closed form; each direction sees its own; whoever stays below sees none."""
    speeds = jnp.array([2.0, 2.1, 1.85, np.sqrt(2 * G * 0.2) * 1.0001, 0.5])
    run = jax.vmap(thrown)(speeds)
    assert run.complete.all()
    for i, speed in enumerate(np.asarray(speeds)):
        for k, (height, direction) in enumerate(MARKS.items()):
            reach = speed**2 - 2 * G * height
            times = (speed + np.array([-1, 1]) * np.sqrt(reach)) / G if reach > 0 else np.zeros(0)
            times = {0: times, 1: times[1:], -1: times[:1]}[direction]
            np.testing.assert_allclose(np.asarray(run.t[i])[np.asarray(run.event[i]) == k], times, atol=1e-7)
        # the cosine passes -0.97 on its way up after half a period; no polynomial
        rise = 0.5 + np.arccos(0.97) / (2 * np.pi)
        assert float(run.t[i][run.event[i] == 3][0]) == pytest.approx(rise, abs=1e-9)


@pytest.mark.slow
def test_time_of_an_impact_is_differentiable():
    """d t1 / d height = 1 / sqrt(2 g h); the second impact's slope in the restitution is 2 t1; both modes."""

    def times(x):
        return dropped(x[0], x[1]).times(0, 2)

    x = jnp.array([1.0, 0.8])
    first = np.sqrt(2 / G)
    slope = first / 2  # of the first time in the height at height 1
    exact = np.array([[slope, 0.0], [slope * (1 + 2 * 0.8), 2 * first]])
    np.testing.assert_allclose(times(x), [first, first * 2.6], atol=1e-10)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(times))(x), exact, atol=1e-8)
    np.testing.assert_allclose(jax.jit(jax.jacrev(times))(x), exact, atol=1e-8)

    def end(x):
        run = dropped(x[0], x[1])
        return run.q[-1, 0] + run.v[-1, 0]

    e = 1e-6
    slopes = [(end(x + e * way) - end(x - e * way)) / (2 * e) for way in jnp.eye(2)]
    np.testing.assert_allclose(jax.jit(jax.grad(end))(x), slopes, rtol=1e-6)


def test_budget_of_events_is_reported():
    run = dropped(jnp.array(0.01), jnp.array(0.3))  # comes to rest by ever shorter bounces
    assert not run.complete and int(run.count[0]) >= 8
    np.testing.assert_array_equal(run.times(0, 40)[int(run.count[0]) :], np.inf)
    with pytest.raises(ValueError, match="No events were given"):
        mb.simulate_events(BALL, jnp.zeros(1), events=[], duration=1.0, dt=0.1)
    with pytest.raises(ValueError, match="direction of an event is 2; expected -1, 0 or 1"):
        mb.Event(height, direction=2)


def test_each_system_of_a_batch_stops_at_its_own_time():
    """Pendulums released from rest stop upright: a quarter of the period, 2 K(sin(q0 / 2)) / (2 w)."""
    from scipy.special import ellipk

    angles = jnp.array([0.3, 1.0, 2.0])

    @jax.jit
    @jax.vmap
    def run(angle):
        return mb.simulate_events(
            models.pendulum(), angle[None], events=[mb.Event(lambda t, q, v: q[0], direction=-1, stop=True)],
            duration=2.0, dt=1e-2, stepper=RKMK4, tolerance=1e-12,
        )  # fmt: skip

    runs = run(angles)
    quarter = ellipk(np.sin(angles / 2) ** 2) / np.sqrt(G)
    np.testing.assert_allclose(runs.t[:, -1], quarter, atol=1e-7)
    np.testing.assert_allclose(runs.q[:, -1, 0], 0.0, atol=1e-9)
    assert runs.complete.all()
    np.testing.assert_allclose(runs.v[:, -1, 0], -np.sqrt(2 * G * (1 - np.cos(angles))), rtol=1e-6)


@pytest.mark.slow
def test_a_latch_is_released():
    """A stiff spring holds a mass on a slide until a pull, rising with time, passes a limit; then it flies.

    The pull t N passes 1 N at t = 1 s; afterwards the acceleration is t, from rest: v = (t^2 - 1) / 2.
    """
    b = mb.Builder(gravity=(0.0, 0.0, 0.0))
    b.body("mass", mass=1.0)
    b.joint("slide", mb.prismatic((1.0, 0.0, 0.0)), child="mass", stiffness=1e8, damping=1e6)
    system = b.build()

    def changes(count):
        held = count[0] == 0
        return {"slide.stiffness": jnp.where(held, 1e8, 0.0), "slide.damping": jnp.where(held, 1e6, 0.0)}

    def pull(t, q, v, count):
        return jnp.reshape(t, 1)

    run = mb.simulate_events(
        system, jnp.zeros(1), events=[mb.Event(lambda t, q, v: t - 1.0037)], duration=2.0, dt=1e-3, control=pull,
        changes=changes,
    )  # fmt: skip
    np.testing.assert_allclose(run.times(0, 1), 1.0037, atol=1e-9)
    held = np.asarray(run.t) < 1.0037
    assert np.abs(run.q[held]).max() < 1e-7
    # semi-implicit Euler with the force of each step's start: half a step of it is missing, 1e-3
    np.testing.assert_allclose(run.v[-1, 0], (4.0 - 1.0037**2) / 2, atol=1e-3)
