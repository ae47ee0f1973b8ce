"""What force elements ask of a system: the motion of the frames they sit on, from one outward sweep.

The sweep visits only the slots between the base and the frames asked for, and everything stays in components.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxmbd.elements.protocol import BodyState, FrameState
from jaxmbd.kinematics import base_motion, place
from jaxmbd.packing import Packed, locate, to_slots
from jaxmbd.spatial import Mat3, Vec3
from jaxmbd.system import System
from jaxmbd.tree import Tree, ancestors, scan_outward

Side = tuple[FrameState, Vec3, np.ndarray] | tuple[BodyState, Vec3, np.ndarray]
"""Motion of one side of an element, the arms from the origins of the slots that carry it, and these slots."""


class Motions:
    """Motion of the slots that carry given frames, at a state. Lives while a function is traced, never longer."""

    def __init__(self, system: System, packed: Packed, q, v, t, slots: Sequence[int]):
        """Args:
        slots: those whose motion will be asked for; the base (-1) may be among them.
        """
        self.system, self.packed = system, packed
        base = base_motion(system, t)
        at_rest = Vec3.of(base.velocity[:3]), Vec3.of(base.velocity[3:])
        self.base = FrameState(Mat3.of(base.rotation), Vec3.of(base.position), *at_rest)
        tree = system.topology.layout.tree
        needed = sorted({slot for slot in slots if slot >= 0})
        on_path = np.any(ancestors(tree.parents)[:, needed], axis=1) if needed else np.zeros(tree.size, bool)
        visited = np.flatnonzero(on_path)
        self.row = np.full(tree.size + 1, -1)  # the base, -1, is the last entry
        self.row[visited] = np.arange(len(visited))
        xs = (packed.slots, locate(system, packed, q, v), to_slots(system, v))
        if len(visited) < tree.size:
            xs = jax.tree.map(lambda leaf: leaf[visited], xs)
            tree = Tree.from_parents([int(self.row[tree.parents[i]]) for i in visited])
        self.states = scan_outward(tree, _step, self.base, xs) if len(visited) else None

    def at_slots(self, slots: np.ndarray | int) -> FrameState:
        """Motion of slots (base -1) at their origins."""
        rows = self.row[slots]
        if np.ndim(rows) == 0:
            if self.states is None or rows < 0:
                return self.base
            return jax.tree.map(lambda leaf: leaf[int(rows)], self.states)
        if self.states is None or np.all(rows < 0):
            return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, rows.shape), self.base)
        states = jax.tree.map(lambda leaf: leaf[rows], self.states)
        if np.all(rows >= 0):
            return states
        return jax.tree.map(lambda own, moved: jnp.where(rows < 0, own, moved), self.base, states)

    def frames(self, names: str | tuple[str, ...], point) -> tuple[FrameState, Vec3, np.ndarray]:
        """Motion of frames at their points, the arms from their slots' origins, and the slots."""
        single = isinstance(names, str)
        group = (names,) if single else names
        slots = np.array([self.system.slot_of_frame(name) for name in group])
        index = np.array([self.system.frame_index(name) for name in group])
        R_in, p_in = self._placement(index)
        slot = self.at_slots(slots[0] if single else slots)
        if single:
            R_in, p_in = R_in[0], p_in[0]
        R_in, p_in = Mat3.of(R_in), Vec3.of(p_in)
        if point is not None:
            p_in = p_in + R_in @ Vec3.of(point)
        arm = slot.rotation @ p_in
        moved = slot.velocity + slot.omega.cross(arm)
        return FrameState(slot.rotation @ R_in, slot.position + arm, slot.omega, moved), arm, slots

    def _placement(self, index):
        R, p = self.packed.frame_rotation[index], self.packed.frame_position[index]
        if np.all(index >= 0):
            return R, p
        fixed = index < 0
        return (
            jnp.where(fixed[:, None, None], jnp.eye(3, dtype=R.dtype)[None], R),
            jnp.where(fixed[:, None], 0.0, p),
        )

    def bodies(self) -> tuple[BodyState, Vec3, np.ndarray]:
        """Motion and inertia of all moving bodies at their coms, the arms to these, and the bodies' slots."""
        slots = self.system.topology.layout.last_slot
        state = self.at_slots(slots)
        own = jax.tree.map(lambda leaf: leaf[slots], self.packed.slots.inertia)
        heavy = own.mass > 0
        com = jnp.where(heavy, 1.0 / jnp.where(heavy, own.mass, 1.0), 0.0) * own.first_moment
        inertia = own.shift(-com).tensor.rotated(state.rotation)
        arm = state.rotation @ com
        velocity = state.velocity + state.omega.cross(arm)
        return BodyState(own.mass, inertia, state.rotation, state.position + arm, state.omega, velocity), arm, slots


def _step(parent: FrameState, xs):
    slot, x, v = xs
    R, l, mode = place(parent.rotation, slot, x)
    relative = v * mode.motion
    velocity = parent.velocity + parent.omega.cross(l)
    if relative.linear is not None:
        velocity = velocity + relative.linear
    state = FrameState(R, parent.position + l, parent.omega + relative.angular, velocity)
    return state, state
