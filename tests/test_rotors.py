"""Rotors: geared ones as bodies behind a coupling, beside their inertia reflected as armature; momentum h(t).

Lagrange's equations by hand. A rotor of spin inertia J turns n times as fast as the joint, on a carrier that turns with
angular velocity w about the rotor's axis a: T = J (w.a + n qdot)^2 / 2. The armature n^2 J keeps the last square alone,
the carrier's inertia holds the first; the product J n qdot w.a, and the moment w x h of the spin, only the body has.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import elements as el

J, N = 2e-4, -60.0
CARRIER, LINK = 0.3, 0.05  # inertias about every axis


@cache
def machine(axis, exact):
    """A turntable (about z) that carries a hinge about `axis` with a balanced link, and a geared motor beside it."""
    b = mb.Builder(gravity=(0, 0, 0))
    rotor = np.diag([J] * 3)
    b.body("table", 1.0, inertia=CARRIER * np.eye(3) + (0.0 if exact else rotor))
    b.joint("yaw", mb.revolute((0, 0, 1)), child="table")
    b.body("link", 1.0, inertia=LINK * np.eye(3))
    b.joint("hinge", mb.revolute(axis), "table", "link", armature=0.0 if exact else N**2 * J)
    if exact:
        b.body("rotor", 0.1, inertia=rotor)
        b.joint("motor", mb.revolute(axis), "table", "rotor")
        b.couple("motor", "hinge", ratio=N)
    return b.build()


@pytest.mark.parametrize("axis", [(0.0, 0.0, 1.0), (1.0, 0.0, 0.0)], ids=["parallel", "across"])
def test_mass_matrix_of_a_geared_rotor(axis):
    """n^2 J at the joint either way; n J between carrier and joint where their axes have a common part."""
    common = axis[2]
    expected = np.array([[CARRIER + LINK + J, LINK * common], [LINK * common, LINK + N**2 * J]])
    q = jnp.array([0.3, 0.7])
    np.testing.assert_allclose(mb.mass_matrix(machine(axis, False), q), expected, rtol=1e-12, atol=1e-15)
    expected[0, 1] = expected[1, 0] = LINK * common + N * J * common
    np.testing.assert_allclose(mb.mass_matrix(machine(axis, True), q), expected, rtol=1e-12, atol=1e-15)


def test_gyroscopic_moment_of_a_geared_rotor():
    """Hinge across the turntable's axis: the spin n qdot is turned at the yaw rate; the bearing holds w x h."""
    axis = (1.0, 0.0, 0.0)
    q, v, tau = jnp.array([0.0, 0.0]), jnp.array([1.5, 2.0]), jnp.array([0.1, 0.4])
    models = [machine(axis, exact) for exact in (True, False)]
    exact, reflected = (mb.reactions(model, q, v, tau)["yaw"].wrench[:3] for model in models)
    a = [mb.forward_dynamics(model, q, v, tau) for model in models]
    np.testing.assert_allclose(*a, rtol=1e-12)
    h, h_rate = J * N * 2.0 * np.array(axis), J * N * float(a[0][1]) * np.array(axis)
    np.testing.assert_allclose(exact - reflected, np.cross([0, 0, 1.5], h) + h_rate, atol=1e-12)
    assert abs((exact - reflected)[1]) > 0.03


@pytest.mark.slow
@pytest.mark.contract("S4-02")
def test_a_rotor_whose_momentum_is_a_function_of_time():
    """Momentum h(t) in a carrier against the wheel as a body on a joint driven at its speed: the same motion, exactly.

    At one state also against Euler's equation of a gyrostat, I w' + w x (I w + h) + h' = 0.
    """
    wheel, carrier = np.diag([0.02, 0.02, 0.03]), np.diag([0.3, 0.4, 0.5])
    at, law = np.array([0.1, -0.2, 0.3]), mb.laws.Sine(40.0, 3.0, mean=100.0)
    turn = mb.Pose((0.0, 0.0, 0.0), (0.9, 0.1, 0.2, -0.3))
    R = np.asarray(turn.rotation)

    def free(with_body):
        b = mb.Builder(gravity=(0, 0, 0))
        b.body("craft", 2.0, inertia=carrier)
        b.joint("root", mb.free(), child="craft")
        b.body("wheel", 0.5, inertia=wheel)
        joint = mb.driven(mb.revolute((0, 0, 1)), speed=law) if with_body else mb.fixed()
        b.joint("axle", joint, "craft", "wheel", mb.Pose(at, turn.quaternion))
        return b.build()

    exact, gyrostat = free(True), free(False)
    axis = R @ np.array([0.0, 0.0, 1.0])
    rotor = el.Rotor("craft", lambda t: wheel[2, 2] * law(t) * axis)
    q, v = gyrostat.neutral_q(), jnp.array([0.3, -0.2, 0.5, 0.1, 0.2, 0.3])
    steps = {"duration": 0.2, "dt": 2e-3, "stepper": mb.RungeKuttaMuntheKaas4()}
    one = mb.simulate(exact, jnp.append(q, 0.0), jnp.append(v, law(0.0)), **steps)
    two = mb.simulate(gyrostat, q, v, forces=(rotor,), **steps)
    assert float(jnp.abs(two.v[-1, :3] - v[:3]).max()) > 0.1
    np.testing.assert_allclose(two.v, one.v[:, :6], atol=1e-7)  # both of fourth order
    np.testing.assert_allclose(two.a[3], one.a[3, :6], atol=1e-6)
    loads = el.evaluate(gyrostat, (rotor,), q, v, None, 0.1)
    a, h, rate = two.a[0], wheel[2, 2] * law(0.0) * axis, wheel[2, 2] * jax.grad(law)(0.0) * axis
    apart = 2.0 * 0.5 / 2.5 * (at @ at * np.eye(3) - np.outer(at, at))
    I, w = carrier + R @ wheel @ R.T + apart, np.asarray(v[:3])
    np.testing.assert_allclose(I @ a[:3] + np.cross(w, I @ w + h) + rate, np.zeros(3), atol=1e-12)
    assert float(loads.power[0]) != 0.0
    with pytest.raises(ValueError, match=r"momentum of a rotor on 'craft' has shape \(2,\); expected \(3,\)"):
        el.evaluate(gyrostat, (el.Rotor("craft", lambda t: jnp.zeros(2)),), q)
