"""Published benchmark problems, simulated by the fourth-order Lie-group Runge-Kutta method.

Tolerance: on y' = i w y the classical method errs by the phase w t (w h)^4 / 120 [rad]. With w the fastest rate of the
problem, `phase_error` bounds every error when multiplied by the amplitude of the quantity; where nearby motions
depart from one another the factor `growth` says by how much. References are good to 1e-11 and better.

All runs take the same number of steps, so that each mechanism is compiled once.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import models

FOLDER = Path(__file__).parent / "data" / "benchmarks"
STEPS = 5000
ROUNDING = 1e-11  # of the reference digits and of 20,000 evaluations in float64


def load(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def run(system, q, v, duration):
    q, v = jnp.asarray(q, float), jnp.asarray(v, float)
    return mb.simulate(system, q, v, duration=duration, dt=duration / STEPS, stepper=mb.RungeKuttaMuntheKaas4())


def table(expected, duration):
    """Rows of a table up to a time, and the instants of a run that they belong to."""
    rows = np.array([row for row in expected["table"] if row[0] <= duration])
    at = np.rint(rows[:, 0] * STEPS / duration).astype(int)
    np.testing.assert_allclose(at * duration / STEPS, rows[:, 0], rtol=1e-12)
    return rows, at


def phase_error(rate, duration):
    return rate * duration * (rate * duration / STEPS) ** 4 / 120


def matches(actual, expected, rate, duration, amplitude, growth=1.0):
    """Equal within the error bound of the method, which itself is small."""
    bound = growth * phase_error(rate, duration)
    assert bound < 1e-5
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=amplitude * bound + ROUNDING)


def same_attitude(actual, expected):
    """Quaternions with the sign of the expected ones: q and -q are one attitude."""
    return actual * np.sign(np.sum(actual * expected, -1, keepdims=True))


def rotations(quaternions):
    w, x, y, z = np.moveaxis(quaternions, -1, 0)
    rows = [
        [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1))


@pytest.mark.slow
def test_simple_pendulum_of_the_iftomm_library():
    """A01: released at rest from the horizontal; a positive angle turns towards -x."""
    rows, at = table(load("iftomm_a01_simple_pendulum")["expected"], 10.0)
    run_ = run(models.pendulum(), [np.pi / 2], [0.0], 10.0)
    q, v = np.asarray(run_.q)[at, 0], np.asarray(run_.v)[at, 0]
    x, y = -np.sin(q), -np.cos(q)
    fastest = np.sqrt(2 * 9.81)  # at the lowest point
    matches(np.stack([x, y, y * v, -x * v], 1), rows[:, 1:], fastest, 10.0, amplitude=fastest)
    energy = 9.81 * -np.cos(np.asarray(run_.q)[:, 0]) + np.asarray(run_.v)[:, 0] ** 2 / 2
    assert np.abs(energy).max() < 5e-5  # the drift that the library allows [J]; it starts at zero


@pytest.mark.parametrize(
    ("case", "duration", "rate", "amplitude", "growth"),
    [
        ("regular_small", 10.0, np.sqrt(9.81 * (2 + np.sqrt(2))), 1.1, 1.0),  # the faster normal mode
        ("large_chaotic", 5.0, 7.1, 7.1, 10.0),  # the reference's own error estimate grows tenfold until t = 5
    ],
)
def test_double_pendulum(case, duration, rate, amplitude, growth):
    """Absolute angles from the downward vertical."""
    expected = load("double_pendulum_point_masses")["expected"][case]
    rows, at = table(expected, duration)
    one, two, *_ = expected["initial"]
    run_ = run(models.double_pendulum(), [one, two - one], [0.0, 0.0], duration)
    angles, rates = np.cumsum(np.asarray(run_.q), 1), np.cumsum(np.asarray(run_.v), 1)
    matches(np.concatenate([angles[at], rates[at]], 1), rows[:, 1:], rate, duration, amplitude, growth)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["undamped", "damped", "undamped_spinning"])
def test_furuta_pendulum(case):
    """The pendulum falls from near the upright and swings at up to 9 rad/s."""
    benchmark = load("furuta_pendulum")
    expected, p = benchmark["expected"][case], benchmark["parameters_SI"]
    system = models.furuta(
        p["L1"],
        (p["l1"], p["l2"]),
        (p["m1"], p["m2"]),
        (p["J1_com_transverse"], p["J2_com_transverse"]),
        (p["b1"], p["b2"]) if case == "damped" else (0.0, 0.0),
    )
    rows, at = table(expected, 10.0)
    run_ = run(system, expected["initial"][:2], expected["initial"][2:], 10.0)
    states = np.concatenate([run_.q, run_.v], 1)
    matches(states[at], rows[:, 1:], 9.1, 10.0, amplitude=9.1)
    if case != "damped":
        t1, t2, w1, w2 = states.T
        coupling, inner = p["m2"] * p["L1"] * p["l2"], p["J2_com_transverse"] + p["m2"] * p["l2"] ** 2
        outer = p["J1_com_transverse"] + p["m1"] * p["l1"] ** 2 + p["m2"] * p["L1"] ** 2
        vertical = (outer + inner * np.sin(t2) ** 2) * w1 + coupling * np.cos(t2) * w2
        np.testing.assert_allclose(vertical, vertical[0], rtol=0, atol=outer * 9.1 * phase_error(9.1, 10.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "duration", "rate", "growth"),
    [
        ("euler_free_rotation", 20.0, 1.1, 1.0),
        # beside the saddle of the intermediate axis errors grow by up to 10 / 0.01, the ratio of rate and offset
        ("dzhanibekov_intermediate_axis", 5.0, 10.0, 1e3),
    ],
)
def test_torque_free_rotation(name, duration, rate, growth):
    benchmark = load(name)
    moments = np.array(benchmark["parameters_SI"]["J_principal"])
    rows, at = table(benchmark["expected"], duration)
    start = benchmark["initial_state"]
    run_ = run(
        models.rigid_body(inertia=moments), start["quat_wxyz"] + [0] * 3, start["omega_body"] + [0] * 3, duration
    )
    attitude, omega = np.asarray(run_.q)[:, :4], np.asarray(run_.v)[:, :3]
    matches(omega[at], rows[:, 1:4], rate, duration, rate, growth)
    matches(same_attitude(attitude[at], rows[:, 4:]), rows[:, 4:], rate, duration, 1.0, growth)
    # invariants do not feel the departure along the motion
    spin = np.einsum("nij,nj->ni", rotations(attitude), moments * omega)
    size = rate * moments.max()
    matches(spin, np.broadcast_to(benchmark["expected"]["angular_momentum_world"], spin.shape), rate, duration, size)
    kinetic = np.sum(moments * omega**2, 1) / 2
    matches(kinetic, np.full(len(kinetic), benchmark["expected"]["kinetic_energy"]), rate, duration, rate * size)
    np.testing.assert_array_equal(np.asarray(run_.q)[:, 4:], 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("precession", ["slow", "fast"])
def test_heavy_symmetric_top_precesses_steadily(precession):
    """The axis keeps its angle to the vertical and goes round at the rate of the closed form."""
    benchmark = load("heavy_symmetric_top_steady_precession")
    p, expected = benchmark["parameters_SI"], benchmark["expected"]
    theta, duration = p["theta"], 0.5
    system = models.heavy_top(p["mass"], (0, 0, p["l"]), p["J_com"])
    start = np.array([np.cos(theta / 2), 0.0, np.sin(theta / 2), 0.0])
    omega = rotations(start).T @ np.array(expected[f"omega_world_{precession}"])
    run_ = run(system, start, omega, duration)
    turn = expected[f"Omega_{precession}"] * np.asarray(run_.t)
    axis = np.stack([np.sin(theta) * np.cos(turn), np.sin(theta) * np.sin(turn), np.full(len(turn), np.cos(theta))], 1)
    matches(rotations(np.asarray(run_.q))[..., 2], axis, p["w3"], duration, amplitude=1.0)
    np.testing.assert_allclose(np.asarray(run_.v)[:, 2], p["w3"], rtol=1e-13)  # no moment about the axis


@pytest.mark.slow
def test_heavy_top_of_bruels_and_cardona():
    """150 rad/s about the second axis, whose rate stays; the centre of mass follows the attitude."""
    benchmark = load("heavy_top_bruels_cardona")
    p, duration = benchmark["parameters_SI"], 0.5
    rows, at = table(benchmark["expected"], duration)
    system = models.heavy_top(p["mass"], p["X_com_body"], p["J_com_principal"], p["gravity"])
    run_ = run(system, [1, 0, 0, 0], benchmark["initial_state"]["omega_body"], duration)
    attitude, omega = np.asarray(run_.q), np.asarray(run_.v)
    matches(same_attitude(attitude[at], rows[:, 1:5]), rows[:, 1:5], 150.0, duration, amplitude=1.0)
    matches(omega[at], rows[:, 5:8], 150.0, duration, amplitude=150.0)
    np.testing.assert_allclose(omega[:, 1], 150.0, rtol=1e-12)
    R = rotations(attitude[at])
    com = R @ np.array(p["X_com_body"])
    matches(com, rows[:, 8:11], 150.0, duration, amplitude=1.0)
    matches(np.cross((R @ omega[at][..., None])[..., 0], com), rows[:, 11:14], 150.0, duration, amplitude=150.0)
