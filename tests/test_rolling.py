"""Non-holonomic constraints: skate, discs, sleigh, robot, ball, bicycle.

`slaats_rolling.json`: a closed form (skate) and trajectories from Kane's equations and, independently, from reduced
angular-momentum equations (discs). The bicycle: Meijaard, Papadopoulos, Ruina & Schwab (2007), Proc. R. Soc. A 463,
Tables 1 and 2.
"""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb

CASES = {
    c["id"]: c
    for c in json.loads((Path(__file__).parent / "data" / "golden" / "slaats_rolling.json").read_text())["cases"]
}


@functools.cache
def skate():
    b = mb.Builder()
    b.body("skate", 1.0, inertia=np.eye(3))
    b.joint("plane", mb.planar(), child="skate")
    b.constraint("blade", mb.knife_edge(), frames=("world", "skate"))
    return b.build()


@pytest.mark.contract("S4-10")
@pytest.mark.slow
@pytest.mark.parametrize("case", ["R1_skate_from_rest", "R2_skate_with_speed"])
def test_skate_on_an_incline(case):
    given, expected = CASES[case]["inputs"], CASES[case]["expected"]
    slope = given["g"] * np.array([np.sin(given["incline_angle"]), 0, -np.cos(given["incline_angle"])])
    inertia = np.array([1.0, 0, 0, 1.0, 0, given["inertia_about_normal"]])
    system = skate().replace({"gravity": slope, "skate.mass": given["mass"], "skate.inertia": inertia})
    traj = mb.simulate(
        system,
        jnp.zeros(3),
        jnp.array([given["v0"], 0.0, given["yaw_rate"]]),
        duration=4.0,
        dt=5e-3,
        stepper=mb.RungeKuttaMuntheKaas4(),
    )
    at = np.rint(np.array(expected["t"]) / 5e-3).astype(int)
    np.testing.assert_allclose(traj.q[at], np.stack([expected[k] for k in ("x", "y", "yaw")], 1), atol=1e-8)
    q, v = traj.q[at], traj.v[at]
    w = jax.jit(jax.vmap(mb.closure_wrenches, (None, 0, 0, None)))(system, q, v, jnp.zeros(3))["blade"]
    lateral = w.force[:, 1] * np.cos(q[:, 2]) - w.force[:, 0] * np.sin(q[:, 2])
    np.testing.assert_allclose(lateral, expected["lateral_force_on_skate"], rtol=1e-8, atol=1e-7)
    m = mb.mobility(system, q[0])
    assert (m.position, m.velocity) == (3, 2)  # freedoms of position and of motion, counted apart


@functools.cache
def disc():
    b = mb.Builder()
    b.body("disc", 1.0, inertia=np.eye(3))
    b.joint("at", mb.screw_product([mb.translational(), mb.gimbal("zxy")]), child="disc")
    b.constraint("contact", mb.rolling_disc(1.0), frames=("world", "disc"))
    return b.build()


def golden_disc(given):
    It, Ia = given["I_transverse"], given["I_axial"]
    values = {"disc.mass": given["mass"], "disc.inertia": np.array([It, 0, 0, Ia, 0, It])}
    return disc().replace(values | {"contact.radius": given["radius"], "gravity": [0, 0, -given["g"]]})


@pytest.mark.slow
@pytest.mark.parametrize("case", ["R3_disc_wobble_coin", "R4_disc_hoop"])
def test_rolling_disc(case):
    given, expected = CASES[case]["inputs"], CASES[case]["expected"]
    system = golden_disc(given)
    order = ("x", "y", "z", "yaw", "lean", "spin")
    wanted = np.stack([expected[k] for k in order], 1)
    rates = np.stack([expected[k] for k in ("xd", "yd", "yawrate", "leanrate", "spinrate")], 1)
    v0 = jnp.array([*rates[0, :2], -given["radius"] * np.sin(given["lean0"]) * rates[0, 3], *rates[0, 2:]])
    traj = mb.simulate(system, wanted[0], v0, duration=2.0, dt=2.5e-3, stepper=mb.RungeKuttaMuntheKaas4())
    at = np.rint(np.array(expected["t"]) / 2.5e-3).astype(int)
    np.testing.assert_allclose(traj.q[at], wanted, atol=2e-8)  # RK4 at 2.5 ms; 1e-8 is the file's own tolerance
    w = jax.jit(jax.vmap(mb.closure_wrenches, (None, 0, 0, None)))(system, traj.q[at], traj.v[at], jnp.zeros(6))
    np.testing.assert_allclose(w["contact"].force, expected["contact_force_on_disc_world"], atol=2e-6)
    E = jax.vmap(lambda q, v: sum(mb.energy(system, q, v)))(traj.q, traj.v)
    np.testing.assert_allclose(E, expected["energy"][0], rtol=1e-8)
    m = mb.mobility(system, jnp.asarray(wanted[0]))
    assert (m.position, m.velocity) == (5, 3)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["R6_steady_precession_coin", "R7_steady_precession_hoop"])
def test_steady_precession_of_a_disc(case):
    given, expected = CASES[case]["inputs"], CASES[case]["expected"]
    system = golden_disc(given | {"g": given.get("g", 9.81)})
    lean, r = given["lean"], given["radius"]
    q = jnp.array([0.0, 0.0, r * np.cos(lean), given["yaw"], lean, 0.0])
    v = jnp.array([*expected["centre_velocity_world"], given["yawrate"], 0.0, expected["spinrate"]])
    np.testing.assert_allclose(mb.forward_dynamics(system, q, v, jnp.zeros(6))[3:], 0.0, atol=1e-9)
    force = mb.closure_wrenches(system, q, v, jnp.zeros(6))["contact"].force
    np.testing.assert_allclose(force, expected["contact_force_on_disc_world"], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_chaplygin_sleigh():
    """Blade at a behind the centre of mass: v_dot = a w^2, (I + m a^2) w_dot = -m a v w; energy kept, w dies out."""
    m, a, I = 2.0, 0.3, 0.5
    system = skate().replace({"skate.mass": m, "skate.com": (a, 0.0, 0.0), "skate.inertia": [1.0, 0, 0, 1.0, 0, I]})
    yaw, speed, w = 0.4, 1.2, 0.8
    q, v = jnp.array([0.1, -0.2, yaw]), jnp.array([speed * np.cos(yaw), speed * np.sin(yaw), w])
    acceleration = mb.forward_dynamics(system, q, v, jnp.zeros(3))
    along = np.array([np.cos(yaw), np.sin(yaw)])
    np.testing.assert_allclose(acceleration[:2] @ along, a * w**2, rtol=1e-12)
    np.testing.assert_allclose(acceleration[2], -m * a * speed * w / (I + m * a**2), rtol=1e-12)
    traj = mb.simulate(system, q, v, duration=4.0, dt=5e-3, stepper=mb.RungeKuttaMuntheKaas4())
    E = jax.vmap(lambda q, v: sum(mb.energy(system, q, v)))(traj.q, traj.v)
    np.testing.assert_allclose(E, E[0], rtol=1e-9)
    assert abs(traj.v[-1, 2]) < 0.3 * w


@functools.cache
def two_wheel_robot():
    """Chassis on the plane, two wheels at +-0.3 m on one axle; on castors that do nothing."""
    b = mb.Builder()
    b.body("chassis", 8.0, inertia=np.diag([0.3, 0.3, 0.5]))
    b.joint("plane", mb.planar(), child="chassis", in_parent=mb.Pose((0, 0, 0.1)))
    for name, side in (("left", 0.3), ("right", -0.3)):
        b.body(name, 1.0, inertia=np.diag([0.003, 0.005, 0.003]))
        b.joint(f"{name}_axle", mb.revolute((0, 1, 0)), "chassis", name, in_parent=mb.Pose((0, side, 0)))
        b.constraint(f"{name}_contact", mb.rolling_disc(0.1), frames=("world", name))
    return b.build()


@pytest.mark.slow
def test_two_wheel_robot():
    """Straight on and on the spot in closed form; of the six rows three count (heights idle, one blade redundant)."""
    system = two_wheel_robot()
    m = mb.mobility(system, jnp.zeros(5))
    assert (m.position, m.velocity, m.rows, m.redundant) == (5, 2, 6, 3)
    torque, r, mass, spin = 0.7, 0.1, 10.0, 0.005
    a = mb.forward_dynamics(system, jnp.zeros(5), jnp.zeros(5), jnp.array([0, 0, 0, torque, torque]))
    forward = 2 * torque / r / (mass + 2 * spin / r**2)
    np.testing.assert_allclose(a, [forward, 0, 0, forward / r, forward / r], rtol=1e-11, atol=1e-12)
    a = mb.forward_dynamics(system, jnp.zeros(5), jnp.zeros(5), jnp.array([0, 0, 0, -torque, torque]))
    about = 0.5 + 2 * (0.003 + 1.0 * 0.3**2) + 2 * spin * (0.3 / r) ** 2
    turn = 2 * torque * 0.3 / r / about
    np.testing.assert_allclose(a, [0, 0, turn, -turn * 3, turn * 3], rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.contract("S1-05")
def test_ball_on_an_incline_and_users_rows():
    """A rolling ball goes down with g sin / (1 + 2/5); the same by a user's function; a moving ground by one in t."""
    slope = 9.81 * np.array([np.sin(0.3), 0.0, -np.cos(0.3)])

    def built(*constraints):
        b = mb.Builder(gravity=slope)
        b.body("ball", 1.5, inertia=0.4 * 1.5 * 0.2**2 * np.eye(3))
        b.joint("free", mb.free(), child="ball", in_parent=mb.Pose((0, 0, 0.2)))
        for i, c in enumerate(constraints):
            b.constraint(f"c{i}", c, frames=("world", "ball"))
        return b.build()

    def contact(at):  # velocity of the lowest point
        return at.velocity[1, 3:] + jnp.cross(at.velocity[1, :3], jnp.array([0.0, 0.0, -0.2]))

    def moving_ground(at):
        return contact(at) - jnp.stack([0.0 * at.t, at.t**2, 0.0 * at.t])

    expected = 9.81 * np.sin(0.3) / 1.4
    a = [
        mb.forward_dynamics(s, s.neutral_q(), jnp.zeros(6), jnp.zeros(6), t=0.5)
        for s in (
            built(mb.rolling_ball(0.2)),
            built(mb.nonholonomic(contact, rows=3)),
            built(mb.nonholonomic(moving_ground, rows=3)),
        )
    ]
    np.testing.assert_allclose(a[0], [0, expected / 0.2, 0, expected, 0, 0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(a[1], a[0], rtol=1e-12, atol=1e-12)
    # ground accelerating at 2 t = 1 along y: a ball follows with (2/5) / (1 + 2/5) of it
    np.testing.assert_allclose(a[2][4], 2 / 7 * 1.0, rtol=1e-12)


def bicycle():
    """The benchmark bicycle, x forward, z up (the paper's z points down)."""
    b = mb.Builder(gravity=(0.0, 0.0, -9.81))
    wheelbase, trail, tilt = 1.02, 0.08, np.pi / 10
    flip = np.diag([1.0, -1.0, -1.0])

    def tensor(xx, yy, zz, xz=0.0):
        return flip @ np.array([[xx, 0, xz], [0, yy, 0], [xz, 0, zz]]) @ flip

    b.body("frame", 85.0, (0.3, 0, 0.9), tensor(9.2, 11.0, 2.8, 2.4))
    b.body("fork", 4.0, (0.9, 0, 0.7), tensor(0.05892, 0.06, 0.00708, -0.00756))
    b.body("rear", 2.0, inertia=np.diag([0.0603, 0.12, 0.0603]))
    b.body("front", 3.0, inertia=np.diag([0.1405, 0.28, 0.1405]))
    b.joint("at", mb.screw_product([mb.translational(), mb.gimbal("zxy")]), child="frame")
    # steering axis through the ground at (wheelbase + trail), leaning back by the tilt; positive to the left about up
    axis = np.array([-np.sin(tilt), 0.0, np.cos(tilt)])
    pin = mb.Pose((wheelbase + trail, 0, 0))
    b.joint("steer", mb.revolute(axis), "frame", "fork", in_parent=pin, in_child=pin)
    b.joint("rear_axle", mb.revolute((0, 1, 0)), "frame", "rear", in_parent=mb.Pose((0, 0, 0.3)))
    b.joint("front_axle", mb.revolute((0, 1, 0)), "fork", "front", in_parent=mb.Pose((wheelbase, 0, 0.35)))
    b.constraint("rear_contact", mb.rolling_disc(0.3), frames=("world", "rear"))
    b.constraint("front_contact", mb.rolling_disc(0.35), frames=("world", "front"))
    return b.build()


@pytest.mark.slow
def test_benchmark_bicycle():
    """Eigenvalues of the upright motion at 0 and 5 m/s: capsize, weave and castering, to ten digits and more."""
    system = bicycle()
    expected = {  # Meijaard et al. (2007), Table 2
        0.0: [-5.53094371765393, -3.13164324790656, 3.13164324790656, 5.53094371765393],
        5.0: [-14.07838969279822, -0.32286642900409, -0.77534188219585 + 4.46486771378823j],
    }
    for speed, values in expected.items():
        v = jnp.array([speed, 0, 0, 0, 0, 0, 0, speed / 0.3, speed / 0.35])
        m = mb.mobility(system, jnp.zeros(9))
        assert (m.position, m.velocity) == (7, 3)
        found = mb.linearize(system, jnp.zeros(9), v).eigenvalues
        for value in values:
            assert np.abs(found - value).min() < 1e-9, (value, found)
