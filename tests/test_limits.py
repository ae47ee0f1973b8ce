"""Joint limits: energy books, stability in steps of any size, smoothness, and no trace where they do not act."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd.view.energies import energy_books

RKMK4 = mb.RungeKuttaMuntheKaas4()


@functools.cache
def arm(stiffness=None, damping=0.0, width=None):
    """A hinge between -0.5 and 0.8 rad, and a slide up to 0.1 m on it; the free root flies."""
    b = mb.Builder()
    b.body("base", mass=2.0, inertia=0.1 * np.eye(3))
    b.body("link", mass=1.0, com=(0.0, 0.0, -0.5), inertia=0.02 * np.eye(3))
    b.body("slider", mass=0.5, inertia=0.01 * np.eye(3))
    b.joint("root", mb.free(), child="base")
    b.joint("hinge", mb.revolute((0.0, 1.0, 0.0)), "base", "link", lower=-0.5, upper=0.8)
    b.joint("slide", mb.prismatic((0.0, 0.0, -1.0)), "link", "slider", upper=0.1)
    system = b.build()
    return system if stiffness is None else system.with_limits(stiffness=stiffness, damping=damping, width=width)


Q = jnp.array([1.0, 0, 0, 0, 0, 0, 0, 0.0, 0.0])


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0))
def held(system, q):
    """Slope of the energy and force of the hinge at rest, and the forces of the accelerations that unit forces make."""
    zero = jnp.zeros(8)
    slope = jax.grad(lambda q: mb.energy(system, q, zero)[1])(q)[7]
    a = mb.forward_dynamics(system, q, zero, jnp.ones(8))
    return slope, mb.inverse_dynamics(system, q, zero, zero)[6], mb.inverse_dynamics(system, q, zero, a)


def test_force_is_the_slope_of_the_energy_and_zero_inside():
    """Around every corner of the law: below, in the onset, beyond it, on both sides."""
    angles = np.array([-0.7, -0.55, -0.53, -0.5, 0.0, 0.8, 0.81, 0.85, 1.0])
    states = jnp.tile(Q, (9, 1)).at[:, 7].set(angles)
    slope, force, tau = held(arm(300.0, 0.0, 0.05), states)
    gravity, weight, _ = held(arm(0.0, 0.0, 0.05), states)  # stops without stiffness: the same program
    force = force - weight
    np.testing.assert_allclose(slope - gravity, force, atol=1e-10)
    depth = np.maximum(np.maximum(angles - 0.8, -0.5 - angles), 0)
    law = np.where(depth < 0.05, depth**2 / 0.1, depth - 0.025) * 300.0
    np.testing.assert_allclose(np.abs(force), law, atol=1e-10)
    assert np.all(np.sign(force) == np.sign(np.where(angles > 0.5, law, -law)))
    np.testing.assert_allclose(tau, 1.0, atol=1e-9)


@pytest.mark.slow
def test_energy_books_of_a_bounce():
    """Without damping energy stays, with it what is missing is the dampers' work."""
    v = jnp.zeros(8).at[6].set(4.0).at[7].set(1.0)
    for damping, bound in ((0.0, 2e-6), (2.0, 5e-3)):
        system = arm(2000.0, damping, 0.02).replace({"gravity": (0.0, 0.0, 0.0)})
        run = mb.simulate(system, Q, v, duration=0.4, dt=2e-4, stepper=RKMK4)
        assert run.q[:, 7].max() > 0.8 and run.v[:, 6].min() < -0.5
        books = energy_books(system, np.asarray(run.t), np.asarray(run.q)[None], np.asarray(run.v)[None])
        total = books.kinetic + books.potential
        assert np.abs(books.drift).max() < bound * total.max()
        assert (books.dissipated[0, -1] > 0.1 * total.max()) == (damping > 0)


@functools.partial(jax.jit, static_argnames="dt")
def stopped(system, v, dt):
    return mb.simulate(system, Q, v, duration=1.0, dt=dt)


@pytest.mark.slow
def test_stable_at_any_stiffness_and_step():
    """Explicit steps would need h < 2 sqrt(J / k) = 1e-4 s and less. Nothing grows, depths stay within a step's way.

    A stop that a step cannot resolve takes the joint's speed away, as a plastic impact. (At 1e10 N m/rad a depth of 30
    micrometres, for one step, is as much energy as the motion has: the factor of 2.5.)
    """
    v = jnp.zeros(8).at[6].set(6.0).at[7].set(-2.0)
    stiffness = jnp.array([1e2, 1e4, 1e6, 1e8, 1e10])
    for dt in (1e-3, 1e-2):
        systems = jax.vmap(lambda k: arm(1.0).with_limits(k, 0.01 * k).replace({"gravity": jnp.zeros(3)}))(stiffness)
        runs = jax.vmap(lambda system, dt=dt: stopped(system, v, dt=dt))(systems)
        energy = jax.vmap(jax.vmap(lambda s, q, v: sum(mb.energy(s, q, v)), (None, 0, 0)))(systems, runs.q, runs.v)
        assert np.isfinite(runs.q).all()
        relative = np.asarray(energy / energy[:, :1])
        assert relative.max() < 2.5
        assert relative[:, len(relative[0]) // 2 :].max() < 1 + 10 * dt
        assert np.max(runs.q[2:, :, 7]) < 0.8 + 6.0 * dt
        assert np.max(runs.q[:, :, 8]) < 0.2


@pytest.mark.slow
def test_gradients_through_a_stop():
    """Reverse mode against differences, through the onset and for the stop's own numbers, and finite at the corners."""

    def end(numbers):
        q, k, d, upper = numbers
        system = arm(1.0).with_limits(k, d).replace({"hinge.upper": upper})
        run = mb.simulate(system, q, jnp.zeros(8).at[6].set(3.0), duration=0.5, dt=1e-2, record=())
        return run.end.q[7] + 0.1 * run.end.v[7]

    end = jax.jit(jax.value_and_grad(end))
    numbers = (Q.at[7].set(0.4), jnp.array(500.0), jnp.array(3.0), jnp.array(0.8))
    way = (jnp.zeros(9).at[7].set(1.0), jnp.array(40.0), jnp.array(-1.0), jnp.array(0.7))
    gradient = end(numbers)[1]
    along = sum(jnp.vdot(g, w) for g, w in zip(gradient, way, strict=True))
    e = 1e-6
    sides = [end(jax.tree.map(lambda x, w, s=s: x + s * e * w, numbers, way))[0] for s in (1, -1)]
    np.testing.assert_allclose(along, (sides[0] - sides[1]) / (2 * e), rtol=1e-5)
    force = jax.grad(lambda q: mb.inverse_dynamics(arm(1e3), q, jnp.zeros(8), jnp.zeros(8))[6])
    assert np.isfinite(jax.vmap(force)(jnp.tile(Q, (3, 1)).at[:, 7].set(jnp.array([-0.5, 0.8, 0.81])))).all()


def test_systems_without_limits_have_the_program_of_before():
    """Not a number, an operation or a leaf more: recorded limits alone leave no trace in the compiled program."""
    free = arm()
    assert len(jax.tree.leaves(arm(1.0))) == len(jax.tree.leaves(free)) + 3
    v = jnp.zeros(8)

    def text(system):
        return str(jax.make_jaxpr(mb.forward_dynamics)(system, Q, v, v))

    assert text(free) == text(arm(1.0).without_passive_forces()) != text(arm(1.0))


def test_paths_and_refusals():
    system = arm(100.0, 5.0)
    assert system.without_limits().limit_width is None
    with pytest.raises(ValueError, match="cannot be taken apart and built anew. Take system.without_limits"):
        mb.lock(system, {"slide": 0.0})
    with pytest.raises(ValueError, match="expected zero or more"):
        system.replace({"hinge.limit_damping": -1.0})
    assert float(system.get("slide.limit_width")) == 1e-3
    assert float(system.replace({"hinge.limit_stiffness": 7.0}).get("hinge.limit_stiffness")) == 7.0
    with pytest.raises(KeyError, match=r"There is no limit_stiffness: limits do not act; use system.with_limits"):
        arm().get("hinge.limit_stiffness")
    with pytest.raises(ValueError, match="stiffness of the limits is -1.0; expected zero or more"):
        arm().with_limits(stiffness=-1.0)
    with pytest.raises(ValueError, match="width of the limits is 0.0; expected more than zero"):
        arm().with_limits(stiffness=1.0, width=0.0)
    with pytest.raises(ValueError, match=r"damping has shape \(3,\); expected one number or \(8,\)"):
        arm().with_limits(stiffness=1.0, damping=jnp.ones(3))
    b = mb.Builder()
    b.body("ball", mass=1.0, inertia=np.eye(3))
    b.joint("socket", mb.spherical(), child="ball", upper=1.0)
    with pytest.raises(ValueError, match="Joint 'socket' is spherical and has limits; they cannot act"):
        b.build().with_limits(stiffness=1.0)


def test_acting_limits_are_scaled_and_not_lost_in_files(tmp_path):
    """Stiffness of a hinge is a moment an angle: twice the length and three times the mass make it 12-fold."""
    scaled = mb.scale(arm(100.0, 5.0), length=2.0, mass=3.0)
    np.testing.assert_allclose(scaled.get("hinge.limit_stiffness"), 1200.0)
    np.testing.assert_allclose(scaled.get("slide.limit_width"), 2e-3)
    mb.save(arm(100.0, 5.0), tmp_path / "arm.jaxmbd")
    kept = mb.load(tmp_path / "arm.jaxmbd")
    for name in ("limit_stiffness", "limit_damping", "limit_width"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(arm(100.0, 5.0), name), err_msg=name)
