"""Cassie with its four rod loops closed, against rigid closures of MuJoCo's own quantities.

`golden/mjcf/cassie.json`, entry `closed_loop`: M, bias and Jacobians by MuJoCo, the saddle system solved
densely. The file's springs and dampers are off, its armature is not.
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


def cassie():
    pytest.importorskip("mujoco")
    system = mb.load(DATA / "robots" / "cassie.xml")
    return dataclasses.replace(system, **{x: 0.0 * getattr(system, x) for x in ("stiffness", "damping", "friction")})


@pytest.mark.slow
@pytest.mark.external
def test_closed_cassie():
    """Accelerations and rod forces at every state of the file."""
    golden = json.loads((DATA / "golden" / "mjcf" / "cassie.json").read_text())["closed_loop"]
    system = cassie()
    assert (system.nq, system.nv) == (35, 32)
    dynamics, forces = jax.jit(mb.forward_dynamics), jax.jit(mb.closure_wrenches)
    for state in golden["states"]:
        qpos, qvel, tau, qdd = (np.array(state[k]) for k in ("qpos", "qvel", "tau", "qdd_constrained"))
        R = np.asarray(so3.matrix(jnp.asarray(qpos[3:7])))

        def ours(x, R=R):  # MuJoCo's free joint: [linear in world axes, angular in body axes]
            return np.concatenate([x[3:6], R.T @ x[:3], x[6:]])

        q = np.concatenate([qpos[3:7], qpos[:3], qpos[7:]])
        v = ours(qvel)
        expected = ours(qdd)
        expected[3:6] -= np.cross(v[:3], v[3:6])
        a = dynamics(system, q, v, ours(tau))
        np.testing.assert_allclose(a, expected, rtol=0, atol=1e-8 * np.abs(expected).max())
        w = forces(system, q, v, ours(tau))
        on_second = np.array(state["lambda_"]).reshape(4, 3)
        np.testing.assert_allclose(w.force, on_second, rtol=0, atol=1e-7 * np.abs(on_second).max())
        assert w.unique[:, 3:].all()
    m = mb.mobility(system, jnp.asarray(q))
    assert (m.velocity, m.redundant) == (20, 0)
