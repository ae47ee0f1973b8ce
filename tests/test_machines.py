"""The larger models against numbers: Passerello & Huston's manipulator, cables and booms, the figure, the arm.

Golden numbers of the manipulator come from Kane's equations and from Newton-Euler in maximal coordinates, which agree
to 1e-12; its file vouches for 1e-9.
"""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

import jaxmbd as mb
from jaxmbd import machines

GOLDEN = Path(__file__).parent / "data" / "golden" / "passerello_huston_manipulator.json"
JOINTS = {"shoulder2": slice(0, 3), "elbow3": slice(3, 4), "shoulder4": slice(4, 7), "elbow5": slice(7, 8)}
POUND = 12.0  # slug in/s^2


def close(ours, theirs, tolerance=1e-9):
    """Equal to within tolerance times the largest entry (and one)."""
    theirs = np.asarray(theirs, float)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0.0, atol=tolerance * np.abs(theirs).max(initial=1.0))


@functools.cache
def golden():
    return {case["id"]: case for case in json.loads(GOLDEN.read_text())["cases"]}


@functools.cache
def manipulator():
    """In the report's coordinates x1 to x14 and units."""
    axes = np.eye(3)
    root = mb.screw_product([*(mb.prismatic(a) for a in axes), *(mb.revolute(a) for a in axes)])
    return mb.models.space_manipulator(root=root, units="paper")


FORWARD = ("forward_0", "forward_1", "forward_2")


@functools.cache
def programs():
    """(dense quantities at a state, mixed problem), batched."""
    s = manipulator()

    def dense(q, v, tau):
        a = mb.forward_dynamics(s, q, v, tau)
        return mb.mass_matrix(s, q), mb.bias_force(s, q, v), a, mb.energy(s, q, v)[0]

    hybrid = jax.vmap(mb.hybrid_dynamics, in_axes=(None, 0, 0, 0, 0, None, 0))
    return reference.jit_in_haste(jax.vmap(dense)), reference.jit_in_haste(hybrid)


@functools.cache
def forward():
    cases = [golden()[name] for name in FORWARD]
    q, v = (np.array([c["inputs"][key] for c in cases]) for key in ("q", "qd"))
    tau = np.array([[0.0] * 6 + c["inputs"]["joint_generalized_forces"] for c in cases])
    return jax.tree.map(np.asarray, programs()[0](q, v, tau)), tau


@pytest.mark.slow
@pytest.mark.contract("S5-14", "S5-15", "S5-20")
@pytest.mark.parametrize("n", range(3))
def test_assembled_equations(n):
    """A of (3.28), f of (3.29) and the accelerations in the report's 14 coordinates; A symmetric, positive definite."""
    (M, h, a, energy), tau = forward()
    e = golden()[FORWARD[n]]["expected"]
    close(M[n], e["mass_matrix"])
    close(M[n], M[n].T, 1e-14)
    assert np.linalg.eigvalsh(M[n])[0] > 0
    close(h[n], e["bias_h"])
    close(a[n], e["qdd"])
    close(energy[n], e["kinetic_energy"])
    close(M[n] @ a[n] + h[n], tau[n])  # F + F* = 0


def mixed_states():
    """(samples, q, v, a, t) of the golden mixed problem; a is the cycloid's second derivative, zero for the base."""
    case = golden()["mixed_chosen_1"]
    samples = case["expected"]["samples"]
    start, end = (np.radians(case["inputs"][f"joint_angles_{k}_deg"]) for k in ("start", "end"))
    t, T = np.array([s["t"] for s in samples]), case["inputs"]["T"]
    joints = (end - start)[None] * (2 * np.pi / T**2 * np.sin(2 * np.pi * t / T))[:, None]
    q = np.array([s["base_position_in"] + s["base_bryant_rad"] + s["joint_angles"] for s in samples])
    v = np.array([s["base_rates"] + s["joint_rates"] for s in samples])
    return samples, q, v, np.concatenate([np.zeros((len(t), 6)), joints], 1), t


@functools.cache
def mixed():
    """Problem 1 at the golden states, problem 2 with the base held; (a, tau) each."""
    samples, q, v, a, t = mixed_states()
    held_q, held_v = q.copy(), v.copy()
    held_q[:, :6] = held_v[:, :6] = 0.0
    arms = np.arange(14) >= 6
    masks = np.stack([arms] * len(t) + [np.ones(14, bool)] * len(t))
    system = manipulator()
    inputs = (np.concatenate([q, held_q]), np.concatenate([v, held_v]), np.concatenate([a, a]), masks)
    found = programs()[1](system, *inputs, (), np.concatenate([t, t]))
    n = len(t)
    return samples, *(tuple(np.asarray(x)[part] for x in found) for part in (slice(n), slice(n, None)))


@pytest.mark.slow
@pytest.mark.contract("S5-16")
def test_mixed_problem():
    """Arms prescribed, base free: its accelerations (3.30) and the joint moments (3.31)."""
    samples, (a, tau), _ = mixed()
    close(a[:, :6], [s["base_accelerations"] for s in samples], 1e-8)
    close(tau[:, 6:], [s["joint_generalized_forces_slug_in2_s2"] for s in samples], 1e-8)
    close(tau[:, :6], np.zeros((len(samples), 6)))


@pytest.mark.slow
@pytest.mark.contract("S5-16", "S5-23")
def test_holding_loads():
    """The base held: force and moment on it in pounds and inches."""
    samples, _, (a, tau) = mixed()
    close(tau[:, :3] / POUND, [s["holding_force_lb"] for s in samples], 1e-8)
    close(tau[:, 3:6] / POUND, [s["holding_moment_lb_in"] for s in samples], 1e-8)
    close(a[:, :6], np.zeros((len(samples), 6)))


@pytest.mark.slow
@pytest.mark.contract("S5-22")
def test_mixed_motion():
    """Four seconds of problem 1 with the laws in the system: where the free base goes, and that it rests again."""
    case, system = golden()["mixed_chosen_1"], manipulator()
    start, end = (np.radians(case["inputs"][f"joint_angles_{k}_deg"]) for k in ("start", "end"))
    for joint, at in JOINTS.items():
        system = system.with_drive(joint, position=mb.laws.Cycloid(start[at], end[at], case["inputs"]["T"]))
    dt = 0.25 / 40
    run = mb.simulate(system, system.neutral_q(), duration=4.0, dt=dt, stepper=mb.RungeKuttaMuntheKaas4(), remat=False)
    samples = case["expected"]["samples"]
    at = np.rint(np.array([s["t"] for s in samples]) / dt).astype(int)
    close(run.q[at][:, :6], [s["base_position_in"] + s["base_bryant_rad"] for s in samples], 1e-7)
    close(run.v[at][:, :6], [s["base_rates"] for s in samples], 1e-7)
    close(run.tau[at][:, 6:], [s["joint_generalized_forces_slug_in2_s2"] for s in samples], 1e-7)
    close(run.v[-1], np.zeros(14), 1e-7)
    momentum = jax.vmap(mb.momentum, in_axes=(None, 0, 0))(system, run.q[at], run.v[at])
    close(momentum, np.zeros((len(at), 6)), 1e-5)  # of angular momenta near 1e3 in each arm


@functools.cache
def generalised(pushes):
    """Generalised forces of wrenches given as (frame, moment, force, point) in world axes, at one state."""
    system, q = manipulator(), jnp.asarray(golden()["forward_0"]["inputs"]["q"])
    still = jnp.zeros(14)

    def of(wrenches):
        return -mb.inverse_dynamics(system, q, still, still, wrenches)

    return np.asarray(of(tuple(mb.Wrench(f, m, p, at) for f, m, p, at in pushes)))


@pytest.mark.slow
@pytest.mark.contract("S5-12")
def test_external_forces():
    """(3.2)-(3.9): a force at a point and a moment, times the partial velocities of point and body."""
    system, q = manipulator(), jnp.asarray(golden()["forward_0"]["inputs"]["q"])
    moment, force, point = np.array([3.0, -1.0, 2.0]), np.array([0.5, 4.0, -2.0]), np.array([1.0, 2.0, -20.0])

    @reference.jit_in_haste
    def partials(q):
        def place(q):
            k = mb.kinematics(system, q)["B5"]
            return k.rotation, k.position + k.rotation @ point

        R = place(q)[0]
        dR, V = jax.jacfwd(place)(q)
        W = jnp.einsum("ijr,kj->rik", dR, R)
        return V, jnp.stack([W[:, 2, 1], W[:, 0, 2], W[:, 1, 0]])

    V, omega = partials(q)
    found = generalised((("B5", tuple(moment), tuple(force), tuple(point)),))
    close(found, V.T @ force + omega.T @ moment, 1e-11)
    assert np.abs(found[[6, 7, 8, 9]]).max() < 1e-12  # the other arm does not move B5


@pytest.mark.slow
@pytest.mark.contract("S5-13")
def test_internal_moments():
    """A moment between B1 and B4, opposite on both, works on the three angles of their joint alone (3.10-3.18)."""
    moment = np.array([3.0, -1.0, 2.0])
    found = generalised((("B4", tuple(moment), (0.0,) * 3, (0.0,) * 3), ("B1", tuple(-moment), (0.0,) * 3, (0.0,) * 3)))
    own = manipulator().v_slice("shoulder4")
    close(np.delete(found, np.r_[own]), np.zeros(11), 1e-13)
    q = np.array(golden()["forward_0"]["inputs"]["q"])
    k = mb.kinematics(manipulator(), q)["B1"]
    axes = np.asarray(manipulator().joint("shoulder4").modes(q[manipulator().q_slice("shoulder4")]))[:3]
    close(found[own], (np.asarray(k.rotation) @ axes).T @ moment, 1e-13)


@pytest.mark.contract("S5-21")
def test_cycloidal_law():
    """(5.1): its ends, zero velocity and acceleration there, half way at half time; held outside; derivatives right."""
    law = mb.laws.Cycloid([0.2, 1.0], [1.5, -0.5], 2.0, begin=0.5)

    def motion(t):
        rate = lambda t: jax.jvp(law, (t,), (1.0,))[1]  # noqa: E731
        return law(t), rate(t), jax.jvp(rate, (t,), (1.0,))[1]

    for t, q in ((0.5, [0.2, 1.0]), (2.5, [1.5, -0.5])):
        position, rate, acceleration = motion(t)
        close(position, q, 1e-15)
        close(rate, [0, 0], 1e-14)
        close(acceleration, [0, 0], 1e-13)
    close(law(1.5), [0.85, 0.25], 1e-15)
    close(law(0.0), [0.2, 1.0], 1e-15)
    close(law(9.0), [1.5, -0.5], 1e-15)
    s = 0.3
    position, rate, acceleration = motion(0.5 + 2.0 * s)
    change = np.array([1.3, -1.5])
    close(position, [0.2, 1.0] + change * (s - np.sin(2 * np.pi * s) / (2 * np.pi)), 1e-15)
    close(rate, change / 2.0 * (1 - np.cos(2 * np.pi * s)), 1e-14)
    close(acceleration, change / 4.0 * 2 * np.pi * np.sin(2 * np.pi * s), 1e-14)
    with pytest.raises(ValueError, match="duration of a cycloid is 0.0 s; expected one positive number"):
        mb.laws.Cycloid(0.0, 1.0, 0.0)


@pytest.mark.contract("S5-20")
def test_units():
    """The same machine in SI: 12.5 slug, 54 slug in^2; every number of the report at its place."""
    si, paper = mb.models.space_manipulator(), mb.models.space_manipulator(units="paper")
    assert (paper.nv, paper.nb) == (14, 5)
    assert float(paper.mass) == 12.5
    slug, inch = machines.SLUG, machines.INCH
    assert slug * 0.3048 == pytest.approx(4.4482216152605, rel=1e-12)  # a pound-force in newtons, times s^2
    for path, value, unit in (
        ("B1.mass", 10.0, slug),
        ("B1.inertia", [240, 0, 0, 240, 0, 240], slug * inch**2),
        ("B3.mass", 0.5, slug),
        ("B4.com", [0, 0, -18], inch),
        ("B2.inertia", [54, 0, 0, 54, 0, 0], slug * inch**2),
        ("disc5.mass", 0.25, slug),
        ("disc3.inertia", [0.5, 0, 0, 0.5, 0, 1.0], slug * inch**2),
        ("shoulder2.in_parent.position", [0, 0, -6], inch),
        ("elbow5.in_parent.position", [0, 0, -36], inch),
        ("weld3.in_parent.position", [0, 0, -36], inch),
    ):
        close(paper.get(path), value, 1e-15)
        close(si.get(path), np.array(value) * unit, 1e-14)
    with pytest.raises(ValueError, match="units is 'cgs'; expected 'SI' or 'paper'"):
        mb.models.space_manipulator(units="cgs")


# ----------------------------------------------------------------------------------------------------- cables and booms


def frequencies(system):
    """Small vibrations about q = 0: eigenvalues of M^-1 K, K by differentiating the forces that hold it at rest."""
    still = jnp.zeros(system.nv)

    @reference.jit_in_haste
    def matrices(system):
        K = jax.jacfwd(lambda q: mb.inverse_dynamics(system, q, still, still))(still)
        return mb.mass_matrix(system, still), K

    M, K = (np.asarray(x) for x in matrices(system))
    close(K, K.T, 1e-12)
    L = np.linalg.cholesky(M)
    A = np.linalg.solve(L, np.linalg.solve(L, K).T)
    return np.sqrt(np.linalg.eigvalsh(0.5 * (A + A.T)))


@pytest.mark.slow
@pytest.mark.contract("S5-18", "S5-27")
def test_chains_converge_to_cables_and_beams():
    """Slow frequencies of a hanging chain and of a cantilever err as 1 / n^2.

    omega = j / 2 sqrt(g / L), j the zeros of J0; omega = b^2 sqrt(E I / (m L^3)), cos b cosh b = -1.
    """
    length, mass, bending = 8.0, 3.0, 50.0
    hanging = np.array([2.404825557695773, 5.520078110286311, 8.653727912911013]) / 2 * np.sqrt(9.81 / length)
    beam = np.array([1.875104068711961, 4.694091132974174, 7.854757438237613]) ** 2
    beam = beam * np.sqrt(bending / (mass * length**3))
    errors = []
    for n in (8, 16, 32):
        cable = mb.models.cable(n, length, mass)
        boom = mb.models.cable(n, length, mass, bending, gravity=(0.0, 0.0, 0.0))
        found = np.stack([frequencies(cable)[:3] / hanging, frequencies(boom)[:3] / beam])
        errors.append(np.abs(found - 1.0))
    assert np.all(errors[-1] < 0.01), errors
    for coarse, fine in zip(errors[:-1], errors[1:], strict=True):
        assert np.all(coarse[:, 0] / fine[:, 0] > 3.5), errors  # the slowest are in the limit already
        assert np.all(coarse / fine > 2.5), errors


@pytest.mark.slow
def test_cables_of_universal_joints():
    """In the plane they are the same cable; across it too."""
    flat, spatial = (
        mb.models.cable(3, bending=2.0, damping=0.1),
        mb.models.cable(3, bending=2.0, damping=0.1, spatial=True),
    )
    assert (flat.nv, spatial.nv) == (3, 6)
    q, v = np.array([0.3, -0.2, 0.5]), np.array([1.0, 0.5, -0.7])
    plane = mb.forward_dynamics(flat, q, v, np.zeros(3))
    wide_q, wide_v = np.zeros(6), np.zeros(6)
    wide_q[1::2], wide_v[1::2] = q, v
    a = mb.forward_dynamics(spatial, wide_q, wide_v, np.zeros(6))
    close(a[1::2], plane, 1e-6)  # the trace of axial inertia
    close(a[::2], np.zeros(3), 1e-10)
    with pytest.raises(ValueError, match="A cable of 0 rods"):
        mb.models.cable(0)


# ------------------------------------------------------------------------------------------- the figure and the arm


def test_human_figure():
    """Mass, height, symmetry; every body is heavier than nothing and has a frame at its sole."""
    figure = mb.models.human_figure(80.0, 1.8)
    assert (figure.nq, figure.nv, figure.nb) == (43, 36, 15)
    assert float(figure.mass) == pytest.approx(80.0, rel=1e-12)
    k = mb.kinematics(figure, figure.neutral_q())
    soles = [float(k[f"{side}_sole"].position[2]) for side in ("left", "right")]
    assert soles[0] == pytest.approx(soles[1], abs=1e-14)
    crown = float(k["head"].position[2]) + 2 * float(figure.get("head.com")[2])
    assert crown - soles[0] == pytest.approx(1.8, rel=1e-3)
    com = np.asarray(mb.com(figure, figure.neutral_q()))
    close(com[:2], np.zeros(2), 1e-14)
    assert 0.5 < (com[2] - soles[0]) / 1.8 < 0.62  # a standing adult's is at 0.55 to 0.57 of the height


def test_teleoperator():
    """Straight up at rest; the jaws move against one another."""
    arm = mb.models.teleoperator()
    assert (arm.nq, arm.nv, arm.nb) == (8, 8, 5)
    k = mb.kinematics(arm, jnp.zeros(8).at[7].set(0.01))
    close(k["grip"].position, [0.0, 0.0, 1.52], 1e-12)
    close(k["left_finger"].position[1], 0.03, 1e-12)
    close(k["right_finger"].position[1], -0.03, 1e-12)
