"""Debug mode names step, copy, joint and body; borders are checked; runs repeat bit by bit."""

import dataclasses
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import models

START = jnp.array([0.3, 0.1])


PAIR = models.double_pendulum()


class Failing(eqx.Module):
    """Nothing until 24.5 ms, then no number at one joint."""

    at: jax.Array

    def __call__(self, t, q, v, *count):
        return jnp.where((t > 0.0245) & self.at, jnp.nan, 0.0)


def test_first_bad_force_and_an_inertia_that_cannot_be_moved():
    """With sub-sampling and a record that does not show it. A point without mass: nothing resists its joint."""

    def run(system, *at):
        control = Failing(jnp.array(at))
        mb.simulate(system, START, duration=0.04, dt=1e-3, control=control, every=10, record=("energy",))

    with mb.debug():
        with pytest.raises(
            mb.NotFinite,
            match=r"step 25, t = 0.025 s: the force of the control .* joint 'hinge0' \(body 'link0'\) is nan",
        ):
            run(PAIR, True, False)
        with pytest.raises(mb.NotFinite, match=r"step 25, .* joint 'hinge1' \(body 'link1'\) is nan"):
            run(PAIR, False, True)
        with pytest.raises(
            mb.NotFinite, match=r"step 0, .* inertia that joint 'hinge1' \(body 'link1'\) has to move is"
        ):
            run(PAIR.replace({"link1.mass": 0.0}), False, False)


@pytest.mark.slow
def test_the_force_element_is_named():
    """An element without a number, beside a sound one; the same in a run with events, whose control fails later."""
    sound = mb.elements.Actuator("hinge0", lag=0.1)
    spring = mb.elements.Spring("world", "link1", jnp.nan, rest=0.1)
    with mb.debug():
        with pytest.raises(mb.NotFinite, match=r"step 0, .*: the force of Spring \(forces\[1\], on 'world', 'link1'\)"):
            mb.simulate(PAIR, START, duration=0.04, dt=1e-3, forces=(sound, spring))
        late, never = Failing(jnp.array([False, True])), mb.Event(lambda t, q, v: q[0] - 9.0)
        with pytest.raises(mb.NotFinite, match=r"step 25, t = 0.025 s: the force of the control at joint 'hinge1'"):
            mb.simulate_events(PAIR, START, events=[never], duration=0.04, dt=1e-3, control=late, forces=(sound,))


@pytest.mark.slow
def test_first_bad_copy_of_a_batch_inside_jit():
    """Anti-damping of the third power blows copies up at different times; the first one is named, with its step."""

    @jax.jit
    @jax.vmap
    def run(gain):
        law = lambda t, q, v: gain * v**3  # noqa: E731
        return mb.simulate(PAIR, START, jnp.array([1.0, 2.0]), duration=1.0, dt=1e-2, control=law)

    gains = jnp.array([0.0, 1.0, 5.0])
    states = run(gains)
    bad = ~np.isfinite(np.asarray(states.v)).all(-1)
    assert list(bad.any(1)) == [False, True, True]
    first = bad[2].argmax() - 1  # the step before the first bad instant
    assert first < bad[1].argmax() - 1
    found = (
        rf"copy 2, step {first}, t = .*joint 'hinge[01]' \(body 'link[01]'\).*\(2 copies are affected, this one first\)"
    )
    with pytest.raises(mb.NotFinite, match=found):
        with mb.debug():
            run(gains)


def test_checks_at_the_border():
    panda = mb.load(models.__file__.replace("models.py", "robots/panda.urdf"))
    body, rest = models.rigid_body(), jnp.zeros(6)
    long = jnp.array([1.1, 0, 0, 0, 0, 0, 0])
    with pytest.raises(mb.NotFinite, match=r"q\[0:4\] of joint 'root' has length 1.1; expected 1"):
        with mb.debug():
            mb.energy(body, long, rest)
    with pytest.raises(mb.NotFinite, match=r"copy 1, v\[3\], joint 'root', is inf"):
        with mb.debug():
            jax.vmap(mb.energy, (None, None, 0))(body, body.neutral_q(), jnp.zeros((2, 6)).at[1, 3].set(jnp.inf))
    with pytest.raises(mb.NotFinite, match=r"link_mass of 'body' of the system is nan"):
        with mb.debug():
            mb.energy(dataclasses.replace(body, link_mass=jnp.array([jnp.nan])), body.neutral_q(), rest)
    with pytest.raises(ValueError, match=r"q has shape \(3,\); this system takes \(7,\)"):
        with mb.debug():
            mb.energy(body, jnp.zeros(3), rest)
    with pytest.warns(UserWarning, match="joint 'panda_joint1' is at 3, beyond its limits -2.*limits act only after"):
        with mb.debug():
            mb.com(panda, panda.neutral_q().at[0].set(3.0))


@pytest.mark.slow
def test_nothing_is_checked_outside_and_nothing_said_where_all_is_well():
    jax.clear_caches()
    bad = mb.energy(models.rigid_body(), jnp.full(7, jnp.nan), jnp.zeros(6))
    assert np.isnan(bad[0])
    with warnings.catch_warnings(), mb.debug():
        warnings.simplefilter("error")
        run = mb.simulate(PAIR, START, duration=0.01, dt=1e-3)
        slope = jax.grad(lambda q: mb.simulate(PAIR, q, duration=0.01, dt=1e-3).q[-1, 0])(START)
    assert np.isfinite(run.q).all() and np.isfinite(slope).all()


@pytest.mark.slow
def test_debug_mode_without_jit():
    with pytest.raises(mb.NotFinite, match=r"step 1, t = 0.02 s: the force .* joint 'hinge0'"):
        with jax.disable_jit(), mb.debug():
            law = lambda t, q, v: jnp.where(t > 0.015, jnp.inf, 0.0) * jnp.ones(1) + 0 * v  # noqa: E731
            mb.simulate(models.pendulum(), START[:1], duration=0.04, dt=0.02, control=law)


@pytest.mark.slow
def test_runs_repeat_bit_by_bit():
    """The same program on the same device gives the same bits, compiled again or not, gradients included."""

    def both(q):
        run = mb.simulate(PAIR, q, jnp.ones(2), duration=0.3, dt=1e-3)
        return jnp.sum(run.q[-1]), run.q

    function = jax.vmap(jax.value_and_grad(both, has_aux=True))
    starts = jax.random.normal(jax.random.key(0), (4, 2))
    first = jax.jit(function)(starts)
    again = jax.jit(function)(starts)
    jax.clear_caches()
    compiled_again = jax.jit(lambda q: function(q))(starts)
    for other in (again, compiled_again):
        for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(x, y)
