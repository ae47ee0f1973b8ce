"""The papers' own examples, against numbers computed from them by independent means.

Slaats (1991): the two bodies with a universal joint of Appendix C (`slaats_universal_pair.json`: Kane's method and
Newton-Euler with multipliers), and the body connection arrays of section 3.2 (`slaats_body_array.json`: enumeration).

Slaats writes [linear; angular] at the centres of mass. Tolerances: numbers of order 1 to 100 after some hundred
roundings, 1e-12 of the largest; solutions of the equations of motion times the condition of M, some 1e2.
"""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import tree
from jaxmbd.packing import locate, pack, to_slots
from jaxmbd.rnea import inertial_forces

FOLDER = Path(__file__).parent / "data" / "golden"


@functools.cache
def golden(name):
    data = json.loads((FOLDER / f"{name}.json").read_text())
    return data, {case["id"]: case for case in data["cases"]}


def close(actual, expected, tolerance=1e-12):
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=tolerance * scale)


# ----------------------------------------------------------------------------------- Slaats, Appendix C: closed forms


def bryant(alpha):
    """R1 of Eq. C.3."""
    (s1, s2, s3), (c1, c2, c3) = jnp.sin(alpha), jnp.cos(alpha)
    return jnp.array(
        [
            [c2 * c3, -c2 * s3, s2],
            [c1 * s3 + s1 * s2 * c3, c1 * c3 - s1 * s2 * s3, -s1 * c2],
            [s1 * s3 - c1 * s2 * c3, s1 * c3 + c1 * s2 * s3, c1 * c2],
        ]
    )


def spider(q):
    """C1 of Eq. C.6."""
    (s1, s2), (c1, c2) = jnp.sin(q), jnp.cos(q)
    return jnp.array([[c2, 0.0, s2], [s1 * s2, c1, -s1 * c2], [-c1 * s2, s1, c1 * c2]])


def bryant_rate(alpha):
    """omega1 = matrix @ alpha_dot, Eq. C.13."""
    (s1, s2, _), (c1, c2, _) = jnp.sin(alpha), jnp.cos(alpha)
    return jnp.array([[1.0, 0.0, s2], [0.0, c1, -s1 * c2], [0.0, s1, c1 * c2]])


def spider_axes(alpha, q):
    """W transposed, Eq. C.34."""
    (s1, s2, s3), (c1, c2, c3), s, c = jnp.sin(alpha), jnp.cos(alpha), jnp.sin(q[0]), jnp.cos(q[0])
    return jnp.array(
        [
            [c2 * c3, -c2 * s3 * c + s2 * s],
            [c1 * s3 + s1 * s2 * c3, (c1 * c3 - s1 * s2 * s3) * c - s1 * c2 * s],
            [s1 * s3 - c1 * s2 * c3, (s1 * c3 + c1 * s2 * s3) * c + c1 * c2 * s],
        ]
    )


def arm_b21(alpha, q):
    """b21 of Eqs. C.36-C.38."""
    (s1, s2, s3), (c1, c2, c3), (t1, t2), (k1, k2) = jnp.sin(alpha), jnp.cos(alpha), jnp.sin(q), jnp.cos(q)
    return jnp.array(
        [
            -c2 * c3 * t2 - c2 * s3 * t1 * k2 - s2 * k1 * k2,
            -(c1 * s3 + s1 * s2 * c3) * t2 + (c1 * c3 - s1 * s2 * s3) * t1 * k2 + s1 * c2 * k1 * k2,
            -(s1 * s3 - c1 * s2 * c3) * t2 + (s1 * c3 + c1 * s2 * s3) * t1 * k2 - c1 * c2 * k1 * k2,
        ]
    )


def arm_z(alpha, q):
    """z of Eqs. C.29-C.31."""
    (s1, s2, _), (c1, c2, _) = jnp.sin(alpha), jnp.cos(alpha)
    return jnp.array([s2, -s1 * c2, c1 * c2]) - arm_b21(alpha, q)


def cross_matrix(a):
    return jnp.array([[0.0, -a[2], a[1]], [a[2], 0.0, -a[0]], [-a[1], a[0], 0.0]])


def velocity_matrices(alpha, q):
    """A and B of Eqs. C.23 and C.32."""
    one, W = jnp.eye(3), spider_axes(alpha, q)
    A = jnp.concatenate(
        [
            jnp.concatenate([one, -cross_matrix(arm_z(alpha, q))], 1),
            jnp.concatenate([jnp.zeros((3, 3)), one], 1),
        ]
    )
    return A, jnp.concatenate([cross_matrix(arm_b21(alpha, q)) @ W, W])


@jax.jit
@jax.vmap
def appendix_c(alpha, q, alpha_dot, q_dot, r1_dot):
    """All closed forms, and D = A_dot v1 + B_dot q_dot (Eq. C.43) by differentiating A and B along the motion."""
    A, B = velocity_matrices(alpha, q)
    v1 = jnp.concatenate([r1_dot, bryant_rate(alpha) @ alpha_dot])

    def transmitted(alpha, q):
        A, B = velocity_matrices(alpha, q)
        return A @ v1 + B @ q_dot

    v2, D = jax.jvp(transmitted, (alpha, q), (alpha_dot, q_dot))
    R1, C = bryant(alpha), spider(q)
    return {"R1": R1, "C": C, "R2": R1 @ C, "omega1": v1[3:], "A": A, "B": B, "D": D, "v2": v2, "W_T": B[3:]}


# ------------------------------------------------------------------------------------------ the library's two bodies


@functools.cache
def universal_pair(clamped=False):
    data, _ = golden("slaats_universal_pair")
    system = data["system"]
    b = mb.Builder(gravity=system["gravity"])
    for i in (1, 2):
        body = system[f"body{i}"]
        b.body(f"B{i}", mass=body["mass"], inertia=np.array(body["inertia_com_body_axes"]))
    b.joint("root", mb.fixed() if clamped else mb.free(), child="B1")
    joint = mb.universal((1, 0, 0), (0, 1, 0))
    b.joint("spider", joint, "B1", "B2", mb.Pose(system["b11_in_body1"]), mb.Pose(system["b21_in_body2"]))
    return b.build()


def quaternion(R):
    """Of a rotation by less than half a turn, or by half a turn about x, y or z only."""
    w = np.sqrt(max(0.0, 1 + np.trace(R))) / 2
    if w < 1e-3:
        return np.asarray(mb.Pose(rotation=R).quaternion)
    return np.array([w, *(np.array([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]]) / (4 * w))])


def state(r1, r1_dot, alpha, alpha_dot, q, q_dot):
    """(q, v) of the library from Bryant angles."""
    R1 = np.asarray(bryant(np.asarray(alpha, float)))
    omega = np.asarray(bryant_rate(np.asarray(alpha, float))) @ alpha_dot
    return np.concatenate([quaternion(R1), r1, q]), np.concatenate([R1.T @ omega, R1.T @ np.asarray(r1_dot), q_dot])


def paper_order(six):
    """[angular; linear] as [linear; angular], along the first axis of six."""
    return np.concatenate([six[3:], six[:3]])


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, 0))
def everything(system, q, v, tau, wrench):
    """The library's results at one state; `wrench` [6] acts on B1. Batches keep the number of compiled sweeps small."""
    wrenches = (mb.Wrench("B1", moment=wrench[:3], force=wrench[3:]),)
    units = jnp.eye(8)
    a, *pushed = jax.vmap(lambda tau: mb.forward_dynamics(system, q, v, tau, wrenches))(
        jnp.concatenate([tau[None], tau[None] + units])
    )
    k = jax.vmap(lambda v, a: mb.kinematics(system, q, v, a))(
        jnp.concatenate([v[None], units]), jnp.concatenate([a[None], 0 * units])
    )
    packed = pack(system)
    x = locate(system, packed, q, v)
    return {
        "a": a,
        "M_inverse": jnp.stack(pushed) - a[None],  # forward dynamics is affine in the forces
        "k": jax.tree.map(lambda leaf: leaf[0], k),
        "J": [k[name].velocity[1:].T for name in ("B1", "B2")],
        "M": mb.mass_matrix(system, q),
        "h": mb.bias_force(system, q, v),
        "reaction": mb.reactions(system, q, v, tau, wrenches)["spider"],
        "bodies": inertial_forces(
            system, packed, x, to_slots(system, v), to_slots(system, a), wrenches, jnp.zeros(()), gravity=True
        )[0],
    }


U_CASES = ("U1", "U2", "U3", "U4")


@functools.cache
def cases():
    """The four golden states and, behind them, random ones, every second at the singularity alpha2 = pi/2."""
    _, by_id = golden("slaats_universal_pair")
    inputs = [by_id[name]["inputs"] for name in U_CASES]
    rng = np.random.default_rng(0)
    for i in range(12):
        alpha, alpha_dot, r1, r1_dot, force, moment = rng.uniform(-3, 3, (6, 3))
        alpha[1] = np.pi / 2 if i % 2 else alpha[1]
        q, q_dot, torque = rng.uniform(-3, 3, (3, 2))
        inputs.append(
            {"r1": r1, "r1dot": r1_dot, "alpha": alpha, "alphadot": alpha_dot, "q": q, "qdot": q_dot}
            | {"joint_torque": torque, "F1_world_at_com1": force, "T1_world": moment}
        )
    return inputs


@functools.cache
def library():
    inputs = cases()
    states = [state(*(i[key] for key in ("r1", "r1dot", "alpha", "alphadot", "q", "qdot"))) for i in inputs]
    q, v = (np.array(x) for x in zip(*states, strict=True))
    tau = np.array([[0.0] * 6 + list(i["joint_torque"]) for i in inputs])
    wrench = np.array([[*i["T1_world"], *i["F1_world_at_com1"]] for i in inputs], float)
    return q, v, tau, jax.tree.map(np.asarray, everything(universal_pair(), q, v, tau, wrench))


@functools.cache
def closed_forms():
    arrays = (np.array([i[key] for i in cases()], float) for key in ("alpha", "q", "alphadot", "qdot", "r1dot"))
    return jax.tree.map(np.asarray, appendix_c(*arrays))


def relations(n):
    """A, B, D of the library in case n: v2 = A v1 + B q_dot from its Jacobians, D from its accelerations."""
    _, v, _, r = library()
    J1, J2 = (paper_order(J[n]) for J in r["J"])
    A = np.linalg.solve(J1[:, :6].T, J2[:, :6].T).T
    B = J2[:, 6:]
    a1, a2 = (paper_order(r["k"][name].acceleration[n]) for name in ("B1", "B2"))
    return A, B, a2 - A @ a1 - B @ r["a"][n, 6:], a1, a2


def expected(case):
    return {k: np.array(x) for k, x in golden("slaats_universal_pair")[1][case]["expected"].items()}


@pytest.mark.contract("S1-16")
def test_appendix_c_at_random_angles():
    """Closed forms against the library, also where the Bryant angles are singular: the base turns by a quaternion."""
    q, v, tau, r = library()
    c = closed_forms()
    one, two = r["k"]["B1"], r["k"]["B2"]
    close(one.rotation, c["R1"])
    close(two.rotation, c["R2"])
    close(one.velocity[:, :3], c["omega1"])
    close(np.concatenate([two.velocity[:, 3:], two.velocity[:, :3]], 1), c["v2"])
    for n in range(len(q)):
        A, B, D, _, _ = relations(n)
        close(A, c["A"][n])
        close(B, c["B"][n])
        close(D, c["D"][n], 1e-11)
    assert np.isfinite(r["a"]).all()
    singular = [np.linalg.svd(np.asarray(bryant_rate(np.asarray(i["alpha"], float))))[1][-1] for i in cases()]
    assert min(singular) < 1e-15 < 1e-2 < max(singular)  # among the states are singular ones


@pytest.mark.contract("S1-15")
def test_acceleration_recursion():
    """D against the derivative of Eq. 3.26 along the motion, the accelerations of the angles left out (E1-c)."""
    c = closed_forms()
    for n in range(len(cases())):
        close(relations(n)[2], c["D"][n], 1e-11)


@pytest.mark.contract("S1-16")
@pytest.mark.parametrize("case", U_CASES)
class TestUniversalPair:
    """Golden values of Appendix C."""

    def test_kinematics(self, case):
        n, e, (_, _, _, r) = U_CASES.index(case), expected(case), library()
        one, two = r["k"]["B1"], r["k"]["B2"]
        for name, value in (
            ("R1", one.rotation[n]),
            ("R2", two.rotation[n]),
            ("C", one.rotation[n].T @ two.rotation[n]),
            ("r2", two.position[n]),
            ("r2dot", two.velocity[n, 3:]),
            ("omega1", one.velocity[n, :3]),
            ("omega2", two.velocity[n, :3]),
            ("omega12_world", two.velocity[n, :3] - one.velocity[n, :3]),
            ("z", two.position[n] - one.position[n]),
        ):
            close(value, e[name])
        close(one.rotation[n][:, 2], e["b11"])
        close(-two.rotation[n][:, 2], e["b21"])
        A, B, D, _, _ = relations(n)
        for name, value in (("A", A), ("B", B), ("W_T", B[3:]), ("D", D)):
            close(value, e[name], 1e-11)

    def test_equations_of_motion(self, case):
        """M_u u' + h_u = Q_u in u = (r1', omega1, q'), world axes: v = T u and v' = T u' + T' u."""
        n, e, (_, v, tau, r) = U_CASES.index(case), expected(case), library()
        Rt, w, u = r["k"]["B1"].rotation[n].T, v[n, :3], v[n, 3:6]
        T = np.zeros((8, 8))
        T[:3, 3:6], T[3:6, :3], T[6:, 6:] = Rt, Rt, np.eye(2)
        T_dot_u = np.concatenate([np.zeros(3), -np.cross(w, u), np.zeros(2)])
        M, system = r["M"][n], golden("slaats_universal_pair")[0]["system"]
        weights = [system[f"body{i}"]["mass"] * np.array(system["gravity"]) for i in (1, 2)]
        g = -sum(J[n, 3:].T @ weight for J, weight in zip(r["J"], weights, strict=True))
        close(T.T @ M @ T, e["M_u"])
        close(T.T @ (r["h"][n] - g + M @ T_dot_u), e["h_u"], 1e-11)
        inputs = cases()[n]
        applied = np.concatenate([inputs["F1_world_at_com1"], inputs["T1_world"], np.zeros(2)]) + tau[n]
        close(T.T @ -g + applied, e["Q_u"])
        close(T.T @ (r["a"][n] - T_dot_u), e["udot"], 1e-10)
        close(v[n] @ M @ v[n] / 2, e["kinetic_energy"])

    def test_accelerations(self, case):
        n, e, (_, _, _, r) = U_CASES.index(case), expected(case), library()
        one, two = r["k"]["B1"].acceleration[n], r["k"]["B2"].acceleration[n]
        for name, value in (("a1", one[3:]), ("alpha1", one[:3]), ("a2", two[3:]), ("alpha2", two[:3])):
            close(value, e[name], 1e-10)
        close(r["a"][n, 6:], e["qdd"], 1e-10)


def mass_and_load(n, i):
    """M of Eq. 3.46 and Q of Eq. 3.48 of body i from the data: Q = [F; T - omega x J omega]."""
    system, inputs, (_, _, _, r) = golden("slaats_universal_pair")[0]["system"], cases()[n], library()
    body, k = system[f"body{i}"], r["k"][f"B{i}"]
    R, omega = k.rotation[n], k.velocity[n, :3]
    J = R @ np.array(body["inertia_com_body_axes"]) @ R.T
    M = np.zeros((6, 6))
    M[:3, :3], M[3:, 3:] = body["mass"] * np.eye(3), J
    force, moment = body["mass"] * np.array(system["gravity"]), np.zeros(3)
    if i == 1:
        force, moment = force + inputs["F1_world_at_com1"], moment + inputs["T1_world"]
    return M, np.concatenate([force, moment - np.cross(omega, J @ omega)])


def last_slot(i):
    layout = universal_pair().topology.layout
    return int(layout.last_slot[i - 1])


@pytest.mark.contract("S1-17")
def test_body_mass_matrix_and_load_column():
    """The sweep's inertia is M, and what it needs for the motion of a body is M v' - Q (Eqs. 3.46-3.48)."""
    _, _, _, r = library()
    for n in range(len(cases())):
        for i, acceleration in ((1, relations(n)[3]), (2, relations(n)[4])):
            M, Q = mass_and_load(n, i)
            bodies = jax.tree.map(lambda leaf, n=n, i=i: leaf[n, last_slot(i)], r["bodies"])
            inertia, needed = bodies.inertia, np.array(jax.tree.leaves(bodies.force))
            c = np.array(jax.tree.leaves(inertia.first_moment)) / inertia.mass  # from the joint to the centre of mass
            tensor = np.array([jax.tree.leaves(column) for column in inertia.tensor.columns])
            close(inertia.mass * np.eye(3), M[:3, :3])
            close(tensor - inertia.mass * (c @ c * np.eye(3) - np.outer(c, c)), M[3:, 3:])
            at_com = np.concatenate([needed[3:], needed[:3] - np.cross(c, needed[3:])])
            close(at_com, M @ acceleration - Q, 1e-10)


@pytest.mark.contract("S1-18")
def test_elimination_of_the_outer_body():
    """Eqs. 3.51-3.54 with the corrected sign (E1-a), against the sweep and the golden M_r and Q_r.

    What the base feels of both bodies, M1 + M_r, is the inverse of the base's block of the inverse mass matrix.
    """
    _, _, tau, r = library()
    for n in range(len(cases())):
        A, B, D, a1, _ = relations(n)
        (M1, Q1), (M, Q) = mass_and_load(n, 1), mass_and_load(n, 2)
        pivot = B.T @ M @ B
        assert np.linalg.cond(pivot) < 1e2
        gain = A.T @ M @ B @ np.linalg.inv(pivot)
        M_r = A.T @ M @ A - gain @ B.T @ M @ A
        applied = tau[n, 6:]
        Q_r = A.T @ (Q - M @ D) - gain @ (applied + B.T @ (Q - M @ D))
        close(np.linalg.solve(pivot, applied - B.T @ (M @ (A @ a1 + D) - Q)), r["a"][n, 6:], 1e-10)
        R1 = r["k"]["B1"].rotation[n]
        world = np.block([[np.zeros((3, 3)), R1], [R1, np.zeros((3, 3))]])  # [angular; linear] in axes of B1
        felt = np.linalg.inv(world @ r["M_inverse"][n, :6, :6] @ world.T)
        close(felt, M1 + M_r, 1e-10)
        close((M1 + M_r) @ a1, Q1 + Q_r, 1e-10)
        if n < len(U_CASES):
            e = expected(U_CASES[n])
            close(M_r, e["M_r1"], 1e-11)
            close(Q_r, e["Q_r1_sign_corrected"], 1e-10)


@pytest.mark.contract("S1-02")
@pytest.mark.parametrize("case", U_CASES)
def test_reaction_in_the_universal_joint(case):
    """Newton-Euler of body 2 with the library's motion leaves the golden reaction, which `reactions` gives too."""
    n, e, (_, _, tau, r) = U_CASES.index(case), expected(case), library()
    M, Q = mass_and_load(n, 2)
    _, B, _, _, a2 = relations(n)
    wrench = M @ a2 - Q
    close(wrench[:3], e["reaction_force_on_B2"], 1e-10)
    R2 = r["k"]["B2"].rotation[n]
    at_joint = wrench[3:] - np.cross(-R2[:, 2], wrench[:3])
    axes = B[3:]
    normal = np.cross(axes[:, 0], axes[:, 1])
    close(at_joint @ normal, e["reaction_torque_magnitude_along_spider_normal"], 1e-10)
    close(at_joint @ axes, tau[n, 6:], 1e-10)
    # the actuator's part lies in the plane of the two axes: dual to them
    close(at_joint - axes @ np.linalg.solve(axes.T @ axes, tau[n, 6:]), e["reaction_torque_on_B2_at_joint"], 1e-10)
    reaction = r["reaction"]
    close(reaction.wrench[n], np.concatenate([at_joint, wrench[:3]]), 1e-10)
    close(reaction.constraint[n, :3], e["reaction_torque_on_B2_at_joint"], 1e-10)
    close(reaction.constraint[n, 3:], e["reaction_force_on_B2"], 1e-10)


TRAJECTORIES = {"U7_clamped_trajectory": True, "U8_free_trajectory": False}
RUNS = [pytest.param(name, marks=[pytest.mark.slow] if clamped else []) for name, clamped in TRAJECTORIES.items()]


@pytest.mark.contract("S1-16")
@pytest.mark.parametrize("case", RUNS)
def test_trajectory(case):
    """Two seconds by RKMK4 in steps of 1 ms; at rates w < 10 rad/s it errs by w t (w h)^4 / 120 * w < 2e-8 / 10."""
    entry = golden("slaats_universal_pair")[1][case]
    inputs, e = entry["inputs"], expected(case)
    clamped = TRAJECTORIES[case]
    system, start, rate = universal_pair(clamped), np.array(inputs["q0"]), np.array(inputs["qd0"])
    if clamped:
        q, v = start, rate
    else:
        q, v = state(start[:3], rate[:3], start[3:6], rate[3:6], start[6:], rate[6:])
    forces = np.zeros(system.nv)
    forces[-2:] = inputs["joint_torque_constant"]
    held = np.broadcast_to(forces, (2000, system.nv))
    run = mb.simulate(
        system, jnp.asarray(q), jnp.asarray(v), duration=2.0, dt=1e-3, control=held, stepper=mb.RungeKuttaMuntheKaas4()
    )
    at = np.rint(e["t"] / 1e-3).astype(int)
    np.testing.assert_allclose(np.asarray(run.t)[at], e["t"], atol=1e-12)
    ours_q, ours_v = np.asarray(run.q)[at], np.asarray(run.v)[at]
    if clamped:
        pairs = [(ours_q, e["q"]), (ours_v, e["qd"])]
    else:
        angles, rates = e["q"][:, 3:6], e["qd"][:, 3:6]
        theirs = [state(x[:3], y[:3], x[3:6], y[3:6], x[6:], y[6:]) for x, y in zip(e["q"], e["qd"], strict=True)]
        theirs_q, theirs_v = (np.array(x) for x in zip(*theirs, strict=True))
        assert np.abs(np.cos(angles[:, 1])).min() > 0.1 and np.isfinite(rates).all()
        ours_q[:, :4] *= np.sign(np.sum(ours_q[:, :4] * theirs_q[:, :4], 1, keepdims=True))
        pairs = [(ours_q, theirs_q), (ours_v, theirs_v)]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-9)


# -------------------------------------------------------------------------------------- Slaats, section 3.2: topology

ARRAYS = tuple(golden("slaats_body_array")[1])


@pytest.mark.contract("S1-10")
@pytest.mark.parametrize("case", ARRAYS)
def test_body_connection_array(case):
    """Parents, levels, paths, subtrees, branches. Bodies are 1..n and the base 0 there, 0..n-1 and -1 here."""
    entry = golden("slaats_body_array")[1][case]
    e = entry["expected"]
    parents = tree.body_connection(entry["inputs"]["beta"])
    n = len(parents)
    assert [p + 1 for p in parents] == e["parent"]
    kids = tree.children(parents)
    assert {str(i + 1): [k + 1 for k in kids[i]] for i in range(n)} == {
        k: x for k, x in e["children"].items() if k != "0"
    }
    assert [i + 1 for i, p in enumerate(parents) if p == tree.BASE] == e["children"]["0"]
    assert {str(i + 1): level for i, level in enumerate(tree.levels(parents))} == e["level"]
    path = tree.ancestors(parents)
    np.testing.assert_array_equal(path, np.array(e["incidence_on_path"], bool))
    assert {str(j + 1): [int(i) + 1 for i in np.flatnonzero(path[:, j])] for j in range(n)} == e["path_from_base"]
    assert {str(i + 1): [int(j) + 1 for j in np.flatnonzero(path[i])] for i in range(n)} == e["subtree"]
    assert sorted([b + 1 for b in run] for run in tree.branches(parents)) == sorted(e["branches"])
    assert [i + 1 for i in range(n) if not kids[i]] == e["leaves"]
    assert [i + 1 for i in range(n) if len(kids[i]) > 1] == e["branching_bodies"]


@pytest.mark.contract("S1-10")
def test_figure_3_1():
    """The array of the figure, printed as Eq. 3.1."""
    assert golden("slaats_body_array")[1]["paper_3_1"]["inputs"]["beta"] == [0, 1, 2, 3, 3, 5, 6, 4, 8, 4]


@pytest.mark.contract("S1-10")
@pytest.mark.parametrize(
    ("beta", "body", "parent"),
    [([1], 0, 0), ([0, 2], 1, 1), ([0, 1, 4, 3], 2, 3), ([0, -1], 1, -2), ([0, 1, 7], 2, 6)],
    ids=["itself", "itself, outboard", "higher", "below the base", "unknown"],
)
def test_illegal_arrays_are_rejected(beta, body, parent):
    with pytest.raises(ValueError, match=rf"Body {body} has parent {parent}; expected the base .* lower number"):
        tree.body_connection(beta)


@pytest.mark.slow
@pytest.mark.contract("S1-10")
def test_a_legal_renumbering_changes_no_result():
    """Bodies 7 and 10 of Fig. 3.1 change numbers: the same bodies, declared in another order, move alike."""
    rng = np.random.default_rng(5)
    beta = golden("slaats_body_array")[1]["paper_3_1"]["inputs"]["beta"]
    swap = {7: 10, 10: 7}
    renumbered = [swap.get(beta[swap.get(i, i) - 1], beta[swap.get(i, i) - 1]) for i in range(1, 11)]
    assert renumbered == golden("slaats_body_array")[1]["paper_3_1_with_7_and_10_swapped"]["inputs"]["beta"]
    points, axes, masses = rng.normal(size=(11, 3)), rng.normal(size=(11, 3)), rng.uniform(0.5, 2, 11)
    q, v, tau = rng.normal(size=(3, 4, 10))

    def motion(order):
        """Accelerations by body of the figure, for bodies declared in an order."""
        b = mb.Builder()
        for i in order:
            parent = f"B{beta[i - 1]}" if beta[i - 1] else "world"
            b.body(f"B{i}", mass=masses[i], com=points[i] / 2, inertia=0.1 * masses[i] * np.eye(3))
            b.joint(f"J{i}", mb.revolute(axes[i]), parent, f"B{i}", mb.Pose(points[beta[i - 1]]))
        at = np.array(order) - 1
        a = jax.vmap(mb.forward_dynamics, in_axes=(None, 0, 0, 0))(b.build(), q[:, at], v[:, at], tau[:, at])
        return np.asarray(a)[:, np.argsort(at)]

    as_printed = motion(range(1, 11))
    np.testing.assert_allclose(motion([swap.get(i, i) for i in range(1, 11)]), as_printed, rtol=1e-11)
