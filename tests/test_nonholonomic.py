"""Joints with an N(q) of their own: blades, rolling discs, quasi-velocities; and constraints by differentiation.

Oracles: `reference.py` for a tree of such joints; the golden skates (closed form) and discs (Kane's equations with two
rolling multipliers); the ball joint for quasi-velocities; hand-written constraint matrices.
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
from jaxmbd.packing import pack
from jaxmbd.simulate import Mechanism

FOLDER = Path(__file__).parent / "data" / "golden"


def close(ours, theirs, tolerance=1e-11):
    """Equal to within tolerance times the largest entry (and one)."""
    theirs = np.asarray(theirs, float)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0.0, atol=tolerance * np.abs(theirs).max(initial=1.0))


# ------------------------------------------------------------------------------------------------ all the algorithms

NAMES = ("forward_dynamics", "mass_matrix", "q_dot", "kinematics", "inverse_dynamics", "energy", "momentum")
NAMES += ("bias_force", "gravity_force", "com")


@functools.cache
def compared():
    spec, numbers = rs.skater(), rs.wrench_numbers(5)
    states = rs.states(spec, 4, 3)
    theirs = reference.evaluate_batch(spec, rs.AXES)(reference.numbers(spec), *states, numbers)
    return rs.results(spec, *states, numbers, NAMES), jax.tree.map(np.asarray, theirs), states


@pytest.mark.contract("S2-05")
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_tree_of_them_against_the_reference(name):
    """A blade, a disc (3 speeds for 5 coordinates) and quasi-velocities between hinge and ball; Kane's equations."""
    ours, theirs, _ = compared()
    system = rs.built(rs.skater())
    assert (system.nq, system.nv) == (3 + 1 + 5 + 3 + 4, 2 + 1 + 3 + 3 + 3)
    if name == "kinematics":
        k, V, A = ours[name], theirs["motion"].V, theirs["motion"].A
        heavy = len(reference.heavy(rs.skater()))
        for n, frame in enumerate(reference.frame_names(rs.skater())):
            close(k[frame].velocity, V[:, heavy + n])
            close(k[frame].acceleration, A[:, heavy + n])
        return
    for one, other in zip(jax.tree.leaves(ours[name]), jax.tree.leaves(theirs[name]), strict=True):
        close(one, other, 1e-10)


@pytest.mark.slow
def test_coriolis_and_frame_rates():
    """C v + g is the bias, Mdot - 2 C is skew along N v, J_dot v is the acceleration at v_dot = 0."""
    system, (q, v, *_) = rs.built(rs.skater()), [jnp.asarray(x[0]) for x in rs.states(rs.skater(), 4, 1)]

    @reference.jit_in_haste
    def parts(q, v):
        rate = mb.q_dot(system, q, v)
        M_rate = jax.jvp(lambda q: mb.mass_matrix(system, q), (q,), (rate,))[1]
        J_rate = jax.jvp(lambda q: mb.jacobian(system, q, "tool"), (q,), (rate,))[1]
        C = mb.coriolis_matrix(system, q, v)
        bias = mb.bias_force(system, q, v) - mb.gravity_force(system, q)
        return C, M_rate, bias, J_rate @ v, mb.jacobian_rate_product(system, q, v, "tool")

    C, M_rate, bias, J_rate_v, product = parts(q, v)
    close(C @ v, bias)
    close(M_rate - 2 * C, -(M_rate - 2 * C).T)
    close(J_rate_v, product)


def ball(joint):
    b = mb.Builder(gravity=(1.0, 2.0, -9.0))
    b.body("top", mass=2.0, com=(0.1, 0.2, 0.5), inertia=np.diag([0.2, 0.3, 0.4]))
    b.joint("pivot", joint, child="top")
    return b.build()


@pytest.mark.contract("S2-05", "S4-14")
def test_quasi_velocities_are_a_free_choice():
    """Angles with the angular velocity as v move like the ball joint's quaternion, and its N is the inverse of modes.

    q_dot = N v: the free choice of C in (3.23)-(3.27). The choice does not change motion or forces.
    """
    joint = mb.mapped(rs.as_pose(rs.cardan), 3, N=rs.cardan_rates)
    q, v = jnp.array([0.3, -0.5, 0.8]), jnp.array([1.0, -2.0, 0.7])
    close(joint.modes(q)[:3], joint.pose(q).rotation, 1e-14)  # v is the angular velocity in outboard axes
    by_rates = mb.mapped(rs.as_pose(rs.cardan), 3)
    close(by_rates.modes(q) @ joint.N(q), joint.modes(q), 1e-14)
    quaternion = mb.Pose(rotation=joint.pose(q).rotation).quaternion
    tau = jnp.array([0.3, 0.2, -0.1])
    a = mb.forward_dynamics(ball(joint), q, v, tau)
    close(a, mb.forward_dynamics(ball(mb.spherical()), quaternion, v, tau), 1e-12)


# ------------------------------------------------------------------------------------------------------- golden motion


class Disc(eqx.Module):
    """Pose and rates of a rolling disc with its radius as a number: x, y of the contact point, yaw, lean, spin."""

    radius: jax.Array

    def __call__(self, q):
        turn = reference.axis_angle
        R = turn(jnp.array([0.0, 0.0, 1.0]), q[2]) @ turn(jnp.array([1.0, 0.0, 0.0]), q[3])
        spun = R @ turn(jnp.array([0.0, 1.0, 0.0]), q[4])
        return mb.Pose(jnp.stack([q[0], q[1], 0.0 * q[0]]) + self.radius * R[:, 2], spun)

    def rates(self, q):
        return _Rates(self.radius)(q)


class _Rates(eqx.Module):
    radius: jax.Array

    def __call__(self, q):
        c, s, z = self.radius * jnp.cos(q[2]), self.radius * jnp.sin(q[2]), 0.0 * q[2]
        return jnp.stack([jnp.stack([z, z, c]), jnp.stack([z, z, s]), *(z + e for e in np.eye(3))])


@functools.cache
def golden():
    return {c["id"]: c for c in json.loads((FOLDER / "slaats_rolling.json").read_text())["cases"]}


DISCS = {"R3_disc_wobble_coin": "R6_steady_precession_coin", "R4_disc_hoop": "R7_steady_precession_hoop"}
SKATES = ("R1_skate_from_rest", "R2_skate_with_speed")


@functools.cache
def rink():
    """Two skates on their inclines and two discs on the plane."""
    b = mb.Builder(gravity=(0.0, 0.0, -9.81))
    for name in SKATES:
        i = golden()[name]["inputs"]
        b.body(f"body {name}", mass=i["mass"], inertia=np.diag([1.0, 1.0, i["inertia_about_normal"]]))
        slope = mb.Pose.from_rpy((0.0, 0.0, 0.0), (0.0, i["incline_angle"], 0.0))
        joint = mb.mapped(rs.as_pose(rs.blade), 3, N=rs.blade_rates)
        b.joint(name, joint, child=f"body {name}", in_parent=slope)
    for name in DISCS:
        i = golden()[name]["inputs"]
        inertia = np.diag([i["I_transverse"], i["I_axial"], i["I_transverse"]])
        b.body(f"body {name}", mass=i["mass"], inertia=inertia)
        disc = Disc(jnp.asarray(i["radius"]))
        b.joint(name, mb.mapped(disc, 5, N=_Rates(disc.radius)), child=f"body {name}")
    return b.build()


def states_of(name):
    """(q, v) of the golden samples of one joint."""
    e = {
        k: np.array(x, float)
        for k, x in golden()[name]["expected"].items()
        if not isinstance(x, str) and k != "closed_form"
    }
    if name in SKATES:
        rate = np.full(len(e["t"]), golden()[name]["inputs"]["yaw_rate"])
        return np.stack([e["x"], e["y"], e["yaw"]], 1), np.stack([e["speed_along_blade"], rate], 1)
    r = golden()[name]["inputs"]["radius"]
    # from the centre to the contact point: -r Rz Rx e3
    x, y = e["x"] - r * np.sin(e["yaw"]) * np.sin(e["lean"]), e["y"] + r * np.cos(e["yaw"]) * np.sin(e["lean"])
    return np.stack([x, y, e["yaw"], e["lean"], e["spin"]], 1), np.stack(
        [e["yawrate"], e["leanrate"], e["spinrate"]], 1
    )


@functools.cache
def forces():
    """Reactions of all joints at the golden samples, then accelerations in steady precession."""
    system = rink()
    q, v = np.zeros((18, system.nq)), np.zeros((18, system.nv))
    for name in (*SKATES, *DISCS):
        own_q, own_v = states_of(name)
        q[:17, system.q_slice(name)], v[:17, system.v_slice(name)] = own_q, own_v
    for name, steady in DISCS.items():
        i = golden()[steady]["inputs"]
        q[17, system.q_slice(name)] = [0.0, 0.0, i["yaw"], i["lean"], 0.0]
        v[17, system.v_slice(name)] = [i["yawrate"], 0.0, golden()[steady]["expected"]["spinrate"]]

    def one(q, v):
        return mb.forward_dynamics(system, q, v, 0 * v), mb.reactions(system, q, v, 0 * v)

    a, r = reference.jit_in_haste(jax.vmap(one))(q, v)
    return np.asarray(a), r


@pytest.mark.slow
@pytest.mark.parametrize("name", SKATES)
def test_blades_push_sideways(name):
    """The force of the ice along the lateral direction; no other force in the plane, no moment about the normal."""
    wrench = np.asarray(forces()[1][name].wrench)[:17]
    (q, _), i = states_of(name), golden()[name]["inputs"]
    slope = reference.axis_angle(np.array([0.0, 1.0, 0.0]), i["incline_angle"])
    force, moment = wrench[:, 3:] @ slope, wrench[:, :3] @ slope  # in axes of the plane
    lateral = np.stack([-np.sin(q[:, 2]), np.cos(q[:, 2])], 1)
    close(np.sum(force[:, :2] * lateral, 1), golden()[name]["expected"]["lateral_force_on_skate"], 1e-10)
    close(force[:, :2] - lateral * np.sum(force[:, :2] * lateral, 1)[:, None], np.zeros((17, 2)), 1e-10)
    close(moment[:, 2], np.zeros(17), 1e-10)
    close(force[:, 2], np.full(17, i["mass"] * 9.81 * np.cos(i["incline_angle"])), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", DISCS)
def test_discs_are_held_at_the_contact_point(name):
    """The joint's wrench is the golden contact force at the contact point, with no moment there."""
    wrench = np.asarray(forces()[1][name].wrench)[:17]
    close(wrench[:, 3:], golden()[name]["expected"]["contact_force_on_disc_world"], 1e-9)
    (q, _), r = states_of(name), golden()[name]["inputs"]["radius"]
    up = np.stack([np.sin(q[:, 2]) * np.sin(q[:, 3]), -np.cos(q[:, 2]) * np.sin(q[:, 3]), np.cos(q[:, 3])], 1)
    close(wrench[:, :3], np.cross(-r * up, wrench[:, 3:]), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", DISCS)
def test_steady_precession(name):
    """At the spin of the closed form no speed changes, and the contact force turns with the disc."""
    a, r = forces()
    e = golden()[DISCS[name]]["expected"]
    close(a[17, rink().v_slice(name)], np.zeros(3), 1e-9)
    close(np.asarray(r[name].wrench)[17, 3:], e["contact_force_on_disc_world"], 1e-9)


@pytest.mark.slow
def test_golden_motion():
    """Two seconds of all four by the commutator-free method in steps of 0.625 ms."""
    system, dt = rink(), 0.125 / 200
    q, v = np.zeros(system.nq), np.zeros(system.nv)
    for name in (*SKATES, *DISCS):
        own_q, own_v = states_of(name)
        q[system.q_slice(name)], v[system.v_slice(name)] = own_q[0], own_v[0]
    run = mb.simulate(system, q, v, duration=2.0, dt=dt, stepper=mb.CommutatorFree4(), remat=False)
    for name in (*SKATES, *DISCS):
        at = np.rint(np.array(golden()[name]["expected"]["t"]) / dt).astype(int)
        at = at[at <= 3200]
        own_q, own_v = (x[: len(at)] for x in states_of(name))
        close(run.q[at][:, system.q_slice(name)], own_q, 1e-8)
        close(run.v[at][:, system.v_slice(name)], own_v, 2e-8)


# ---------------------------------------------------------------------------------------------------------- integration


def skate():
    b = mb.Builder(gravity=(0.5, 0.3, -9.81))
    b.body("skate", mass=2.0, com=(0.1, 0.05, 0.2), inertia=np.diag([0.1, 0.2, 0.3]))
    b.joint("blade", mb.mapped(rs.as_pose(rs.blade), 3, N=rs.blade_rates), child="skate")
    b.body("arm", mass=0.5, com=(0.0, 0.0, 0.3), inertia=np.diag([0.01, 0.02, 0.03]))
    b.joint("ball", mb.spherical(), parent="skate", child="arm")
    return b.build()


def test_integrate_runs_on_circles():
    """A blade at constant speed and yaw rate runs on a circle; one step errs by h^5."""
    system, v = skate(), jnp.array([1.2, 0.8, 0.3, 0.1, -0.2])
    q = jnp.array([0.1, 0.2, 0.7, 1.0, 0.0, 0.0, 0.0])
    errors = []
    for h in (0.2, 0.1):
        yaw, radius = 0.7 + 0.8 * h, 1.2 / 0.8
        x, y = 0.1 + radius * (np.sin(yaw) - np.sin(0.7)), 0.2 - radius * (np.cos(yaw) - np.cos(0.7))
        moved = mb.integrate(system, q, v, h)
        errors.append(np.abs(np.asarray(moved[:3]) - [x, y, yaw]).max())
        close(np.linalg.norm(moved[3:]), 1.0, 1e-15)
    assert errors[1] < 1e-8
    assert 28 < errors[0] / errors[1] < 36  # 2^5


@pytest.mark.slow
@pytest.mark.parametrize(("stepper", "order"), [(mb.CommutatorFree4(), 4), (mb.RungeKuttaMuntheKaas4(), 2)])
def test_orders(stepper, order):
    """The commutator-free method is of fourth order, Munthe-Kaas' of second, as their docstrings say."""
    system, q = skate(), jnp.array([0.1, 0.2, 0.7, 1.0, 0.0, 0.0, 0.0])
    v = jnp.array([1.2, -0.5, 0.3, 0.1, 0.2])

    @functools.partial(jax.jit, static_argnums=1)
    def end(steps, stepper):  # the number of steps is data: one program a stepper
        mechanism, h = Mechanism(system, pack(system), lambda t, q, v: jnp.zeros_like(v)), 0.5 / steps
        return jax.lax.fori_loop(0, steps, lambda i, x: stepper.step(mechanism, i * h, *x, h)[:2], (q, v))[0]

    exact = end(256, mb.CommutatorFree4())
    coarse, fine = (float(jnp.abs(end(n, stepper) - exact).max()) for n in (16, 32))
    assert order - 0.4 < np.log2(coarse / fine) < order + 0.6


@pytest.mark.slow
def test_commutator_free_method_on_a_group():
    """On a free body without moments it agrees with Munthe-Kaas' method, both of fourth order, and keeps the norm."""
    system = mb.models.rigid_body()
    q, v = system.neutral_q(), jnp.array([1.0, 2.0, -0.5, 0.3, 0.2, 0.1])
    steppers = mb.CommutatorFree4(), mb.RungeKuttaMuntheKaas4()
    ends = [mb.simulate(system, q, v, duration=0.5, dt=0.01, stepper=s) for s in steppers]
    close(ends[0].q[-1], ends[1].q[-1], 1e-8)
    close(ends[0].v[-1], ends[1].v[-1], 1e-8)
    close(jnp.linalg.norm(ends[0].q[:, :4], axis=1), np.ones(51), 1e-14)


# ------------------------------------------------------------------------------------------- derivatives and precision


@pytest.mark.slow
def test_derivatives():
    """Forward against reverse mode against differences, the radius included, of a disc with a ball-jointed arm."""
    b = mb.Builder(gravity=(0.5, 0.3, -9.81))
    b.body("disc", mass=2.0, com=(0.1, 0.05, 0.2), inertia=np.diag([0.1, 0.15, 0.1]))
    rolling = Disc(jnp.asarray(0.3))
    b.joint("contact", mb.mapped(rolling, 5, N=_Rates(rolling.radius)), child="disc")
    b.body("arm", mass=0.5, com=(0.0, 0.0, 0.3), inertia=np.diag([0.02, 0.02, 0.01]))
    b.joint("ball", mb.spherical(), parent="disc", child="arm")
    system = b.build()
    q, v = mb.random_state(system, jax.random.key(1))
    tau, w = jnp.ones(system.nv), jnp.sin(jnp.arange(1.0, 1.0 + system.nv))

    def f(x):
        radius, q, v = x
        at = lambda s: (s.functions[0].pose.radius, s.functions[0].N.radius)  # noqa: E731
        return w @ mb.forward_dynamics(eqx.tree_at(at, system, (radius, radius)), q, v, tau)

    x = (jnp.asarray(0.3), q, v)
    direction = jax.tree.map(lambda y: jnp.cos(jnp.arange(y.size, dtype=float)).reshape(y.shape), x)

    @reference.jit_in_haste
    def all_of(x):  # one program for value, gradient and directional derivative
        return *jax.value_and_grad(f)(x), jax.jvp(f, (x,), (direction,))[1]

    _, gradient, forward = all_of(x)
    along = float(
        sum(jnp.sum(a * b) for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))
    )
    at = lambda h: all_of(jax.tree.map(lambda y, d: y + h * d, x, direction))[0]  # noqa: E731
    h = 1e-4
    slope = float((8 * (at(h) - at(-h)) - at(2 * h) + at(-2 * h)) / (12 * h))
    assert along == pytest.approx(slope, rel=1e-8)
    assert float(gradient[0]) != 0.0
    assert float(forward) == pytest.approx(along, rel=1e-10)


@pytest.mark.slow
def test_float32():
    system = skate().astype(jnp.float32)
    q, v = mb.random_state(system, jax.random.key(0))
    assert q.dtype == v.dtype == jnp.float32
    a = mb.forward_dynamics(system, q, v, 0 * v)
    assert a.dtype == mb.integrate(system, q, v, 0.1).dtype == mb.q_dot(system, q, v).dtype == jnp.float32
    close(a, mb.forward_dynamics(skate(), *(jnp.asarray(x, float) for x in (q, v, 0 * v))), 1e-5)


# ------------------------------------------------------------------------------------ constraints by differentiation

X, Y, Z = np.eye(3)
ALPHA, RATE = 0.5, 3.0


def rheonomic(B, z, t):
    """Section 5: z lies on the line at eta(t) = 0.15 + 0.1 sin(3 t), and nothing turns."""
    eta = 0.15 + 0.1 * jnp.sin(RATE * t)
    return jnp.stack([z[1] - eta * jnp.cos(ALPHA), z[2] - 0.2, B[2, 1], B[0, 2], B[1, 0]])


AXIS, SECOND = np.array([2.0, 1.0, 2.0]) / 3.0, np.array([0.6, 0.0, 0.8])
ACROSS = np.cross(AXIS, X) / np.linalg.norm(np.cross(AXIS, X))
OTHER = np.cross(AXIS, ACROSS)
IMPLICIT = {  # joint, f(B, z, t), hand-written w^T(B, z)
    "revolute": (
        mb.revolute(AXIS),
        lambda B, z, t: jnp.concatenate([jnp.stack([ACROSS @ B @ AXIS, OTHER @ B @ AXIS]), z]),
        lambda B, z: [*_rows(np.cross(B @ AXIS, ACROSS), np.cross(B @ AXIS, OTHER)), *np.eye(6)[3:]],
    ),
    "spherical": (mb.spherical(), lambda B, z, t: z, lambda B, z: np.eye(6)[3:]),
    "universal": (
        mb.universal(AXIS, SECOND),
        lambda B, z, t: jnp.append(z, AXIS @ B @ SECOND - AXIS @ SECOND),
        lambda B, z: [*np.eye(6)[3:], *_rows(np.cross(B @ SECOND, AXIS))],
    ),
    "planar": (
        mb.planar(Z),
        lambda B, z, t: jnp.stack([z[2], B[0, 2], B[1, 2]]),
        lambda B, z: [np.eye(6)[5], *_rows(np.cross(B @ Z, X), np.cross(B @ Z, Y))],
    ),
    "prismatic": (
        mb.prismatic(AXIS),
        lambda B, z, t: jnp.stack([B[2, 1], B[0, 2], B[1, 0], ACROSS @ z, OTHER @ z]),
        lambda B, z: [*np.eye(6)[:3], *_rows(linear=(ACROSS, OTHER))],
    ),
}


def _rows(*angular, linear=()):
    return [np.concatenate([a, np.zeros(3)]) for a in angular] + [np.concatenate([np.zeros(3), a]) for a in linear]


@pytest.mark.contract("S4-07", "S4-09")
@pytest.mark.parametrize("kind", IMPLICIT)
def test_velocity_constraints_by_differentiation(kind):
    """w from f(B, z) equals the hand-written one; w^T phi = 0 with the modes of the joint record; its rank is 6 - n."""
    joint, f, by_hand = IMPLICIT[kind]
    q = np.array([0.9, 0.3, -0.2, 0.25]) if kind == "spherical" else 0.4 + 0.3 * np.arange(joint.nq)
    pose = joint.pose(q)
    close(f(pose.rotation, pose.position, 0.0), np.zeros(6 - joint.nv), 1e-14)
    w, zeta = mb.velocity_constraints(f, pose)
    close(w.T, by_hand(np.asarray(pose.rotation), np.asarray(pose.position)), 1e-14)
    close(zeta, np.zeros(6 - joint.nv), 1e-15)
    modes = np.asarray(joint.modes(q))
    close(w.T @ modes, np.zeros((6 - joint.nv, joint.nv)), 1e-14)
    phi, phi_bar = mb.free_modes(w)
    assert np.linalg.matrix_rank(np.concatenate([modes, phi], 1), tol=1e-10) == joint.nv  # the same space of motions
    close(w.T @ phi_bar, np.eye(6 - joint.nv), 1e-13)


@pytest.mark.contract("S4-07", "S4-09")
def test_rheonomic_constraints_by_differentiation():
    """zeta = -df/dt; with G of the explicit form w^T G = zeta, for any speed of the free mode (3.5)."""
    t = 0.4
    eta, kappa = 0.15 + 0.1 * np.sin(RATE * t), 0.1 * RATE * np.cos(RATE * t)
    s, speed = 0.7, -1.3
    pose = mb.Pose((s + eta * np.sin(ALPHA), eta * np.cos(ALPHA), 0.2))
    w, zeta = mb.velocity_constraints(rheonomic, pose, t)
    close(zeta, [kappa * np.cos(ALPHA), 0, 0, 0, 0], 1e-14)
    close(w.T, [*np.eye(6)[4:], *np.eye(6)[:3]], 1e-14)
    G = speed * np.eye(6)[3] + kappa * np.array([0, 0, 0, np.sin(ALPHA), np.cos(ALPHA), 0])
    close(w.T @ G, zeta, 1e-14)


@pytest.mark.contract("S4-10")
def test_position_and_motion_freedoms_are_counted_apart():
    """The planar rows of f_p and the blade's w_g stacked (3.6)-(3.9): three position freedoms, two of motion."""
    q = np.array([0.3, -0.2, 0.7])
    joint = mb.mapped(rs.as_pose(rs.blade), 3, N=rs.blade_rates)
    w_p, _ = mb.velocity_constraints(IMPLICIT["planar"][1], joint.pose(q))
    w = np.concatenate([w_p, np.array([[0, 0, 0, -np.sin(0.7), np.cos(0.7), 0]]).T], 1)
    close(w.T @ joint.modes(q), np.zeros((4, 2)), 1e-14)
    phi, _ = mb.free_modes(w)
    assert phi.shape == (6, 2) and w_p.shape == (6, 3) and joint.nq == 3
    assert np.linalg.matrix_rank(np.concatenate([joint.modes(q), phi], 1), tol=1e-10) == 2


def test_dependent_constraints():
    w, _ = mb.velocity_constraints(lambda B, z, t: jnp.stack([z[0], z[1], z[0] + z[1]]), mb.Pose())
    with pytest.raises(ValueError, match="3 constraints depend linearly .* leave out those that follow"):
        mb.free_modes(w)


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("N", [lambda q: jnp.zeros((2, 2)), lambda q: jnp.zeros((3, 4)), lambda q: q])
def test_rates_of_the_wrong_shape(N):
    with pytest.raises(ValueError, match=r"N of a mapped joint with 3 coordinates has shape .*; expected \[3, nv\]"):
        mb.mapped(rs.as_pose(rs.blade), 3, N=N)


def test_what_such_joints_cannot_do():
    blade = mb.mapped(rs.as_pose(rs.blade), 3, N=rs.blade_rates)
    system, q = skate(), jnp.zeros(7).at[3].set(1.0)
    with pytest.raises(ValueError, match="No difference of configurations with joint 'blade'"):
        mb.difference(system, q, q)
    for key, value in (("stiffness", 1.0), ("lower", -1.0), ("upper", [1.0, 2.0])):
        b = mb.Builder()
        b.body("skate", mass=1.0, inertia=np.eye(3))
        with pytest.raises(ValueError, match=f"Joint 'blade': {key} has no meaning"):
            b.joint("blade", blade, child="skate", **{key: value})
    b = mb.Builder()
    for name in ("one", "two"):
        b.body(name, mass=1.0, inertia=np.eye(3))
    bead = mb.mapped(rs.as_pose(rs.curve), 1, N=lambda q: jnp.exp(q)[:, None])
    b.joint("wire", bead, child="one")
    b.joint("hinge", mb.revolute(Z), child="two")
    b.couple("hinge", "wire")
    with pytest.raises(ValueError, match="'wire' must have one freedom"):
        b.build()
