"""Reading URDF: what each element comes to, what is reported, and how the robot stands in the world."""

import contextlib
import functools
import itertools
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from urdf_text import ARM, ROBOTS, SOLID, joint, link, mimic, reported, write_urdf

import jaxmbd as mb
from jaxmbd.io import UrdfError, urdf_xml


@pytest.fixture
def write(tmp_path):
    return functools.partial(write_urdf, tmp_path)


def refusal(path, **options):
    with pytest.raises(UrdfError) as caught:
        mb.load(path, **options)
    return str(caught.value)


# ---------------------------------------------------------------- what is read


def test_rpy_is_rz_ry_rx(write):
    """URDF's fixed-axis angles, against the product of the three elementary rotations."""
    roll, pitch, yaw = 0.3, -1.1, 2.5
    c, s = np.cos, np.sin
    rx = np.array([[1, 0, 0], [0, c(roll), -s(roll)], [0, s(roll), c(roll)]])
    ry = np.array([[c(pitch), 0, s(pitch)], [0, 1, 0], [-s(pitch), 0, c(pitch)]])
    rz = np.array([[c(yaw), -s(yaw), 0], [s(yaw), c(yaw), 0], [0, 0, 1]])
    expected = rz @ ry @ rx
    quaternion = urdf_xml.quaternion_from_rpy(roll, pitch, yaw)
    np.testing.assert_allclose(urdf_xml.rotation_matrix(quaternion), expected, atol=1e-15)
    origin = f'<origin xyz="1 2 3" rpy="{roll} {pitch} {yaw}"/>'
    system = mb.load(write(*ARM[:2], joint("j1", "revolute", "base", "upper", origin + '<axis xyz="0 1 0"/>')))
    np.testing.assert_allclose(system.get("j1.in_parent.position"), [1.0, 2.0, 3.0])
    np.testing.assert_allclose(mb.Pose(rotation=system.get("j1.in_parent.rotation")).rotation, expected, atol=1e-14)
    np.testing.assert_allclose(system.get("j1.axis").squeeze(), [0.0, 1.0, 0.0])


def test_quat_xyzw_is_read(write):
    turned = '<origin quat_xyzw="0 0 2 2"/><axis xyz="1 0 0"/>'
    system = mb.load(write(*ARM[:2], joint("j1", "revolute", "base", "upper", turned)))
    np.testing.assert_allclose(system.get("j1.in_parent.rotation"), [0.5**0.5, 0.0, 0.0, 0.5**0.5], atol=1e-15)
    both = turned.replace("/>", ' rpy="0 0 0"/>', 1)
    message = refusal(write(*ARM[:2], joint("j1", "revolute", "base", "upper", both)))
    assert "line 4: joint 'j1': <origin> has a zero quat_xyzw, or rpy beside it; expected one rotation" in message


def test_inertial_frame_is_turned_to_link_axes(write):
    """A box with moments 1, 2, 2.5 whose inertial frame is turned by a quarter about z: x and y change places."""
    inertial = (
        '<inertial><origin xyz="0.1 0.2 0.3" rpy="0 0 1.5707963267948966"/><mass value="4"/>'
        '<inertia ixx="1" ixy="0" ixz="0.25" iyy="2" iyz="0" izz="2.5"/></inertial>'
    )
    system = mb.load(write(link("base"), link("upper", inertial), ARM[3]))
    assert float(system.get("upper.mass")) == 4.0
    np.testing.assert_allclose(system.get("upper.com"), [0.1, 0.2, 0.3])
    # e_x of the inertial frame is e_y of the link: I_xz of the file stands at yz.
    np.testing.assert_allclose(system.get("upper.inertia"), [2.0, 0.0, 0.0, 1.0, 0.25, 2.5], atol=1e-15)


def test_missing_parts_take_the_defaults(write):
    bare = joint("j1", "revolute", "base", "upper", "")
    system = mb.load(
        write(link("base", ""), link("upper", '<inertial><origin xyz="0 0 1"/><mass value="1"/></inertial>'), bare)
    )
    np.testing.assert_array_equal(system.get("j1.axis").squeeze(), [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(system.get("j1.in_parent.position"), jnp.zeros(3))
    np.testing.assert_array_equal(system.get("j1.in_parent.rotation"), [1.0, 0.0, 0.0, 0.0])
    assert float(system.get("base.mass")) == 0.0
    assert float(system.get("j1.damping")) == float(system.get("j1.friction")) == 0.0
    assert np.isinf(float(system.get("j1.effort")))
    assert reported(system, r"line 4: joint 'j1': no <axis>: \(1, 0, 0\) by URDF's rule")
    assert reported(system, r"line 3: link 'upper': no <inertia>: read as a point mass")


def test_axes_are_normalised_and_reported(write):
    lines = [*ARM[:4], joint("j2", "prismatic", "upper", "lower", '<axis xyz="0 3 -4"/>')]
    system = mb.load(write(*lines))
    np.testing.assert_allclose(system.get("j2.axis").squeeze(), [0.0, 0.6, -0.8], atol=1e-15)
    assert reported(system, r"line 6: joint 'j2': axis \(0.0, 3.0, -4.0\) of length 5 normalised to \(0.0, 0.6, -0.8\)")
    assert not reported(system, "j1.*normalised")


def test_every_joint_type(write):
    kinds = {"revolute": 1, "continuous": 1, "prismatic": 1, "fixed": 0, "floating": 6, "planar": 3}
    names = ["base", *kinds]
    lines = [link(name) for name in names]
    lines += [joint(f"j_{b}", b, a, b, '<axis xyz="0 1 0"/>') for a, b in itertools.pairwise(names)]
    system = mb.load(write(*lines))
    assert system.nv == sum(kinds.values()) and system.nq == system.nv + 1
    for name, nv in kinds.items():
        at = system.v_slice(f"j_{name}")
        assert at.stop - at.start == nv
    assert [system.v_slice(f"j_{name}").start for name in kinds] == [0, 1, 2, 3, 3, 9]
    assert reported(system, r"1 revolute, 1 continuous, 1 prismatic, 1 fixed, 1 floating, 1 planar")


def test_planar_moves_in_the_plane_of_its_normal(write):
    """URDF's planar axis is the normal: displacements stay perpendicular to it, the angle turns about it."""
    normal = np.array([1.0, 2.0, 2.0]) / 3.0
    lines = [link("base"), link("upper"), joint("j", "planar", "base", "upper", '<axis xyz="1 2 2"/>')]
    system = mb.load(write(*lines))
    upper = mb.kinematics(system, jnp.array([0.3, -0.4, 0.7]), jnp.array([0.0, 0.0, 1.0]), jnp.zeros(3))["upper"]
    np.testing.assert_allclose(normal @ upper.position, 0.0, atol=1e-15)
    np.testing.assert_allclose(jnp.linalg.norm(upper.position), 0.5, rtol=1e-14)
    np.testing.assert_allclose(upper.velocity[:3], normal, atol=1e-14)


def test_dynamics_and_limits_are_recorded(write):
    inside = '<axis xyz="0 0 1"/><dynamics damping="0.5" friction="0.25"/>'
    inside += '<limit lower="-1" upper="2" effort="30" velocity="4"/>'
    system = mb.load(write(*ARM[:2], joint("j1", "revolute", "base", "upper", inside)))
    recorded = [float(system.get(f"j1.{key}")) for key in ("damping", "friction", "lower", "upper", "effort", "speed")]
    assert recorded == [0.5, 0.25, -1.0, 2.0, 30.0, 4.0]
    assert reported(system, r"1 with damping, 1 with dry friction")
    endless = mb.load(write(*ARM[:2], joint("j1", "continuous", "base", "upper", inside)))
    assert float(endless.get("j1.lower")) == -np.inf and float(endless.get("j1.upper")) == np.inf


def test_placeholder_limits_are_not_taken_as_locked():
    system = mb.load(ROBOTS / "double_pendulum.urdf")
    bounds = [float(system.get(f"joint1.{key}")) for key in ("lower", "upper", "effort", "speed")]
    assert bounds == [-np.inf, np.inf, np.inf, np.inf]
    assert reported(system, "joint 'joint1': limits lower = 0.0, upper = 0.0 leave no range: read as not given")
    assert reported(system, "joint 'joint1': limits effort = 0.0, velocity = 0.0: zero or less is read as not given")


def test_link_and_joint_of_one_name(write):
    system = mb.load(write(link("base"), link("arm"), joint("arm", "revolute", "base", "arm")))
    assert system.joint_names == ("arm",) and "arm" in system.frame_names
    assert float(system.get("arm.mass")) == 2.0 and float(system.get("arm.damping")) == 0.0


def test_suffix_in_capitals(write):
    assert mb.load(write(*ARM, name="ROBOT.URDF")).nv == 2


def test_order_is_file_order(write):
    """Joints before links, children before parents: the order of q is that of the joints in the file."""
    lines = [*reversed(ARM[3:]), link("lower"), link("base"), link("upper")]
    assert mb.load(write(*lines)).joint_names == ("j2", "j1")
    system = mb.load(write(*lines), floating=True)
    assert system.joint_names == ("root", "j2", "j1")
    assert system.frame_names == ("lower", "base", "upper")


def test_foreign_elements_are_counted_and_meshes_not_opened(write):
    mesh = '<visual><geometry><mesh filename="package://nowhere/not_there.stl"/></geometry></visual>'
    extra = ["<gazebo/>", '<transmission name="t"/>', "<gazebo/>", '<sensor:camera name="undeclared prefix"/>']
    system = mb.load(write(link("base", SOLID + mesh + mesh + "<collision/>"), *extra))
    assert reported(system, "ignored, .*: 1 collision, 2 gazebo, 1 sensor:camera, 1 transmission, 2 visual")


def test_no_file_but_the_robot_is_opened(write, tmp_path):
    """Meshes stay closed even where they exist, in the folder, outside of it, or by an absolute path."""
    for name in ("here.stl", "there.stl"):
        (tmp_path / name).write_text("solid")
    names = ("here.stl", "../" + tmp_path.name + "/there.stl", f"file://{tmp_path}/here.stl", "package://r/here.stl")
    meshes = "".join(f'<collision><geometry><mesh filename="{name}"/></geometry></collision>' for name in names)
    path = write(link("base", SOLID + meshes))
    with watched_files() as opened:
        mb.load(path)
    assert [p for p in opened if str(tmp_path) in p] == [str(path)]


@contextlib.contextmanager
def watched_files():
    """The paths that Python opens while the block runs."""
    opened, watching = [], [True]

    def hook(event, arguments):
        if watching and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(hook)
    try:
        yield opened
    finally:
        watching.clear()  # a hook cannot be removed


def test_default_name_space_and_declared_but_unused_xacro(write):
    spaces = '<robot name="r" xmlns="http://www.ros.org" xmlns:xacro="http://www.ros.org/wiki/xacro">'
    assert mb.load(write(*ARM, head=spaces)).nv == 2


# ---------------------------------------------------------------- fixed links


def turn(rpy):
    """R = Rz Ry Rx of fixed-axis angles."""
    (cr, cp, cy), (sr, sp, sy) = np.cos(rpy), np.sin(rpy)
    x = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    y = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    z = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    return z @ y @ x


def test_welded_links_are_the_sum_of_their_bodies(write):
    """A root with a chain and a branch of fixed links, all origins and inertials turned, one link massless.

    The mass matrix of the free root is [[J, m c x], [-m c x, m 1]] at its origin: sums over the links, each moved by
    the parallel-axis rule in plain NumPy. Every link stays a frame with its own inertia.
    """
    random = np.random.default_rng(4)
    parents = {"a": None, "b": "a", "c": "b", "d": "a", "e": "d"}
    lines, poses = [], {}
    mass, moment, tensor = 0.0, np.zeros(3), np.zeros((3, 3))
    own = {}
    for name, parent in parents.items():
        place, rpy, com, tilt = random.normal(size=(4, 3))
        R, p = (np.eye(3), np.zeros(3)) if parent is None else poses[parent]
        if parent is not None:
            R, p = R @ turn(rpy), p + R @ place
            origin = f'<origin xyz="{place[0]} {place[1]} {place[2]}" rpy="{rpy[0]} {rpy[1]} {rpy[2]}"/>'
            lines.append(joint(f"{name}_weld", "fixed", parent, name, origin))
        poses[name] = R, p
        if name == "d":
            lines.append(link(name, ""))
            continue
        m, moments = random.uniform(0.5, 2.0), random.uniform(0.2, 0.3, 3)
        lines.append(
            link(
                name,
                f'<inertial><origin xyz="{com[0]} {com[1]} {com[2]}" rpy="{tilt[0]} {tilt[1]} {tilt[2]}"/>'
                f'<mass value="{m}"/><inertia ixx="{moments[0]}" iyy="{moments[1]}" izz="{moments[2]}"/></inertial>',
            )
        )
        own[name] = turn(tilt) @ np.diag(moments) @ turn(tilt).T
        at, inertia = p + R @ com, R @ own[name] @ R.T
        mass, moment = mass + m, moment + m * at
        tensor += inertia + m * (at @ at * np.eye(3) - np.outer(at, at))
    system = mb.load(write(*lines), floating=True)
    assert system.nb == 1 and system.body_names == ("a",)
    x, y, z = moment
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    expected = np.block([[tensor, cross], [-cross, mass * np.eye(3)]])
    np.testing.assert_allclose(mb.mass_matrix(system, system.neutral_q()), expected, rtol=1e-13, atol=1e-13)
    k = mb.kinematics(system, system.neutral_q())
    for name, (R, p) in poses.items():
        np.testing.assert_allclose(k[name].position, p, atol=1e-14)
        np.testing.assert_allclose(k[name].rotation, R, atol=1e-14)
    for name, inertia in own.items():
        np.testing.assert_allclose(system.get(f"{name}.inertia"), inertia[np.triu_indices(3)], atol=1e-15)


# ---------------------------------------------------------------- the base


def test_floating_root(write):
    path = write(*ARM)
    fixed, floating = mb.load(path), mb.load(path, floating=True)
    assert (fixed.nq, fixed.nv) == (2, 2) and (floating.nq, floating.nv) == (9, 8)
    assert floating.q_slice("root") == slice(0, 7)
    q = floating.neutral_q().at[4:7].set(jnp.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(mb.kinematics(floating, q, jnp.zeros(8), jnp.zeros(8))["base"].position, [1, 2, 3])
    assert float(fixed.mass) == float(floating.mass) == 6.0


@pytest.mark.parametrize("name", ["base_link", "world_link", "root", "base", "universe"])
def test_a_root_link_may_have_any_name_but_world(write, name):
    path = write(link(name), link("arm"), joint("j", "revolute", name, "arm"))
    assert mb.load(path).frame_names == (name, "arm")
    assert mb.load(path, floating=True).joint_names == ("root", "j")


def test_a_joint_named_root_matters_only_for_a_floating_base(write):
    path = write(*ARM[:2], joint("root", "revolute", "base", "upper"))
    assert mb.load(path).joint_names == ("root",)
    assert "line 4: joint 'root': floating=True adds a joint of this name; rename it" in refusal(path, floating=True)


def test_world_link_is_the_world():
    """`world` is no body; floating=True frees the one link that is fixed to it, at its world pose."""
    fixed = mb.load(ROBOTS / "ur5.urdf")
    assert fixed.nv == 6 and "world" not in fixed.frame_names
    floating = mb.load(ROBOTS / "ur5.urdf", floating=True)
    assert floating.nv == 12 and floating.joint_names[0] == "root"
    assert reported(floating, "joint 'world_joint': becomes the free joint 'root' of link 'base_link'")


def test_world_link_with_a_floating_joint(write):
    path = write(link("world", ""), link("body"), joint("free", "floating", "world", "body"))
    for floating in (False, True):
        assert mb.load(path, floating=floating).joint_names == ("free",)
    assert reported(mb.load(path, floating=True), "joint 'free': is a free joint on 'world' already")


def test_world_link_that_cannot_float(write):
    path = write(link("world"), link("cart"), joint("rail", "prismatic", "world", "cart"))
    assert reported(mb.load(path), "link 'world': is the inertial frame, its mass and inertia are left out")
    message = refusal(path, floating=True)
    assert "line 2: link 'world': the root link 'world' is the inertial frame and carries 'rail' (prismatic)" in message
    assert "Rename the link to let it float, or load with floating=False" in message


def test_world_link_in_the_middle(write):
    message = refusal(write(link("base"), link("world"), joint("j", "revolute", "base", "world")), strict=False)
    assert "line 4: joint 'j': link 'world' hangs on it, but that name means the inertial frame" in message


# ---------------------------------------------------------------- mimic


def test_mimic_chain_in_any_order(write):
    """c = 2 b + 1, b = -3 a + 0.5, hence c = -6 a + 2; the followers stand before their leader."""
    lines = [link(name) for name in ("base", "x", "y", "z")]
    lines += [joint("c", "revolute", "base", "x", mimic("b", 2, 1))]
    lines += [joint("b", "revolute", "base", "y", mimic("a", -3, 0.5)), joint("a", "revolute", "base", "z")]
    system = mb.load(write(*lines))
    assert system.joint_names == ("a",)
    relations = [float(system.get(path)) for path in ("b.ratio", "b.offset", "c.ratio", "c.offset")]
    assert relations == [-3.0, 0.5, -6.0, 2.0]
    assert reported(system, r"joint 'c': mimic eliminated: 'c' = -6.0 \* 'a' \+ 2.0")
    k = mb.kinematics(system, jnp.array([0.1]), jnp.ones(1), jnp.zeros(1))
    np.testing.assert_allclose(k["x"].velocity[2], -6.0, rtol=1e-14)
    np.testing.assert_allclose(k["x"].rotation[1, 0], np.sin(2.0 - 0.6), rtol=1e-13)
    free = mb.load(write(*lines), mimic="independent")
    assert free.joint_names == ("c", "b", "a")
    assert reported(free, r"joint 'b': mimic=\"independent\": it stays free of -3.0 \* 'a' \+ 0.5")
