"""Lines of the source papers about single joints, shifters and the Newton-Euler recursion, one check each."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb

SOLID = np.diag([0.3, 0.5, 0.6])


def pose_of(seed: int) -> mb.Pose:
    random = np.random.default_rng(seed)
    return mb.Pose(random.normal(size=3), random.normal(size=4))


@functools.cache
def arm():
    """A free base and three hinges in general position."""
    b = mb.Builder()
    parent = "world"
    for i in range(4):
        b.body(f"b{i}", mass=1.0 + i, com=(0.1 * i, 0.2, -0.1), inertia=SOLID)
        joint = mb.free() if i == 0 else mb.revolute(np.eye(3)[i - 1] + 0.1)
        b.joint(f"j{i}", joint, parent=parent, child=f"b{i}", in_parent=pose_of(i) if i else None)
        parent = f"b{i}"
    b.frame("tip", on="b3", pose=pose_of(9))
    return b.build()


@functools.cache
def state():
    system = arm()
    q, v = mb.random_state(system, jax.random.key(2))
    return system, q, v, jnp.linspace(-1.0, 1.0, system.nv), mb.kinematics(system, q, v)


def newton_euler(system, q, v, a, tip_moment, tip_force):
    """Jain & Rodriguez, Eq. 4.1, written for this arm in body axes: outwards velocities, inwards forces."""
    m = [float(system.get(f"b{i}.mass")) for i in range(4)]
    c = [np.asarray(system.get(f"b{i}.com")) for i in range(4)]
    X = [system.joint(f"j{i}").pose(q[system.q_slice(f"j{i}")]) for i in range(4)]
    home = [mb.Pose(system.get(f"j{i}.in_parent.position"), system.get(f"j{i}.in_parent.rotation")) for i in range(4)]
    R = [np.asarray((home[i] @ X[i]).rotation) for i in range(4)]
    p = [np.asarray((home[i] @ X[i]).position) for i in range(4)]
    axis = [np.asarray(system.get(f"j{i}.axis")) / np.linalg.norm(system.get(f"j{i}.axis")) for i in range(1, 4)]
    v, a = np.asarray(v), np.asarray(a)
    omega, alpha = v[:3], a[:3]
    acc = a[3:6] + np.cross(omega, v[3:6]) + R[0].T @ np.array([0, 0, 9.81])
    motion = [(omega, alpha, acc)]
    for i in range(1, 4):
        up = acc + np.cross(alpha, p[i]) + np.cross(omega, np.cross(omega, p[i]))
        omega, alpha, acc = R[i].T @ omega, R[i].T @ alpha, R[i].T @ up
        alpha = alpha + axis[i - 1] * a[5 + i] + np.cross(omega, axis[i - 1] * v[5 + i])
        omega = omega + axis[i - 1] * v[5 + i]
        motion.append((omega, alpha, acc))
    moment, force, tau = tip_moment, tip_force, np.zeros(9)
    for i in reversed(range(4)):
        omega, alpha, acc = motion[i]
        F = m[i] * (acc + np.cross(alpha, c[i]) + np.cross(omega, np.cross(omega, c[i])))
        moment = moment + SOLID @ alpha + np.cross(omega, SOLID @ omega) + np.cross(c[i], F)
        force = force + F
        if i == 0:
            tau[:6] = np.concatenate([moment, force])
        else:
            tau[5 + i] = axis[i - 1] @ moment
            moment, force = R[i] @ moment + np.cross(p[i], R[i] @ force), R[i] @ force
    return tau


@pytest.mark.contract("S2-12")
def test_newton_euler_recursion_with_a_tip_force_and_a_mobile_base():
    """The tip wrench starts the inward recursion; the free base is a hinge of six freedoms whose forces come out."""
    system, q, v, a, k = state()
    wrench = mb.Wrench("tip", moment=(0.3, -0.2, 0.5), force=(1.0, 2.0, -3.0), point=(0.1, 0.0, 0.2), axes="local")
    tip, body = k["tip"], k["b3"]
    point = tip.position + tip.rotation @ wrench.point
    force = tip.rotation @ wrench.force
    moment = tip.rotation @ wrench.moment + jnp.cross(point - body.position, force)
    expected = newton_euler(
        system, q, v, a, -np.asarray(body.rotation.T @ moment), -np.asarray(body.rotation.T @ force)
    )
    np.testing.assert_allclose(mb.inverse_dynamics(system, q, v, a, (wrench,)), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.contract("S5-05")
def test_shifters():
    """S_ij = n_i . n_j' is orthogonal, transforms components, and chains from body to body to the inertial frame."""
    system, q, _, _, k = state()
    chained = np.eye(3)
    for i in range(4):
        joint = system.joint(f"j{i}")
        shifter = mb.Pose(rotation=system.get(f"j{i}.in_parent.rotation")) @ joint.pose(q[system.q_slice(f"j{i}")])
        S = np.asarray(shifter.rotation)
        np.testing.assert_allclose(S @ S.T, np.eye(3), atol=1e-14)
        chained = chained @ S
        np.testing.assert_allclose(chained, k[f"b{i}"].rotation, atol=1e-14)
    b3 = k["b3"]
    offset = b3.rotation.T @ (k["tip"].position - b3.position)  # constant components in the body
    np.testing.assert_allclose(offset, system.get("tip.position"), atol=1e-13)
    axes = np.asarray(b3.rotation).T  # rows: unit vectors of the body, inertial components
    np.testing.assert_allclose([[n @ m for m in axes] for n in np.eye(3)], chained, atol=1e-14)


@pytest.mark.contract("S5-08")
def test_shifter_rate_is_a_product():
    """dS/dt = W S with W_ij = -e_ijk omega_k, for every body of a moving tree."""
    system, q, v, _, k = state()

    def rotations(h):
        return mb.kinematics(system, mb.integrate(system, q, v, h)).rotation

    _, rate = jax.jvp(rotations, (0.0,), (1.0,))
    permutation = np.zeros((3, 3, 3))
    for i, j, n in [(0, 1, 2), (1, 2, 0), (2, 0, 1)]:
        permutation[i, j, n], permutation[i, n, j] = 1.0, -1.0
    W = -np.einsum("ijk,bk->bij", permutation, k.velocity[:, :3])
    np.testing.assert_allclose(rate, W @ k.rotation, atol=1e-13)


@pytest.mark.contract("S4-05")
@pytest.mark.parametrize("kind", ["universal", "cylindrical"])
def test_interaction_acts_on_one_body_and_reacts_on_the_other(kind):
    """An interaction (L, F) at Q^t, + on the outboard and - on the inboard body, is the joint force phi^T (L, F)."""
    joint = mb.universal((1, 0, 0), (0, 1, 0)) if kind == "universal" else mb.cylindrical((0.2, 1, 0))
    b = mb.Builder()
    for name, parent, record in (("f", "world", mb.free()), ("t", "f", joint)):
        b.body(name, mass=1.5, com=(0.1, 0.2, -0.1), inertia=SOLID)
        place = {"in_parent": pose_of(1), "in_child": pose_of(2)} if name == "t" else {}
        b.joint(f"to_{name}", record, parent=parent, child=name, **place)
    b.frame("Q_f", on="f", pose=pose_of(1))
    b.frame("Q_t", on="t", pose=pose_of(2))
    system = b.build()
    q, v = mb.random_state(system, jax.random.key(3))
    k, own = mb.kinematics(system, q, v), system.q_slice("to_t")
    axes = k["Q_f"].rotation  # the interaction has components in inboard axes
    interaction = jnp.array([0.5, -1.0, 2.0, 3.0, -0.7, 1.1])
    L, F = axes @ interaction[:3], axes @ interaction[3:]
    inboard_point = k["f"].rotation.T @ (k["Q_t"].position - k["f"].position)
    pair = (mb.Wrench("Q_t", L, F), mb.Wrench("f", -L, -F, point=inboard_point))
    tau = jnp.zeros(system.nv).at[system.v_slice("to_t")].set(joint.modes(q[own]).T @ interaction)
    as_pair = mb.forward_dynamics(system, q, v, jnp.zeros(system.nv), pair)
    as_joint_force = mb.forward_dynamics(system, q, v, tau)
    np.testing.assert_allclose(as_pair, as_joint_force, rtol=1e-11, atol=1e-11)
    # internal: neither momentum changes, whatever the interaction
    A = mb.centroidal_momentum_matrix(system, q)
    free_fall = mb.forward_dynamics(system, q, v, jnp.zeros(system.nv))
    np.testing.assert_allclose(A @ (as_pair - free_fall), np.zeros(6), atol=1e-11)


@pytest.mark.contract("S4-01")
def test_a_tree_has_one_directed_joint_for_each_body():
    """N bodies with N joints f(s) -> t(s) are a tree on body 0; one more closes a loop, one fewer leaves a part off."""

    def declared(joints):
        b = mb.Builder()
        for name in "abc":
            b.body(name, mass=1.0, inertia=SOLID)
        for i, (f, t) in enumerate(joints):
            b.joint(f"s{i}", mb.revolute((0, 0, 1)), parent=f, child=t)
        return b.build

    system = declared([("world", "b"), ("b", "a"), ("b", "c")])()
    ends = [(j.parent, j.child) for j in system.topology.joints]
    assert ends == [(-1, 1), (1, 0), (1, 2)] and system.nb == len(ends) == 3
    looped = declared([("world", "b"), ("b", "a"), ("b", "c"), ("a", "c")])()
    assert looped.joint_names == ("s0", "s1", "s2") and looped.constraint_names == ("s3",)
    with pytest.raises(ValueError, match="Body 'c' is the child of no joint"):
        declared([("world", "b"), ("b", "a")])()
    with pytest.raises(ValueError, match="a - b - a form a circle"):
        declared([("b", "a"), ("a", "b"), ("world", "c")])()


@pytest.mark.contract("S4-20")
def test_a_joint_record_is_complete_and_independent_of_where_it_stands():
    """One record: coordinates and kinematics, constraints, bases, motion law, loads; the same anywhere in a tree."""
    joint = mb.gimbal("zxy")
    b = mb.Builder()
    parent = "world"
    for i in range(3):
        b.body(f"b{i}", mass=1.0, com=(0.1, 0, 0), inertia=SOLID)
        record = joint if i != 1 else mb.prismatic((1, 2, 3))
        b.joint(f"j{i}", record, parent=parent, child=f"b{i}", in_parent=pose_of(i), stiffness=0.1 * i, damping=0.2)
        parent = f"b{i}"
    system = b.build()
    q, v = mb.random_state(system, jax.random.key(4))
    own, rates = q[system.q_slice("j2")], v[system.v_slice("j2")]
    first, last = system.joint("j0"), system.joint("j2")
    for record in (first, last):
        np.testing.assert_array_equal(record.pose(own).rotation, joint.pose(own).rotation)
        np.testing.assert_array_equal(record.modes(own), joint.modes(own))
    np.testing.assert_allclose(last.N(own) @ rates, mb.q_dot(system, q, v)[system.q_slice("j2")], atol=1e-15)
    # implicit constraints w: what the modes cannot do, and what the relative motion in the tree does not do
    w = joint.dual(own)[:, joint.nv :]
    k = mb.kinematics(system, q, v)
    outer, inner = k["b2"], k["b1"]
    axes = inner.rotation @ mb.Pose(rotation=system.get("j2.in_parent.rotation")).rotation
    relative = axes.T @ (outer.velocity[:3] - inner.velocity[:3])
    swept = inner.velocity[3:] + jnp.cross(inner.velocity[:3], outer.position - inner.position)
    G = jnp.concatenate([relative, axes.T @ (outer.velocity[3:] - swept)])
    np.testing.assert_allclose(w.T @ G, np.zeros(3), atol=1e-13)
    np.testing.assert_allclose(joint.dual(own)[:, : joint.nv].T @ G, rates, atol=1e-12)
    assert joint.driven_modes(own).shape == (6, 0)  # no motion law in this joint
    loads = mb.inverse_dynamics(system.without_passive_forces(), q, v, 0 * v) - mb.inverse_dynamics(system, q, v, 0 * v)
    np.testing.assert_allclose(loads[system.v_slice("j2")], -0.2 * own - 0.2 * rates, atol=1e-11)
