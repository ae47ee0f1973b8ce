"""Impulses and impacts of systems with constraints: dense equations of single bodies, books, closed forms."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb

LENGTHS = {"crank": 0.4, "coupler": 1.0, "rocker": 0.8}


@cache
def four_bar():
    """A four-bar linkage in the plane x, z at a state on its constraints."""
    system = mb.linkages.four_bar(*LENGTHS.values())
    start = mb.assemble(system, jnp.array([0.6, -0.2, 1.5]), jnp.array([2.0, 0.0, 0.0]), fixed=("A",))
    return system, start.q, start.v


@cache
def floating_loop():
    """A four-bar whose ground link floats: hinges A, B, D in the tree, C closes the loop."""
    b = mb.Builder(gravity=(0.0, 0.0, 0.0))
    hinge = mb.revolute(mb.linkages.TURN)
    b.body("ground", 2.0, (0.5, 0.1, -0.1), np.diag([0.3, 0.4, 0.5]))
    b.joint("root", mb.free(), child="ground")
    for name, length in LENGTHS.items():
        b.body(name, length, (length / 2, 0, 0), 0.1 * length * np.eye(3))
    b.joint("A", hinge, "ground", "crank", damping=0.3)
    b.joint("B", hinge, "crank", "coupler", in_parent=mb.Pose((0.4, 0, 0)))
    b.joint("D", hinge, "ground", "rocker", in_parent=mb.Pose((1.1, 0, 0)))
    b.frame("end", on="coupler", pose=mb.Pose((1.0, 0, 0)))
    b.frame("pin", on="rocker", pose=mb.Pose((0.8, 0, 0)))
    b.closure("C", hinge, "end", "pin")
    system = b.build()
    planar = four_bar()[1]
    q = jnp.concatenate([jnp.array([0.8, 0.2, -0.4, 0.4]), jnp.array([0.3, -0.2, 0.5]), planar])
    v = jnp.array([0.3, -0.2, 0.5, 1.0, -0.4, 0.2, 2.0, 0.0, 0.0])
    return system, *mb.project(system, q / jnp.ones(10).at[:4].set(jnp.linalg.norm(q[:4])), v)


def rows_of(system, q, v):
    """Velocity of frame_b against frame_a of the closure C, less the freedom of its hinge."""
    k = mb.kinematics(system, q, v)
    ends = [k[system.frame_names[i]] for i in system.topology.constraints[0].frames]
    (R, V), (_, W) = ((e.rotation, e.velocity) for e in ends)
    turn = R.T @ (W[:3] - V[:3])
    return np.concatenate([W[3:] - V[3:], turn[np.array([0, 2])]])


def bars(q, v):
    """Absolute angles [3] and velocities [3, (x, z, turn)] of the bars' centres in the plane."""
    phi, rate = np.array([q[0], q[0] + q[1], q[2]]), np.array([v[0], v[0] + v[1], v[2]])
    l = np.array(list(LENGTHS.values()))
    along, across = np.stack([np.cos(phi), np.sin(phi)], 1), np.stack([-np.sin(phi), np.cos(phi)], 1)
    at = np.array([[0.0, 0.0], l[0] * along[0], [1.1, 0.0]])
    moving = np.array([[0.0, 0.0], l[0] * rate[0] * across[0], [0.0, 0.0]])
    half = 0.5 * l[:, None]
    return phi, at + half * along, np.concatenate([moving + half * rate[:, None] * across, rate[:, None]], 1)


def dense_blow(q, v, bar, lever, blow):
    """Velocities of all bars after a blow in the plane, from the equations of three free bars and four pins.

    Nine velocities and eight impulses of the pins in one system of equations; no joint coordinates anywhere.
    """
    phi, centre, before = bars(q, v)
    l = np.array(list(LENGTHS.values()))
    masses = np.repeat(l, 3)
    masses[2::3] = l * l**2 / 12 + 1e-2 * l * l**2  # about y: a thin rod, and what the library's bars have on top

    def point(bar, along):
        """Velocity of a point of a bar, as a map of the nine velocities."""
        G = np.zeros((2, 9))
        G[:, 3 * bar : 3 * bar + 2] = np.eye(2)
        G[:, 3 * bar + 2] = along * np.array([-np.sin(phi[bar]), np.cos(phi[bar])])
        return G

    pins = [
        point(0, -l[0] / 2),
        point(0, l[0] / 2) - point(1, -l[1] / 2),
        point(2, -l[2] / 2),
        point(1, l[1] / 2) - point(2, l[2] / 2),
    ]
    J = np.concatenate(pins)
    struck = point(bar, lever)
    matrix = np.block([[np.diag(masses), -J.T], [J, np.zeros((8, 8))]])
    right = np.concatenate([masses * before.reshape(-1) + struck.T @ blow, np.zeros(8)])
    x = np.linalg.solve(matrix, right)
    return x[:9].reshape(3, 3), -x[15:17]  # the impulse of pin C on the rocker


def test_blow_on_the_coupler_against_dense_equations_of_single_bars():
    system, q, v = four_bar()
    blow = np.array([0.3, -0.5])
    push = mb.Wrench("coupler", force=(blow[0], 0.0, blow[1]), point=(0.7, 0.0, 0.0))
    after, impulses = mb.impulse_response(system, q, v, wrenches=(push,))
    expected, at_C = dense_blow(np.asarray(q), np.asarray(v), 1, 0.2, blow)
    np.testing.assert_allclose(bars(np.asarray(q), np.asarray(after))[2], expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(impulses, 0.0, atol=1e-14)
    w = mb.closure_impulses(system, q, v, wrenches=(push,))["C"]
    np.testing.assert_allclose(w.force, [at_C[0], 0.0, at_C[1]], rtol=1e-10, atol=1e-12)
    assert w.unique.tolist() == [False, True, False, True, False, True]
    np.testing.assert_allclose(rows_of(system, q, after), 0.0, atol=1e-12)


@pytest.mark.slow
def test_a_crank_that_locks_stops_the_linkage():
    """One freedom: all stops, the energy lost is all there was; the lock's impulse is that of the reduced inertia."""
    system, q, v = four_bar()
    after, impulses = mb.impulse_response(system, q, v, driven=system.velocity_mask("A"))
    np.testing.assert_allclose(after, 0.0, atol=1e-12)
    kinetic = float(mb.energy(system, q, v)[0])
    np.testing.assert_allclose(impulses, [-2.0 * kinetic / v[0], 0.0, 0.0], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_velocities_that_break_the_loop_are_put_right_and_lose_energy():
    """Gauss: of all velocities that the loop allows, those after the jump are nearest by the mass matrix."""
    system, q, _ = four_bar()
    v = jnp.array([1.0, -2.0, 0.5])
    after, _ = mb.impulse_response(system, q, v)
    np.testing.assert_allclose(rows_of(system, q, after), 0.0, atol=1e-12)
    before, left, lost = (float(mb.energy(system, q, w)[0]) for w in (v, after, v - after))
    assert lost > 0.05
    assert before - left == pytest.approx(lost, rel=1e-11)


@cache
def blows():
    """The floating loop under a wrench, internal impulses and a joint that locks, at once."""
    system, q, v = floating_loop()
    x = jnp.zeros(9).at[6:].set(jnp.array([0.0, 0.3, -0.2]))
    push = mb.Wrench("coupler", (0.1, 0.2, -0.1), (0.5, 0.4, -0.3), (0.2, 0.1, 0.0))
    args = (system, q, v, x, (push,), system.velocity_mask("A"))
    return args, *mb.impulse_response(*args), mb.closure_impulses(*args)


@pytest.mark.slow
def test_momentum_books_of_a_floating_loop():
    """Locks, internal impulses and closures change no momentum: what comes in is the wrench, about the mass centre."""
    (system, q, v, x, (push,), mask), after, impulses, w = blows()
    np.testing.assert_allclose(rows_of(system, q, after), 0.0, atol=1e-11)
    np.testing.assert_allclose(np.where(mask, after, impulses), x, atol=1e-12)
    k = mb.kinematics(system, q)["coupler"]
    lever = k.position + k.rotation @ push.point - mb.com(system, q)
    gained = mb.momentum(system, q, after) - mb.momentum(system, q, v)
    expected = jnp.concatenate([push.moment + jnp.cross(lever, push.force), push.force])
    np.testing.assert_allclose(gained, expected, rtol=1e-10, atol=1e-12)
    # velocity by velocity: M jump = impulses + those of the wrench and of the closure
    still = system.without_passive_forces()
    at_frames = mb.inverse_dynamics(still, q, 0 * v, 0 * v, (push,))
    M = mb.mass_matrix(system, q)
    np.testing.assert_allclose(M @ (after - v), impulses - at_frames + w.load, rtol=1e-10, atol=1e-11)


@pytest.mark.slow
def test_power_of_the_closures_impulse_is_zero_afterwards():
    (system, *_), after, _, w = blows()
    assert float(jnp.abs(w.load @ after)) < 1e-11 * float(jnp.linalg.norm(w.load) * jnp.linalg.norm(after))


@cache
def sled():
    """A plate on a knife edge, its mass centre off the edge by 0.3 m, and a ball that rolls."""
    b = mb.Builder()
    b.body("sled", 3.0, (0.3, 0.0, 0.0), np.diag([0.2, 0.3, 0.4]))
    b.joint("plane", mb.planar(), child="sled")
    b.constraint("edge", mb.knife_edge(), frames=("world", "sled"))
    b.body("ball", 2.0, (0.0, 0.0, 0.0), 0.4 * 2.0 * 0.25 * np.eye(3))
    b.joint("free", mb.free(), child="ball")
    b.constraint("rolls", mb.rolling_ball(0.5), frames=("world", "ball"))
    return b.build()


@pytest.mark.slow
def test_knife_edge_and_rolling_take_their_impulses():
    """Closed forms: a blow across the edge turns the sled about it; 2/7 of a blow at the ball's centre are lost."""
    system = sled()
    q = system.neutral_q().at[system.q_slice("free").stop - 1].set(0.5)
    wrenches = (mb.Wrench("sled", force=(1.2, 2.0, 0.0), point=(0.8, 0.0, 0.0)), mb.Wrench("ball", force=(1.4, 0, 0)))
    v, _ = mb.impulse_response(system, q, jnp.zeros(9), wrenches=wrenches)
    w = mb.closure_impulses(system, q, jnp.zeros(9), wrenches=wrenches)
    inertia = 0.4 + 3.0 * 0.3**2  # about the edge
    np.testing.assert_allclose(v[:3], [1.2 / 3.0, 0.0, 2.0 * 0.8 / inertia], rtol=1e-12, atol=1e-13)
    # the edge holds what is left of the blow after the mass centre's motion across
    np.testing.assert_allclose(w["edge"].force, [0.0, 3.0 * 0.3 * v[2] - 2.0, 0.0], rtol=1e-12, atol=1e-13)
    speed = 1.4 / (2.0 * 1.4)
    np.testing.assert_allclose(v[3:], [0.0, speed / 0.5, 0.0, speed, 0.0, 0.0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(w["rolls"].force, [-0.4, 0.0, 0.0], rtol=1e-12, atol=1e-13)


# ------------------------------------------------------------------------------------------------------- impacts


@cache
def struck():
    """The linkage with a contact at the coupler's point, and one whose normal nothing moves along."""
    system, q, _ = four_bar()
    v = mb.assemble(system, q, jnp.array([-3.0, 0.0, 0.0]), fixed=("A",)).v
    contacts = tuple(
        mb.Contact("coupler", normal, (0.5, 0.0, 0.25), restitution=e, friction=mu)
        for normal, e, mu in (((0.2, 0.0, 1.0), 0.7, 0.3), ((0.0, 1.0, 0.0), 0.5, 0.4))
    )
    return system, q, v, contacts, jax.jit(mb.impact)(system, q, v, contacts)


@pytest.mark.slow
def test_impact_of_a_linkage():
    """One freedom: frictionless, it bounces with the coefficient; with friction it keeps less; the books balance."""
    system, q, v, contacts, r = struck()
    smooth = mb.impact(system, q, v, tuple(mb.Contact(c.frame, c.normal, c.point, c.restitution) for c in contacts))
    np.testing.assert_allclose(smooth.v, -0.7 * v, rtol=1e-10)
    np.testing.assert_allclose(smooth.normal[1], 0.0, atol=0)
    kinetic = [float(mb.energy(system, q, w)[0]) for w in (v, smooth.v, r.v)]
    assert kinetic[2] < kinetic[1] < kinetic[0]
    np.testing.assert_allclose(rows_of(system, q, r.v), 0.0, atol=1e-11)
    normals = np.stack([c.normal / np.linalg.norm(c.normal) for c in contacts])
    blow = np.asarray(r.normal) @ normals + np.asarray(r.tangential).sum(0)
    push = mb.Wrench("coupler", force=blow, point=(0.5, 0.0, 0.25))
    after, _ = mb.impulse_response(system, q, v, wrenches=(push,))
    np.testing.assert_allclose(r.v, after, rtol=1e-10, atol=1e-12)
    w = mb.closure_impulses(system, q, v, wrenches=(push,))
    at = np.array([0, 2])
    np.testing.assert_allclose(r.closures["C"].force[at], w["C"].force[at], rtol=1e-9, atol=1e-12)
    assert smooth.closures is not None and mb.impact(*free_ball()).closures is None


def free_ball():
    b = mb.Builder()
    b.body("ball", 1.0, inertia=np.eye(3))
    b.joint("free", mb.free(), child="ball")
    system = b.build()
    return system, system.neutral_q(), jnp.zeros(6).at[5].set(-1.0), (mb.Contact("ball"),)


@pytest.mark.slow
def test_impacts_of_a_floating_loop_never_add_energy():
    system, q, v = floating_loop()
    rng = np.random.default_rng(3)
    names = ("ground", "crank", "coupler", "rocker")
    contacts = tuple(mb.Contact(f, rng.normal(size=3), rng.normal(size=3), rng.uniform(), rng.uniform()) for f in names)
    speeds = jax.vmap(lambda w: mb.impulse_response(system, q, w)[0])(jnp.asarray(rng.normal(size=(64, 9))))
    r = jax.jit(jax.vmap(lambda w: mb.impact(system, q, w, contacts)))(speeds)
    kinetic = jax.vmap(lambda w: mb.energy(system, q, w)[0])
    before, after = np.asarray(kinetic(speeds)), np.asarray(kinetic(r.v))
    assert np.all(after <= before * (1 + 1e-10)) and np.any(after < 0.8 * before)
    gained = jax.vmap(lambda w: mb.momentum(system, q, w))(r.v) - jax.vmap(lambda w: mb.momentum(system, q, w))(speeds)
    normals = np.stack([c.normal / np.linalg.norm(c.normal) for c in contacts])
    given = np.asarray(r.normal) @ normals + np.asarray(r.tangential).sum(1)
    np.testing.assert_allclose(np.asarray(gained)[:, 3:], given, atol=1e-9)


@pytest.mark.slow
def test_derivatives_of_a_jump_with_constraints():
    """Both modes against differences, in the coordinates, velocities, impulse and a length."""
    system, q, v = four_bar()

    def after(x):
        """Velocities after a blow and an impact, one number."""
        length, q, v, blow = x[0], x[1:4], x[4:7], x[7:]
        changed = system.replace({"rocker_end.position": jnp.stack([length, 0.0 * length, 0.0 * length])})
        push = mb.Wrench("coupler", force=blow, point=(0.7, 0.0, 0.0))
        contact = mb.Contact("coupler", (0.2, 0.0, 1.0), (0.5, 0.0, 0.25), 0.7, 0.3)
        jumped = mb.impulse_response(changed, q, v, wrenches=(push,))[0]
        r = mb.impact(changed, q, jumped, (contact,))
        return r.v @ jnp.array([1.0, 0.5, -0.3]) + r.closures["C"].force @ jnp.array([0.2, 0.0, 0.7])

    x = jnp.concatenate([jnp.array([0.8]), q, -v, jnp.array([0.1, 0.0, -0.1])])
    way = jnp.asarray(np.random.default_rng(2).normal(size=10))

    @jax.jit
    def all_of(x):
        return *jax.value_and_grad(after)(x), jax.jvp(after, (x,), (way,))[1]

    (_, gradient, slope), h = all_of(x), 1e-6
    assert abs(slope) > 0.1
    assert float(slope) == pytest.approx(float(all_of(x + h * way)[0] - all_of(x - h * way)[0]) / (2 * h), rel=1e-6)
    assert float(gradient @ way) == pytest.approx(float(slope), rel=1e-9)


@pytest.mark.slow
def test_world_axes_of_an_impulse_on_a_turned_base():
    """A base that stands turned: the same blow in world axes means another one in its own axes."""

    def spin(t):
        return mb.Pose.from_axis_angle(jnp.zeros(3), (0.0, 0.0, 1.0), 0.5 * jnp.pi * t)

    b = mb.Builder(base_motion=spin)
    b.body("rod", 1.0, (0.0, 0.0, -0.5), 0.1 * np.eye(3))
    b.joint("ball", mb.spherical(), child="rod")
    turned = b.build()
    push = mb.Wrench("rod", force=(1.0, 0.0, 0.0), point=(0.0, 0.0, -1.0))
    v, _ = mb.impulse_response(turned, turned.neutral_q(), jnp.zeros(3), wrenches=(push,), t=1.0)
    # the base's x axis is the world's y: the blow along world x is one along the base's -y, and turns about its x
    np.testing.assert_allclose(v, [-1.0 / 0.35, 0.0, 0.0], rtol=1e-12, atol=1e-12)


def test_closure_impulses_need_constraints():
    with pytest.raises(ValueError, match="no constraints, so there are no closure impulses"):
        mb.closure_impulses(*free_ball()[:3])
