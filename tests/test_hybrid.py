"""Mixed problems: part of the motion and part of the forces given, by masks and by laws in time.

The oracle is the multiplier solution: the mass matrix and the forces of `reference.py`, one driving row a given
acceleration, a dense saddle system (Slaats 1991, section 4.1; Passerello & Huston 1972, Eqs. 3.30-3.31).

Tolerances: the recursion and the dense solution are float64; they differ by the condition of M (up to 1e4 here) times
some hundred roundings, so by 1e-10 of the largest entry at most, the figure that the project promises.
"""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
import reference

import jaxmbd as mb
from jaxmbd.drives import driven_motion

SYSTEMS = {"zoo": rs.zoo, "menagerie": rs.menagerie, "skater": rs.skater}
PROMISED = 1e-10
COUNT = rs.BATCH


def close(ours, theirs, tolerance=PROMISED):
    """Equal to within tolerance times the largest entry (and one)."""
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0.0, atol=tolerance * np.abs(theirs).max(initial=1.0))


hybrids = reference.jit_in_haste(jax.vmap(mb.hybrid_dynamics, in_axes=(None, 0, 0, 0, 0, None)))


def masks(spec):
    """Which velocities are driven: none, all, every second joint as a whole, then random entries."""
    sizes = [reference.sizes(joint)[1] for joint in reference.independent(spec)]
    rng, nv = np.random.default_rng(7), sum(sizes)
    whole = np.repeat(np.arange(len(sizes)) % 2 == 0, sizes)
    chosen = [np.zeros(nv, bool), np.ones(nv, bool), whole, ~whole]
    return np.stack(chosen + [rng.random(nv) < rng.uniform(0.1, 0.9) for _ in range(COUNT - len(chosen))])


def multiplier_solution(M, h, x, driven):
    """[M E'; E 0] [a; -force] = [f - h; given], where E picks the driven accelerations and f the given forces."""
    n, at = len(h), np.flatnonzero(driven)
    E = np.eye(n)[at]
    saddle = np.block([[M, -E.T], [E, np.zeros((len(at), len(at)))]])
    forces = np.where(driven, 0.0, x)
    solution = np.linalg.solve(saddle, np.concatenate([forces - h, x[at]]))
    forces[at] = solution[n:]
    return solution[:n], forces


@functools.cache
def mixed(name):
    """(states, masks, given, the library's answer, the multiplier solution, the reference's quantities), batches."""
    spec, numbers = SYSTEMS[name](), rs.wrench_numbers(5)
    q, v, a, tau = rs.states(spec, 4, COUNT)
    driven = masks(spec)
    x = np.where(driven, a, tau)
    ours = hybrids(rs.built(spec), q, v, x, driven, rs.wrenches_of(numbers))
    theirs = reference.evaluate_batch(spec, rs.AXES)(reference.numbers(spec), q, v, a, tau, numbers)
    M, needed = np.asarray(theirs["mass_matrix"]), np.asarray(theirs["inverse_dynamics"])
    h = needed - np.einsum("bij,bj->bi", M, a)
    expected = [multiplier_solution(*row) for row in zip(M, h, x, driven, strict=True)]
    return (q, v, a, tau), driven, x, ours, [np.stack(part) for part in zip(*expected, strict=True)], theirs


# ------------------------------------------------------------------------------------------ masks against multipliers


@pytest.mark.slow
@pytest.mark.contract("S1-23", "S5-02", "S5-16", "S4-12")
@pytest.mark.parametrize("name", ["zoo", "skater", "menagerie"])
def test_random_splits_equal_the_multiplier_solution(name):
    """Every joint kind on a tree; free, given and mixed joints in one call; wrenches, springs, friction, armature."""
    _, driven, x, (a, tau), (a_expected, tau_expected), _ = mixed(name)
    assert any(0 < d.sum() < len(d) for d in driven)
    close(a, a_expected)
    close(tau, tau_expected)
    np.testing.assert_array_equal(np.asarray(a)[driven], x[driven])  # what is given comes back untouched
    np.testing.assert_array_equal(np.asarray(tau)[~driven], x[~driven])


@pytest.mark.slow
@pytest.mark.contract("S5-02")
def test_the_three_classes_of_problems():
    """Loads given: forward dynamics. Motion given: inverse dynamics. The rest is the test above."""
    _, driven, _, (motion, loads), _, theirs = mixed("zoo")
    assert not driven[0].any() and driven[1].all()
    close(motion[0], theirs["forward_dynamics"][0])
    close(loads[1], theirs["inverse_dynamics"][1])


def test_velocity_mask_names_joints():
    system = rs.built(rs.zoo())
    mask = np.asarray(system.velocity_mask("j3", "j0"))
    expected = np.zeros(system.nv, bool)
    expected[system.v_slice("j3")] = expected[system.v_slice("j0")] = True
    np.testing.assert_array_equal(mask, expected)
    assert not np.asarray(system.velocity_mask()).any()


# ------------------------------------------------------------------------------------------------------ laws in time


class Wobble(eqx.Module):
    """offset + amplitude sin(rate t + phase), entry by entry: a law whose numbers are leaves."""

    offset: jax.Array
    amplitude: jax.Array
    rate: jax.Array

    def __call__(self, t):
        return self.offset + self.amplitude * jnp.sin(self.rate * t + jnp.arange(len(self.rate)))


def wobble(size, seed=0, unit=0):
    """Random numbers; the first four entries near a unit quaternion where `unit` says so."""
    rng = np.random.default_rng(seed)
    offset = rng.normal(size=size)
    if unit:
        offset[:4] = [1.5, 0.2, -0.1, 0.3]
    return Wobble(*(jnp.asarray(x) for x in (offset, 0.3 * rng.normal(size=size), rng.uniform(1.0, 3.0, size))))


LAWS = (  # joint of the zoo, driven velocities, level, size of the law
    ("j1", None, "position", 4),  # a ball joint as a whole
    ("j5", (0, 2), "position", 2),  # x and the angle of a planar joint
    ("j6", (1, 3, 5), "speed", 3),  # half of a free joint
    ("j7", (1,), "position", 1),  # the displacement of a cylindrical joint
    ("j9", (0,), "speed", 1),  # one coordinate of a mapped joint
    ("j11", None, "speed", 3),  # a gimbal as a whole
)


def driven_zoo():
    system = rs.built(rs.zoo())
    for i, (joint, velocities, level, size) in enumerate(LAWS):
        system = system.with_drive(joint, **{level: wobble(size, i, size == 4)}, velocities=velocities)
    return system


@pytest.mark.slow
def test_laws_are_masks_with_the_derivatives_of_the_laws():
    """Positions theta(t) give theta' and theta'', speeds kappa(t) give kappa'; the rest is the mixed problem above."""
    system, plain, t = driven_zoo(), rs.built(rs.zoo()), 0.7
    q0, v0, a0, tau0 = (x[0] for x in rs.states(rs.zoo(), 4, 1))
    q, v, a = (np.asarray(x) for x in driven_motion(system, jnp.asarray(q0), jnp.asarray(v0), jnp.asarray(t)))
    mask, h = np.zeros(plain.nv, bool), 1e-4

    def slope(f):  # fourth-order differences: round-off 1e-16 / h, truncation h^4
        return (8 * (f(t + h) - f(t - h)) - (f(t + 2 * h) - f(t - 2 * h))) / (12 * h)

    for i, (joint, velocities, level, size) in enumerate(LAWS):
        law, at_q, at_v = wobble(size, i, size == 4), plain.q_slice(joint), plain.v_slice(joint)
        which = np.arange(at_v.start, at_v.stop)[list(velocities) if velocities else slice(None)]
        mask[which] = True
        law = jax.tree_util.Partial(law)
        if level == "speed":
            close(v[which], law(t), 1e-14)
            close(a[which], slope(law), 1e-9)
        elif size != 4:
            close(q[at_q][list(velocities)], law(t), 1e-14)
            close(v[which], slope(law), 1e-9)
            close(a[which], slope(lambda t, law=law: slope_of(law, t)), 1e-8)
        else:

            def omega(t, law=law):  # R' = R skew(omega)
                W = (
                    reference.quaternion_matrix(law(t)).T
                    @ jax.jvp(lambda t: reference.quaternion_matrix(law(t)), (t,), (1.0,))[1]
                )
                return np.array([W[2, 1], W[0, 2], W[1, 0]])

            close(reference.quaternion_matrix(q[at_q]), reference.quaternion_matrix(law(t)), 1e-14)
            close(np.linalg.norm(q[at_q]), 1.0, 1e-14)
            close(v[which], omega(t), 1e-12)
            close(a[which], slope(omega), 1e-9)
    np.testing.assert_array_equal(q[~_touched(plain)], q0[~_touched(plain)])
    np.testing.assert_array_equal(v[~mask], v0[~mask])
    np.testing.assert_array_equal(np.asarray(system.topology.layout.driven), mask)
    given = np.where(mask, a, tau0)
    expected = hybrid(plain, q, v, given, jnp.asarray(mask), t=t)
    ours = hybrid(system, q, v, tau0, jnp.zeros(plain.nv, bool), t=t)
    for one, other in zip(ours, expected, strict=True):
        close(one, other, 1e-12)
    close(mb.forward_dynamics(system, q, v, tau0, (), t), expected[0], 1e-12)


hybrid = reference.jit_in_haste(mb.hybrid_dynamics)


def slope_of(law, t):
    return np.asarray(jax.jvp(law, (t,), (1.0,))[1])


def _touched(system):
    """Coordinates that the position laws of LAWS give."""
    mask = np.zeros(system.nq, bool)
    for joint, velocities, level, _ in LAWS:
        at = system.q_slice(joint)
        if level == "position":
            mask[np.arange(at.start, at.stop)[list(velocities) if velocities else slice(None)]] = True
    return mask


def two_links(second=None, gravity=(0.5, -1.0, -9.81)):
    """A free body, an arm on `second` (a universal joint when left out) and a hand on a slider."""
    b = mb.Builder(gravity=gravity)
    rng = np.random.default_rng(3)
    for name in ("hull", "arm", "hand"):
        body = rs.random_body(rng, name)
        b.body(name, body.mass, body.com, body.inertia)
    at = mb.Pose((0.1, 0.2, 0.3), (0.9, 0.1, -0.2, 0.3))
    b.joint("root", mb.free(), child="hull")
    b.joint("elbow", second or mb.universal((1, 0, 0), (0, 1, 0)), parent="hull", child="arm", in_parent=at)
    b.joint("slide", mb.prismatic((0.3, 0.5, 1.0)), parent="arm", child="hand", damping=0.4)
    b.frame("tool", on="hand", pose=mb.Pose((0.0, 0.1, 0.2)))
    return b.build()


def start(system, seed=1):
    q, v = mb.random_state(system, jax.random.key(seed))
    return q, v


@pytest.mark.slow
@pytest.mark.contract("S4-12")
def test_locked_modes_are_a_weld():
    """A joint held by a constant law moves and reacts as the same tree welded there; so does one mode of a joint."""
    system = two_links()
    q, v = start(system)
    at_q, at_v, angles = system.q_slice("elbow"), system.v_slice("elbow"), np.array([0.4, -0.3])
    q, v = q.at[at_q].set(angles), v.at[at_v].set(0.0)
    tau = jnp.arange(float(system.nv))
    turn = reference.axis_angle(np.eye(3)[0], 0.4) @ reference.axis_angle(np.eye(3)[1], -0.3)
    welded = two_links(mb.mapped(functools.partial(_turned, turn), 1))  # one idle coordinate, driven below
    keep_q, keep_v = np.delete(np.arange(system.nq), 7), np.delete(np.arange(system.nv), 6)
    ours = mb.reactions(system.with_drive("elbow", position=mb.laws.Constant(angles)), q, v, tau)["root"].wrench
    rigid = welded.with_drive("elbow", position=mb.laws.Constant(0.0))
    other = mb.reactions(rigid, q[keep_q].at[7].set(0.0), v[keep_v], tau[keep_v])["root"].wrench
    close(ours, other, 1e-12)
    a, _ = hybrid(system, q, v, tau.at[at_v].set(0.0), system.velocity_mask("elbow"))
    b, _ = hybrid(
        welded, q[keep_q].at[7].set(0.0), v[keep_v], tau[keep_v].at[6].set(0.0), welded.velocity_mask("elbow")
    )
    close(np.delete(a, [6, 7]), np.delete(b, [6]), 1e-12)


def _turned(turn, q):
    return mb.Pose(jnp.zeros(3), jnp.asarray(turn) @ _about_x(q[0]))


def _about_x(angle):
    return reference.axis_angle(jnp.array([1.0, 0.0, 0.0]), angle)


class Cradle(eqx.Module):
    """Coordinates of a free joint that accelerates and turns."""

    rate: jax.Array

    def __call__(self, t):
        s = self.rate * t
        turn = jnp.stack([1.0 + 0.0 * s, 0.4 * jnp.sin(s), 0.3 * s, 0.2 * s**2])
        return jnp.concatenate([turn, jnp.stack([jnp.sin(2.0 * s), 0.5 * s**2, jnp.cos(s)])])


class CradlePose(eqx.Module):
    """The same as the pose of a base."""

    law: Cradle

    def __call__(self, t):
        x = self.law(t)
        return mb.Pose(x[4:], x[:4])


def cradled(law):
    """The tree of `two_links` without its root, on a moving base; the hull is welded to it."""
    b = mb.Builder(gravity=(0.5, -1.0, -9.81), base_motion=CradlePose(law))
    system = two_links()
    for name in ("hull", "arm", "hand"):
        b.body(name, *(system.get(f"{name}.{part}") for part in ("mass", "com", "inertia")))
    at = mb.Pose((0.1, 0.2, 0.3), (0.9, 0.1, -0.2, 0.3))
    b.joint("root", mb.fixed(), child="hull")
    b.joint("elbow", mb.universal((1, 0, 0), (0, 1, 0)), parent="hull", child="arm", in_parent=at)
    b.joint("slide", mb.prismatic((0.3, 0.5, 1.0)), parent="arm", child="hand", damping=0.4)
    b.frame("tool", on="hand", pose=mb.Pose((0.0, 0.1, 0.2)))
    return b.build()


def test_prescribed_base_and_its_holding_wrench():
    """A free root driven as a whole: the arm moves as on a moving base, and the holding wrench is the rate of momentum.

    tau of the root is the holding moment and force in body axes; by Newton and Euler it is what accelerates all bodies,
    less their weight.
    """
    law, t = Cradle(jnp.asarray(0.8)), 0.6
    system = two_links().with_drive("root", position=law)
    q, v = start(system)
    tau = jnp.zeros(system.nv).at[6:].set(jnp.array([0.3, -0.2, 0.5]))
    q, v, _ = driven_motion(system, q, v, jnp.asarray(t))
    push = (mb.Wrench("tool", moment=(0.1, 0.2, 0.3), force=(1.0, -2.0, 0.5)),)
    a, forces = hybrid(system, q, v, tau, jnp.zeros(system.nv, bool), push, t)
    on_base = mb.forward_dynamics(cradled(law), q[7:], v[6:], tau[6:], push, t)
    close(a[6:], on_base, 1e-12)
    k = mb.kinematics(system, q, v, a, t)
    R, origin = np.asarray(k["hull"].rotation), np.asarray(k["hull"].position)
    moment, force = np.zeros(3), np.zeros(3)
    for name in ("hull", "arm", "hand"):
        motion, mass = k[name], float(system.get(f"{name}.mass"))
        w, alpha = np.asarray(motion.velocity[:3]), np.asarray(motion.acceleration[:3])
        arm = np.asarray(motion.rotation @ system.get(f"{name}.com"))
        Ixx, Ixy, Ixz, Iyy, Iyz, Izz = system.get(f"{name}.inertia")
        I = motion.rotation @ np.array([[Ixx, Ixy, Ixz], [Ixy, Iyy, Iyz], [Ixz, Iyz, Izz]]) @ motion.rotation.T
        linear = np.asarray(motion.acceleration[3:]) + np.cross(alpha, arm) + np.cross(w, np.cross(w, arm))
        f = mass * (linear - np.array([0.5, -1.0, -9.81]))
        force += f
        moment += I @ alpha + np.cross(w, I @ w) + np.cross(np.asarray(motion.position) + arm - origin, f)
    lever = np.asarray(k["tool"].position) - origin
    force -= [1.0, -2.0, 0.5]
    moment -= np.array([0.1, 0.2, 0.3]) + np.cross(lever, [1.0, -2.0, 0.5])
    close(forces[:6], np.concatenate([R.T @ moment, R.T @ force]), 1e-11)


@pytest.mark.slow
@pytest.mark.contract("S1-23")
def test_the_driving_force_does_the_work():
    """Energy at the end - energy at the start = work of the drives and of damping, by Simpson's rule: h^4 small."""
    law = mb.laws.Sine(0.5, 3.0)
    system = two_links().with_drive("elbow", position=law, velocities=[0])
    q, v = start(system)
    dt, n = 1.0 / 128, 128
    run = mb.simulate(system, q, v, duration=n * dt, dt=dt, stepper=mb.RungeKuttaMuntheKaas4())
    np.testing.assert_allclose(run.q[:, 7], jax.vmap(law)(run.t), atol=1e-15)
    weights = dt / 3 * np.r_[1, np.tile([4, 2], n // 2 - 1), 4, 1]
    slide = run.v[:, system.v_slice("slide")][:, 0]
    work = weights @ np.asarray(jnp.sum(run.tau * run.v, 1) - 0.4 * slide**2)
    energy = [float(sum(mb.energy(system, run.q[i], run.v[i]))) for i in (0, -1)]
    assert abs(work) > 1.0
    assert energy[1] - energy[0] == pytest.approx(work, abs=1e-7)  # measured 3e-8, 2e-9 with half the step
    assert np.all(np.asarray(run.tau)[:, np.arange(system.nv) != 6] == 0.0)


# -------------------------------------------------------------------------------------------------------- derivatives


def answer(system, q, v, x, driven, t):
    return jnp.concatenate(mb.hybrid_dynamics(system, q, v, x, driven, (), t))


def dense_answer(system, q, v, x, driven, t):
    """The same by the dense mass matrix, for JAX to differentiate as it stands."""
    M, h = mb.mass_matrix(system, q), mb.inverse_dynamics(system, q, v, jnp.zeros_like(v), (), t)
    keep = ~driven
    free = jnp.where(keep[:, None] & keep[None, :], M, jnp.eye(len(v)))
    b = jnp.where(keep, x - h - M @ jnp.where(driven, x, 0.0), x)
    a = jnp.linalg.solve(free, b)
    return jnp.concatenate([a, jnp.where(driven, M @ a + h, x)])


@functools.cache
def derivatives():
    """(forward mode, reverse mode, of the dense formula) by all inputs, the system's numbers included."""
    system = rs.built(rs.random_tree(4, ("spherical", "universal"), "chain", passive=True))
    q, v, x = (jnp.asarray(y[0]) for y in rs.states(rs.random_tree(4, ("spherical", "universal"), "chain"), 3, 1)[:3])
    driven = jnp.array([False, True, False, True, False])

    def of(function, mode):
        def f(system, q, v, x):
            return function(system, q, v, x, driven, 0.0)

        return reference.jit_in_haste(mode(f, argnums=(0, 1, 2, 3)))(system, q, v, x)

    return of(answer, jax.jacfwd), of(answer, jax.jacrev), of(dense_answer, jax.jacfwd)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0, 1])
def test_derivatives_equal_those_of_the_dense_formula(mode):
    ours, theirs = derivatives()[mode], derivatives()[2]
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        close(one, other, 1e-9)


@pytest.mark.slow
def test_second_derivatives_equal_those_of_the_dense_formula():
    system = rs.built(rs.random_tree(4, ("spherical", "revolute"), "chain", passive=True))
    q, v, x = (jnp.asarray(y[0]) for y in rs.states(rs.random_tree(4, ("spherical", "revolute"), "chain"), 3, 1)[:3])
    driven, weights = jnp.array([False, True, False, True]), jnp.cos(jnp.arange(8.0))

    z = jnp.concatenate([q, v, x])

    def curvature(function):
        def f(z):
            return weights @ function(system, z[:5], z[5:9], z[9:], driven, 0.0)

        return reference.jit_in_haste(lambda z, u: jax.jvp(jax.grad(f), (z,), (u,))[1])(z, jnp.sin(jnp.arange(13.0)))

    close(curvature(answer), curvature(dense_answer), 1e-8)


@pytest.mark.slow
def test_derivatives_in_the_numbers_of_a_law():
    """d(end of a driven motion) / d(target, duration) in both modes, against differences of order four."""
    system, q = two_links(), jnp.concatenate([jnp.array([1.0, 0, 0, 0, 0, 0, 0]), jnp.array([0.1, 0.2, 0.3])])

    def end(z):
        driven = system.with_drive("elbow", position=mb.laws.Cycloid(0.1, z[0], z[1]), velocities=[0])
        run = mb.simulate(driven, q, duration=0.4, dt=0.05, stepper=mb.RungeKuttaMuntheKaas4())
        return jnp.concatenate([run.q[-1], run.tau[-1]])

    z, h, w = jnp.array([0.9, 0.7]), 1e-3, jnp.sin(jnp.arange(1.0, 1.0 + system.nq + system.nv))
    at = reference.jit_in_haste(end)
    steps = [
        (8 * (at(z + h * e) - at(z - h * e)) - at(z + 2 * h * e) + at(z - 2 * h * e)) / (12 * h) for e in np.eye(2)
    ]
    forward = reference.jit_in_haste(jax.jacfwd(end))(z)
    close(forward, np.stack(steps, 1), 1e-8)
    close(reference.jit_in_haste(jax.grad(lambda z: w @ end(z)))(z), w @ forward, 1e-12)


@pytest.mark.slow
def test_gradients_at_singular_states_are_finite():
    """Gimbal lock in a driven joint, rest, straight, half turns: whatever is asked for, nothing is NaN."""
    spec = rs.random_tree(4, ("spherical", "gimbal:zxz"), "chain", passive=True)
    system, driven = rs.built(spec), jnp.array([False, True, False, True, True, False])
    states = list(rs.singular_states(spec).values())
    q, v = (jnp.asarray(np.stack(x)) for x in zip(*states, strict=True))
    x = jnp.asarray(np.random.default_rng(0).normal(size=v.shape))

    def loss(system, q, v, x):
        return jnp.sum(answer(system, q, v, x, driven, 0.0) ** 2)

    both = jax.vmap(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)), in_axes=(None, 0, 0, 0))
    for leaf in jax.tree.leaves(reference.jit_in_haste(both)(system, q, v, x)):
        assert np.all(np.isfinite(leaf))


# ---------------------------------------------------------------------------------------------- precision, compilation


def test_float32():
    """float32 in, float32 out, laws included; errors of single precision times the condition of the mass matrix."""
    system = two_links().with_drive("elbow", position=mb.laws.Cycloid(0.2, 1.2, 0.8), velocities=[0])
    q, v = start(system)
    x, mask = jnp.arange(float(system.nv)), system.velocity_mask("slide")
    exact = hybrid(system, q, v, x, mask, t=0.3)
    single = hybrid(system.astype(jnp.float32), *(y.astype(jnp.float32) for y in (q, v, x)), mask, t=jnp.float32(0.3))
    for one, other in zip(single, exact, strict=True):
        assert one.dtype == jnp.float32
        close(one, other, 1e-5)


def test_masks_and_numbers_of_laws_need_no_new_program():
    system = two_links()
    q, v = start(system)
    x, count = jnp.zeros(system.nv), mb.hybrid_dynamics._cache_size
    mb.hybrid_dynamics(system, q, v, x, system.velocity_mask("root"))
    before = count()
    mb.hybrid_dynamics(system.replace({"arm.mass": 3.0}), q, v, x, system.velocity_mask("slide", "elbow"))
    assert count() == before
    for target in (0.5, 1.0):
        law = mb.laws.Cycloid(0.0, target, 1.0)
        mb.hybrid_dynamics(system.with_drive("slide", position=law), q, v, x, system.velocity_mask())
    assert count() == before + 1


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("driven", [np.zeros(8, bool), np.zeros(9), [True]])
def test_masks_of_the_wrong_kind(driven):
    system = two_links()
    q, v = start(system)
    with pytest.raises(ValueError, match=r"expected a mask bool\[9\].*velocity_mask"):
        mb.hybrid_dynamics(system, q, v, v, driven)


def test_laws_that_do_not_fit():
    law, hinge = mb.laws.Constant(0.0), mb.revolute((0, 0, 1))
    for arguments, complaint in (
        ({}, "takes one law"),
        ({"position": law, "speed": law}, "takes one law"),
        ({"speed": law, "velocities": [1]}, r"velocities = \(1,\) of a revolute joint; expected some of 0 to 0"),
        ({"speed": law, "velocities": []}, "expected some of"),
        ({"speed": law, "velocities": [0, 0]}, "each once"),
    ):
        with pytest.raises(ValueError, match=complaint):
            mb.driven(hinge, **arguments)
    with pytest.raises(ValueError, match="driven already"):
        mb.driven(mb.driven(hinge, speed=law), speed=law)
    with pytest.raises(ValueError, match="only be driven as a whole by a position law"):
        mb.driven(mb.spherical(), position=law, velocities=[0])
    with pytest.raises(ValueError, match="its own .* takes no position law"):
        mb.driven(mb.mapped(rs.as_pose(rs.blade), 3, N=rs.blade_rates), position=law)
    system = two_links()
    with pytest.raises(KeyError, match="No joint 'knee'"):
        system.with_drive("knee", speed=law)
    q, v = start(system)
    wrong = system.with_drive("elbow", position=mb.laws.Constant(np.zeros(3)))
    with pytest.raises(ValueError, match=r"law of joint 'elbow' gives shape \(3,\); expected \(2,\)"):
        mb.forward_dynamics(wrong, q, v, v)
    with pytest.raises(ValueError, match="'j8' follows 'j0' and cannot be driven|'j8' follows another joint"):
        rs.built(rs.menagerie()).with_drive("j8", speed=law)


def test_drives_are_replaced_and_removed():
    system = two_links()
    driven = system.with_drive("slide", speed=mb.laws.Constant(1.0)).with_drive("slide", speed=mb.laws.Constant(2.0))
    assert len(driven.drives) == 1
    record = driven.joint("slide")
    assert record.driven_modes(jnp.zeros(1)).shape == (6, 1)
    assert record.modes(jnp.zeros(1)).shape == (6, 0)
    assert float(record.law(0.0)) == 2.0
    assert driven.without_drive("slide").topology == system.topology
    both = driven.with_drive("elbow", speed=mb.laws.Constant(1.0), velocities=[1])
    assert both.without_drive().topology == system.topology
    assert [d.joint for d in both.without_drive("slide").topology.drives] == [1]


def test_builder_and_with_drive_are_the_same():
    law = mb.laws.Sine(0.3, 2.0)
    built = two_links(mb.driven(mb.universal((1, 0, 0), (0, 1, 0)), position=law, velocities=[1]))
    later = two_links().with_drive("elbow", position=law, velocities=[1])
    assert built.topology == later.topology
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), built, later))
    assert dataclasses.replace(built, drives=later.drives).topology.drives == later.topology.drives
