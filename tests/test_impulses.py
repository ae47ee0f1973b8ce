"""Impulses and impacts: Passerello & Huston's table, books of momentum and energy, closed forms, derivatives."""

import json
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
from test_reactions import joint_frames, modes_of, symmetric

import jaxmbd as mb

GOLDEN = Path(__file__).parent / "data" / "golden" / "passerello_huston_manipulator.json"
CASES = {case["id"]: case for case in json.loads(GOLDEN.read_text())["cases"]}


@cache
def manipulator():
    """Main body, two two-link arms on ball joints, discs at their ends; inches, slugs, seconds (Fig. 10)."""
    b = mb.Builder(gravity=(0.0, 0.0, 0.0))
    b.body("b1", 10.0, inertia=np.diag([240.0] * 3))
    for upper, lower in (("b2", "b3"), ("b4", "b5")):
        for link in (upper, lower):
            b.body(link, 0.5, (0.0, 0.0, -18.0), np.diag([54.0, 54.0, 0.0]))
        b.body(f"disc on {lower}", 0.25, inertia=np.diag([0.5, 0.5, 1.0]))
    b.joint("base", mb.free(), child="b1")
    for shoulder, elbow, upper, lower in (("s2", "e3", "b2", "b3"), ("s4", "e5", "b4", "b5")):
        b.joint(shoulder, mb.spherical(), "b1", upper, mb.Pose((0.0, 0.0, -6.0)))
        b.joint(elbow, mb.revolute((0.0, 1.0, 0.0)), upper, lower, mb.Pose((0.0, 0.0, -36.0)))
        b.joint(f"weld {lower}", mb.fixed(), lower, f"disc on {lower}", mb.Pose((0.0, 0.0, -36.0)))
    return b.build()


def bryant(angles):
    """Quaternion of successive rotations about axes 1, 2, 3."""
    q = np.array([1.0, 0.0, 0.0, 0.0])
    for axis, angle in enumerate(angles):
        turn = np.zeros(4)
        turn[0], turn[1 + axis] = np.cos(angle / 2), np.sin(angle / 2)
        w, v, x, u = q[0], q[1:], turn[0], turn[1:]
        q = np.concatenate([[w * x - v @ u], w * u + x * v + np.cross(v, u)])
    return q


def pose_of(angles):
    """q of the manipulator from the paper's fourteen coordinates."""
    x = np.asarray(angles)
    return jnp.asarray(np.concatenate([bryant(x[3:6]), x[:3], bryant(x[6:9]), x[9:10], bryant(x[10:13]), x[13:14]]))


@pytest.mark.contract("S5-24", "S5-25")
@pytest.mark.parametrize("case", ["fig17_interpretation", "fig17_literal_angles", "fig17_printed_arms_x8_minus_90"])
def test_table_of_passerello_and_huston(case):
    """Fig. 17 to its printed digits and far beyond, where the three angles of one arm are at gimbal lock (E5-d)."""
    inputs, expected = CASES[case]["inputs"], CASES[case]["expected"]
    system, q = manipulator(), pose_of(inputs["q_rad"])
    push = mb.Wrench("b1", force=inputs["impulse_slug_in_per_s"])
    v, impulses = mb.impulse_response(system, q, jnp.zeros(system.nv), wrenches=(push,))
    np.testing.assert_allclose(impulses, 0.0, atol=1e-9)
    k = mb.kinematics(system, q, v)
    np.testing.assert_allclose(k["b1"].velocity[3:], expected["determined_base"]["v1"], rtol=1e-11, atol=1e-10)
    spins = [k[body].velocity[:3] for body in ("b1", "b2", "b3", "b4", "b5")]
    np.testing.assert_allclose(spins, expected["body_angular_velocity_increments"], rtol=1e-11, atol=1e-11)
    hinges = [v[system.v_slice(joint)][0] for joint in ("e3", "e5")]
    np.testing.assert_allclose(hinges, list(expected["hinge_increments"].values()), rtol=1e-11)
    np.testing.assert_allclose(mb.energy(system, q, v)[0], expected["kinetic_energy_after"], rtol=1e-11)


@pytest.mark.contract("S5-17")
def test_printed_digits_of_the_table():
    """What the paper prints: 112, 1.99; 3.51, 1.99, -4.39 for the straight arm, -1.99, 3.33 for the bent one."""
    system, q = manipulator(), pose_of(CASES["fig17_interpretation"]["inputs"]["q_rad"])
    v, _ = mb.impulse_response(system, q, jnp.zeros(system.nv), wrenches=(mb.Wrench("b1", force=(1200.0, 0, 0)),))
    k = mb.kinematics(system, q, v)
    relative = k["b2"].velocity[:3] - k["b1"].velocity[:3]
    assert round(float(k["b1"].velocity[3])) == 112
    assert [round(float(x), 2) for x in (k["b1"].velocity[1], relative[2], -relative[1])] == [1.99, 3.51, 1.99]
    assert [round(float(v[system.v_slice(e)][0]), 2) for e in ("e3", "e5")] == [-4.39, 3.33]


@pytest.mark.parametrize("name", ["arm", "floater"])
def test_given_jumps_and_impulses_equal_the_dense_solution(name):
    spec = getattr(rs, name)()
    system, (q, v, x, _) = rs.built(spec), (y[0] for y in rs.states(spec, 3, 1))
    wrench = rs.wrenches_of(rs.wrench_numbers(1))
    driven = np.arange(system.nv) % 3 == 1
    after, impulses = mb.impulse_response(system, q, v, x, wrench, jnp.asarray(driven))
    M = np.asarray(mb.mass_matrix(system, q))
    # the wrenches' generalised impulse is what inverse dynamics at rest without gravity saves
    still = system.replace({"gravity": jnp.zeros(3)}).without_passive_forces()
    acting = -np.asarray(mb.inverse_dynamics(still, q, 0 * v, 0 * v, wrench))
    np.testing.assert_allclose(M @ (after - v), np.asarray(impulses) + acting, rtol=0, atol=1e-11)
    np.testing.assert_allclose(np.where(driven, after, impulses), x, rtol=0, atol=1e-12)


@pytest.mark.contract("S5-17")
def test_sudden_locking_keeps_momentum_and_loses_the_energy_of_the_lost_velocities():
    """Internal impulses change no momentum; Carnot: the loss is the kinetic energy of the jump."""
    spec = rs.floater()
    system, (q, v, _, _) = rs.built(spec), (y[0] for y in rs.states(spec, 4, 1))
    names = [j for j in system.joint_names if j != "j0"]
    lock = system.velocity_mask(*names)
    after, impulses = mb.impulse_response(system, q, v, driven=lock)
    np.testing.assert_allclose(after[lock], 0.0, atol=0)
    np.testing.assert_allclose(impulses[~lock], 0.0, atol=1e-12)
    books = [mb.momentum(system, q, w) for w in (v, after)]
    np.testing.assert_allclose(*books, rtol=0, atol=1e-11)
    T = [float(mb.energy(system, q, w)[0]) for w in (v, after, v - after)]
    assert T[0] - T[1] == pytest.approx(T[2], rel=1e-11)
    released, _ = mb.impulse_response(system, q, after)  # release: nothing happens without an impulse
    np.testing.assert_allclose(released, after, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.contract("S4-16", "S4-17", "S4-19", "S5-17")
def test_impulses_in_the_joints_of_a_tree():
    """A blow and two locks: every link's momentum changes by the impulses on it, links welded to others included.

    The parts: what locks is `driving`, what acts along free velocities is the joint's impulse less its armature's, the
    constraint does no work on any jump that the joint allows. And wrench times relative jump is impulse times jump.
    """
    spec = rs.floater()
    system, (q, v, x, _) = rs.built(spec), (y[0] for y in rs.states(spec, 3, 1))
    joint = {j.name: j for j in system.topology.joints}
    blow, lock = rs.wrenches_of(rs.wrench_numbers(1)), system.velocity_mask("j1", "j3")
    x = jnp.where(lock, 0.0, x)

    @jax.jit
    def jumps(q, v, x):
        after, impulses = mb.impulse_response(system, q, v, x, blow, lock)
        r = mb.impulse_reactions(system, q, v, x, blow, lock)
        return after, impulses, r, [mb.kinematics(system, q, w) for w in (v, after)]

    after, impulses, r, ends = jax.tree.map(np.asarray, jumps(q, v, x))
    numbers = jax.tree.map(np.asarray, system)
    k = jax.tree.map(lambda y: y[None], ends[0])
    frames = joint_frames(numbers, k, 0)
    for number, link in enumerate(system.topology.links):
        at, mass = ends[0][link], float(numbers.get(f"{link}.mass"))
        arm = at.rotation @ numbers.get(f"{link}.com")
        I = at.rotation @ symmetric(numbers.get(f"{link}.inertia")) @ at.rotation.T
        jump = ends[1][link].velocity - at.velocity
        force, moment = -mass * (jump[3:] + np.cross(jump[:3], arm)), -I @ jump[:3]
        for name, entry in joint.items():
            sign = (entry.child == number) - (entry.parent == number)
            wrench, lever = sign * r[name].wrench, frames[name][2] - at.position - arm
            force, moment = force + wrench[3:], moment + wrench[:3] + np.cross(lever, wrench[3:])
        for wrench in blow:
            on = dict(system.topology.frames).get(wrench.frame)
            if (system.topology.links[on] if on is not None else wrench.frame) == link:
                own = ends[0][wrench.frame]
                turn = own.rotation if wrench.axes == "local" else np.eye(3)
                push, lever = turn @ wrench.force, own.position + own.rotation @ wrench.point - at.position - arm
                force, moment = force + push, moment + turn @ wrench.moment + np.cross(lever, push)
        np.testing.assert_allclose([*moment, *force], np.zeros(6), atol=1e-11 * np.abs(r.wrench).max(), err_msg=link)
    change, modes = after - v, modes_of(system, q[None], k, 0)
    inertia = np.asarray(system.armature) * change
    for name, S in modes.items():
        own, at, scale = r[name], system.v_slice(name), np.abs(r[name].wrench).max()
        np.testing.assert_allclose(own.applied + own.driving + own.constraint, own.wrench, atol=1e-13 * scale)
        np.testing.assert_allclose(S.T @ own.constraint, np.zeros(S.shape[1]), atol=1e-11 * scale)
        np.testing.assert_allclose(own.forces, (impulses - inertia)[at], atol=1e-10 * scale)
        np.testing.assert_allclose((S @ change[at]) @ own.wrench, own.forces @ change[at], atol=1e-10 * scale)
        assert (np.abs(own.driving).max() > 0) == (name in ("j1", "j3"))
    assert any(not entry.nv for entry in joint.values())


@pytest.mark.slow
def test_impulses_in_the_joints_of_a_linkage():
    """The pin that closes the loop is listed beside the joints, and the same as `closure_impulses` says."""
    system = mb.linkages.four_bar()
    q = mb.assemble(system, jnp.array([0.6, -0.2, 1.5]), fixed=("A",)).q
    push = (mb.Wrench("coupler", force=(0.3, 0.0, -0.5), point=(0.7, 0.0, 0.0)),)

    @jax.jit
    def both(q):
        still = jnp.zeros(3)
        r = mb.impulse_reactions(system, q, still, None, push)
        return (
            r,
            mb.closure_impulses(system, q, still, None, push)["C"],
            mb.impulse_response(system, q, still, None, push),
        )

    r, pin, (after, _) = both(q)
    np.testing.assert_allclose(r["C"].wrench[3:], pin.force, atol=1e-12)
    k, mass = mb.kinematics(system, q, after)["coupler"], float(system.get("coupler.mass"))
    arm = k.rotation @ system.get("coupler.com")
    moved = mass * (k.velocity[3:] + jnp.cross(k.velocity[:3], arm))
    parents = {j.name: (j.parent, j.child) for j in system.topology.joints}
    own = system.topology.links.index("coupler")
    total = sum((float(c == own) - float(p == own)) * r[name].wrench[3:] for name, (p, c) in parents.items())
    sides = dict(zip(system.constraint_names, system.topology.constraints, strict=True))["C"].frames
    on = [
        f if f < len(system.topology.links) else system.topology.frames[f - len(system.topology.links)][1]
        for f in sides
    ]
    total = total + (float(on[1] == own) - float(on[0] == own)) * r["C"].wrench[3:]
    np.testing.assert_allclose(total + push[0].force, moved, atol=1e-11)


def test_joints_driven_by_a_law_keep_their_velocities():
    spec = rs.arm()
    system = rs.built(spec)
    joint = system.joint_names[1]
    driven = system.with_drive(joint, speed=mb.laws.Constant(0.7))
    q, v = (y[0] for y in rs.states(spec, 5, 1)[:2])
    push = (mb.Wrench(system.body_names[-1], force=(0.3, -0.2, 0.5)),)
    after, impulses = mb.impulse_response(driven, q, v, wrenches=push)
    same, _ = mb.impulse_response(system, q, v, impulses, push)
    np.testing.assert_allclose(after, same, rtol=0, atol=1e-12)
    np.testing.assert_allclose(after[system.v_slice(joint)], v[system.v_slice(joint)], rtol=0, atol=1e-14)


def test_a_joint_beyond_its_limit_gets_no_impulse_from_it():
    """Limits push with a finite force, which does nothing within an instant."""
    b = mb.Builder()
    b.body("rod", 1.0, (0.0, 0.0, -0.5), 0.1 * np.eye(3))
    b.joint("hinge", mb.revolute((0.0, 1.0, 0.0)), child="rod", lower=-0.1, upper=0.1)
    system = b.build().with_limits(stiffness=1e4, damping=10.0)
    after, _ = mb.impulse_response(system, jnp.array([0.5]), jnp.array([0.7]), jnp.array([0.35]))
    np.testing.assert_allclose(after, [0.7 + 0.35 / (0.1 + 0.25)], rtol=1e-12)


# ------------------------------------------------------------------------------------------------------- impacts


def body(inertia=(1.0, 1.0, 1.0), mass=2.0):
    b = mb.Builder()
    b.body("b", mass, inertia=np.diag(inertia))
    b.joint("free", mb.free(), child="b")
    return b.build()


def at(*position):
    return jnp.array([1.0, 0.0, 0.0, 0.0, *position])


@pytest.mark.parametrize("e", [0.0, 0.4, 1.0])
def test_ball_bounces_with_its_coefficient(e):
    v = jnp.array([0.3, -0.2, 0.5, 1.0, 0.5, -3.0])
    r = mb.impact(body(), at(0.0, 0.0, 0.0), v, (mb.Contact("b", restitution=e),))
    np.testing.assert_allclose(r.v, [0.3, -0.2, 0.5, 1.0, 0.5, 3.0 * e], atol=1e-14)
    np.testing.assert_allclose(r.normal, [2.0 * 3.0 * (1 + e)], rtol=1e-14)


def test_rod_strikes_with_one_end():
    """Closed form: impulse (1 + e) v / (1/m + l^2/I) at the end of a rod that falls flat."""
    m, I, l, e, fall = 2.0, 0.7, 0.8, 0.6, 3.0
    v = jnp.array([0.0, 0.0, 0.0, 0.0, 0.0, -fall])
    r = mb.impact(body((1.0, I, I), m), at(0, 0, 0), v, (mb.Contact("b", point=(l, 0, 0), restitution=e),))
    p = (1 + e) * fall / (1 / m + l * l / I)
    np.testing.assert_allclose(r.normal, [p], rtol=1e-13)
    np.testing.assert_allclose(r.v, [0, -l * p / I, 0, 0, 0, -fall + p / m], atol=1e-13)


def test_table_on_four_legs_has_the_least_impulses():
    """Redundant contacts: the motion is unique, and equal legs share equally."""
    legs = tuple(mb.Contact("b", point=(x, y, -1.0), restitution=0.5) for x in (-1.0, 1.0) for y in (-1.0, 1.0))
    r = mb.impact(body(), at(0, 0, 1.0), jnp.array([0, 0, 0, 0, 0, -2.0]), legs)
    np.testing.assert_allclose(r.v, [0, 0, 0, 0, 0, 1.0], atol=1e-10)
    np.testing.assert_allclose(r.normal, [1.5] * 4, rtol=1e-8)


def test_contacts_between_bodies_and_a_contact_that_opens():
    """Two balls in line: equal masses exchange their speeds; a contact that opens stays out of it."""
    b = mb.Builder()
    for name in ("left", "right"):
        b.body(name, 1.0, inertia=np.eye(3))
        b.joint(name, mb.free(), child=name)
    system = b.build()
    q = jnp.concatenate([at(0, 0, 0), at(1.0, 0, 0)])
    v = jnp.zeros(12).at[3].set(2.0).at[8].set(0.5)
    pair = mb.Contact("right", (1.0, 0.0, 0.0), (-0.5, 0.0, 0.0), restitution=1.0, other="left")
    ground = mb.Contact("right", (0.0, 0.0, 1.0), restitution=0.3)
    r = mb.impact(system, q, v.at[11].set(0.1), (pair, ground))
    np.testing.assert_allclose(r.v, v.at[3].set(0.0).at[9].set(2.0).at[11].set(0.1), atol=1e-12)
    np.testing.assert_allclose(r.normal, [2.0, 0.0], atol=1e-12)


def test_friction_slows_sliding_and_spins_the_ball():
    """A sliding ball with much friction rolls after the impact; with little, the impulse is friction times normal."""
    v, point = jnp.array([0.0, 0.0, 0.0, 1.0, 0.0, -1.0]), (0.0, 0.0, -0.5)

    def after(mu):
        return mb.impact(body(), at(0, 0, 0.5), v, (mb.Contact("b", point=point, friction=mu),))

    r = after(1e6)
    np.testing.assert_allclose(r.v[3] + jnp.cross(r.v[:3], jnp.array(point))[0], 0.0, atol=1e-6)
    r = after(1e-3)
    np.testing.assert_allclose(r.tangential[0], [-1e-3 * 2.0, 0.0, 0.0], rtol=1e-5, atol=1e-12)


@cache
def random_impacts():
    """Many states of a free tree with five contacts of differing coefficients, after an impact."""
    spec = rs.floater()
    system = rs.built(spec)
    q, v, _, _ = rs.states(spec, 6, 32)
    rng = np.random.default_rng(0)
    frames = [system.body_names[i % len(system.body_names)] for i in range(5)]
    numbers = (rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), rng.uniform(0, 1, 5), rng.uniform(0, 2, 5))
    contacts = tuple(mb.Contact(f, n, p, e, mu) for f, n, p, e, mu in zip(frames, *numbers, strict=True))
    return system, q, v, contacts, jax.vmap(mb.impact, (None, 0, 0, None))(system, q, v, contacts)


@pytest.mark.slow
def test_no_impact_adds_energy_and_none_penetrates():
    system, q, v, contacts, r = random_impacts()
    kinetic = jax.vmap(lambda q, v: mb.energy(system, q, v)[0])
    before, after = np.asarray(kinetic(q, v)), np.asarray(kinetic(q, r.v))
    assert np.all(after <= before * (1 + 1e-9)) and np.any(after < 0.9 * before)
    assert np.all(np.asarray(r.normal) >= 0)

    def closing(q, v):
        k = mb.kinematics(system, q, v)
        speeds = []
        for c in contacts:
            f = k[c.frame]
            lever = f.rotation @ c.point
            speeds.append((f.velocity[3:] + jnp.cross(f.velocity[:3], lever)) @ c.normal / jnp.linalg.norm(c.normal))
        return jnp.stack(speeds)

    speeds = np.asarray(jax.vmap(closing)(q, r.v))
    assert np.all(speeds >= -1e-8 * np.abs(np.asarray(v)).max())
    limits = np.asarray(r.normal) * np.array([c.friction for c in contacts])
    assert np.all(np.linalg.norm(r.tangential, axis=-1) <= limits * (1 + 1e-9) + 1e-12)


@pytest.mark.slow
def test_momentum_of_an_impact_balances():
    system, q, v, contacts, r = random_impacts()
    momentum = jax.vmap(mb.momentum, (None, 0, 0))
    gained = np.asarray(momentum(system, q, r.v) - momentum(system, q, v))[:, 3:]
    normals = np.stack([c.normal / jnp.linalg.norm(c.normal) for c in contacts])
    given = np.asarray(r.normal) @ normals + np.asarray(r.tangential).sum(1)
    # the root joint has a spring and damper, but no impulse: all impulses are those of the contacts
    np.testing.assert_allclose(gained, given, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_derivatives_through_the_jump():
    """Reverse mode against central differences, in the state, the system and the coefficients."""
    system, q, v, contacts, _ = random_impacts()

    def scalar(system, q, v, contacts):
        r = mb.impact(system, q, v, contacts)
        return jnp.sum(jnp.cos(jnp.arange(system.nv)) * r.v) + r.normal @ jnp.arange(1.0, 6.0) + r.tangential.sum()

    args = (system, jnp.asarray(q[1]), jnp.asarray(v[1]), contacts)
    rng = np.random.default_rng(1)
    way = jax.tree.map(lambda x: jnp.asarray(np.where(np.isfinite(x), rng.normal(size=np.shape(x)), 0.0)), args)
    gradient = jax.jit(jax.grad(scalar, argnums=(0, 1, 2, 3)))(*args)
    ours = sum(jnp.sum(g * w) for g, w in zip(jax.tree.leaves(gradient), jax.tree.leaves(way), strict=True))
    f, h = jax.jit(lambda s: scalar(*jax.tree.map(lambda x, w: x + s * w, args, way))), 1e-6
    assert np.isfinite(ours)
    assert float(ours) == pytest.approx(float(f(h) - f(-h)) / (2 * h), rel=1e-6)


def test_impacts_in_float32():
    r = mb.impact(
        body().astype(jnp.float32),
        at(0, 0, 0).astype(jnp.float32),
        jnp.array([0.0, 0.0, 0.0, 1.0, 0.0, -3.0], jnp.float32),
        (mb.Contact("b", restitution=0.5, friction=0.2),),
    )
    assert r.v.dtype == jnp.float32
    np.testing.assert_allclose(r.v[5], 1.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"restitution": 1.2}, "restitution is 1.2; expected one number from 0 to 1"),
        ({"friction": -0.1}, "friction is -0.1; expected one number from 0 to inf"),
        ({"normal": (0.0, 1.0)}, "normal is .* expected shape"),
    ],
)
def test_bad_contacts_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        mb.Contact("b", **kwargs)
