"""The same closed-loop mechanism in Pinocchio (rigid point constraints), MuJoCo and MJX (soft equalities)."""

from __future__ import annotations

import dataclasses
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import numpy as np

import jaxmbd as mb
from jaxmbd.joints import Quaternion


def pinocchio_engine(system: mb.System, damping: float, iterations: int) -> Callable:
    """`constraintDynamics` with 3-D point constraints, state by state, by proximal iterations.

    Args:
      damping: the proximal parameter mu.
      iterations: at most that many, until the residual is at 1e-12.
    """
    import pinocchio as pin

    model = pin.Model()
    model.gravity.linear = np.asarray(system.gravity, float)
    topology = system.topology
    at = {-1: (0, pin.SE3.Identity())}  # link -> joint, and place of the link in it
    rows_q, rows_v = np.zeros(system.nq, int), np.zeros(system.nv, int)

    def place(position, quaternion):
        w, x, y, z = (float(c) for c in quaternion)
        return pin.SE3(pin.Quaternion(w, x, y, z), np.asarray(position, float))

    for i, entry in enumerate(topology.joints):
        parent, X = at[entry.parent]
        X = X * place(system.in_parent_position[i], system.in_parent_rotation[i])
        record = system.joint(entry.name)
        if isinstance(record, Quaternion):
            kind = pin.JointModelFreeFlyer() if record.translating else pin.JointModelSpherical()
            parent, X = model.addJoint(parent, kind, X, entry.name), pin.SE3.Identity()
            q, v, free = model.joints[parent].idx_q, model.joints[parent].idx_v, record.translating
            rows_q[q : q + record.nq] = (
                np.r_[4:7, 1:4, 0] + system.q_slice(entry.name).start
                if free
                else (np.array([1, 2, 3, 0]) + system.q_slice(entry.name).start)
            )
            rows_v[v : v + record.nv] = (np.r_[3:6, 0:3] if free else np.arange(3)) + system.v_slice(entry.name).start
        else:
            for k, turning in enumerate(record.turning):
                X = X * place(record.offset_position[k], record.offset_quaternion[k])
                axis = np.asarray(record.axis[k], float)
                kind = pin.JointModelRevoluteUnaligned(axis) if turning else pin.JointModelPrismaticUnaligned(axis)
                parent, X = model.addJoint(parent, kind, X, f"{entry.name}_{k}"), pin.SE3.Identity()
                rows_q[model.joints[parent].idx_q] = system.q_slice(entry.name).start + k
                rows_v[model.joints[parent].idx_v] = system.v_slice(entry.name).start + k
        X = X * place(system.in_child_position[i], system.in_child_rotation[i]).inverse()
        at[entry.child] = parent, X
        I = np.asarray(system.link_inertia[entry.child], float)[np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])]
        mass, com = float(system.link_mass[entry.child]), np.asarray(system.link_com[entry.child], float)
        model.appendBodyToJoint(parent, pin.Inertia(mass, com, I), X)

    def end(frame):
        if frame < len(topology.links):
            return at[frame]
        k = frame - len(topology.links)
        joint, X = at[topology.frames[k][1]]
        return joint, X * place(system.frame_position[k], system.frame_rotation[k])

    contacts = pin.StdVec_RigidConstraintModel()
    for entry in topology.constraints:
        (first, X1), (second, X2) = (end(frame) for frame in entry.frames)
        contacts.append(pin.RigidConstraintModel(pin.ContactType.CONTACT_3D, model, first, X1, second, X2, pin.LOCAL))
    data = model.createData()
    datas = pin.StdVec_RigidConstraintData()
    for contact in contacts:
        datas.append(contact.createData())
    settings = pin.ProximalSettings(1e-12, damping, iterations)
    pin.initConstraintDynamics(model, data, contacts, datas)

    def prepare(q, v, tau):
        Q, V, T = (np.ascontiguousarray(y[:, r]) for y, r in ((q, rows_q), (v, rows_v), (tau, rows_v)))
        back, found = np.argsort(rows_v), np.zeros_like(V)

        def call():
            for i in range(len(Q)):
                found[i] = pin.constraintDynamics(model, data, Q[i], V[i], T[i], contacts, datas, settings)
            return found[:, back]

        return call

    return prepare


class Soft:
    """The mechanism as MuJoCo's model with a `connect` for every closure, contacts off, and the layouts of both.

    Args:
      impedance: of the constraints; an acceleration misses what they ask for by about 1 - impedance. 0.9999 is the
        stiffest that MuJoCo takes.
    """

    def __init__(self, system: mb.System, impedance: float):
        import mujoco

        topology = dataclasses.replace(system.topology, constraints=())
        tree = dataclasses.replace(system, constraints=(), topology=topology)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            root = ElementTree.fromstring(mb.to_mjcf(tree, strict=False))
        ElementTree.SubElement(ElementTree.SubElement(root, "option"), "flag", contact="disable", limit="disable")
        equality = ElementTree.SubElement(root, "equality")
        names = system.topology.frame_names
        stiff = {"solref": "0.001 1", "solimp": f"{impedance} {impedance} 0.001"}
        for entry in system.topology.constraints:
            first, second = (names[frame] for frame in entry.frames)
            ElementTree.SubElement(equality, "connect", site1=first, site2=second, **stiff)
        self.model = mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding="unicode"))
        self.rows_q, self.rows_v, self.free = np.zeros(system.nq, int), np.zeros(system.nv, int), None
        for joint in system.joint_names:
            record, at_q, at_v = system.joint(joint), system.q_slice(joint), system.v_slice(joint)
            several = record.nv > 1 and not isinstance(record, Quaternion)
            for k, name in enumerate([f"{joint}_{k + 1}" for k in range(record.nv)] if several else [joint]):
                j = self.model.joint(name)
                q, v = int(j.qposadr[0]), int(j.dofadr[0])
                if isinstance(record, Quaternion) and record.translating:
                    self.rows_q[q : q + 7] = at_q.start + np.r_[4:7, 0:4]
                    self.rows_v[v : v + 6] = at_v.start + np.r_[3:6, 0:3]
                    self.free = (v, at_q.start)
                else:
                    n = record.nq if isinstance(record, Quaternion) else 1
                    m = record.nv if isinstance(record, Quaternion) else 1
                    self.rows_q[q : q + n] = at_q.start + k + np.arange(n)
                    self.rows_v[v : v + m] = at_v.start + k + np.arange(m)

    def to(self, q, v, tau):
        """States and forces in MuJoCo's order; the free joint's linear velocity is in world axes there."""
        Q, V, T = (np.array(y[:, r]) for y, r in ((q, self.rows_q), (v, self.rows_v), (tau, self.rows_v)))
        if self.free is not None:
            start, _ = self.free
            for y in (V, T):
                y[:, start : start + 3] = np.einsum("nij,nj->ni", self._rotations(q), y[:, start : start + 3])
        return Q, V, T

    def back(self, q, v, found):
        """Accelerations in jaxmbd's order and axes."""
        result = np.array(found, float)
        if self.free is not None:
            start, _ = self.free
            local = np.einsum("nji,nj->ni", self._rotations(q), result[:, start : start + 3])
            own = v[:, self.rows_v[start : start + 6]]  # [linear, angular] in body axes
            result[:, start : start + 3] = local - np.cross(own[:, 3:], own[:, :3])
        return result[:, np.argsort(self.rows_v)]

    def _rotations(self, q):
        at = self.free[1]
        return np.stack([np.asarray(mb.Pose((0, 0, 0), x).rotation) for x in q[:, at : at + 4]])


def mujoco_engine(system: mb.System, impedance: float) -> Callable:
    """`mj_forward`, state by state."""
    import mujoco

    soft = Soft(system, impedance)
    data = mujoco.MjData(soft.model)

    def prepare(q, v, tau):
        Q, V, T = soft.to(q, v, tau)
        found = np.zeros_like(V)

        def call():
            for i in range(len(Q)):
                data.qpos[:], data.qvel[:], data.qfrc_applied[:] = Q[i], V[i], T[i]
                mujoco.mj_forward(soft.model, data)
                found[i] = data.qacc
            return found

        call.back = lambda found: soft.back(q, v, found)
        return call

    return prepare


def mjx_engine(system: mb.System, impedance: float) -> Callable:
    """`mjx.forward` of the batch, compiled; float64 where 64-bit types are on."""
    import jax
    import jax.numpy as jnp
    from mujoco import mjx

    soft = Soft(system, impedance)
    model = mjx.put_model(soft.model)
    start = mjx.make_data(model)

    @jax.jit
    @jax.vmap
    def forward(q, v, tau):
        return mjx.forward(model, start.replace(qpos=q, qvel=v, qfrc_applied=tau)).qacc

    def prepare(q, v, tau):
        x = tuple(jnp.asarray(y) for y in soft.to(q, v, tau))

        def call():
            return jax.block_until_ready(forward(*x))

        call.back = lambda found: soft.back(q, v, found)
        return call

    return prepare
