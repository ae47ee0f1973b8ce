"""The joint record: pose, modes, dual basis, rate and kinematical equation of every constructor, and its error texts.

Closed forms are written out here; poses and derivatives come from `reference.py`, which has its own pose of every kind.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
import reference

import jaxmbd as mb

EPS = np.finfo(float).eps
QUICK = ("fixed", "revolute", "continuous", "prismatic", "screw", "cylindrical", "universal", "spherical", "free")
QUICK += ("screw_product:2", "mapped:surface", "mapped:curve")
SLOW = (
    "gimbal:xyz",
    "gimbal:zxz",
    "planar",
    "translational",
    "screw_product:3",
)  # three screws: long programs to compile
KINDS = QUICK + SLOW
EXACT = 1e-14  # a dozen roundings of numbers of order one
DERIVED = 1e-12  # a derivative or an inverse of a well-conditioned basis


def over(names, slow):
    return pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in slow)) for k in names])


LATER = (*SLOW, "cylindrical", "universal", "screw_product:2")  # what a quick run can do without
kinds = over(KINDS, LATER)
moving_kinds = over(KINDS[1:], LATER)


@functools.cache
def spec_of(kind):
    return rs.random_joint(np.random.default_rng(KINDS.index(kind)), kind, "joint", "world", "body", offsets=False)


@functools.cache
def state_of(kind):
    """A random q and v, rotations and angles away from the identity."""
    rng, joint = np.random.default_rng(7), spec_of(kind)
    nq, nv = reference.sizes(joint)
    q = rng.normal(size=nq)
    if joint.kind in reference.QUATERNION_KINDS:
        q[:4] /= np.linalg.norm(q[:4])
    return q, rng.normal(size=nv)


def reference_pose(joint, q):
    """Pose (R, p) of the outboard frame from the reference, in its own two lines of assembly."""
    body = rs.BodySpec("body", 1.0)
    spec = rs.SystemSpec((body,), (joint,))
    return reference.poses(spec, reference.numbers(spec), q)["body"]


def reference_motion(joint, q, v):
    """[Ω; V]: relative angular velocity, and velocity of the outboard origin as seen in the inboard frame."""
    moved = reference.joint_q_dot(joint, q, v)
    (R, _), (R_dot, p_dot) = jax.jvp(lambda q: reference_pose(joint, q), (q,), (moved,))
    W = R_dot @ R.T
    return jnp.concatenate([jnp.stack([W[2, 1], W[0, 2], W[1, 0]]), p_dot])


@functools.cache
def results(kind):
    """The record's members at the state, and the reference's, by name."""
    joint = spec_of(kind)
    record = rs.constructed(joint)

    def both(q, v):
        pose = record.pose(q)
        R, p = reference_pose(joint, q)
        zero = jnp.zeros(record.nv)
        C_dot = jax.jacfwd(lambda q: record.pose(q).rotation)(q)
        return {
            "dC/dq C^T": jnp.einsum("ijk,lj->kil", C_dot, pose.rotation),
            "R": pose.rotation,
            "p": pose.position,
            "modes": record.modes(q),
            "locked": record.locked_modes(q),
            "driven": record.driven_modes(q),
            "dual": record.dual(q),
            "N": record.N(q),
            "reference R": R,
            "reference p": p,
            "reference modes": jax.jacfwd(lambda v: reference_motion(joint, q, v))(zero),
            "reference q_dot": reference.joint_q_dot(joint, q, v),
        }

    return jax.tree.map(np.asarray, both(*state_of(kind)))


def close(ours, theirs, tolerance=EXACT):
    """Equal to within tolerance times the largest entry (and one)."""
    theirs = np.asarray(theirs)
    scale = max(1.0, np.abs(theirs).max(initial=0.0))
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=tolerance * scale)


def turn(axis, angle):
    return np.asarray(reference.axis_angle(np.asarray(axis, float), angle))


# ------------------------------------------------------------------------------------------------ pose and modes


@kinds
def test_pose(kind):
    r = results(kind)
    close(r["R"], r["reference R"])
    close(r["p"], r["reference p"])
    close(r["R"] @ r["R"].T, np.eye(3))


@pytest.mark.contract("S4-03")
@moving_kinds
def test_modes_times_velocity_is_the_relative_motion(kind):
    """G = modes v: Ω from B' Bᵀ and V = z' in the inboard frame, for the position z and orientation B of the pose."""
    r, (_, v) = results(kind), state_of(kind)
    close(r["modes"] @ v, r["reference modes"] @ v, DERIVED)
    close(r["modes"], r["reference modes"], DERIVED)


def hand_written_modes(joint, q, R):
    """Mode vectors from the textbook, in inboard axes at the outboard origin."""
    u, pitches = (np.asarray(x, float) for x in reference.axes_and_pitches(joint))
    u = u / np.linalg.norm(u, axis=1, keepdims=True) if len(u) else u
    o = np.zeros(3)
    if joint.kind in ("revolute", "continuous"):
        return [[*u[0], *o]]
    if joint.kind == "prismatic":
        return [[*o, *u[0]]]
    if joint.kind == "screw":
        return [[*u[0], *(pitches[0] * u[0])]]
    if joint.kind == "cylindrical":
        return [[*u[0], *o], [*o, *u[0]]]
    if joint.kind == "universal":
        return [[*u[0], *o], [*(turn(u[0], q[0]) @ u[1]), *o]]
    if joint.kind == "planar":
        return [[*o, *u[0]], [*o, *u[1]], [*u[2], *o]]
    if joint.kind == "gimbal":
        first = turn(u[0], q[0])
        return [[*u[0], *o], [*(first @ u[1]), *o], [*(first @ turn(u[1], q[1]) @ u[2]), *o]]
    if joint.kind == "translational":
        return [[*o, *e] for e in np.eye(3)]
    if joint.kind == "spherical":
        return [[*e, *o] for e in R.T]
    if joint.kind == "free":
        return [[*e, *o] for e in R.T] + [[*o, *e] for e in R.T]
    return None


@moving_kinds
def test_modes_equal_the_hand_written_ones(kind):
    r, (q, _) = results(kind), state_of(kind)
    by_hand = hand_written_modes(spec_of(kind), q, r["R"])
    if by_hand is None:
        pytest.skip("no textbook form; compared with the reference's derivative above")
    close(r["modes"], np.array(by_hand).T, DERIVED)


@pytest.mark.contract("S1-12")
@moving_kinds
def test_angular_velocity_columns(kind):
    """w^k from dC/dq_k C^T (Slaats 1991, Eqs. 3.11-3.15), each skew, equal the hand-written map, for any C(q)."""
    r, (q, _) = results(kind), state_of(kind)
    W = r["dC/dq C^T"]
    close(W, -np.swapaxes(W, 1, 2), DERIVED)
    columns = np.stack([W[:, 2, 1], W[:, 0, 2], W[:, 1, 0]]) @ r["N"]
    close(columns, r["reference modes"][:3], DERIVED)
    by_hand = hand_written_modes(spec_of(kind), q, r["R"])
    if by_hand is not None:
        close(columns, np.array(by_hand).T[:3], DERIVED)


@over(("cylindrical", "universal", "spherical", "free"), ("cylindrical", "universal"))
def test_modes_equal_those_of_a_mapped_joint_with_the_same_pose(kind):
    record, (q, _) = rs.constructed(spec_of(kind)), state_of(kind)
    twin = mb.mapped(record.pose, record.nq).modes(q)
    close(np.asarray(twin) @ results(kind)["N"], results(kind)["modes"], DERIVED)


@moving_kinds
def test_rate_is_the_derivative_of_the_motion_at_constant_velocity(kind):
    joint, (q, v) = spec_of(kind), state_of(kind)
    q_dot = reference.joint_q_dot(joint, q, v)

    expected = jax.jvp(lambda q: reference_motion(joint, q, v), (q,), (q_dot,))[1]
    close(rs.constructed(joint).rate(q, v), expected, DERIVED)


@moving_kinds
def test_kinematical_equation(kind):
    """q' = N(q) v."""
    r, (_, v) = results(kind), state_of(kind)
    close(r["N"] @ v, r["reference q_dot"], DERIVED)


@pytest.mark.parametrize("kind", ["spherical", "free"])
def test_pose_does_not_depend_on_the_length_of_the_quaternion(kind):
    q, _ = state_of(kind)
    longer = np.concatenate([1.7 * q[:4], q[4:]])
    pose = rs.constructed(spec_of(kind)).pose(longer)
    close(pose.rotation, results(kind)["R"])
    close(pose.position, results(kind)["p"])


# ------------------------------------------------------------------------------------------------- dual basis


@pytest.mark.contract("S4-13")
@moving_kinds
def test_dual_basis(kind):
    """dualᵀ [modes, locked] = 1 (Schwertassek & Senger 1988, Eq. 3.20), g = ψᵀ G and 0 = ψ̄ᵀ G (3.22)."""
    r, (_, v) = results(kind), state_of(kind)
    nv = len(v)
    basis = np.concatenate([r["modes"], r["driven"], r["locked"]], axis=1)
    assert basis.shape == (6, 6)
    close(r["dual"].T @ basis, np.eye(6), DERIVED)
    G = r["modes"] @ v
    close(r["dual"][:, :nv].T @ G, v, DERIVED)
    close(r["dual"][:, nv:].T @ G, np.zeros(6 - nv), DERIVED)
    if np.allclose(basis.T @ basis, np.eye(6), atol=1e-12):  # orthogonal: the basis is its own dual
        close(r["dual"], basis, DERIVED)


@pytest.mark.contract("S4-11")
@moving_kinds
def test_constrained_modes_are_computed(kind):
    """wᵀ φ = 0 and wᵀ φ̄ = 1 with w = ψ̄ (Eqs. 3.10-3.14, 3.21); the locked modes come without being supplied."""
    r, nv = results(kind), len(state_of(kind)[1])
    w = r["dual"][:, nv:]
    close(w.T @ r["modes"], np.zeros((6 - nv, nv)), DERIVED)
    close(w.T @ r["locked"], np.eye(6 - nv), DERIVED)
    close(r["locked"].T @ r["locked"], np.eye(6 - nv), DERIVED)


def test_orthogonal_bases_are_met():
    """The orthogonal case above is not empty."""
    for kind in ("revolute", "prismatic", "cylindrical", "spherical", "free"):
        r = results(kind)
        basis = np.concatenate([r["modes"], r["locked"]], axis=1)
        close(basis.T @ basis, np.eye(6), DERIVED)


# ----------------------------------------------------------------------------------- positions and orientations


def implicit_constraints(joint, q, R, z):
    """f_p(B, z) of a joint, zero on the joint (Schwertassek & Senger 1988, Eq. 3.1), without its coordinates q."""
    u, pitches = (np.asarray(x, float) for x in reference.axes_and_pitches(joint))
    u = u / np.linalg.norm(u, axis=1, keepdims=True) if len(u) else u
    unturned = R - np.eye(3)
    if joint.kind in ("revolute", "continuous"):
        return [*(R @ u[0] - u[0]), *z]
    if joint.kind == "prismatic":
        return [*unturned.ravel(), *np.cross(u[0], z)]
    if joint.kind == "screw":  # the angle from R, valid within half a turn
        w = np.array([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]])
        angle = np.arctan2(0.5 * w @ u[0], 0.5 * (np.trace(R) - 1.0))
        return [*(R @ u[0] - u[0]), *(z - pitches[0] * angle * u[0])]
    if joint.kind == "cylindrical":
        return [*(R @ u[0] - u[0]), *np.cross(u[0], z)]
    if joint.kind == "universal":
        return [u[0] @ R @ u[1] - u[0] @ u[1], *z]
    if joint.kind == "planar":
        return [*(R @ u[2] - u[2]), u[2] @ z]
    if joint.kind in ("gimbal", "spherical"):
        return list(z)
    if joint.kind == "translational":
        return list(unturned.ravel())
    if joint.kind == "fixed":
        return [*unturned.ravel(), *z]
    if joint.kind == "free":
        return [0.0]
    if joint.parameters.get("function") is rs.surface:
        x, y = z[0], 2.0 * z[1]
        return [z[2] - 0.3 * x**2 + 0.2 * x * y, *(R - turn([1, 0, 0], y) @ turn([0, 1, 0], x)).ravel()]
    if joint.parameters.get("function") is rs.curve:
        s = z[2] / 0.3
        return [z[0] - np.cos(s), z[1] - 0.5 * np.sin(2 * s), *(R @ [0.3, -0.5, 0.8] - np.array([0.3, -0.5, 0.8]))]
    return None


@pytest.mark.contract("S4-08")
@kinds
def test_explicit_form_satisfies_the_implicit_constraints(kind):
    """f_p(B(p), z(p)) = 0 identically (Schwertassek & Senger 1988, Eqs. 3.3, 3.4)."""
    r, (q, _) = results(kind), state_of(kind)
    residual = implicit_constraints(spec_of(kind), q, r["R"], r["p"])
    if residual is None:
        pytest.skip("a product of three general screws has no short implicit form")
    close(residual, np.zeros(len(residual)))


def _in_turn(sequence, q):
    """Rotation by successive turns about the moved axes of a sequence."""
    R = np.eye(3)
    for letter, angle in zip(sequence, q, strict=True):
        R = R @ reference.axis_angle(np.eye(3)["xyz".index(letter)], angle)
    return R


@pytest.mark.contract("S4-04")
@pytest.mark.parametrize("sequence", ["xyz", "zxz"])
def test_kinematics_of_position_variables(sequence):
    """B' = −B Ω̃, z' = V, and P' = X_I(P) G for six position variables: angles of a sequence and a position.

    X_I is written out for 1-2-3 angles; for every sequence it is the inverse of the six mode vectors. A free joint's
    quaternion moves with half q ⊗ (0, w) instead.
    """

    def position_variables(P):
        return mb.Pose(P[:3], _in_turn(sequence, P[3:]))

    joint = mb.mapped(position_variables, 6)
    rng = np.random.default_rng(3)
    P, G = rng.normal(size=6), rng.normal(size=6)
    P_dot = np.linalg.solve(joint.modes(P), G)

    @reference.jit_in_haste
    def moving(P, P_dot):
        return jax.jvp(lambda P: (joint.pose(P).rotation, joint.pose(P).position), (P,), (P_dot,))

    (R, z), (R_dot, z_dot) = moving(P, P_dot)
    B, B_dot = np.asarray(R).T, np.asarray(R_dot).T  # B maps inboard axes to outboard axes
    close(B_dot, -B @ np.asarray(reference.skew(G[:3])), DERIVED)
    close(z_dot, G[3:], DERIVED)
    if sequence == "xyz":
        (_, _, _, a, b, _), c, s, t = P, np.cos, np.sin, np.tan
        X = np.array(
            [
                [1.0, s(a) * t(b), -c(a) * t(b)],
                [0.0, c(a), s(a)],
                [0.0, -s(a) / c(b), c(a) / c(b)],
            ]
        )
        close(P_dot, np.concatenate([G[3:], X @ G[:3]]), DERIVED)
    free = mb.free()
    q, _ = state_of("free")
    R = np.asarray(free.pose(q).rotation)
    v = np.concatenate([R.T @ G[:3], R.T @ G[3:]])  # outboard axes
    q_dot = np.asarray(free.N(q)) @ v
    (_, _), (R_dot, z_dot) = jax.jvp(lambda q: (free.pose(q).rotation, free.pose(q).position), (q,), (q_dot,))
    close(np.asarray(R_dot).T, -R.T @ np.asarray(reference.skew(G[:3])), DERIVED)
    close(z_dot, G[3:], DERIVED)


# -------------------------------------------------------------------- configuration graphs of Passerello & Huston


@pytest.mark.contract("S5-06")
def test_configuration_graph():
    """S = α β γ of successive rotations about axes 1, 2, 3 (Eqs. 1.16-1.20, first row of 1.16 corrected)."""
    q = np.array([0.4, -0.9, 1.3])
    (ca, cb, cg), (sa, sb, sg) = np.cos(q), np.sin(q)
    alpha = np.array([[1, 0, 0], [0, ca, -sa], [0, sa, ca]])
    beta = np.array([[cb, 0, sb], [0, 1, 0], [-sb, 0, cb]])
    gamma = np.array([[cg, -sg, 0], [sg, cg, 0], [0, 0, 1]])
    close(mb.gimbal("xyz").pose(q).rotation, alpha @ beta @ gamma)
    for sequence in ("zxz", "zyx", "yxz", "xzx"):
        close(mb.gimbal(sequence).pose(q).rotation, np.asarray(_in_turn(sequence, q)))


@pytest.mark.contract("S5-07")
def test_relative_angular_velocity():
    """ω_i = α' δ_i1 + β' α_i2 + γ' (α β)_i3 (Eqs. 1.21-1.23), and the addition theorem (1.24) over two joints."""
    q, v = np.array([0.4, -0.9, 1.3]), np.array([0.7, -0.2, 1.1])
    alpha, beta = turn([1, 0, 0], q[0]), turn([0, 1, 0], q[1])
    relative = v[0] * np.eye(3)[0] + v[1] * alpha[:, 1] + v[2] * (alpha @ beta)[:, 2]
    gimbal, hinge = mb.gimbal("xyz"), mb.revolute((0.6, 0.0, 0.8))
    p, w = np.array([0.3]), np.array([-0.4])

    @reference.jit_in_haste
    def turning(q, v, p, w):
        def rotation(q, p):
            return gimbal.pose(q).rotation @ hinge.pose(p).rotation

        R, R_dot = jax.jvp(rotation, (q, p), (v, w))
        W = R_dot @ R.T
        return gimbal.modes(q) @ v, jnp.stack([W[2, 1], W[0, 2], W[1, 0]])

    own, both = turning(q, v, p, w)
    close(own[:3], relative, DERIVED)
    close(both, relative + np.asarray(gimbal.pose(q).rotation) @ np.array([0.6, 0.0, 0.8]) * w, DERIVED)


@pytest.mark.contract("S5-19")
def test_fewer_angles_by_suppressing_coordinates():
    """A ball-and-socket joint has three angles; two of them held at zero leave a hinge, one a universal joint."""
    ball, spider = mb.gimbal("xyz"), mb.universal((1, 0, 0), (0, 1, 0))
    modes = ball.modes
    for i, axis in enumerate(np.eye(3)):
        q = np.eye(3)[i] * 0.8
        close(ball.pose(q).rotation, mb.revolute(axis).pose(q[i : i + 1]).rotation)
        close(modes(q)[:, i], [*axis, 0, 0, 0], DERIVED)
    q = np.array([0.8, -0.3, 0.0])
    close(ball.pose(q).rotation, spider.pose(q[:2]).rotation)
    close(modes(q)[:, :2], spider.modes(q[:2]), DERIVED)
    base, q = mb.screw_product([mb.translational(), ball]), np.arange(6.0)
    close(base.pose(q).rotation, ball.pose(q[3:]).rotation)
    close(base.pose(q).position, q[:3])


# ------------------------------------------------------------------------------- one joint, or several in a row


def _compact_and_expanded():
    """The same mechanism with four joints, and with massless bodies between eight joints of one freedom."""
    rng = np.random.default_rng(8)
    first, second, axis, normal = rs.unit(rng), rs.unit(rng), rs.unit(rng), np.array([0.0, 0.0, 1.0])
    bodies = [rs.random_body(rng, f"link{i}") for i in range(4)]
    poses = [(rs.random_pose(rng), rs.random_pose(rng)) for _ in range(4)]
    parts = {
        "universal": ({"axis1": first, "axis2": second}, [("revolute", first), ("revolute", second)]),
        "cylindrical": ({"axis": axis}, [("revolute", axis), ("prismatic", axis)]),
        "planar": (
            {"normal": normal},
            [("prismatic", np.eye(3)[0]), ("prismatic", np.eye(3)[1]), ("revolute", normal)],
        ),
        "screw": ({"axis": axis, "pitch": 0.2}, [("screw", axis)]),
    }
    compact, expanded, spiders = [], [], []
    for i, (kind, (parameters, pieces)) in enumerate(parts.items()):
        parent, child = "world" if i == 0 else f"link{i - 1}", f"link{i}"
        nv = len(pieces)
        passive = {
            "damping": rng.uniform(0.1, 0.3, nv),
            "stiffness": rng.uniform(0.5, 1.0, nv),
            "rest": rng.normal(size=nv),
        }
        compact.append(rs.JointSpec(f"joint{i}", kind, parameters, parent, child, *poses[i], **passive))
        for n, (piece, direction) in enumerate(pieces):
            last = n == nv - 1
            outer = child if last else f"spider{i}{n}"
            if not last:
                spiders.append(rs.BodySpec(outer))
            own = {"axis": direction} | ({"pitch": 0.2} if piece == "screw" else {})
            ends = poses[i][0] if n == 0 else rs.IDENTITY, poses[i][1] if last else rs.IDENTITY
            numbers = {key: value[n : n + 1] for key, value in passive.items()}
            expanded.append(rs.JointSpec(f"joint{i}{n}", piece, own, parent, outer, *ends, **numbers))
            parent = outer
    gravity = np.array([1.0, -2.0, -9.0])
    return (
        rs.SystemSpec(tuple(bodies), tuple(compact), gravity=gravity),
        rs.SystemSpec((*bodies, *spiders), tuple(expanded), gravity=gravity),
    )


def test_joints_in_a_row_with_massless_bodies_between():
    """A universal joint is two hinges with an inertialess spider; cylindrical and planar joints alike."""
    specs = _compact_and_expanded()
    systems = [rs.build(spec) for spec in specs]
    q, v, _, tau = (x[0] for x in rs.states(specs[0], 0, 1))
    assert systems[0].nv == systems[1].nv == 8 and systems[0].nb == 4 and systems[1].nb == 8

    @reference.jit_in_haste
    def both(systems, q, v, tau):
        return [mb.forward_dynamics(system, q, v, tau) for system in systems]

    one, two = both(systems, q, v, tau)
    close(one, two, 1e-11)


@pytest.mark.contract("S4-21")
def test_joint_kinds():
    """One to six freedoms from contact surfaces, the screw, lower pairs, spider and free joint: all are one record."""
    lower_pairs = [
        mb.revolute((0, 0, 1)),
        mb.prismatic((0, 0, 1)),
        mb.screw((0, 0, 1), 0.1),
        mb.cylindrical((0, 0, 1)),
        mb.planar(),
        mb.spherical(),
    ]
    assert [joint.nv for joint in lower_pairs] == [1, 1, 1, 2, 3, 3]
    close(results("screw")["modes"][3:, 0], spec_of("screw").parameters["pitch"] * results("screw")["modes"][:3, 0])
    assert mb.universal((1, 0, 0), (0, 1, 0)).nv == 2
    assert mb.free().nv == 6
    freedoms = np.array([0.3, -0.4, 0.5, 0.2, 0.1, -0.2])

    def contact(q):
        """A pose in as many freedoms as q has entries: bent surfaces of dimension one to six."""
        x = np.eye(6)[:, : len(q)] @ q
        bent = x + 0.1 * jnp.roll(x, 1) * x
        return mb.Pose(bent[3:], jnp.concatenate([jnp.ones(1), 0.5 * bent[:3]]))

    for nv in range(1, 7):
        joint = mb.mapped(contact, nv)
        members = joint.modes(freedoms[:nv]), joint.locked_modes(freedoms[:nv])
        modes, locked = map(np.asarray, members)
        assert modes.shape == (6, nv) and locked.shape == (6, 6 - nv)
        close(locked.T @ modes, np.zeros((6 - nv, nv)), DERIVED)
        assert np.linalg.svd(modes, compute_uv=False).min() > 0.1


# ------------------------------------------------------------------------------------------------------- errors


def test_axis_of_a_wrong_shape():
    with pytest.raises(ValueError, match=r"axis of a revolute joint has shape \(2,\); expected"):
        mb.revolute((0, 1))


def test_axis_of_length_zero():
    with pytest.raises(ValueError, match="expected a direction of non-zero length"):
        mb.prismatic((0, 0, 0))


def test_normal_of_length_zero():
    with pytest.raises(ValueError, match="normal of a planar joint"):
        mb.planar((0, 0, 0))


@pytest.mark.parametrize("sequence", ["xy", "xyw", "xyzx"])
def test_gimbal_sequence_of_wrong_letters(sequence):
    with pytest.raises(ValueError, match=f"sequence of a gimbal joint is '{sequence}'; expected three letters"):
        mb.gimbal(sequence)


def test_gimbal_sequence_that_repeats_an_axis():
    with pytest.raises(ValueError, match="'xxz' repeats an axis"):
        mb.gimbal("xxz")


def test_screw_product_of_something_else():
    with pytest.raises(ValueError, match="expected joints made of screws"):
        mb.screw_product([mb.revolute((0, 0, 1)), mb.spherical()])
    with pytest.raises(ValueError, match="needs at least one joint"):
        mb.screw_product([])
    with pytest.raises(ValueError, match="ends with a pose"):
        mb.screw_product([mb.revolute((0, 0, 1)), mb.Pose((0, 0, 1))])


def test_dependent_modes_are_named():
    joint = mb.mapped(lambda q: mb.Pose(jnp.stack([q[0] + q[1], 0.0 * q[0], 0.0 * q[0]])), 2)
    with pytest.raises(ValueError, match=r"modes of this mapped joint depend linearly .* Take another state"):
        joint.dual(np.array([0.3, 0.1]))


def test_pose_of_wrong_shapes():
    with pytest.raises(ValueError, match=r"position has shape \(2,\)"):
        mb.Pose((0, 0))
    with pytest.raises(ValueError, match=r"rotation has shape \(3,\); expected a quaternion"):
        mb.Pose((0, 0, 0), (0, 0, 0))
