"""Steppers beyond the two of test_order.py: order, what is conserved, stiff systems, derivatives through the roots.

The tree is that of test_order.py: a free, a ball and a screw joint, with rates of about 5 rad/s.
"""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_order import RKMK4, exact_end, final, mixed, slope_of, started

import jaxmbd as mb
from jaxmbd import models
from jaxmbd.constraints.rows import residual
from jaxmbd.drives import driven_motion
from jaxmbd.mechanism import Mechanism
from jaxmbd.packing import pack

VARIATIONAL = mb.VariationalMidpoint()


@pytest.mark.parametrize(
    ("stepper", "order", "steps"),
    [
        (mb.PredictorCorrector(), 2, (40, 160)),
        pytest.param(mb.PredictorCorrector(corrections=1), 2, (80, 320), marks=pytest.mark.slow),
        pytest.param(VARIATIONAL, 2, (40, 160), marks=pytest.mark.slow),
        pytest.param(mb.Newmark(), 2, (20, 80), marks=pytest.mark.slow),
        pytest.param(mb.SDIRK3(), 3, (20, 80), marks=pytest.mark.slow),
    ],
    ids=["predictor-corrector", "one correction", "variational", "Newmark", "SDIRK3"],
)
def test_order_of_convergence(stepper, order, steps):
    """The slope of the error against the fourth-order method in tiny steps; forces depend on time and velocity."""
    slope, error = slope_of(stepper, steps)
    assert error > 1e-10
    assert abs(slope - order) < 0.1, (slope, error)


# --------------------------------------------------------------------------------------------------- conservation


def books(system, q, v):
    """Momentum about the origin, and energy."""
    p, c = mb.momentum(system, q, v), mb.com(system, q)
    return jnp.concatenate([p[:3] + jnp.cross(c, p[3:]), p[3:], sum(mb.energy(system, q, v))[None]])


@pytest.mark.slow
def test_variational_midpoint_keeps_the_momentum_of_free_flight():
    """To rounding: some 5e-15 in each of 1000 steps, on momenta that are sums of a few times larger numbers."""
    system = mixed().replace({"gravity": (0.0, 0.0, 0.0)})
    states = [started(5)]
    for _ in range(5):
        states.append(final(VARIATIONAL, system, *states[-1], 0.4, 200, 0.0))
    kept = np.stack([books(system, *state) for state in states])
    momentum, energy = kept[:, :6], kept[:, 6]
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
    for stepper, h, blocks in ((mb.VariationalMidpoint(10), 0.02, 1000), (RKMK4, 0.08, 250)):
        energy = np.asarray(swung(stepper, blocks, h))
        rise = np.polyfit(np.linspace(0, 1, len(energy)), energy, 1)[0]
        spread = np.ptp(energy - np.linspace(0, 1, len(energy)) * rise)
        assert (abs(rise) < spread / 20) == (stepper is not RKMK4), (stepper, rise, spread)


@pytest.mark.slow
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


@pytest.mark.slow
def test_midpoint_rule_keeps_a_quadratic_energy():
    """A mass on a spring is linear: implicit midpoint and Newmark's average acceleration keep its energy exactly.

    Each step turns the phase by 2 atan(w h / 2), which makes them of second order.
    """
    b = mb.Builder(gravity=(0.0, 0.0, 0.0))
    b.body("mass", mass=2.0)
    b.joint("slide", mb.prismatic((1.0, 0.0, 0.0)), child="mass", stiffness=50.0)
    system = b.build()
    mechanism = Mechanism(system, pack(system), lambda t, q, v: jnp.zeros(1))
    start = jnp.array([0.3]), jnp.array([1.0])

    @functools.partial(jax.jit, static_argnums=0)
    def end(stepper, state):
        return jax.lax.fori_loop(0, 201, lambda i, x: stepper.step(mechanism, 0.0, *x, 0.1)[:2], state)

    for stepper in (mb.ImplicitMidpoint(), mb.Newmark()):
        q, v = end(stepper, start)
        phase = 201 * 2 * np.arctan(0.25)  # w = 5 rad/s
        expected = 0.3 * np.cos(phase) + 0.2 * np.sin(phase), np.cos(phase) - 1.5 * np.sin(phase)
        np.testing.assert_allclose((q[0], v[0]), expected, rtol=1e-11, err_msg=type(stepper).__name__)


# --------------------------------------------------------------------------------- variational: laws and closed loops


@functools.cache
def five_bar(law=True):
    """Two freedoms; with the law the crank turns as it says. And a state on it, at the time zero."""
    b = mb.Builder()
    hinge = mb.revolute(mb.linkages.TURN)
    for name, length in (("crank", 0.4), ("half", 0.5), ("coupler", 0.5), ("rocker", 0.8)):
        b.body(name, length, (length / 2, 0, 0), np.eye(3) * 0.1 * length)
    b.joint("A", hinge, "world", "crank")
    b.joint("B", hinge, "crank", "half", in_parent=mb.Pose((0.4, 0, 0)))
    b.joint("E", hinge, "half", "coupler", in_parent=mb.Pose((0.5, 0, 0)))
    b.joint("D", hinge, "world", "rocker", in_parent=mb.Pose((1.1, 0, 0)))
    b.joint("C", hinge, "coupler", "rocker", in_parent=mb.Pose((0.5, 0, 0)), in_child=mb.Pose((0.8, 0, 0)), cut=True)
    system = b.build()
    at = mb.assemble(system, jnp.array([0.6, -0.3, 0.2, 1.4]), jnp.array([2.0, 0, 0.5, 0]), fixed=("A", "E"))
    if not law:
        return system, at.q, at.v
    return system.with_drive("A", position=Crank(jnp.array(2.0))), at.q, at.v


class Crank(eqx.Module):
    """0.6 + rate t + t^2 / 2."""

    rate: jax.Array

    def __call__(self, t):
        return 0.6 + self.rate * t + 0.5 * t**2


@pytest.mark.slow
def test_variational_steps_of_a_driven_closed_loop():
    """A five-bar whose crank follows a law: second order; the loop is closed without projection, redundant rows too."""
    system, *start = five_bar()
    exact = final(RKMK4, system, *start, 0.3, 400, 1.0)
    errors = []
    for n in (15, 60):
        end = final(VARIATIONAL, system, *start, 0.3, n, 1.0)
        errors.append(max(np.abs(x - y).max() for x, y in zip(end, exact, strict=True)))
        np.testing.assert_allclose(end[0][0], 0.6 + 2.0 * 0.3 + 0.5 * 0.3**2, rtol=1e-14)
        assert np.abs(residual(system, pack(system), end[0], 0.3)).max() < 1e-9
    assert abs(np.log(errors[0] / errors[1]) / np.log(4) - 2) < 0.1, errors


@pytest.mark.slow
def test_variational_steps_of_driven_rotations():
    """A ball joint turned by a law and a screw whose speed is given, on a free body: second order."""

    def turn(t):
        half = 0.5 * jnp.sin(2 * t) * jnp.array([0.6, 0.0, 0.8])
        return jnp.concatenate([jnp.sqrt(1.0 - half @ half)[None], half])

    system = mixed().with_drive("shoulder", position=turn).with_drive("thread", speed=lambda t: 3.0 * jnp.cos(4 * t))
    start = driven_motion(system, *started(), jnp.zeros(()))[:2]
    exact = final(RKMK4, system, *start, 0.2, 200, 1.0)
    errors = []
    for n in (20, 80):
        q, v = final(VARIATIONAL, system, *start, 0.2, n, 1.0)
        errors.append(max(np.abs(mb.difference(system, exact[0], q)).max(), np.abs(v - exact[1]).max()))
    assert abs(np.log(errors[0] / errors[1]) / np.log(4) - 2) < 0.1, errors


@pytest.mark.slow
def test_variational_energy_of_a_closed_loop():
    """A free five-bar swings for 4000 steps: the energy's error comes and goes, and stays small; the loop stays closed.

    The motion is chaotic, and the error largest in the instants in which the linkage is nearly stretched.
    """
    system, q, v = five_bar(law=False)
    start = float(sum(mb.energy(system, q, v)))
    errors, kinetic = [], []
    for _ in range(8):
        q, v = final(VARIATIONAL, system, q, v, 1.25, 500, 0.0)
        energy = mb.energy(system, q, v)
        kinetic.append(float(energy[0]))
        errors.append(abs(float(sum(energy)) - start))
    assert np.median(errors) < 5e-4 * max(kinetic), (errors, kinetic)
    assert max(errors) < 1e-2 * max(kinetic), (errors, kinetic)
    assert np.abs(residual(system, pack(system), q, jnp.zeros(()))).max() < 1e-9


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
    exact_q, exact_v = exact_end()
    q_n, v_n = final(mb.Newmark(), system, *started(), 0.4, 200, 1.0)
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


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _slopes(stepper, model, forward, x, way):
    """Value, gradient, and where asked for the forward derivative along a way: one program."""

    def loss(x):
        system, q, v = model(x)
        run = mb.simulate(system, q, v, duration=0.06, dt=0.02, stepper=stepper, drift=None, remat=False, record=())
        return jnp.sum(run.end.q**2) + 0.1 * jnp.sum(run.end.v**2)

    value, gradient = jax.value_and_grad(loss)(x)
    return value, gradient, jax.jvp(loss, (x,), (way,))[1] if forward else gradient @ way


def damped_pair(x):
    """A double pendulum from a mass, a length, dampers and its state."""
    system = models.double_pendulum((1.0, 0.7), (0.9, 0.6)).replace({"link1.mass": x[0]})
    system = system.replace({"hinge1.in_parent.position": x[1] * jnp.array([0.0, 0.0, -1.0])})
    return dataclasses.replace(system, damping=x[2:4]), x[4:6], x[6:8]


PAIR = jnp.array([0.7, 0.9, 0.3, 0.2, 0.7, -0.4, 0.5, 1.0])


def driven_five_bar(x):
    """By the crank's rate, the coupler's mass and the elbow's speed."""
    system, q, v = five_bar()
    system = eqx.tree_at(lambda s: s.drives[0].rate, system, x[0]).replace({"coupler.mass": x[1]})
    return system, q, v * x[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stepper", "model", "forward"),
    [
        (VARIATIONAL, driven_five_bar, False),
        (VARIATIONAL, damped_pair, False),
        (mb.SDIRK3(), damped_pair, False),
        (mb.Newmark(), damped_pair, True),
        (mb.PredictorCorrector(), damped_pair, False),
        (mb.SemiImplicitEuler(corrections=1), damped_pair, False),
        (mb.RungeKuttaMuntheKaas4(), damped_pair, True),
        (mb.CommutatorFree4(), damped_pair, False),
    ],
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
def test_derivatives_through_the_steps(stepper, model, forward):
    """Reverse mode against central differences, for masses, lengths, dampers, laws, states; and forward mode.

    Differences of step e err by e^2 times the third derivative plus rounding / e: 1e-8 at e = 1e-5. Reverse mode
    transposes forward mode, which is compared once for every kind of root. (The implicit midpoint rule shares SDIRK3's
    code; plain semi-implicit Euler's gradient is in test_order.py.)
    """
    x = jnp.array([2.0, 0.5, 1.0]) if model is driven_five_bar else PAIR
    way, e = jnp.asarray(np.random.default_rng(0).normal(size=len(x))), 1e-5
    _, gradient, along = _slopes(stepper, model, forward, x, way)
    ends = [_slopes(stepper, model, forward, x + s * e * way, way)[0] for s in (1, -1)]
    np.testing.assert_allclose(gradient @ way, along, rtol=1e-9)
    np.testing.assert_allclose(along, (ends[0] - ends[1]) / (2 * e), rtol=1e-6)
    assert abs(along) > 1e-2


def test_what_has_no_action_is_refused():
    b = mb.Builder()
    b.body("wheel", 1.0, inertia=np.diag([0.1, 0.2, 0.1]))
    b.joint("root", mb.free(), child="wheel")
    b.constraint("roll", mb.rolling_disc(0.5), frames=("world", "wheel"))
    wheel = b.build()
    with pytest.raises(ValueError, match=r"takes no constraints on velocities \('roll'\); use another stepper"):
        mb.simulate(wheel, wheel.neutral_q(), duration=0.1, dt=0.1, stepper=VARIATIONAL)
    b = mb.Builder()
    b.body("disc", 1.0, inertia=np.eye(3))
    b.joint("roll", mb.mapped(lambda q: mb.Pose(jnp.zeros(3).at[0].set(q[0])), 1, N=lambda q: jnp.eye(1)), child="disc")
    with pytest.raises(ValueError, match=r"no joints with an N\(q\) of their own \('roll'\).*Use another stepper"):
        mb.simulate(b.build(), jnp.zeros(1), duration=0.1, dt=0.1, stepper=VARIATIONAL)
