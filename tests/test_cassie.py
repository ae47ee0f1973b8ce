"""Cassie with its four rod loops closed, against Jacobians and accelerations of the rows by MuJoCo.

`golden/mjcf/cassie.json`, entry `closed_loop`. Two of its twelve rows depend on others (each plantar rod and its foot
move in one plane), and the dense solve behind the file's `qdd_constrained` and `lambda_` did not see it: multipliers of
1e14 and more, accelerations that miss the file's own equations by up to 1e9. The test therefore takes the file's
states, Jacobian J and J_dot v, and asks for the two conditions that define the motion: J a + J_dot v = 0 in the range
of J, and inertia forces that are forces of the rods alone. The file's springs and dampers are off, its armature is not.
"""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import rotation as so3

DATA = Path(__file__).parent / "data"


@jax.jit
def acceleration_and_gradient(system, q, v, tau):
    """v_dot, and the gradient of its sum by the forces and by the masses of all links."""

    def acceleration(tau, masses):
        return mb.forward_dynamics(dataclasses.replace(system, link_mass=masses), q, v, tau)

    a, pull = jax.vjp(acceleration, tau, system.link_mass)
    return a, *pull(jnp.ones_like(a))


@pytest.mark.slow
@pytest.mark.external
def test_closed_cassie():
    pytest.importorskip("mujoco")
    golden = json.loads((DATA / "golden" / "mjcf" / "cassie.json").read_text())["closed_loop"]
    system = mb.load(DATA / "robots" / "cassie.xml")
    off = {name: 0.0 * getattr(system, name) for name in ("stiffness", "damping", "friction")}
    system = dataclasses.replace(system, **off)
    checked, states = 0, []
    for state in golden["states"]:
        qpos, qvel, tau, J, rate = (np.array(state[k]) for k in ("qpos", "qvel", "tau", "J", "Jdot_v"))
        # MuJoCo's free joint: [linear in world axes, angular in body axes], x_mujoco = T x_ours
        T = np.eye(32)
        T[:6, :6] = 0.0
        T[:3, 3:6], T[3:6, :3] = so3.matrix(jnp.asarray(qpos[3:7])), np.eye(3)
        q, v, force = np.concatenate([qpos[3:7], qpos[:3], qpos[7:]]), T.T @ qvel, T.T @ tau
        a, *gradients = map(np.asarray, acceleration_and_gradient(system, q, v, force))
        states.append(((q, v, force), (a, *gradients)))
        theirs = a.copy()
        theirs[3:6] += np.cross(v[:3], v[3:6])
        U, sizes, Vt = np.linalg.svd(J @ T)
        rank = int(np.sum(sizes > 1e-9))
        assert rank == 10
        if np.abs(J @ qvel).max() < 1e-12:  # one state's velocities miss the closures by 5e-4 m/s
            checked += 1
            np.testing.assert_allclose(U[:, :rank].T @ (J @ (T @ theirs) + rate), 0.0, atol=1e-12)
        left = mb.inverse_dynamics(system, q, v, a) - force
        np.testing.assert_allclose(Vt[rank:] @ left, 0.0, atol=1e-9)
    assert checked == 2
    m = mb.mobility(system, jnp.asarray(q))
    assert (m.velocity, m.rows, m.redundant) == (22, 12, 2)
    # float32: small rows (the plantar rods' levers) still count, and what is left is the error of the free tree
    single, errors = system.astype("float32"), []
    for x, double in states:
        found = acceleration_and_gradient(single, *(jnp.asarray(y, jnp.float32) for y in x))
        errors.append([np.abs(f - d).max() / np.abs(d).max() for f, d in zip(found, double, strict=True)])
    # accelerations and their gradient by forces; that by masses has 1.1e-3, ten times the error of the open tree's
    assert np.all(np.median(errors, 0) < [1e-3, 1e-3, 2e-3]), errors
