"""Couplings: the elimination through the recursion against the dense G^T M G, where either route is taken."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs

import jaxmbd as mb


@cache
def hand(massless=False):
    """A palm with two fingers of three hinges, whose outer hinges follow the inner ones: four couplings."""
    b = mb.Builder()
    rng = np.random.default_rng(3)
    b.body("palm", 1.0, inertia=np.diag([0.1, 0.2, 0.3]))
    b.joint("wrist", mb.spherical(), child="palm")
    for finger in "ab":
        parent = "palm"
        for k in range(3):
            name, empty = f"{finger}{k}", massless and k == 2
            b.body(name, 0.0 if empty else 0.3, (0, 0, 0.1), np.zeros((3, 3)) if empty else 1e-3 * np.eye(3))
            place = mb.Pose(0.2 * rng.normal(size=3))
            b.joint(name, mb.revolute(rng.normal(size=3)), parent, name, place, damping=0.02, stiffness=0.1)
            parent = name
        b.couple(f"{finger}1", f"{finger}0", ratio=0.8, offset=0.1)
        b.couple(f"{finger}2", f"{finger}0", ratio=-1.3)
    return b.build()


@pytest.mark.parametrize("massless", [False, True])
def test_recursion_equals_the_dense_reduction(massless):
    """M a = tau - bias + passive with M = G^T M G; followers without inertia take the dense route by themselves."""
    system = hand(massless)
    assert system.topology.dense is massless
    q, v = mb.random_state(system, jax.random.key(0))
    tau = jax.random.normal(jax.random.key(1), v.shape)
    M, zero = np.asarray(mb.mass_matrix(system, q)), jnp.zeros_like(v)
    h = np.asarray(mb.inverse_dynamics(system, q, v, zero))
    a = mb.forward_dynamics(system, q, v, tau)
    np.testing.assert_allclose(a, np.linalg.solve(M, tau - h), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(mb.minv_product(system, q, tau), np.linalg.solve(M, tau), rtol=1e-11, atol=1e-11)


def test_forward_dynamics_holds_no_mass_matrix():
    """With couplings, too: nothing of the size of nv x nv, and no factorisation larger than the couplings."""
    system = rs.built(rs.arm())
    assert len(system.topology.couplings) == 1
    q, v = jnp.zeros(system.nq), jnp.zeros(system.nv)
    text = jax.jit(mb.forward_dynamics).lower(system, q, v, v).as_text()
    assert "cholesky" not in text


@pytest.mark.slow
def test_derivatives_equal_those_of_the_dense_route():
    """The same system with `dense` forced: gradients in everything, ratios and offsets included."""
    from dataclasses import replace

    system = hand()
    dense = replace(system, topology=replace(system.topology, dense=True))
    q, v = mb.random_state(system, jax.random.key(2))
    tau = jax.random.normal(jax.random.key(3), v.shape)

    def scalar(system, q, v, tau):
        return jnp.sum(jnp.sin(mb.forward_dynamics(system, q, v, tau)))

    one, two = (jax.grad(scalar, argnums=(0, 1, 2, 3))(s, q, v, tau) for s in (system, dense))
    scale = max(np.abs(x).max(initial=0.0) for x in jax.tree.leaves(two))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11 * scale)


def test_massless_follower_with_traced_values_takes_the_dense_route():
    """Inside a compiled function the builder cannot see the masses, so it must not rely on them."""

    def acceleration(mass):
        b = mb.Builder()
        for name, m, parent in (("crank", 1.0, "world"), ("rod", mass, "crank")):
            b.body(name, m, (0, 0, -0.5), m * jnp.eye(3))
            b.joint(name, mb.revolute((0.0, 1.0, 0.0)), parent, name)
        b.couple("rod", "crank", ratio=-1.0)
        return mb.forward_dynamics(b.build(), jnp.array([0.3]), jnp.zeros(1), jnp.ones(1))

    assert np.isfinite(jax.jit(acceleration)(0.0)).all()
