"""Reactions: Newton and Euler of every link, no power of the constraint, the two reference points, laws, gimbal lock.

The balance is written from the motion of the links (`kinematics`), their masses and the outer wrenches, link by link in
NumPy; nothing of it comes from `reactions`. It closes to round-off: forces here are of order 100, accelerations pass
through the condition of the mass matrix on both sides alike.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
import reference
from test_hybrid import close, driven_zoo, two_links

import jaxmbd as mb
from jaxmbd.drives import driven_motion
from jaxmbd.forces import passive_forces

COUNT = 2
T = 0.7


def quantities(system, q, v, tau, wrenches):
    """State with the laws put in, accelerations, forces, motion of all links, reactions."""
    q, v, _ = driven_motion(system, q, v, jnp.asarray(T))
    a, forces = mb.hybrid_dynamics(system, q, v, tau, jnp.zeros(system.nv, bool), wrenches, T)
    k, r = mb.kinematics(system, q, v, a, T), mb.reactions(system, q, v, tau, wrenches, T)
    return q, v, a, forces, k, r


all_quantities = reference.jit_in_haste(jax.vmap(quantities, in_axes=(None, 0, 0, 0, None)))


@functools.cache
def case(name):
    """(system, wrenches, quantities of a few states)."""
    spec, system = {
        "driven zoo": lambda: (rs.zoo(), driven_zoo()),
        "floater": lambda: (rs.floater(), rs.built(rs.floater())),
        "skater": lambda: (rs.skater(), rs.built(rs.skater())),
    }[name]()
    q, v, _, tau = rs.states(spec, 4, COUNT)
    wrenches = rs.wrenches_of(rs.wrench_numbers(5))
    numbers = jax.tree.map(np.asarray, system)  # its numbers are read one by one below
    return numbers, wrenches, jax.tree.map(np.asarray, all_quantities(system, q, v, tau, wrenches))


QUICK = "floater"
cases = pytest.mark.parametrize(
    "name", [QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in ("driven zoo", "skater"))]
)


def symmetric(six):
    return np.asarray(six)[np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])]


def joint_frames(system, k, i):
    """(inboard rotation, inboard origin, outboard origin) of every joint in one state, by name."""
    frames = {}
    for joint in system.topology.joints:
        parent = "world" if joint.parent < 0 else system.topology.links[joint.parent]
        ends = []
        for side, link in (("in_parent", parent), ("in_child", system.topology.links[joint.child])):
            motion = k[link]
            R, p = motion.rotation[i], motion.position[i]
            position = np.asarray(system.get(f"{joint.name}.{side}.position"))
            quaternion = np.asarray(system.get(f"{joint.name}.{side}.rotation"))
            ends.append((R @ np.asarray(reference.quaternion_matrix(quaternion)), p + R @ position))
        frames[joint.name] = ends[0][0], ends[0][1], ends[1][1]
    return frames


@pytest.mark.contract("S1-02", "S4-17")
@cases
def test_every_link_obeys_newton_and_euler(name):
    """Reactions of the own joint less those of outer ones, weight and wrenches are m c'' and (I w)' about the com."""
    system, wrenches, (*_, k, r) = case(name)
    for i in range(COUNT):
        frames = joint_frames(system, k, i)
        for number, link in enumerate(system.topology.links):
            motion, mass = k[link], float(system.get(f"{link}.mass"))
            R, w, alpha = motion.rotation[i], motion.velocity[i, :3], motion.acceleration[i, :3]
            arm = R @ np.asarray(system.get(f"{link}.com"))
            c = motion.position[i] + arm
            I = R @ symmetric(system.get(f"{link}.inertia")) @ R.T
            h = I @ w + R @ np.asarray(system.get(f"{link}.rotor_momentum"))
            linear = motion.acceleration[i, 3:] + np.cross(alpha, arm) + np.cross(w, np.cross(w, arm))
            force = mass * (np.asarray(system.gravity) - linear)
            moment = -I @ alpha - np.cross(w, h)
            for joint in system.topology.joints:
                sign = (joint.child == number) - (joint.parent == number)
                if sign:
                    wrench = sign * r[joint.name].wrench[i]
                    force = force + wrench[3:]
                    moment = moment + wrench[:3] + np.cross(frames[joint.name][2] - c, wrench[3:])
            for wrench in wrenches:
                on = dict(system.topology.frames).get(wrench.frame)
                if (system.topology.links[on] if on is not None else wrench.frame) == link:
                    at = k[wrench.frame]
                    turn = at.rotation[i] if wrench.axes == "local" else np.eye(3)
                    push = turn @ np.asarray(wrench.force)
                    point = at.position[i] + at.rotation[i] @ np.asarray(wrench.point)
                    force = force + push
                    moment = moment + turn @ np.asarray(wrench.moment) + np.cross(point - c, push)
            scale = max(1.0, np.abs(r.wrench[i]).max())
            np.testing.assert_allclose(np.concatenate([moment, force]) / scale, 0.0, atol=1e-12, err_msg=link)


def modes_of(system, q, k, i):
    """Modes [6, nv] of every joint at its outboard frame's origin in world axes, by name, from the joint records."""
    frames, start, found = joint_frames(system, k, i), 0, {}
    for joint in system.topology.joints:
        own, start = q[i, start : start + joint.nq], start + joint.nq
        if joint.nv:
            record = system.without_drive().joint(joint.name)
            S = np.asarray(record.modes(own)).reshape(2, 3, -1)
            found[joint.name] = np.concatenate(frames[joint.name][0] @ S)
    return found


@pytest.mark.contract("S4-16", "S4-17", "S4-18", "S4-19")
@cases
def test_parts_and_powers(name):
    """wrench = applied + driving + constraint; the constraint does no work on any motion that is allowed (3.31-3.33).

    Projections on the modes are the generalised forces (3.28): what acts along free modes, drives included, less the
    armature's inertia. Their power is the wrench's on the relative motion (from 3.20b), the driven part's kappa times
    its force. The components along driven modes differ from the driving force by applied parts: lambda_bar against mu.
    """
    system, _, (q, v, a, forces, k, r) = case(name)
    plain = system.without_drive()
    passive = np.asarray(jax.vmap(passive_forces, in_axes=(None, 0, 0))(plain, q, v))
    acting = forces + passive - np.asarray(system.armature)[None] * a
    for i in range(COUNT):
        modes = modes_of(plain, q, k, i)
        for joint, S in modes.items():
            own, at = r[joint], plain.v_slice(joint)
            wrench, applied, driving, constraint = (
                x[i] for x in (own.wrench, own.applied, own.driving, own.constraint)
            )
            scale = max(1.0, np.abs(wrench).max())
            size = np.abs(S).max()
            np.testing.assert_allclose(applied + driving + constraint, wrench, atol=1e-14 * scale)
            np.testing.assert_allclose(S.T @ constraint, 0.0, atol=2e-12 * scale * size**2, err_msg=joint)
            np.testing.assert_allclose(S.T @ wrench, own.forces[i], atol=1e-12 * scale * size)
            np.testing.assert_allclose(own.forces[i], acting[i, at], atol=1e-11 * max(1.0, np.abs(acting[i]).max()))
            driven = system.topology.layout.driven[at]
            np.testing.assert_allclose(S[:, driven].T @ applied, 0.0, atol=2e-12 * scale * size**2)
            np.testing.assert_allclose(S[:, ~driven].T @ driving, 0.0, atol=2e-12 * scale * size**2)
            g = v[i, at]
            power = own.forces[i][~driven] @ g[~driven] + own.forces[i][driven] @ g[driven]
            np.testing.assert_allclose((S @ g) @ wrench, power, atol=1e-11 * scale)
            np.testing.assert_allclose((S @ g) @ driving, own.forces[i][driven] @ g[driven], atol=1e-11 * scale)


def test_a_weld_transmits_what_its_links_need():
    """Welds inside a body and to the world have reactions too, all of it constraint."""
    system, _, (*_, r) = case(QUICK)
    weld = r["j4"]
    assert system.topology.joints[system._joint_index("j4")].nv == 0
    assert np.abs(weld.wrench).max() > 1.0
    np.testing.assert_array_equal(weld.wrench, weld.constraint)
    assert weld.forces.shape == (COUNT, 0)


@pytest.mark.parametrize("view", [("outboard", "world"), ("inboard", "inboard")])
def test_welds_alone(view):
    """A bracket welded to the world carries what hangs on it, in copies of nothing that moves."""
    b = mb.Builder(gravity=(0.0, 0.0, -10.0))
    turned = mb.Pose.from_axis_angle((0.0, 0.0, 1.0), (0.0, 1.0, 0.0), jnp.pi / 2)
    b.body("bracket", mass=2.0, com=(0.0, 0.1, 0.0), inertia=jnp.eye(3))
    b.body("lamp", mass=3.0, com=(0.2, 0.0, 0.0), inertia=jnp.eye(3))
    b.joint("wall", mb.fixed(), child="bracket", in_parent=turned)
    b.joint("hook", mb.fixed(), "bracket", "lamp", mb.Pose((0.5, 0.0, 0.0)))
    nothing = jnp.zeros((2, 0))
    at, axes = view
    r = jax.vmap(lambda z: mb.reactions(b.build(), z, z, z, at=at, axes=axes))(nothing)
    # the bracket's x axis points down: the lamp's centre is 0.7 m below the wall's frame, the bracket's 0.1 m aside
    wall, hook = {
        ("outboard", "world"): ([2.0, 0.0, 0.0, 0.0, 0.0, 50.0], [0.0, 0.0, 0.0, 0.0, 0.0, 30.0]),
        ("inboard", "inboard"): ([0.0, 0.0, 2.0, -50.0, 0.0, 0.0], [0.0, 0.0, 0.0, -30.0, 0.0, 0.0]),
    }[view]
    for name, wrench in (("wall", wall), ("hook", hook)):
        close(r[name].wrench, np.tile(wrench, (2, 1)), 1e-14)
        close(r[name].constraint, r[name].wrench, 1e-14)


def four_ways(system, q, v, tau, t):
    return {
        (at, axes): mb.reactions(system, q, v, tau, (), t, at=at, axes=axes)
        for at in ("outboard", "inboard")
        for axes in ("world", "inboard")
    }


def test_reference_points_and_axes():
    """The wrench at the inboard frame has the moment of the shifted force; axes only turn it."""
    system = two_links().with_drive("elbow", speed=mb.laws.Sine(0.5, 3.0), velocities=[1])
    q, v = mb.random_state(system, jax.random.key(2))
    ways = reference.jit_in_haste(four_ways)(system, q, v, jnp.arange(float(system.nv)), 0.2)
    k = jax.tree.map(lambda x: np.asarray(x)[None], mb.kinematics(system, q))
    for joint, (R, inboard, outboard) in joint_frames(system, k, 0).items():
        for part in ("wrench", "applied", "driving", "constraint"):
            here = {way: np.asarray(getattr(r[joint], part)) for way, r in ways.items()}
            moment, force = here["outboard", "world"].reshape(2, 3)
            shifted = np.concatenate([moment + np.cross(outboard - inboard, force), force])
            close(here["inboard", "world"], shifted, 1e-13)
            close(here["outboard", "inboard"], np.concatenate([R.T @ moment, R.T @ force]), 1e-13)
            close(here["inboard", "inboard"], (R.T @ shifted.reshape(2, 3).T).T.ravel(), 1e-13)
        assert (np.abs(ways["outboard", "world"][joint].driving).max() > 0) == (joint == "elbow")


def test_statics_of_a_hanging_chain():
    """At rest every joint carries the weight below it."""
    system = mb.models.pendulum_chain([1.0, 2.0, 3.0], [0.5, 0.5, 0.5], [0.1, 0.1, 0.1])
    r = mb.reactions(system, jnp.zeros(3), jnp.zeros(3), jnp.zeros(3))
    for joint, mass in (("hinge0", 6.0), ("hinge1", 5.0), ("hinge2", 3.0)):
        close(r[joint].wrench, [0, 0, 0, 0, 0, 9.81 * mass], 1e-13)
        close(r[joint].constraint, r[joint].wrench, 1e-13)


def gimballed(sequence="xyz"):
    b = mb.Builder(gravity=(0.0, 0.0, -9.81))
    b.body("top", mass=2.0, com=(0.1, 0.2, 0.5), inertia=np.diag([0.2, 0.3, 0.4]))
    b.joint("gimbal", mb.gimbal(sequence), child="top", armature=0.05, damping=0.3)
    return b.build()


@pytest.mark.slow
def test_gimbal_lock():
    """With two axes in line the wrench, its parts and all gradients stay finite, and near to it they are continuous.

    Armature keeps the mass matrix regular there. The applied part is what acts about the two axes that remain.
    """
    system, v, tau = gimballed(), jnp.array([0.3, -0.2, 0.4]), jnp.array([0.5, 0.2, -0.1])

    def parts(y):
        r = mb.reactions(system, jnp.stack([0.4, y, -0.7]), v, tau)["gimbal"]
        return jnp.stack([r.wrench, r.applied, r.constraint])

    at = reference.jit_in_haste(jax.vmap(lambda y: (parts(y), jax.jacfwd(parts)(y), jax.jacrev(parts)(y))))
    lock = jnp.pi / 2
    value, forward, reverse = (np.asarray(x) for x in at(jnp.array([lock, lock - 1e-5, lock - 0.3, 0.1])))
    assert np.isfinite(value).all() and np.isfinite(forward).all() and np.isfinite(reverse).all()
    close(reverse[2:], forward[2:], 1e-8)
    # in the lock the parts are no smooth functions: their derivatives are finite, of the wrench's size, and rough
    close(reverse[0], forward[0], 1e-3)
    close(value[0, 0], value[1, 0], 1e-4)
    # the axes that remain span a plane; what acts along its normal is the spider's to carry
    record = system.joint("gimbal")
    S = np.asarray(record.modes(jnp.array([0.4, lock, -0.7])))
    U, sizes, _ = np.linalg.svd(S, full_matrices=False)
    assert sizes[2] < 1e-15 < sizes[1]
    plane = U[:, :2] @ U[:, :2].T
    close(value[0, 1], plane @ value[0, 0], 1e-9)
    close(S.T @ value[0, 2], np.zeros(3), 1e-9)


@pytest.mark.slow
def test_reactions_of_a_simulation():
    """Along a trajectory: the driven joint's force along its mode is the trajectory's `tau`."""
    system = two_links().with_drive("elbow", position=mb.laws.Cycloid(0.1, 0.8, 0.5), velocities=[0])
    q, _ = mb.random_state(system, jax.random.key(1))
    run = mb.simulate(system, q, duration=0.1, dt=0.01, stepper=mb.RungeKuttaMuntheKaas4())
    along = jax.vmap(mb.reactions, in_axes=(None, 0, 0, 0, None, 0))(system, run.q, run.v, run.tau, (), run.t)
    elbow = along["elbow"]
    assert elbow.wrench.shape == (11, 6)
    close(elbow.forces[:, 0], run.tau[:, system.v_slice("elbow")][:, 0], 1e-11)
    close(along["root"].wrench, np.zeros((11, 6)), 1e-11)  # a free root transmits nothing
    close(elbow.forces[:, 1], np.zeros(11), 1e-11)


@pytest.mark.contract("S4-06")
def test_bushing_is_the_unconstrained_joint():
    """A free joint with stiffness and damping: all six components of its wrench are applied, none is a constraint."""
    b = mb.Builder(gravity=(0.0, 0.0, -9.81))
    b.body("engine", mass=3.0, com=(0.1, 0.0, 0.05), inertia=np.diag([0.1, 0.2, 0.3]))
    stiffness, damping = np.array([20.0, 30.0, 40.0, 5e2, 6e2, 7e2]), np.array([0.1, 0.2, 0.3, 4.0, 5.0, 6.0])
    b.joint("mount", mb.free(), child="engine", stiffness=stiffness, damping=damping)
    system = b.build()
    e = np.array([0.02, -0.03, 0.01])
    turn = np.concatenate([[np.cos(np.linalg.norm(e) / 2)], np.sin(np.linalg.norm(e) / 2) * e / np.linalg.norm(e)])
    q, v = jnp.concatenate([turn, np.array([0.003, -0.002, 0.004])]), jnp.array([0.1, 0.2, -0.3, 0.4, 0.5, -0.6])
    mount = mb.reactions(system, q, v, jnp.zeros(6))["mount"]
    close(mount.constraint, np.zeros(6), 1e-12)
    # potential 1/2 e K e in the rotation vector and 1/2 z K z in the translation, dampers on v; world axes
    R = np.asarray(reference.quaternion_matrix(turn))

    def potential(x):
        w = jnp.sqrt(x @ x)
        return 0.5 * jnp.sum(stiffness[:3] * x**2) + 0.0 * w

    # moment in outboard axes: gradient along the body rotation, by differences through the exponential
    def energy(d):
        step = np.concatenate([[np.cos(np.linalg.norm(d) / 2)], 0.5 * d * np.sinc(np.linalg.norm(d) / 2 / np.pi)])
        moved = np.asarray(reference.quaternion_product(turn, step))
        x = 2 * np.arctan2(np.linalg.norm(moved[1:]), moved[0]) * moved[1:] / np.linalg.norm(moved[1:])
        return float(potential(x))

    h = 1e-4
    slope = np.array([(energy(h * d) - energy(-h * d)) / (2 * h) for d in np.eye(3)])
    moment = R @ (-slope - damping[:3] * np.asarray(v[:3]))
    force = -stiffness[3:] * np.asarray(q[4:]) - R @ (damping[3:] * np.asarray(v[3:]))
    close(mount.applied, np.concatenate([moment, force]), 1e-7)  # differences of second order


@pytest.mark.slow
def test_derivatives_of_reactions():
    """Both modes agree, with respect to state, forces and every number of the system."""
    system = two_links().with_drive("slide", position=mb.laws.Sine(0.2, 2.0))
    q, v = mb.random_state(system, jax.random.key(3))

    def loss(system, q, v, tau):
        r = mb.reactions(system, q, v, tau, (), 0.3)
        return jnp.sum(jnp.sin(r.wrench)) + jnp.sum(jnp.cos(r.applied * r.driving))

    arguments = (system, q, v, jnp.ones(system.nv))
    gradient = reference.jit_in_haste(jax.grad(loss, argnums=(0, 1, 2, 3)))(*arguments)
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)) * jnp.isfinite(x), arguments)
    along = reference.jit_in_haste(lambda x, d: jax.jvp(loss, x, d)[1])(arguments, direction)
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    assert float(along) == pytest.approx(float(sum(jnp.sum(g * d) for g, d in pairs)), rel=1e-10)
    assert abs(float(along)) > 1e-3


def test_unknown_options_and_names():
    system = mb.models.pendulum()
    zero = jnp.zeros(1)
    with pytest.raises(ValueError, match="at is 'middle'; expected one of"):
        mb.reactions(system, zero, zero, zero, at="middle")
    with pytest.raises(ValueError, match="axes is 'local'; expected one of"):
        mb.reactions(system, zero, zero, zero, axes="local")
    with pytest.raises(KeyError, match="No joint 'knee'. Joints: hinge0"):
        mb.reactions(system, zero, zero, zero)["knee"]
