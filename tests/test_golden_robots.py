"""Fifteen robots from URDF files against values computed with Pinocchio (data/golden/robots), every quantity.

Golden files order velocities and six-vectors linear first and name every velocity; `Case` holds the map between the two
layouts. Errors are relative to the largest entry of an array over the five states; tolerances come with the files.
"""

import dataclasses
import functools
import json
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb

DATA = Path(__file__).parent / "data"
QUICK = ("cartpole_fixed", "solo12_floating")
NAMES = sorted(path.stem for path in (DATA / "golden" / "robots").glob("*.json"))
PARAMETERS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]


@dataclasses.dataclass
class Case:
    """A golden file, the system it belongs to, and where the golden velocities sit in v."""

    golden: dict[str, Any]
    system: mb.System
    at: np.ndarray

    def coordinates(self, by_joint) -> np.ndarray:
        """Our q of a golden `q_by_joint`."""
        q = np.zeros(self.system.nq)
        for name, value in by_joint.items():
            if name == "root_joint":
                x, y, z, qx, qy, qz, qw = value
                q[self.system.q_slice("root")] = qw, qx, qy, qz, x, y, z
            else:
                q[self.system.q_slice(name)] = value
        return q

    def velocities(self, golden) -> np.ndarray:
        """Our v (or a, tau) of a golden one, along the last axis."""
        ours = np.zeros(np.shape(golden))
        ours[..., self.at] = golden
        return ours

    def states(self, key) -> np.ndarray:
        return np.array([state[key] for state in self.golden["states"]])

    def leaves(self, key) -> dict[str, np.ndarray]:
        return {n: np.array([s["leaf"][n][key] for s in self.golden["states"]]) for n in self.golden["leaf_links"]}


def case_of(name: str) -> Case:
    golden = json.loads((DATA / "golden" / "robots" / f"{name}.json").read_text())
    floating = golden["base"] == "floating"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some of these files hold implausible inertias
        system = mb.load(DATA / "robots" / f"{name.rpartition('_')[0]}.urdf", floating=floating, mimic="independent")
    base = [f"base.{part}{axis}" for part in "wv" for axis in "xyz"]
    at = [base.index(n) if n in base else system.v_slice(n).start for n in golden["dof_names"]]
    assert sorted(at) == list(range(system.nv))
    return Case(golden, system.without_passive_forces(), np.array(at))


@functools.partial(jax.jit, static_argnames=("leaves", "ends", "loaded"))
def evaluate(system, q, v, a, tau, wrench, leaves, ends, loaded):
    """Every quantity of the golden files, for a batch of states; a wrench (force, moment) acts on `loaded`."""

    def one(q, v, a, tau, wrench):
        applied = (mb.Wrench(loaded, moment=wrench[3:], force=wrench[:3]),)
        k = mb.kinematics(system, q, v, a)
        return {
            "M": mb.mass_matrix(system, q),
            "nle": mb.bias_force(system, q, v),
            "gravity_torque": mb.gravity_force(system, q),
            "rnea": mb.inverse_dynamics(system, q, v, a, applied),
            "aba": mb.forward_dynamics(system, q, v, tau, applied),
            "com": mb.com(system, q),
            "energy": jnp.stack(mb.energy(system, q, v)),
            "momentum": mb.momentum(system, q, v),
            "motion": {n: k[n] for n in leaves},
            "jacobian": {n: mb.jacobian(system, q, n) for n in ends},
        }

    return jax.vmap(one)(q, v, a, tau, wrench)


@pytest.fixture(scope="module", params=PARAMETERS)
def case(request):
    return case_of(request.param)


@pytest.fixture(scope="module")
def results(case):
    """All quantities for the golden states without a wrench, and after them for the one state with the wrench."""
    external = case.golden["external_wrench"]
    rows = [*range(len(case.golden["states"])), external["state_index"]]
    q = np.array([case.coordinates(state["q_by_joint"]) for state in case.golden["states"]])[rows]
    v, a, tau = (case.velocities(case.states(key))[rows] for key in ("v", "qdd", "tau"))
    wrench = np.zeros((len(rows), 6))
    wrench[-1] = external["wrench_lwa"]
    leaves = tuple(case.golden["leaf_links"])
    ends = tuple(dict.fromkeys((leaves[0], leaves[-1])))  # each Jacobian compiles a sweep of its own
    return evaluate(case.system, q, v, a, tau, wrench, leaves, ends, external["link"])


@pytest.fixture(scope="module")
def ours(results):
    return jax.tree.map(lambda x: x[:-1], results)


def swap(six, axis=-1):
    """Angular-first six-vectors as linear-first ones."""
    return np.roll(six, 3, axis)


def assert_close(actual, expected, case, kind):
    expected = np.asarray(expected)
    scale = np.abs(expected).max() or 1.0
    error = np.abs(np.asarray(actual) - expected).max() / scale
    assert error <= case.golden["suggested_rtol"][kind], f"relative error {error:.2e} of the largest entry {scale:.3g}"


def test_mass_and_dimensions(case):
    assert case.system.nv == case.golden["nv"]
    np.testing.assert_allclose(case.system.mass, case.golden["mass_all_links"], rtol=1e-12)


def test_mass_matrix(case, ours):
    M = np.asarray(ours["M"])
    assert_close(M[:, case.at][:, :, case.at], case.states("M"), case, "M_nle_rnea_energy")
    np.testing.assert_array_equal(M, M.swapaxes(1, 2))


@pytest.mark.parametrize("key", ["nle", "gravity_torque", "rnea"])
def test_forces(case, ours, key):
    assert_close(ours[key][:, case.at], case.states(key), case, "M_nle_rnea_energy")


def test_forward_dynamics(case, ours):
    assert_close(ours["aba"][:, case.at], case.states("aba"), case, "aba")


def test_external_wrench(case, results):
    external = case.golden["external_wrench"]
    assert_close(results["rnea"][-1, case.at], external["rnea_with_wrench"], case, "M_nle_rnea_energy")
    assert_close(results["aba"][-1, case.at], external["aba_with_wrench"], case, "aba")


def test_energy_momentum_com(case, ours):
    kinetic, potential = np.asarray(ours["energy"]).T
    assert_close(kinetic, case.states("kinetic_energy"), case, "M_nle_rnea_energy")
    assert_close(potential, case.states("potential_energy"), case, "M_nle_rnea_energy")
    assert_close(ours["com"], case.states("com"), case, "kinematics")
    assert_close(swap(ours["momentum"]), case.states("centroidal_momentum"), case, "M_nle_rnea_energy")


def test_leaf_motion(case, ours):
    acceleration = case.leaves("classical_acceleration")
    quaternion, position, velocity = (case.leaves(key) for key in ("quat_xyzw", "position", "velocity"))
    for name, motion in ours["motion"].items():
        x, y, z, w = quaternion[name].T
        expected = jax.vmap(lambda q: mb.Pose(rotation=q).rotation)(np.stack([w, x, y, z], -1))
        assert_close(motion.rotation, expected, case, "kinematics")
        assert_close(motion.position, position[name], case, "kinematics")
        assert_close(swap(motion.velocity), velocity[name], case, "kinematics")
        assert_close(swap(motion.acceleration), acceleration[name], case, "kinematics")


def test_leaf_jacobians(case, ours):
    expected = case.leaves("jacobian")
    for name, J in ours["jacobian"].items():
        assert_close(swap(J, axis=1)[:, :, case.at], expected[name], case, "kinematics")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in NAMES if n in ("double_pendulum_fixed", "panda_fixed", "anymal_b_floating")]
)
def test_derivatives(name):
    """Along the tangent of `integrate`, as the golden files have it for a floating base."""
    case = case_of(name)
    system, golden = case.system, case.golden["derivatives"]
    state = case.golden["states"][golden["state_index"]]
    q = case.coordinates(state["q_by_joint"])
    v, a, tau = (case.velocities(state[key]) for key in ("v", "qdd", "tau"))
    still = jnp.zeros(system.nv)
    forward = jax.jit(
        jax.jacfwd(lambda dq, v, tau: mb.forward_dynamics(system, mb.integrate(system, q, dq, 1.0), v, tau), (0, 1, 2))
    )(still, v, tau)
    inverse = jax.jit(
        jax.jacfwd(lambda dq, v: mb.inverse_dynamics(system, mb.integrate(system, q, dq, 1.0), v, a), (0, 1))
    )(still, v)
    for key, derivative in zip(
        ("aba_dq", "aba_dv", "aba_dtau", "rnea_dq", "rnea_dv"), (*forward, *inverse), strict=True
    ):
        assert_close(np.asarray(derivative)[np.ix_(case.at, case.at)], golden[key], case, "derivatives")


def test_mimic_eliminated():
    """The gripper of the Panda: one finger follows the other, and the reduced equations are G^T (...) G."""
    case = case_of("panda_fixed")
    golden = case.golden["mimic_reduced"]
    system = mb.load(DATA / "robots" / "panda.urdf").without_passive_forces()
    assert system.joint_names == tuple(golden["independent_dofs"])
    q = np.array([golden["q_full_by_joint"][name] for name in system.joint_names])
    v, a, tau = (np.array(golden[f"{key}_independent"]) for key in ("v", "qdd", "tau"))

    @jax.jit
    def evaluate(q, v, a, tau):
        inverse, forward = mb.inverse_dynamics(system, q, v, a), mb.forward_dynamics(system, q, v, tau)
        return mb.mass_matrix(system, q), mb.bias_force(system, q, v), inverse, forward

    keys = ("M", "nle", "inverse_dynamics", "forward_dynamics")
    for key, value in zip(keys, evaluate(q, v, a, tau), strict=True):
        kind = "aba" if key == "forward_dynamics" else "M_nle_rnea_energy"
        assert_close(value, golden[key], case, kind)
