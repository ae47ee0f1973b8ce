"""Memory of long runs by XLA's own count, the calculator against it, gradients by segments, and their growth."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import models
from jaxmbd.integrate.rollout import automatic_segment, scan_rows
from jaxmbd.memory import compiled_memory

ARM = models.__file__.replace("models.py", "robots/panda.urdf")


@functools.cache
def arm():
    with jax.enable_x64(False):
        return mb.load(ARM).astype(jnp.float32)


def final_loss(steps, batch, system, **options):
    """The loss of a batch at the end of a run, as a function of system and states."""

    def loss(system, q, v):
        def one(q, v):
            end = mb.simulate(system, q, v, duration=steps * 1e-3, dt=1e-3, record=(), **options).end
            return jnp.sum(end.q**2)

        return jnp.sum(jax.vmap(one)(q, v))

    q = jnp.zeros((batch, system.nq), jnp.float32)
    return jax.grad(loss), (system, q, jnp.ones((batch, system.nv), jnp.float32))


@pytest.mark.slow
def test_ten_thousand_steps_of_64_arms_in_reverse():
    """At most 60 MB of temporaries in float32; with every state stored 64 * 16 * 4 B * 10^4 = 41 MB for those alone.

    Storing about the root of the number of steps takes a fortieth of that.
    """
    function, arguments = final_loss(10_000, 64, arm())
    ours = compiled_memory(function, *arguments)
    assert ours <= 60e6
    assert ours < 4e6
    estimate = mb.memory_estimate(arm(), 10_000, batch=64, recorded=0)
    assert 0.3 < (estimate.states + estimate.step) / ours < 3


@pytest.mark.slow
def test_the_calculator_is_right_where_states_dominate():
    """Every state stored: XLA's count beside the calculator's, which knows these bytes exactly."""
    system = models.double_pendulum().astype(jnp.float32)
    function, arguments = final_loss(4000, 64, system, segment=1)
    ours = compiled_memory(function, *arguments)
    estimate = mb.memory_estimate(system, 4000, batch=64, segment=1, recorded=0)
    assert estimate.states == 4001 * 64 * 4 * 4
    assert ours == pytest.approx(estimate.states + estimate.step, rel=0.25)


def test_calculator():
    system = arm()
    whole = mb.memory_estimate(system, 1000, batch=8)
    assert whole.trajectory == 2 * 1001 * (1 + 4 * 8) * 8 * 4
    assert whole.total == sum(whole)
    assert mb.memory_estimate(system, 1000, batch=8, gradient=False).states == 0
    ratio = mb.memory_estimate(system, 40_000).states / mb.memory_estimate(system, 10_000).states
    assert 1.9 < ratio < 2.1  # O(sqrt T)
    stored = mb.memory_estimate(system, 10_000, remat=False).states
    assert stored > 50 * mb.memory_estimate(system, 10_000, segment=1).states
    with pytest.raises(ValueError, match="steps = 0, every = 1, batch = 1; expected one or more"):
        mb.memory_estimate(system, 0)


def test_segments_change_nothing():
    """Values and gradients of the two-level scan, for numbers of rows that segments divide and that they do not."""

    def run(x, rows, per_segment, remat):
        def row(carry, r):
            new = jnp.where(r < rows, jnp.sin(carry) + 0.1 * r, carry)
            return new, carry

        end, ys = scan_rows(row, x, rows, per_segment, remat)
        return end + jnp.sum(ys * jnp.arange(rows)), (end, ys)

    expected = jax.value_and_grad(run, has_aux=True)(0.3, 20, 1, False)
    for per_segment in (1, 4, 7, 20, 50):
        found = jax.value_and_grad(run, has_aux=True)(0.3, 20, per_segment, True)
        for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-13)
    assert [automatic_segment(n) for n in (1, 255)] == [1, 1]
    for steps in (256, 300, 400, 777, 1000, 2000, 5000, 10_000, 100_000):
        n = automatic_segment(steps)
        assert 0.7 < n / np.sqrt(steps) < 1.35 and -(steps + 1) % n <= (steps + 1) // 50, steps


@pytest.mark.slow
def test_a_run_in_segments_has_the_same_gradient():
    """61 rows in segments of 8: the last one is not full."""

    @functools.partial(jax.jit, static_argnums=1)
    @functools.partial(jax.value_and_grad, argnums=0)
    def loss(q, segment):
        run = mb.simulate(models.pendulum(), q, duration=0.6, dt=1e-2, segment=segment)
        return jnp.sum(run.q * run.t[:, None]) + run.end.v[0]

    whole, parts = (loss(jnp.array([0.7]), n) for n in (1, 8))
    for x, y in zip(whole, parts, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("start", "chaotic"), [((0.2, 0.1), False), ((2.8, 2.0), True)])
def test_gradient_growth_beside_the_tangent_system(start, chaotic):
    """Small swings: no growth. Large ones: both grow by orders of magnitude, and alike, whoever computes them.

    The gradient itself, in reverse mode through the whole run, has grown as much as the report says.
    """
    system, q = models.double_pendulum(), jnp.array(start)
    growth = growth_of(system, q)
    assert growth.steps.shape == (1001,)
    np.testing.assert_allclose(growth.steps[0], 1.0)
    np.testing.assert_allclose(np.log(growth.steps), np.log(growth.tangent), atol=0.5 if chaotic else 0.05)
    assert (float(growth.steps[-1]) > 1e2) == chaotic
    jacobian = np.asarray(end_jacobian(system, q))
    # the root mean square over random directions of four coordinates is |J| / sqrt(4); over eight of them, roughly
    assert 0.4 < np.linalg.norm(jacobian) / 2 / float(growth.steps[-1]) < 2.5


@pytest.mark.slow
def test_growth_counts_force_elements():
    """A spring to the world makes an upright mass stable: growth stays bounded where without it it is exponential."""
    b = mb.Builder()
    b.body("mass", mass=1.0, com=(0.0, 0.0, 1.0))
    b.joint("hinge", mb.revolute((0.0, 1.0, 0.0)), child="mass")
    system = b.build()
    forces = (mb.elements.Spring("world", "mass", 30.0, point_a=(0.0, 0.0, 2.0), point_b=(0.0, 0.0, 1.0)),)
    run = jax.jit(lambda forces: mb.gradient_growth(system, jnp.zeros(1), duration=1.0, dt=1e-2, forces=forces))
    held = run(forces)
    # U = k (5 - 4 cos q) / 2 + m g cos q on a unit lever, so w^2 = 2 k - g; speeds are w times angles
    rate = np.sqrt(2 * 30.0 - 9.81)
    assert float(held.steps[-1]) < rate and float(held.tangent[-1]) < rate
    loose = run((eqx.tree_at(lambda spring: spring.stiffness, forces[0], 0.0 * forces[0].stiffness),))
    np.testing.assert_allclose(loose.rates, np.sqrt(9.81), rtol=0.25)
    with pytest.raises(ValueError, match="has a state of its own"):
        mb.gradient_growth(system, jnp.zeros(1), duration=1.0, dt=0.1, forces=(mb.elements.Actuator("hinge", lag=0.1),))
    loop = mb.linkages.four_bar()
    with pytest.raises(ValueError, match="would break the constraints"):
        mb.gradient_growth(loop, jnp.zeros(3), duration=1.0, dt=0.1)


@jax.jit
def growth_of(system, q):
    return mb.gradient_growth(system, q, duration=5.0, dt=5e-3, stepper=mb.RungeKuttaMuntheKaas4())


@jax.jit
def end_jacobian(system, q):
    def end(x):
        run = mb.simulate(system, x[:2], x[2:], duration=5.0, dt=5e-3, stepper=mb.RungeKuttaMuntheKaas4(), record=())
        return jnp.concatenate([run.end.q, run.end.v])

    return jax.jacrev(end)(jnp.concatenate([q, jnp.zeros(2)]))
