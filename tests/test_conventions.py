"""Layouts of other libraries: round trips, powers, and the libraries themselves (Pinocchio, MuJoCo) on mixed trees."""

import functools
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
from test_save import curved

import jaxmbd as mb
from jaxmbd import conventions as cv
from jaxmbd import inertia

LIBRARIES = ("pinocchio", "mujoco", "drake", "rbdl")
TO = {name: getattr(cv, f"to_{name}") for name in LIBRARIES}
FROM = {name: getattr(cv, f"from_{name}") for name in LIBRARIES}
KINDS = ("free", "spherical", "continuous", "planar", "prismatic", "revolute", "universal")


class Sample(NamedTuple):
    """A mixed tree with a floating base, and one state of it."""

    system: mb.System
    state: cv.State
    order: tuple[str, ...]


@functools.cache
def sample(couple=()):
    spec = rs.random_tree(31, KINDS, "branches", offsets=False, couple=couple)
    system = rs.build(spec)
    q, v, a, tau = (x[0] for x in rs.states(spec, 1, 1))
    rng = np.random.default_rng(0)
    extra = {"mass_matrix": rng.normal(size=(system.nv,) * 2), "jacobian": rng.normal(size=(6, system.nv))}
    state = cv.State(q, v, a, tau, **({} if couple else extra), motion=rng.normal(size=(3, 6)))
    return Sample(system, state, tuple(reversed(system.joint_names)))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("reverse", [False, True])
def test_there_and_back(library, reverse):
    system, state, order = sample()
    order = order if reverse else None
    there = TO[library](system, state, order)
    back = FROM[library](system, there, order)
    for name, ours, again in zip(cv.State._fields, state, back, strict=True):
        # quaternions come back up to sign from roll, pitch, yaw; angles up to whole turns
        if name == "q":
            np.testing.assert_allclose(mb.difference(system, ours, again), 0.0, atol=1e-13)
        else:
            np.testing.assert_allclose(again, ours, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("library", LIBRARIES)
def test_power_energy_and_motion_do_not_depend_on_the_layout(library):
    system, state, order = sample()
    there = TO[library](system, state, order)
    np.testing.assert_allclose(there.tau @ there.v, state.tau @ state.v, rtol=1e-13)
    np.testing.assert_allclose(there.v @ there.mass_matrix @ there.v, state.v @ state.mass_matrix @ state.v, rtol=1e-13)
    theirs = np.sort(np.abs(there.jacobian @ there.v))
    np.testing.assert_allclose(theirs, np.sort(np.abs(state.jacobian @ state.v)), rtol=1e-12)


@pytest.mark.parametrize("library", LIBRARIES)
def test_accelerations_are_rates_of_velocities(library):
    """a' is d v'/dt along the motion: central differences of the converted state."""
    system, state, _ = sample()

    def velocity(h):
        # q at time h along v and a, to second order in h
        q = mb.integrate(system, state.q, state.v + 0.5 * h * state.a, h)
        return TO[library](system, cv.State(q, state.v + h * state.a)).v

    h = 1e-4
    numeric = (velocity(h) - velocity(-h)) / (2 * h)
    # differences of O(h^2) = 1e-8 and rounding of 1e-16 / h
    np.testing.assert_allclose(TO[library](system, state).a, numeric, atol=3e-7)


def test_one_free_body_in_every_layout():
    """The table of docs/conventions.md, number by number: turned by 90 degrees about z, at (1, 2, 3)."""
    b = mb.Builder()
    b.body("body", 1.0, inertia=np.eye(3))
    b.joint("root", mb.free(), child="body")
    system = b.build()
    s = np.sqrt(0.5)
    state = cv.State((s, 0, 0, s, 1, 2, 3), (0.1, 0.2, 0.3, 10.0, 20.0, 30.0), np.zeros(6), np.arange(6.0))
    expected = {
        "pinocchio": ((1, 2, 3, 0, 0, s, s), (10, 20, 30, 0.1, 0.2, 0.3)),
        "mujoco": ((1, 2, 3, s, 0, 0, s), (-20, 10, 30, 0.1, 0.2, 0.3)),
        "drake": ((s, 0, 0, s, 1, 2, 3), (-0.2, 0.1, 0.3, -20, 10, 30)),
        "rbdl": ((1, 2, 3, 0, 0, s, s), (-20, 10, 30, 0.1, 0.2, 0.3)),
    }
    for library, (q, v) in expected.items():
        there = TO[library](system, state)
        np.testing.assert_allclose(there.q, q, atol=1e-15)
        np.testing.assert_allclose(there.v, v, atol=1e-14)
    # rates of 0 in body axes: the velocity of the origin turns with the body, omega x v in world axes
    turned = np.cross((-0.2, 0.1, 0.3), (-20, 10, 30))
    np.testing.assert_allclose(TO["mujoco"](system, state).a, (*turned, 0, 0, 0), atol=1e-14)
    np.testing.assert_allclose(TO["drake"](system, state).a, (0, 0, 0, *turned), atol=1e-14)
    np.testing.assert_allclose(TO["pinocchio"](system, state).tau, (3, 4, 5, 0, 1, 2), atol=1e-15)


def test_rbdl_keeps_scalar_parts_at_the_end():
    system, state, _ = sample()
    q, ours = TO["rbdl"](system, state).q, np.asarray(state.q)
    assert q.shape == ours.shape
    np.testing.assert_allclose(q[-2:], (ours[0], ours[7]))
    np.testing.assert_allclose(q[:9], (*ours[4:7], *ours[1:4], *ours[8:11]))


def test_followers_are_filled_in():
    system, state, _ = sample(couple=((5, 4),))
    order = tuple(f"j{i}" for i in range(7))
    there = TO["mujoco"](system, state, order)
    leader, follower = system.q_slice("j4").start, system.q_slice("j4").start + 1
    ratio, offset = system.get("j5.ratio"), system.get("j5.offset")
    np.testing.assert_allclose(there.q[follower], ratio * state.q[leader] + offset, rtol=1e-14)
    back = FROM["mujoco"](system, there, order)
    np.testing.assert_allclose(back.v, state.v, atol=1e-14)
    np.testing.assert_allclose(back.a, state.a, atol=1e-13)
    np.testing.assert_allclose(back.tau, state.tau, atol=1e-14)
    # a force on the follower acts on its leader, by the ratio
    push = there._replace(tau=jnp.zeros_like(there.tau).at[system.v_slice("j4").start + 1].set(1.0))
    moved = FROM["mujoco"](system, push, order).tau
    np.testing.assert_allclose(moved[system.v_slice("j4")], ratio)
    with pytest.raises(ValueError, match=r"Joints \['j5'\] follow others here and are free there"):
        TO["mujoco"](system, cv.State(state.q, mass_matrix=jnp.eye(system.nv)), order)


def test_followers_on_a_curve_have_their_own_accelerations():
    """v' = g'(q) v and a' = g'(q) a + g''(q) v^2, of g = 0.2 + q / 2 - 0.3 q^3."""
    system, q, v, a = curved(), 0.7, 1.5, -0.4
    state = cv.State(jnp.array([q]), jnp.array([v]), jnp.array([a]), jnp.array([2.0]))
    there = cv.to_mujoco(system, state, ("j", "k"))
    slope, bend = 0.5 - 0.9 * q**2, -1.8 * q
    np.testing.assert_allclose(there.q[1], 0.2 + q / 2 - 0.3 * q**3, rtol=1e-14)
    np.testing.assert_allclose(there.v[1], slope * v, rtol=1e-13)
    np.testing.assert_allclose(there.a[1], slope * a + bend * v**2, rtol=1e-13)
    push = there._replace(tau=jnp.array([0.0, 1.0]))
    back = cv.from_mujoco(system, push, ("j", "k"))
    np.testing.assert_allclose(back.tau, [slope], rtol=1e-13)
    np.testing.assert_allclose(back.a, state.a, rtol=1e-13)


def test_what_does_not_fit_is_refused():
    system, state, order = sample()
    with pytest.raises(
        ValueError, match=r"unknown here \['knee'\], missing there \['j0'\]. Moving joints here: j0, j1"
    ):
        TO["pinocchio"](system, state, ("knee", *order[:-1]))
    with pytest.raises(ValueError, match="give v beside a"):
        TO["pinocchio"](system, cv.State(state.q, a=state.a))
    with pytest.raises(ValueError, match=r"q has shape \(3,\); in drake's layout these joints have 18 entries"):
        FROM["drake"](system, jnp.zeros(3))


def test_converters_run_under_vmap_and_grad():
    system, state, _ = sample()
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), cv.State(*state[:4]))
    there = jax.vmap(lambda s: cv.to_mujoco(system, s))(batch)
    np.testing.assert_allclose(there.v[1], cv.to_mujoco(system, state).v)
    upright = system.neutral_q()

    def total(q):
        return sum(jnp.sum(to(system, cv.State(q, state.v, state.a)).a) for to in TO.values())

    assert np.isfinite(jax.jit(jax.grad(total))(upright)).all()


BODY = inertia.Inertial(jnp.asarray(2.0), jnp.array([0.1, -0.2, 0.3]), jnp.array([1.0, 0.1, -0.2, 1.5, 0.05, 1.8]))


@pytest.mark.parametrize("library", LIBRARIES)
def test_inertias_there_and_back(library):
    there = getattr(cv, f"inertia_to_{library}")(BODY)
    for ours, again in zip(BODY, getattr(cv, f"inertia_from_{library}")(there), strict=True):
        np.testing.assert_allclose(again, ours, atol=1e-14)


def test_drakes_unit_inertia_is_about_the_origin():
    unit = cv.inertia_to_drake(BODY).G_SP_E
    P = np.asarray(inertia.pseudo_inertia(BODY))[:3, :3] / 2.0
    full = np.trace(P) * np.eye(3) - P
    np.testing.assert_allclose(unit, full[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]], rtol=1e-13)


# ------------------------------------------------------------------------------------------- the libraries themselves


@functools.cache
def ours():
    """What both comparisons need of one state, compiled once."""

    def one(system, q, v, a, tau):
        return {
            "M": mb.mass_matrix(system, q),
            "tau": mb.inverse_dynamics(system, q, v, a),
            "a": mb.forward_dynamics(system, q, v, tau),
            "J": mb.jacobian(system, q, "b5"),
            "tip": mb.kinematics(system, q, v, a)["b5"],
        }

    return jax.jit(one)


def swapped(six):
    return np.roll(six, 3, 0)


def pinocchio_model(spec):
    """The tree in Pinocchio, joint by joint through its own interface, depth first and later branches first."""
    import pinocchio as pin

    model, at = pin.Model(), {"world": 0}
    model.gravity.linear = np.asarray(spec.gravity)
    bodies = {body.name: body for body in spec.bodies}
    for joint in (spec.joints[i] for i in (0, 2, 6, 5, 1, 4, 3)):
        p = joint.parameters
        if joint.kind == "universal":
            record = pin.JointModelUniversal(p["axis1"], p["axis2"])
        else:
            record = {
                "free": lambda p: pin.JointModelFreeFlyer(),
                "spherical": lambda p: pin.JointModelSpherical(),
                "continuous": lambda p: pin.JointModelRUBX(),
                "planar": lambda p: pin.JointModelPlanar(),
                "prismatic": lambda p: pin.JointModelPrismaticUnaligned(p["axis"]),
                "revolute": lambda p: pin.JointModelRevoluteUnaligned(p["axis"]),
            }[joint.kind](p)
        (position, quaternion) = joint.in_parent
        w, x, y, z = quaternion
        place = pin.SE3(pin.Quaternion(w, x, y, z), np.asarray(position))
        at[joint.child] = model.addJoint(at[joint.parent], record, place, joint.name)
        body = bodies[joint.child]
        model.appendBodyToJoint(at[joint.child], pin.Inertia(body.mass, body.com, body.inertia), pin.SE3.Identity())
    return model, at


def mixed_spec():
    """A mixed tree with random poses of the joints in their parents, none in their children."""
    spec = rs.random_tree(32, KINDS, "branches", offsets=False)
    rng = np.random.default_rng(7)
    joints = []
    for joint in spec.joints:
        if joint.parent != "world":
            joint = replace(joint, in_parent=rs.random_pose(rng))
        if joint.kind == "continuous":  # from Python, Pinocchio makes these about x, y or z
            joint = replace(joint, parameters={"axis": np.array([1.0, 0.0, 0.0])})
        if joint.kind == "planar":
            joint = replace(joint, parameters={"normal": np.array([0.0, 0.0, 1.0])})
        if joint.kind == "universal":  # Pinocchio's universal joint has orthogonal axes
            first, second = joint.parameters["axis1"], rs.unit(rng)
            second = np.cross(first, second)
            joint = replace(joint, parameters={"axis1": first, "axis2": second / np.linalg.norm(second)})
        joints.append(joint)
    return replace(spec, joints=tuple(joints))


@pytest.mark.slow
@pytest.mark.external
def test_pinocchio_agrees_on_a_mixed_tree():
    pin = pytest.importorskip("pinocchio")
    spec = mixed_spec()
    system, (q, v, a, tau) = rs.build(spec), (x[0] for x in rs.states(spec, 2, 1))
    model, at = pinocchio_model(spec)
    data, names = model.createData(), tuple(model.names)[1:]
    result = ours()(system, q, v, a, tau)
    given = cv.State(q, v, a, tau, result["M"], result["J"], jnp.stack([result["tip"].velocity]))
    there = cv.to_pinocchio(system, given, names)
    their_q, their_v, their_a, their_tau = (np.asarray(x) for x in there[:4])
    M = pin.crba(model, data, their_q)
    M = np.triu(M) + np.triu(M, 1).T
    np.testing.assert_allclose(there.mass_matrix, M, atol=1e-12)
    back = cv.from_pinocchio(system, cv.State(their_q, tau=pin.rnea(model, data, their_q, their_v, their_a)), names)
    np.testing.assert_allclose(back.tau, result["tau"], atol=1e-10)
    acceleration = pin.aba(model, data, their_q, their_v, their_tau)
    back = cv.from_pinocchio(system, cv.State(their_q, their_v, acceleration), names)
    np.testing.assert_allclose(back.a, result["a"], rtol=1e-10, atol=1e-9)
    pin.computeJointJacobians(model, data, their_q)
    J = pin.getJointJacobian(model, data, at["b5"], pin.LOCAL_WORLD_ALIGNED)
    np.testing.assert_allclose(there.jacobian, J, atol=1e-12)
    pin.forwardKinematics(model, data, their_q, their_v)
    velocity = pin.getVelocity(model, data, at["b5"], pin.LOCAL_WORLD_ALIGNED)
    np.testing.assert_allclose(there.motion[0], velocity.vector, atol=1e-12)


@pytest.mark.external
def test_pinocchio_agrees_on_an_inertia():
    pin = pytest.importorskip("pinocchio")
    theirs = pin.Inertia(
        2.0, np.asarray(BODY.com), np.asarray(BODY.inertia)[np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])]
    )
    np.testing.assert_allclose(cv.inertia_to_pinocchio(BODY), theirs.toDynamicParameters(), atol=1e-14)


@pytest.mark.slow
@pytest.mark.external
def test_mujoco_agrees_on_a_mixed_tree():
    """MuJoCo reads what `to_mjcf` writes; its order of joints is depth first, ours that of declaration."""
    mujoco = pytest.importorskip("mujoco")
    spec = mixed_spec()
    system, (q, v, a, tau) = rs.build(spec), (x[0] for x in rs.states(spec, 2, 1))
    model = mujoco.MjModel.from_xml_string(mb.to_mjcf(system))
    data = mujoco.MjData(model)
    names = tuple(dict.fromkeys(model.joint(i).name.partition("_")[0] for i in range(model.njnt)))
    assert names != system.joint_names
    result = ours()(system, q, v, a, tau)
    given = cv.State(q, v, a, tau, result["M"], result["J"], jnp.stack([result["tip"].velocity]))
    there = cv.to_mujoco(system, given, names)
    data.qpos, data.qvel, data.qacc = (np.asarray(x) for x in there[:3])
    mujoco.mj_inverse(model, data)
    back = cv.from_mujoco(system, cv.State(data.qpos, tau=data.qfrc_inverse), names)
    np.testing.assert_allclose(back.tau, result["tau"], atol=1e-10)
    M = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, M)
    np.testing.assert_allclose(there.mass_matrix, M, atol=1e-12)
    data.qfrc_applied = np.asarray(there.tau)
    mujoco.mj_forward(model, data)
    back = cv.from_mujoco(system, cv.State(data.qpos, data.qvel, data.qacc), names)
    np.testing.assert_allclose(back.a, result["a"], rtol=1e-9, atol=1e-8)
    linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
    body = model.body("b5").id
    mujoco.mj_jac(model, data, linear, angular, data.xpos[body], body)
    np.testing.assert_allclose(there.jacobian, np.concatenate([angular, linear]), atol=1e-12)
    velocity = np.zeros(6)
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity, 0)
    np.testing.assert_allclose(there.motion[0], velocity, atol=1e-12)
    theirs = cv.Principal(*(x[body] for x in (model.body_mass, model.body_ipos, model.body_iquat, model.body_inertia)))
    mine = inertia.Inertial(*(system.get(f"b5.{x}") for x in ("mass", "com", "inertia")))
    for x, y in zip(cv.inertia_from_mujoco(theirs), mine, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-12)
    np.testing.assert_allclose(np.sort(cv.inertia_to_mujoco(mine).inertia), np.sort(theirs.inertia), atol=1e-13)
