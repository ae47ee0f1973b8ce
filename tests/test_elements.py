"""Force elements in a system: loads by another route, power and energy balances, actuators, a user's own, errors."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems

import jaxmbd as mb
from jaxmbd import elements as el
from jaxmbd.actuation import limited
from jaxmbd.actuators import Transmission
from jaxmbd.elements.loads import _evaluate
from jaxmbd.elements.motion import Motions
from jaxmbd.packing import pack

RK4 = mb.RungeKuttaMuntheKaas4()
G = 9.81


def mechanism():
    """A free hull with a hinged rod, and links and frames on the world."""
    b = mb.Builder(gravity=(0, 0, -G))
    b.body("hull", mass=2.0, com=(0.05, 0, 0), inertia=np.diag([0.1, 0.12, 0.15]))
    b.joint("root", mb.free(), child="hull")
    b.body("rod", mass=1.0, com=(0, 0, -0.3), inertia=0.02 * np.eye(3))
    b.joint("hinge", mb.revolute((0, 1, 0)), parent="hull", child="rod", in_parent=mb.Pose((0, 0, -0.1)), damping=0.1)
    b.body("bob", mass=0.4, inertia=0.01 * np.eye(3))
    b.joint("swivel", mb.revolute((1, 0, 0)), parent="rod", child="bob", in_parent=mb.Pose((0, 0.1, -0.4)))
    b.frame("tip", on="rod", pose=mb.Pose((0, 0, -0.6), (0.9, 0.1, 0.3, -0.2)))
    b.frame("anchor", on="world", pose=mb.Pose((0, 0.2, 2.0), (0.6, 0.3, -0.2, 0.5)))
    return b.build()


def hills(x, y):
    return 0.3 * np.sin(x) + 0.2 * np.cos(1.5 * y)


def passive_elements():
    """One of each kind that stores or dissipates, single and in rows; contacts are deep in the ground."""
    grid = np.linspace(-4, 4, 13)
    K = np.diag([5.0, 6.0, 7.0, 80.0, 90.0, 70.0]) + 1.5
    ground = el.HeightField(1.0 + hills(*np.meshgrid(grid, grid, indexing="ij")), (-4, -4), (8 / 12, 8 / 12))
    return {
        "spring": el.Spring("anchor", "hull", 200.0, 3.0, 0.5),
        "springs": el.Spring(("world", "tip"), ("bob", "hull"), (50.0, 80.0), 2.0, 0.1, point_b=(0.1, 0.2, 0.0)),
        "smoothed": el.Spring("tip", "world", 40.0, 1.0, 0.3, smoothing=0.2),
        "torsion": el.TorsionSpring("hull", "rod", (0, 2.0, 0), 5.0, 0.2, 2.5),
        "torsion, any": el.TorsionSpring("anchor", "bob", (0.3, -1.0, 0.5), 5.0, 0.2, -0.4),
        "bushing": el.Bushing("anchor", "tip", K, np.diag([0.2] * 6) + 0.05, point_b=(0.1, 0, 0.2)),
        "bushings": el.Bushing(("world", "hull"), ("hull", "bob"), np.arange(1.0, 7.0), 0.1 * np.ones(6)),
        "points": el.Contact(("tip", "bob"), 1e3, 0.3, 0.5, ground=el.Plane((0, 0, 3.0), (0.1, 0.2, 1.0))),
        "spheres on hills": el.Contact(("hull", "tip"), 1e3, 0.1, 0.4, radius=(1.0, 3.0), ground=ground),
        "linear contact": el.Contact("hull", 1e3, 0.2, 0.4, radius=4.0, exponent=1.0),
        "tyres": el.Tyre(("tip", "bob"), 1.2, 100.0, 5.0),
        "tyre that lifts off": el.Tyre("hull", 5.0, 100.0, 30.0, lift_off=True),
        "central gravity": el.CentralGravity(3.0, (0.5, 0.0, -4.0)),
        "field": el.Field(potential=lambda p, t: jnp.sin(p[0]) + p[1] * p[2] ** 2),
        "joint law": el.JointLaw("hinge", lambda q, v, t: -3.0 * jnp.sin(q), lambda q: 3.0 * (1 - jnp.cos(q[0]))),
    }


@functools.cache
def states():
    system = mechanism()
    q, v = jax.vmap(mb.random_state, (None, 0))(system, jax.random.split(jax.random.key(3), 24))
    return system, q, v


@functools.cache
def program():
    return jax.jit(jax.vmap(el.evaluate, (None, None, 0, 0)))


def evaluated(q=None):
    """Loads of the passive elements at the states, or with other coordinates."""
    system, start, v = states()
    return program()(system, elements(), start if q is None else q, v)


@functools.cache
def elements():
    return tuple(passive_elements().values())


@pytest.mark.slow
def test_power_is_lost_potential_less_heat():
    """Element by element: power = -dU/dt - dissipation, and heat is never negative.

    dU/dt along the motion by differences of fourth order, h = 2e-5: they err by h^4, and by eps U / h.
    """
    system, q, v = states()
    loads, names, h = evaluated(), list(passive_elements()), 2e-5
    moved = jax.jit(jax.vmap(mb.integrate, (None, 0, 0)))
    a, b, c, d = (np.asarray(evaluated(moved(system, q, s * h * v)).potential) for s in (-2.0, -1.0, 1.0, 2.0))
    rate = (8 * (c - b) - (d - a)) / (12 * h)
    power, heat = np.asarray(loads.power), np.asarray(loads.dissipation)
    scale = 1.0 + np.abs(power) + np.abs(rate) + np.abs(loads.potential)
    error = np.abs(power + rate + heat) / scale
    assert error.max() < 1e-8, dict(zip(names, error.max(0), strict=True))
    assert np.all(heat >= -1e-12 * scale)
    damped = [i for i, name in enumerate(names) if name not in ("central gravity", "field", "joint law")]
    assert np.all(np.max(heat, 0)[damped] > 0) and np.all(np.max(np.abs(rate), 0) > 0)


@pytest.mark.slow
def test_action_and_reaction():
    """Between two frames, forces are opposite and moments about the world's origin cancel."""
    loads = evaluated()
    system, q, v = states()
    k = jax.vmap(mb.kinematics, (None, 0, 0))(system, q, v)
    for i, (name, element) in enumerate(passive_elements().items()):
        if not isinstance(element, el.ForceElement) or len(element.frames) == 1:
            continue
        total = np.zeros((len(q), 6))
        for side, point, six in zip(element.frames, element.points, loads.sides[i], strict=True):
            names = (side,) if isinstance(side, str) else side
            six = np.asarray(six).reshape(len(q), len(names), 6)
            for n, frame in enumerate(names):
                at = k[frame]
                arm = 0.0 if point is None else np.asarray(at.rotation) @ np.asarray(point).reshape(-1, 3)[0]
                total[:, :3] += six[:, n, :3] + np.cross(np.asarray(at.position) + arm, six[:, n, 3:])
                total[:, 3:] += six[:, n, 3:]
        assert np.abs(total).max() < 1e-11 * max(1.0, np.abs(loads.sides[i][0]).max()), name


@pytest.mark.slow
def test_loads_act_like_wrenches_at_the_frames():
    """Forces summed body by body against single wrenches; and the power against that of J^T f."""
    system, q, v = states()
    loads = evaluated()
    tau = jnp.zeros(system.nv)

    given = (
        mb.Wrench("tip", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0), point=(0.1, 0.0, 0.2)),
        mb.Wrench("bob", (0.0, 0.2, 0.1), (-1.0, 0.5, 0.0), axes="local"),
    )

    @jax.jit
    @jax.vmap
    def routes(q, v, loads):
        wrenches = loads.wrenches, loads.frame_wrenches, el.evaluate(system, given, q, v).wrenches, given
        a = [mb.forward_dynamics(system, q, v, tau, w) for w in wrenches]
        free, held = (mb.inverse_dynamics(system, q, v, tau, w) for w in ((), loads.wrenches))
        return a, v @ (free - held)

    (a, b, c, d), power = routes(q, v, loads)
    np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-9 * np.abs(a).max())
    np.testing.assert_allclose(c, d, rtol=1e-11, atol=1e-11 * np.abs(d).max())
    spatial = np.array([not isinstance(e, el.JointElement) for e in passive_elements().values()])
    expected = np.sum(np.asarray(loads.power)[:, spatial], 1)
    np.testing.assert_allclose(power, expected, rtol=1e-10, atol=1e-10 * np.abs(power).max())


@pytest.mark.slow
def test_reactions_take_the_wrenches_at_frames():
    """A free joint carries nothing, whatever acts on the bodies."""
    system, q, v = states()
    first = jax.tree.map(lambda x: x[0], evaluated())
    wrenches, frame_wrenches = first.wrenches, first.frame_wrenches
    with pytest.raises(ValueError, match="give `frame_wrenches`"):
        mb.reactions(system, q[0], v[0], jnp.zeros(8), wrenches)
    found = np.asarray(mb.reactions(system, q[0], v[0], jnp.zeros(8), frame_wrenches).wrench)
    assert np.abs(found[0]).max() < 1e-11 * np.abs(found).max()


def test_motion_of_frames():
    """The elements' own sweep, on part of the tree, against `kinematics`."""
    system = random_systems.built(random_systems.floater())
    q, v = mb.random_state(system, jax.random.key(1))
    k = jax.jit(mb.kinematics)(system, q, v)
    names = (system.frame_names[-1], system.frame_names[0], "world")

    @jax.jit
    def own(q, v):
        slots = [system.slot_of_frame(name) for name in names]
        motions = Motions(system, pack(system), q, v, jnp.zeros(()), slots)
        return [motions.frames(name, None)[0] for name in names], motions.frames(names, None)[0]

    singles, row = own(q, v)
    for n, (name, one) in enumerate(zip(names, singles, strict=True)):
        for state in (one, jax.tree.map(lambda leaf, n=n: leaf[n], row)):
            rotation = np.array(
                [[state.rotation.rows[i].x, state.rotation.rows[i].y, state.rotation.rows[i].z] for i in range(3)]
            )
            np.testing.assert_allclose(rotation, k[name].rotation, atol=1e-13)
            np.testing.assert_allclose(jax.tree.leaves(state.position), k[name].position, atol=1e-13)
            velocity = jax.tree.leaves((state.omega, state.velocity))
            np.testing.assert_allclose(velocity, k[name].velocity, atol=1e-12 * max(1, np.abs(velocity).max()))


def along(system, elements, traj):
    """Energy, dissipation and power of the elements along a trajectory."""

    @jax.jit
    @jax.vmap
    def f(q, v, t):
        loads = el.evaluate(system, elements, q, v, None, t)
        return sum(el.energy(system, elements, q, v, t)), jnp.sum(loads.dissipation), loads.power

    return f(traj.q, traj.v, traj.t)


def simpson(y, h):
    return h / 3 * (y[0] + y[-1] + 4 * np.sum(y[1:-1:2]) + 2 * np.sum(y[2:-1:2]))


@pytest.mark.slow
def test_energy_balance_of_a_simulation():
    """Energy at the end = at the start - heat of elements and joints + work of a follower, to the steps' error."""
    system = mechanism()
    q, v = system.neutral_q(), jnp.array([0.5, -1.0, 0.8, 0.3, -0.2, 0.5, 1.0, -2.0])
    kinds = passive_elements()
    chosen = ("spring", "springs", "smoothed", "bushings", "tyres", "central gravity", "field", "joint law")
    elements = (
        *(kinds[name] for name in chosen),
        el.TorsionSpring("hull", "rod", (0, 1, 0), 5.0, 0.2, 0.3),
        el.WrenchLaw("tip", lambda t: jnp.array([0.0, 0.5, 0.0, 3.0, 0.0, 0.0]) * jnp.sin(3 * t), axes="local"),
    )
    h = 2e-3
    traj = mb.simulate(system, q, v, duration=0.4, dt=h, forces=elements, stepper=RK4)
    energy, heat, power = along(system, elements, traj)
    heat, work = (simpson(np.asarray(x), h) for x in (heat + 0.1 * traj.v[:, 6] ** 2, power[:, -1]))
    assert heat > 1.0 and abs(work) > 0.01
    assert abs(energy[-1] - energy[0] + heat - work) < 1e-7 * abs(energy[0]), (energy[::200], heat, work)


@pytest.mark.slow
def test_parameters_are_differentiable_through_a_simulation():
    system, q, v = states()

    @jax.jit
    def end(k, centre, m):
        spring = el.Spring("anchor", "hull", k, 3.0, 0.5)
        field = el.CentralGravity(3.0, (0.5, 0.0, centre))
        lag = el.Actuator("hinge", limit=m, softness=0.1, ratio=3.0, lag=0.1)
        contact = el.Contact("tip", 1e3, 0.1, m, radius=2.0)
        traj = mb.simulate(
            system,
            q[0],
            v[0],
            duration=0.05,
            dt=5e-3,
            forces=(spring, field, lag, contact),
            control=lambda t, q, v: jnp.full(8, 0.4),
        )
        return jnp.sum(traj.q[-1] ** 2)

    at, h = (200.0, -4.0, 0.3), 1e-5
    reverse, forward = (d(end, (0, 1, 2))(*at) for d in (jax.grad, jax.jacfwd))
    for i in range(3):
        ahead, behind = (end(*(x + s * h * max(1, abs(x)) * (i == j) for j, x in enumerate(at))) for s in (1, -1))
        difference = (ahead - behind) / (2 * h * max(1, abs(at[i])))
        np.testing.assert_allclose([reverse[i], forward[i]], difference, rtol=2e-6, atol=1e-10)
        assert abs(difference) > 1e-8


@pytest.mark.slow
def test_float32():
    """Nothing turns into float64, and loads err by roundings of the poses; more where a twist is hardly defined."""
    system, q, v = states()
    names = ("spring", "torsion", "bushings", "spheres on hills", "tyre that lifts off", "central gravity", "joint law")
    at = [list(passive_elements()).index(name) for name in names]
    chosen = tuple(elements()[i] for i in at)
    single = program()(system.astype(jnp.float32), chosen, q.astype(jnp.float32), v.astype(jnp.float32))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(single)} == {"float32"}
    double = evaluated()
    for name, a, b in zip(names, single.sides, [double.sides[i] for i in at], strict=True):
        for x, y in zip(a, b, strict=True):
            error = np.abs(np.asarray(x, float) - y).reshape(len(q), -1).max(1) / np.abs(y).max()
            assert np.median(error) < 2e-6 and error.max() < 2e-3, (name, error)


class Drag(el.ForceElement):
    """A user's element: what the docs show."""

    frames: tuple = eqx.field(static=True)
    drag: jax.Array

    def wrenches(self, motion, t):
        (m,) = motion
        return el.Force(el.Vec3.zero(), -self.drag * m.velocity)

    def dissipation(self, motion, t):
        return self.drag * motion[0].velocity.dot(motion[0].velocity)


def falling():
    b = mb.Builder(gravity=(0, 0, -G))
    b.body("ball", mass=2.0, inertia=0.4 * 2.0 * 0.1**2 * np.eye(3))
    b.joint("root", mb.free(), child="ball")
    return b.build()


def test_a_users_element():
    """Fall with linear drag: v = -m g / c (1 - exp(-c t / m))."""
    system = falling()
    traj = mb.simulate(
        system, system.neutral_q(), duration=1.0, dt=0.01, forces=[Drag(("ball",), jnp.array(3.0))], stepper=RK4
    )
    np.testing.assert_allclose(traj.v[:, 5], -2.0 * G / 3.0 * (1 - np.exp(-1.5 * np.asarray(traj.t))), atol=1e-8)


def test_elements_beside_driven_and_coupled_joints():
    """The drive's force of a simulation is that of hybrid dynamics under the same loads, with a mimic joint too."""
    b = mb.Builder(gravity=(0, 0, -G))
    for name, parent in (("a", "world"), ("b", "a"), ("c", "b")):
        b.body(name, mass=1.0, com=(0, 0, -0.5), inertia=0.1 * np.eye(3))
        b.joint(f"j{name}", mb.revolute((0, 1, 0)), parent=parent, child=name, in_parent=mb.Pose((0, 0, -1.0)))
    b.couple("jc", "jb", ratio=-0.5, offset=0.2)
    system = b.build().with_drive("ja", position=mb.laws.Sine(0.3, 2.0))
    spring, tau = el.Spring("world", "c", 30.0, 1.0, 0.5, point_b=(0, 0.3, -1.0)), jnp.zeros(2)
    traj = mb.simulate(system, jnp.array([0.3, -0.4]), duration=0.02, dt=0.01, forces=(spring,), stepper=RK4)
    q, v, t = traj.q[1], traj.v[1], traj.t[1]
    loads = el.evaluate(system, (spring,), q, v, None, t)
    a, drive = mb.hybrid_dynamics(system, q, v, tau, jnp.zeros(2, bool), loads.frame_wrenches, t)
    np.testing.assert_allclose(traj.tau[1], drive, rtol=1e-10)
    np.testing.assert_allclose(traj.a[1], a, rtol=1e-10)


class Loads(eqx.Module):
    """A user's law for all six loads in a joint: of its coordinates and velocities, and of time."""

    stiffness: jax.Array

    def __call__(self, p, g, t):
        return self.stiffness * jnp.stack([p[0], p[1] ** 2, g[0] * p[1], g[1], jnp.sin(t + p[0]), p[0] * g[1]])


class JointLoads(el.ForceElement):
    """Loads of a cylindrical joint about z, on its outboard body in inboard axes at the outboard origin."""

    frames: tuple = eqx.field(static=True)
    law: Loads

    def wrenches(self, motion, t):
        a, b = motion
        apart, turning = b.position - a.position, b.omega - a.omega
        x, z = b.rotation.columns[0], a.rotation.columns[2]
        p = jnp.stack([jnp.arctan2(a.rotation.columns[1].dot(x), a.rotation.columns[0].dot(x)), z.dot(apart)])
        sliding = b.velocity - a.velocity - a.omega.cross(apart)
        six = self.law(p, jnp.stack([z.dot(turning), z.dot(sliding)]), t)
        moment, force = a.rotation @ el.Vec3.of(six[:3]), a.rotation @ el.Vec3.of(six[3:])
        return el.Force(-(moment + apart.cross(force)), -force), el.Force(moment, force)


@pytest.mark.slow
@pytest.mark.contract("S4-20")
def test_a_law_for_all_loads_in_a_joint():
    """Loads of a joint's own state and time: along its velocities phi^T of them acts, the joint carries the rest.

    The same law on the same joint is the same anywhere: at the world and between two bodies.
    """
    law, slide = Loads(jnp.array([2.0, -3.0, 1.0, 0.5, 4.0, 2.5])), mb.cylindrical((0, 0, 1))
    at = [mb.Pose((0.1, 0.2, 0.0), (0.9, 0.1, 0.3, -0.2)), mb.Pose((0.0, -0.1, 0.3), (0.7, 0.5, 0.1, 0.2))]
    b, parent = mb.Builder(gravity=(0, 0, -G)), "world"
    for name, place in zip("ab", at, strict=True):
        b.body(name, mass=1.0, com=(0.1, 0, -0.3), inertia=0.02 * np.eye(3))
        b.joint(f"j{name}", slide, parent, name, place)
        b.frame(f"in{name}", on=parent, pose=place)
        parent = name
    system, zero = b.build(), jnp.zeros(4)
    loads = tuple(JointLoads((f"in{name}", name), law) for name in "ab")
    q, v, t = jnp.array([0.4, -0.3, 0.7, 0.2]), jnp.array([0.5, -1.0, 0.3, 0.8]), 0.6
    six = [law(q[i : i + 2], v[i : i + 2], t) for i in (0, 2)]
    tau = jnp.concatenate([slide.modes(q[i : i + 2]).T @ one for i, one in zip((0, 2), six, strict=True)])
    along = el.JointLaw("jb", lambda q, v, t: tau[2:] + 0.0 * q)

    @jax.jit
    def both(q, v):
        acting = el.evaluate(system, loads, q, v, None, t)
        law_alone = el.evaluate(system, (along,), q, v, None, t).tau
        plain = mb.reactions(system, q, v, tau, (), t, axes="inboard")
        loaded = mb.reactions(system, q, v, zero, acting.frame_wrenches, t, axes="inboard")
        return mb.forward_dynamics(system, q, v, zero, acting.wrenches, t), mb.forward_dynamics(system, q, v, tau), (
            law_alone, plain, loaded
        )  # fmt: skip

    a, b, (law_alone, plain, loaded) = both(q, v)
    np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(law_alone, zero.at[2:].set(tau[2:]), atol=1e-14)
    for joint, one in zip(("ja", "jb"), six, strict=True):
        np.testing.assert_allclose(loaded[joint].wrench, plain[joint].wrench - one, rtol=0, atol=1e-10)
        np.testing.assert_allclose(loaded[joint].applied, np.zeros(6), atol=1e-10)
        np.testing.assert_allclose(
            plain[joint].applied[np.array([2, 5])], np.asarray(one)[np.array([2, 5])], atol=1e-10
        )


def test_soft_limits_of_a_table_of_actuators():
    """Width s: s/2 log(cosh((u + L) / s) / cosh((u - L) / s)) of each actuator's force; without softness, a clip."""
    system, s, L, gear = wheel()[0], 0.1, 2.0, -5.0
    table = mb.Actuators(
        gear=jnp.array([[gear, 0, 0, 0, 0, 0]] * 2),
        gain=jnp.array([[1.0, 0, 0]] * 2),
        bias=jnp.zeros((2, 3)),
        ctrl_range=jnp.array([[-jnp.inf, jnp.inf]] * 2),
        force_range=jnp.array([[-L, L]] * 2),
        coefficients=jnp.ones(2),
        joint_range=jnp.zeros((0, 2)),
        names=("soft", "hard"),
        transmissions=(Transmission("joint", ("axle",)),) * 2,
        softness=jnp.array([s, 0.0]),
    )
    at = jax.jit(jax.vmap(lambda u: jax.value_and_grad(lambda u: table(system, jnp.zeros(1), jnp.zeros(1), u)[0])(u)))
    u = jnp.array([-50.0, -2.05, -1.9, 0.3, 2.0, 70.0])
    tau, slope = at(jnp.stack([u, u], 1))
    near = np.clip(np.asarray(u), -3, 3)
    exact = s / 2 * np.log(np.cosh((near + L) / s) / np.cosh((near - L) / s))
    np.testing.assert_allclose(tau, gear * (exact + np.clip(u, -L, L)), rtol=1e-8)
    steps = 0.5 * (np.tanh((near + L) / s) - np.tanh((near - L) / s))
    np.testing.assert_allclose(slope[:, 0], gear * steps, atol=1e-7)


def wheel(**numbers):
    b = mb.Builder(gravity=(0, 0, 0))
    b.body("wheel", mass=1.0, inertia=0.5 * np.eye(3))
    b.joint("axle", mb.revolute((0, 0, 1)), child="wheel")
    return b.build(), el.Actuator("axle", **numbers)


def test_gear_and_limits():
    """a = ratio limit(u) / (I + ratio^2 J), the drag of the rotor aside; hard and soft limits."""
    system, motor = wheel(limit=2.0, ratio=-5.0, rotor_inertia=0.01, rotor_damping=0.02)
    q, v = jnp.zeros(1), jnp.array([0.3])
    geared = el.with_rotors(system, (motor,))
    for u in (1.0, -7.0):
        loads = el.evaluate(system, (motor,), q, v, jnp.array([u]))
        a = mb.forward_dynamics(geared, q, v, loads.tau)
        np.testing.assert_allclose(a, (-5.0 * np.clip(u, -2, 2) - 25 * 0.02 * 0.3) / (0.5 + 25 * 0.01), rtol=1e-12)
        np.testing.assert_allclose(loads.dissipation, 25 * 0.02 * 0.09, rtol=1e-12)
    np.testing.assert_allclose(el.energy(system, (motor,), q, v)[0], 0.5 * 0.75 * 0.09, rtol=1e-12)
    u = jnp.array([-50.0, -2.0, -0.5, 0.0, 0.5, 1e3])
    s = 0.1
    soft = limited(u, jnp.array(-2.0), jnp.array(2.0), jnp.array(s))
    exact = s / 2 * np.log(np.cosh((u[1:-1] + 2) / s) / np.cosh((u[1:-1] - 2) / s))
    np.testing.assert_allclose(soft[1:-1], exact, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(soft, np.clip(u, -2, 2), atol=0.5 * s * np.log(2) + 1e-12)


def test_servo_of_gain_and_bias():
    """f = kp (u - l) - kd l' with l = ratio q, within its limit, and the shapes that are asked for."""
    kp, kd, ratio = 30.0, 2.0, -5.0
    system, motor = wheel(gain=(kp, 0.0, 0.0), bias=(0.0, -kp, -kd), ratio=ratio, limit=8.0, softness=1e-9)
    q, v = jnp.array([0.02]), jnp.array([0.3])
    for u, bound in ((0.0, False), (2.0, True)):
        f = kp * (u - ratio * 0.02) - kd * ratio * 0.3
        tau = el.evaluate(system, (motor,), q, v, jnp.array([u])).tau
        np.testing.assert_allclose(tau, [ratio * (8.0 if bound else f)], rtol=1e-8)
        assert (abs(f) > 8.0) == bound
    with pytest.raises(ValueError, match=r"The bias of an actuator on axle has shape \(2,\); expected three numbers"):
        el.Actuator("axle", bias=(1.0, 2.0))
    free = mb.models.rigid_body()
    with pytest.raises(ValueError, match="gain or bias sits on .* with 7 coordinates and 6 velocities"):
        name = free.joint_names[0]
        el.evaluate(free, (el.Actuator(name, gain=(1.0, 0.0, 0.0)),), free.neutral_q(), None, jnp.zeros(6))


@pytest.mark.parametrize("stepper", [RK4, mb.SemiImplicitEuler()], ids=["rk4", "semi-implicit"])
def test_lag(stepper):
    """Step response u (1 - exp(-t / T)), exact and stable for any step, and what it does to the wheel."""
    system, motor = wheel(lag=0.05, start=[-1.0])
    step = 0.02 if stepper is RK4 else 1.0
    traj = mb.simulate(
        system,
        jnp.zeros(1),
        duration=5 * step,
        dt=step,
        forces=(motor,),
        control=jnp.full((5, 1), 2.0),
        stepper=stepper,
    )
    exact = 2.0 - 3.0 * np.exp(-np.asarray(traj.t) / 0.05)
    np.testing.assert_allclose(traj.z[:, 0], exact, atol=1e-12)
    np.testing.assert_allclose(traj.tau, traj.z)
    if stepper is RK4:  # velocity = integral of the torque over the inertia of 0.5
        t = np.asarray(traj.t)
        np.testing.assert_allclose(traj.v[:, 0], 2 * (2.0 * t - 3.0 * 0.05 * (1 - np.exp(-t / 0.05))), atol=1e-5)


def test_a_stateless_simulation_has_no_z():
    system, motor = wheel(limit=1.0)
    assert mb.simulate(system, jnp.zeros(1), duration=0.1, dt=0.1, forces=(motor,)).z is None


def test_new_numbers_do_not_compile_anew():
    system, q, v = states()
    count = _evaluate._cache_size()
    for k in (1.0, 2.0):
        el.evaluate(system, (el.Spring("hull", "bob", k),), q[0], v[0])
    assert _evaluate._cache_size() == count + 1


def test_a_batch_of_elements():
    """One spring a copy: numbers of elements are batched by vmap like any others."""
    system, q, v = states()
    k = jnp.array([1.0, 4.0])
    springs = jax.vmap(lambda k: el.Spring("hull", "bob", k))(k)
    found = jax.vmap(el.evaluate, (None, 0, None, None))(system, (springs,), q[0], v[0]).potential
    np.testing.assert_allclose(found[1], 4 * found[0], rtol=1e-12)


class OneSided(el.ForceElement):
    frames: tuple = eqx.field(static=True, default=("ball", "world"))

    def wrenches(self, motion, t):
        return el.Force(el.Vec3.zero(), el.Vec3.zero())


ERRORS = {
    "TypeError: forces holds a float": lambda s: el.evaluate(s, (1.0,), s.neutral_q()),
    "KeyError: .*No link or frame 'nose'": lambda s: el.evaluate(s, (el.Spring("nose", "ball", 1.0),), s.neutral_q()),
    "KeyError: .*No joint 'knee'": lambda s: el.evaluate(s, (el.Actuator("knee"),), s.neutral_q()),
    "ValueError: Two elements take the command of joint 'root'": lambda s: el.evaluate(
        s, (el.Actuator("root"), el.Actuator("root")), s.neutral_q()
    ),
    "ValueError: z has shape": lambda s: el.evaluate(s, (), s.neutral_q(), z=jnp.zeros(2)),
    "ValueError: The sides of an element name": lambda s: el.Spring(("a", "b"), ("c", "d", "e"), 1.0),
    r"ValueError: stiffness has shape \(2,\); expected \(\)": lambda s: el.Spring("a", "b", (1.0, 2.0)),
    r"ValueError: rest has shape \(2,\); expected \(\) or \(3,\)": lambda s: el.Spring(("a",) * 3, "b", 1.0, 0, (1, 2)),
    "ValueError: The stiffness of a bushing has shape": lambda s: el.Bushing("a", "b", jnp.ones(5)),
    "ValueError: The exponent of a contact": lambda s: el.Contact("a", 1.0, exponent=0.5),
    "ValueError: The slip_speed of a contact": lambda s: el.Contact("a", 1.0, slip_speed=0.0),
    "ValueError: heights, origin and spacing": lambda s: el.HeightField(jnp.ones(3)),
    "ValueError: The point and normal of a plane": lambda s: el.Plane((0.0, 0.0)),
    "ValueError: A field takes either": lambda s: el.Field(),
    "ValueError: mu and centre": lambda s: el.CentralGravity((1.0, 2.0)),
    "ValueError: The limit of an actuator on a is": lambda s: el.Actuator("a", limit=-1.0),
    "ValueError: The softness of an actuator belongs": lambda s: el.Actuator("a", softness=1.0),
    "ValueError: start is the torque": lambda s: el.Actuator("a", start=[1.0]),
    "ValueError: axes of a wrench law": lambda s: el.WrenchLaw("a", jnp.sin, axes="body"),
    "ValueError: The law of a wrench on 'ball' gives shape": lambda s: el.evaluate(
        s, (el.WrenchLaw("ball", lambda t: jnp.zeros(3)),), s.neutral_q()
    ),
    "ValueError: The law on root gives shape": lambda s: el.evaluate(
        s, (el.JointLaw("root", lambda q, v, t: q),), s.neutral_q()
    ),
    "ValueError: OneSided returned 1 wrenches for 2 sides": lambda s: el.evaluate(s, (OneSided(),), s.neutral_q()),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    kind, text = message.split(": ", 1)
    with pytest.raises({"TypeError": TypeError, "KeyError": KeyError, "ValueError": ValueError}[kind]) as caught:
        ERRORS[message](falling())
    assert re.search(text, str(caught.value))
