"""Steppers beyond the two of test_order.py: order, what is conserved, stiff systems, derivatives through the roots.

The tree is that of test_order.py: a free, a ball and a screw joint, with rates of about 5 rad/s.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_order import RKMK4, final, mixed, started

import jaxmbd as mb
from jaxmbd import models
from jaxmbd.packing import pack
from jaxmbd.simulate import Mechanism

VARIATIONAL = mb.VariationalMidpoint()


@functools.cache
def exact_end():
    return final(RKMK4, *started(), 0.4, 1600)


@pytest.mark.parametrize(
    ("stepper", "order", "steps"),
    [
        (mb.PredictorCorrector(), 2, (40, 160)),
        (mb.PredictorCorrector(corrections=1), 2, (80, 320)),
        pytest.param(VARIATIONAL, 2, (160, 640), marks=pytest.mark.slow),
        pytest.param(mb.ImplicitMidpoint(), 2, (40, 160), marks=pytest.mark.slow),
        pytest.param(mb.Newmark(), 2, (40, 160), marks=pytest.mark.slow),
        pytest.param(mb.SDIRK3(), 3, (20, 80), marks=pytest.mark.slow),
    ],
    ids=["predictor-corrector", "one correction", "variational", "midpoint", "Newmark", "SDIRK3"],
)
def test_order_of_convergence(stepper, order, steps):
    """The slope of the error against the fourth-order method in tiny steps; forces depend on time and velocity."""
    exact_q, exact_v = exact_end()
    errors = []
    for n in steps:
        q_n, v_n = final(stepper, *started(), 0.4, n)
        errors.append(max(np.abs(mb.difference(mixed(), exact_q, q_n)).max(), np.abs(v_n - exact_v).max()))
    slope = np.log(errors[0] / errors[1]) / np.log(steps[1] / steps[0])
    assert errors[1] > 1e-11
    assert abs(slope - order) < 0.1, (slope, errors)


# --------------------------------------------------------------------------------------------------- conservation


@functools.partial(jax.jit, static_argnums=(0, 3))
def flown(stepper, q, v, blocks, h):
    """Energy, and momentum about the origin, every 100 steps of free flight."""
    system = mixed().replace({"gravity": (0.0, 0.0, 0.0)})
    mechanism = Mechanism(system, pack(system), lambda t, q, v: jnp.zeros(10))

    def books(q, v):
        p, c = mb.momentum(system, q, v), mb.com(system, q)
        return jnp.concatenate([p[:3] + jnp.cross(c, p[3:]), p[3:], sum(mb.energy(system, q, v))[None]])

    def block(state, _):
        state = jax.lax.fori_loop(0, 100, lambda i, s: stepper.step(mechanism, 0.0, *s, h)[:2], state)
        return state, books(*state)

    return jnp.concatenate([books(q, v)[None], jax.lax.scan(block, (q, v), length=blocks)[1]])


def test_variational_midpoint_keeps_the_momentum_of_free_flight():
    """To rounding: some 5e-15 in each of 2000 steps, on momenta that are sums of a few times larger numbers."""
    books = np.asarray(flown(VARIATIONAL, *started(5), 20, 2e-3))
    momentum, energy = books[:, :6], books[:, 6]
    np.testing.assert_allclose(momentum, np.broadcast_to(momentum[0], momentum.shape), rtol=0, atol=1e-11)
    assert np.abs(momentum[0]).max() > 1.0
    assert np.abs(energy / energy[0] - 1).max() < 2e-5  # (w h)^2, with w = 5 rad/s and less


@functools.partial(jax.jit, static_argnums=(0, 1))
def swung(stepper, blocks, h):
    """Energy of a double pendulum every 100 steps."""
    system = models.double_pendulum()
    mechanism = Mechanism(system, pack(system), lambda t, q, v: jnp.zeros(2))

    def block(state, _):
        state = jax.lax.fori_loop(0, 100, lambda i, s: stepper.step(mechanism, 0.0, *s, h)[:2], state)
        return state, sum(mb.energy(system, *state))

    return jax.lax.scan(block, (jnp.array([0.9, 0.4]), jnp.zeros(2)), length=blocks)[1]


@pytest.mark.slow
def test_no_secular_drift_of_energy_over_1e5_steps():
    """The error of the energy oscillates; its mean over the first and the last tenth differ by far less.

    A straight line through the errors rises by less than a fiftieth of their spread. The fourth-order method's errors,
    in twice the step, do run away: that is what the test can see.
    """
    for stepper, h, kept in ((mb.VariationalMidpoint(10), 0.02, True), (RKMK4, 0.08, False)):
        energy = np.asarray(swung(stepper, 1000, h))
        rise = np.polyfit(np.linspace(0, 1, len(energy)), energy, 1)[0]
        spread = np.ptp(energy - np.linspace(0, 1, len(energy)) * rise)
        assert (abs(rise) < spread / 20) == kept, (stepper, rise, spread)


def test_velocity_products_at_the_mean_velocity():
    """Semi-implicit Euler with one correction: a hundred times less energy astray on an undamped double pendulum.

    Relative to the energy that the swing exchanges; 20,000 steps of 10 ms.
    """
    energies = [np.asarray(swung(mb.SemiImplicitEuler(n), 200, 0.01)) for n in (0, 1)]
    system, start = models.double_pendulum(), jnp.array([0.9, 0.4])
    top, bottom = (sum(mb.energy(system, q, jnp.zeros(2))) for q in (start, jnp.zeros(2)))
    astray = [np.abs(e - float(top)).max() / float(top - bottom) for e in energies]
    assert astray[0] > 0.5 and astray[1] < 0.02, astray


def test_a_correction_leaves_passive_forces_implicit():
    """One hinge has no velocity products: with damper, friction and spring the corrected step is the plain one."""
    b = mb.Builder()
    b.body("rod", 1.0, (0.0, 0.0, -0.4), 0.1 * np.eye(3))
    b.joint("hinge", mb.revolute((0.0, 1.0, 0.0)), child="rod", damping=500.0, stiffness=1e4, friction=0.3)
    runs = [
        mb.simulate(
            b.build(), jnp.array([0.3]), jnp.array([2.0]), duration=0.2, dt=1e-2, stepper=mb.SemiImplicitEuler(n)
        )
        for n in (0, 2)
    ]
    np.testing.assert_allclose(runs[1].q, runs[0].q, rtol=1e-12)
    np.testing.assert_allclose(runs[1].v, runs[0].v, rtol=1e-10, atol=1e-14)


def test_midpoint_rule_keeps_a_quadratic_energy():
    """A mass on a spring is linear: implicit midpoint and Newmark's average acceleration keep its energy exactly."""
    b = mb.Builder(gravity=(0.0, 0.0, 0.0))
    b.body("mass", mass=2.0)
    b.joint("slide", mb.prismatic((1.0, 0.0, 0.0)), child="mass", stiffness=50.0)
    system = b.build()
    for stepper in (mb.ImplicitMidpoint(), mb.Newmark(), VARIATIONAL):
        run = mb.simulate(system, jnp.array([0.3]), jnp.array([1.0]), duration=20.0, dt=0.1, stepper=stepper)
        energy = np.sum(jax.vmap(mb.energy, (None, 0, 0))(system, run.q, run.v), 0)
        # w h = 0.5, so each of the eight iterations of the variational rule gains a factor of 16 and more
        np.testing.assert_allclose(energy, energy[0], rtol=1e-10, err_msg=type(stepper).__name__)


# ------------------------------------------------------------------------------------------------------- stiffness


@functools.cache
def stiff_pair():
    """A pendulum whose second joint is a spring of 1e8 N m/rad: its own period is 1e-4 s and less."""
    system = models.double_pendulum((1.0, 0.5), (1.0, 0.5))
    return system.replace({"hinge1.stiffness": 1e8})


@pytest.mark.slow
def test_stiff_springs_in_large_steps():
    """Steps of 10 ms, 1000 times the spring's own time; the pair then swings as one rigid pendulum (closed form)."""
    rigid = models.pendulum_chain([1.5], [7 / 6], [1.0 + 0.5 * 1.5**2 - 1.5 * (7 / 6) ** 2])
    expected = mb.simulate(rigid, jnp.array([0.5]), duration=2.0, dt=1e-3, stepper=RKMK4).q[::10, 0]
    # Newmark's formulas take the acceleration of the start as it is: the spring starts slack
    for stepper, deflection, bound in ((mb.SDIRK3(), 1e-4, 2e-4), (mb.Newmark(0.3025, 0.6), 0.0, 2e-2)):
        run = mb.simulate(stiff_pair(), jnp.array([0.5, deflection]), duration=2.0, dt=0.01, stepper=stepper)
        assert np.abs(run.q[20:, 1]).max() < 1e-6, type(stepper).__name__  # the fast oscillation is damped away
        np.testing.assert_allclose(run.q[:, 0], expected, atol=bound, rtol=0, err_msg=type(stepper).__name__)


@pytest.mark.slow
@pytest.mark.contract("S1-01")
def test_explicit_and_implicit_form_of_the_equations():
    """M a - f = 0 at random states; explicit Runge-Kutta and implicit Newmark steps of one model meet.

    f = tau - bias. Newmark's second-order error at h = 2 ms and w of about 5 rad/s: (w h)^2 / 12 of the motion.
    """
    system = mixed()
    states = jax.vmap(mb.random_state, (None, 0))(system, jax.random.split(jax.random.key(1), 5))
    tau = jax.random.normal(jax.random.key(2), (5, 10))
    a = jax.vmap(mb.forward_dynamics, (None, 0, 0, 0))(system, *states, tau)
    M = jax.vmap(mb.mass_matrix, (None, 0))(system, states[0])
    f = tau - jax.vmap(mb.bias_force, (None, 0, 0))(system, *states)
    np.testing.assert_allclose(np.einsum("nij,nj->ni", M, a), f, rtol=0, atol=1e-12 * np.abs(f).max())
    q, v = started()
    exact_q, exact_v = final(RKMK4, q, v, 0.4, 1600)
    q_n, v_n = final(mb.Newmark(), q, v, 0.4, 200)
    np.testing.assert_allclose(mb.difference(system, exact_q, q_n), 0.0, atol=2e-4)
    np.testing.assert_allclose(v_n, exact_v, atol=2e-3)


@pytest.mark.contract("S1-20")
def test_predictor_and_corrector_on_the_relative_coordinates():
    """Only q and v of the joints are integrated: poses come from kinematics, and welded points stay together.

    The recursive algorithm's accelerations, predicted and corrected, against the dense equations of motion, integrated
    by the same formulas written out here.
    """
    system, h = models.double_pendulum(), 0.01
    q, v = jnp.array([0.5, -0.3]), jnp.array([1.0, 0.2])
    run = mb.simulate(system, q, v, duration=0.2, dt=h, stepper=mb.PredictorCorrector())

    def dense(q, v):
        return np.linalg.solve(mb.mass_matrix(system, q), -np.asarray(mb.bias_force(system, q, v)))

    q, v = np.asarray(q), np.asarray(v)
    for n in range(20):
        a = a1 = dense(q, v)
        for _ in range(2):
            a1 = dense(q + h * v + h * h * (a + a1) / 4, v + h * (a + a1) / 2)
        q, v = q + h * v + h * h * (a + a1) / 4, v + h * (a + a1) / 2
        np.testing.assert_allclose(run.q[n + 1], q, rtol=0, atol=1e-13)
    k = jax.vmap(lambda q: mb.kinematics(system, q)["tip"].position)(run.q)
    angles = np.cumsum(run.q, 1)
    np.testing.assert_allclose(k[:, 0], -np.sin(angles).sum(1), atol=1e-12)


# ------------------------------------------------------------------------------------------------------ derivatives


@functools.partial(jax.jit, static_argnums=0)
def _loss(stepper, numbers):
    system, q, v = numbers
    run = mb.simulate(system, q, v, duration=0.1, dt=0.02, stepper=stepper)
    return jnp.sum(run.q[-1] ** 2) + 0.1 * jnp.sum(run.v[-1] ** 2)


@functools.partial(jax.jit, static_argnums=0)
def _both(stepper, numbers, way):
    """Reverse and forward derivative along a way."""
    gradient = jax.grad(functools.partial(_loss, stepper))(numbers)
    along = sum(jnp.vdot(g, w) for g, w in zip(jax.tree.leaves(gradient), jax.tree.leaves(way), strict=True))
    return along, jax.jvp(functools.partial(_loss, stepper), (numbers,), (way,))[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "stepper",
    [
        VARIATIONAL,
        mb.ImplicitMidpoint(),
        mb.SDIRK3(),
        mb.Newmark(),
        mb.PredictorCorrector(),
        mb.SemiImplicitEuler(),
        mb.SemiImplicitEuler(corrections=1),
        mb.RungeKuttaMuntheKaas4(),
        mb.CommutatorFree4(),
    ],
    ids=lambda stepper: type(stepper).__name__,
)
def test_derivatives_through_the_steps(stepper):
    """Reverse and forward mode agree with each other and with central differences, for masses, axes, dampers, states.

    Differences of step e err by e^2 times the third derivative plus rounding / e: 1e-8 at e = 1e-5.
    """
    system = dataclasses.replace(models.double_pendulum((1.0, 0.7), (0.9, 0.6)), damping=jnp.array([0.3, 0.2]))
    numbers = (system, jnp.array([0.7, -0.4]), jnp.array([0.5, 1.0]))
    rng = np.random.default_rng(0)
    way = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), rng.normal(size=x.shape), 0.0), numbers)
    reverse, forward = _both(stepper, numbers, way)
    e = 1e-5
    ends = [_loss(stepper, jax.tree.map(lambda x, w, s=s: x + s * e * w, numbers, way)) for s in (1, -1)]
    np.testing.assert_allclose(reverse, forward, rtol=1e-9)
    np.testing.assert_allclose(forward, (ends[0] - ends[1]) / (2 * e), rtol=1e-6)
    assert abs(forward) > 1e-2


def test_the_variational_rule_refuses_driven_joints():
    system = models.double_pendulum().with_drive("hinge0", position=jnp.sin)
    with pytest.raises(ValueError, match=r"takes no joints driven by laws \('hinge0'\); use another stepper"):
        mb.simulate(system, jnp.zeros(2), duration=0.1, dt=0.1, stepper=VARIATIONAL)
