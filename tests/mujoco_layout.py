"""Between MuJoCo's qpos, qvel, qacc, qfrc and this library's q, v, a, tau, joint by joint, in plain NumPy.

MuJoCo keeps [position, quaternion] and [linear in world axes, angular in body axes] for a free joint; here both orders
are swapped and the linear part is in body axes, so that its rate has a term more. Other joints are the same.
"""

import numpy as np


def rotation(quaternion):
    """R of a unit quaternion w, x, y, z, by its columns' dot products."""
    w, x, y, z = quaternion
    return np.array(
        [
            [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
        ]
    )


class Layout:
    """Where the joints of MuJoCo's order sit; `joints` are (name, is it free, start in qpos, start in qvel)."""

    def __init__(self, system, joints):
        self.system, self.joints = system, joints
        assert {name for name, *_ in joints} == set(system.joint_names)

    def q(self, qpos):
        q = np.zeros(self.system.nq)
        for name, free, start, _ in self.joints:
            at = self.system.q_slice(name)
            own = qpos[start : start + at.stop - at.start]
            q[at] = np.concatenate([own[3:], own[:3]]) if free else own
        return q

    def T(self, qpos):
        """The matrix of qvel = T v."""
        T = np.zeros((self.system.nv, self.system.nv))
        for name, free, start, row in self.joints:
            at = self.system.v_slice(name)
            own = np.eye(at.stop - at.start)
            if free:
                R, zero = rotation(qpos[start + 3 : start + 7]), np.zeros((3, 3))
                own = np.block([[zero, R], [np.eye(3), zero]])
            T[row : row + len(own), at] = own
        return T

    def v(self, qpos, qvel):
        return self.T(qpos).T @ qvel  # orthogonal

    def a(self, qpos, qvel, qacc):
        v, a = self.v(qpos, qvel), self.T(qpos).T @ qacc
        for name, free, *_ in self.joints:
            if free:
                at = self.system.v_slice(name)
                omega, linear = v[at][:3], v[at][3:]
                a[at] -= np.concatenate([np.zeros(3), np.cross(omega, linear)])
        return a

    def qacc(self, qpos, qvel, a):
        """The inverse of `a`."""
        return self.T(qpos) @ (a - self.a(qpos, qvel, np.zeros_like(qvel)))


def layout_of_model(system, model, names):
    """The layout of a compiled `mujoco.MjModel`."""
    starts = zip(model.jnt_type, model.jnt_qposadr, model.jnt_dofadr, strict=True)
    rows = [(name, kind == 0, int(q), int(v)) for name, (kind, q, v) in zip(names, starts, strict=True)]
    return Layout(system, rows)
