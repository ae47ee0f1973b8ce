"""The adapter to diffrax: against fixed steps on the group, tolerance, projection, dense output, both adjoints."""

import functools
import subprocess
import sys

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_order import exact_end, mixed, started

import jaxmbd as mb
from jaxmbd import models


def forces(t, q, v):
    return jnp.sin(3 * t) * jnp.ones(10) - 0.1 * v


@functools.partial(jax.jit, static_argnames=("dense",))
def adaptive(q, v, rtol, dense=False):
    times = jnp.linspace(0.0, 0.4, 5)
    options = {"rtol": rtol, "atol": 1e-2 * rtol, "control": forces, "solver": diffrax.Tsit5()}
    return mb.simulate_adaptive(mixed(), q, v, duration=0.4, instants=times, dense=dense, **options)


@pytest.mark.slow
def test_errors_follow_the_tolerance_and_the_projection_costs_nothing():
    """Against the fourth-order group method in tiny steps. One program serves all tolerances.

    The error of a run is the sum of the steps' errors, here some tens of them. Before the projection quaternions are
    off unit length by no more than the error; after it exactly on it, and the error is no larger.
    """
    q, v = started()
    exact_q, exact_v = exact_end()
    errors, steps = [], []
    for rtol in (1e-4, 1e-6, 1e-8):
        run = adaptive(q, v, rtol, dense=True)
        gap = mb.difference(mixed(), exact_q, run.q[-1])
        errors.append(max(np.abs(gap).max(), np.abs(run.v[-1] - exact_v).max()))
        steps.append(int(run.steps["accepted"]))
        assert errors[-1] < 100 * rtol
        assert run.norm_error.max() < 10 * rtol
        norms = np.linalg.norm(run.q[:, :4], axis=1)
        np.testing.assert_allclose(norms, 1.0, rtol=0, atol=1e-15)
    assert errors[2] < errors[1] / 10 < errors[0] / 100
    assert steps[0] < steps[1] < steps[2]
    q_between, v_between = run.evaluate(0.3)
    np.testing.assert_allclose(q_between, run.q[3], atol=1e-7)
    np.testing.assert_allclose(v_between, run.v[3], atol=1e-6)


def test_no_dense_output_is_told():
    run = mb.simulate_adaptive(models.pendulum(), jnp.array([0.4]), duration=0.1)
    np.testing.assert_allclose(run.t, [0.0, 0.1])
    with pytest.raises(ValueError, match=r"no dense output; call simulate_adaptive\(..., dense=True\)"):
        run.evaluate(0.05)


@pytest.mark.slow
def test_both_adjoints():
    """d(angle) / d(mass, damping, start): reverse and forward mode, against each other and differences."""

    def angle(x, adjoint):
        system = models.pendulum().replace({"link0.mass": x[0], "hinge0.damping": x[1]})
        run = mb.simulate_adaptive(system, x[2:3], duration=1.0, rtol=1e-9, atol=1e-11, adjoint=adjoint)
        return run.q[-1, 0]

    x = jnp.array([1.3, 0.4, 0.7])
    both = jax.jit(jax.value_and_grad(lambda x: angle(x, diffrax.RecursiveCheckpointAdjoint())))
    reverse = both(x)[1]
    forward = jax.jit(jax.jacfwd(lambda x: angle(x, diffrax.ForwardMode())))(x)
    np.testing.assert_allclose(reverse, forward, rtol=1e-8)
    e = 1e-4
    slopes = [(both(x + e * way)[0] - both(x - e * way)[0]) / (2 * e) for way in jnp.eye(3)]
    np.testing.assert_allclose(reverse, slopes, rtol=1e-5)


@pytest.mark.slow
def test_a_batch_with_its_own_step_sizes():
    angles = jnp.array([0.1, 1.0, 3.0])
    run = jax.vmap(lambda q: mb.simulate_adaptive(models.pendulum(), q, duration=2.0, rtol=1e-8))(angles[:, None])
    energy = jax.vmap(lambda q, v: sum(mb.energy(models.pendulum(), q, v)))(run.q[:, -1], run.v[:, -1])
    np.testing.assert_allclose(energy, -9.81 * np.cos(angles), atol=1e-5)


@pytest.mark.slow
def test_force_elements_act():
    """A pendulum on a spring keeps its energy to the tolerance; what has a state of its own is refused."""
    spring = mb.elements.Spring("world", "link0", 20.0, rest=0.1, point_a=(0.0, 0.0, 0.4))
    q = jnp.array([0.9])
    run = mb.simulate_adaptive(models.pendulum(), q, duration=0.5, forces=(spring,), rtol=1e-9, atol=1e-11)
    total = [sum(mb.elements.energy(models.pendulum(), (spring,), *x)) for x in zip(run.q, run.v, strict=True)]
    np.testing.assert_allclose(total[1], total[0], rtol=1e-8)
    assert abs(run.v[1, 0]) > 1.0
    motor = mb.elements.Actuator("hinge0", lag=0.1)
    with pytest.raises(ValueError, match=r"forces\[0\], Actuator, has a state of its own \(a lag\), which"):
        mb.simulate_adaptive(models.pendulum(), q, duration=0.5, forces=(motor,))


def test_diffrax_is_imported_by_use_alone():
    program = "import sys, jaxmbd, jaxmbd.adaptive; assert 'diffrax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
