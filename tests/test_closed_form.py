"""Accelerations against equations of motion from textbooks, at random states.

Tolerance: a few dozen roundings times the condition of the mass matrix, which is below 1e3 here; all numbers are of
order 1 to 100.
"""

import functools

import jax
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import models

COUNT, G = 32, 9.81
accelerations = jax.jit(jax.vmap(mb.forward_dynamics, in_axes=(None, 0, 0, 0)))


@functools.cache
def states(nq, nv, seed=0):
    """Random coordinates, velocities and forces; the first coordinates may become quaternions."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-np.pi, np.pi, (COUNT, nq)), 3 * rng.normal(size=(COUNT, nv)), rng.normal(size=(COUNT, nv))


def attitudes(seed=1):
    q = np.random.default_rng(seed).normal(size=(COUNT, 4))
    return q / np.linalg.norm(q, axis=1, keepdims=True)


def agree(system, q, v, tau, expected):
    np.testing.assert_allclose(accelerations(system, q, v, tau), expected, rtol=1e-11, atol=1e-10)


def down(quaternions):
    """The downward unit vector in the axes of a body."""
    w, x, y, z = quaternions.T
    return -np.stack([2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z], 1)


def solved(M, rhs):
    return np.linalg.solve(M, rhs[..., None])[..., 0]


def test_simple_pendulum():
    """(I + m l^2) q'' = tau - m g l sin q"""
    m, l, inertia = 1.3, 0.7, 0.05
    q, v, tau = states(1, 1)
    agree(models.pendulum(m, l, inertia), q, v, tau, (tau - m * G * l * np.sin(q)) / (inertia + m * l**2))


def test_double_pendulum():
    """Lagrange's equations in the absolute angles (Hairer, Norsett & Wanner, Solving ODEs I, sec. I.2)."""
    (m1, m2), (l1, l2) = masses, lengths = (1.1, 0.8), (0.9, 0.6)
    q, v, tau = states(2, 2)
    absolute, rates = np.cumsum(q, 1), np.cumsum(v, 1)
    apart = absolute[:, 0] - absolute[:, 1]
    c, s, one = np.cos(apart), np.sin(apart), np.ones(COUNT)
    M = np.array([[(m1 + m2) * l1**2 * one, m2 * l1 * l2 * c], [m2 * l1 * l2 * c, m2 * l2**2 * one]]).transpose(2, 0, 1)
    centrifugal = m2 * l1 * l2 * s[:, None] * np.stack([-(rates[:, 1] ** 2), rates[:, 0] ** 2], 1)
    weight = -G * np.array([(m1 + m2) * l1, m2 * l2]) * np.sin(absolute)
    applied = np.stack([tau[:, 0] - tau[:, 1], tau[:, 1]], 1)  # the second torque acts back on the first rod
    a = solved(M, centrifugal + weight + applied)
    agree(models.double_pendulum(masses, lengths), q, v, tau, np.stack([a[:, 0], a[:, 1] - a[:, 0]], 1))


def test_furuta_pendulum():
    """Full-inertia equations of Cazzolato & Prime (2011), with damping."""
    L, (l1, l2), (m1, m2), (J1, J2), (b1, b2) = 0.278, (0.15, 0.148), (0.3, 0.075), (0.0248, 0.00386), (1e-4, 2.8e-4)
    q, v, tau = states(2, 2, 2)
    (_, t2), (w1, w2) = q.T, v.T
    inner, outer, k = J2 + m2 * l2**2, J1 + m1 * l1**2 + m2 * L**2, m2 * L * l2
    M = np.array([[outer + inner * np.sin(t2) ** 2, k * np.cos(t2)], [k * np.cos(t2), inner + 0 * t2]])
    rhs = [
        tau[:, 0] - inner * np.sin(2 * t2) * w1 * w2 + k * np.sin(t2) * w2**2 - b1 * w1,
        tau[:, 1] + inner * np.sin(2 * t2) * w1**2 / 2 - m2 * G * l2 * np.sin(t2) - b2 * w2,
    ]
    agree(models.furuta(), q, v, tau, solved(M.transpose(2, 0, 1), np.array(rhs).T))


def test_free_body():
    """Euler's equations about the centre of mass, and Newton's in the turning axes of the body."""
    moments, mass = np.array([0.7, 1.1, 1.6]), 2.3
    position, v, tau = states(3, 6)
    q = attitudes()
    w, u = v[:, :3], v[:, 3:]
    spin = (tau[:, :3] - np.cross(w, moments * w)) / moments
    linear = tau[:, 3:] / mass + G * down(q) - np.cross(w, u)
    system = models.rigid_body(mass, moments, gravity=models.GRAVITY)
    agree(system, np.concatenate([q, position], 1), v, tau, np.concatenate([spin, linear], 1))


@pytest.mark.parametrize("com", [(0.0, 0.0, 0.08), (0.0, 1.0, 0.0)])
def test_heavy_top(com):
    """J_O w' = -w x J_O w + c x m g + tau about the fixed point O, in body axes."""
    moments, mass, c = np.array([0.3, 0.4, 0.5]), 1.5, np.array(com)
    J = np.diag(moments) + mass * (c @ c * np.eye(3) - np.outer(c, c))
    q, (_, w, tau) = attitudes(3), states(3, 3)
    moment = tau - np.cross(w, w @ J) + np.cross(c, mass * G * down(q))
    agree(models.heavy_top(mass, com, moments), q, w, tau, np.linalg.solve(J, moment.T).T)


def test_nut_on_a_vertical_thread():
    """(J + m p^2) q'' = -m g p + tau"""
    mass, J, pitch = 0.4, 0.02, 0.3
    b = mb.Builder()
    b.body("nut", mass=mass, inertia=np.diag([0.01, 0.01, J]))
    b.joint("thread", mb.screw((0.0, 0.0, 2.0), pitch), child="nut")
    q, v, tau = states(1, 1, 4)
    agree(b.build(), q, v, tau, (tau - mass * G * pitch) / (J + mass * pitch**2))
