"""The same closed-loop mechanism in Pinocchio (rigid point constraints) and in MuJoCo (soft equalities)."""

from __future__ import annotations

import dataclasses
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import numpy as np

import jaxmbd as mb
from jaxmbd.joints import Quaternion


def pinocchio_engine(system: mb.System) -> Callable:
    """`constraintDynamics` with 3-D point constraints, state by state; proximal where rows are redundant."""
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
    settings = pin.ProximalSettings(1e-12, 1e-8, 50)
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


def mujoco_engine(system: mb.System) -> Callable:
    """`mj_forward` with a stiff `connect` for every closure, contacts off, state by state."""
    import mujoco

    tree = dataclasses.replace(system, constraints=(), topology=dataclasses.replace(system.topology, constraints=()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = ElementTree.fromstring(mb.to_mjcf(tree, strict=False))
    ElementTree.SubElement(ElementTree.SubElement(root, "option"), "flag", contact="disable", limit="disable")
    equality = ElementTree.SubElement(root, "equality")
    names = system.topology.frame_names
    for entry in system.topology.constraints:
        first, second = (names[frame] for frame in entry.frames)
        stiff = {"solref": "0.001 1", "solimp": "0.9999 0.9999 0.001"}
        ElementTree.SubElement(equality, "connect", site1=first, site2=second, **stiff)
    model = mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding="unicode"))
    data = mujoco.MjData(model)
    rows_q, rows_v, free = np.zeros(system.nq, int), np.zeros(system.nv, int), None
    for joint in system.joint_names:
        record, at_q, at_v = system.joint(joint), system.q_slice(joint), system.v_slice(joint)
        several = record.nv > 1 and not isinstance(record, Quaternion)
        for k, name in enumerate([f"{joint}_{k + 1}" for k in range(record.nv)] if several else [joint]):
            j = model.joint(name)
            q, v = int(j.qposadr[0]), int(j.dofadr[0])
            if isinstance(record, Quaternion) and record.translating:
                rows_q[q : q + 7], rows_v[v : v + 6] = at_q.start + np.r_[4:7, 0:4], at_v.start + np.r_[3:6, 0:3]
                free = (v, at_q.start)
            else:
                n = record.nq if isinstance(record, Quaternion) else 1
                m = record.nv if isinstance(record, Quaternion) else 1
                rows_q[q : q + n] = at_q.start + k + np.arange(n)
                rows_v[v : v + m] = at_v.start + k + np.arange(m)

    def prepare(q, v, tau):
        if free is not None:  # MuJoCo's linear velocity is in world axes
            start, at = free
            R = np.stack([np.asarray(mb.Pose((0, 0, 0), x).rotation) for x in q[:, at : at + 4]])
        Q, V, T = (np.array(y[:, r]) for y, r in ((q, rows_q), (v, rows_v), (tau, rows_v)))
        omega = None
        if free is not None:
            for y in (V, T):
                y[:, start : start + 3] = np.einsum("nij,nj->ni", R, y[:, start : start + 3])
            omega = V[:, start + 3 : start + 6].copy()
        back, found = np.argsort(rows_v), np.zeros_like(V)

        def call():
            for i in range(len(Q)):
                data.qpos[:], data.qvel[:], data.qfrc_applied[:] = Q[i], V[i], T[i]
                mujoco.mj_forward(model, data)
                found[i] = data.qacc
            result = found.copy()
            if free is not None:
                local = np.einsum("nji,nj->ni", R, result[:, start : start + 3])
                speed = np.einsum("nji,nj->ni", R, V[:, start : start + 3])
                result[:, start : start + 3] = local - np.cross(omega, speed)
            return result[:, back]

        return call

    return prepare
