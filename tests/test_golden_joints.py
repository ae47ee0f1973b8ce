"""Driven and mixed joints against published examples: Slaats (1991), section 4.1; Schwertassek & Senger (1988).

All mechanisms of both files stand side by side in one system, so that one program computes them. The golden numbers
come from Kane's equations with the driven coordinates prescribed and from Newton's, at the accuracy the files state:
driven motion to 1e-12, forces to 1e-8 relative, bases to 1e-11.
"""

import functools
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
import reference

import jaxmbd as mb

FOLDER = Path(__file__).parent / "data" / "golden"


@functools.cache
def golden(name):
    return {case["id"]: case for case in json.loads((FOLDER / f"{name}.json").read_text())["cases"]}


def close(ours, theirs, tolerance):
    """Equal to within tolerance times the largest entry (and one)."""
    theirs = np.asarray(theirs, float)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0.0, atol=tolerance * np.abs(theirs).max(initial=1.0))


class Sliding(eqx.Module):
    """Eq. 5.3: z = (s + eta sin alpha, eta cos alpha, z3), B = 1, for q = (s, eta)."""

    alpha: jax.Array
    z3: jax.Array

    def __call__(self, q):
        z = jnp.stack([q[0] + q[1] * jnp.sin(self.alpha), q[1] * jnp.cos(self.alpha), self.z3 + 0.0 * q[0]])
        return mb.Pose(z)


class Pivot(eqx.Module):
    """(A cos, B sin)(Om t)."""

    numbers: jax.Array

    def __call__(self, t):
        A, B, rate = self.numbers
        return jnp.stack([A * jnp.cos(rate * t), B * jnp.sin(rate * t)])


X, Y, Z = np.eye(3)
SLIDERS = ("P1_section5", "P2_section5")
SCREWS = ("screw_vertical_centred", "screw_skew_offset")


@functools.cache
def mechanisms():
    """All of them, each hanging on the world by the joint with its name."""
    slaats, schwertassek = golden("slaats_driven_pendulum"), golden("schwertassek_planar")
    b = mb.Builder(gravity=(0.0, 0.0, -9.81))

    def hang(name, joint, mass, com, inertia, parent="world", at=None):
        b.body(f"body {name}", mass=mass, com=com, inertia=np.array(inertia))
        b.joint(name, joint, parent, f"body {name}", at)

    i = slaats["D1_single_sine"]["inputs"]
    law = mb.laws.Sine(i["A"], i["Om"], mean=i["th0"])
    hang("D1", mb.driven(mb.revolute(Y), position=law), i["mass"], (0, 0, -i["l"]), i["inertia_com"])
    i = slaats["D2_double_first_driven"]["inputs"]
    law = mb.laws.Cycloid(i["a0"], i["a1"], i["T"])
    (m1, m2), (I1, I2) = i["masses"], i["inertia_com"]
    hang("D2", mb.driven(mb.revolute(Y), position=law), m1, (0.05, 0, -0.5), I1)
    hang("D2 second", mb.revolute(i["u2"]), m2, (0, 0.1, -0.4), I2, "body D2", mb.Pose((0, 0, -0.9)))
    i = slaats["D3_universal_q1_driven_q2_free"]["inputs"]
    joint = mb.driven(mb.universal(X, Y), position=mb.laws.Sine(i["A"], i["Om"]), velocities=[0])
    hang("D3", joint, i["mass"], (0.1, 0.05, -0.7), i["inertia_com"])
    i = slaats["D4_cylindrical_translation_driven"]["inputs"]
    law = mb.laws.Sine(i["A"], i["Om"], phase=-np.pi / 2, mean=i["A"])
    joint = mb.driven(mb.cylindrical(i["axis"]), position=law, velocities=[1])
    hang("D4", joint, i["mass"], (0.3, -0.2, 0.1), i["inertia_com"])
    for name in SLIDERS:
        i = schwertassek[name]["inputs"]
        plane = mb.mapped(Sliding(jnp.asarray(i["alpha"]), jnp.asarray(i["z3"])), 2)
        law = mb.laws.Sine(i["kappa0"], i["Om"], phase=np.pi / 2)
        hang(name, mb.driven(plane, speed=law, velocities=[1]), i["mass"], (0, 0, 0), np.eye(3))
    for name in SCREWS:
        i = schwertassek[name]["inputs"]
        joint = mb.screw(i["axis"], i["pitch_m_per_rad"])
        hang(name, joint, i["mass"], i["com_from_joint_point"], i["inertia_com"])
    i = schwertassek["moving_pivot"]["inputs"]
    joint = mb.screw_product([mb.prismatic(X), mb.prismatic(Z), mb.revolute(Y)])
    law = Pivot(jnp.array([i["A"], i["B"], i["Om"]]))
    joint = mb.driven(joint, position=law, velocities=[0, 1])
    hang("moving_pivot", joint, i["mass"], i["com_from_joint_point"], i["inertia_com"])
    i = schwertassek["rotating_pendulum"]["inputs"]
    joint = mb.driven(mb.universal(Z, X), speed=mb.laws.Sine(i["B"], i["Om"], mean=i["A"]), velocities=[0])
    hang("rotating_pendulum", joint, i["mass"], i["com_from_joint_point"], i["inertia_com"])
    return b.build()


def spring(i, z, V):
    """Lambda_e of the spring and damper between the bodies of section 5, reduced to Q^t."""
    b1, b2 = np.array(i["spring_on_body1"]), np.array(i["spring_on_body2"])
    d = z + b2 - b1
    length = jnp.sqrt(d @ d)
    tension = i["spring_K"] * (length - i["spring_l0"]) + i["spring_damping"] * (d @ V) / length
    force = -tension * d / length
    return jnp.concatenate([jnp.cross(b2, force), force])


def applied(t, q, v):
    """Generalised forces: the springs of section 5 along s, the torques about the screws."""
    system = mechanisms()
    tau = jnp.zeros(system.nv)
    for name in SLIDERS:
        i = golden("schwertassek_planar")[name]["inputs"]
        s, eta = q[system.q_slice(name)]
        rates = v[system.v_slice(name)]
        sine, cosine = np.sin(i["alpha"]), np.cos(i["alpha"])
        z = jnp.stack([s + eta * sine, eta * cosine, i["z3"] + 0.0 * s])
        V = jnp.stack([rates[0] + rates[1] * sine, rates[1] * cosine, 0.0 * s])
        tau = tau.at[system.v_slice(name).start].set(spring(i, z, V)[3])
    for name in SCREWS:
        tau = tau.at[system.v_slice(name).start].set(0.4)
    return tau


def golden_states(name):
    """(times, coordinates, velocities, accelerations) of a case, a row a sample, in the order of its joint."""
    slaats, schwertassek = golden("slaats_driven_pendulum"), golden("schwertassek_planar")
    if name == "D1":
        e = slaats["D1_single_sine"]["expected"]
        return [np.array(e["t"])] + [np.array(e[k])[:, None] for k in ("theta", "thetadot", "thetaddot")]
    if name in ("D2", "D2 second", "D3", "D4"):
        key = next(k for k in slaats if k.startswith(name[:2]))
        rows = np.array(slaats[key]["expected"]["rows"])
        pick = {"D2": [0], "D2 second": [1], "D3": [0, 1], "D4": [1, 0]}[name]  # D4 is written displacement first
        return [rows[:, 0]] + [np.stack([rows[:, 1 + 3 * p + k] for p in pick], 1) for k in range(3)]
    samples = schwertassek[name]["expected"]["samples"]

    def column(*keys):
        return np.array([[s[k] if isinstance(k, str) else k(s) for k in keys] for s in samples], float)

    t = column("t")[:, 0]
    if name in SLIDERS:
        return t, column("s", "eta"), column("sdot", "kappa"), column("sddot", "kappadot")
    i = schwertassek[name]["inputs"]
    if name in SCREWS:
        return t, column("q"), column("qdot"), column("qddot")
    if name == "moving_pivot":
        A, B, w = i["A"], i["B"], i["Om"]
        x, z = A * np.cos(w * t), B * np.sin(w * t)
        kappa = column(lambda s: s["kappa"][0], lambda s: s["kappa"][1])
        q, v = column("q"), column("qdot")
        given = np.stack([-w * w * x, -w * w * z], 1)
        parts = (np.stack([x, z], 1), q), (kappa, v), (given, column("qddot"))
    else:
        A, B, w = i["A"], i["B"], i["Om"]
        turn = A * t + B * (1 - np.cos(w * t)) / w
        kappa = column(lambda s: s["kappa"][0])
        given = (B * w * np.cos(w * t))[:, None]
        parts = (turn[:, None], column("q")), (kappa, column("qdot")), (given, column("qddot"))
    return t, *(np.concatenate(p, 1) for p in parts)


PAPERS = {  # joints of each time grid
    "slaats": ("D1", "D2", "D2 second", "D3", "D4"),
    "schwertassek": (*SLIDERS, *SCREWS, "moving_pivot", "rotating_pendulum"),
}
ROWS = 11


def padded(x):
    return np.concatenate([x, np.repeat(x[-1:], ROWS - len(x), 0)])


@functools.cache
def computed(paper):
    """Accelerations, forces and reactions at the golden states of one paper, by joint; the others stand still."""
    system = mechanisms()
    q, v = np.zeros((ROWS, system.nq)), np.zeros((ROWS, system.nv))
    for joint in PAPERS[paper]:
        t, own_q, own_v, _ = golden_states(joint)
        q[:, system.q_slice(joint)], v[:, system.v_slice(joint)] = padded(own_q), padded(own_v)
    a, tau, r = programs()(system, q, v, padded(t))
    count = len(t)
    found = {}
    for joint in PAPERS[paper]:
        at = system.v_slice(joint)
        record = jax.tree.map(lambda x: np.asarray(x)[:count], r[joint])
        found[joint] = np.asarray(a)[:count, at], np.asarray(tau)[:count, at], record
    return found


@functools.cache
def programs():
    def one(system, q, v, t):
        tau = applied(t, q, v)
        a, forces = mb.hybrid_dynamics(system, q, v, tau, jnp.zeros(system.nv, bool), (), t)
        return a, forces, mb.reactions(system, q, v, tau, (), t)

    return reference.jit_in_haste(jax.vmap(one, in_axes=(None, 0, 0, 0)))


# --------------------------------------------------------------------------------------------- Slaats, section 4.1


@pytest.mark.slow
@pytest.mark.contract("S1-23")
@pytest.mark.parametrize("joint", PAPERS["slaats"])
def test_driven_pendulums(joint):
    """Whole and half driven joints: free accelerations, driving torque and force, at every golden state."""
    a, tau, r = computed("slaats")[joint]
    *_, expected = golden_states(joint)
    close(a, expected, 1e-10)
    slaats = golden("slaats_driven_pendulum")
    if joint == "D1":
        e = slaats["D1_single_sine"]["expected"]
        close(tau[:, 0], e["driving_torque"], 1e-10)
        close(r.wrench[:, 3:], e["reaction_force_on_body_at_joint"], 1e-10)
    elif joint != "D2 second":
        rows = np.array(slaats[next(k for k in slaats if k.startswith(joint))]["expected"]["rows"])
        close(tau[:, 1 if joint == "D4" else 0], rows[:, 7], 1e-10)
    driven = {"D1": [0], "D2": [0], "D2 second": [], "D3": [0], "D4": [1]}[joint]
    close(r.forces[:, driven], tau[:, driven], 1e-10)


# -------------------------------------------------------------------------------- Schwertassek & Senger, sections 3, 5


@pytest.mark.slow
@pytest.mark.contract("S4-24", "S4-26")
@pytest.mark.parametrize("name", SLIDERS)
def test_worked_example_loads(name):
    """(5.6)-(5.10): lambda, lambda_bar, Lambda_z by (3.34), and the force that maintains kappa(t)."""
    case = golden("schwertassek_planar")[name]
    i, samples = case["inputs"], case["expected"]["samples"]
    a, tau, r = computed("schwertassek")[name]
    close(a, golden_states(name)[3], 1e-8)
    phi_hat = np.concatenate([case["expected"][k] for k in ("phi", "phi_bar_k", "phi_bar_l")], 1)
    for n, s in enumerate(samples):
        V = np.array(s["G"])[3:]
        Lambda_e = np.asarray(spring(i, np.array(s["z"]), V))
        close(Lambda_e, s["Lambda_e"], 1e-8)
        Lambda = r.wrench[n]
        close(Lambda, s["Lambda"], 1e-8)
        lambda_bar = phi_hat[:, 1:].T @ Lambda
        close(lambda_bar, s["lambda_bar"], 1e-8)
        close(phi_hat[:, 0] @ Lambda_e, s["lambda_free"], 1e-8)
        Lambda_z = mb.constraint_wrench(phi_hat, 1, Lambda_e, lambda_bar)
        close(Lambda_z, s["Lambda_z"], 1e-8)
        close(np.asarray(Lambda_z) + Lambda_e, Lambda, 1e-8)
        assert abs(float(phi_hat[:, 0] @ Lambda_z)) < 1e-9  # no work on the free motion
        # (5.10): F_e1 sin(alpha) + (F_e2 + F_z2) cos(alpha) maintains kappa
        sine, cosine = np.sin(i["alpha"]), np.cos(i["alpha"])
        maintain = Lambda_e[3] * sine + (Lambda_e[4] + float(Lambda_z[4])) * cosine
        close(tau[n, 1], maintain, 1e-8)
        close(lambda_bar[0], maintain, 1e-8)
        # a component along a vector of a skew basis is no projection on it
        psi = np.asarray(mb.dual_basis(phi_hat))
        components, projections = psi.T @ Lambda_e, phi_hat.T @ Lambda_e
        close(phi_hat @ components, Lambda_e, 1e-12)
        close(psi @ projections, Lambda_e, 1e-12)
        if abs(Lambda_e[4]) > 1.0:
            assert abs(components[0] - projections[0]) > 0.1


@pytest.mark.contract("S4-22", "S4-23")
@pytest.mark.parametrize("name", SLIDERS)
def test_worked_example_modes(name):
    """(5.1)-(5.5): z, p_dot = g, free and excited modes, and the dual basis in closed form, of the joint record."""
    case = golden("schwertassek_planar")[name]
    e, alpha = case["expected"], case["inputs"]["alpha"]
    joint = mechanisms().joint(name)
    _, q, v, _ = golden_states(name)
    for row, rates, s in zip(q, v, e["samples"], strict=True):
        close(joint.pose(row).position, s["z"], 1e-12)
        close(joint.modes(row), e["phi"], 1e-14)
        close(joint.driven_modes(row), e["phi_bar_k"], 1e-14)
        locked = np.asarray(joint.locked_modes(row))
        close(locked @ locked.T, np.array(e["phi_bar_l"]) @ np.array(e["phi_bar_l"]).T, 1e-14)
        psi = np.asarray(joint.dual(row))
        close(psi[:, :1], e["psi"], 1e-13)
        close(psi[:, 0], [0, 0, 0, 1, -np.tan(alpha), 0], 1e-13)
        close(psi[:, 1], [0, 0, 0, 0, 1 / np.cos(alpha), 0], 1e-13)
        G = joint.modes(row)[:, 0] * rates[0] + joint.driven_modes(row)[:, 0] * rates[1]
        close(G, s["G"], 1e-9)
        close(joint.N(row) @ rates, rates, 1e-15)
        close(joint.law(s["t"]), s["kappa"], 1e-12)
    upright = mb.driven(
        mb.mapped(Sliding(jnp.asarray(np.pi / 2), jnp.asarray(0.2)), 2), speed=joint.law, velocities=[1]
    )
    with pytest.raises(ValueError, match=r"mapped joint depend linearly .* no dual basis exists"):
        upright.dual(q[0])  # cos(alpha) = 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SCREWS, "moving_pivot", "rotating_pendulum"])
def test_screws_and_rheonomic_joints(name):
    """Accelerations, the whole interaction, the excitation force, and Lambda_z by (3.34)."""
    case = golden("schwertassek_planar")[name]
    a, tau, r = computed("schwertassek")[name]
    close(a, golden_states(name)[3], 1e-8)
    for n, s in enumerate(case["expected"]["samples"]):
        close(r.wrench[n], s["Lambda"], 1e-8)
        if name in SCREWS:
            phi_hat = np.concatenate([case["expected"]["phi"], case["expected"]["phi_bar"]], 1)
            close(mb.dual_basis(phi_hat)[:, :1], case["expected"]["psi"], 1e-11)
            close(r.forces[n], s["lambda_free"], 1e-10)
            lambda_bar = phi_hat[:, 1:].T @ r.wrench[n]
            close(lambda_bar, s["lambda_bar"], 1e-8)
            close(mb.constraint_wrench(phi_hat, 1, s["Lambda_e"], lambda_bar), s["Lambda_z"], 1e-8)
            mu = phi_hat[:, 1:].T @ (r.wrench[n] - np.array(s["Lambda_e"]))  # multipliers: without the applied part
            close(mu, lambda_bar - phi_hat[:, 1:].T @ np.array(s["Lambda_e"]), 1e-12)
        else:
            driven = [0, 1] if name == "moving_pivot" else [0]
            close(tau[n, driven], s["excitation_force_lambda_bar_k"], 1e-8)
            close(np.array(s["phi_bar_k"]).T @ r.wrench[n], s["excitation_force_lambda_bar_k"], 1e-8)


@pytest.mark.contract("S4-15", "S4-18", "S4-26")
@pytest.mark.parametrize("name", ["basis_0", "basis_1", "basis_2"])
def test_skew_bases(name):
    """(3.19)-(3.34) in general bases: duals, components of motions and loads, constraint wrenches, multipliers."""
    case = golden("schwertassek_planar")[name]
    i, e = case["inputs"], case["expected"]
    phi, n = np.array(i["phi_hat"]), i["n_free"]
    psi = np.asarray(mb.dual_basis(phi))
    close(psi[:, :n], e["psi"], 1e-11)
    close(psi[:, n:], e["psi_bar"], 1e-11)
    close(psi.T @ phi, np.eye(6), 1e-11)
    G, Lambda, Lambda_e = (np.array(i[k]) for k in ("G", "Lambda", "Lambda_e"))
    close(psi[:, :n].T @ G, e["free_mode_velocities"], 1e-11)
    close(psi[:, n:].T @ G, e["constrained_mode_velocities"], 1e-11)
    close(phi[:, :n].T @ Lambda, e["lambda_of_Lambda"], 1e-11)
    close(phi[:, n:].T @ Lambda, e["lambda_bar_of_Lambda"], 1e-11)
    close(psi @ (phi.T @ Lambda), Lambda, 1e-11)  # (3.28)
    Lambda_z = mb.constraint_wrench(phi, n, Lambda_e, i["lambda_bar"])
    close(Lambda_z, e["Lambda_z_from_3_34"], 1e-11)
    close(phi[:, :n].T @ Lambda_z, np.zeros(n), 1e-11)  # (3.32)
    close(phi[:, n:].T @ Lambda_z, e["lagrange_mu"], 1e-11)
    close(G @ (Lambda_e + np.asarray(Lambda_z)), _power(psi, phi, n, G, Lambda_e + np.asarray(Lambda_z)), 1e-11)
    singular = phi.copy()
    singular[:, 2] = 0.5 * phi[:, 0] - 2.0 * phi[:, 5]
    with pytest.raises(ValueError, match=r"vectors of this basis depend linearly .*number 0.*number 2.*number 5"):
        mb.dual_basis(singular)
    with pytest.raises(ValueError, match=r"basis has shape \(6, 5\); expected six"):
        mb.dual_basis(phi[:, :5])


def _power(psi, phi, n, G, Lambda):
    """g lambda + zeta lambda_bar, S4-19."""
    return (psi[:, :n].T @ G) @ (phi[:, :n].T @ Lambda) + (psi[:, n:].T @ G) @ (phi[:, n:].T @ Lambda)


@pytest.mark.contract("S4-14")
def test_knife_edge():
    """Three position and two motion freedoms: modes, the constraint, and a rectangular p_dot = Y g (3.23-3.27)."""
    case = golden("schwertassek_planar")["knife_edge_0"]
    e, q, g = case["expected"], np.array(list(case["inputs"]["p"].values())), np.array([1.2, -0.5])
    joint = mb.mapped(rs.as_pose(rs.blade), 3, N=rs.blade_rates)
    assert (joint.nq, joint.nv) == (3, 2)
    close(joint.modes(q), e["phi"], 1e-14)
    close(joint.N(q), e["Y_I1"], 1e-14)
    close(joint.N(q) @ g, e["pdot"], 1e-14)
    close(joint.modes(q) @ g, e["G"], 1e-14)
    close(np.array(e["w_g"]).T @ joint.modes(q), np.zeros((1, 2)), 1e-14)
    # half of it excited: p_dot = Y1 g + Y2, Y2 = the excited column times kappa
    excited = mb.driven(joint, speed=mb.laws.Constant(-0.5), velocities=[1])
    close(excited.driven_modes(q)[:, 0], np.array(e["phi"])[:, 1], 1e-14)
    close(joint.N(q)[:, :1] @ g[:1] + joint.N(q)[:, 1:] @ excited.law(0.0)[None], e["pdot"], 1e-14)


# ----------------------------------------------------------------------------------------------------------- in motion


@pytest.mark.slow
@pytest.mark.contract("S1-23")
def test_trajectories():
    """Two seconds of all mechanisms by Runge-Kutta in steps of 0.625 ms: (w h)^4 w T / 120 < 2e-9 at w = 15 rad/s."""
    system, dt = mechanisms(), 0.2 / 320
    q, v = np.zeros(system.nq), np.zeros(system.nv)
    for joint in (*PAPERS["slaats"], *PAPERS["schwertassek"]):
        _, own_q, own_v, _ = golden_states(joint)
        q[system.q_slice(joint)], v[system.v_slice(joint)] = own_q[0], own_v[0]
    run = mb.simulate(
        system, q, v, duration=2.0, dt=dt, control=applied, stepper=mb.RungeKuttaMuntheKaas4(), remat=False
    )
    for joint in (*PAPERS["slaats"], *PAPERS["schwertassek"]):
        t, own_q, own_v, _ = golden_states(joint)
        at = np.rint(t / dt).astype(int)
        close(run.q[at][:, system.q_slice(joint)], own_q, 1e-8)
        close(run.v[at][:, system.v_slice(joint)], own_v, 2e-8)
