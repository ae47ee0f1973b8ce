"""Closed loops with driven joints and couplings: laws, hybrid dynamics and followers inside constrained systems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb


def law(t):
    return 0.6 + 2.0 * t + 0.5 * t**2


def four_bar(crank_joint):
    b = mb.Builder()
    for name, length in (("crank", 0.4), ("coupler", 1.0), ("rocker", 0.8)):
        b.body(name, length, (length / 2, 0, 0), 0.1 * length * np.eye(3))
    hinge = mb.revolute((0, -1, 0))
    b.joint("A", crank_joint, "world", "crank")
    b.joint("B", hinge, "crank", "coupler", in_parent=mb.Pose((0.4, 0, 0)))
    b.joint("D", hinge, "world", "rocker", in_parent=mb.Pose((1.1, 0, 0)))
    b.joint("C", hinge, "coupler", "rocker", in_parent=mb.Pose((1.0, 0, 0)), in_child=mb.Pose((0.8, 0, 0)))
    return b.build()


@pytest.mark.slow
def test_a_driven_crank_moves_the_loop_as_its_torque_would():
    """Law, hybrid dynamics and the driving torque as a force give one motion; the drive feels the loop's load."""
    hinge = mb.revolute((0, -1, 0))
    free, driven = four_bar(hinge), four_bar(mb.driven(hinge, position=law))
    t = 0.3
    at = mb.assemble(free, jnp.array([law(t), -0.2, 1.5]), jnp.array([2.0 + t, 0.0, 0.0]), fixed=("A",))
    zero = jnp.zeros(3)
    a = mb.forward_dynamics(driven, at.q, at.v, zero, t=t)
    np.testing.assert_allclose(a[0], 1.0, rtol=1e-12)
    mask = jnp.array([True, False, False])
    a_hybrid, tau = mb.hybrid_dynamics(free, at.q, at.v, jnp.array([1.0, 0.0, 0.0]), mask)
    np.testing.assert_allclose(a_hybrid, a, rtol=1e-12)
    np.testing.assert_allclose(mb.forward_dynamics(free, at.q, at.v, tau), a, rtol=1e-9, atol=1e-9)
    # and that is what inverse dynamics of the closed mechanism asks of the crank
    np.testing.assert_allclose(mb.actuator_forces(free, at.q, at.v, a, ("A",)), tau, rtol=1e-9, atol=1e-9)
    assert mb.mobility(driven, at.q).velocity == 0 and mb.mobility(free, at.q).velocity == 1


@pytest.mark.slow
def test_a_driven_loop_follows_its_law():
    driven = four_bar(mb.driven(mb.revolute((0, -1, 0)), position=law))
    start = mb.assemble(driven, jnp.array([0.0, -0.2, 1.5]))
    np.testing.assert_allclose([start.q[0], start.v[0]], [0.6, 2.0], rtol=1e-12)
    traj = mb.simulate(driven, start.q, start.v, duration=1.0, dt=1e-2, stepper=mb.RungeKuttaMuntheKaas4())
    np.testing.assert_allclose(traj.q[:, 0], law(traj.t), rtol=1e-12)
    k = jax.vmap(mb.kinematics, (None, 0))(driven, traj.q)
    np.testing.assert_allclose(k["C:parent"].position, k["C:child"].position, atol=1e-10)
    # work of the drive is the change of energy
    E = jax.vmap(lambda q, v: sum(mb.energy(driven, q, v)))(traj.q, traj.v)
    work = np.trapezoid(traj.tau[:, 0] * traj.v[:, 0], traj.t)
    np.testing.assert_allclose(work, E[-1] - E[0], rtol=1e-3)


def test_a_gear_as_closure_is_a_coupling():
    """Two wheels in mesh by a constraint row, and by elimination of the follower."""

    def wheels(coupled):
        b = mb.Builder()
        for name, inertia in (("pinion", 0.1), ("wheel", 0.7)):
            b.body(name, 1.0, (0.1, 0.2, 0.0), inertia * np.eye(3))
            b.joint(name, mb.revolute((0, 1, 0)), child=name)
        if coupled:
            b.couple("wheel", "pinion", ratio=-0.4, offset=0.2)
        else:
            b.constraint("mesh", mb.gear(-0.4, 0.2), joints=("pinion", "wheel"))
        return b.build()

    q, v, torque = jnp.array([0.5]), jnp.array([1.3]), jnp.array([0.8])
    expected = mb.forward_dynamics(wheels(True), q, v, torque)
    both = jnp.array([1.0, -0.4])
    a = mb.forward_dynamics(wheels(False), jnp.array([0.5, 0.0]), v[0] * both, jnp.array([torque[0], 0.0]))
    np.testing.assert_allclose(a, expected[0] * both, rtol=1e-12)
