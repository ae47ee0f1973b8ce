"""Every quantity of the library against `reference.py`, on random trees with every joint kind.

The reference shares no code with the library: dense Jacobians by automatic differentiation of poses and Kane's
equations. It is itself checked first, against closed forms and the power balance.

Tolerances: both sides are float64 and lose a few hundred roundings; forces and positions of order 1 to 100 agree to
1e-11 of the largest entry, solutions of M a = f to that times the condition of M.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
import reference

import jaxmbd as mb

SYSTEMS = {"menagerie": rs.menagerie, "floater": rs.floater, "arm": rs.arm}
QUANTITIES = {"menagerie": rs.MAIN, "floater": rs.MORE, "arm": rs.ALL}
COUNT = 3


@functools.cache
def both(name):
    """(library's results, reference's results) for a batch of random states."""
    spec, numbers = SYSTEMS[name](), rs.wrench_numbers(5)
    states = rs.states(spec, 4, COUNT)
    ours = rs.results(spec, *states, numbers, QUANTITIES[name])
    theirs = reference.evaluate_batch(spec, rs.AXES)(reference.numbers(spec), *states, numbers)
    return ours, jax.tree.map(np.asarray, theirs)


def close(ours, theirs, factor=1.0):
    """Equal to within factor * 1e-11 of the largest entry."""
    scale = max(1.0, np.abs(theirs).max())
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-11 * scale * factor)


# --------------------------------------------------------------------------- the reference against closed forms


def _hinge(name, parent, child, at):
    in_parent = np.array(at, float), rs.IDENTITY[1]
    return rs.JointSpec(name, "revolute", {"axis": np.array([0.0, 1.0, 0.0])}, parent, child, in_parent)


def _evaluate(spec, q, v, a, tau):
    arrays = [np.atleast_2d(np.asarray(x, float)) for x in (q, v, a, tau)]
    results = reference.evaluate_batch(spec)(reference.numbers(spec), *arrays, ())
    return jax.tree.map(lambda x: np.asarray(x)[0], results)


def test_reference_simple_pendulum():
    """(I + m l²) q'' = tau − m g l sin q."""
    m, l, I = 1.3, 0.7, 0.05
    body = rs.BodySpec("bob", m, np.array([0.0, 0.0, -l]), I * np.eye(3))
    spec = rs.SystemSpec((body,), (_hinge("pivot", "world", "bob", (0.2, 0.1, 0.3)),))
    r = _evaluate(spec, [0.4], [1.7], [0.0], [0.3])
    np.testing.assert_allclose(r["mass_matrix"], [[I + m * l**2]], rtol=1e-14)
    np.testing.assert_allclose(r["gravity_force"], [9.81 * m * l * np.sin(0.4)], rtol=1e-14)
    np.testing.assert_allclose(r["bias_force"], r["gravity_force"], rtol=1e-13)
    np.testing.assert_allclose(r["forward_dynamics"], [(0.3 - 9.81 * m * l * np.sin(0.4)) / (I + m * l**2)], rtol=1e-13)
    np.testing.assert_allclose(r["energy"][0], 0.5 * (I + m * l**2) * 1.7**2, rtol=1e-14)
    np.testing.assert_allclose(r["energy"][1], 9.81 * m * (0.3 - l * np.cos(0.4)), rtol=1e-14)


def test_reference_double_pendulum():
    """Two point masses on rods: the textbook equations in absolute angles, transformed to relative ones."""
    m1, m2, l1, l2, g = 1.1, 0.8, 0.9, 0.6, 9.81
    bodies = tuple(rs.BodySpec(n, m, np.array([0.0, 0.0, -l])) for n, m, l in (("upper", m1, l1), ("lower", m2, l2)))
    joints = (_hinge("one", "world", "upper", (0, 0, 0)), _hinge("two", "upper", "lower", (0, 0, -l1)))
    q, v = np.array([0.5, -1.1]), np.array([1.3, 0.4])
    r = _evaluate(rs.SystemSpec(bodies, joints), q, v, [0, 0], [0, 0])
    T = np.array([[1.0, 0.0], [1.0, 1.0]])
    (one, two), (w1, w2) = T @ q, T @ v
    c, s = np.cos(one - two), np.sin(one - two)
    M = np.array([[(m1 + m2) * l1**2, m2 * l1 * l2 * c], [m2 * l1 * l2 * c, m2 * l2**2]])
    coriolis = m2 * l1 * l2 * s * np.array([w2**2, -(w1**2)])
    gravity = g * np.array([(m1 + m2) * l1 * np.sin(one), m2 * l2 * np.sin(two)])
    np.testing.assert_allclose(r["mass_matrix"], T.T @ M @ T, rtol=1e-13)
    np.testing.assert_allclose(r["gravity_force"], T.T @ gravity, rtol=1e-13)
    np.testing.assert_allclose(r["bias_force"], T.T @ (coriolis + gravity), rtol=1e-13)


def test_reference_torque_free_rotation():
    """Euler's equations I w' = −w × I w for a free body without gravity; its velocity in body axes turns, −w × u."""
    body = rs.random_body(np.random.default_rng(0), "body")
    body = rs.BodySpec("body", body.mass, np.zeros(3), body.inertia)
    spec = rs.SystemSpec((body,), (rs.JointSpec("root", "free", {}, "world", "body"),), gravity=np.zeros(3))
    q, v, *_ = (x[0] for x in rs.states(spec, 1, 1))
    r = _evaluate(spec, q, v, np.zeros(6), np.zeros(6))
    w, u = v[:3], v[3:]
    euler = np.linalg.solve(body.inertia, -np.cross(w, body.inertia @ w))
    np.testing.assert_allclose(r["forward_dynamics"][:3], euler, rtol=1e-12)
    np.testing.assert_allclose(r["forward_dynamics"][3:], -np.cross(w, u), rtol=1e-12)
    R = r["motion"].R[1]
    np.testing.assert_allclose(r["momentum"], np.concatenate([R @ body.inertia @ w, body.mass * R @ u]), rtol=1e-12)


def test_reference_power_balance():
    """d(kinetic + potential)/dt = power of joint forces, dampers and friction; rotations have springs too."""
    spec = rs.random_tree(7, ("spherical", "screw"), "chain", passive=True)
    n = reference.numbers(spec)
    q, v, a, tau = (x[0] for x in rs.states(spec, 2, 1))

    @reference.jit_in_haste
    def rate(q, v, tau):
        zero = jnp.zeros(v.shape)
        acceleration = reference.forward_dynamics(spec, n, reference.motion(spec, n, q, v, zero), tau)

        def total(q, v):
            return sum(reference.energy(spec, n, reference.motion(spec, n, q, v, zero)))

        return jax.jvp(total, (q, v), (reference.q_dot(spec, q, v), acceleration))[1]

    damping, friction, speed = (
        np.concatenate([getattr(j, key) for j in spec.joints]) for key in ("damping", "friction", "friction_speed")
    )
    power = v @ (tau - damping * v - friction * np.tanh(v / speed))
    np.testing.assert_allclose(rate(q, v, tau), power, rtol=1e-11)


# ------------------------------------------------------------------------------------- library against reference


def test_jacobian_and_its_rate():
    ours, theirs = both("arm")
    k, row = theirs["motion"], reference.row(rs.arm(), "tool")
    close(ours["jacobian"], k.J[:, row])
    close(ours["jacobian_rate_product"], k.A[:, row] - np.einsum("nij,nj->ni", k.J[:, row], k.a))
    system, q, _, _, _ = rs.built(rs.arm()), *rs.states(rs.arm(), 4, COUNT)
    local = reference.jit_in_haste(jax.vmap(lambda q: mb.jacobian(system, q, "tool", axes="local")))(q)
    turned = [np.concatenate([R.T @ J[:3], R.T @ J[3:]]) for R, J in zip(k.R[:, row], k.J[:, row], strict=True)]
    close(local, np.stack(turned))


@pytest.mark.parametrize("system", [pytest.param("menagerie", marks=pytest.mark.slow), "floater", "arm"])
class TestAgainstReference:
    """One quantity a test; each system is compiled once."""

    @pytest.mark.contract("S1-11")
    def test_inverse_dynamics(self, system):
        ours, theirs = both(system)
        close(ours["inverse_dynamics"], theirs["inverse_dynamics"])

    @pytest.mark.contract("S1-19", "S2-28")
    def test_forward_dynamics(self, system):
        ours, theirs = both(system)
        close(ours["forward_dynamics"], theirs["forward_dynamics"], np.linalg.cond(theirs["mass_matrix"]).max())

    def test_plain_quantities(self, system):
        ours, theirs = both(system)
        for name in ("mass_matrix", "bias_force", "gravity_force", "momentum", "com", "q_dot", "energy"):
            for one, other in zip(jax.tree.leaves(ours.get(name)), jax.tree.leaves(theirs[name]), strict=False):
                close(one, other)

    def test_kinematics_of_every_body_and_frame(self, system):
        ours, theirs = both(system)
        spec, k = SYSTEMS[system](), theirs["motion"]
        for name in reference.frame_names(spec):
            row = reference.row(spec, name)
            own = ours["kinematics"][name]
            for one, other in ((own.rotation, k.R), (own.position, k.p), (own.velocity, k.V), (own.acceleration, k.A)):
                close(one, other[:, row])

    def test_minv_product_and_log_det(self, system):
        ours, theirs = both(system)
        M, tau = theirs["mass_matrix"], rs.states(SYSTEMS[system](), 4, COUNT)[3]
        expected = {"minv_product": np.linalg.solve(M, tau[..., None])[..., 0], "log_det_mass": np.linalg.slogdet(M)[1]}
        for name, value in expected.items():
            if name in ours:
                close(ours[name], value, np.linalg.cond(M).max())

    def test_names_and_sizes(self, system):
        spec, built = SYSTEMS[system](), rs.build(SYSTEMS[system]())
        moving = [j for j in reference.independent(spec) if reference.sizes(j)[1]]
        assert built.joint_names == tuple(j.name for j in moving)
        assert built.frame_names == tuple(reference.frame_names(spec))
        welded = {j.child for j in spec.joints if j.kind == "fixed"}
        assert built.body_names == tuple(b.name for b in spec.bodies if b.name not in welded)
        assert built.nb == len(built.body_names)
        assert (built.nq, built.nv) == tuple(np.sum([reference.sizes(j) for j in moving], axis=0))
        np.testing.assert_allclose(built.mass, sum(b.mass for b in spec.bodies), rtol=1e-14)
        start = np.zeros(2, int)
        for j in moving:
            size = np.array(reference.sizes(j))
            assert built.q_slice(j.name) == slice(start[0], start[0] + size[0])
            assert built.v_slice(j.name) == slice(start[1], start[1] + size[1])
            start += size

    def test_every_number_is_found_by_its_path(self, system):
        """`get` reads what was built, and `replace` of all numbers at once gives the same leaves."""
        spec, built = SYSTEMS[system](), rs.build(SYSTEMS[system]())
        n = reference.numbers(spec)
        for path, value in n.items():
            np.testing.assert_allclose(built.get(path), value, rtol=0, atol=1e-15, err_msg=path)
        moved = {path: value + 0.25 for path, value in n.items()}
        other = built.replace(moved)
        for path, value in moved.items():
            np.testing.assert_array_equal(other.get(path), value, err_msg=path)


# ---------------------------------------------------------------------------------------------- bases and shapes


@pytest.mark.contract("S1-21")
@pytest.mark.parametrize(("system", "base"), [("arm", "fixed"), ("menagerie", "revolute"), ("floater", "free")])
def test_base_hangs_on_an_ordinary_joint(system, base):
    """The base body is joined to inertial space by any joint; the accelerations are those of an ODE in q, v alone."""
    spec = SYSTEMS[system]()
    assert {j.kind for j in spec.joints if j.parent == "world"} == {base}
    ours, theirs = both(system)
    assert ours["forward_dynamics"].shape == (COUNT, rs.built(spec).nv)  # no multipliers, no other unknowns
    close(ours["forward_dynamics"], theirs["forward_dynamics"], np.linalg.cond(theirs["mass_matrix"]).max())


@pytest.mark.contract("S5-01")
def test_dextral_angles():
    """N bodies with three dextral angles each and three displacements of the first: 3 N + 3 coordinates, any tree."""
    angles = ["gimbal:xyz"] * 4
    spec = rs.random_tree(12, ["translational", *angles], "tree", massless=(0,))
    # displacements and angles of body 1 are one joint in six coordinates; here the massless body between carries them
    system, n = rs.built(spec), reference.numbers(spec)
    assert system.nq == system.nv == 3 * len(angles) + 3
    q, v, a, tau = rs.states(spec, 3, COUNT)
    ours = rs.results(spec, q, v, a, tau, names=("forward_dynamics",))["forward_dynamics"]
    theirs = reference.evaluate_batch(spec)(n, q, v, a, tau, ())
    close(ours, theirs["forward_dynamics"], np.linalg.cond(theirs["mass_matrix"]).max())


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "seed"), [("chain", 21), ("star", 22), ("branches", 21), ("tree", 22)])
def test_random_trees(shape, seed):
    """Eight random kinds, a massless body where armature keeps M regular, random order of declaration."""
    rng = np.random.default_rng(seed)
    kinds = [*rs.EVERY_KIND, "continuous", "gimbal:xyz", "gimbal:yxz", "mapped:curve", "screw_product:2"]
    chosen = [kinds[i] for i in rng.permutation(len(kinds))[:8]]
    spec = rs.random_tree(seed, chosen, shape, passive=True, massless=(2, 5), shuffle=True)
    n, numbers = reference.numbers(spec), rs.wrench_numbers(seed)
    states = rs.states(spec, seed, COUNT)
    ours = rs.results(spec, *states, numbers)
    theirs = jax.tree.map(np.asarray, reference.evaluate_batch(spec, rs.AXES)(n, *states, numbers))
    condition = np.linalg.cond(theirs["mass_matrix"]).max()
    for name in ("inverse_dynamics", "mass_matrix", "bias_force", "gravity_force", "momentum", "com", "q_dot"):
        close(ours[name], theirs[name])
    close(ours["forward_dynamics"], theirs["forward_dynamics"], condition)
    close(np.stack(ours["energy"]), np.stack(theirs["energy"]))
    row = reference.row(spec, "tool")
    close(ours["kinematics"]["tool"].acceleration, theirs["motion"].A[:, row])
    close(ours["jacobian"], theirs["motion"].J[:, row])
