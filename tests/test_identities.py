"""Identities that any correct dynamics satisfies, whatever the numbers: no reference values, no second formulation.

Rates of change are fourth-order central differences along the motion, h = 5e-4: their truncation h⁴ and their rounding
eps / h leave eight digits, and they need no program beyond the one that gives the values.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
import reference

import jaxmbd as mb
from jaxmbd.operators import dense_operators, shift_operator
from jaxmbd.spatial import Inertia, Sym3, Vec3

EPS = np.finfo(float).eps
STEP = 5e-4
POINTS = STEP * np.array([-2.0, -1.0, 1.0, 2.0])
WEIGHTS = np.array([1.0, -8.0, 8.0, -1.0]) / (12.0 * STEP)
DIFFERENCES = 1e-8  # of the largest entry: h⁴ times fifth derivatives of up to 1e5, and eps / h
SYSTEMS = {"floater": (rs.floater, rs.MORE), "arm": (rs.arm, rs.ALL), "slider": (rs.slider, rs.ALL)}
arm_and_slider = pytest.mark.parametrize("system", ["arm", pytest.param("slider", marks=pytest.mark.slow)])
every_system = pytest.mark.parametrize("system", ["floater", "arm", pytest.param("slider", marks=pytest.mark.slow)])

integrate = jax.jit(jax.vmap(mb.integrate, in_axes=(None, 0, 0, 0)))
difference = jax.jit(jax.vmap(mb.difference, in_axes=(None, 0, 0)))


def values(system, q, v, a=None, tau=None, numbers=None, other=None):
    """Everything at a batch of states; accelerations and forces are zero when left out."""
    spec, names = SYSTEMS[system][0](), SYSTEMS[system][1]
    zero = np.zeros_like(v)
    return rs.results(spec, q, v, zero if a is None else a, zero if tau is None else tau, numbers, names, other)


def state(system, seed=0):
    """One random q, v, a, tau."""
    return (x[0] for x in rs.states(SYSTEMS[system][0](), seed, 1))


def repeated(x, count):
    return np.repeat(x[None], count, axis=0)


def along(system, q, v, a):
    """Four states (q, v) around a state on the way that v and a lead."""
    count = len(POINTS)
    moved = integrate(rs.built(SYSTEMS[system][0]()), repeated(q, count), repeated(v, count), POINTS)
    return np.asarray(moved), v + POINTS[:, None] * a


def rate(samples):
    """Time derivative from the four samples."""
    return np.tensordot(WEIGHTS, samples, axes=1)


def close(ours, theirs, tolerance=1e-11):
    """Equal to within tolerance times the largest entry (and one)."""
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=tolerance * max(1.0, np.abs(theirs).max()))


def vee(W):
    return np.stack([W[..., 2, 1], W[..., 0, 2], W[..., 1, 0]], axis=-1)


# ------------------------------------------------------------------------------------------------- mass matrix


@every_system
def test_mass_matrix_is_the_derivative_of_inverse_dynamics(system):
    q, v, *_ = state(system)
    nv = len(v)
    unit = np.concatenate([np.zeros((1, nv)), np.eye(nv)])
    r = values(system, repeated(q, nv + 1), repeated(v, nv + 1), a=unit)
    close((r["inverse_dynamics"][1:] - r["inverse_dynamics"][:1]).T, r["mass_matrix"][0])


@every_system
def test_mass_matrix_is_symmetric_and_positive_definite(system):
    q, v, a, tau = rs.states(SYSTEMS[system][0](), 1, rs.BATCH)
    M = values(system, q, v)["mass_matrix"]
    close(M, np.swapaxes(M, 1, 2), 4 * EPS)
    assert np.linalg.eigvalsh(M).min() > 0


@arm_and_slider
def test_minv_product_is_the_inverse_of_the_mass_matrix(system):
    q, v, a, tau = rs.states(SYSTEMS[system][0](), 1, rs.BATCH)
    r = values(system, q, v, tau=tau)
    close(np.einsum("nij,nj->ni", r["mass_matrix"], r["minv_product"]), tau)


@arm_and_slider
def test_log_det_mass(system):
    q, v, a, tau = rs.states(SYSTEMS[system][0](), 1, rs.BATCH)
    r = values(system, q, v)
    np.testing.assert_allclose(r["log_det_mass"], np.linalg.slogdet(r["mass_matrix"])[1], rtol=0, atol=1e-11)


@every_system
def test_rate_of_mass_matrix_minus_twice_coriolis_matrix_is_skew(system):
    q, v, *_ = state(system)
    qs, _ = along(system, q, v, np.zeros_like(v))
    M_dot = rate(values(system, qs, repeated(v, 4))["mass_matrix"])
    C = values(system, q[None], v[None])["coriolis_matrix"][0]
    S = M_dot - 2.0 * C
    close(S, -S.T, DIFFERENCES)
    assert np.abs(S).max() > 0.1


@every_system
def test_bias_is_coriolis_matrix_times_velocity_plus_gravity(system):
    q, v, *_ = rs.states(SYSTEMS[system][0](), 1, 3)
    r = values(system, q, v)
    gravity = values(system, q, np.zeros_like(v))["bias_force"]
    close(np.einsum("nij,nj->ni", r["coriolis_matrix"], v) + gravity, r["bias_force"])
    if "gravity_force" in r:
        close(r["gravity_force"], gravity)


# ------------------------------------------------------------------------------------------ energy and momentum


@every_system
def test_energy_changes_by_the_power_of_the_forces(system):
    spec = SYSTEMS[system][0]()
    q, v, _, tau = state(system)
    a = values(system, q[None], v[None], tau=tau[None])["forward_dynamics"][0]
    qs, vs = along(system, q, v, a)
    energy_rate = rate(sum(values(system, qs, vs)["energy"]))
    speeds = {name: np.asarray(x) for name, x in reference.speeds(spec, reference.numbers(spec), v).items()}
    power = v @ tau
    for j in reference.moving(spec):
        w = speeds[j.name]
        power -= w @ (j.damping * w + j.friction * np.tanh(w / j.friction_speed))
    close(energy_rate, power, DIFFERENCES)


def test_momentum_changes_by_the_external_wrench():
    spec, numbers = rs.floater(), rs.wrench_numbers(3)
    q, v, _, tau = state("floater")
    tau[rs.built(spec).v_slice("j0")] = 0.0  # what acts between the base and the world would be external
    r = values("floater", q[None], v[None], tau=tau[None], numbers=numbers)
    qs, vs = along("floater", q, v, r["forward_dynamics"][0])
    momentum_rate = rate(values("floater", qs, vs)["momentum"])
    m = np.array([b.mass for b in spec.bodies])
    k = jax.tree.map(lambda x: x[0], r["kinematics"])
    com = sum(b.mass * (k[b.name].position + k[b.name].rotation @ b.com) for b in spec.bodies) / m.sum()
    moment, force = np.zeros(3), m.sum() * spec.gravity
    for (frame, axes), (M, F, point) in zip(rs.AXES, numbers, strict=True):
        R = np.asarray(k[frame].rotation)
        M, F = (R @ M, R @ F) if axes == "local" else (M, F)
        moment = moment + M + np.cross(k[frame].position + R @ point - com, F)
        force = force + F
    close(momentum_rate, np.concatenate([moment, force]), DIFFERENCES)


@every_system
def test_centroidal_momentum_matrix(system):
    q, v, *_ = rs.states(SYSTEMS[system][0](), 1, 3)
    r, still = values(system, q, v), values(system, q, np.zeros_like(v))
    close(np.einsum("nij,nj->ni", r["centroidal_momentum_matrix"], v), r["momentum"] - still["momentum"])


# ------------------------------------------------------------------------------------------ forward and inverse


@pytest.mark.contract("S1-28")
@every_system
def test_round_trip_from_forces_to_motion_and_back(system):
    """Backward stable: the forces come back to rounding, whatever the condition of M; the motion to that times it."""
    q, v, a, tau = rs.states(SYSTEMS[system][0](), 1, 8)
    numbers = rs.wrench_numbers(3)
    r = values(system, q, v, a, tau, numbers)
    again = values(system, q, v, r["forward_dynamics"], r["inverse_dynamics"], numbers)
    norm = np.linalg.norm(r["mass_matrix"], axis=(1, 2))
    sizes = norm * np.linalg.norm(r["forward_dynamics"], axis=1) + np.linalg.norm(r["inverse_dynamics"], axis=1)
    assert np.all(np.linalg.norm(again["inverse_dynamics"] - tau, axis=1) < 100 * EPS * sizes)
    sizes = np.linalg.cond(r["mass_matrix"]) * (np.linalg.norm(a, axis=1) + np.linalg.norm(tau, axis=1) / norm)
    assert np.all(np.linalg.norm(again["forward_dynamics"] - a, axis=1) < 100 * EPS * sizes)


# -------------------------------------------------------------------------------------------------- kinematics


@every_system
def test_velocities_are_rates_of_poses(system):
    q, v, a, _ = state(system)
    now, r = (
        values(system, q[None], v[None], a[None])["kinematics"],
        values(system, *along(system, q, v, a))["kinematics"],
    )
    R_dot = rate(r.rotation)
    close(vee(R_dot @ np.swapaxes(now.rotation[0], 1, 2)), now.velocity[0, :, :3], DIFFERENCES)
    close(rate(r.position), now.velocity[0, :, 3:], DIFFERENCES)
    close(rate(r.velocity), now.acceleration[0], DIFFERENCES)


def test_jacobian_columns_are_derivatives_of_the_pose():
    q, v, *_ = state("arm")
    J = values("arm", q[None], v[None])["jacobian"][0]
    for i, direction in enumerate(np.eye(len(v))):
        qs, _ = along("arm", q, direction, np.zeros_like(v))
        k = values("arm", qs, repeated(v, 4))["kinematics"]["tool"]
        now = values("arm", q[None], v[None])["kinematics"]["tool"].rotation[0]
        close(np.concatenate([vee(rate(k.rotation) @ now.T), rate(k.position)]), J[:, i], DIFFERENCES)


def test_jacobian_rate_product_is_the_rate_of_the_jacobian():
    q, v, *_ = state("arm")
    qs, _ = along("arm", q, v, np.zeros_like(v))
    J_dot = rate(values("arm", qs, repeated(v, 4))["jacobian"])
    close(J_dot @ v, values("arm", q[None], v[None])["jacobian_rate_product"][0], DIFFERENCES)


# ---------------------------------------------------------------------------------------------------- manifold


@every_system
def test_difference_is_the_inverse_of_integrate(system):
    spec = SYSTEMS[system][0]()
    q, v, *_ = rs.states(spec, 2, 12)
    there = integrate(rs.built(spec), q, v, np.ones(12))
    close(difference(rs.built(spec), q, there), v, 1e-12)  # |v| of each rotation is below pi for these states
    other = rs.states(spec, 3, 12)[0]
    landed = np.asarray(integrate(rs.built(spec), q, difference(rs.built(spec), q, other), np.ones(12)))
    for name in rs.built(spec).joint_names:
        at = rs.built(spec).q_slice(name)
        one, two = landed[:, at], other[:, at]
        if rs.built(spec).joint(name).kind in reference.QUATERNION_KINDS:  # a quaternion and its negative are one
            one = np.concatenate([one[:, :4] * np.sign(np.sum(one[:, :4] * two[:, :4], 1))[:, None], one[:, 4:]], 1)
        close(one, two, 1e-12)


@every_system
def test_q_dot_is_the_rate_of_integrate(system):
    q, v, *_ = state(system)
    qs, _ = along(system, q, v, np.zeros_like(v))
    close(rate(qs), values(system, q[None], v[None])["q_dot"][0], DIFFERENCES)


# ------------------------------------------------------------------------------ shifters of Passerello & Huston


@pytest.mark.contract("S5-05")
def test_shifter_matrices():
    """S_ij = n_i · N_j is orthogonal, shifts components and chains, S0K = S0J SJK (Passerello & Huston, 1.8-1.14)."""
    spec, system = rs.floater(), rs.built(rs.floater())
    q, v, *_ = state("floater")
    k = jax.tree.map(lambda x: x[0], values("floater", q[None], v[None])["kinematics"])
    seen = {"world": np.eye(3)}
    for joint in sorted(spec.joints, key=lambda j: int(j.child[1:])):
        own = system.joint(joint.name).pose(q[system.q_slice(joint.name)] if reference.sizes(joint)[0] else np.zeros(0))
        inboard, outboard = mb.Pose(*joint.in_parent), mb.Pose(*joint.in_child)
        S = np.asarray(inboard.rotation @ own.rotation @ outboard.rotation.T)  # between adjoining bodies
        close(S @ S.T, np.eye(3), 1e-14)
        unit_dots = np.array([[n @ N for N in (seen[joint.parent] @ S).T] for n in seen[joint.parent].T])
        close(unit_dots, S, 1e-14)
        seen[joint.child] = seen[joint.parent] @ S
        close(k[joint.child].rotation, seen[joint.child], 1e-14)
    for name, frame_axes in seen.items():
        x = np.array([0.3, -0.7, 1.1])
        close(frame_axes @ x, sum(c * axis for c, axis in zip(x, frame_axes.T, strict=True)), 1e-14)
        assert name == "world" or np.linalg.det(frame_axes) > 0


@pytest.mark.contract("S5-08")
def test_rate_of_a_shifter_is_a_product():
    """dS/dt = W S with W_im = −e_imn ω_n (Passerello & Huston 1972, Eqs. 1.25-1.30)."""
    q, v, *_ = state("floater")
    now = values("floater", q[None], v[None])["kinematics"]
    S_dot = rate(values("floater", *along("floater", q, v, np.zeros_like(v)))["kinematics"].rotation)
    W = -np.einsum("imn,kn->kim", reference.EPSILON, now.velocity[0, :, :3])
    close(S_dot, W @ now.rotation[0], DIFFERENCES)


# -------------------------------------------------------------------------------------------- joint interactions


@pytest.mark.contract("S4-05")
def test_interaction_acts_on_both_bodies():
    """Λ = [L; F] at the outboard point, + on one body and − on the other: only the joint between feels it, as φᵀ Λ.

    The reaction on the inboard body is moved to another frame of it, with the moment of the shifted force.
    """
    spec, system = rs.floater(), rs.built(rs.floater())
    q, v, *_ = state("floater")
    k = jax.tree.map(lambda x: x[0], values("floater", q[None], v[None])["kinematics"])
    joint = next(j for j in spec.joints if j.name == "j1")
    assert (joint.parent, joint.child) == ("b0", "b1")
    L, F = np.random.default_rng(9).normal(size=(2, 3))
    outer, inner = k["b1"], k["eye"]
    point = outer.position + outer.rotation @ joint.in_child[0]  # Q^t
    arm = point - inner.position
    on_outer = outer.rotation.T @ L, outer.rotation.T @ F, joint.in_child[0]
    on_inner = -inner.rotation.T @ (L + np.cross(arm, F)), -inner.rotation.T @ F, np.zeros(3)
    nothing = (np.zeros(3),) * 3
    with_both = values("floater", q[None], v[None], numbers=(nothing, on_inner, on_outer))
    felt = values("floater", q[None], v[None])["inverse_dynamics"][0] - with_both["inverse_dynamics"][0]
    R = k["b0"].rotation @ np.asarray(mb.Pose(*joint.in_parent).rotation)
    modes = np.asarray(system.joint("j1").modes(q[system.q_slice("j1")]))
    expected = np.zeros_like(felt)
    expected[system.v_slice("j1")] = modes.T @ np.concatenate([R.T @ L, R.T @ F])
    close(felt, expected)


# --------------------------------------------------------------------- Slaats' recursion, body by body, dense

# Six-vectors are [angular; linear] here, at the centres of mass; Slaats stacks them the other way round.


def _cross_matrix(x):
    o = jnp.zeros(())
    return jnp.stack([jnp.stack([o, -x[2], x[1]]), jnp.stack([x[2], o, -x[0]]), jnp.stack([-x[1], x[0], o])])


@functools.cache
def _recursion():
    """(A, B) of every joint as a function of q, from poses and mode vectors of the library, and their rates."""
    spec, system = rs.floater(), rs.built(rs.floater())

    def operators(q):
        k = mb.kinematics(system, q)
        coms = {b.name: k[b.name].position + k[b.name].rotation @ b.com for b in spec.bodies}
        A, B = {}, {}
        for joint in spec.joints:
            if not reference.sizes(joint)[1]:
                continue
            record, own = system.joint(joint.name), q[system.q_slice(joint.name)]
            parent, child = k[joint.parent], k[joint.child]
            inboard = parent.rotation @ mb.Pose(*joint.in_parent).rotation
            modes = record.modes(own)
            modes = jnp.concatenate([inboard @ modes[:3], inboard @ modes[3:]])
            origin = child.position + child.rotation @ joint.in_child[0]
            start = coms.get(joint.parent, jnp.zeros(3))
            A[joint.name] = jnp.eye(6).at[3:, :3].set(-_cross_matrix(coms[joint.child] - start))
            shift = jnp.eye(6).at[3:, :3].set(-_cross_matrix(coms[joint.child] - origin))
            B[joint.name] = shift @ modes
        return A, B

    def with_rates(q, v):
        return jax.jvp(operators, (q,), (mb.q_dot(system, q, v),))

    return reference.jit_in_haste(with_rates)


def _at_com(k, body):
    """Velocity and acceleration [6] of a body's centre of mass from the library's kinematics."""
    m = k[body.name]
    arm = m.rotation @ body.com
    w, alpha = m.velocity[:3], m.acceleration[:3]
    velocity = np.concatenate([w, m.velocity[3:] + np.cross(w, arm)])
    return velocity, np.concatenate([alpha, m.acceleration[3:] + np.cross(alpha, arm) + np.cross(w, np.cross(w, arm))])


def _floater_motion(seed, a=None, tau=None, numbers=None):
    """State, kinematics at one state of the floater without springs, dampers and armature, A, B and their rates."""
    q, v, *_ = state("floater", seed)
    still = rs.built(rs.floater()).without_passive_forces()
    r = values(
        "floater", q[None], v[None], a if a is None else a[None], tau if tau is None else tau[None], numbers, still
    )
    r = jax.tree.map(lambda x: x[0], r)
    (A, B), (A_dot, B_dot) = jax.tree.map(np.asarray, _recursion()(q, v))
    return q, v, r, A, B, A_dot, B_dot


@pytest.mark.contract("S1-13", "S1-14")
def test_velocity_and_virtual_displacement_recursions():
    """v_j = A v_i + B q' (Slaats 1991, Eq. 3.26) and δu_j = A δu_i + B δq (3.32), with δu from moved poses."""
    spec = rs.floater()
    q, v, r, A, B, *_ = _floater_motion(0)
    bodies, system = {b.name: b for b in spec.bodies}, rs.built(spec)
    moved = values("floater", *along("floater", q, v, np.zeros_like(v)))["kinematics"]
    for joint in reference.moving(spec):
        own = v[system.v_slice(joint.name)]
        here, _ = _at_com(r["kinematics"], bodies[joint.child])
        before = np.zeros(6)
        if joint.parent != "world":
            before, _ = _at_com(r["kinematics"], bodies[joint.parent])
        close(here, A[joint.name] @ before + B[joint.name] @ own)

        def displacement(name):
            if name == "world":
                return np.zeros(6)
            R = moved[name].rotation
            turning = vee(rate(R) @ r["kinematics"][name].rotation.T)
            return np.concatenate([turning, rate(moved[name].position + R @ bodies[name].com)])

        expected = A[joint.name] @ displacement(joint.parent) + B[joint.name] @ own
        close(displacement(joint.child), expected, DIFFERENCES)


@pytest.mark.contract("S1-15")
def test_acceleration_recursion():
    """v_j' = A v_i' + B q'' + D (Slaats 1991, Eq. 3.35), D = A' v_i + B' q' by a JVP of A and B along the motion."""
    spec = rs.floater()
    a = np.random.default_rng(4).normal(size=rs.built(spec).nv)
    q, v, r, A, B, A_dot, B_dot = _floater_motion(0, a=a)
    bodies, system = {b.name: b for b in spec.bodies}, rs.built(spec)
    for joint in reference.moving(spec):
        at = system.v_slice(joint.name)
        _, here = _at_com(r["kinematics"], bodies[joint.child])
        velocity, before = np.zeros(6), np.zeros(6)
        if joint.parent != "world":
            velocity, before = _at_com(r["kinematics"], bodies[joint.parent])
        D = A_dot[joint.name] @ velocity + B_dot[joint.name] @ v[at]
        close(here, A[joint.name] @ before + B[joint.name] @ a[at] + D)


def _world_inertia(k, body):
    R = np.asarray(k[body.name].rotation)
    return R @ body.inertia @ R.T, R @ body.rotor_momentum


def _mass_and_load(k, body, gravity):
    """M = diag(J, m 1) and Q = [T − w × J w; F] of a body under gravity (Slaats 1991, Eqs. 3.46, 3.48)."""
    J, spin = _world_inertia(k, body)
    w = k[body.name].velocity[:3]
    M = np.zeros((6, 6))
    M[:3, :3], M[3:, 3:] = J, body.mass * np.eye(3)
    return M, np.concatenate([-np.cross(w, J @ w + spin), body.mass * gravity])


@pytest.mark.contract("S1-03")
def test_virtual_work_vanishes_in_admissible_directions_only():
    """Σ δu_i · (M_i v_i' − Q_i) = 0 for δu in the columns of the system's Jacobian (Slaats 1991, Eq. 3.44)."""
    spec = rs.floater()
    q, v, r, *_ = _floater_motion(1)
    a = r["forward_dynamics"]
    *_, r = _floater_motion(1, a=a)[:3]
    still = rs.built(spec).without_passive_forces()
    columns = values("floater", repeated(q, len(v)), np.eye(len(v)), other=still)["kinematics"]
    residual, J = [], []
    for body in spec.bodies:
        M, Q = _mass_and_load(r["kinematics"], body, spec.gravity)
        residual.append(M @ _at_com(r["kinematics"], body)[1] - Q)
        J.append(
            np.stack([_at_com(jax.tree.map(lambda x, i=i: x[i], columns), body)[0] for i in range(len(v))], axis=1)
        )
    residual, J = np.concatenate(residual), np.concatenate(J)
    scale = np.linalg.norm(residual)
    assert np.abs(J.T @ residual).max() < 1e-11 * scale * np.abs(J).max()
    inadmissible = np.linalg.svd(J)[0][:, len(v) :]  # orthogonal to all columns
    assert np.abs(inadmissible.T @ residual).max() > 1e-2 * scale
    np.testing.assert_allclose(np.linalg.norm(inadmissible.T @ residual), scale, rtol=1e-9)


@pytest.mark.contract("S1-17")
def test_body_mass_matrix_and_load_column():
    """M v' − Q of Slaats (1991), Eqs. 3.46-3.48, is the rate of momentum less the load, at any reference point."""
    rng = np.random.default_rng(0)
    body, w, alpha, a, arm = rs.random_body(rng, "body"), *rng.normal(size=(4, 3))
    J, m = body.inertia, body.mass
    sym = Sym3(*J[np.triu_indices(3)])
    central = Inertia(m, Vec3.zero(), sym)
    F = central.inertial_force(Vec3(*w), Vec3(*alpha), Vec3(*a))
    f = np.array([F.moment.x, F.moment.y, F.moment.z, F.force.x, F.force.y, F.force.z])
    close(f, np.concatenate([J @ alpha + np.cross(w, J @ w), m * a]), 1e-14)
    # rate of the angular momentum R J Rᵀ w of a body that turns with w and alpha
    R = [reference.axis_angle(w, np.linalg.norm(w) * s) for s in POINTS]
    spin = np.stack([Ri @ J @ Ri.T @ (w + s * alpha) for Ri, s in zip(R, POINTS, strict=True)])
    close(f[:3], rate(spin), DIFFERENCES)
    # the same body about a point displaced by −arm from its centre of mass
    G = central.shift(Vec3(*arm)).inertial_force(
        Vec3(*w), Vec3(*alpha), Vec3(*(a - np.cross(alpha, arm) - np.cross(w, np.cross(w, arm))))
    )
    g = np.array([G.moment.x, G.moment.y, G.moment.z, G.force.x, G.force.y, G.force.z])
    close(g, np.concatenate([f[:3] + np.cross(arm, f[3:]), f[3:]]), 1e-14)


@pytest.mark.contract("S1-18", "S1-19")
def test_elimination_from_leaf_to_base():
    """Slaats' recursion (1991, Eqs. 3.51-3.61, signs of Q_r corrected) written with 6 x 6 matrices gives q''.

    Each joint's accelerations are eliminated at once, children's contributions summed, the base equation solved last.
    """
    spec, system = rs.floater(), rs.built(rs.floater())
    tau = np.random.default_rng(6).normal(size=system.nv)
    q, v, r, A, B, A_dot, B_dot = _floater_motion(2, tau=tau)
    k, bodies = r["kinematics"], {b.name: b for b in spec.bodies}
    M = {b.name: _mass_and_load(k, b, spec.gravity)[0] for b in spec.bodies}
    Q = {b.name: _mass_and_load(k, b, spec.gravity)[1] for b in spec.bodies}
    for joint in spec.joints:  # the welded body moves with its parent: one rigid body at the parent's centre of mass
        if joint.kind == "fixed":
            arm = np.asarray(k[joint.child].position + k[joint.child].rotation @ bodies[joint.child].com)
            arm = arm - (k[joint.parent].position + k[joint.parent].rotation @ bodies[joint.parent].com)
            A_weld = np.eye(6)
            A_weld[3:, :3] = -np.asarray(_cross_matrix(arm))
            w = k[joint.parent].velocity[:3]
            D_weld = np.concatenate([np.zeros(3), np.cross(w, np.cross(w, arm))])
            M[joint.parent] = M[joint.parent] + A_weld.T @ M[joint.child] @ A_weld
            Q[joint.parent] = Q[joint.parent] + A_weld.T @ (Q[joint.child] - M[joint.child] @ D_weld)
    joints = reference.moving(spec)
    parents, D = {j.child: j for j in joints}, {}
    for j in joints:
        before = np.zeros(6) if j.parent == "world" else _at_com(k, bodies[j.parent])[0]
        D[j.name] = A_dot[j.name] @ before + B_dot[j.name] @ v[system.v_slice(j.name)]
    depth = lambda j: 0 if j.parent == "world" else 1 + depth(parents[j.parent])  # noqa: E731
    outward = sorted(joints, key=depth)
    for j in reversed(outward):
        Ak, Bk, Dk, Mj, Qj = A[j.name], B[j.name], D[j.name], M[j.child], Q[j.child]
        BMB = Bk.T @ Mj @ Bk
        assert np.linalg.eigvalsh(BMB).min() > 0  # the small inverse exists
        if j.parent == "world":
            continue
        gain = Mj @ Bk @ np.linalg.inv(BMB)
        M[j.parent] = M[j.parent] + Ak.T @ (Mj - gain @ Bk.T @ Mj) @ Ak
        rest = Qj - Mj @ Dk
        Q[j.parent] = Q[j.parent] + Ak.T @ (rest - gain @ (Bk.T @ rest + tau[system.v_slice(j.name)]))
    acceleration, a = {"world": np.zeros(6)}, np.zeros(system.nv)
    for j in outward:
        Bk, known = B[j.name], A[j.name] @ acceleration[j.parent] + D[j.name]
        right = tau[system.v_slice(j.name)] + Bk.T @ (Q[j.child] - M[j.child] @ known)
        own = np.linalg.solve(Bk.T @ M[j.child] @ Bk, right)
        a[system.v_slice(j.name)], acceleration[j.child] = own, known + Bk @ own
    condition = np.linalg.cond(r["mass_matrix"])
    close(r["forward_dynamics"], a, 1e-12 * condition)
    dense = np.linalg.solve(r["mass_matrix"], tau - r["bias_force"])
    close(r["forward_dynamics"], dense, 1e-12 * condition)


# ------------------------------------------------------------------------------- operators of Jain & Rodriguez

OPERATOR_NAMES = ("mass_matrix", "forward_dynamics", "inverse_dynamics", "kinematics")


@functools.cache
def _branched():
    """A tree with several freedoms a joint, without springs, dampers and armature."""
    return rs.random_tree(5, ("universal", "spherical", "revolute", "prismatic"), "branches")


@functools.cache
def _operators():
    """(system, q, v, dense operators, rates of the bodies' velocities at v' = 0, sweep results without gravity)."""
    spec, system = _branched(), rs.built(_branched())
    q, v, a, tau = rs.states(spec, 0, 1)

    def dense(q):
        o = dense_operators(system, q)
        return o._replace(order=jnp.asarray(o.order))

    def with_rates(q, v):
        def stacked(q):
            o = dense(q)
            return (o.H @ o.Phi).T @ jnp.zeros(system.nv).at[o.order].set(v)

        return dense(q), jax.jvp(stacked, (q,), (mb.q_dot(system, q, v),))

    o, (V, V_dot) = jax.tree.map(np.asarray, reference.jit_in_haste(with_rates)(q[0], v[0]))
    r = rs.results(spec, q, v, a, tau, None, OPERATOR_NAMES)
    return spec, system, (q[0], v[0], a[0], tau[0]), o, V, V_dot, jax.tree.map(lambda x: x[0], r)


@functools.cache
def _velocity_products():
    """Per slot: a = (1 − E*) V' (gravity's −g at the base included) and b = [w × J w; w × (w × h)]."""
    spec, _, _, o, V, V_dot, _ = _operators()
    n = len(o.D)
    roots = np.array([not np.any(o.E_phi[:, 6 * k : 6 * k + 6]) for k in range(n)])
    a = V_dot - o.E_phi.T @ V_dot + np.outer(roots, np.concatenate([np.zeros(3), -spec.gravity])).ravel()
    b = np.zeros(6 * n)
    for k in range(n):
        block, w = o.M_spatial[6 * k : 6 * k + 6, 6 * k : 6 * k + 6], V[6 * k : 6 * k + 3]
        h = np.array([block[2, 4], block[0, 5], block[1, 3]])  # of the skew block [[0, -hz, hy], [hz, 0, -hx], ...]
        b[6 * k : 6 * k + 6] = np.concatenate([np.cross(w, block[:3, :3] @ w), np.cross(w, np.cross(w, h))])
    return a, b


@pytest.mark.contract("S2-01")
def test_shift_operators_form_a_group():
    """phi(x, y) phi(y, z) = phi(x, z), phi(x, x) = 1 (Jain & Rodriguez 1990, Eq. 3.8)."""
    x, y, z = np.random.default_rng(0).normal(size=(3, 3))
    xy, yz, xz = (shift_operator(jnp.asarray(d)) for d in (y - x, z - y, z - x))
    close(xy @ yz, xz, 4 * EPS)
    close(xy @ shift_operator(jnp.asarray(x - y)), np.eye(6), 4 * EPS)
    np.testing.assert_array_equal(shift_operator(jnp.zeros(3)), np.eye(6))


@pytest.mark.contract("S2-07")
def test_stacked_operators():
    """E is nilpotent, Phi = 1 + E + E² + ..., and the sweep's velocities are Phi* H* v (Eqs. 3.20-3.22)."""
    spec, system, (q, v, *_), o, V, _, r = _operators()
    n = len(o.D)
    assert not np.any(np.linalg.matrix_power(o.E_phi, n))
    close(sum(np.linalg.matrix_power(o.E_phi, i) for i in range(n)), o.Phi, 1e-13)
    sweep = np.zeros(n)
    sweep[o.order] = v
    close(o.Phi.T @ o.H.T @ sweep, V, 1e-13)
    for joint in spec.joints:
        slot = o.order[system.v_slice(joint.name).stop - 1]
        k = r["kinematics"][joint.child]
        arm = k.rotation @ joint.in_child[0]  # from the body's origin to the outboard joint frame's
        expected = np.concatenate([k.velocity[:3], k.velocity[3:] + np.cross(k.velocity[:3], arm)])
        close(V[6 * slot : 6 * slot + 6], expected, 1e-13)


@pytest.mark.contract("S2-11")
def test_newton_euler_factorisation():
    """M = H Phi M_s Phi* H* and C = H Phi (M_s Phi* a + b) (Eqs. 3.42-3.45) are what the sweeps give."""
    _, _, (q, v, acc, tau), o, _, _, r = _operators()
    a, b = _velocity_products()
    M = (o.H @ o.Phi @ o.M_spatial @ o.Phi.T @ o.H.T)[np.ix_(o.order, o.order)]
    close(M, M.T, 1e-13)
    assert np.linalg.eigvalsh(M).min() > 0
    close(M, r["mass_matrix"], 1e-12)
    C = (o.H @ o.Phi @ (o.M_spatial @ o.Phi.T @ a + b))[o.order]
    close(M @ acc + C, r["inverse_dynamics"], 1e-12)


@pytest.mark.contract("S2-14")
def test_composite_bodies():
    """R = M_s + E R E* (Eq. 5.2), Phi M_s Phi* = R + (Phi − 1) R + R (Phi − 1)* (Lemma 5.1), dense solve (5.1)."""
    _, _, (q, v, acc, tau), o, _, _, r = _operators()
    a, b = _velocity_products()
    n = len(o.D)
    R = o.M_spatial
    for _ in range(n):  # E is nilpotent: the recursion ends
        R = o.M_spatial + _block_diagonal(o.E_phi @ R @ o.E_phi.T, n)
    loose = o.Phi - np.eye(6 * n)
    on_paths = np.kron(np.asarray(_related(o.E_phi, n)), np.ones((6, 6)))
    left = o.Phi @ o.M_spatial @ o.Phi.T
    close(left * on_paths, (R + loose @ R + R @ loose.T) * on_paths, 1e-12)
    M = o.H @ (R + loose @ R + R @ loose.T) @ o.H.T
    M = M[np.ix_(o.order, o.order)]
    close(M, r["mass_matrix"], 1e-12)
    C = (o.H @ o.Phi @ (o.M_spatial @ o.Phi.T @ a + b))[o.order]
    close(np.linalg.solve(M, tau - C), r["forward_dynamics"], 1e-12 * np.linalg.cond(M))


def _block_diagonal(X, n):
    return X * np.kron(np.eye(n), np.ones((6, 6)))


def _related(E, n):
    """Whether one slot is on the other's path to the base."""
    links = np.array([[np.any(E[6 * i : 6 * i + 6, 6 * j : 6 * j + 6]) for j in range(n)] for i in range(n)], float)
    paths = np.linalg.inv(np.eye(n) - links)
    return (paths + paths.T) > 0.5


@pytest.mark.contract("S2-15")
def test_articulated_quantities():
    """P, D = H P H*, G = P H* D^-1, K = E G, tau = 1 − G H, P+ = tau P, E_psi = E tau (Eqs. 6.1-6.3)."""
    *_, o, _, _, _ = _operators()
    n = len(o.D)
    close(np.diag(np.diag(o.H @ o.P @ o.H.T)), o.D, 1e-13)
    close(_columns(o.P @ o.H.T @ np.linalg.inv(o.D), n), o.G, 1e-13)
    close(o.E_phi @ o.G, o.K, 1e-13)
    tau = np.eye(6 * n) - o.G @ o.H
    close(o.E_phi @ tau, o.E_psi, 1e-13)
    close(np.linalg.inv(np.eye(6 * n) - o.E_psi), o.Psi, 1e-12)
    close(o.M_spatial + _block_diagonal(o.E_phi @ (tau @ o.P) @ o.E_phi.T, n), o.P, 1e-12)
    close((tau @ o.P) @ o.H.T, np.zeros((6 * n, n)), 1e-12)  # nothing is felt along an eliminated mode


def _columns(X, n):
    return X * np.kron(np.eye(n), np.ones((6, 1)))


@pytest.mark.contract("S2-16")
def test_innovations_factorisation():
    """M = [1 + H Phi K] D [1 + H Phi K]*, its inverse (Lemmas 6.1-6.3), log det M, M^-1 f and a root of M^-1."""
    _, system, (q, v, acc, tau), o, _, _, r = _operators()
    n, order = len(o.D), np.ix_(o.order, o.order)
    factor, inverse = np.eye(n) + o.H @ o.Phi @ o.K, np.eye(n) - o.H @ o.Psi @ o.K
    M = r["mass_matrix"]
    condition = np.linalg.cond(M)
    close((factor @ o.D @ factor.T)[order], M, 1e-12)
    close(factor @ inverse, np.eye(n), 1e-12)
    W = inverse.T @ np.diag(np.diag(o.D) ** -0.5)
    close((inverse.T @ np.linalg.inv(o.D) @ inverse)[order], np.linalg.inv(M), 1e-13 * condition)
    np.testing.assert_allclose(np.sum(np.log(np.diag(o.D))), np.linalg.slogdet(M)[1], rtol=0, atol=1e-12)

    @reference.jit_in_haste
    def sweeps(q, f):
        root = jax.vmap(mb.minv_sqrt_product, in_axes=(None, None, 0), out_axes=1)(system, q, jnp.eye(n))
        return mb.log_det_mass(system, q), mb.minv_product(system, q, f), root

    log_det, product, root = sweeps(q, tau)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(M)[1], rtol=0, atol=1e-12)
    close(product, np.linalg.solve(M, tau), 1e-13 * condition)
    close(root, W[order], 1e-13 * condition)
    close(root @ root.T, np.linalg.inv(M), 1e-13 * condition)


@pytest.mark.contract("S2-17")
def test_closed_form_accelerations():
    """v' = [1 − H Psi K]* D^-1 [T − H Psi (K T + P a + b)] − K* Psi* a (Lemma 7.1, Eq. 7.1)."""
    _, _, (q, v, acc, tau), o, _, _, r = _operators()
    a, b = _velocity_products()
    n = len(o.D)
    T = np.zeros(n)
    T[o.order] = tau
    inverse = np.eye(n) - o.H @ o.Psi @ o.K
    innovations = T - o.H @ o.Psi @ (o.K @ T + o.P @ a + b)
    closed = inverse.T @ np.linalg.solve(o.D, innovations) - o.K.T @ o.Psi.T @ a
    close(closed[o.order], r["forward_dynamics"], 1e-12 * np.linalg.cond(r["mass_matrix"]))


# --------------------------------------------------------------------------------------------------- numbering


def test_order_of_declaration_changes_nothing():
    """The same tree declared back to front: q and v are permuted, every result with them."""
    spec = _branched()
    turned = rs.SystemSpec(spec.bodies[::-1], spec.joints[::-1], spec.frames[::-1], gravity=spec.gravity)
    one = rs.built(spec)
    q, v, a, tau = rs.states(spec, 0, 3)
    to_q = np.concatenate([np.arange(one.nq)[one.q_slice(j.name)] for j in turned.joints])
    to_v = np.concatenate([np.arange(one.nv)[one.v_slice(j.name)] for j in turned.joints])
    first = rs.results(spec, q, v, a, tau, None, OPERATOR_NAMES)
    names = ("forward_dynamics", "mass_matrix")
    second = rs.results(turned, q[:, to_q], v[:, to_v], a[:, to_v], tau[:, to_v], None, names)
    close(
        second["forward_dynamics"],
        first["forward_dynamics"][:, to_v],
        1e-12 * np.linalg.cond(first["mass_matrix"]).max(),
    )
    close(second["mass_matrix"], first["mass_matrix"][:, to_v][:, :, to_v], 1e-13)
    assert rs.built(turned).joint_names == one.joint_names[::-1] and rs.built(turned).body_names == one.body_names[::-1]
