"""Cut joints and other constraints as rows: they vanish where the joint allows, and lock exactly the locked modes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import rotation as so3
from jaxmbd.closures import At, cut_joint

AXIS = np.array([0.3, -0.5, 0.8])
JOINTS = {
    "fixed": mb.fixed(),
    "revolute": mb.revolute(AXIS),
    "prismatic": mb.prismatic(AXIS),
    "screw": mb.screw(AXIS, 0.2),
    "cylindrical": mb.cylindrical(AXIS),
    "universal": mb.universal((1, 0, 0), (0, 0.6, 0.8)),
    "planar": mb.planar((0.2, 0.3, 0.9)),
    "gimbal": mb.gimbal("zxz"),
    "translational": mb.translational(),
    "spherical": mb.spherical(),
    "slides and a turn": mb.screw_product([mb.prismatic((1, 0, 0)), mb.revolute((0, 0, 1))]),
    "hinges apart": mb.screw_product([mb.revolute((0, 0, 1)), mb.Pose((0.2, 0.1, 0)), mb.revolute((1, 0, 0))]),
    "slide between turns": mb.screw_product([mb.revolute((0, 0, 1)), mb.prismatic((1, 0, 0)), mb.revolute((1, 0, 0))]),
    "mapped": mb.mapped(lambda q: mb.Pose((q[0] ** 2, 0.3 * q[1], 0.2 * q[0]), so3.exp(AXIS * q[0])), 2),
    "turn and slides": mb.screw_product([mb.revolute((0, 0, 1)), mb.prismatic((1, 0, 0)), mb.prismatic((0, 1, 0))]),
}


def between(pose_a, relative):
    """What a constraint sees of a frame and another placed in it."""
    pose_b = pose_a @ relative
    return At(
        jnp.stack([pose_a.rotation, pose_b.rotation]),
        jnp.stack([pose_a.position, pose_b.position]),
        None,
        jnp.zeros(0),
        None,
        jnp.zeros(()),
    )


@pytest.mark.parametrize(
    "kind", [k if k in ("revolute", "universal", "mapped") else pytest.param(k, marks=pytest.mark.slow) for k in JOINTS]
)
def test_rows_are_the_locked_modes(kind):
    """The residual is zero along the joint; its derivative forbids 6 - nv motions, none of the free."""
    joint = JOINTS[kind]
    record = cut_joint(joint)
    assert record.rows == (6 - joint.nv, 0)
    rng = np.random.default_rng(3)
    pose_a = mb.Pose(rng.normal(size=3), so3.exp(jnp.asarray(rng.normal(size=3))))

    @jax.jit
    def both(q):
        relative = joint.pose(q)

        def moved(twist):  # of the outboard frame, at its origin in inboard axes, as modes are
            turn = so3.multiply(so3.exp(twist[:3]), so3.normalize(relative.quaternion))
            return record.residual(between(pose_a, mb.Pose(relative.position + twist[3:], turn)))

        return moved(jnp.zeros(6)), jax.jacfwd(moved)(jnp.zeros(6)), joint.modes(q)

    for _ in range(4):
        q = joint.neutral() + (rng.uniform(-1, 1, joint.nq) if joint.nq == joint.nv else rng.normal(size=4))
        residual, rows, modes = both(jnp.asarray(q))
        np.testing.assert_allclose(residual, 0.0, atol=1e-14)
        np.testing.assert_allclose(rows @ modes, 0.0, atol=1e-13)
        assert np.linalg.matrix_rank(rows) == 6 - joint.nv


def test_screw_counts_turns():
    record = cut_joint(mb.screw((0, 0, 1), 0.1))
    for angle in (-20.0, -3.0, 0.5, 4.0, 100.0):
        at = between(mb.Pose(), mb.Pose((0, 0, 0.1 * angle), so3.exp(jnp.array([0.0, 0.0, angle]))))
        np.testing.assert_allclose(record.residual(at), 0.0, atol=1e-12)


def test_a_turned_over_hinge_is_not_closed():
    """The alignment rows tell an axis from its opposite, so that assembly cannot end upside down."""
    almost = between(mb.Pose(), mb.Pose((0, 0, 0), so3.exp(jnp.array([np.pi - 0.1, 0.0, 0.0]))))
    for joint in (mb.fixed(), mb.revolute((0, 0, 1)), mb.prismatic((0, 0, 1))):
        assert np.abs(cut_joint(joint).residual(almost)).max() > 10.0


@pytest.mark.slow
def test_bead_on_a_wire():
    """s_dd = -(c'.c'' s_d^2 + g c'_z) / (c'.c') along a curve in space, against the bead's acceleration."""

    def wire(s):
        return jnp.stack([s, 0.5 * jnp.sin(2.0 * s), 0.3 * s**2])

    def first(s):
        return jax.jvp(wire, (s,), (jnp.ones_like(s),))[1]

    b = mb.Builder(gravity=(0.0, 0.0, -9.81))
    b.body("bead", 0.7, inertia=np.eye(3))
    b.joint("at", mb.translational(), child="bead")
    b.constraint("wire", mb.point_on_curve(wire, -3.0, 3.0), frames=("world", "bead"))
    system = b.build()
    s, speed = jnp.asarray(0.83), 1.7
    t, second = first(s), jax.jvp(first, (s,), (jnp.ones_like(s),))[1]
    expected = -(t @ second * speed**2 + 9.81 * t[2]) / (t @ t) * t + second * speed**2
    a = mb.forward_dynamics(system, wire(s), speed * t, jnp.zeros(3))
    np.testing.assert_allclose(a, expected, rtol=1e-11, atol=1e-11)
    with pytest.raises(ValueError, match="from 1.0 to 0.0; expected lower < upper"):
        mb.point_on_curve(wire, 1.0, 0.0)


@pytest.mark.slow
def test_driven_closure_locks_all():
    record = cut_joint(mb.driven(mb.revolute(AXIS), position=lambda t: 0.3 + t))
    assert record.rows == (6, 0)
    for t in (0.0, 1.0):
        at = between(mb.Pose(), mb.revolute(AXIS).pose(jnp.array([0.3 + t])))
        np.testing.assert_allclose(record.residual(at._replace(t=jnp.asarray(t))), 0.0, atol=1e-14)
        assert np.abs(record.residual(at._replace(t=jnp.asarray(t + 0.5)))).max() > 0.1


@pytest.mark.parametrize(
    "joint, message",
    [
        (mb.free(), "locks nothing"),
        (mb.screw_product([mb.screw((0, 0, 1), 0.1), mb.Pose((0.1, 0, 0)), mb.revolute((1, 0, 0))]), "which turn it"),
        (mb.mapped(lambda q: mb.Pose(q[:3]), 7, N=lambda q: jnp.ones((7, 1))), "mapped joint of 7 coordinates"),
    ],
)
def test_what_cannot_be_cut(joint, message):
    b = mb.Builder()
    b.body("a", 1.0, inertia=np.eye(3))
    b.joint("j", mb.free(), child="a")
    with pytest.raises(ValueError, match=f"Closure 'c': .*{message}"):
        b.closure("c", joint, "world", "a")


def tripod(**options):
    """Body c is the child of two joints; `options` go to the second."""
    b = mb.Builder()
    for name in "abc":
        b.body(name, 1.0, inertia=np.eye(3))
    b.joint("first", mb.revolute((0, 0, 1)), "world", "a")
    b.joint("second", mb.spherical(), "a", "c", in_parent=mb.Pose((1.0, 0, 0)), **options)
    b.joint("third", mb.revolute((0, 0, 1)), "world", "b", in_parent=mb.Pose((2.0, 0, 0)))
    b.joint("fourth", mb.revolute((0, 0, 1)), "b", "c", in_parent=mb.Pose((1.0, 0, 0)))
    return b


@pytest.mark.contract("S4-25")
def test_the_program_cuts_where_it_costs_least():
    system = tripod().build()
    assert system.joint_names == ("first", "third", "fourth") and system.constraint_names == ("second",)
    assert system.topology.constraints[0].rows == (3, 0)  # the ball: 3 rows in place of the hinge's 5
    assert "Joint 'second' closes a loop and is cut" in system.report[0]
    assert tripod(cut=False).build().constraint_names == ("fourth",)
    assert tripod(damping=0.1).build().constraint_names == ("fourth",)  # a cut joint would lose its damper


def test_errors_name_the_constraint():
    b = mb.Builder()
    b.body("a", 1.0, inertia=np.eye(3))
    b.joint("hinge", mb.revolute((0, 0, 1)), child="a")
    b.joint("again", mb.revolute((0, 0, 1)), child="a", damping=1.0, cut=True)
    with pytest.raises(ValueError, match="'again' closes a loop and would be cut, but it has damping"):
        b.build()
    c = mb.Builder()
    c.body("a", 1.0, inertia=np.eye(3))
    c.joint("hinge", mb.revolute((0, 0, 1)), child="a")
    with pytest.raises(ValueError, match="'rod' .distance. was given 1 frames and 0 joints; it takes 2 and 0"):
        c.constraint("rod", mb.distance(1.0), frames=("a",))
    with pytest.raises(ValueError, match="length of a rod is 0.0 m; expected more than zero"):
        mb.distance(0.0)
    with pytest.raises(ValueError, match="radius of a rolling body is -1.0 m"):
        mb.rolling_disc(-1.0)
    c.constraint("rod", mb.distance(1.0), frames=("a", "nowhere"))
    with pytest.raises(ValueError, match="Constraint 'rod' names no link or frame 'nowhere'"):
        c.build()
    with pytest.raises(ValueError, match="Closure 'x' was given .*expected a joint record"):
        c.closure("x", mb.distance(1.0), "world", "a")
    d = mb.Builder()
    d.body("a", 1.0, inertia=np.eye(3))
    d.joint("hinge", mb.revolute((0, 0, 1)), child="a")
    d.constraint("mesh", mb.gear(2.0), joints=("hinge", "nothing"))
    with pytest.raises(
        ValueError, match="Constraint 'mesh': 'nothing' is no joint of one freedom; expected one of hinge"
    ):
        d.build()


def test_numbers_of_constraints_read_and_replace_by_path():
    b = mb.Builder()
    b.body("a", 1.0, inertia=np.eye(3))
    b.joint("j", mb.free(), child="a")
    b.frame("hook", on="a", pose=mb.Pose((0.1, 0, 0)))
    b.constraint("rod", mb.distance(1.5), frames=("world", "hook"))
    b.closure("loop", mb.revolute((0, 0, 1)), "world", "a")
    system = b.build()
    assert float(system.get("rod.length")) == 1.5
    changed = system.replace({"rod.length": 2.0, "loop.joint.axis": [[0.0, 1.0, 0.0]], "a.mass": 3.0})
    assert (float(changed.get("rod.length")), float(changed.get("a.mass"))) == (2.0, 3.0)
    np.testing.assert_allclose(changed.get("loop.joint.axis"), [[0, 1, 0]])
    with pytest.raises(KeyError, match="the constraint 'rod' .distance. has no such number"):
        system.get("rod.width")
    with pytest.raises(ValueError, match="'rod.length' was given shape .2,.; expected shape"):
        system.replace({"rod.length": [1.0, 2.0]})


# --------------------------------------------------------------------------- joints whose coordinates are searched for


@jax.jit
def acceleration_and_gradient(system, q, v):
    """v_dot under a force on the first joint, and the gradient of its sum by the masses of all links."""

    def acceleration(masses):
        heavier = dataclasses.replace(system, link_mass=masses)
        return mb.forward_dynamics(heavier, q, v, jnp.zeros(system.nv).at[0].set(0.7))

    a, pull = jax.vjp(acceleration, system.link_mass)
    return a, *pull(jnp.ones_like(a))


@pytest.mark.slow
@pytest.mark.contract("S1-24")
def test_the_motion_does_not_depend_on_a_cut_at_an_offset_joint():
    """A spatial loop of one freedom: a hinge with an offset hinge behind it (cut: four rows), or a ball (three)."""
    apart = mb.screw_product([mb.revolute((0, 0.2, 1)), mb.Pose((0.15, 0.1, 0)), mb.revolute((1, 0, 0.3))])

    def loop(cut, pin=(0, 0, 0)):
        b = mb.Builder()
        for name, com in (("crank", 0.2), ("rod", 0.4), ("rocker", 0.3)):
            b.body(name, 1.0, (com, 0.02, 0), np.diag([0.01, 0.05, 0.06]))
        b.joint("A", mb.revolute((0, 0, 1)), "world", "crank")
        b.joint("D", mb.revolute((0, 1, 0.2)), "world", "rocker", in_parent=mb.Pose((1.0, 0.1, 0)))
        b.joint("U", apart, "crank", "rod", in_parent=mb.Pose((0.4, 0, 0)), cut=cut == "U")
        ends = {"in_parent": mb.Pose(pin), "in_child": mb.Pose((0.8, 0, 0))}
        b.joint("S", mb.spherical(), "rocker", "rod", **ends, cut=cut == "S")
        return b.build()

    start = jnp.array([0.3, -0.6, 0.9, -0.4])
    k = mb.kinematics(loop("S"), start)
    pin = k["rocker"].rotation.T @ (k["S:child"].position - k["rocker"].position)
    at_ball, at_offset = loop("S", pin), loop("U", pin)
    assert at_ball.topology.constraints[0].rows == (3, 0) and at_offset.topology.constraints[0].rows == (4, 0)
    first = mb.assemble(at_ball, start, jnp.array([1.0, 0, 0, 0]), fixed=("A",))
    k = mb.kinematics(at_ball, first.q, first.v)
    turn = k["rocker"].rotation.T @ k["rod"].rotation
    spin = k["rod"].rotation.T @ (k["rod"].velocity[:3] - k["rocker"].velocity[:3])
    q, v = jnp.concatenate([first.q[:2], so3.from_matrix(turn)]), jnp.concatenate([first.v[:2], spin])
    states = (at_ball, first.q, first.v), (at_offset, q, v)
    a, b = (mb.forward_dynamics(*state, jnp.zeros(state[0].nv).at[0].set(0.7)) for state in states)
    np.testing.assert_allclose(b[:2], a[:2], rtol=1e-8)
    assert np.abs(a[:2]).min() > 0.1


@pytest.mark.slow
def test_a_skate_as_a_mapped_closure():
    """A blade is a joint of three coordinates and two speeds: three rows on position level, one on velocity level."""

    def place(q):
        return mb.Pose((q[0], q[1], 0.0), so3.exp(jnp.stack([0 * q[2], 0 * q[2], q[2]])))

    def rates(q):
        c, s, zero = jnp.cos(q[2]), jnp.sin(q[2]), 0 * q[2]
        return jnp.stack([jnp.stack([c, zero]), jnp.stack([s, zero]), jnp.stack([zero, zero + 1.0])])

    def sleigh(*closures):
        b = mb.Builder()
        b.body("sleigh", 2.0, (0.3, 0, 0.1), np.diag([0.2, 0.3, 0.4]))
        b.joint("root", mb.free(), child="sleigh")
        for name, joint in closures:
            b.closure(name, joint, "world", "sleigh")
        return b

    blade = sleigh(("blade", mb.mapped(place, 3, N=rates))).build()
    b = sleigh(("ice", mb.planar()))
    b.constraint("edge", mb.knife_edge(), frames=("world", "sleigh"))
    classical = b.build()
    assert blade.topology.constraints[0].rows == (3, 1)
    q = jnp.concatenate([so3.exp(jnp.array([0, 0, 2.2])), jnp.array([0.4, -0.7, 0])])
    v = jnp.array([0, 0, 1.3, 0.8, 0, 0])
    (a, slope), (expected, classical_slope) = (acceleration_and_gradient(s, q, v) for s in (blade, classical))
    np.testing.assert_allclose(a, expected, atol=1e-10)
    np.testing.assert_allclose(slope, classical_slope, atol=1e-9)
    assert np.abs(a).max() > 0.3 and np.abs(slope).max() > 0.01
    m = mb.mobility(blade, q)
    assert (m.position, m.velocity, m.redundant) == (3, 2, 0)


def test_files_and_scales_of_joints_that_are_searched_for(tmp_path):
    """A product with offsets is data, and grows with its system; a mapped joint is a function, which both refuse."""

    def looped(joint):
        b = mb.Builder()
        for name in ("a", "b"):
            b.body(name, 1.0, inertia=np.eye(3))
            b.joint(f"hinge {name}", mb.revolute((0, 0, 1)), child=name)
        b.closure("loop", joint, "a", "b")
        return b.build()

    system, path = looped(JOINTS["hinges apart"]), tmp_path / "loop.jaxmbd"
    mb.save(system, path)
    again = mb.load(path)
    assert again.topology == system.topology and again.constraints[0].searched
    bigger = mb.scale(system, length=2.0).constraints[0]
    np.testing.assert_allclose(bigger.joint.offset_position, 2.0 * system.constraints[0].joint.offset_position)
    assert bigger.searched
    for refused in (lambda s: mb.save(s, path), lambda s: mb.scale(s, length=2.0)):
        with pytest.raises(ValueError, match=r"'loop' \(mapped\).*function"):
            refused(looped(JOINTS["mapped"]))
