"""Rotations of files in NumPy: readers work on known numbers, long before anything is traced."""

import math

import numpy as np


def rotation_matrix(quaternion: tuple[float, ...]) -> np.ndarray:
    """R [3, 3] of a unit quaternion (w, x, y, z): v_parent = R v_frame."""
    w, u = quaternion[0], np.array(quaternion[1:])
    cross = np.array([[0.0, -u[2], u[1]], [u[2], 0.0, -u[0]], [-u[1], u[0], 0.0]])
    return np.eye(3) + 2.0 * w * cross + 2.0 * cross @ cross


def quaternion_from_rpy(roll: float, pitch: float, yaw: float) -> tuple[float, float, float, float]:
    """Quaternion (w, x, y, z) of URDF's fixed-axis angles, R = Rz(yaw) Ry(pitch) Rx(roll) [rad]."""
    (cr, sr), (cp, sp), (cy, sy) = ((math.cos(0.5 * x), math.sin(0.5 * x)) for x in (roll, pitch, yaw))
    return (
        cy * cp * cr + sy * sp * sr,
        cy * cp * sr - sy * sp * cr,
        cy * sp * cr + sy * cp * sr,
        sy * cp * cr - cy * sp * sr,
    )
