"""What a run keeps, how it is resumed, and controls: recording, sub-sampling, chunks, actuators, references."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import chunks, models
from jaxmbd.record import State

DT = 1e-2
START = jnp.array([0.7, -0.4]), jnp.array([0.5, 1.0])


@functools.cache
def pair():
    return dataclasses.replace(models.double_pendulum((1.0, 0.7), (0.9, 0.6)), damping=jnp.array([0.3, 0.2]))


class Push(eqx.Module):
    gain: jax.Array

    def __call__(self, t, q, v):
        return self.gain * jnp.sin(3.0 * t) - 0.2 * v


PUSH = Push(jnp.array([2.0, -1.0]))


def simulated(steps=60, start=START, **options):
    return mb.simulate(pair(), *start, duration=steps * DT, dt=DT, **({"control": PUSH} | options))


@functools.cache
def whole():
    return simulated()


def height(t, q, v):
    return jnp.cos(q[0]) * t


@functools.cache
def observed():
    def at(q, v, a):
        return mb.kinematics(pair(), q, v, a), mb.energy(pair(), q, v), mb.momentum(pair(), q, v)

    return jax.jit(jax.vmap(at))


def test_recorded_quantities_are_those_of_the_states():
    """Every twelfth instant alone."""
    record = {"tip": "tip.position", "E": "energy", "height": height, "a": "a", "p": "momentum"}
    run, states = simulated(every=12, record=record), whole()
    t, q, v, a = (x[::12] for x in (states.t, states.q, states.v, states.a))
    np.testing.assert_allclose(run.t, t, rtol=1e-14)
    k, energy, momentum = observed()(q, v, a)
    np.testing.assert_allclose(run["tip"], k["tip"].position, atol=1e-13)
    np.testing.assert_allclose(run["E"], sum(energy), atol=1e-12)
    np.testing.assert_allclose(run["p"], momentum, atol=1e-12)
    np.testing.assert_allclose(run["height"], np.cos(q[:, 0]) * t, atol=1e-13)
    np.testing.assert_allclose(run["a"], a, atol=1e-12)
    np.testing.assert_array_equal(run.end.q, states.end.q)
    assert set(run.values) == {"tip", "E", "height", "a", "p"}
    with pytest.raises(KeyError, match="Nothing recorded as 'x'. Recorded: .*tip"):
        run["x"]


@pytest.mark.slow
def test_every_nth_instant():
    """Bits may differ from the run that keeps all: it is another program."""
    states, few = whole(), simulated(every=12)
    for name in ("t", "q", "v", "a", "tau"):
        np.testing.assert_allclose(getattr(few, name), getattr(states, name)[::12], rtol=1e-12, atol=1e-13)
    with pytest.raises(ValueError, match="every = 7 does not divide the 60 steps"):
        simulated(every=7)


def test_a_run_resumed_is_the_run():
    """In three pieces, each from the end of the one before; the first from a state that was written down."""
    pieces = [State(jnp.zeros(()), *START)]
    for _ in range(3):
        pieces.append(mb.simulate(pair(), getattr(pieces[-1], "end", pieces[-1]), duration=0.2, dt=DT, control=PUSH))
    run = mb.joined(pieces[1:])
    np.testing.assert_allclose(run.t, whole().t, rtol=1e-14)
    np.testing.assert_allclose(run.q, whole().q, rtol=1e-12)
    np.testing.assert_allclose(run.tau, whole().tau, rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="A State was given with velocities"):
        mb.simulate(pair(), run.end, START[1], duration=DT, dt=DT)


def test_what_is_not_known_is_refused():
    with pytest.raises(KeyError, match="No quantity 'tip.jerk' to record. Known: q, v, a, .*'link0.position'"):
        simulated(record=("tip.jerk",))
    with pytest.raises(KeyError, match="No quantity 'nose.position'"):
        simulated(record="nose.position")
    with pytest.raises(ValueError, match="segment = 0 steps; expected one or more"):
        simulated(segment=0)


# ---------------------------------------------------------------------------------------------------- host-side chunks


def chunked(**options):
    return mb.simulate_chunks(pair(), *START, duration=0.6, dt=DT, chunk=0.2, control=PUSH, **options)


@pytest.mark.slow
def test_chunks_are_the_whole_run():
    run = chunked()
    assert isinstance(run.q, np.ndarray)
    for name in ("t", "q", "v", "a", "tau"):
        np.testing.assert_allclose(getattr(run, name), getattr(whole(), name), rtol=1e-12, atol=1e-13)
    batch = [jnp.stack([x, 0.5 * x]) for x in START]
    both = mb.simulate_chunks(pair(), *batch, duration=0.6, dt=DT, chunk=0.2, control=PUSH)
    np.testing.assert_allclose(both.q[0], whole().q, rtol=1e-11)
    held = mb.simulate_chunks(pair(), *START, duration=0.6, dt=DT, chunk=0.2, control=np.ones((60, 2)))
    np.testing.assert_allclose(held.q, simulated(control=np.ones((60, 2))).q, rtol=1e-12)
    with pytest.raises(ValueError, match="no whole number of chunks"):
        mb.simulate_chunks(pair(), *START, duration=0.6, dt=DT, chunk=0.25)


def test_an_interrupted_run_keeps_what_it_has(tmp_path, monkeypatch):
    simulate, calls = chunks.simulate, []

    def interrupted(*args, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return simulate(*args, **options)

    monkeypatch.setattr(chunks, "simulate", interrupted)
    with pytest.warns(UserWarning, match="interrupted at t = 0.4 s of 0.6 s"):
        part = chunked(folder=tmp_path)
    np.testing.assert_allclose(part.q, whole().q[:41], rtol=1e-12)
    assert len(list(tmp_path.glob("*.pkl"))) == 2
    run = chunked(folder=tmp_path)  # two pieces are read, one is made
    assert len(calls) == 4
    np.testing.assert_allclose(run.q, whole().q, rtol=1e-12)
    with pytest.raises(ValueError, match="belongs to another run"):
        mb.simulate_chunks(pair(), START[0], duration=0.6, dt=DT, chunk=0.2, control=PUSH, folder=tmp_path)


# ------------------------------------------------------------------------------------------------------------- control


def command(t, q, v):
    return jnp.array([5.0, -1.0])


@pytest.mark.slow
def test_actuator_lag_and_limit_in_closed_form():
    """A constant command of 5 N m comes as 5 (1 - exp(-t / lag)), limited to 2; without a lag at once."""
    lag, names = 0.05, pair().joint_names

    def motors(lag):
        return (mb.elements.Actuator(names, limit=2.0, lag=lag),)

    run = simulated(control=command, forces=motors(jnp.array([lag, 0.0])))
    np.testing.assert_allclose(run.tau[:, 0], np.minimum(2.0, 5.0 * -np.expm1(-np.asarray(run.t) / lag)), atol=1e-13)
    np.testing.assert_allclose(run.tau[:, 1], -1.0)
    np.testing.assert_allclose(run.end.z, [5.0 * -np.expm1(-60 * DT / lag), -1.0], atol=1e-13)

    @jax.jit
    @jax.value_and_grad
    def loss(lag):
        return jnp.sum(simulated(20, control=command, forces=motors(lag), record=("q",)).end.q)

    slope = (loss(0.05 + 1e-6)[0] - loss(0.05 - 1e-6)[0]) / 2e-6
    np.testing.assert_allclose(loss(0.05)[1], slope, rtol=1e-6)
    assert np.isfinite(loss(0.0)[1])


def test_sampled_signals():
    times, values = np.array([0.0, 1.0, 3.0]), np.array([[0.0], [2.0], [-2.0]])
    linear, hold = mb.Sampled(times, values), mb.Sampled(times, values, "hold")
    for t in (-1.0, 0.0, 0.3, 1.0, 2.5, 3.0, 9.0):
        np.testing.assert_allclose(linear(t)[0], np.interp(t, times, values[:, 0]), atol=1e-15)
    assert [float(hold(t)[0]) for t in (-1.0, 0.5, 1.0, 2.9, 3.0, 5.0)] == [0.0, 0.0, 2.0, 2.0, -2.0, -2.0]
    with pytest.raises(ValueError, match="do not increase"):
        mb.Sampled([0.0, 0.0], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"times of shape \(2,\) and values of shape \(3,\)"):
        mb.Sampled([0.0, 1.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="expected 'linear' or 'hold'"):
        mb.Sampled([0.0], [1.0], "cubic")


@pytest.mark.slow
def test_computed_torque_follows_its_reference_exactly():
    """On a ball and a hinge: with the right model and start, the only error is the stepper's (below 1e-6)."""
    b = mb.Builder()
    b.body("ball", mass=1.0, com=(0.1, 0.0, -0.3), inertia=np.diag([0.02, 0.03, 0.04]))
    b.body("rod", mass=0.5, com=(0.0, 0.0, -0.2), inertia=np.diag([0.01, 0.01, 0.002]))
    b.joint("shoulder", mb.spherical(), child="ball")
    b.joint("elbow", mb.revolute((0.0, 1.0, 0.0)), "ball", "rod", mb.Pose((0.0, 0.0, -0.6)))
    system = b.build()

    def wave(t):
        half = 0.3 * jnp.sin(2 * t) * jnp.array([0.6, 0.0, 0.8])
        quaternion = jnp.concatenate([jnp.sqrt(1.0 - half @ half)[None], half])
        return jnp.concatenate([quaternion, jnp.sin(t)[None]])

    reference = mb.Reference(system, wave)
    q, v, a = reference(0.4)
    h = 1e-5
    ends = [wave(0.4 + s * h) for s in (1, -1)]
    np.testing.assert_allclose(v, mb.difference(system, ends[1], ends[0]) / (2 * h), atol=1e-8)
    np.testing.assert_allclose(a, (reference(0.4 + h)[1] - reference(0.4 - h)[1]) / (2 * h), atol=1e-8)
    law = mb.ComputedTorque(reference, 2.0, 0.3)  # h d / J < 2: stable steps
    q, v, _ = reference(0.0)
    run = mb.simulate(
        system, q, v, duration=1.0, dt=1e-2, control=law, stepper=mb.RungeKuttaMuntheKaas4(), record=("q",)
    )
    gap = jax.vmap(lambda t, q: mb.difference(system, wave(t), q))(run.t, run["q"])
    assert np.abs(gap).max() < 1e-6
    off = mb.integrate(system, q, jnp.array([0.1, -0.2, 0.1, 0.2]))
    end = mb.simulate(system, off, v, duration=2.0, dt=1e-2, control=law, record=("q",)).end
    # started 0.2 rad off; the gains' time constant 2 J / d is about 1 s, so e^-2 of that and Euler's own error are left
    assert np.abs(mb.difference(system, wave(2.0), end.q)).max() < 0.1
    with pytest.raises(ValueError, match=r"A gain has shape \(3,\); expected one number or \(4,\)"):
        mb.PD(reference, jnp.ones(3), 1.0)


def lagging_and_sprung():
    system, el = models.double_pendulum(), mb.elements
    motor = el.Actuator(system.joint_names[0], lag=0.05)
    spring = el.Spring("world", system.body_names[-1], 20.0, 0.1, 0.5, point_a=(0.0, 0.0, 0.4))
    return system, (motor, spring)


def acted_on(start, steps, stepper, **options):
    system, forces = lagging_and_sprung()
    command = jnp.tile(jnp.array([[1.5, 0.0]]), (steps, 1))
    return mb.simulate(
        system, start, duration=steps * 5e-3, dt=5e-3, control=command, forces=forces, stepper=stepper, **options
    )


ACTED = State(jnp.zeros(()), jnp.array([0.3, -0.2]), jnp.array([0.1, 0.4]), z=jnp.zeros(1))


@pytest.mark.slow
def test_force_elements_are_resumed_and_recorded():
    """A lagging actuator and a spring: halves of a run equal the whole; energies include the spring's potential."""
    system, forces = lagging_and_sprung()
    stepper = mb.RungeKuttaMuntheKaas4()
    run = acted_on(ACTED, 40, stepper, every=20, record=("q", "v", "energy"))
    half = acted_on(acted_on(ACTED, 20, stepper, record=()).end, 20, stepper, record=())
    np.testing.assert_allclose(half.end.q, run.end.q, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(half.end.z, run.end.z, rtol=1e-12)
    expected = [sum(mb.elements.energy(system, forces, *x)) for x in zip(run["q"], run["v"], strict=True)]
    np.testing.assert_allclose(run["energy"], expected, rtol=1e-11)
    bare = [sum(mb.energy(system, *x)) for x in zip(run["q"], run["v"], strict=True)]
    assert np.abs(np.subtract(expected, bare)).min() > 0.1


@pytest.mark.slow
def test_force_elements_are_seen_by_implicit_steppers():
    """The variational rule in the same steps, to its second order."""
    ends = [acted_on(ACTED, 40, s, record=()).end.q for s in (mb.RungeKuttaMuntheKaas4(), mb.VariationalMidpoint())]
    np.testing.assert_allclose(*ends, atol=2e-3)


@pytest.mark.slow
def test_recorded_reactions_are_those_of_the_motion():
    """A pendulum on a spring: the hinge's force is mass times (acceleration - gravity) less the spring's pull."""
    b = mb.Builder()
    b.body("bob", 2.0, (0.0, 0.0, -0.5), 0.1 * np.eye(3))
    b.joint("hinge", mb.revolute((0.0, 1.0, 0.0)), child="bob")
    b.frame("center", on="bob", pose=mb.Pose((0.0, 0.0, -0.5)))
    system = b.build()
    spring = mb.elements.Spring("world", "center", 30.0, rest=0.2, point_a=(0.3, 0.0, 0.1))
    run = mb.simulate(
        system, jnp.array([0.4]), duration=0.1, dt=1e-2, forces=(spring,),
        record=("hinge.reaction", "center.acceleration", "center.position"),
    )  # fmt: skip
    to = np.array([0.3, 0.0, 0.1]) - np.asarray(run["center.position"])
    length = np.linalg.norm(to, axis=1, keepdims=True)
    pull = 30.0 * (length - 0.2) * to / length
    expected = 2.0 * (np.asarray(run["center.acceleration"])[:, 3:] + [0.0, 0.0, 9.81]) - pull
    np.testing.assert_allclose(run["hinge.reaction"][:, 3:], expected, rtol=1e-10, atol=1e-10)
    with pytest.raises(KeyError, match="a joint and 'reaction'"):
        mb.simulate(system, jnp.array([0.4]), duration=0.1, dt=1e-2, record=("bob.reaction",))
