"""Steppers and `simulate`: order of convergence, what is conserved, stiff passive forces, the interface of a run.

One tree of a free, a ball and a screw joint serves most tests, with other numbers. Its motions have rates w of about
5 rad/s, so that a method of order p errs by about (w h)^p over a fraction of a second.
"""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import models
from jaxmbd.drives import driven_motion
from jaxmbd.mechanism import Mechanism
from jaxmbd.packing import pack

RKMK4, EULER = mb.RungeKuttaMuntheKaas4(), mb.SemiImplicitEuler()


@functools.cache
def mixed():
    """A free body, one on a ball joint, one on a screw: nq = 12, nv = 10."""
    b = mb.Builder()
    for name, mass, scale in (("base", 2.0, 0.05), ("ball", 1.0, 0.02), ("nut", 0.6, 0.01)):
        b.body(name, mass=mass, com=(0.02, -0.05, 0.1), inertia=scale * np.diag([1.0, 1.3, 1.7]))
    b.joint("root", mb.free(), child="base")
    b.joint("shoulder", mb.spherical(), "base", "ball", mb.Pose((0.1, 0.2, 0.1)))
    thread = mb.Pose.from_rpy((0.0, 0.1, 0.2), (0.3, -0.5, 0.2))
    b.joint("thread", mb.screw((0.0, 0.6, 0.8), 0.05), "ball", "nut", thread)
    return b.build()


def started(seed=3, spread=2.0):
    return mb.random_state(mixed(), jax.random.key(seed), spread)


def quaternion_norms(q):
    return np.stack([np.linalg.norm(q[..., :4], axis=-1), np.linalg.norm(q[..., 7:11], axis=-1)], -1)


# ----------------------------------------------------------------------------------------------------- convergence


@functools.partial(jax.jit, static_argnums=0)
def final(stepper, system, q, v, duration, steps, size):
    """End of a run; the number of steps and the size of the forces are data: one program a stepper."""
    h = duration / steps
    mechanism = Mechanism(system, pack(system), lambda t, q, v: size * (jnp.sin(3 * t) * jnp.ones(system.nv) - 0.1 * v))

    def body(i, state):
        q, v, _ = stepper.step(mechanism, i * h, *state, h)
        return driven_motion(system, q, v, (i + 1) * h)[:2]

    return jax.lax.fori_loop(0, steps, body, (q, v))


@functools.cache
def exact_end():
    """The fourth-order method in steps of 0.5 ms, w h = 2.5e-3: it errs by some 1e-12."""
    return final(RKMK4, mixed(), *started(), 0.4, 800, 1.0)


def slope_of(stepper, steps):
    """Order that the errors at two numbers of steps show, and the smaller error."""
    exact_q, exact_v = exact_end()
    errors = []
    for n in steps:
        q_n, v_n = final(stepper, mixed(), *started(), 0.4, n, 1.0)
        errors.append(max(np.abs(mb.difference(mixed(), exact_q, q_n)).max(), np.abs(v_n - exact_v).max()))
    return np.log(errors[0] / errors[1]) / np.log(steps[1] / steps[0]), errors[1]


@pytest.mark.parametrize(("stepper", "order", "steps"), [(EULER, 1, (100, 400)), (RKMK4, 4, (20, 80))])
def test_order_of_convergence(stepper, order, steps):
    """Error against a run of the fourth-order method in small steps: slope = order.

    A quarter of the step divides the error by 4^p, up to terms of the next order, (w h) relative to the leading one.
    """
    slope, error = slope_of(stepper, steps)
    assert error > 1e-10  # well above that of the run it is measured by
    assert abs(slope - order) < 0.15, (slope, error)


# --------------------------------------------------------------------------------------------------- conservation

STEPS, DT = 400, 1e-3


@jax.jit
def flight(system, q, v, forces):
    """A run of 0.4 s with constant forces, and what should balance along it."""
    run = mb.simulate(
        system, q, v, duration=STEPS * DT, dt=DT, stepper=RKMK4, control=jnp.broadcast_to(forces, (STEPS, system.nv))
    )
    kinetic, potential = jax.vmap(mb.energy, in_axes=(None, 0, 0))(system, run.q, run.v)
    return run, kinetic + potential, jax.vmap(mb.momentum, in_axes=(None, 0, 0))(system, run.q, run.v)


def test_energy_balance():
    """E(t) - E(0) is the integral of the power of forces, dampers and dry friction (springs are in E).

    The power is integrated by Simpson's rule; both errors are a few times 1e-9 or less at w h = 1e-2.
    """
    system = dataclasses.replace(
        mixed(),
        damping=jnp.linspace(0.05, 0.2, 10),
        stiffness=jnp.array([0.0] * 6 + [0.2, 0.3, 0.4, 0.5]),
        friction=jnp.array([0.0] * 6 + [0.02, 0.03, 0.01, 0.02]),
        friction_speed=jnp.full(10, 5.0, float),
    )
    q, v = started()
    forces = jnp.linspace(-0.5, 0.5, 10)
    run, energy, _ = flight(system, q, v, forces)
    speeds = np.asarray(run.v)
    lost = np.asarray(system.damping) * speeds + np.asarray(system.friction) * np.tanh(
        speeds / np.asarray(system.friction_speed)
    )
    power = np.sum((np.asarray(forces) - lost) * speeds, 1)
    work = DT / 3 * np.cumsum(power[:-2:2] + 4 * power[1:-1:2] + power[2::2])
    assert np.abs(work).max() > 0.1
    np.testing.assert_allclose(energy[2::2] - energy[0], work, rtol=0, atol=1e-8)


def test_free_flight():
    """Without gravity and forces momentum and energy stay, and quaternions keep their norm, without any projection."""
    system = mixed().replace({"gravity": (0.0, 0.0, 0.0)})
    q, v = started(5)
    run, energy, momentum = flight(system, q, v, jnp.zeros(10))
    scale = np.abs(momentum).max()
    np.testing.assert_allclose(momentum, np.broadcast_to(momentum[0], momentum.shape), rtol=0, atol=1e-8 * scale)
    np.testing.assert_allclose(energy, energy[0], rtol=1e-8)
    assert np.abs(np.asarray(run.v) - np.asarray(v)[None]).max() > 0.1  # though it does move
    # each of 400 products of unit quaternions errs by a few roundings
    np.testing.assert_allclose(quaternion_norms(np.asarray(run.q)), 1.0, rtol=0, atol=STEPS * 4e-16)


# -------------------------------------------------------------------------------------------- stiff passive forces

STIFF = {
    "damping": {"damping": 1e6},
    "stiffness": {"stiffness": 1e8},
    "friction": {"friction": 1e5, "friction_speed": 1e-6},
    "all": {"damping": 1e4, "stiffness": 1e7, "friction": 1e3, "friction_speed": 1e-6},
    "none": {},
}


@functools.cache
def stiff_runs():
    """One second in steps of 1 ms for every case at once; the inner joints are stiff, the base flies freely."""
    inner = jnp.arange(10) >= 6
    base = mixed()
    systems = []
    for numbers in STIFF.values():
        changed = {name: jnp.where(inner, value, getattr(base, name)) for name, value in numbers.items()}
        systems.append(dataclasses.replace(base, **changed))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *systems)
    q, v = started()
    q = q.at[7:].set(jnp.array([1.0, 0.0, 0.0, 0.0, 0.0]))  # springs slack

    @jax.jit
    @jax.vmap
    def runs(system):
        return mb.simulate(system, q, v, duration=1.0, dt=1e-3)

    return dict(
        zip(STIFF, (jax.tree.map(lambda x, i=i: np.asarray(x[i]), runs(stacked)) for i in range(5)), strict=True)
    )


@pytest.mark.parametrize("case", [c for c in STIFF if c != "none"])
def test_stiff_passive_forces_stay_stable(case):
    """Explicit steps would need h < 2 J / d = 1e-8 s, or 2 sqrt(J / k) = 1e-5 s; here the joints rest at 1 ms."""
    run = stiff_runs()[case]
    assert np.isfinite(run.v).all()
    joint = run.v[:, 6:]
    assert np.abs(joint[0]).max() > 0.5
    # a hundred steps later what is left is what the flying base's inertial forces, below 1e3 N m, move in the joint
    assert np.abs(joint[100:]).max() < {"damping": 1e-3, "stiffness": 1e-3, "friction": 1e-4, "all": 1e-3}[case]
    np.testing.assert_allclose(quaternion_norms(run.q), 1.0, rtol=0, atol=1000 * 4e-16)
    if "stiffness" in STIFF[case]:
        np.testing.assert_allclose(run.q[100:, 7:], np.broadcast_to([1, 0, 0, 0, 0], (901, 5)), atol=1e-4)


def test_without_passive_forces_the_joints_keep_moving():
    assert np.abs(stiff_runs()["none"].v[-100:, 6:]).max() > 0.5


# ------------------------------------------------------------------------------------------------ simulate's interface


def pendulum_run(**changes):
    system = models.pendulum()
    options = {"duration": 0.02, "dt": 1e-3} | changes
    return mb.simulate(system, jnp.array([0.4]), jnp.array([1.0]), **options)


class Feedback(eqx.Module):
    """tau = -gain q + offset t."""

    gain: jax.Array
    offset: jax.Array

    def __call__(self, t, q, v):
        return -self.gain * q + self.offset * t


def test_trajectory_has_the_start_and_every_step():
    run = pendulum_run()
    assert [x.shape for x in (run.t, run.q, run.v, run.a, run.tau)] == [(21,), (21, 1), (21, 1), (21, 1), (21, 1)]
    np.testing.assert_allclose(run.t, np.arange(21) * 1e-3, rtol=1e-14)
    np.testing.assert_array_equal(run.q[0], [0.4])
    # semi-implicit Euler, to the last row: v += h a, then q += h v
    np.testing.assert_allclose(run.v[1:], run.v[:-1] + 1e-3 * run.a[:-1], rtol=1e-14)
    np.testing.assert_allclose(run.q[1:], run.q[:-1] + 1e-3 * run.v[1:], rtol=1e-14)
    np.testing.assert_allclose(run.a, -9.81 * np.sin(run.q), rtol=1e-13)


def test_start_from_rest_and_no_steps():
    """Velocities left out are zero; a run of no duration is its start."""
    at_rest = mb.simulate(models.pendulum(), jnp.array([0.4]), duration=0.02, dt=1e-3)
    np.testing.assert_array_equal(at_rest.v[0], [0.0])
    shapes = jax.eval_shape(lambda: mb.simulate(models.pendulum(), jnp.array([0.4]), duration=0.0, dt=1e-3))
    assert shapes.q.shape == (1, 1)


def test_control_by_array_is_held_over_each_step():
    forces = np.linspace(-1.0, 1.0, 20)[:, None]
    run = pendulum_run(control=forces)
    np.testing.assert_array_equal(run.tau[:-1], forces)
    np.testing.assert_allclose(run.a[:-1], forces - 9.81 * np.sin(run.q[:-1]), rtol=1e-12)


def test_control_by_function_of_time_and_state():
    run = pendulum_run(control=Feedback(jnp.array(2.0), jnp.array(30.0)), t0=0.5)
    np.testing.assert_allclose(run.t[0], 0.5)
    np.testing.assert_allclose(run.tau, -2.0 * run.q + 30.0 * run.t[:, None], rtol=1e-13)
    held = pendulum_run(control=run.tau[:-1])
    np.testing.assert_allclose(run.q, held.q, rtol=1e-14)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"duration": 0.0205},
            r"duration = 0.0205 s is no whole number of steps of 0.001 s \(20.5\); take duration=0.02",
        ),
        ({"dt": 0.0}, "expected a positive step and no negative duration"),
        ({"dt": -1e-3}, "expected a positive step"),
        ({"duration": -0.02}, "no negative duration"),
        ({"duration": np.inf}, "expected a positive step"),
        ({"control": np.zeros((19, 1))}, r"control has shape \(19, 1\); expected \(steps, nv\) = \(20, 1\)"),
        ({"control": np.zeros(20)}, r"control has shape \(20,\); expected"),
    ],
    ids=["half a step", "no step", "back", "past", "for ever", "rows", "rank"],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        pendulum_run(**changes)


def test_wrong_state_is_refused():
    with pytest.raises(ValueError, match=r"q has shape \(2,\); this system takes \(1,\)"):
        mb.simulate(models.pendulum(), jnp.zeros(2), duration=0.1, dt=0.1)
    with pytest.raises(ValueError, match=r"v has shape \(1, 1\); this system takes \(1,\).*jax.vmap"):
        mb.simulate(models.pendulum(), jnp.zeros(1), jnp.zeros((1, 1)), duration=0.1, dt=0.1)


def test_rounded_durations_are_whole_numbers_of_steps():
    """0.7 / 0.035 is 19.999999999999996 in floating point."""
    assert pendulum_run(duration=0.7, dt=0.035).t.shape == (21,)


# ------------------------------------------------------------------------------------------------ gradients of a run


def loss(numbers, remat):
    """A quadratic of the end of a run of a damped, driven double pendulum, as a function of all its numbers."""
    system, q, v, control = numbers
    run = mb.simulate(system, q, v, duration=0.1, dt=5e-3, control=control, remat=remat)
    return jnp.sum(run.q[-1] ** 2) + 0.1 * jnp.sum(run.v[-1] ** 2)


def numbers():
    system = models.double_pendulum((1.0, 0.7), (0.9, 0.6))
    system = dataclasses.replace(system, damping=jnp.array([0.3, 0.2]))
    return system, jnp.array([0.7, -0.4]), jnp.array([0.5, 1.0]), Feedback(jnp.array(1.5), jnp.array(0.8))


@functools.cache
def values_and_gradients():
    """At the numbers, and a little to both sides of them along random ways (made here): one program for all."""
    start = numbers()
    leaves, structure = jax.tree.flatten(start)
    rng, step, count = np.random.default_rng(0), 1e-5, 4
    ways = [np.where(np.isfinite(leaf), rng.normal(size=(count, *np.shape(leaf))), 0.0) for leaf in leaves]
    points = [
        np.concatenate([leaf + step * way, leaf - step * way, leaf])
        for leaf, way in zip((np.asarray(leaf)[None] for leaf in leaves), ways, strict=True)
    ]
    program = jax.jit(jax.vmap(jax.value_and_grad(functools.partial(loss, remat=True))))
    values, gradients = program(jax.tree.unflatten(structure, points))
    values = np.asarray(values)
    slopes = (values[:count] - values[count:-1]) / (2 * step)
    return ways, slopes, jax.tree.map(lambda g: np.asarray(g[-1]), gradients)


@pytest.mark.slow
def test_rematerialised_gradients_are_equal():
    system, *others = numbers()
    stored = jax.jit(jax.grad(lambda x: loss((system, *x), remat=False)))(others)
    for one, other in zip(jax.tree.leaves(values_and_gradients()[2][1:]), jax.tree.leaves(stored), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_gradient_of_a_run_against_differences():
    """Along random directions through masses, lengths, axes, gravity, damping, state and control.

    Central differences of step e err by e^2 times the third derivative plus rounding / e: 1e-8 at e = 1e-5.
    """
    ways, slopes, gradient = values_and_gradients()
    exact = sum(
        np.sum(np.where(np.isfinite(g), g, 0.0)[None] * way, tuple(range(1, way.ndim)))
        for g, way in zip(jax.tree.leaves(gradient), ways, strict=True)
    )
    np.testing.assert_allclose(exact, slopes, rtol=1e-6, atol=1e-7)
    assert np.abs(slopes).min() > 1e-3
