"""Couplings: the elimination through the recursion against the dense G^T M G, where either route is taken."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
import reference

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

    def routes(system, q, v, tau):
        h = mb.inverse_dynamics(system, q, v, jnp.zeros_like(v))
        a = mb.forward_dynamics(system, q, v, tau), mb.minv_product(system, q, tau)
        return mb.mass_matrix(system, q), h, *a

    M, h, a, solved = map(np.asarray, reference.jit_in_haste(routes)(system, q, v, tau))
    np.testing.assert_allclose(a, np.linalg.solve(M, tau - h), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(solved, np.linalg.solve(M, tau), rtol=1e-11, atol=1e-11)


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

    gradient = reference.jit_in_haste(jax.grad(scalar, argnums=(0, 1, 2, 3)))
    one, two = (gradient(s, q, v, tau) for s in (system, dense))
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


# ---------------------------------------------------------------------------------------------------------- curves


@cache
def linkage():
    """A crank whose slider follows it as a connecting rod would let it, and a flap that follows by a polynomial."""
    import equinox as eqx

    class Rod(eqx.Module):
        r: jax.Array
        l: jax.Array

        def __call__(self, angle):
            return self.r * jnp.cos(angle) + jnp.sqrt(self.l**2 - (self.r * jnp.sin(angle)) ** 2)

    b = mb.Builder()
    b.body("crank", 1.5, (0.1, 0, 0), np.diag([0.01, 0.02, 0.03]))
    b.joint("crank", mb.revolute((0.0, -1.0, 0.0)), child="crank", damping=0.1, armature=0.05)
    b.body("slider", 2.0, inertia=0.1 * np.eye(3))
    b.joint("slide", mb.prismatic((1.0, 0, 0)), child="slider", stiffness=30.0, rest=[0.6], armature=0.3)
    b.body("flap", 0.5, (0, 0, 0.2), 0.02 * np.eye(3))
    b.joint("flap", mb.revolute((0.0, 0.0, 1.0)), "slider", "flap", friction=0.1, friction_speed=0.5)
    b.body("bob", 0.4, (0, 0, -0.3), 0.01 * np.eye(3))
    b.joint("bob", mb.revolute((0.0, 1.0, 0.0)), "slider", "bob")
    b.couple("slide", "crank", function=Rod(jnp.array(0.3), jnp.array(0.8)))
    b.couple("flap", "crank", function=lambda q: 0.2 + 0.5 * q - 0.3 * q**3)
    return b.build()


def test_followers_move_along_their_curves():
    system = linkage()
    assert (system.nq, system.nv) == (2, 2) and system.joint_names == ("crank", "bob")
    q, v, a = jnp.array([0.7, -0.4]), jnp.array([1.3, 0.6]), jnp.array([0.5, -2.0])
    k = mb.kinematics(system, q, v, a)
    rod = system.curves[0]
    x, dx, ddx = float(rod(0.7)), float(jax.grad(rod)(0.7)), float(jax.grad(jax.grad(rod))(0.7))
    np.testing.assert_allclose(k["slider"].position, [x, 0, 0], atol=1e-14)
    np.testing.assert_allclose(k["slider"].velocity[3:], [dx * 1.3, 0, 0], atol=1e-14)
    np.testing.assert_allclose(k["slider"].acceleration[3:], [dx * 0.5 + ddx * 1.3**2, 0, 0], atol=1e-13)


@pytest.mark.slow
def test_dynamics_of_curves_equals_lagrange():
    """M a + h = tau from d/dt dT/dv - dT/dq + dV/dq by differentiating the energies of the coupled system."""
    system = linkage().without_passive_forces().replace({"crank.armature": 0.05, "slide.armature": 0.3})
    q, v, tau = jnp.array([0.7, -0.4]), jnp.array([1.3, 0.6]), jnp.array([0.5, -2.0])

    def T(q, v):
        return mb.energy(system, q, v)[0]

    def V(q):
        return mb.energy(system, q, 0 * q)[1]

    def lagrange(q, v):
        h = jax.jacfwd(jax.grad(T, 1))(q, v) @ v - jax.grad(T)(q, v) + jax.grad(V)(q)
        return jax.hessian(T, 1)(q, v), h

    def ours(q, v, tau):
        M, rate = jax.jvp(lambda q: mb.mass_matrix(system, q), (q,), (v,))
        C = mb.coriolis_matrix(system, q, v)
        a = mb.forward_dynamics(system, q, v, tau)
        given = mb.hybrid_dynamics(system, q, v, jnp.stack([a[0], tau[1]]), jnp.array([True, False]))
        h = mb.bias_force(system, q, v), C @ v + mb.gravity_force(system, q)
        return M, *h, rate - 2 * C, a, mb.inverse_dynamics(system, q, v, a), jnp.stack(given)

    M, h = reference.jit_in_haste(lagrange)(q, v)
    own_M, bias, split, rate, a, back, mixed = reference.jit_in_haste(ours)(q, v, tau)
    np.testing.assert_allclose(own_M, M, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(bias, h, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(split, h, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(rate, -rate.T, atol=1e-12)
    np.testing.assert_allclose(a, np.linalg.solve(M, tau - h), rtol=1e-11)
    np.testing.assert_allclose(back, tau, rtol=1e-11)
    np.testing.assert_allclose(mixed, np.stack([a, tau]), rtol=1e-10)


def test_energy_of_curved_followers_changes_by_the_power_alone():
    """Passive forces on: over a simulation the energy books close to the order of the stepper."""
    system = linkage().replace({"crank.damping": 0.0, "flap.friction": 0.0})
    q, v = jnp.array([0.2, -0.4]), jnp.array([1.0, 0.3])
    traj = mb.simulate(system, q, v, duration=0.5, dt=5e-3, stepper=mb.RungeKuttaMuntheKaas4())
    total = np.asarray(sum(jax.vmap(mb.energy, (None, 0, 0))(system, traj.q, traj.v)))
    assert np.ptp(total) < 1e-6 * np.abs(total).max()
    assert np.ptp(traj.q[:, 0]) > 0.2


@pytest.mark.slow
def test_derivatives_of_curved_dynamics():
    system = linkage()
    args = (system, jnp.array([0.7, -0.4]), jnp.array([1.3, 0.6]), jnp.array([0.5, -2.0]))
    rng = np.random.default_rng(0)
    way = jax.tree.map(lambda x: jnp.asarray(np.where(np.isfinite(x), rng.normal(size=np.shape(x)), 0.0)), args)

    def scalar(s, q, v, tau):
        return jnp.sum(jnp.cos(jnp.arange(2.0)) * mb.forward_dynamics(s, q, v, tau))

    gradient = jax.jit(jax.grad(scalar, argnums=(0, 1, 2, 3)))(*args)
    ours = sum(jnp.sum(g * w) for g, w in zip(jax.tree.leaves(gradient), jax.tree.leaves(way), strict=True))
    f, h = jax.jit(lambda s: scalar(*jax.tree.map(lambda x, w: x + s * w, args, way))), 1e-5
    assert float(ours) == pytest.approx(float(8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h), rel=1e-7)
    assert float(jnp.abs(gradient[0].curves[0].l)) > 0  # the rod's own length is differentiated too


def test_a_function_that_gives_no_number_is_refused():
    b = mb.Builder()
    for name in ("one", "two"):
        b.body(name, 1.0, inertia=np.eye(3))
        b.joint(name, mb.revolute((0.0, 1.0, 0.0)), child=name)
    with pytest.raises(ValueError, match="was given 3; expected a function"):
        b.couple("two", "one", function=3)
    b.couple("two", "one", function=lambda q: jnp.stack([q, q]))
    system = b.build()
    with pytest.raises(ValueError, match=r"coupling function of joint 'two' gives shape \(2,\)"):
        mb.forward_dynamics(system, jnp.zeros(1), jnp.zeros(1), jnp.zeros(1))
    with pytest.raises(KeyError, match="by a function, without a ratio"):
        system.get("two.ratio")
