"""Generalised alpha and Radau IIA: order, damping, constraints kept without projection, derivatives.

Trees and closed loops; the exact motion is that of the fourth-order explicit method in small steps.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import models
from jaxmbd.constraints.rows import rates, residual
from jaxmbd.integrate.radau import radau
from jaxmbd.integrate.steppers import RememberingStepper
from jaxmbd.packing import pack
from jaxmbd.simulate import Mechanism

RKMK4, ALPHA = mb.RungeKuttaMuntheKaas4(), mb.GeneralizedAlpha(0.6)


@functools.cache
def four_bar():
    """A four-bar that swings, with one redundant row in its plane and two idle ones, and a state on it."""
    system = mb.linkages.four_bar()
    at = mb.assemble(system, jnp.array([0.6, -0.3, 1.4]), jnp.array([2.0, 0.0, 0.0]), fixed=("A",))
    return system, at.q, at.v


@functools.partial(jax.jit, static_argnums=0)
def final(stepper, system, q, v, duration, steps):
    """End of a run without treatment of drift; the number of steps is data: one program for all step sizes."""
    h = duration / steps
    mechanism = Mechanism(system, pack(system), lambda t, q, v: 0.3 * jnp.sin(3 * t) * jnp.ones(len(v)) - 0.1 * v)

    def body(i, state):
        if isinstance(stepper, RememberingStepper):
            q, v, _, past = stepper.advance(mechanism, i * h, *state[:2], h, state[2])
            return q, v, past
        return *stepper.step(mechanism, i * h, *state[:2], h)[:2], None

    past = stepper.start(v) if isinstance(stepper, RememberingStepper) else None
    return jax.lax.fori_loop(0, steps, body, (q, v, past))[:2]


@functools.cache
def exact_end():
    return final(RKMK4, *four_bar(), 0.4, 800)


@pytest.mark.parametrize(
    ("stepper", "order", "steps"),
    [
        pytest.param(mb.RadauIIA(), 3, (20, 80), marks=pytest.mark.slow),
        pytest.param(mb.RadauIIA(3), 5, (10, 30), marks=pytest.mark.slow),
        pytest.param(ALPHA, 2, (100, 400), marks=pytest.mark.slow),
    ],
    ids=["Radau 2", "Radau 3", "alpha"],
)
def test_order_on_a_closed_loop(stepper, order, steps):
    """The slope of the error in q and v, forces depending on time and velocity; nothing is projected."""
    errors = []
    for n in steps:
        ends = final(stepper, *four_bar(), 0.4, n)
        errors.append(max(np.abs(np.asarray(x) - y).max() for x, y in zip(ends, exact_end(), strict=True)))
    slope = np.log(errors[0] / errors[1]) / np.log(steps[1] / steps[0])
    assert errors[1] > 1e-11
    assert abs(slope - order) < 0.15, (slope, errors)


@pytest.mark.slow
@pytest.mark.parametrize(("stepper", "order", "steps"), [(mb.RadauIIA(), 3, (20, 80)), (ALPHA, 2, (100, 400))], ids=str)
def test_order_on_rotations(stepper, order, steps):
    """The same for a tree of a free, a ball and a screw joint."""
    from test_order import mixed, started

    system, (q, v) = mixed(), started()
    exact_q, exact_v = final(RKMK4, system, q, v, 0.4, 800)
    errors = []
    for n in steps:
        q_n, v_n = final(stepper, system, q, v, 0.4, n)
        errors.append(max(np.abs(mb.difference(system, exact_q, q_n)).max(), np.abs(v_n - exact_v).max()))
    slope = np.log(errors[0] / errors[1]) / np.log(steps[1] / steps[0])
    assert abs(slope - order) < 0.15, (slope, errors)


# ----------------------------------------------------------------------------------------------- generalised alpha


def oscillator(stiffness):
    b = mb.Builder(gravity=(0.0, 0.0, 0.0))
    b.body("mass", mass=1.0)
    b.joint("slide", mb.prismatic((1.0, 0.0, 0.0)), child="mass", stiffness=stiffness)
    return b.build()


@jax.jit
def amplification(stepper, system, h):
    """Matrix of one step of a linear system, on (q, v, a)."""
    mechanism = Mechanism(system, pack(system), lambda t, q, v: jnp.zeros_like(v))

    def step(x):
        q, v, _, (a, _) = stepper.advance(mechanism, 0.0, x[:1], x[1:2], h, (x[2:], jnp.zeros((), bool)))
        return jnp.concatenate([q, v, a])

    return jax.jacfwd(step)(jnp.zeros(3))


@pytest.mark.slow
def test_spectral_radius_is_the_one_asked_for():
    """Chung & Hulbert (1993): motion much faster than the step is multiplied by the radius, slow motion is kept.

    The three eigenvalues meet at infinite frequency, where they err by the cube root of rounding.
    """
    for radius in (0.0, 0.5, 0.8, 1.0):
        fast = amplification(mb.GeneralizedAlpha(radius), oscillator(1e12), 0.1)
        eigenvalues = np.abs(np.linalg.eigvals(fast))
        np.testing.assert_allclose(eigenvalues.max(), radius, atol=2e-3)
        slow = np.abs(np.linalg.eigvals(amplification(mb.GeneralizedAlpha(radius), oscillator(1.0), 0.1)))
        assert 1 - 2e-4 < slow.max() < 1 + 1e-12  # damping is of order (w h)^3 and less


@pytest.mark.slow
def test_newmark_is_a_special_case():
    system = models.double_pendulum()
    start = system, jnp.array([0.5, -0.3]), jnp.array([1.0, 0.2])
    alpha = mb.GeneralizedAlpha(alpha_m=0.0, alpha_f=0.0, beta=0.25, gamma=0.5)
    ours, theirs = (mb.simulate(*start, duration=0.4, dt=0.02, stepper=s).q for s in (alpha, mb.Newmark()))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_run_in_two_pieces_is_the_run():
    """The acceleration of its own goes along in the state at the end, from which a run is resumed."""
    system = models.double_pendulum()
    q, v = jnp.array([0.5, -0.3]), jnp.array([1.0, 0.2])
    run = functools.partial(mb.simulate, system, dt=0.02, stepper=ALPHA)
    whole, first = run(q, v, duration=0.4), run(q, v, duration=0.2)
    second = run(first.end, duration=0.2)
    np.testing.assert_allclose(second.q[-1], whole.q[-1], rtol=0, atol=1e-14)
    anew = run(first.end.q, first.end.v, duration=0.2)  # not the same: the acceleration starts anew
    assert np.abs(anew.q[-1] - whole.q[-1]).max() > 1e-9


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"The spectral radius is 1.2; expected 0 \(damps all that is fast\) to 1"):
        mb.GeneralizedAlpha(1.2)
    with pytest.raises(ValueError, match="with 4 stages was asked for; expected 2 or 3"):
        mb.RadauIIA(4)
    system, event = models.double_pendulum(), mb.Event(lambda t, q, v: q[0])
    with pytest.raises(ValueError, match="hands numbers from step to step, which simulate_events cannot follow"):
        mb.simulate_events(system, jnp.zeros(2), events=[event], duration=0.1, dt=0.1, stepper=ALPHA)
    with pytest.raises(ValueError, match="which gradient_growth cannot follow"):
        mb.gradient_growth(system, jnp.zeros(2), duration=0.1, dt=0.1, stepper=ALPHA)


# -------------------------------------------------------------------------------------------------------- Radau IIA


def test_coefficients_of_radau():
    """Hairer & Wanner (1996), Table IV.5.6: three stages of order 5."""
    r = np.sqrt(6)
    A, c = radau(3)
    np.testing.assert_allclose(c, [(4 - r) / 10, (4 + r) / 10, 1], rtol=1e-14)
    np.testing.assert_allclose(A[2], [(16 - r) / 36, (16 + r) / 36, 1 / 9], rtol=1e-13)
    np.testing.assert_allclose(A[0, 1], (296 - 169 * r) / 1800, rtol=1e-12)
    np.testing.assert_allclose(radau(2)[0], [[5 / 12, -1 / 12], [3 / 4, 1 / 4]], rtol=1e-14)


def off(system, q, v, t=0.0):
    """Largest residual on position and on velocity level."""
    packed = pack(system)
    return jnp.stack([jnp.abs(residual(system, packed, q, t)).max(), jnp.abs(rates(system, packed, q, v, t)).max()])


@pytest.mark.slow
def test_redundant_spatial_loop_stays_closed_without_projection():
    """Bennett's linkage: three of five rows are redundant. Position and velocity rows hold at every step."""
    system = mb.linkages.bennett()
    at = mb.assemble(system, jnp.array([0.8, -3.4, -0.8]), jnp.array([1.0, 0.0, 0.0]), fixed=("hinge0",))
    run = mb.simulate(system, at.q, at.v, duration=1.0, dt=0.02, stepper=mb.RadauIIA(), drift=None)
    sizes = jax.vmap(functools.partial(off, system))(run.q, run.v)
    assert sizes.max() < 1e-10, sizes.max(0)  # what four iterations leave where the motion is fastest
    energy = np.sum(jax.vmap(mb.energy, (None, 0, 0))(system, run.q, run.v), 0)
    assert np.ptp(energy) < 1e-4 * np.abs(energy).max()
    assert np.abs(run.q[-1] - run.q[0]).max() > 0.5


@pytest.mark.slow
def test_rolling_and_driven_loops():
    """Non-holonomic rows against the fourth-order method, and a loop whose crank follows a law against its assembly."""
    b = mb.Builder()
    b.body("wheel", 1.0, inertia=np.diag([0.1, 0.2, 0.1]))
    b.joint("root", mb.free(), child="wheel")
    b.constraint("roll", mb.rolling_disc(0.5), frames=("world", "wheel"))
    wheel = b.build()
    lean = mb.Pose.from_rpy((0.0, 0.0, 0.5), (0.2, 0.0, 0.1)).quaternion
    at = mb.assemble(wheel, jnp.concatenate([lean, jnp.array([0.0, 0.0, 0.5])]), jnp.array([0.1, 4.0, 0, 2, 0, 0]))
    crank = mb.linkages.four_bar().with_drive("A", position=lambda t: 0.6 + 2.0 * t + 0.5 * t**2)
    start = mb.assemble(crank, *four_bar()[1:])
    swung = functools.partial(mb.simulate, duration=0.5, dt=0.01, stepper=mb.RadauIIA(3), drift=None)
    rolled, turned = swung(wheel, at.q, at.v), swung(crank, start.q, start.v)
    exact = mb.simulate(wheel, at.q, at.v, duration=0.5, dt=0.0025, stepper=RKMK4)
    given = mb.assemble(crank, turned.q[-1], turned.v[-1], t=0.5)  # the law leaves the loop no freedom
    for system, run, q, v in ((wheel, rolled, exact.q[-1], exact.v[-1]), (crank, turned, given.q, given.v)):
        np.testing.assert_allclose(run.q[-1], q, atol=2e-8)
        np.testing.assert_allclose(run.v[-1], v, atol=2e-7)
        assert np.max(off(system, run.q[-1], run.v[-1], 0.5)) < 1e-10
    np.testing.assert_allclose(turned.q[-1, 0], 0.6 + 2.0 * 0.5 + 0.5 * 0.5**2, rtol=1e-12)


@pytest.mark.slow
def test_stiff_loop_in_large_steps():
    """A spring of 1e8 N m/rad on a hinge of a five-bar (period under 1 ms) is damped away within steps of 10 ms."""
    b = mb.Builder()
    hinge = mb.revolute(mb.linkages.TURN)
    for name, length in (("crank", 0.4), ("half", 0.5), ("coupler", 0.5), ("rocker", 0.8)):
        b.body(name, length, (length / 2, 0, 0), np.eye(3) * 0.1 * length)
    b.joint("A", hinge, "world", "crank")
    b.joint("B", hinge, "crank", "half", in_parent=mb.Pose((0.4, 0, 0)))
    b.joint("stiff", hinge, "half", "coupler", in_parent=mb.Pose((0.5, 0, 0)), stiffness=1e8)
    b.joint("D", hinge, "world", "rocker", in_parent=mb.Pose((1.1, 0, 0)))
    b.joint("C", hinge, "coupler", "rocker", in_parent=mb.Pose((0.5, 0, 0)), in_child=mb.Pose((0.8, 0, 0)), cut=True)
    system = b.build()
    at = mb.assemble(system, jnp.array([0.6, -0.3, 1e-4, 1.4]), jnp.array([2.0, 0, 0, 0]), fixed=("A", "stiff"))
    run = mb.simulate(system, at.q, at.v, duration=0.5, dt=0.01, stepper=mb.RadauIIA(), drift=None)
    assert np.abs(run.q[25:, 2]).max() < 1e-6
    assert np.max(off(system, run.q[-1], run.v[-1])) < 1e-10


# ------------------------------------------------------------------------------------------------------ derivatives


@functools.cache
def tethered():
    """A body on a ball joint whose tip hangs on a rod: rotations with one row, and a state on it."""
    b = mb.Builder()
    b.body("top", 2.0, (0.1, 0.0, 0.4), np.diag([0.3, 0.25, 0.1]))
    b.joint("ball", mb.spherical(), child="top")
    b.frame("tip", "top", mb.Pose((0.0, 0.1, 0.8)))
    b.frame("hook", "world", mb.Pose((0.5, 0.0, 1.0)))
    b.constraint("rod", mb.distance(0.6), frames=("hook", "tip"))
    system = b.build()
    at = mb.assemble(system, jnp.array([1.0, 0.1, 0.0, 0.1]), jnp.array([1.0, 0.5, 3.0]))
    return system, at.q, at.v


def loss(stepper, start, x):
    """Of a swing that starts x[0] times as fast with a body that is x[1] times as heavy."""
    system, q, v = start
    system = system.replace({"top.mass": 2.0 * x[1]})
    run = mb.simulate(system, q, x[0] * v, duration=0.15, dt=0.05, stepper=stepper, drift=None)
    return jnp.sum(run.q[-1] * jnp.arange(4)) + 0.1 * jnp.sum(run.v[-1] ** 2)


@functools.partial(jax.jit, static_argnums=0)
def slopes(stepper, start, x):
    """Value, gradient and one directional derivative: a single program."""
    f = functools.partial(loss, stepper, start)
    return *jax.value_and_grad(f)(x), jax.jvp(f, (x,), (jnp.array([0.6, 0.8]),))[1]


@pytest.mark.slow
@pytest.mark.parametrize("stepper", [mb.RadauIIA(), ALPHA], ids=["Radau", "alpha"])
def test_derivatives_through_the_steps(stepper):
    """Reverse and forward mode agree with each other and with central differences (1e-8 at e = 1e-5)."""
    x, e, start = jnp.array([1.0, 1.0]), 1e-5, tethered()
    _, reverse, forward = slopes(stepper, start, x)
    np.testing.assert_allclose(reverse @ jnp.array([0.6, 0.8]), forward, rtol=1e-9)
    for i in range(2):
        step = jnp.zeros(2).at[i].set(e)
        difference = (slopes(stepper, start, x + step)[0] - slopes(stepper, start, x - step)[0]) / (2 * e)
        np.testing.assert_allclose(reverse[i], difference, rtol=1e-6)
        assert abs(reverse[i]) > 1e-2
