"""Systems made from systems: locked, carrying, grafted, side by side, scaled; each equals the one built by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
from test_save import curved

import jaxmbd as mb


@functools.cache
def quantities():
    """One compiled program a topology: what the tests of this file compare."""

    def one(system, q, v):
        k = mb.kinematics(system, q, v)
        return {
            "M": mb.mass_matrix(system, q),
            "h": mb.bias_force(system, q, v),
            "energy": jnp.stack(mb.energy(system, q, v)),
            "frames": {n: (k[n].position, k[n].rotation, k[n].velocity) for n in system.frame_names},
        }

    return jax.jit(one)


def assert_equal(a, b):
    """Same topology, same numbers up to rounding; rotations by their matrices."""
    assert a.topology == b.topology
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        if "rotation" in jax.tree_util.keystr(path):
            x, y = (
                jax.vmap(lambda q: mb.Pose(jnp.zeros(3), q).rotation)(x),
                jax.vmap(lambda q: mb.Pose(jnp.zeros(3), q).rotation)(y),
            )
        np.testing.assert_allclose(x, y, atol=1e-14, err_msg=jax.tree_util.keystr(path))


def rod_arm(mass=1.0, last=None, payload=None):
    """Two rods on hinges and, by hand: the second hinge welded at an angle, a payload at the tip."""
    b = mb.Builder()
    b.body("a", mass, (0.0, 0.0, -0.5), np.diag([0.1, 0.1, 0.02]))
    b.body("b", 2.0, (0.1, 0.0, -0.4), np.diag([0.2, 0.15, 0.1]))
    at = mb.Pose((0.0, 0.0, -1.0), (0.8, 0.6, 0.0, 0.0))
    inner = mb.Pose((0.05, 0.0, 0.0))
    b.joint("j1", mb.revolute((0.0, 1.0, 0.0)), child="a", damping=0.3, in_child=inner)
    if last is None:
        b.joint("j2", mb.revolute((1.0, 0.0, 0.0)), "a", "b", at, inner, stiffness=2.0)
    else:
        turned = at @ mb.Pose.from_axis_angle((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), last)
        b.joint("j2", mb.fixed(), "a", "b", turned, inner)
    if payload is not None:
        b.body("load", payload, (0.0, 0.1, 0.0), np.diag([0.01, 0.02, 0.02]))
        b.joint("load_weld", mb.fixed(), "b", "load", TIP @ GRIP)
    b.frame("tip", on="b", pose=TIP)
    return b.build()


TIP, GRIP = mb.Pose((0.0, 0.0, -0.8), (0.6, 0.0, 0.8, 0.0)), mb.Pose((0.02, 0.0, 0.03), (0.0, 1.0, 0.0, 0.0))


def test_locking_equals_welding_by_hand():
    assert_equal(mb.lock(rod_arm(), {"j2": 0.7}), rod_arm(last=0.7))
    assert mb.lock(rod_arm(), {"j2": 0.7}).report[-1] == "joint 'j2' (revolute) is locked at 0.7"


def test_attaching_equals_building_by_hand():
    loaded = mb.attach(rod_arm(), "load", "tip", 3.0, (0.0, 0.1, 0.0), np.diag([0.01, 0.02, 0.02]), GRIP)
    assert_equal(loaded, rod_arm(payload=3.0))


def test_a_locked_angle_and_a_payload_are_differentiable():
    """Gradients through an edit against the gradient of a closed form: the torque of a locked, loaded arm at rest."""
    q, zero = jnp.array([0.4]), jnp.zeros(1)

    def torque(angle, mass):
        system = mb.attach(mb.lock(rod_arm(), {"j2": angle}), "load", "tip", mass)
        return mb.inverse_dynamics(system, q, zero, zero)[0]

    def moment(angle, mass):
        """-g times the first moment of mass about y, from poses written out."""
        turn = lambda axis, x: mb.Pose.from_axis_angle(jnp.zeros(3), axis, x)  # noqa: E731
        X = turn((0.0, 1.0, 0.0), q[0]) @ mb.Pose((-0.05, 0.0, 0.0))
        Y = (
            X
            @ mb.Pose((0.0, 0.0, -1.0), (0.8, 0.6, 0.0, 0.0))
            @ turn((1.0, 0.0, 0.0), angle)
            @ mb.Pose((-0.05, 0.0, 0.0))
        )
        place = lambda X, p: X.position + X.rotation @ jnp.array(p)  # noqa: E731
        masses = (
            (1.0, place(X, (0.0, 0.0, -0.5))),
            (2.0, place(Y, (0.1, 0.0, -0.4))),
            (mass, place(Y, (0.0, 0.0, -0.8))),
        )
        return -9.81 * sum(
            m * x[0] for m, x in masses
        )  # torque about y of gravity along -z is +x m g; held by its negative

    (value, gradient), forward = jax.jit(
        lambda *x: (jax.value_and_grad(torque, (0, 1))(*x), jax.jacfwd(torque, (0, 1))(*x))
    )(0.7, 3.0)
    expected, theirs = jax.jit(jax.value_and_grad(moment, (0, 1)))(0.7, 3.0)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, theirs, rtol=1e-10)
    np.testing.assert_allclose(forward, theirs, rtol=1e-10)


def check_lock(spec, locked):
    """A locked system against the full one held still in the locked joints: rows and columns of the rest."""
    full = rs.built(spec)
    (q, v, _, _) = (x[0] for x in rs.states(spec, 5, 1))
    at = {name: q[full.q_slice(name)] for name in locked}
    for name in locked:
        v[full.v_slice(name)] = 0.0
    reduced = mb.lock(full, at)
    gone_q = np.concatenate([np.arange(full.nq)[full.q_slice(name)] for name in locked])
    gone_v = np.concatenate([np.arange(full.nv)[full.v_slice(name)] for name in locked])
    keep_q, keep_v = np.delete(np.arange(full.nq), gone_q), np.delete(np.arange(full.nv), gone_v)
    theirs, ours = quantities()(full, q, v), quantities()(reduced, q[keep_q], v[keep_v])
    np.testing.assert_allclose(ours["M"], theirs["M"][np.ix_(keep_v, keep_v)], atol=1e-11)
    np.testing.assert_allclose(ours["h"], theirs["h"][keep_v], atol=1e-10)
    for name in full.frame_names:
        for a, b in zip(ours["frames"][name], theirs["frames"][name], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12, err_msg=name)
    return reduced


@pytest.mark.slow
def test_locked_joints_of_every_kind():
    spec = rs.random_tree(11, ("free", "spherical", "universal", "mapped:surface", "screw", "revolute"), "branches")
    reduced = check_lock(spec, ("j1", "j2", "j3", "j4"))
    assert reduced.joint_names == ("j0", "j5")


def test_locking_a_leader_locks_its_followers():
    spec = rs.random_tree(12, ("revolute", "continuous", "prismatic", "revolute"), "chain", couple=((3, 2),))
    reduced = check_lock(spec, ("j2",))
    assert reduced.joint_names == ("j0", "j1") and not reduced.topology.couplings


def test_what_cannot_be_locked():
    system = rs.built(rs.arm())
    with pytest.raises(ValueError, match="No joint 'elbow' to lock. Joints: j0, j1"):
        mb.lock(system, {"elbow": 0.0})
    with pytest.raises(ValueError, match="'j4' follows 'j2' and cannot be locked by itself; lock the leader"):
        mb.lock(system, {"j4": 0.0})
    with pytest.raises(ValueError, match=r"'j1' \(revolute\) was locked at shape \(2,\); expected 1 coordinates"):
        mb.lock(system, {"j1": (0.0, 1.0)})
    with pytest.raises(ValueError, match="'j0' is fixed already"):
        mb.lock(system, {"j0": ()})


def test_grafting_equals_building_by_hand():
    """A gripper with frames, a coupling and a body on its own base, on the tip of an arm."""

    def gripper(b, prefix, base, pose):
        b.body(prefix + "palm", 0.5, inertia=np.diag([0.01, 0.01, 0.01]))
        b.body(prefix + "left", 0.1, (0.0, 0.02, 0.0), np.diag([0.001, 0.001, 0.001]))
        b.body(prefix + "right", 0.1, (0.0, -0.02, 0.0), np.diag([0.001, 0.001, 0.001]))
        b.joint(prefix + "mount", mb.fixed(), base, prefix + "palm", pose @ mb.Pose((0.0, 0.0, 0.1)))
        b.joint(prefix + "open", mb.prismatic((0.0, 1.0, 0.0)), prefix + "palm", prefix + "left", damping=0.1)
        b.joint(prefix + "mirror", mb.prismatic((0.0, -1.0, 0.0)), prefix + "palm", prefix + "right")
        b.frame(prefix + "grasp", prefix + "palm", mb.Pose((0.0, 0.0, 0.05)))
        b.frame(prefix + "base", base, pose)
        b.couple(prefix + "mirror", prefix + "open")

    alone = mb.Builder(gravity=(0.0, 0.0, 0.0))
    gripper(alone, "", "world", mb.Pose())
    arm = rod_arm()
    grafted = mb.graft(arm, alone.build(), "tip", GRIP, prefix="g/")

    b = mb.Builder()
    b.system(arm)
    gripper(b, "g/", "b", TIP @ GRIP)
    assert_equal(grafted, b.build())
    np.testing.assert_array_equal(grafted.gravity, arm.gravity)
    assert grafted.joint_names == ("j1", "j2", "g/open")


def test_several_robots_and_the_ground_in_one_system():
    """Side by side they do not know of one another: block-diagonal mass matrix, each block the robot's own."""
    arm, other = rod_arm(), rod_arm(mass=4.0)
    table = mb.Builder()
    table.body("table", 20.0)
    table.joint("ground", mb.fixed(), child="table", in_parent=mb.Pose((0.0, 0.0, 0.7)))
    moved = mb.Pose((1.0, 2.0, 0.0), (0.6, 0.0, 0.0, 0.8))
    both = mb.combine({"": table.build(), "left ": arm, "right ": (other, moved)})
    assert both.joint_names == ("left j1", "left j2", "right j1", "right j2") and float(both.mass) == 29.0
    q, v = np.array([0.3, -0.4, 0.5, 0.6]), np.array([1.0, 2.0, -3.0, 0.5])
    ours = quantities()(both, q, v)
    parts = [quantities()(s, q[i : i + 2], v[i : i + 2]) for s, i in ((arm, 0), (other, 2))]
    expected = jax.scipy.linalg.block_diag(*(p["M"] for p in parts))
    np.testing.assert_allclose(ours["M"], expected, atol=1e-13)
    np.testing.assert_allclose(ours["h"], np.concatenate([p["h"] for p in parts]), atol=1e-12)
    tip = parts[1]["frames"]["tip"]
    np.testing.assert_allclose(ours["frames"]["right tip"][0], moved.position + moved.rotation @ tip[0], atol=1e-13)
    np.testing.assert_allclose(ours["frames"]["table"][0], (0.0, 0.0, 0.7), atol=1e-15)


def test_systems_that_disagree_about_gravity():
    moon = mb.Builder(gravity=(0.0, 0.0, -1.62))
    moon.system(rod_arm())
    systems = {"a ": rod_arm(), "b ": moon.build()}
    with pytest.raises(ValueError, match=r"Gravity of 'b ' is .*1.62.* and that of 'a ' .*9.81.*gravity="):
        mb.combine(systems)
    np.testing.assert_array_equal(mb.combine(systems, gravity=(0.0, 0.0, -1.0)).gravity, (0.0, 0.0, -1.0))
    with pytest.raises(ValueError, match="no system to combine"):
        mb.combine({})
    with pytest.raises(ValueError, match="The name 'a' is taken already"):
        mb.graft(rod_arm(), rod_arm(), "tip")
    with pytest.raises(ValueError, match="put on 'hand', which is no body or frame"):
        mb.graft(rod_arm(), rod_arm(), "hand", prefix="x")
    moving = mb.Builder(base_motion=lambda t: mb.Pose((t, 0.0, 0.0)))
    moving.system(rod_arm())
    with pytest.raises(ValueError, match="moving base"):
        mb.graft(rod_arm(), moving.build(), "tip", prefix="x")
    with pytest.raises(ValueError, match="'x' has a moving base"):
        mb.combine({"x": moving.build()})
    kept = mb.lock(moving.build(), {"j2": 0.0})  # the same program runs for both: the base's motion stays the same tree
    assert jax.tree.structure(kept.base_motion) == jax.tree.structure(moving.build().base_motion)


@functools.cache
def accelerations():
    return jax.jit(lambda s, q, v, tau: mb.forward_dynamics(s, q, v, tau))


@pytest.mark.slow
def test_scaled_systems_move_alike():
    """Dynamic similarity: with lengths x L, masses x M and times x T, motions map into one another."""
    kinds = ("free", "spherical", "universal", "planar", "screw", "prismatic", "revolute", "continuous")
    spec = rs.random_tree(13, kinds, "branches", passive=True, couple=((5, 7),))
    system, (L, M, T) = rs.built(spec), (2.0, 3.0, 1.7)
    large = mb.scale(system, L, M, T).replace({"gravity": L / T**2 * system.gravity})
    q, v, _, tau = (x[0] for x in rs.states(spec, 3, 1))
    # which of the independent coordinates and velocities are lengths, joint by joint
    lengths_q = np.array([0, 0, 0, 0, 1, 1, 1, *[0] * 4, 0, 0, 1, 1, 0, 0, 0, 0], bool)
    lengths_v = np.array([0, 0, 0, 1, 1, 1, *[0] * 3, 0, 0, 1, 1, 0, 0, 0, 0], bool)
    assert system.joint_names == ("j0", "j1", "j2", "j3", "j4", "j6", "j7")
    unit_q, unit_v = np.where(lengths_q, L, 1.0), np.where(lengths_v, L, 1.0)
    force = M * np.where(lengths_v, L, L * L) / T**2
    small = accelerations()(system, q, v, tau)
    ours = accelerations()(large, q * unit_q, v * unit_v / T, tau * force)
    np.testing.assert_allclose(ours, small * unit_v / T**2, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(large.mass, M * system.mass, rtol=1e-14)


def test_the_gradient_of_a_scale_is_that_of_the_closed_form():
    system = rod_arm()  # its limits are infinite, and must not make the gradient so

    def torque(length):
        big = mb.scale(system, length, length**3)
        return mb.gravity_force(big, jnp.array([0.3, 0.2]))[0], jnp.sum(
            jnp.where(jnp.isfinite(big.upper), big.upper, 0.0)
        )

    (value, _), rate = jax.jit(lambda x: (torque(x), jax.grad(lambda x: sum(torque(x)))(x)))(1.0)
    np.testing.assert_allclose(rate, 4 * value, rtol=1e-12)  # a gravity torque goes with m l = l^4


def test_mapped_joints_cannot_be_scaled():
    with pytest.raises(ValueError, match="'j0' is mapped: the lengths in its function"):
        mb.scale(rs.built(rs.slider()), 2.0)
    with pytest.raises(ValueError, match="'j1' is driven by a law, whose lengths and times"):
        mb.scale(rod_arm().with_drive("j1", position=mb.laws.Constant(0.3)), 2.0)


def test_couplings_on_a_curve_survive_an_edit():
    """Followers on a curve are locked where it puts them; the curve goes along with a graft."""
    q, v = jnp.array([0.7]), jnp.array([1.5])
    moved = mb.combine({"x/": (curved(), mb.Pose((1.0, 0.0, 0.0)))})
    np.testing.assert_allclose(mb.mass_matrix(moved, q), mb.mass_matrix(curved(), q), rtol=1e-13)
    np.testing.assert_allclose(mb.bias_force(moved, q, v), mb.bias_force(curved(), q, v), rtol=1e-12)
    still = mb.kinematics(mb.lock(curved(), {"j": 0.7}), jnp.zeros(0))["k body"]
    np.testing.assert_allclose(still.rotation, mb.kinematics(curved(), q)["k body"].rotation, atol=1e-14)
    with pytest.raises(ValueError, match="'k' follows by a function"):
        mb.scale(curved(), 2.0)


def test_carriers_and_homes_survive_an_edit():
    def cart(b):
        b.carrier("rail")
        b.body("cart", 1.0, inertia=np.eye(3))
        b.joint("slide", mb.prismatic((1.0, 0.0, 0.0)), child="rail", home=0.4)
        b.joint("turn", mb.revolute((0.0, 1.0, 0.0)), "rail", "cart", home=-0.2)
        return b

    by_hand = cart(mb.Builder())
    by_hand.body("load", 2.0)
    by_hand.joint("load_weld", mb.fixed(), "cart", "load")
    loaded = mb.attach(cart(mb.Builder()).build(), "load", "cart", 2.0)
    assert_equal(loaded, by_hand.build())
    assert loaded.body_names == ("cart",) and "rail" not in loaded.frame_names
    np.testing.assert_array_equal(loaded.neutral_q(), (0.4, -0.2))


def test_drives_survive_an_edit():
    """A law belongs to its joint: it is taken along, and gone when the joint is locked."""
    driven = rod_arm().with_drive("j1", position=mb.laws.Cycloid(0.0, 1.0, 2.0))
    by_hand = rod_arm(payload=3.0).with_drive("j1", position=mb.laws.Cycloid(0.0, 1.0, 2.0))
    assert_equal(mb.attach(driven, "load", "tip", 3.0, (0.0, 0.1, 0.0), np.diag([0.01, 0.02, 0.02]), GRIP), by_hand)
    assert mb.lock(driven, {"j2": 0.1}).topology.drives[0].velocities == (0,)
    assert not mb.lock(driven, {"j1": 0.1}).topology.drives


def test_editing_keeps_single_precision():
    single = rod_arm().astype(jnp.float32)
    edited = mb.attach(mb.lock(single, {"j2": 0.3}), "load", "tip", 1.0)
    assert {x.dtype for x in jax.tree.leaves(mb.scale(edited, 2.0))} == {jnp.dtype("float32")}


def test_paths_say_their_units():
    system = rod_arm()
    with pytest.raises(
        KeyError, match=r"No number at 'a.mas'. Did you mean 'a.mass'\?.*mass \[kg\]; com \[m, link axes\]"
    ):
        system.get("a.mas")
    with pytest.raises(ValueError, match=r"'j1.damping' was given shape \(3,\); expected shape \(\) in \[N m s/rad\]"):
        system.replace({"j1.damping": (1.0, 2.0, 3.0)})
    with pytest.raises(ValueError, match=r"'a.mass' was given -1.0 \[kg\]; expected zero or more"):
        system.replace({"a.mass": -1.0})
    with pytest.raises(
        ValueError, match=r"'a.com' was given \[ 0.  0. nan\] \[m, link axes\]; expected finite numbers"
    ):
        system.replace({"a.com": (0.0, 0.0, np.nan)})
    with pytest.raises(ValueError, match=r"'j1.friction_speed' was given 0.0 \[rad/s\]; expected more than zero"):
        system.replace({"j1.friction_speed": 0.0})
    with pytest.raises(
        ValueError, match=r"'j1.axis' was given .* \[direction\]; expected a direction of non-zero length"
    ):
        system.replace({"j1.axis": (0.0, 0.0, 0.0)})
    with pytest.raises(KeyError, match=r"'j1.pitch': a revolute joint has no pitch \[m/rad\]"):
        system.get("j1.pitch")
    assert np.isinf(system.replace({"j1.upper": np.inf}).get("j1.upper"))


# ------------------------------------------------------------------------------------------------------ constraints


def geared(prefix="", on="world", at=None, length=1.0, ratio=2.0, cart=False, gravity=(0.0, 0.0, -9.81)):
    """A rod between the world and a bar, a ball joint that closes a loop, a pinion and its rack; by hand anywhere."""
    b = mb.Builder(gravity=gravity)
    if cart:
        b.body("cart", 3.0, inertia=np.eye(3))
        b.joint("rail", mb.prismatic((1, 0, 0)), child="cart")
    place = mb.Pose() if at is None else at
    for name in ("bar", "rack"):
        b.body(prefix + name, 1.0, inertia=np.eye(3))
    b.joint(prefix + "turn", mb.revolute((0, 1, 0)), on, prefix + "bar", in_parent=place)
    b.joint(prefix + "slide", mb.prismatic((1, 0, 0)), on, prefix + "rack", in_parent=place)
    b.frame(prefix + "end", prefix + "bar", mb.Pose((length, 0, 0)))
    world = on
    if at is not None:
        world = f"{prefix or on}:world"
        b.frame(world, on, place)
    b.closure(prefix + "pin", mb.screw((1, 0, 0), 0.1 * length), prefix + "end", prefix + "rack")
    b.constraint(prefix + "rod", mb.distance(0.5 * length), frames=(world, prefix + "end"))
    b.constraint(prefix + "mesh", mb.gear(ratio * length, 0.3 * length), joints=(prefix + "turn", prefix + "slide"))
    b.constraint(prefix + "wheel", mb.rolling_disc(0.2 * length), frames=(world, prefix + "bar"))
    b.constraint(prefix + "blade", mb.knife_edge(), frames=(world, prefix + "bar"))
    return b.build()


def test_constraints_go_along_when_systems_are_grafted_and_combined():
    """As if they were declared by hand, names with the prefix; the grafted system's world is where it was put."""
    cart = mb.Builder()
    cart.body("cart", 3.0, inertia=np.eye(3))
    cart.joint("rail", mb.prismatic((1, 0, 0)), child="cart")
    at = mb.Pose((0.1, 0.2, 0.3), (0.6, 0.0, 0.8, 0.0))
    grafted = mb.graft(cart.build(), geared(), on="cart", pose=at, prefix="l_")
    assert_equal(grafted, geared("l_", "cart", at, cart=True))
    both = mb.combine({"": geared(), "r_": geared()})
    assert both.constraint_names == tuple(p + n for p in ("", "r_") for n in ("pin", "rod", "mesh", "wheel", "blade"))
    loaded = mb.attach(mb.linkages.four_bar(), "payload", to="trace", mass=0.3)
    assert loaded.constraint_names == ("C",) and loaded.nv == 3
    driven = mb.linkages.four_bar().with_drive("A", position=jnp.sin)
    assert mb.attach(driven, "payload", to="trace", mass=0.3).topology.drives == driven.topology.drives


def test_locking_in_a_loop():
    """A four-bar with one hinge locked is the one built with a weld there: the closure stays."""
    hinge = mb.revolute(mb.linkages.TURN)

    def declare(b, weld):
        for name in ("crank", "coupler"):
            b.body(name, 1.0, inertia=np.eye(3))
        b.joint("A", hinge, child="crank")
        turned = mb.Pose((0.4, 0, 0)) @ (
            mb.Pose.from_axis_angle((0, 0, 0), mb.linkages.TURN, 0.5) if weld else mb.Pose()
        )
        b.joint("B", mb.fixed() if weld else hinge, "crank", "coupler", in_parent=turned)
        b.frame("end", "coupler", mb.Pose((1.0, 0, 0)))
        b.closure("C", mb.spherical(), "end", "world")
        return b.build()

    assert_equal(mb.lock(declare(mb.Builder(), False), {"B": 0.5}), declare(mb.Builder(), True))
    with pytest.raises(ValueError, match=r"'turn' cannot be locked: the constraint 'mesh' \(gear\) sees"):
        mb.lock(geared(), {"turn": 0.1})


def test_constraints_are_scaled_with_their_lengths():
    likeness, by_hand = mb.scale(geared(gravity=(0, 0, 0)), length=3.0), geared(length=3.0, gravity=(0, 0, 0))
    for path in ("pin.joint.pitch", "rod.length", "mesh.ratio", "mesh.offset", "wheel.radius", "end.position"):
        np.testing.assert_allclose(likeness.get(path), by_hand.get(path), rtol=1e-15, err_msg=path)
    b = mb.Builder()
    b.body("bead", 1.0, inertia=np.eye(3))
    b.joint("root", mb.free(), child="bead")
    b.constraint("own", mb.holonomic(lambda at: at.position[1][2]), frames=("world", "bead"))
    with pytest.raises(ValueError, match=r"Constraint 'own' \(holonomic\) is a function, whose lengths"):
        mb.scale(b.build(), length=2.0)
