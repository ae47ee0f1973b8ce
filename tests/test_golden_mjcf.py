"""Seven MJCF models against values computed with MuJoCo (data/golden/mjcf), every quantity.

MuJoCo's free joints have another layout, `mujoco_layout.Layout` maps it. The golden files keep armature in everything
and springs and dampers apart. Errors are relative to the largest entry of an array over the states, at least 1;
tolerances come with the files.
"""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mujoco_layout import Layout

import jaxmbd as mb

pytestmark = pytest.mark.external  # MuJoCo's compiler reads the files

DATA = Path(__file__).parent / "data"
QUICK = ("hopper",)
NAMES = sorted(path.stem for path in (DATA / "golden" / "mjcf").glob("*.json"))
PARAMETERS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]


class Case:
    """A golden file, the file's system with and without springs and dampers, and the layout between the two worlds."""

    def __init__(self, name):
        self.golden = json.loads((DATA / "golden" / "mjcf" / f"{name}.json").read_text())
        self.file = mb.load_mjcf(DATA / "robots" / f"{name}.xml", loops="open")
        self.system = self.file.system
        none = {key: jnp.zeros_like(getattr(self.system, key)) for key in ("stiffness", "damping", "friction")}
        self.bare = dataclasses.replace(self.system, **none)
        rows = [(j["name"], j["type"] == "free", j["q_start"], j["v_start"]) for j in self.golden["joints"]]
        self.layout = Layout(self.system, rows)
        self.qpos, self.qvel = self.states("qpos"), self.states("qvel")
        self.T = np.array([self.layout.T(q) for q in self.qpos])

    def states(self, key):
        return np.array([state[key] for state in self.golden["states"]])

    def forces(self, tau):
        """Our generalised forces [n, nv] as MuJoCo's."""
        return np.einsum("nij,nj->ni", self.T, tau)

    def accelerations(self, a):
        return np.array([self.layout.qacc(*state) for state in zip(self.qpos, self.qvel, a, strict=True)])


@functools.partial(jax.jit, static_argnames=("bodies", "end", "loaded"))
def evaluate(bare, system, q, v, a, still, tau, wrench, bodies, end, loaded):
    """Every quantity of the golden files, for a batch of states; a wrench [force, moment] acts on `loaded`."""

    def one(q, v, a, still, tau, wrench):
        k = mb.kinematics(bare, q, v, a)
        applied = (mb.Wrench(loaded, moment=wrench[3:], force=wrench[:3]),)
        return {
            "M": mb.mass_matrix(bare, q),
            "bias": mb.inverse_dynamics(bare, q, v, still),
            "inverse_dynamics": mb.inverse_dynamics(bare, q, v, a),
            "forward_dynamics": mb.forward_dynamics(bare, q, v, tau),
            "with_wrench": mb.forward_dynamics(bare, q, v, tau, applied),
            "forward_dynamics_with_passive": mb.forward_dynamics(system, q, v, tau),
            "energy": jnp.stack(mb.energy(system, q, v)),
            "com": mb.com(bare, q),
            "momentum": mb.momentum(bare, q, v),
            "motion": {name: k[name] for name in bodies},
            "jacobian": mb.jacobian(bare, q, end),
        }

    return jax.vmap(one)(q, v, a, still, tau, wrench)


@pytest.fixture(scope="module", params=PARAMETERS)
def case(request):
    return Case(request.param)


@pytest.fixture(scope="module")
def ours(case):
    golden, layout = case.golden, case.layout
    states = list(zip(case.qpos, case.qvel, strict=True))
    q = np.array([layout.q(qpos) for qpos in case.qpos])
    v = np.array([layout.v(*state) for state in states])
    a = np.array([layout.a(*state, qdd) for state, qdd in zip(states, case.states("qdd"), strict=True)])
    still = np.array([layout.a(*state, np.zeros(golden["nv"])) for state in states])
    tau = np.einsum("nji,nj->ni", case.T, case.states("tau"))
    external = golden["external_wrench"]
    wrench = np.tile(external["wrench_world_at_body_origin"], (len(q), 1))
    bodies = tuple(golden["states"][0]["bodies"])
    return evaluate(case.bare, case.system, q, v, a, still, tau, wrench, bodies, bodies[-1], external["body"])


def assert_close(actual, expected, case, kind):
    scale = max(np.abs(expected).max(), 1.0)
    error = np.abs(np.asarray(actual) - expected).max() / scale
    assert error <= case.golden["suggested_rtol"][kind], f"relative error {error:.2e} of the largest entry {scale:.3g}"


def test_names_dimensions_and_neutral(case):
    golden, system = case.golden, case.system
    assert (system.nq, system.nv) == (golden["nq"], golden["nv"])
    assert system.joint_names == tuple(joint["name"] for joint in golden["joints"])
    np.testing.assert_allclose(system.mass, golden["total_mass"], rtol=1e-12)
    np.testing.assert_allclose(system.gravity, golden["gravity"], rtol=1e-15)
    qpos0 = np.concatenate([joint["qpos0"] for joint in golden["joints"]])
    np.testing.assert_allclose(system.neutral_q(), case.layout.q(qpos0), atol=1e-14)


def test_joint_numbers(case):
    for joint in case.golden["joints"]:
        for key in ("armature", "damping", "stiffness"):
            np.testing.assert_allclose(case.system.get(f"{joint['name']}.{key}"), joint[key], rtol=1e-14)


def test_mass_matrix(case, ours):
    expected = case.states("M")
    assert_close(np.einsum("nij,njk,nlk->nil", case.T, ours["M"], case.T), expected, case, "M_bias")


@pytest.mark.parametrize("key", ["bias", "inverse_dynamics"])
def test_forces(case, ours, key):
    assert_close(case.forces(ours[key]), case.states(key), case, "M_bias")


@pytest.mark.parametrize("key", ["forward_dynamics", "forward_dynamics_with_passive"])
def test_forward_dynamics(case, ours, key):
    assert_close(case.accelerations(ours[key]), case.states(key), case, "forward_dynamics")


def test_external_wrench(case, ours):
    external = case.golden["external_wrench"]
    actual = case.accelerations(ours["with_wrench"])[external["state_index"]]
    assert_close(actual, np.array(external["forward_dynamics"]), case, "forward_dynamics")


def test_energy_momentum_com(case, ours):
    kinetic, potential = np.asarray(ours["energy"]).T
    assert_close(kinetic, case.states("kinetic_energy"), case, "M_bias")
    expected = case.states("potential_energy_gravity") + case.states("potential_energy_spring")
    assert_close(potential, expected, case, "M_bias")
    assert_close(ours["com"], case.states("com"), case, "kinematics")
    momentum = np.concatenate([case.states("angular_momentum_com"), case.states("linear_momentum")], 1)
    assert_close(ours["momentum"], momentum, case, "M_bias")


def test_body_motion(case, ours):
    states = case.golden["states"]
    for name, motion in ours["motion"].items():
        poses = [state["bodies"][name] for state in states]
        expected = jax.vmap(lambda q: mb.Pose(rotation=q).rotation)(np.array([p["quat_wxyz"] for p in poses]))
        assert_close(motion.rotation, expected, case, "kinematics")
        assert_close(motion.position, np.array([p["position"] for p in poses]), case, "kinematics")
        velocity = np.array([p["velocity"] for p in poses])
        assert_close(np.roll(motion.velocity, 3, -1), velocity, case, "kinematics")


def test_last_jacobian(case, ours):
    states = case.golden["states"]
    name = list(states[0]["bodies"])[-1]
    expected = np.array([state["bodies"][name]["jacobian"] for state in states])
    actual = np.einsum("nij,nkj->nik", np.roll(ours["jacobian"], 3, 1), case.T)
    assert_close(actual, expected, case, "kinematics")
