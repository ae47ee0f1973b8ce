"""Reading MJCF: names, what each part comes to, what is reported, refused or doubted."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mjcf_text import BALL, HINGE, ROBOTS, ZOO, body, write_mjcf
from numpy.polynomial import Polynomial

import jaxmbd as mb
from jaxmbd import cli
from jaxmbd.io import MjcfError
from jaxmbd.io.mjcf_equality import couple

mujoco = pytest.importorskip("mujoco")
pytestmark = [pytest.mark.external, pytest.mark.filterwarnings("error::UserWarning")]


@pytest.fixture
def write(tmp_path):
    return functools.partial(write_mjcf, tmp_path)


def refusal(path, **options):
    with pytest.raises(MjcfError) as caught:
        mb.load(path, **options)
    return str(caught.value)


def reported(system, text):
    return [line for line in system.report if text in line]


# ---------------------------------------------------------------- names


def test_several_joints_of_one_body_keep_their_names():
    """Hopper's torso slides twice and turns: three joints, one body; the links between are nobody's business."""
    system = mb.load(ROBOTS / "hopper.xml")
    assert system.body_names == system.frame_names == ("torso", "thigh", "leg", "foot") and system.nb == 4
    assert system.joint_names == ("rootx", "rootz", "rooty", "thigh_joint", "leg_joint", "foot_joint")
    assert system.q_slice("rootz") == slice(1, 2)
    assert float(system.get("rootz.home")) == 1.25 and float(system.get("thigh_joint.armature")) == 1.0
    np.testing.assert_array_equal(system.neutral_q(), [0.0, 1.25, 0.0, 0.0, 0.0, 0.0])


def test_unnamed_things_are_called_by_index(write):
    """MuJoCo's index counts the world as body 0; a name that the file uses already is left alone."""
    inside = body("", HINGE.replace('name="j"', 'name="joint1"') + "<site/>" + body("", HINGE.replace('name="j"', "")))
    system = mb.load(write(inside))
    assert system.body_names == ("body1", "body2")
    assert system.joint_names == ("joint1", "joint1_")
    assert system.frame_names == ("body1", "body2", "site0")


def test_site_and_body_of_one_name(write):
    system = mb.load(write(body("a", HINGE + '<site name="a" pos="1 0 0"/>')))
    assert system.frame_names == ("a", "a_site")
    assert reported(system, "site 'a': the name is a body's, so the site is called 'a_site'")


# ---------------------------------------------------------------- the base, loops, couplings


def test_floating_frees_the_one_fixed_body(write):
    system = mb.load(write(body("a", body("b", HINGE), place='pos="1 2 3" euler="0 0 90"')), floating=True)
    assert system.joint_names == ("root", "j")
    np.testing.assert_allclose(system.neutral_q()[:7], [0.5**0.5, 0, 0, 0.5**0.5, 1, 2, 3], atol=1e-15)
    free = mb.load(write(body("a", "<freejoint/>")), floating=True)
    assert free.joint_names == ("joint0",)
    assert reported(free, "body 'a' is free already, floating=True adds nothing")


@pytest.mark.parametrize(
    "inside, expected",
    [
        (body("a", HINGE), "<worldbody>: carries 'a' (joints: 1); floating=True needs one body without joints there"),
        (body("a") + body("b"), "<worldbody>: carries 'a' (joints: 0), 'b' (joints: 0); floating=True needs one body"),
        (body("a", body("b", '<joint name="root"/>')), "joint 'root': floating=True adds a joint of this name; rename"),
    ],
)
def test_bodies_that_cannot_float(write, inside, expected):
    assert expected in refusal(write(inside), floating=True)


def test_loops_are_closed_or_left_out():
    """Cassie's four connects; a file without loops loads either way."""
    closed = mb.load(ROBOTS / "cassie.xml")
    assert [c.kind for c in closed.topology.constraints] == ["spherical"] * 4
    assert "closed rigidly: connect of 'left-plantar-rod' with 'left-foot'" in closed.report
    system = mb.load(ROBOTS / "cassie.xml", loops="open")
    assert system.constraint_names == () and system.nv == closed.nv
    assert len(reported(system, 'loops="open", left out: connect of ')) == 4
    trees = [mb.load(ROBOTS / "hopper.xml", loops=loops) for loops in ("open", "closed")]
    jax.tree.map(np.testing.assert_array_equal, *trees)


def test_loops_that_are_switched_off_are_no_loops(write):
    two, weld = body("a", HINGE) + body("b"), '<weld name="w" body1="a" body2="b" active="false"/>'
    system = mb.load(write(two, equality=weld))
    assert reported(system, "weld equality 'w' is switched off in the file: left out")
    path = write(two, equality=weld.replace(' active="false"', ""))
    assert mb.load(path).constraint_names == ("w",)
    off = '<option><flag equality="disable"/></option>'
    assert reported(mb.load(write(two, head=off, equality=weld)), "switched off in the file: equality")


def test_joints_that_an_equality_locks_are_named(write):
    """A lock is no coupling: the joint stays free, which the report and a warning say."""
    path = write(body("a", HINGE), equality='<joint name="l" joint1="j"/>')
    with pytest.warns(UserWarning, match="model.xml is loaded, but:\n") as caught:
        system = mb.load(path)
    text = "joint equality 'l' holds 'j' at one value: not taken over, it moves"
    assert len(caught) == 1 and system.nv == 1
    assert reported(system, text) and text in str(caught[0].message)


def test_couplings_in_any_order_have_independent_leaders():
    """b = 2 a + 1, c = 3 d, then b = c - 1, e = a^2 - c: all follow one, whatever the order of the lines."""
    lines = [("b", "a", [1, 2]), ("c", "d", [0, 3]), ("b", "c", [-1, 1]), ("e", "a", [0.5, 0, 1])]
    for order in ([0, 1, 2, 3], [2, 1, 3, 0], [3, 1, 2, 0], [0, 2, 3, 1]):
        couplings = {}
        assert [couple(couplings, *lines[i][:2], Polynomial(lines[i][2])) for i in order] == [""] * 4
        heads = {leader for leader, _ in couplings.values()}
        assert len(heads) == 1 and not heads & couplings.keys()
        (head,) = heads
        values = {name: relation(0.7) for name, (_, relation) in couplings.items()} | {head: 0.7}
        for follower, leader, coefficients in lines:
            assert values[follower] == pytest.approx(Polynomial(coefficients)(values[leader]), rel=1e-14)
    assert couple(couplings, "a", "d", Polynomial([-1, 1.5])) == "says again what others say"
    assert couple(couplings, "a", "d", Polynomial([0, 1.5])) == "contradicts others: not taken over"
    assert (
        couple(couplings, "e", "z", Polynomial([0, 1]))
        == "ties a joint that follows another on a curve: not taken over"
    )
    held = {"p": ("q", Polynomial([1.0]))}
    assert couple(held, "p", "r", Polynomial([0, 1])).startswith("ties a joint that others hold at one value")


def test_curved_equality_against_mujoco(write):
    """k - 0.2 = 0.1 + x - 0.5 x^2 + 0.3 x^4, x = j - 0.4: G^T M G and the follower's own acceleration, by hand."""
    joints = body("a", HINGE.replace("/>", ' ref="0.4"/>'), body("b", HINGE.replace('"j"', '"k" ref="0.2"')))
    equality = '<joint joint1="k" joint2="j" polycoef="0.1 1 -0.5 0 0.3"/>'
    path = write(joints, head='<compiler angle="radian"/>', equality=equality, actuator='<motor joint="k" gear="2"/>')
    file = mb.load_mjcf(path)
    system = file.system
    model = mujoco.MjModel.from_xml_path(str(path))
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    data, q, v = mujoco.MjData(model), 1.1, 0.7
    x = q - 0.4
    slope, curvature = 1 - x + 1.2 * x**3, -1 + 3.6 * x**2
    data.qpos[:] = q, 0.2 + 0.1 + x - 0.5 * x**2 + 0.3 * x**4
    data.qvel[:] = v, slope * v
    data.ctrl[:] = 0.6
    mujoco.mj_forward(model, data)
    M, G = np.zeros((2, 2)), np.array([1.0, slope])
    for row, unit in zip(M, np.eye(2), strict=True):
        mujoco.mj_mulM(model, data, row, unit)
    forces = np.array([0.3, 0.0]) + data.qfrc_actuator - data.qfrc_bias - M @ [0.0, curvature * v * v]
    tau = 0.3 + file.actuators(system, jnp.array([q]), jnp.array([v]), jnp.array([0.6]))
    a = mb.forward_dynamics(system, jnp.array([q]), jnp.array([v]), tau)
    np.testing.assert_allclose(a, [(G @ forces) / (G @ M @ G)], rtol=1e-12)
    assert reported(system, "joint equality eliminated, exact and not soft: 'k' = ")


def test_mimic_independent(write):
    joints = body("a", HINGE, body("b", HINGE.replace('"j"', '"k"')))
    path = write(joints, equality='<joint joint1="k" joint2="j" polycoef="0.5 -2 0 0 0"/>')
    system = mb.load(path, mimic="independent")
    assert system.nv == 2 and reported(system, "mimic=\"independent\": 'k' stays free of -2.0 * 'j' + 0.5")
    system = mb.load(path)
    assert system.joint_names == ("j",)
    assert reported(system, "joint equality eliminated, exact and not soft: 'k' = -2.0 * 'j' + 0.5")


# ---------------------------------------------------------------- what is read


def test_numbers_of_joints(write):
    inside = body(
        "a",
        '<joint name="s" type="slide" axis="0 3 4" range="-0.5 0.25" stiffness="7" springref="0.1" damping="2" '
        'frictionloss="0.3" armature="0.4" actuatorfrcrange="-5 8"/>' + BALL,
    )
    system = mb.load(write(inside))
    numbers = ("lower", "upper", "stiffness", "rest", "damping", "friction", "armature", "effort")
    np.testing.assert_allclose(
        [float(system.get(f"s.{number}")) for number in numbers], [-0.5, 0.25, 7, 0.1, 2, 0.3, 0.4, 8], rtol=1e-14
    )
    np.testing.assert_allclose(system.get("s.axis"), [0, 0.6, 0.8], rtol=1e-15)
    assert system.joint("ball").kind == "spherical"
    assert reported(system, "frictionloss becomes smooth dry friction, friction * tanh(v / friction_speed)")
    assert reported(system, "recorded, without acting by themselves: limits of 1 joint")
    assert reported(system, "1 slide, 1 ball; 1 with damping, 1 with dry friction, 1 with armature, 1 with springs")


def test_flags_switch_forces_off(write):
    passive = ("damper", "spring") if hasattr(mujoco.mjtDisableBit, "mjDSBL_SPRING") else ("passive",)
    flags = " ".join(f'{kind}="disable"' for kind in ("gravity", *passive, "frictionloss"))
    flags = f'<option gravity="0 0 -5"><flag {flags}/></option>'
    system = mb.load(write(body("a", HINGE.replace("/>", ' stiffness="1" damping="1" frictionloss="1"/>')), head=flags))
    np.testing.assert_array_equal(system.gravity, np.zeros(3))
    for number in ("stiffness", "damping", "friction"):
        assert float(system.get(f"j.{number}")) == 0.0
    assert reported(system, "switched off in the file: damper, frictionloss, gravity, spring")


def test_defaults_includes_and_inertia_of_geoms():
    """A class's capsule of density 700, its mass by hand; the floater comes from an included file."""
    system = mb.load(ZOO)
    length = np.linalg.norm([0.1, 0.05, -0.4])
    capsule = 700 * (np.pi * 0.04**2 * length + 4 / 3 * np.pi * 0.04**3)
    assert float(system.get("boom.mass")) == pytest.approx(capsule, rel=1e-12)
    np.testing.assert_allclose(system.get("boom.com"), [0.05, 0.025, -0.2], rtol=1e-12)
    assert system.joint("floater").kind == "free"


def test_what_is_left_out_is_named(write):
    inside = (
        body(
            "a",
            "<freejoint/>" + body("b", HINGE + '<site name="s"/>' + body("c", BALL.replace("/>", ' range="0 1"/>'))),
        )
        + '<body name="hand" mocap="true"><geom size="0.1"/></body><camera/><light/>'
    )
    tendon = '<fixed name="string" range="0 1"><joint joint="j" coef="1"/></fixed>'
    sensors = '<jointpos joint="j"/><jointvel joint="j"/><gyro site="s"/>'
    contact = '<pair geom1="g" geom2="h"/>'
    inside = inside.replace("<geom ", '<geom name="g" ', 1) + '<geom name="h" size="0.1"/>'
    system = mb.load(write(inside, tendon=tendon, sensor=sensors, contact=contact))
    for text in (
        "not taken over, angle limits of ball joints: 'ball'",
        "mocap bodies stand fixed where the file has them: 'hand'",
        "not taken over, contact: 5 geoms that can touch, 1 explicit pair",
        "not taken over, limits of tendons: 'string'",
        "not taken over, sensors: 1 jointpos, 1 jointvel, 1 gyro",
        "not taken over, time step 0.002 s and integrator EULER: see `simulate`",
        "ignored, no part of the dynamics: 1 camera, 1 light",
    ):
        assert reported(system, text), text


def test_forces_that_are_left_out_warn(write):
    fluid = '<option density="1.2" viscosity="0.1"/>'
    inside = body("a", '<joint name="f" type="free" armature="1"/>', body("b", HINGE)).replace(
        "<body ", '<body gravcomp="1" ', 1
    )
    tendon = '<fixed name="string" stiffness="2" damping="1"><joint joint="j" coef="1"/></fixed>'
    with pytest.warns(UserWarning) as caught:
        system = mb.load(write(inside, head=fluid, tendon=tendon))
    for text in (
        "not taken over, stiffness of tendons: tendons 'string'",
        "not taken over, damping of tendons: tendons 'string'",
        "not taken over, gravity compensation: bodies 'a'",
        "not taken over, forces of the fluid around: density 1.2 kg/m^3, viscosity 0.1 Pa s",
        "armature of free joints acts on their velocities in body axes, not in world axes: 'f'",
    ):
        assert text in str(caught[0].message) and reported(system, text), text


def test_shared_robots_do_not_warn():
    """Nothing of these two changes their free motion: their tendons have limits only, their contacts are separate."""
    for name in ("humanoid", "ant"):
        assert mb.load(ROBOTS / f"{name}.xml").nv


# ---------------------------------------------------------------- keyframes and the command line


def test_keyframes_are_in_our_layout():
    """zoo.xml's floater: qpos 1 2 3 0.6 0 0.8 0, qvel 1..6, so R turns by 2 atan(0.8 / 0.6) about y."""
    file = mb.load_mjcf(ZOO)
    assert list(file.keyframes) == ["ready", "key1"]
    ready, at = file.keyframes["ready"], file.system.v_slice("floater")
    assert float(ready.time) == 1.5 and ready.q.shape == (file.system.nq,) and ready.v.shape == (file.system.nv,)
    np.testing.assert_allclose(ready.q[file.system.q_slice("floater")], [0.6, 0, 0.8, 0, 1, 2, 3], atol=1e-15)
    c, s = 0.6**2 - 0.8**2, 2 * 0.6 * 0.8
    np.testing.assert_allclose(ready.v[at], [4, 5, 6, c * 1 - s * 3, 2, s * 1 + c * 3], atol=1e-14)
    np.testing.assert_array_equal(ready.ctrl, np.arange(1.0, 12.0))
    np.testing.assert_allclose(file.keyframes["key1"].q, file.system.neutral_q(), atol=1e-15)
    assert reported(file.system, "keyframe 'ready' has 'right' at -0.01, where it would follow with 0.01")


def test_command_line_reads_mjcf(tmp_path, capsys):
    assert cli.main(["info", str(ROBOTS / "hopper.xml")]) == 0
    shown = capsys.readouterr().out
    assert "4 moving bodies, 4 links, 15.82 kg" in shown and "rootz" in shown and "not taken over, contact" in shown
    assert cli.main(["info", str(ROBOTS / "cassie.xml")]) == 0
    assert cli.main(["info", str(ROBOTS / "cassie.xml"), "--loops", "open"]) == 0
    out = tmp_path / "run.npz"
    assert cli.main(["simulate", str(ROBOTS / "hopper.xml"), "--duration", "0.01", "--out", str(out), "--x64"]) == 0
    with np.load(out) as saved:
        assert saved["q"].shape == (1, 11, 6) and list(saved["joint_names"])[1] == "rootz"
        assert abs(saved["q"][0, 0, 1] - 1.25) < 1.2, "starts about the home pose"


def test_without_mujoco_the_error_says_what_to_install(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ImportError, match=r"Reading 'model.xml' needs MuJoCo's compiler: pip install 'jaxmbd\[mjcf\]'"):
        mb.load(write(body("a", HINGE)))


def test_gradients_reach_every_number():
    """The system of a file is as any other: the energy's gradient in masses, in frames with `ref`, springs and home."""

    def energy(system):
        return sum(mb.energy(system, system.neutral_q() + 0.1, jnp.ones(system.nv)))

    system = mb.load(ROBOTS / "hopper.xml")
    gradient = jax.jit(jax.grad(energy))(system.replace({"leg_joint.stiffness": 3.0}))
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(gradient))
    weight = 9.81 * float(system.mass)
    np.testing.assert_allclose(gradient.get("rootz.home"), weight, rtol=1e-12)
    np.testing.assert_allclose(gradient.get("rootz.in_child.position"), [0.0, 0.0, -weight], atol=1e-9)
    np.testing.assert_allclose(gradient.get("leg_joint.stiffness"), 0.1**2 / 2, rtol=1e-12)
    np.testing.assert_allclose(gradient.get("leg_joint.rest"), -0.3, rtol=1e-12)
