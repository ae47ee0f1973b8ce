"""Systems as URDF and MJCF text: read back the same, with the same motion, and a list of what could not be said."""

import functools
import re
import warnings
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
from test_save import curved

import jaxmbd as mb
from jaxmbd import cli, inertia
from jaxmbd import conventions as cv
from jaxmbd.io.export_tree import quaternion_of, rpy_of

ROBOTS = sorted((Path(__file__).parent / "data" / "robots").glob("*.urdf"))


def read_back(text, folder):
    (folder / "again.urdf").write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # implausible inertias, as in the first file
        return mb.load(folder / "again.urdf")


def assert_same_numbers(a, b):
    """Rotations are compared as matrices; the rest to round-off."""
    assert a.topology == b.topology
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        if "rotation" in jax.tree_util.keystr(path):
            x, y = rotations(x), rotations(y)
        np.testing.assert_allclose(x, y, rtol=1e-14, atol=1e-15, err_msg=jax.tree_util.keystr(path))


@jax.jit
def rotations(quaternions):
    return jax.vmap(lambda q: mb.Pose(jnp.zeros(3), q).rotation)(quaternions)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize("path", ROBOTS, ids=lambda path: path.stem)
def test_robots_come_back_from_urdf(path, floating, tmp_path):
    """The same topology, so the same programs, and the same numbers, so the same dynamics; nothing is lost."""
    if path.stem == "cartpole" and floating:
        pytest.skip("its base has no mass and cannot float")
    system = mb.load(path, floating=floating)
    text = mb.to_urdf(system)
    assert "not in this file" not in text
    assert_same_numbers(read_back(text, tmp_path), system)


def test_the_shipped_robot_with_fitted_numbers(tmp_path):
    system = mb.load(cli.SHIPPED_ROBOT)
    fitted = system.replace(
        {"panda_link4.mass": 4.25, "panda_joint2.damping": 0.7, "panda_link5.com": (0.01, 0.02, 0.03)}
    )
    again = read_back(mb.to_urdf(fitted, name="fitted"), tmp_path)
    assert_same_numbers(again, fitted)
    assert "robot 'fitted'" in again.report[0]


def urdf_spec():
    """Every joint that URDF can say, by one joint or by a chain, with poses on both sides."""
    kinds = (
        "free",
        "universal",
        "planar",
        "cylindrical",
        "fixed",
        "gimbal:zxz",
        "translational",
        "prismatic",
        "revolute",
    )
    spec = rs.random_tree(41, kinds, "branches")
    return replace(spec, gravity=np.array([0.0, 0.0, -9.81]))


@functools.cache
def motion():
    def one(system, q, v, tau, frame):
        k = mb.kinematics(system, q, v)[frame]
        return mb.forward_dynamics(system, q, v, tau), k.position, k.rotation, k.velocity

    return jax.jit(one, static_argnums=4)


@pytest.mark.slow
def test_joints_of_several_screws_become_chains(tmp_path):
    spec = urdf_spec()
    system = rs.build(spec)
    damping = {"j0": np.full(6, 0.1), "j1": (0.3, 0.4), "j2": np.full(3, 0.3), "j8": 0.2}
    system = system.replace({f"{joint}.damping": value for joint, value in damping.items()})
    text = mb.to_urdf(system)
    assert "link 'b1' has the frame of joint 'j1' here" in text
    assert "joint 'j1' (universal) is a chain of 2 joints here" in text
    again = read_back(text, tmp_path)
    assert again.nq == system.nq and again.topology != system.topology
    q, v, _, tau = (x[0] for x in rs.states(spec, 2, 1))
    for ours, theirs in zip(motion()(again, q, v, tau, "tool"), motion()(system, q, v, tau, "tool"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)


def test_urdf_says_what_it_cannot_say(tmp_path):
    b = mb.Builder(gravity=(0.0, 0.0, -1.62))
    b.body("a", 1.0, inertia=np.eye(3), rotor_momentum=(0.0, 0.0, 1.0))
    b.joint("j", mb.revolute((0.0, 0.0, 1.0)), child="a", stiffness=3.0, armature=0.1, friction=0.2, friction_speed=0.5)
    system = b.build()
    listed = (
        r"URDF cannot say 5 things that change the motion. With strict=False they are left out, and named in the text "
        r"and a warning:\n  link 'a': rotor momentum \[0.0, 0.0, 1.0\] N m s\n  gravity \[0.0, 0.0, -1.62\] m/s\^2.*\n"
        r"  joint 'j': spring \[3.0\]\n  joint 'j': armature \[0.1\]\n  joint 'j': friction_speed \[0.5\]"
    )
    with pytest.raises(ValueError, match=listed):
        mb.to_urdf(system)
    with pytest.warns(UserWarning, match="URDF text without what it cannot say:\n  link 'a': rotor momentum"):
        text = mb.to_urdf(system, strict=False)
    assert len(re.findall("not in this file: ", text)) == 5
    assert_same_numbers(
        read_back(text, tmp_path),
        read_back(mb.to_urdf(mb.Builder.build(_plain())), tmp_path),
    )


def _plain():
    b = mb.Builder()
    b.body("a", 1.0, inertia=np.eye(3))
    b.joint("j", mb.revolute((0.0, 0.0, 1.0)), child="a", friction=0.2)
    return b


IMPOSSIBLE = {
    "ball": (mb.spherical(), mb.to_urdf, "URDF has no ball joint; joints 'j' cannot be said"),
    "screw": (mb.screw((0.0, 0.0, 1.0), 0.1), mb.to_urdf, "URDF cannot say:\n  joint 'j': a screw with pitch"),
    "pitch": (mb.screw((0.0, 0.0, 1.0), 0.1), mb.to_mjcf, "MJCF cannot say:\n  joint 'j': a screw with pitch"),
    "function": (mb.mapped(lambda q: mb.Pose(jnp.zeros(3), None), 1), mb.to_mjcf, "joint 'j': its pose is a function"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_text_can_say(name):
    joint, write, text = IMPOSSIBLE[name]
    b = mb.Builder()
    b.body("a", 1.0, inertia=np.eye(3))
    b.joint("j", joint, child="a", armature=1.0)
    with pytest.raises(ValueError, match=text):
        write(b.build(), strict=False)


def test_batches_are_refused():
    system = mb.models.pendulum()
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), system)
    with pytest.raises(ValueError, match=r"masses have shape \(2, 1\); a file describes one system"):
        mb.to_urdf(batch)


@pytest.mark.parametrize("pitch", [0.3, np.pi / 2, -np.pi / 2, np.pi / 2 - 1e-9, np.pi / 2 - 1e-5])
def test_angles_and_quaternions_of_rotations(pitch):
    """Also where roll and yaw turn about one axis: the rotation comes back to round-off."""
    for roll, yaw in ((0.4, -2.0), (3.0, 1.0), (0.0, np.pi)):
        X = mb.Pose.from_rpy(jnp.zeros(3), jnp.array([roll, pitch, yaw]))
        R = np.asarray(X.rotation)
        again = mb.Pose.from_rpy(jnp.zeros(3), jnp.array(rpy_of(R))).rotation
        np.testing.assert_allclose(again, R, atol=2e-15)
        np.testing.assert_allclose(mb.Pose(jnp.zeros(3), quaternion_of(R)).rotation, R, atol=2e-15)


# ----------------------------------------------------------------------------------------------- read by the peers


@pytest.mark.external
def test_pinocchio_reads_the_urdf():
    """Also where limits are infinite: URDF has no word for it."""
    pin = pytest.importorskip("pinocchio")
    system = mb.load(cli.SHIPPED_ROBOT, mimic="independent").replace({"panda_joint1.upper": np.inf})
    system = system.replace({"panda_joint2.effort": np.inf})
    text = mb.to_urdf(system)
    assert "not in this file: joint 'panda_joint1': limits -2.8973 to inf" in text
    model = pin.buildModelFromXML(text)
    assert tuple(model.names)[1:] == system.joint_names and model.effortLimit[1] == 0.0
    q, v = mb.random_state(system, jax.random.key(0))
    M = pin.crba(model, model.createData(), np.asarray(q))
    np.testing.assert_allclose(mb.mass_matrix(system, q), np.triu(M) + np.triu(M, 1).T, atol=1e-13)


def mjcf_spec():
    """Joints with passive forces that MuJoCo has too: springs, damping, armature, one number a ball joint."""
    kinds = ("free", "spherical", "universal", "screw_product:2", "prismatic", "fixed", "planar", "revolute")
    spec = rs.random_tree(43, kinds, "branches", passive=True)
    joints = []
    for joint in spec.joints:
        joint = replace(joint, friction=np.zeros_like(joint.friction))
        if joint.kind == "free":  # one number each for turning and sliding
            numbers = {k: np.repeat(getattr(joint, k)[[0, 3]], 3) for k in ("stiffness", "damping", "armature")}
            numbers["armature"][3:] = 0.0
            joint = replace(joint, **numbers, rest=np.array([1.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.3]))
        if joint.kind == "spherical":
            numbers = {k: np.repeat(getattr(joint, k)[0], 3) for k in ("stiffness", "damping", "armature")}
            joint = replace(joint, **numbers, rest=np.array([1.0, 0.0, 0.0, 0.0]))
        if joint.kind == "screw_product":
            screws = [(pose, axis, 0.0) for pose, axis, _ in joint.parameters["screws"]]
            joint = replace(joint, parameters={"screws": screws})
        joints.append(joint)
    return replace(spec, joints=tuple(joints))


def without_pitch(system):
    """Screw products of pitch zero as hinges, which MJCF can say."""
    entries = tuple(replace(j, helical=(False,) * len(j.helical)) for j in system.topology.joints)
    return replace(system, topology=replace(system.topology, joints=entries))


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.filterwarnings("error")
def test_mujoco_moves_alike():
    """Everything that MJCF can say at once, poses on both sides of every joint: accelerations agree."""
    mujoco = pytest.importorskip("mujoco")
    spec = mjcf_spec()
    system = without_pitch(rs.build(spec))
    model = mujoco.MjModel.from_xml_string(mb.to_mjcf(system))
    data = mujoco.MjData(model)
    names = tuple(dict.fromkeys(model.joint(i).name.partition("_")[0] for i in range(model.njnt)))
    q, v, _, tau = (x[0] for x in rs.states(spec, 2, 1))
    a, position, rotation, _ = motion()(system, q, v, tau, "tool")
    there = cv.to_mujoco(system, cv.State(q, v, a, tau), names)
    data.qpos, data.qvel, data.qfrc_applied = (np.asarray(x) for x in (there.q, there.v, there.tau))
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(there.a, data.qacc, rtol=1e-9, atol=1e-8)
    site = model.site("tool").id
    np.testing.assert_allclose(position, data.site_xpos[site], atol=1e-12)
    np.testing.assert_allclose(rotation, data.site_xmat[site].reshape(3, 3), atol=1e-12)


@pytest.mark.external
@pytest.mark.parametrize("path", ROBOTS, ids=lambda path: path.stem)
def test_mujoco_reads_every_robot(path):
    """Points, rods, plates, massless links, and inertias that no body has, which are projected and named."""
    mujoco = pytest.importorskip("mujoco")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        system = mb.load(path, floating=path.stem != "cartpole", mimic="independent")
        model = mujoco.MjModel.from_xml_string(mb.to_mjcf(system, strict=False))
    assert model.nv == system.nv
    np.testing.assert_allclose(model.body_mass.sum(), system.mass, rtol=1e-14)
    for i, name in enumerate(system.topology.links):
        body = inertia.Inertial(*(np.asarray(x[i]) for x in (system.link_mass, system.link_com, system.link_inertia)))
        if (
            inertia.doubt(body, 1e-12)
            or not body.mass
            or np.linalg.eigvalsh(np.asarray(cv.inertia_to_rbdl(body).inertia_C))[0] < 1e-15
        ):
            continue
        at = model.body(name).id
        theirs = cv.inertia_from_mujoco(
            cv.Principal(model.body_mass[at], model.body_ipos[at], model.body_iquat[at], model.body_inertia[at])
        )
        np.testing.assert_allclose(theirs.inertia, body.inertia, atol=1e-11 * np.abs(body.inertia).max())


MJCF_FILES = sorted((Path(__file__).parent / "data" / "robots").glob("*.xml"))


@pytest.mark.external
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("path", MJCF_FILES, ids=lambda path: path.stem)
def test_mjcf_files_come_back(path, tmp_path):
    """Read and written again: MuJoCo finds the same mass matrix and forces, in the same coordinates, and so do we."""
    mujoco = pytest.importorskip("mujoco")
    system = mb.load(path, loops="open")
    (tmp_path / "again.xml").write_text(mb.to_mjcf(system, strict=False), encoding="utf-8")
    first, second = (mujoco.MjModel.from_xml_path(str(p)) for p in (path, tmp_path / "again.xml"))
    assert (first.nq, first.nv, first.njnt) == (second.nq, second.nv, second.njnt)
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=first.nq), rng.normal(size=first.nv)
    for joint in range(first.njnt):
        at = first.jnt_qposadr[joint]
        if first.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
            q[at + 3 : at + 7] /= np.linalg.norm(q[at + 3 : at + 7])
        if first.jnt_type[joint] == mujoco.mjtJoint.mjJNT_BALL:
            q[at : at + 4] /= np.linalg.norm(q[at : at + 4])
    results = []
    for model in (first, second):
        data, M = mujoco.MjData(model), np.zeros((model.nv, model.nv))
        data.qpos, data.qvel = q, v
        mujoco.mj_forward(model, data)
        mujoco.mj_fullM(model, data, M)
        results.append((M, data.qfrc_bias, data.qfrc_passive))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-9 * np.abs(ours).max() + 1e-12)
    again = mb.load(tmp_path / "again.xml", loops="open")
    assert again.joint_names == system.joint_names and again.body_names == system.body_names
    np.testing.assert_allclose(again.mass, system.mass, rtol=1e-13)


def test_mjcf_says_what_it_cannot_say():
    b = mb.Builder(base_motion=lambda t: mb.Pose((t, 0.0, 0.0)))
    for name in "abc":
        b.body(name, 1.0, inertia=np.eye(3))
    b.joint("j", mb.revolute((0.0, 0.0, 1.0)), child="a", friction=0.2, speed=3.0)
    b.joint("k", mb.prismatic((0.0, 0.0, 1.0)), "a", "b", mb.Pose((1.0, 0.0, 0.0)))
    b.joint("s", mb.spherical(), "b", "c", damping=(1.0, 2.0, 3.0), stiffness=1.0, rest=(0.6, 0.8, 0.0, 0.0))
    b.couple("k", "j", 2.0, 0.5)
    system = b.build().with_drive("j", position=mb.laws.Constant(0.3))
    with pytest.raises(ValueError, match="MJCF cannot say 6 things") as error:
        mb.to_mjcf(system)
    for line in (
        "the motion of the base",
        "joint 'j': its law, it is free",
        "joint 'j': smooth dry friction, in MuJoCo frictionloss, a constraint",
        "joint 's': spring about [0.6, 0.8, 0.0, 0.0], in MuJoCo about no rotation",
        "joint 's': damping [1.0, 2.0, 3.0], one number is said",
        "joint 'k' = 2.0 * 'j' + 0.5: a soft constraint in MuJoCo",
    ):
        assert line in str(error.value)
    with pytest.warns(UserWarning, match="MJCF text without what it cannot say"):
        text = mb.to_mjcf(system, strict=False)
    assert '<joint joint1="k" joint2="j" polycoef="0.5 2.0 0.0 0.0 0.0" />' in text
    assert "not in this file: joint 'j': speed limit [3.0]" in text
    with pytest.raises(ValueError, match="joint 'k': it follows 'j' by a function, here it is free"):
        mb.to_mjcf(curved())
    with pytest.raises(ValueError, match="joint 'k': it follows 'j' by a function, here it is free"):
        mb.to_urdf(curved())
    massless = mb.Builder()
    massless.body("light")
    massless.joint("j", mb.revolute((0.0, 0.0, 1.0)), child="light", armature=1.0)
    with pytest.raises(ValueError, match="MuJoCo refuses moving bodies without mass: 'light'"):
        mb.to_mjcf(massless.build(), strict=False)
