"""Cassie with its four rod loops closed, against rigid closures of MuJoCo's own quantities.

`golden/mjcf/cassie.json`, entry `closed_loop`: M, bias and Jacobians by MuJoCo, the saddle system solved
densely. The system is built here from MuJoCo's compiled model, body by body.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import rotation as so3

DATA = Path(__file__).parent / "data"


def cassie(closures):
    """Bodies and joints of the compiled model; ball closures where its connect constraints are."""
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_path(str(DATA / "robots" / "cassie.xml"))
    b = mb.Builder(gravity=model.opt.gravity)
    names = [model.body(i).name for i in range(model.nbody)]
    for i in range(1, model.nbody):
        R = np.asarray(so3.matrix(jnp.asarray(model.body_iquat[i])))
        b.body(names[i], model.body_mass[i], model.body_ipos[i], R @ np.diag(model.body_inertia[i]) @ R.T)
        parent, place = names[model.body_parentid[i]], mb.Pose(model.body_pos[i], model.body_quat[i])
        assert model.body_jntnum[i] <= 1
        if not model.body_jntnum[i]:
            b.joint(f"weld{i}", mb.fixed(), parent, names[i], in_parent=place)
            continue
        j = model.body_jntadr[i]
        kind, at = model.jnt_type[j], mb.Pose(model.jnt_pos[j])
        if kind == mujoco.mjtJoint.mjJNT_FREE:
            b.joint("root", mb.free(), parent, names[i])
            continue
        joint = mb.revolute(model.jnt_axis[j]) if kind == mujoco.mjtJoint.mjJNT_HINGE else mb.spherical()
        armature = model.dof_armature[model.jnt_dofadr[j]]
        b.joint(f"joint{j}", joint, parent, names[i], in_parent=place @ at, in_child=at, armature=armature)
    for i, connect in enumerate(closures):
        for side in "12":
            b.frame(f"{side}{i}", on=connect[f"body{side}"], pose=mb.Pose(connect[f"anchor{side}"]))
        b.closure(f"rod{i}", mb.spherical(), f"1{i}", f"2{i}")
    return b.build()


@pytest.mark.slow
@pytest.mark.external
def test_closed_cassie():
    """Accelerations and rod forces at every state of the file."""
    golden = json.loads((DATA / "golden" / "mjcf" / "cassie.json").read_text())["closed_loop"]
    system = cassie(golden["connects"])
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
