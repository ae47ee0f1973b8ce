"""The reference frame with its own prescribed motion, and gyrostatic bodies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb

G = 9.81


class Shaken(eqx.Module):
    """A base that turns about z by `rate` t + `gain` t^2 / 2 and rises by `lift` t^2 / 2."""

    rate: jax.Array
    gain: jax.Array
    lift: jax.Array

    def __call__(self, t):
        angle = self.rate * t + 0.5 * self.gain * t**2
        half = 0.5 * angle
        quaternion = jnp.stack([jnp.cos(half), 0.0 * half, 0.0 * half, jnp.sin(half)])
        return mb.Pose(jnp.stack([0.0 * t, 0.0 * t, 0.5 * self.lift * t**2]), quaternion)


def pendulum_on(base, radius=0.0):
    b = mb.Builder(gravity=(0, 0, -G), base_motion=base)
    b.body("bob", mass=2.0, com=(0, 0, -0.7))
    b.joint("hinge", mb.revolute((0, 1, 0)), child="bob", in_parent=mb.Pose((radius, 0, 0)))
    return b.build()


@pytest.mark.contract("S4-02")
def test_pendulum_on_a_turning_rising_base():
    """Angle b about y, com at l (-sin b, 0, -cos b) from a hinge at radius r: Lagrange's equation by hand.

    l b_dd = -(g + z_dd) sin b + w^2 (l sin b - r) cos b. The angular acceleration pulls out of the hinge's plane.
    """
    base, length, radius, angle, t = Shaken(jnp.array(1.3), jnp.array(0.4), jnp.array(2.0)), 0.7, 0.2, 0.6, 0.5
    w = 1.3 + 0.4 * t
    got = mb.forward_dynamics(pendulum_on(base, radius), jnp.array([angle]), jnp.array([0.9]), jnp.zeros(1), (), t)
    expected = (-(G + 2.0) * np.sin(angle) + w**2 * (length * np.sin(angle) - radius) * np.cos(angle)) / length
    np.testing.assert_allclose(got, [expected], rtol=1e-13)


@pytest.mark.slow
def test_base_motion_in_kinematics_and_gradients():
    base, t, h = Shaken(jnp.array(1.3), jnp.array(0.4), jnp.array(2.0)), 0.5, 1e-5
    system, q, v = pendulum_on(base, 0.2), jnp.array([0.6]), jnp.array([0.9])
    k = mb.kinematics(system, q, v, None, t)["bob"]
    ahead, behind = (mb.kinematics(system, q + s * h * v, v, None, t + s * h)["bob"] for s in (1, -1))
    np.testing.assert_allclose((ahead.position - behind.position) / (2 * h), k.velocity[3:], atol=1e-9)
    np.testing.assert_allclose((ahead.velocity - behind.velocity) / (2 * h), k.acceleration, atol=1e-8)

    def a(rate):
        moved = eqx.tree_at(lambda s: s.base_motion.rate, system, rate)
        return mb.forward_dynamics(moved, q, v, jnp.zeros(1), (), t)[0]

    rate = base.rate
    np.testing.assert_allclose(jax.grad(a)(rate), (a(rate + h) - a(rate - h)) / (2 * h), rtol=1e-8)


def test_gravity_force_ignores_the_acceleration_of_the_base():
    system = pendulum_on(Shaken(jnp.array(0.0), jnp.array(0.0), jnp.array(2.0)))
    np.testing.assert_allclose(mb.gravity_force(system, jnp.array([0.6])), [2.0 * G * 0.7 * np.sin(0.6)], rtol=1e-13)


@pytest.mark.slow
@pytest.mark.contract("S4-02")
def test_gyrostat_equals_a_body_with_a_spinning_rotor():
    """A symmetric rotor held at a constant relative speed is an internal angular momentum of its carrier."""
    spin, inertia, rotor = 40.0, np.diag([0.3, 0.5, 0.6]), np.diag([0.02, 0.02, 0.05])
    axis = np.array([0.0, 0.0, 1.0])
    two = mb.Builder(gravity=(0, 0, -G))
    two.body("hull", mass=3.0, com=(0.1, 0, 0), inertia=inertia)
    two.body("rotor", mass=0.4, inertia=rotor)
    two.joint("root", mb.free(), child="hull")
    two.joint("spin", mb.revolute(axis), parent="hull", child="rotor")
    one = mb.Builder(gravity=(0, 0, -G))
    one.body("hull", mass=3.0, com=(0.1, 0, 0), inertia=inertia, rotor_momentum=0.05 * spin * axis)
    one.body("rotor", mass=0.4, inertia=rotor)
    one.joint("root", mb.free(), child="hull")
    one.joint("weld", mb.fixed(), parent="hull", child="rotor")
    pair, gyrostat = two.build(), one.build()
    q, v = mb.random_state(gyrostat, jax.random.key(1))
    force = mb.inverse_dynamics(gyrostat, q, v, jnp.arange(6.0))
    full = mb.inverse_dynamics(pair, jnp.append(q, 0.3), jnp.append(v, spin), jnp.append(jnp.arange(6.0), 0.0))
    np.testing.assert_allclose(force, full[:6], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mb.forward_dynamics(gyrostat, q, v, force), jnp.arange(6.0), atol=1e-12)
    np.testing.assert_allclose(
        mb.momentum(gyrostat, q, v), mb.momentum(pair, jnp.append(q, 0.3), jnp.append(v, spin)), rtol=1e-12
    )


@pytest.mark.slow
def test_gyrostat_keeps_its_angular_momentum():
    b = mb.Builder(gravity=(0, 0, 0))
    b.body("hull", mass=3.0, inertia=np.diag([0.3, 0.5, 0.6]), rotor_momentum=(0.4, -0.2, 1.0))
    b.joint("root", mb.free(), child="hull")
    system = b.build()
    v = jnp.array([0.7, -1.1, 0.4, 0.1, 0.2, 0.3])
    run = mb.simulate(system, system.neutral_q(), v, duration=0.5, dt=1e-2, stepper=mb.RungeKuttaMuntheKaas4())
    p = jax.vmap(mb.momentum, in_axes=(None, 0, 0))(system, run.q, run.v)
    kinetic, _ = jax.vmap(mb.energy, in_axes=(None, 0, 0))(system, run.q, run.v)
    # fourth order: the error falls as (1e-2 * 3 rad/s)^4
    np.testing.assert_allclose(p, jnp.broadcast_to(p[:1], p.shape), atol=1e-7)
    np.testing.assert_allclose(kinetic, kinetic[0], rtol=1e-7)
