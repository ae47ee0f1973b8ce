"""Passerello & Huston's assembled equations integrated by the classical fourth-order Runge-Kutta method.

A(x) x'' = f(x, x') + F in the report's 14 coordinates (1972, Eqs. 3.26-3.30), stepped by a few lines of NumPy: against
the golden motion of their first problem, which came from another integrator, and against `simulate`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_machines import golden, manipulator

import jaxmbd as mb


@functools.cache
def assembled():
    """A and -f, batched."""
    system = manipulator()
    return jax.jit(jax.vmap(lambda x, speed: (mb.mass_matrix(system, x), mb.bias_force(system, x, speed))))


def classical(acceleration, x, speed, duration, steps):
    """Ends of runs of the classical method (a batch of them) for x'' = acceleration(t, x, x')."""
    h = duration / steps
    for i in range(steps):
        t = i * h
        k1, l1 = speed, acceleration(t, x, speed)
        k2, l2 = speed + h / 2 * l1, acceleration(t + h / 2, x + h / 2 * k1, speed + h / 2 * l1)
        k3, l3 = speed + h / 2 * l2, acceleration(t + h / 2, x + h / 2 * k2, speed + h / 2 * l2)
        k4, l4 = speed + h * l3, acceleration(t + h, x + h * k3, speed + h * l3)
        x, speed = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), speed + h / 6 * (l1 + 2 * l2 + 2 * l3 + l4)
    return x, speed


@pytest.mark.contract("S5-26")
def test_first_problem_by_classical_runge_kutta():
    """Arms on their laws, base free (3.30): its golden motion, and an error that falls with the fourth power."""
    case = golden()["mixed_chosen_1"]
    start, end = (np.radians(case["inputs"][f"joint_angles_{k}_deg"]) for k in ("start", "end"))
    period, samples = case["inputs"]["T"], case["expected"]["samples"]

    def arms(t):
        """Angles, speeds and accelerations of Eq. 5.1."""
        part, rate = t / period, 2 * np.pi / period
        law = (part - np.sin(2 * np.pi * part) / (2 * np.pi), (1 - np.cos(2 * np.pi * part)) / period)
        return tuple((end - start) * x for x in (*law, rate / period * np.sin(2 * np.pi * part)))

    def acceleration(t, base, speed):
        angle, turning, change = arms(t)
        x, v = np.concatenate([base[0], start + angle]), np.concatenate([speed[0], turning])
        A, rest = (np.asarray(part[0]) for part in assembled()(x[None], v[None]))
        return np.linalg.solve(A[:6, :6], -rest[:6] - A[:6, 6:] @ change)[None]

    exact = np.concatenate([samples[-1]["base_position_in"], samples[-1]["base_bryant_rad"]])
    errors = []
    for steps in (16, 32):
        x, speed = classical(acceleration, np.zeros((1, 6)), np.zeros((1, 6)), period, steps)
        errors.append(np.abs(x[0] - exact).max())
    assert errors[1] < 2e-4 and errors[1] > 1e-6  # golden to 1e-7
    assert abs(np.log2(errors[0] / errors[1]) - 4) < 0.2, errors


@pytest.mark.slow
@pytest.mark.contract("S5-26")
def test_the_library_takes_the_same_steps():
    """Free motion under constant joint forces from three golden states: coordinates add, so the methods are the same.

    Steps of 10 and 5 ms beside 2.5 ms: the differences shrink sixteen times.
    """
    cases = [golden()[f"forward_{n}"] for n in range(3)]
    x, speed = (np.array([case["inputs"][key] for case in cases]) for key in ("q", "qd"))
    forces = np.array([[0.0] * 6 + case["inputs"]["joint_generalized_forces"] for case in cases])

    def acceleration(t, x, speed):
        A, rest = (np.asarray(part) for part in assembled()(x, speed))
        return np.linalg.solve(A, (forces - rest)[..., None])[..., 0]

    @jax.jit
    @jax.vmap
    def simulated(x, speed, forces):
        run = mb.simulate(
            manipulator(), x, speed, duration=0.08, dt=1e-2, control=jnp.tile(forces, (8, 1)), record=(),
            stepper=mb.RungeKuttaMuntheKaas4(),
        )  # fmt: skip
        return run.end.q, run.end.v

    ends = [np.concatenate(classical(acceleration, x, speed, 0.08, steps), 1) for steps in (8, 16, 32)]
    ours = np.concatenate(simulated(x, speed, forces), 1)
    np.testing.assert_allclose(ours, ends[0], rtol=1e-10, atol=1e-10)
    gaps = np.abs(ends[0] - ends[1]).max(), np.abs(ends[1] - ends[2]).max()
    assert abs(np.log2(gaps[0] / gaps[1]) - 4) < 0.2, gaps
    assert np.abs(ends[0][:, :14] - x).max() > 0.5
