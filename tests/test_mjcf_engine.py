"""One MJCF model with one of everything (data/mjcf/zoo.xml), against MuJoCo itself at random states.

Anchors away from the origin, references, several joints a body, ball and free joints, springs, armature, dampers, dry
friction, actuators of every kind that is taken over, joint equalities. Constraints are switched off in MuJoCo; the
eliminated equalities are compared with G^T M G of its unconstrained equations.
"""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mujoco_layout import layout_of_model

import jaxmbd as mb

mujoco = pytest.importorskip("mujoco")
pytestmark = pytest.mark.external

ZOO = Path(__file__).parent / "data" / "mjcf" / "zoo.xml"
STATES = 5
RTOL = 1e-11  # relative to the largest entry of an array, at least 1: two engines in double precision


class Engine:
    """MuJoCo's numbers at random states, stacked."""

    def __init__(self, model):
        self.model, self.data = model, mujoco.MjData(model)
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
        model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
        random = np.random.default_rng(5)
        self.qpos, self.qvel = random.normal(size=(STATES, model.nq)), random.normal(size=(STATES, model.nv))
        self.tau, self.ctrl = random.normal(size=(STATES, model.nv)), random.normal(size=(STATES, model.nu))
        for qpos in self.qpos:
            mujoco.mj_normalizeQuat(model, qpos)

    def run(self):
        found = [self.at(*state) for state in zip(self.qpos, self.qvel, self.ctrl, strict=True)]
        self.numbers = {key: np.array([one[key] for one in found]) for key in found[0]}

    def at(self, qpos, qvel, ctrl):
        m, d = self.model, self.data
        d.qpos[:], d.qvel[:], d.ctrl[:] = qpos, qvel, ctrl
        mujoco.mj_forward(m, d)
        M = np.zeros((m.nv, m.nv))
        for row, unit in zip(M, np.eye(m.nv), strict=True):
            mujoco.mj_mulM(m, d, row, unit)
        keys = ("qfrc_bias", "qfrc_passive", "qfrc_actuator", "site_xpos", "site_xmat", "xpos", "xmat", "energy")
        return {"M": M} | {key: np.array(getattr(d, key)) for key in keys}


@functools.partial(jax.jit, static_argnames="frames")
def evaluate(system, bare, actuators, q, v, still, tau, ctrl, frames):
    def one(q, v, still, tau, ctrl):
        k = mb.kinematics(system, q, v)
        return {
            "M": mb.mass_matrix(system, q),
            "bias": mb.inverse_dynamics(bare, q, v, still),
            "forward": mb.forward_dynamics(system, q, v, tau),
            "tau": actuators(system, q, v, ctrl),
            "energy": jnp.stack(mb.energy(system, q, v)),
            "pose": [(k[name].position, k[name].rotation) for name in frames],
        }

    return jax.vmap(one)(q, v, still, tau, ctrl)


@dataclasses.dataclass
class Case:
    file: mb.io.MjcfFile
    engine: Engine
    T: np.ndarray  # qvel = T v of all joints, one a state
    G: np.ndarray  # velocities of all joints = G v
    v: np.ndarray
    still: np.ndarray  # v_dot where qacc = 0
    ours: dict


def case_of(mimic):
    file, every = mb.load_mjcf(ZOO, mimic=mimic), mb.load(ZOO, mimic="independent")
    system, engine = file.system, Engine(mujoco.MjModel.from_xml_path(str(ZOO)))
    layout = layout_of_model(every, engine.model, every.joint_names)
    keep_q = np.concatenate([np.r_[every.q_slice(name)] for name in system.joint_names])
    keep_v = np.concatenate([np.r_[every.v_slice(name)] for name in system.joint_names])
    G = np.eye(every.nv)[:, keep_v]
    if mimic == "eliminate":  # thumb follows right, which follows left: the file's numbers, references included
        left, right, thumb = (every.v_slice(name).start for name in ("left", "right", "thumb"))  # q has them there too
        G[right], G[thumb] = 1.5 * G[left], -4.5 * G[left]
        q = engine.qpos
        q[:, right] = -0.02 + 0.005 + 1.5 * (q[:, left] - 0.01)
        q[:, thumb] = np.deg2rad(15) + 0.2 - 3 * (q[:, right] + 0.02)
    v = np.array([layout.v(*state)[keep_v] for state in zip(engine.qpos, engine.qvel, strict=True)])
    T = np.array([layout.T(qpos) for qpos in engine.qpos])
    engine.qvel = np.einsum("nij,jk,nk->ni", T, G, v)
    engine.run()
    rest = np.zeros(every.nv)
    still = np.array([layout.a(*state, rest)[keep_v] for state in zip(engine.qpos, engine.qvel, strict=True)])
    q = np.array([layout.q(qpos)[keep_q] for qpos in engine.qpos])
    tau = np.einsum("ji,nkj,nk->ni", G, T, engine.tau)
    none = {key: jnp.zeros_like(system.damping) for key in ("stiffness", "damping", "friction")}
    bare = dataclasses.replace(system, **none)
    ours = evaluate(system, bare, file.actuators, q, v, still, tau, engine.ctrl, system.frame_names)
    return Case(file, engine, T, G, v, still, ours)


@pytest.fixture(scope="module", params=[pytest.param("independent", marks=pytest.mark.slow), "eliminate"])
def case(request):
    return case_of(request.param)


def assert_close(actual, expected):
    scale = max(np.abs(expected).max(), 1.0)
    assert np.abs(np.asarray(actual) - expected).max() <= RTOL * scale


def reduced(case, forces):
    """MuJoCo's forces as ours on the independent velocities."""
    return np.einsum("ji,nkj,nk->ni", case.G, case.T, forces)


def mass_matrix(case):
    return np.einsum("ai,nja,njk,nkb,bl->nil", case.G, case.T, case.engine.numbers["M"], case.T, case.G)


def test_mass_matrix(case):
    assert_close(case.ours["M"], mass_matrix(case))


def test_bias(case):
    """At qacc = 0, which for a free joint is not v_dot = 0."""
    assert_close(case.ours["bias"], reduced(case, case.engine.numbers["qfrc_bias"]))


def test_forward_dynamics_with_passive_forces(case):
    """M a = tau + passive - bias, MuJoCo's dry friction (a constraint) replaced by the smooth one."""
    numbers, file = case.engine.numbers, case.file
    friction = np.zeros_like(case.v)
    at = file.system.v_slice("nod").start
    friction[:, at] = -0.2 * np.tanh(case.v[:, at] / 1e-2)
    forces = reduced(case, case.engine.tau + numbers["qfrc_passive"] - numbers["qfrc_bias"]) + friction
    residual = np.einsum("nij,nj->ni", mass_matrix(case), case.ours["forward"] - case.still)
    assert_close(residual, forces)


def test_energy(case):
    """MuJoCo counts the potential energy of bodies that are welded to the world too."""
    engine = case.engine
    potential, kinetic = engine.numbers["energy"].T
    pedestal = engine.model.body("pedestal")
    welded = -pedestal.mass * (engine.model.opt.gravity @ engine.data.body("pedestal").xipos)
    assert_close(case.ours["energy"], np.stack([kinetic, potential - welded], 1))


def test_actuators(case):
    assert_close(case.ours["tau"], reduced(case, case.engine.numbers["qfrc_actuator"]))


def test_bodies_and_sites(case):
    numbers = case.engine.numbers
    position = np.concatenate([numbers["xpos"][:, 1:], numbers["site_xpos"]], 1)
    rotation = np.concatenate([numbers["xmat"][:, 1:], numbers["site_xmat"]], 1).reshape(*position.shape, 3)
    for i, (own_position, own_rotation) in enumerate(case.ours["pose"]):
        assert_close(own_position, position[:, i])
        assert_close(own_rotation, rotation[:, i])


def test_neutral_is_qpos0(case):
    model, system = case.engine.model, case.file.system
    assert float(system.neutral_q()[system.q_slice("elbow")][0]) == pytest.approx(np.deg2rad(-70), rel=1e-14)
    place = np.concatenate([model.body("floater").quat, model.body("floater").pos])
    np.testing.assert_allclose(system.neutral_q()[system.q_slice("floater")], place, atol=1e-15)
    np.testing.assert_array_equal(system.neutral_q()[system.q_slice("pivot")], [1, 0, 0, 0])
