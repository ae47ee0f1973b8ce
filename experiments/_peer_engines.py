"""The other engines of the speed bench, each with what it needs to answer in jaxmbd's layout.

An engine offers functions of a batch: `prepare(q, v, x)` turns states in jaxmbd's layout into its own and returns a
call without arguments, which is timed; `answer(q, v, result)` turns what the call returned back. Nothing is converted
inside the call. Hinges keep the names `joint0`, ... of `_bench_models`, so that every order of joints is found by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments._bench_models import load, size, urdf

PACKAGES = {  # engine -> package of the index, module
    "pinocchio": ("pin", "pinocchio"),
    "mujoco": ("mujoco", "mujoco"),
    "brax": ("brax", "brax"),
    "jaxsim": ("jaxsim", "jaxsim"),
    "frax": ("frax", "frax"),
    "mjx": ("mujoco-mjx", "mujoco.mjx"),
}
JAX_PEERS = ("brax", "jaxsim", "frax", "mjx")
ENVIRONMENT = {
    "pinocchio": {"OMP_PROC_BIND": "true"},  # threads that keep their core
    # what frax's scripts/setup_cpu_env.sh recommends (double precision apart, which is measured as well)
    "frax": {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OPENBLAS_NUM_THREADS": "1"},
    # XLA fuses MJX's gathers into loops that compute the same numbers again and again: 100 times slower on a CPU
    "mjx": {"XLA_FLAGS": "--xla_disable_hlo_passes=fusion"},
}
CANNOT = {  # engine, function: why it has no figure
    ("brax", "inverse"): "brax has bias forces only, no inverse dynamics of a given acceleration",
}


class Engine(NamedTuple):
    """A function of a batch, with the sizes of batch it is for (None: all)."""

    prepare: Callable[[np.ndarray, np.ndarray, np.ndarray], Callable[[], Any]]
    answer: Callable[[np.ndarray, np.ndarray, Any], np.ndarray]
    batches: Callable[[int], bool] = lambda batch: True


def engines(engine: str, model: str, dtype: str, folder: Path) -> dict[tuple[str, str], Engine]:
    """(label, function) -> engine; a process that times two numbers of threads has two labels."""
    make = {"pinocchio": _pinocchio, "mujoco": _mujoco}.get(engine)
    if make:
        return make(model, folder)
    functions, names, to, back = {"brax": _brax, "jaxsim": _jaxsim, "frax": _frax, "mjx": _mjx}[engine](model, folder)
    layout = Layout(7 if size(model)[1] else 0, np.array([int(name.removeprefix("joint")) for name in names]), to, back)
    return {(engine, name): jax_engine(f, partial(layout.to, name), partial(layout.back, name), dtype)
            for name, f in functions.items()}  # fmt: skip


def jax_engine(function: Callable, to: Callable, back: Callable, dtype: str) -> Engine:
    """Of a JAX function of one state: mapped over the batch and compiled; a batch of one is not mapped."""

    def prepare(q, v, x):
        import jax
        import jax.numpy as jnp

        arrays = [jnp.asarray(y, dtype) for y in to(q, v, x)]
        single = len(q) == 1
        compiled = jax.jit(function if single else jax.vmap(function))
        arrays = [y[0] for y in arrays] if single else arrays
        return lambda: jax.block_until_ready(compiled(*arrays))

    def answer(q, v, result):
        if result.dtype != dtype:  # JaxSim turns double precision on unless told otherwise with a 0
            raise ValueError(f"asked in {dtype}, answered in {result.dtype}")
        return back(q, v, np.atleast_2d(np.asarray(result, float)))

    return Engine(prepare, answer)


# --- layouts: jaxmbd has q = (quaternion w x y z, position, hinges) and v = (angular, linear, hinges) in body axes


class Layout(NamedTuple):
    """From jaxmbd's layout and back; `hinges` is jaxmbd's number of every hinge in the engine's order."""

    base: int
    hinges: np.ndarray
    base_to: Callable
    base_back: Callable

    def to(self, name: str, q, v, x) -> tuple[np.ndarray, ...]:
        if not self.base:
            return q[:, self.hinges], v[:, self.hinges], x[:, self.hinges]
        heads = self.base_to(name, q[:, :7], v[:, :6], x[:, :6])
        columns = (7 + self.hinges, 6 + self.hinges, 6 + self.hinges)
        return tuple(np.hstack([head, y[:, c]]) for head, y, c in zip(heads, (q, v, x), columns, strict=True))

    def back(self, name: str, q, v, y) -> np.ndarray:
        if not self.base:
            return y[:, np.argsort(self.hinges)]
        head = self.base_back(name, q[:, :7], v[:, :6], y[:, :6])
        return np.hstack([head, y[:, 6 + np.argsort(self.hinges)]])


def body_base(name: str, q, v, x):
    """q = (position, quaternion), v = (linear, angular), both in body axes; x likewise."""
    swap = [3, 4, 5, 0, 1, 2]
    return q[:, [4, 5, 6, 0, 1, 2, 3]], v[:, swap], x[:, swap]


def from_body_base(name: str, q, v, y):
    return y[:, [3, 4, 5, 0, 1, 2]]


def mixed_base(name: str, q, v, x):
    """MuJoCo's: q = (position, quaternion), v = (linear in world axes, angular in body axes); x is its derivative, or
    forces that make power with it.
    """
    R = _rotations(q[:, :4])
    linear = x[:, 3:] if name == "forward" else x[:, 3:] + np.cross(v[:, :3], v[:, 3:])
    heads = [(v[:, 3:], v[:, :3]), (linear, x[:, :3])]
    V, X = (np.hstack([np.einsum("bij,bj->bi", R, moved), turned]) for moved, turned in heads)
    return q[:, [4, 5, 6, 0, 1, 2, 3]], V, X


def from_mixed_base(name: str, q, v, y):
    linear = np.einsum("bji,bj->bi", _rotations(q[:, :4]), y[:, :3])
    if name == "forward":
        linear = linear - np.cross(v[:, :3], v[:, 3:])
    return np.hstack([y[:, 3:], linear])


def _rotations(quaternion):
    """Rotation matrices [batch, 3, 3], body axes to world axes."""
    w, u = quaternion[:, 0, None, None], quaternion[:, 1:]
    K = np.cross(u[:, None, :], np.eye(3)[None])  # rows u x e_i: the transpose of [u x]
    K = np.swapaxes(K, 1, 2)
    return np.eye(3) + 2 * w * K + 2 * K @ K


# --- C and C++


def _pinocchio(model: str, folder: Path) -> dict[tuple[str, str], Engine]:
    """`abaInParallel` and `rneaInParallel` with one thread and with two; `aba` and `rnea` for one state.

    Reads the model's own URDF, not the merged one.
    """
    import pinocchio as pin

    text, floating = urdf(model)
    robot = pin.buildModelFromXML(text, pin.JointModelFreeFlyer()) if floating else pin.buildModelFromXML(text)
    joints = [robot.joints[robot.getJointId(n)] for n in load(model).joint_names if n != "root"]
    base = 7 if floating else 0
    q_from, v_from = np.arange(robot.nq), np.arange(robot.nv)  # row of Pinocchio's vectors <- column of ours
    if floating:
        q_from[:7], v_from[:6] = [4, 5, 6, 1, 2, 3, 0], [3, 4, 5, 0, 1, 2]
    for i, joint in enumerate(joints):
        q_from[joint.idx_q], v_from[joint.idx_v] = base + i, max(base - 1, 0) + i
    pool, data = pin.ModelPool(robot, 2), robot.createData()

    def prepared(one, many, threads):
        def prepare(q, v, x):
            Q, V, X = (np.asfortranarray(y[:, rows].T) for y, rows in ((q, q_from), (v, v_from), (x, v_from)))
            if len(q) > 1:
                return lambda: many(threads, pool, Q, V, X)
            state = Q[:, 0].copy(), V[:, 0].copy(), X[:, 0].copy()
            return lambda: one(robot, data, *state)

        return prepare

    def answer(q, v, result):
        return np.asarray(result).reshape(robot.nv, -1).T[:, np.argsort(v_from)]

    calls = {"forward": (pin.aba, pin.abaInParallel), "inverse": (pin.rnea, pin.rneaInParallel)}
    one = {("pinocchio", name): Engine(prepared(*f, 1), answer) for name, f in calls.items()}
    two = {("pinocchio 2", name): Engine(prepared(*f, 2), answer, _several) for name, f in calls.items()}
    return one | two


def _several(batch: int) -> bool:
    return batch > 1


def _mujoco_model(model: str, folder: Path):
    """The merged model, without contact and constraints."""
    import mujoco

    robot = mujoco.MjModel.from_xml_path(str(folder / f"{model}.xml"))
    robot.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    return robot


def _mujoco_hinges(robot) -> list[str]:
    return [robot.joint(i).name for i in range(robot.njnt) if robot.joint(i).name != "root"]


def _mujoco(model: str, folder: Path) -> dict[tuple[str, str], Engine]:
    """A rollout of one step, which is forward dynamics and an Euler step, with one thread and with two.

    One state: `mj_forward`. Inverse dynamics has no call for a batch: a Python loop over `mj_rne` and what it needs.
    """
    import mujoco
    from mujoco import rollout

    robot = _mujoco_model(model, folder)
    names = _mujoco_hinges(robot)
    base = 7 if robot.nq > robot.nv else 0
    layout = Layout(base, np.array([int(n.removeprefix("joint")) for n in names]), mixed_base, from_mixed_base)
    data = [mujoco.MjData(robot) for _ in range(2)]
    full, applied = mujoco.mjtState.mjSTATE_FULLPHYSICS.value, mujoco.mjtState.mjSTATE_QFRC_APPLIED.value
    size, dt = mujoco.mj_stateSize(robot, full), robot.opt.timestep
    at_v = slice(1 + robot.nq, 1 + robot.nq + robot.nv)  # after the time and the positions

    def stepping(threads, q, v, x):
        Q, V, X = layout.to("forward", q, v, x)
        if len(q) == 1:
            data[0].qpos[:], data[0].qvel[:], data[0].qfrc_applied[:] = Q[0], V[0], X[0]

            def one():
                mujoco.mj_forward(robot, data[0])
                return data[0].qacc

            return one
        start = np.zeros((len(q), size))
        start[:, 1 : at_v.start], start[:, at_v] = Q, V
        pool = rollout.Rollout(nthread=threads if threads > 1 else 0)
        outputs = {"state": np.zeros((len(q), 1, size)), "sensordata": np.zeros((len(q), 1, robot.nsensordata))}
        forces = np.ascontiguousarray(X[:, None, :])

        def many():
            pool.rollout(robot, data[:threads], start, forces, control_spec=applied, **outputs)
            return (outputs["state"][:, 0, at_v] - V) / dt

        return many

    def inverse(q, v, x):
        Q, V, X = layout.to("inverse", q, v, x)
        forces, d = np.zeros(V.shape), data[0]

        def many():
            for i in range(len(Q)):
                d.qpos[:], d.qvel[:], d.qacc[:] = Q[i], V[i], X[i]
                mujoco.mj_kinematics(robot, d)
                mujoco.mj_comPos(robot, d)
                mujoco.mj_comVel(robot, d)
                mujoco.mj_rne(robot, d, 1, forces[i])
            return forces

        return many

    def answer(name, q, v, y):
        return layout.back(name, q, v, np.array(y, ndmin=2))

    forward = partial(answer, "forward")
    return {
        ("mujoco", "forward"): Engine(partial(stepping, 1), forward),
        ("mujoco 2", "forward"): Engine(partial(stepping, 2), forward, _several),
        ("mujoco", "inverse"): Engine(inverse, partial(answer, "inverse")),
    }


# --- JAX: functions of one state, names of the hinges in the engine's order, layout of a floating base


def _brax(model: str, folder: Path):
    """Generalised pipeline: mass matrix, bias forces and a Cholesky solve, as its own step has them."""
    import jax
    from brax import kinematics
    from brax.generalized import dynamics, mass
    from brax.generalized.base import State
    from brax.io import mjcf

    system = mjcf.loads((folder / f"{model}.xml").read_text(encoding="utf-8"))

    def forward(q, v, tau):
        state = dynamics.transform_com(system, State.init(q, v, *kinematics.forward(system, q, v)))
        M = mass.matrix(system, state)
        return jax.scipy.linalg.solve(M, dynamics.forward(system, state, tau), assume_a="pos")

    names = [n.replace("link", "joint") for n in system.link_names if n != "base"]
    return {"forward": forward}, names, mixed_base, from_mixed_base


def _mjx(model: str, folder: Path):
    """Smooth dynamics: what `mjx.forward` does before sensors and constraints."""
    from mujoco import mjx

    robot = _mujoco_model(model, folder)
    system = mjx.put_model(robot)
    start = mjx.make_data(robot)

    def forward(q, v, tau):
        data = start.replace(qpos=q, qvel=v, qfrc_applied=tau)
        for stage in (mjx.fwd_position, mjx.fwd_velocity, mjx.fwd_actuation, mjx.fwd_acceleration):
            data = stage(system, data)
        return data.qacc_smooth

    def inverse(q, v, a):
        data = start.replace(qpos=q, qvel=v, qacc=a)
        for stage in (mjx.kinematics, mjx.com_pos, mjx.com_vel):
            data = stage(system, data)
        return mjx.rne(system, data, True).qfrc_bias

    return {"forward": forward, "inverse": inverse}, _mujoco_hinges(robot), mixed_base, from_mixed_base


def _frax(model: str, folder: Path):
    """Mass matrix, bias forces and a Cholesky solve; `rnea`."""
    from frax.core.robot import Robot

    robot = Robot(str(folder / f"{model}.urdf"), floating_base="quaternion" if size(model)[1] else None)
    up = np.array([0.0, 0.0, 9.81, 0.0, 0.0, 0.0])

    def forward(q, v, tau):
        return robot.forward_dynamics(q, v, tau, None)

    def inverse(q, v, a):
        return robot.rnea(q, v, a, up.astype(q.dtype), None)

    names = [n for n in robot.joint_names if n.startswith("joint")]
    return {"forward": forward, "inverse": inverse}, names, mixed_base, from_mixed_base


def _jaxsim(model: str, folder: Path):
    """Articulated-body algorithm and recursive Newton-Euler, in its body-fixed representation."""
    import jax.numpy as jnp
    import jaxsim
    import jaxsim.api as js
    import rod
    from jaxsim.api.common import VelRepr

    jaxsim.logging.set_logging_level(jaxsim.logging.LoggingLevel.ERROR)
    description = rod.Sdf.load((folder / f"{model}.sdf").read_text(encoding="utf-8"), is_urdf=False)
    robot = js.model.JaxSimModel.build_from_model_description(model_description=description.models()[0])
    floating = size(model)[1]

    def data(q, v):
        start = {"model": robot, "velocity_representation": VelRepr.Body}
        if not floating:
            return js.data.JaxSimModelData.build(**start, joint_positions=q, joint_velocities=v)
        start |= {"base_position": q[:3], "base_quaternion": q[3:7], "joint_positions": q[7:]}
        start |= {"base_linear_velocity": v[:3], "base_angular_velocity": v[3:6], "joint_velocities": v[6:]}
        return js.data.JaxSimModelData.build(**start)

    def forward(q, v, tau):
        base, hinges = js.model.forward_dynamics_aba(robot, data(q, v), joint_forces=tau[6:] if floating else tau)
        return jnp.concatenate([base, hinges]) if floating else hinges

    def inverse(q, v, a):
        given = {"base_acceleration": a[:6], "joint_accelerations": a[6:]} if floating else {"joint_accelerations": a}
        base, hinges = js.model.inverse_dynamics(robot, data(q, v), **given)
        return jnp.concatenate([base, hinges]) if floating else hinges

    return {"forward": forward, "inverse": inverse}, robot.joint_names(), body_base, from_body_base
