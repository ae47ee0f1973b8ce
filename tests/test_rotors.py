"""Gears with rotors: a rotor as a body behind a coupling, beside its inertia reflected as armature.

Lagrange's equations by hand. A rotor of spin inertia J turns n times as fast as the joint, on a carrier that turns with
angular velocity w about the rotor's axis a: T = J (w.a + n qdot)^2 / 2. The armature n^2 J keeps the last square alone,
the carrier's inertia holds the first; the product J n qdot w.a, and the moment w x h of the spin, only the body has.
"""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb

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
