"""Closed loops: dynamics, wrenches, redundancy, derivatives, assembly, drift.

Slaats (1991), section 4.2: `slaats_four_bar.json`, computed from one-coordinate equations with the loop solved in
closed form (no multipliers, no recursion). Other mechanisms against dense saddle systems put together from public
functions.
"""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import aba
from jaxmbd.constraints.rows import residual
from jaxmbd.constraints.rows import rows as constraint_rows
from jaxmbd.packing import pack

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden" / "slaats_four_bar.json").read_text())
PLANE = np.array(GOLDEN["system"]["P"])
DYNAMICS = jax.jit(jax.vmap(mb.forward_dynamics, (None, 0, 0, 0)))


@functools.cache
def golden_four_bar(cut="C", extra=False):
    """The tilted four-bar of the golden file, one of its hinges cut; `extra` closes the loop a second time."""
    data, hinge = GOLDEN["system"], mb.revolute((0, 0, 1))
    b = mb.Builder(gravity=GOLDEN["gravity"])
    for body in data["bodies"]:
        inertia = np.array(body["inertia_com_body_axes"])
        b.body(body["name"], body["mass"], body["com_from_inboard_hinge_body_axes"], inertia)
    at_crank, at_coupler = mb.Pose((data["crank_AB"], 0, 0)), mb.Pose((data["coupler_BC"], 0, 0))
    at_rocker = mb.Pose((data["rocker_DC"], 0, 0))
    b.joint("A", hinge, "world", "crank", in_parent=mb.Pose(data["A_world"], PLANE), cut=cut == "A")
    b.joint("B", hinge, "crank", "coupler", in_parent=at_crank, cut=cut == "B")
    b.joint("C", hinge, "coupler", "rocker", in_parent=at_coupler, in_child=at_rocker, cut=cut == "C")
    b.joint("D", hinge, "world", "rocker", in_parent=mb.Pose(data["D_world"], PLANE), cut=cut == "D")
    if extra:
        b.frame("end", on="coupler", pose=at_coupler)
        b.frame("other", on="rocker", pose=at_rocker)
        b.closure("again", mb.spherical(), "end", "other")
    return b.build()


def samples(case, of):
    """Angles, rates or accelerations of the three bodies against the ground, [nt, 3]."""
    rows = GOLDEN["cases"][case]["expected"]["samples"]
    if of == "angles":
        return np.array([[s["crank"], s["coupler"], s["rocker"]] for s in rows])
    return np.array([s[of] for s in rows])


def coordinates(system, absolute):
    """Joint coordinates (or rates) of a tree from those of the bodies: crank, coupler, rocker."""
    crank, coupler, rocker = absolute.T
    relative = {"A": crank, "B": coupler - crank, "C": rocker - coupler, "D": rocker}
    return np.stack([relative[name] for name in system.joint_names], -1)


def torque(system, case):
    """The crank's torque about A, as generalised forces."""
    size = GOLDEN["cases"][case]["inputs"]["crank_torque"]
    tau = np.zeros(3)
    if "A" in system.joint_names:
        tau[system.v_slice("A")] = size
    return tau


@pytest.mark.contract("S1-24")
@pytest.mark.parametrize("cut", ["A", *(pytest.param(name, marks=pytest.mark.slow) for name in "BCD")])
def test_any_cut_gives_the_same_motion(cut):
    """Accelerations along the golden trajectory, whichever hinge is cut; one of the cuts turns two hinges round."""
    system = golden_four_bar(cut)
    assert system.constraint_names == (cut,) and system.nv == 3
    angles, rates = samples(0, "angles"), samples(0, "rates")
    q, v = coordinates(system, angles), coordinates(system, rates)
    a = DYNAMICS(system, q, v, np.tile(torque(system, 0), (len(q), 1)))
    np.testing.assert_allclose(a, coordinates(system, samples(0, "accelerations")), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_forces_at_the_cut_joint():
    """The in-plane force at C, and that the file's tolerance is met at every sample of the driven case too."""
    system = golden_four_bar()
    for case in (0, 1):
        q, v = coordinates(system, samples(case, "angles")), coordinates(system, samples(case, "rates"))
        tau = np.tile(torque(system, case), (len(q), 1))
        w = jax.jit(jax.vmap(mb.closure_wrenches, (None, 0, 0, 0)))(system, q, v, tau)
        expected = samples(case, "force_on_rocker_at_C_world")
        np.testing.assert_allclose(w["C"].force @ PLANE[:, :2], expected @ PLANE[:, :2], rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(w["C"].force @ PLANE[:, 2], 0.0, atol=1e-12)  # not unique: the shortest is none
        assert not w["C"].unique.any()  # in world axes every component holds some of the undetermined ones
    with pytest.raises(KeyError, match="No constraint 'X'. Known: C"):
        w["X"]


def dense(system, q, v, tau):
    """The saddle system from public functions: rows by differentiating frames' poses, least squares for multipliers."""
    M = mb.mass_matrix(system, q)
    h = tau - mb.inverse_dynamics(system, q, v, jnp.zeros_like(v))
    names = system.topology.constraints[0].frames
    frames = [system.frame_names[i] for i in names]

    def closed(q):
        k = mb.kinematics(system, q)
        return jnp.concatenate(
            [
                k[frames[1]].position - k[frames[0]].position,
                jnp.cross(k[frames[0]].rotation[:, 2], k[frames[1]].rotation[:, 2]),
            ]
        )

    def along(q):
        return jax.jvp(closed, (q,), (v,))[1]

    J, gamma = jax.jacfwd(closed)(q), jax.jvp(along, (q,), (v,))[1]
    A = J @ jnp.linalg.solve(M, J.T)
    a0 = jnp.linalg.solve(M, h)
    multipliers = jnp.linalg.pinv(A, rtol=1e-9) @ (-gamma - J @ a0)
    return a0 + jnp.linalg.solve(M, J.T @ multipliers), J.T @ multipliers


@pytest.mark.slow
@pytest.mark.contract("S2-29", "S1-05")
def test_spatial_overconstrained_hinges_against_dense_equations():
    """Bennett's linkage: five rows of rank two, none idle. Loads R^T lambda are unique although lambda is not."""
    system = mb.linkages.bennett()
    assembled = mb.assemble(system, jnp.array([0.8, -3.4, -0.8]), jnp.array([1.0, 0.0, 0.0]), fixed=("hinge0",))
    m = mb.mobility(system, assembled.q)
    assert (m.position, m.velocity, m.rows, m.redundant) == (1, 1, 5, 3)
    tau = jnp.array([0.3, -0.2, 0.5])
    a = mb.forward_dynamics(system, assembled.q, assembled.v, tau)
    expected, load = jax.jit(dense)(system, assembled.q, assembled.v, tau)
    np.testing.assert_allclose(a, expected, rtol=1e-9, atol=1e-9)
    w = mb.closure_wrenches(system, assembled.q, assembled.v, tau)
    np.testing.assert_allclose(w.load, load, rtol=1e-9, atol=1e-9)
    needed = mb.inverse_dynamics(system, assembled.q, assembled.v, a)
    np.testing.assert_allclose(tau + w.load, needed, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.contract("S1-25")
def test_constraint_jacobian_is_the_limit_of_differences():
    """Rows of the Jacobian, rates and accelerations of the rows against differences of the residual along a motion."""
    system = mb.linkages.bennett()
    q, v, a = jnp.array([0.8, -3.4, -0.8]), jnp.array([0.7, -0.4, 1.1]), jnp.zeros(3)
    packed, t = pack(system), jnp.zeros(())
    r = jax.jit(constraint_rows)(system, packed, q, v, t)
    left = jax.jit(jax.vmap(residual, (None, None, 0, None)))
    h = 1e-4

    def along(step):
        return left(system, packed, q[None] + jnp.stack([2 * h, h, 0.0, -h, -2 * h])[:, None] * step[None], t)

    for i, step in enumerate(np.eye(3)):
        f = along(step)
        np.testing.assert_allclose(r.jacobian[:, i], (8 * (f[1] - f[3]) - (f[0] - f[4])) / (12 * h), atol=1e-9)
    f = along(v + a)
    np.testing.assert_allclose(r.residual, f[2], atol=1e-15)
    np.testing.assert_allclose(r.rate, (8 * (f[1] - f[3]) - (f[0] - f[4])) / (12 * h), atol=1e-9)
    second = (16 * (f[1] + f[3]) - (f[0] + f[4]) - 30 * f[2]) / (12 * h**2)
    np.testing.assert_allclose(r.gamma, second, atol=1e-6)


@pytest.mark.slow
def test_redundant_closures_change_nothing():
    """The same loop closed twice, by a hinge and by a ball."""
    one, two = golden_four_bar(), golden_four_bar(extra=True)
    q, v = coordinates(one, samples(0, "angles")), coordinates(one, samples(0, "rates"))
    tau = np.zeros((len(q), 3))
    np.testing.assert_allclose(DYNAMICS(two, q, v, tau), DYNAMICS(one, q, v, tau), rtol=1e-10, atol=1e-10)
    m = mb.mobility(two, jnp.asarray(q[0]))
    assert (m.velocity, m.rows, m.redundant) == (1, 8, 6)


@pytest.mark.contract("S4-25")
def test_parallelogram_with_a_redundant_bar_and_its_singular_position():
    """Two windows of equal bars: the middle bar is redundant; flat, there are three freedoms in place of one."""
    system = mb.linkages.n_four_bar(2)
    q = jnp.array([1.0 if name.startswith("pivot") else -1.0 for name in system.joint_names])
    assert (mb.mobility(system, q).velocity, mb.mobility(system, 0 * q).velocity) == (1, 3)
    independent = mb.mobility(system, q).independent
    assert len(independent) == 1
    v = jnp.array([0.5 if name.startswith("pivot") else -0.5 for name in system.joint_names])
    a = mb.forward_dynamics(system, q, v, jnp.zeros(5))
    # one freedom: I angle_dd = -G cos(angle), the benchmark's reduced equation, for every bar
    I, G = 1.0 + 2.0, 9.81 * (1.5 + 2.0)
    sign = np.array([1.0 if name.startswith("pivot") else -1.0 for name in system.joint_names])
    np.testing.assert_allclose(a, -G / I * np.cos(1.0) * sign, rtol=1e-11)


def test_trees_pay_nothing():
    """Without constraints the public function is the tree's own program, entry by entry."""
    tree = mb.models.chain(3)
    state = jnp.zeros(3), jnp.ones(3), jnp.ones(3)

    def bare(system, q, v, tau):
        return aba.accelerations(system, pack(system), q, v, tau, (), jnp.zeros(()))

    def public(system, q, v, tau):
        return mb.forward_dynamics.__wrapped__(system, q, v, tau, (), jnp.zeros(()))

    programs = [jax.jit(f).lower(tree, *state).compile().as_text() for f in (bare, public)]
    counts = [[text.count(word) for word in ("fusion(", "while(", "custom-call")] for text in programs]
    assert counts[0] == counts[1]


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0))
def acceleration_and_gradient(system, q, v):
    """v_dot without forces, and the gradient of its sum by the masses of all links and by the forces."""

    def acceleration(masses, tau):
        return mb.forward_dynamics(dataclasses.replace(system, link_mass=masses), q, v, tau)

    a, pull = jax.vjp(acceleration, system.link_mass, jnp.zeros_like(v))
    return a, *pull(jnp.ones_like(a))


def single_precision_errors(system, q, v):
    """Relative errors of acceleration and gradients in float32 against float64, medians over states."""
    double = acceleration_and_gradient(system, q, v)
    single = acceleration_and_gradient(system.astype("float32"), *(jnp.asarray(x, jnp.float32) for x in (q, v)))
    assert {x.dtype.name for x in single} == {"float32"}
    return [np.median(np.abs(x - y).max(1) / np.abs(y).max(1)) for x, y in zip(single, double, strict=True)]


def swinging(system, near):
    """Eight states on the constraints."""
    rng = np.random.default_rng(4)
    start = mb.assemble(system, near).q
    q = jax.vmap(functools.partial(mb.integrate, system, start))(0.05 * rng.normal(size=(8, system.nv)))
    return jax.jit(jax.vmap(mb.project, (None, 0, 0)))(system, q, rng.normal(size=(8, system.nv)))


@pytest.mark.slow
def test_single_precision():
    """Golden four-bar; two windows with redundant rows; a Stewart platform below. Cassie has its own file."""
    system = golden_four_bar()
    q, v = (coordinates(system, samples(0, x)) for x in ("angles", "rates"))
    assert max(single_precision_errors(system, q, v)) < 1e-5
    system = mb.linkages.n_four_bar(2)
    bars = np.array([1.0 if name.startswith("pivot") else -1.0 for name in system.joint_names])
    q, v = np.outer(np.linspace(0.4, 1.4, 8), bars), np.outer(np.linspace(-1.0, 2.0, 8), bars)
    assert max(single_precision_errors(system, q, v)) < 1e-5


@pytest.mark.slow
def test_single_precision_of_a_platform():
    system = mb.linkages.stewart_platform()
    assert max(single_precision_errors(system, *swinging(system, system.neutral_q()))) < 1e-5


# ------------------------------------------------------------------------------------------------------- derivatives


@functools.cache
def crank_acceleration():
    """Crank acceleration of an assembled four-bar as a function of (lengths, crank angle, mass): always closable."""
    system = mb.linkages.four_bar()

    def function(x):
        zero = jnp.zeros(())
        changed = system.replace(
            {
                "coupler_end.position": jnp.stack([x[0], zero, zero]),
                "rocker_end.position": jnp.stack([x[1], zero, zero]),
                "D.in_parent.position": jnp.stack([x[2], zero, zero]),
                "coupler.mass": x[4],
            }
        )
        guess = jnp.stack([x[3], -0.3 + zero, 1.4 + zero])
        at = mb.assemble(changed, guess, jnp.stack([2.0 + zero, zero, zero]), fixed=("A",))
        return mb.forward_dynamics(changed, at.q, at.v, jnp.zeros(3))[0]

    return function


START = np.array([1.0, 0.8, 1.1, 0.6, 1.3])


def differences(f, x, h):
    steps = np.eye(len(x)) * h
    return (f(x + steps) - f(x - steps)) / (2 * h)


@functools.cache
def values_and_gradients():
    """One program for five points, of both tests that follow."""
    return jax.jit(jax.vmap(jax.value_and_grad(crank_acceleration())))


@pytest.mark.slow
def test_gradients_with_respect_to_geometry():
    """Reverse mode against central differences along parameters that keep the loop closable."""
    both = values_and_gradients()
    reverse = both(np.repeat(START[None], 5, 0))[1][0]
    expected = differences(lambda x: both(x)[0], START, 1e-5)
    np.testing.assert_allclose(reverse, expected, atol=1e-6 * np.abs(reverse).max())


@pytest.mark.slow
def test_second_derivatives():
    f = crank_acceleration()
    way = jnp.array([0.3, -0.2, 0.5, 1.0, -0.7])
    H, forward = jax.jit(lambda x: (jax.jacfwd(jax.grad(f))(x), jax.jvp(f, (x,), (way,))[1]))(START)
    np.testing.assert_allclose(H, H.T, rtol=1e-7, atol=1e-7)
    both = values_and_gradients()
    np.testing.assert_allclose(forward, both(np.repeat(START[None], 5, 0))[1][0] @ way, rtol=1e-10)
    expected = differences(lambda x: both(x)[1], START, 1e-5)
    np.testing.assert_allclose(H, expected, atol=1e-6 * np.abs(H).max())


@pytest.mark.slow
def test_unique_combinations_of_redundant_wrenches_are_differentiated():
    """Two closures share one load: each multiplier's share is a choice, but their sum has the right derivative."""
    one, two = golden_four_bar(), golden_four_bar(extra=True)
    q, v = (jnp.asarray(coordinates(one, samples(0, x))[3]) for x in ("angles", "rates"))

    def load(system, mass):
        return mb.closure_wrenches(system.replace({"coupler.mass": mass}), q, v, jnp.zeros(3)).load

    gradient = jax.jacfwd(load, 1)(two, 2.0)
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient, jax.jacfwd(load, 1)(one, 2.0), rtol=1e-9, atol=1e-10)


# ---------------------------------------------------------------------------------------------------------- assembly


def test_assembly_and_branches():
    system = mb.linkages.four_bar()
    rough = jnp.array([0.6, 0.4, 1.0])
    first = mb.assemble(system, rough, jnp.array([2.0, 0.0, 0.0]), fixed=("A",))
    assert float(first.q[0]) == 0.6 and float(first.v[0]) == 2.0
    other = mb.assemble(system, rough, fixed=("A",), branch=-first.branch)
    assert {first.branch, other.branch} == {1, -1}
    for found in (first, other):
        k = mb.kinematics(system, found.q, found.v)
        end, pin = k["coupler_end"], k["rocker_end"]
        np.testing.assert_allclose(end.position, pin.position, atol=1e-12)
        np.testing.assert_allclose(end.velocity[3:], pin.velocity[3:], atol=1e-12)
    # the two positions of C are mirror images at the line from B to D
    B, D = mb.kinematics(system, first.q)["coupler"].position, np.array([1.1, 0, 0])
    C1, C2 = (mb.kinematics(system, x.q)["rocker_end"].position for x in (first, other))
    along = (D - B) / np.linalg.norm(D - B)
    np.testing.assert_allclose((C1 - B) @ along, (C2 - B) @ along, rtol=1e-10)
    np.testing.assert_allclose(np.cross(C1 - B, along), -np.cross(C2 - B, along), rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match=r"Constraint 'C' \(revolute\) cannot be met from this guess: 2.[34]"):
        mb.assemble(
            system.replace({"rocker_end.position": (0.1, 0.0, 0.0), "D.in_parent.position": (3.8, 0, 0)}), rough
        )
    with pytest.raises(ValueError, match="no constraints, so there is nothing to assemble"):
        mb.assemble(mb.models.double_pendulum(), jnp.zeros(2))


@pytest.mark.slow
def test_inverse_kinematics_of_a_closed_loop():
    system = mb.linkages.four_bar()
    known = mb.assemble(system, jnp.array([0.9, -0.3, 1.4]), fixed=("A",)).q
    goal = mb.kinematics(system, known)["trace"].position
    found = mb.inverse_kinematics(
        system, mb.assemble(system, jnp.array([0.6, -0.2, 1.5]), fixed=("A",)).q, {"trace": goal}
    )
    np.testing.assert_allclose(found.q, known, atol=1e-8)
    with pytest.raises(ValueError, match=r"Constraint '(trace|C)' \(.*\) cannot be met"):
        mb.inverse_kinematics(system, known, {"trace": goal + np.array([0, 0.3, 0])})


@pytest.mark.slow
def test_inverse_kinematics_in_a_batch_with_derivatives():
    """Eight positions of a spatial arm at once; as a target moves, the tip follows by the shortest way."""
    b, parent = mb.Builder(), "world"
    for i, axis in enumerate(((0, 0, 1), (0, 1, 0), (0, 1, 0), (1, 0, 0))):
        b.body(f"link{i}", 1.0, (0, 0, 0.25), np.eye(3))
        b.joint(f"j{i}", mb.revolute(axis), parent, f"link{i}", mb.Pose((0.1, 0, 0.4)))
        parent = f"link{i}"
    b.frame("tip", parent, mb.Pose((0.2, 0.3, 0.4)))
    system = b.build()
    start = jnp.array([0.3, 0.5, 0.8, -0.4])

    def tip(q):
        return mb.kinematics(system, q)["tip"].position

    def solved(goal):
        return mb.inverse_kinematics(system, start, {"tip": goal}).q

    goals = jax.vmap(tip)(start[None] + 0.3 * np.random.default_rng(0).normal(size=(8, 4)))
    q, slope = jax.jit(jax.vmap(lambda goal: (solved(goal), jax.jacrev(solved)(goal))))(goals)
    np.testing.assert_allclose(jax.vmap(tip)(q), goals, atol=1e-12)
    J = jax.vmap(jax.jacfwd(tip))(q)
    np.testing.assert_allclose(J @ slope, np.broadcast_to(np.eye(3), (8, 3, 3)), atol=1e-9)
    np.testing.assert_allclose(slope, np.linalg.pinv(np.asarray(J)), atol=1e-9)


# ------------------------------------------------------------------------------------------------------------- drift


@jax.jit
def closure_error(system, traj):
    """Largest distance and relative speed between the two sides of C over a trajectory."""

    def one(q, v):
        k = mb.kinematics(system, q, v)
        a, b = k["C:parent"], k["C:child"]
        return jnp.abs(a.position - b.position).max(), jnp.abs(a.velocity[3:] - b.velocity[3:]).max()

    return tuple(x.max() for x in jax.vmap(one)(traj.q, traj.v))


@functools.cache
def swing(drift, dt=4e-3, duration=1.0):
    system = golden_four_bar()
    q, v = coordinates(system, samples(0, "angles"))[0], coordinates(system, samples(0, "rates"))[0]
    return mb.simulate(system, q, v, duration=duration, dt=dt, stepper=mb.RungeKuttaMuntheKaas4(), drift=drift)


def test_trajectory_of_the_golden_four_bar():
    system, traj = golden_four_bar(), swing(mb.Projection())
    times = [s["t"] for s in GOLDEN["cases"][0]["expected"]["samples"] if s["t"] < 1.0]
    at = np.rint(np.array(times) / 4e-3).astype(int)
    expected = coordinates(system, samples(0, "angles"))[: len(at)]
    np.testing.assert_allclose(traj.q[at], expected, atol=1e-7)  # RK4 at 4 ms: 2e-8
    assert max(closure_error(system, traj)) < 1e-13
    E = jax.vmap(lambda q, v: sum(mb.energy(system, q, v)))(traj.q, traj.v)
    assert np.ptp(E) < 1e-6


@pytest.mark.slow
def test_baumgarte_holds_what_nothing_lets_go():
    """With an offset at the start, drift stays for ever without stabilisation and decays with it."""
    system = golden_four_bar()
    q, v = coordinates(system, samples(0, "angles"))[0], coordinates(system, samples(0, "rates"))[0]
    start = q + np.array([0.0, 1e-4, 0.0])

    def rest(drift):
        traj = mb.simulate(system, start, v, duration=1.0, dt=4e-3, stepper=mb.RungeKuttaMuntheKaas4(), drift=drift)
        return float(closure_error(system, jax.tree.map(lambda x: x[None], traj.end))[0])

    assert rest(None) > 5e-5 and rest(mb.Baumgarte()) < 1e-6
    with pytest.raises(ValueError, match="Baumgarte's alpha is -1.0; expected zero or more"):
        mb.Baumgarte(-1.0)


@pytest.mark.slow
def test_hundred_seconds_stay_closed():
    system = golden_four_bar()
    q, v = coordinates(system, samples(0, "angles"))[0], coordinates(system, samples(0, "rates"))[0]
    traj = mb.simulate(system, q, v, duration=100.0, dt=1e-2, stepper=mb.RungeKuttaMuntheKaas4())
    assert max(closure_error(system, traj)) < 1e-9
    assert np.isfinite(traj.q).all()


@pytest.mark.slow
def test_a_thousand_linkages_of_different_lengths_with_gradients():
    """1,024 four-bars in one call: each like its single run, each gradient like its differences."""
    system = mb.linkages.four_bar()

    def final(x):
        zero = jnp.zeros(())
        changed = system.replace(
            {
                "rocker_end.position": jnp.stack([x[0], zero, zero]),
                "D.in_parent.position": jnp.stack([x[1], zero, zero]),
            }
        )
        at = mb.assemble(changed, jnp.array([0.6, -0.3, 1.4]), jnp.array([1.0, 0.0, 0.0]), fixed=("A",))
        return mb.simulate(changed, at.q, at.v, duration=0.1, dt=1e-2).q[-1, 0]

    x = START[1:3] + np.random.default_rng(0).uniform(-0.05, 0.05, (1024, 2))
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(final)))(x)
    assert np.isfinite(values).all() and np.isfinite(gradients).all()
    single = jax.jit(final)
    for i in (0, 511, 1023):
        np.testing.assert_allclose(single(x[i]), values[i], rtol=1e-12)
        steps = np.eye(2) * 1e-6
        expected = [(single(x[i] + e) - single(x[i] - e)) / 2e-6 for e in steps]
        np.testing.assert_allclose(gradients[i], expected, rtol=1e-6, atol=1e-8)
