"""Actuators: forces by hand, at frames against MuJoCo, in a simulation, and their gradients; what is not taken over."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mjcf_text import BALL, HINGE, ROBOTS, body, write_mjcf
from mujoco_layout import layout_of_model

import jaxmbd as mb

mujoco = pytest.importorskip("mujoco")
pytestmark = pytest.mark.external

SLIDE = '<joint name="s" type="slide" axis="1 0 0" ref="0.5"/>'


@pytest.fixture
def write(tmp_path):
    return functools.partial(write_mjcf, tmp_path)


def test_motors_by_hand():
    """Hopper: gear 200, controls clipped to [-1, 1], in the file's order."""
    file = mb.load_mjcf(ROBOTS / "hopper.xml")
    system, actuators = file.system, file.actuators
    assert actuators.names == ("actuator0", "actuator1", "actuator2") and actuators.nu == 3
    tau = actuators(system, system.neutral_q(), jnp.zeros(system.nv), jnp.array([0.5, -0.1, 7.0]))
    np.testing.assert_allclose(tau, [0, 0, 0, 100, -20, 200], rtol=1e-14)


def test_servo_by_hand_and_in_a_simulation(write):
    """f = kp (ctrl - q) - kv v on a slide of 2 kg: a damped oscillator, whose motion is known."""
    inside = f'<body name="a">{SLIDE}<geom size="0.1" mass="2"/></body>'
    file = mb.load_mjcf(write(inside, actuator='<position name="p" joint="s" kp="50" kv="4"/>'))
    system, actuators = file.system, file.actuators
    tau = actuators(system, jnp.array([0.2]), jnp.array([0.3]), jnp.array([1.0]))
    np.testing.assert_allclose(tau, [50 * (1.0 - 0.2) - 4 * 0.3], rtol=1e-14)
    control = actuators.control(system, [1.0])
    end = mb.simulate(
        system, system.neutral_q(), duration=0.5, dt=1e-3, control=control, stepper=mb.RungeKuttaMuntheKaas4()
    )
    decay, rate = 4 / (2 * 2), np.sqrt(50 / 2 - 1)
    expected = 1 - 0.5 * np.exp(-decay * 0.5) * (np.cos(rate * 0.5) + decay / rate * np.sin(rate * 0.5))
    np.testing.assert_allclose(end.q[-1], [expected], rtol=1e-9)


def test_control_by_a_function_and_its_gradient(write):
    """Bias, gain and gear are leaves: forward and reverse mode agree with the formula."""
    inside = f'<body name="a">{SLIDE}<geom size="0.1" mass="2"/></body>'
    file = mb.load_mjcf(write(inside, actuator='<position joint="s" kp="50" kv="4" gear="3"/>'))
    system, q, v = file.system, jnp.array([0.2]), jnp.array([0.3])

    def force(actuators):
        return actuators.control(system, lambda t, q, v: jnp.array([2.0 * t]))(0.35, q, v)[0]

    # f = 50 c - 50 l - 4 l', l = 3 q, tau = 3 f
    np.testing.assert_allclose(force(file.actuators), 3 * (50 * 0.7 - 50 * 3 * 0.2 - 4 * 3 * 0.3), rtol=1e-14)
    reverse, forward = jax.grad(force)(file.actuators), jax.jacfwd(force)(file.actuators)
    np.testing.assert_allclose(reverse.gear[0, 0], 50 * 0.7 - 2 * 3 * (50 * 0.2 + 4 * 0.3), rtol=1e-13)
    np.testing.assert_allclose(reverse.gain[0], 3 * 0.7 * np.array([1, 0.6, 0.9]), rtol=1e-13)
    np.testing.assert_allclose(reverse.bias[0], 3 * np.array([1, 0.6, 0.9]), rtol=1e-13)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), reverse, forward)


def test_gradients_are_finite_at_a_ball_joint_at_rest(write):
    """The length of an actuator on a ball joint is a rotation vector: identity, half a turn, and no speed."""
    path = write(body("a", BALL), actuator='<position joint="ball" kp="2" kv="1" gear="1 2 3"/>')
    file = mb.load_mjcf(path)
    turns = jnp.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [-1.0, 0, 0, 0]])
    tau = jax.jit(lambda q: file.actuators(file.system, q, jnp.zeros(3), jnp.ones(1)))
    for mode in (jax.jacfwd, jax.jacrev):
        assert bool(jnp.all(jnp.isfinite(jax.vmap(mode(tau))(turns))))


@pytest.mark.slow
@pytest.mark.parametrize("mimic", ["eliminate", "independent"])
def test_frames_against_mujoco(write, mimic):
    """Thrusters: a wrench at a site in the site's axes, also beside an eliminated coupling and a bounded joint."""
    places = itertools.product((-0.2, 0.2), (-0.3, 0.3))
    sites = "".join(f'<site name="r{i}" pos="{x} {y} 0.1" euler="{20 * i} 10 0"/>' for i, (x, y) in enumerate(places))
    arm = body("b", '<joint name="j" axis="0 1 0" actuatorfrcrange="-0.5 0.4"/><site name="tip" pos="0 0 1"/>')
    other = body("c", HINGE.replace('"j"', '"k"'))
    actuators = "".join(f'<motor site="r{i}" gear="0 0 1 0 0 {(-1) ** i * 0.1}"/>' for i in range(4))
    actuators += '<general site="tip" gear="1 2 3 4 5 6" biastype="affine" biasprm="0.1 0 -0.2"/><motor joint="j"/>'
    equality = '<joint joint1="k" joint2="j" polycoef="0 -2 0 0 0"/>' if mimic == "eliminate" else ""
    inside = body("a", '<freejoint name="f"/>', sites, arm, other)
    path = write(inside, equality=equality, actuator=actuators)
    file, every = mb.load_mjcf(path, mimic=mimic), mb.load(path, mimic="independent")
    model = mujoco.MjModel.from_xml_path(str(path))
    if mimic == "eliminate":
        model.jnt_actfrclimited[:] = 0  # where MuJoCo bounds a joint before a follower's share is added
        free = jnp.array([[-jnp.inf, jnp.inf]])
        file = dataclasses.replace(file, actuators=dataclasses.replace(file.actuators, joint_range=free))
    layout, data = layout_of_model(every, model, every.joint_names), mujoco.MjData(model)
    G = np.eye(8) if mimic == "independent" else np.vstack([np.eye(7), [0, 0, 0, 0, 0, 0, -2.0]])
    tau = jax.jit(file.actuators.__call__)
    random = np.random.default_rng(2)
    for _ in range(3):
        data.qpos[:], data.ctrl[:] = random.normal(size=model.nq), random.normal(size=model.nu)
        mujoco.mj_normalizeQuat(model, data.qpos)
        if mimic == "eliminate":
            data.qpos[8] = -2 * data.qpos[7]
        v = random.normal(size=G.shape[1])
        data.qvel[:] = layout.T(data.qpos) @ G @ v
        mujoco.mj_forward(model, data)
        expected = G.T @ layout.T(data.qpos).T @ data.qfrc_actuator
        actual = tau(file.system, layout.q(data.qpos)[: file.system.nq], v, np.array(data.ctrl))
        np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-12)


def test_armature_and_damping_of_actuators(write):
    """Where an actuator has rotor inertia and damping, they stand at its joint, by gear squared."""
    actuator = '<motor name="m" joint="j" gear="3" armature="0.5" damping="0.7"/>'
    try:
        mujoco.MjModel.from_xml_path(str(write(body("a", HINGE), actuator=actuator)))
    except ValueError:
        pytest.skip("this MuJoCo has no armature of actuators")
    path = write(body("a", HINGE), actuator=actuator)
    system = mb.load(path)
    assert float(system.get("j.armature")) == pytest.approx(4.5) and float(system.get("j.damping")) == pytest.approx(
        6.3
    )
    model = mujoco.MjModel.from_xml_path(str(path))
    data = mujoco.MjData(model)
    data.qvel[:] = 2.0
    mujoco.mj_forward(model, data)
    M = np.zeros(1)
    mujoco.mj_mulM(model, data, M, np.ones(1))
    np.testing.assert_allclose(mb.mass_matrix(system, jnp.zeros(1))[0], M, rtol=1e-12)
    np.testing.assert_allclose(-system.get("j.damping") * 2.0, data.qfrc_passive[0], rtol=1e-12)


@pytest.mark.slow
def test_lagging_actuators_against_mujoco(write):
    """A filtered motor beside a plain one: steps of the activation and the force of every instant, held controls."""
    inside = body("a", HINGE, body("b", HINGE.replace('"j"', '"k"')))
    actuator = (
        '<general name="f" joint="j" dyntype="filterexact" dynprm="0.03" gainprm="7" ctrlrange="-1 1" '
        'forcerange="-6 6"/>'
        '<motor name="m" joint="k" gear="2"/>'
    )
    path = write(inside, actuator=actuator)
    file, h = mb.load_mjcf(path), 2e-3
    np.testing.assert_allclose(file.actuators.lag, [0.03, 0.0])
    model = mujoco.MjModel.from_xml_path(str(path))
    model.opt.timestep, data, system = h, mujoco.MjData(model), file.system

    def ctrl(t, q, v):
        return jnp.array([3.0 * jnp.cos(10 * t), 0.2])

    run = mb.simulate(system, system.neutral_q(), duration=40 * h, dt=h, control=file.actuators.control(system, ctrl))
    for i in range(40):
        data.ctrl[:] = ctrl(i * h, None, None)
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(run.tau[i], data.qfrc_actuator, rtol=1e-9, atol=1e-12)
        mujoco.mj_step(model, data)
    np.testing.assert_allclose(run.end.memory, [data.act[0], 0.2], rtol=1e-9)
    # a plain call says what the actuators do once they have followed
    tau = file.actuators(system, system.neutral_q(), jnp.zeros(2), jnp.array([5.0, 0.2]))
    np.testing.assert_allclose(tau, [6.0, 0.4], rtol=1e-14)


def test_actuators_that_are_left_out(write):
    inside = body("a", HINGE + '<site name="p"/>') + '<site name="q" pos="0 0 2"/>'
    tendon = '<spatial name="rope"><site site="p"/><site site="q"/></spatial>'
    actuator = (
        '<muscle name="m" joint="j" ctrlrange="0 1" lengthrange="0 1"/><intvelocity name="i" joint="j" kp="1" '
        'actrange="-1 1"/><general name="f" joint="j" dyntype="filter" dynprm="1" actrange="-1 1"/>'
        '<motor name="t" tendon="rope"/>'
        '<motor name="s" site="p" refsite="q"/><adhesion name="a" body="a" ctrlrange="0 1"/>'
        '<motor name="ok" joint="j"/><motor name="g" group="2" joint="j"/>'
    )
    head = '<option actuatorgroupdisable="2"/>'
    file = mb.load_mjcf(write(inside, head=head, tendon=tendon, actuator=actuator))
    assert file.actuators.names == ("ok",)
    for text in (
        "actuator 'm' is not taken over: dyntype muscle (it has an activation state)",
        "actuator 'i' is not taken over: dyntype integrator (it has an activation state)",
        "actuator 'f' is not taken over: its activation is limited, or acts early",
        "actuator 't' is not taken over: it pulls a spatial tendon",
        "actuator 's' is not taken over: transmission site with refsite",
        "actuator 'a' is not taken over: transmission body",
        "actuator 'g' is not taken over: its group 2 is switched off in the file",
    ):
        assert text in file.system.report, text
    assert mb.load_mjcf(write(inside)).actuators.nu == 0


def test_wrong_controls_and_systems():
    file = mb.load_mjcf(ROBOTS / "hopper.xml")
    system = file.system
    state = system.neutral_q(), jnp.zeros(system.nv)
    with pytest.raises(
        ValueError, match=r"ctrl has shape \(2,\); expected \(3,\), one for each of: actuator0, actuator1"
    ):
        file.actuators(system, *state, jnp.zeros(2))
    other = mb.models.rigid_body()
    with pytest.raises(KeyError, match="An actuator acts on joint 'thigh_joint', which the system does not have: root"):
        file.actuators(other, other.neutral_q(), jnp.zeros(6), jnp.zeros(3))
