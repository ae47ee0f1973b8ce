"""Events: a bouncing ball in closed form, a latch, stops per system of a batch, derivatives of their times."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import jaxmbd as mb
from jaxmbd import models
from jaxmbd.constraints.rows import residual
from jaxmbd.packing import pack
from jaxmbd.record import State
from jaxmbd.stateful import StatefulControl

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


BALLS = ((0.4, 0.8), (1.0, 0.6), (2.5, 1.0), (0.01, 0.3))  # heights and coefficients; the last comes to rest


@functools.cache
def balls():
    return jax.vmap(dropped)(*jnp.array(BALLS).T)


def test_bouncing_ball_in_closed_form():
    """Times and speeds of all impacts in a batch of heights and coefficients: to the search's tolerance."""
    run = balls()
    assert list(run.complete) == [True, True, True, False]
    for i, (start, e) in enumerate(BALLS[:3]):
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


@pytest.mark.slow
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
    """d t1 / d height = 1 / sqrt(2 g h); the second impact's slope in the restitution is 2 t1; both modes.

    And the state at the end, against differences.
    """

    def outcome(x):
        run = dropped(x[0], x[1])
        return jnp.append(run.times(0, 2), run.q[-1, 0] + run.v[-1, 0])

    @jax.jit
    def slopes(x, way, weights):
        value, forward = jax.jvp(outcome, (x,), (way,))
        return value, forward, jax.grad(lambda x: weights @ outcome(x))(x)

    x, way, weights, e = jnp.array([1.0, 0.8]), jnp.array([0.6, -0.7]), jnp.array([0.3, 1.1, -0.4]), 1e-6
    value, forward, reverse = slopes(x, way, weights)
    first = np.sqrt(2 / G)
    slope = first / 2  # of the first time in the height at height 1
    exact = np.array([[slope, 0.0], [slope * (1 + 2 * 0.8), 2 * first]])
    np.testing.assert_allclose(value[:2], [first, first * 2.6], atol=1e-10)
    np.testing.assert_allclose(forward[:2], exact @ way, atol=1e-8)
    np.testing.assert_allclose(reverse @ way, weights @ forward, rtol=1e-9)
    ends = [slopes(x + s * e * way, way, weights)[0] for s in (1, -1)]
    np.testing.assert_allclose(forward[2], (ends[0] - ends[1])[2] / (2 * e), rtol=1e-6)


def test_budget_of_events_is_reported():
    run = jax.tree.map(lambda x: x[3], balls())  # by ever shorter bounces
    assert not run.complete and int(run.count[0]) >= 8
    np.testing.assert_array_equal(run.times(0, 40)[int(run.count[0]) :], np.inf)
    with pytest.raises(ValueError, match="No events were given"):
        mb.simulate_events(BALL, jnp.zeros(1), events=[], duration=1.0, dt=0.1)
    with pytest.raises(ValueError, match="direction of an event is 2; expected -1, 0 or 1"):
        mb.Event(height, direction=2)


@pytest.mark.slow
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


# ------------------------------------------------------------------------------------- force elements, constraints


def carts():
    """Two masses on slides along x without gravity: one on a spring, one pushed by a motor with lag."""
    b = mb.Builder(gravity=(0.0, 0.0, 0.0))
    for name in ("sprung", "pushed"):
        b.body(name, mass=2.0)
        b.joint(f"{name}_slide", mb.prismatic((1.0, 0.0, 0.0)), child=name)
    return b.build()


CARTS, COMMAND = carts(), 3.0


@jax.jit
def driven_apart(stiffness, lag):
    """The spring's mass starts 0.3 m off at rest; the motor's passes 0.1 m, then the motor is told to pull."""
    forces = (
        mb.elements.Spring("world", "sprung", stiffness, rest=1.0, point_a=(-1.0, 0.0, 0.0)),
        mb.elements.Actuator("pushed_slide", lag=lag),
    )
    events = [mb.Event(lambda t, q, v: q[0], direction=-1), mb.Event(lambda t, q, v: q[1] - 0.1)]

    def command(t, q, v, count):
        return jnp.stack([0.0, jnp.where(count[1] > 0, -COMMAND, COMMAND)])

    return mb.simulate_events(
        CARTS, jnp.array([0.3, 0.0]), events=events, duration=0.5, dt=0.02, control=command, forces=forces,
        stepper=RKMK4, max_events=4, tolerance=1e-12,
    )  # fmt: skip


@functools.cache
def pushed_until(lag):
    """When the motor's mass has gone 0.1 m: 2 x = 3 (t^2 / 2 - lag t + lag^2 (1 - exp(-t / lag)))."""
    way = lambda t: COMMAND / 2 * (t**2 / 2 - lag * t - lag**2 * np.expm1(-t / lag)) - 0.1  # noqa: E731
    return scipy.optimize.brentq(way, 0.0, 1.0, xtol=1e-15)


@pytest.mark.slow
def test_force_elements_between_events():
    """Both times in closed form; a motor's lagging force goes on from its value at the event, after the new command."""
    stiffness, lag = 60.0, 0.05
    run = driven_apart(stiffness, lag)
    quarter, reached = np.pi / 2 * np.sqrt(2.0 / stiffness), pushed_until(lag)
    found = [run.times(0, 1)[0], run.times(1, 1)[0]]
    np.testing.assert_allclose(found, [quarter, reached], atol=2e-6)  # Runge-Kutta's error, h / lag = 0.4
    np.testing.assert_array_equal(run.count, [1, 1])
    t = np.asarray(run.t)[: 25 + 2 + 1]
    before = COMMAND * -np.expm1(-np.minimum(t, reached) / lag)
    force = -COMMAND + (before + COMMAND) * np.exp(-np.maximum(t - reached, 0.0) / lag)
    np.testing.assert_allclose(np.asarray(run.z)[: len(t), 0], force, atol=2e-4)  # 6 N / lag times that
    np.testing.assert_array_equal(run.end.z, run.z[-1])
    np.testing.assert_array_equal(run.end.q, run.q[-1])


@jax.jit
def pushed(lag):
    """The motor's mass alone: slope of the time when it passes 0.1 m."""
    slide = BALL.replace({"gravity": (0.0, 0.0, 0.0), "ball.mass": 2.0})

    def time(lag):
        run = mb.simulate_events(
            slide, jnp.zeros(1), events=[mb.Event(lambda t, q, v: q[0] - 0.1, stop=True)], duration=0.5, dt=0.02,
            control=lambda t, q, v, count: jnp.full(1, COMMAND), stepper=RKMK4, max_events=1, tolerance=1e-12,
            forces=(mb.elements.Actuator("height", lag=lag),),
        )  # fmt: skip
        return run.end.t

    return jax.grad(time)(lag)


@pytest.mark.slow
def test_times_follow_the_numbers_of_elements():
    """The slope of the time in the motor's lag, by differences of the closed form."""
    slope = (pushed_until(0.05 + 1e-5) - pushed_until(0.05 - 1e-5)) / 2e-5
    np.testing.assert_allclose(pushed(0.05), slope, rtol=1e-4)  # Runge-Kutta's error, h / lag = 0.4


@pytest.mark.slow
def test_a_closed_loop_stays_closed_until_its_event():
    """A four-bar released from rest, stopped where its crank reaches an angle: on the way of `simulate`, and closed."""
    system = mb.linkages.four_bar()
    at = mb.assemble(system, jnp.array([0.6, -0.3, 1.4]), fixed=("A",))
    stop = mb.Event(lambda t, q, v: q[0] - 0.4, stop=True)
    run = mb.simulate_events(system, at.q, events=[stop], duration=1.0, dt=0.01, max_events=1, tolerance=1e-12)
    np.testing.assert_allclose(run.q[-1, 0], 0.4, atol=1e-10)
    plain = mb.simulate(system, at.q, duration=1.0, dt=0.01, record=("q",))["q"]
    steps = int(run.t[-1] / 0.01)
    assert steps > 10
    np.testing.assert_allclose(run.q[: steps + 1], plain[: steps + 1], atol=1e-9)
    gap = jax.vmap(lambda q: residual(system, pack(system), q, jnp.zeros(())))(run.q)
    assert np.abs(gap).max() < 1e-9
    assert np.abs(run.q[-1, 1:] - run.q[0, 1:]).min() > 0.01


def test_what_events_cannot_follow_is_refused():
    event = [mb.Event(height)]
    with pytest.raises(ValueError, match=r"control has shape \(3, 1\); expected \(steps, nv\) = \(2, 1\)"):
        mb.simulate_events(BALL, jnp.zeros(1), events=event, duration=0.2, dt=0.1, control=jnp.zeros((3, 1)))
    with pytest.raises(ValueError, match="Planned plans whole steps, which events cut short"):
        mb.simulate_events(BALL, jnp.zeros(1), events=event, duration=0.2, dt=0.1, control=Planned())
    start = State(jnp.zeros(()), jnp.zeros(1), jnp.zeros(1))
    with pytest.raises(ValueError, match="A State was given with velocities"):
        mb.simulate_events(BALL, start, jnp.zeros(1), events=event, duration=0.2, dt=0.1)
    with pytest.raises(TypeError, match="forces holds a int; expected force elements"):
        mb.simulate_events(BALL, jnp.zeros(1), events=event, duration=0.2, dt=0.1, forces=(3,))


class Planned(StatefulControl):
    def start(self, t, q, v):
        return ()

    def plan(self, memory, t, q, v, h):
        return (lambda t, q, v: jnp.zeros(1)), memory


@pytest.mark.slow
def test_a_run_with_events_goes_on_from_its_end():
    """A ball that is thrown bounces; the second half, from the end of the first, is that of the whole run."""
    run = functools.partial(
        mb.simulate_events, BALL, dt=0.05, events=[mb.Event(height, Bounce(0.8), direction=-1)], stepper=RKMK4,
        max_events=2, tolerance=1e-12, control=jnp.full((10, 1), 0.5),
    )  # fmt: skip
    first = run(State(jnp.zeros(()), jnp.array([0.4]), jnp.zeros(1)), duration=0.5)
    second = run(first.end, duration=0.5)
    t1 = np.sqrt(2 * 0.4 / (G - 0.5))  # falls with g - 0.5, is thrown up again, and comes down after 2 v / (g - 0.5)
    np.testing.assert_allclose(first.times(0, 1), [t1], atol=1e-10)
    np.testing.assert_allclose(second.t[0], 0.5)
    np.testing.assert_allclose(second.times(0, 1), [t1 * 2.6], atol=1e-10)


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
