"""Reactions in systems with constraints: Newton and Euler of every body, cut joints by name, gears, recordings.

The balance is written from the motion of the bodies, their masses and the wrenches at joints and closures; nothing
of it comes from `reactions`. Round-off: forces are of order 10 to 100.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb

TURN = mb.revolute(mb.linkages.TURN)
RATIO = -2.5


@cache
def machine():
    """A four-bar on a floating ground link that hangs on a rod, with a flywheel geared to the crank.

    The mesh is between crank hinge and wheel; C is a cut joint, its frames are turned against their bodies.
    """
    b = mb.Builder()
    b.body("ground", 2.0, (0.5, 0.1, -0.1), np.diag([0.3, 0.4, 0.5]))
    b.joint("root", mb.free(), child="ground")
    for name, length in (("crank", 0.4), ("coupler", 1.0), ("rocker", 0.8)):
        b.body(name, length, (length / 2, 0.05, 0), 0.1 * length * np.eye(3))
    b.body("wheel", 0.5, (0, 0, 0), np.diag([0.01, 0.02, 0.01]))
    b.joint("A", TURN, "ground", "crank", damping=0.3, stiffness=2.0)
    b.joint("B", TURN, "crank", "coupler", in_parent=mb.Pose((0.4, 0, 0)))
    b.joint("D", TURN, "ground", "rocker", in_parent=mb.Pose((1.1, 0, 0)))
    b.joint("axle", TURN, "ground", "wheel", in_parent=mb.Pose((0.2, 0.1, 0.3)), armature=0.02)
    tilt = mb.Pose.from_axis_angle((1.0, 0, 0), (0.0, 1.0, 0.0), 0.4)
    b.frame("end", on="coupler", pose=tilt)
    b.frame("pin", on="rocker", pose=mb.Pose((0.8, 0, 0)))
    b.frame("eye", on="ground", pose=mb.Pose((0.3, 0.2, 0.1)))
    b.closure("C", TURN, "end", "pin")
    b.constraint("mesh", mb.gear(RATIO), joints=("A", "axle"))
    b.constraint("rod", mb.distance(1.5), frames=("world", "eye"))
    system = b.build()
    guess = jnp.concatenate([jnp.array([1.0, 0.1, -0.2, 0.1, 0.2, 0.1, -1.3]), jnp.array([0.6, -0.2, 1.5, 0.0])])
    speeds = jnp.array([0.3, -0.2, 0.5, 0.1, -0.4, 0.2, 2.0, 0.0, 0.0, 0.0])
    start = mb.assemble(system, guess.at[:4].divide(jnp.linalg.norm(guess[:4])), speeds, fixed=("A",))
    return system, start.q, start.v


@cache
def quantities():
    system, q, v = machine()
    tau = jnp.array([0.5, 0.2, -0.3, 1.0, 2.0, -1.0, 0.7, 0.2, -0.4, 0.3])
    wrenches = (mb.Wrench("coupler", (0.1, 0.2, -0.1), (3.0, 1.0, -2.0), (0.2, 0.1, 0.0)),)
    a = mb.forward_dynamics(system, q, v, tau, wrenches)
    return tau, wrenches, a, mb.kinematics(system, q, v, a), mb.reactions(system, q, v, tau, wrenches)


def joint_origins(system, k):
    """World positions of every joint's outboard frame; here all lie at the origin of the child link."""
    return {j.name: np.asarray(k[system.topology.links[j.child]].position) for j in system.topology.joints}


@pytest.mark.slow
@pytest.mark.contract("S4-17")
def test_every_body_of_a_looped_machine_obeys_newton_and_euler():
    """Joints, the cut joint and the rod carry what m c'' and (I w)' need; the mesh is inside its two hinges."""
    system, _, _ = machine()
    _, (push,), _, k, r = quantities()
    origin = joint_origins(system, k) | {"C": np.asarray(k["pin"].position), "rod": np.asarray(k["eye"].position)}
    # what exerts the wrench, and what it acts on
    acting = {j.name: (system.topology.links[j.parent] if j.parent >= 0 else None, system.topology.links[j.child])
              for j in system.topology.joints} | {"C": ("coupler", "rocker"), "rod": (None, "ground")}  # fmt: skip
    assert r.names == tuple(acting)
    for link in system.topology.links:
        motion, mass = k[link], float(system.get(f"{link}.mass"))
        R, w, alpha = (np.asarray(x) for x in (motion.rotation, motion.velocity[:3], motion.acceleration[:3]))
        arm = R @ np.asarray(system.get(f"{link}.com"))
        xx, xy, xz, yy, yz, zz = np.asarray(system.get(f"{link}.inertia"))
        I = R @ np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]) @ R.T
        linear = np.asarray(motion.acceleration[3:]) + np.cross(alpha, arm) + np.cross(w, np.cross(w, arm))
        force = mass * (np.asarray(system.gravity) - linear)
        moment = -I @ alpha - np.cross(w, I @ w)
        c = np.asarray(motion.position) + arm
        for name, (giver, taker) in acting.items():
            sign = (taker == link) - (giver == link)
            if sign:
                wrench = sign * np.asarray(r[name].wrench)
                force = force + wrench[3:]
                moment = moment + wrench[:3] + np.cross(origin[name] - c, wrench[3:])
        if link == push.frame:
            point = np.asarray(motion.position) + R @ np.asarray(push.point)
            force, moment = force + push.force, moment + push.moment + np.cross(point - c, push.force)
        np.testing.assert_allclose(np.concatenate([moment, force]), 0.0, atol=1e-10, err_msg=link)


@pytest.mark.slow
def test_parts_and_projections():
    """Along a free mode act the actuator, spring, damper, rotor and mesh; the free root carries its forces alone."""
    system, q, v = machine()
    tau, wrenches, a, _, r = quantities()
    w = mb.closure_wrenches(system, q, v, tau, wrenches)
    mesh = w.multipliers[[c.name for c in system.topology.constraints].index("mesh") + 4]  # C has five rows
    at = {name: int(system.v_slice(name).start) for name in ("A", "B", "D", "axle")}
    own = {"A": tau[6] - 0.3 * v[6] - 2.0 * q[7], "B": tau[7], "D": tau[8], "axle": tau[9] - 0.02 * a[at["axle"]]}
    free = {name: float(r[name].forces[0] - own[name]) for name in at}
    assert abs(mesh) > 0.01 and free["B"] == pytest.approx(0.0, abs=1e-11) == free["D"]
    # the mesh does no work: its two loads stand as the ratio
    assert abs(free["A"]) == pytest.approx(abs(RATIO) * abs(free["axle"]), rel=1e-9) or abs(
        free["axle"]
    ) == pytest.approx(abs(RATIO) * abs(free["A"]), rel=1e-9)
    assert free["A"] * v[at["A"]] + free["axle"] * v[at["axle"]] == pytest.approx(0.0, abs=1e-10)
    np.testing.assert_allclose(r["root"].forces, tau[:6], atol=1e-10)
    for name in ("A", "C", "rod"):
        one = r[name]
        np.testing.assert_allclose(one.applied + one.driving + one.constraint, one.wrench, atol=1e-11)
    for name in ("C", "rod"):
        np.testing.assert_allclose(r[name].wrench, np.concatenate([w[name].moment, w[name].force]), atol=1e-10)
        assert not r[name].applied.any() and r[name].forces.shape == (0,)
    with pytest.raises(KeyError, match="No joint 'mesh'. Joints: root, A, B, D, axle, C, rod"):
        r["mesh"]


@pytest.mark.slow
def test_reference_point_and_axes_of_a_cut_joint():
    system, q, v = machine()
    tau, wrenches, _, k, r = quantities()
    other = mb.reactions(system, q, v, tau, wrenches, at="inboard", axes="inboard")
    R = np.asarray(k["end"].rotation)
    wrench = np.asarray(r["C"].wrench)
    moved = np.concatenate([wrench[:3] + np.cross(k["pin"].position - k["end"].position, wrench[3:]), wrench[3:]])
    np.testing.assert_allclose(other["C"].wrench, (R.T @ moved.reshape(2, 3).T).T.reshape(-1), atol=1e-10)
    # the hinge's axis is y in the frames: no moment about it
    assert abs(other["C"].wrench[1]) < 1e-10 and np.linalg.norm(wrench) > 1.0


@pytest.mark.slow
def test_recorded_reactions_of_a_loop():
    """During a run of explicit steps they are those of `reactions` at each state; in implicit steps, of its own a."""
    system = mb.linkages.four_bar()
    start = mb.assemble(system, jnp.array([0.6, -0.2, 1.5]), jnp.array([2.0, 0.0, 0.0]), fixed=("A",))
    run = mb.simulate(
        system, start.q, start.v, duration=0.05, dt=5e-3, record=("q", "v", "A.reaction", "C.reaction"),
        stepper=mb.RungeKuttaMuntheKaas4(),
    )  # fmt: skip
    r = jax.jit(jax.vmap(lambda q, v: mb.reactions(system, q, v, 0.0 * v)))(run["q"], run["v"])
    np.testing.assert_allclose(run["A.reaction"], r["A"].wrench, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(run["C.reaction"], r["C"].wrench, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_derivatives_of_reactions_in_a_loop():
    system = mb.linkages.four_bar()
    start = mb.assemble(system, jnp.array([0.6, -0.2, 1.5]), jnp.array([2.0, 0.0, 0.0]), fixed=("A",))

    def force(x):
        system_x = system.replace({"rocker.mass": x[0]})
        r = mb.reactions(system_x, x[1:4], x[4:], jnp.array([0.3, 0.0, 0.0]))
        determined = jnp.array([0.0, 0.4, 0.0, 1.0, 0.0, -0.7])  # in the plane; the others are not unique
        return r["A"].wrench @ determined + r["C"].wrench @ jnp.array([0.0, 0.4, 0.0, -0.7, 0.0, 0.3])

    x = jnp.concatenate([jnp.array([0.8]), start.q, start.v])
    way = jnp.asarray(np.random.default_rng(4).normal(size=7))

    @jax.jit
    def all_of(x):
        return *jax.value_and_grad(force)(x), jax.jvp(force, (x,), (way,))[1]

    (_, gradient, forward), h = all_of(x), 1e-6
    slope = float(all_of(x + h * way)[0] - all_of(x - h * way)[0]) / (2 * h)
    assert abs(slope) > 0.1 and float(forward) == pytest.approx(slope, rel=1e-6)
    assert float(gradient @ way) == pytest.approx(float(forward), rel=1e-9)
