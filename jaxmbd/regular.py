"""Is every joint able to move? A check of the mass matrix of a finished system, in plain NumPy.

Bodies without mass are welcome as long as every joint moves some inertia. Where one does not, forward dynamics would
divide by zero; here the joint is named instead. Only systems with a massless body, a point or a rod need the check.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import ArrayLike

from jaxmbd.joints import Joint, Screws
from jaxmbd.system import System
from jaxmbd.topology import WORLD

SINGULAR = 1e-11  # an eigenvalue of the scaled mass matrix at or below this is zero


def check_regular(system: System) -> bool:
    """Raise when the mass matrix is singular at a configuration in general position.

    Returns: whether it is known to be regular without the couplings too.
    Raises: ValueError naming the joint whose motion needs no force.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(system)):
        return False
    system = jax.tree.map(np.asarray, system)
    if _all_bodies_solid(system):
        return True
    M = tree = _mass_matrix(system) + np.diag(system.armature)
    layout = system.topology.layout
    if system.topology.couplings:
        G = np.zeros((layout.nv_full, len(layout.v_keep)))
        G[np.arange(layout.nv_full), layout.v_source] = 1.0
        G[layout.v_coupled] *= system.ratio[:, None]
        tree, M = M, G.T @ M @ G
    least, idle = _least_mode(M)
    if least > SINGULAR:
        return not system.topology.couplings or _least_mode(tree)[0] > SINGULAR
    velocity = int(layout.v_keep[np.argmax(np.abs(idle))])
    joint = system.topology.joints[int(np.searchsorted(layout.v_start, velocity, side="right")) - 1]
    raise ValueError(
        f"Joint {joint.name!r} ({joint.kind}) can move without moving any inertia, so that forces on it have no finite "
        f"answer. Give {system.topology.links[joint.child]!r} or a body outboard of it mass or inertia, "
        "or give the joint armature."
    )


def _least_mode(M: np.ndarray) -> tuple[float, np.ndarray]:
    """Least eigenvalue of a mass matrix scaled to a unit diagonal, and its vector."""
    diagonal = np.diagonal(M)
    idle = diagonal <= 1e-14 * max(diagonal.max(initial=0.0), 1e-300)
    scale = 1.0 / np.sqrt(np.where(idle, 1.0, diagonal))
    values, vectors = np.linalg.eigh(np.where(idle[:, None] | idle[None], 0.0, M) * scale * scale[:, None])
    return (values[0], vectors[:, 0]) if len(values) else (1.0, diagonal)


def _all_bodies_solid(system: System) -> bool:
    """Whether every moving body has a link with mass and a positive definite inertia."""
    layout = system.topology.layout
    six = system.link_inertia
    tensor = six[:, np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])]
    least = np.linalg.eigvalsh(tensor)[:, 0] if len(six) else np.zeros(0)
    solid = (system.link_mass > 0) & (least > 1e-9 * np.abs(six).max(-1, initial=1e-300))
    return set(layout.body_of_link[solid]) >= set(range(layout.nb))


def _mass_matrix(system: System) -> np.ndarray:
    """Sum of J^T I J over all links at a random configuration, velocities in declaration order."""
    topology, layout = system.topology, system.topology.layout
    random = np.random.default_rng(0)
    nv = layout.nv_full
    # rotation, position, angular and linear Jacobian of every link
    at: dict[int, tuple] = {WORLD: (np.eye(3), np.zeros(3), np.zeros((3, nv)), np.zeros((3, nv)))}
    M = np.zeros((nv, nv))
    pending = list(enumerate(topology.joints))
    while pending:
        i, entry = next((i, entry) for i, entry in pending if entry.parent in at)
        pending.remove((i, entry))
        R, p, Jw, Jp = (x.copy() for x in at[entry.parent])

        def advance(d, R_step, R, p, Jw, Jp):
            d = R @ d
            return R @ R_step, p + d, Jw, Jp + np.cross(Jw, d, axis=0)

        R, p, Jw, Jp = advance(system.in_parent_position[i], _matrix(system.in_parent_rotation[i]), R, p, Jw, Jp)
        joint, first = system.joint(entry.name), int(layout.v_start[i])
        if isinstance(joint, Screws):
            for k, turns in enumerate(joint.turning):
                offset = _matrix(joint.offset_quaternion[k])
                R, p, Jw, Jp = advance(joint.offset_position[k], offset, R, p, Jw, Jp)
                axis, q = joint.axis[k] / np.linalg.norm(joint.axis[k]), random.uniform(0.3, 1.2)
                gain = joint.pitch[k] if joint.helical[k] else 0.0 if turns else 1.0
                R, p, Jw, Jp = advance(gain * q * axis, _turn(axis, q) if turns else np.eye(3), R, p, Jw, Jp)
                Jw[:, first + k] = R @ axis if turns else 0.0
                Jp[:, first + k] = gain * (R @ axis)
        else:
            q = np.asarray(joint.neutral()) + random.uniform(0.3, 1.2, joint.nq)
            step, position, modes = (np.asarray(x) for x in _pose_and_modes(joint, q))
            angular, linear = R @ modes.reshape(2, 3, -1)
            R, p, Jw, Jp = advance(position, step, R, p, Jw, Jp)
            Jw[:, first : first + joint.nv], Jp[:, first : first + joint.nv] = angular, linear
        back = _matrix(system.in_child_rotation[i]).T
        R, p, Jw, Jp = advance(-back @ system.in_child_position[i], back, R, p, Jw, Jp)
        at[entry.child] = R, p, Jw, Jp
        Jc = Jp + np.cross(Jw, R @ system.link_com[entry.child], axis=0)
        tensor = R @ system.link_inertia[entry.child][np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])] @ R.T
        M += system.link_mass[entry.child] * Jc.T @ Jc + Jw.T @ tensor @ Jw
    return M


@jax.jit
def _pose_and_modes(joint: Joint, q):
    pose = joint.pose(q)
    return pose.rotation, pose.position, joint.modes(q)


def _matrix(quaternion: ArrayLike) -> np.ndarray:
    quaternion = np.asarray(quaternion)
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _turn(axis: ArrayLike, angle: float) -> np.ndarray:
    return _matrix(np.append(np.cos(angle / 2), np.sin(angle / 2) * np.asarray(axis)))
