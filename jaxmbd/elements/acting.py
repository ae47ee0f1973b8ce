"""Force elements at a state: their motion, what they do to the bodies and joints, their energies.

All elements share one sweep for the motion of their frames. What acts on one body is summed, and reaches the dynamics
as one force per slot: by gathers, which are cheap on every platform, not by scatters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd.curves import linearised
from jaxmbd.elements.applied import ConstantWrench
from jaxmbd.elements.motion import Motions, Side
from jaxmbd.elements.protocol import BodyElement, Element, ForceElement, JointElement, JointState, Sides, astype
from jaxmbd.forces import BodyForces, Wrench
from jaxmbd.packing import Packed, reduced_forces
from jaxmbd.rnea import body_forces
from jaxmbd.spatial import Force, Mat3, Vec3
from jaxmbd.system import System


def checked(system: System, elements: Sequence) -> tuple[Element, ...]:
    """Elements that fit a system; wrenches become elements.

    Raises: TypeError for what is no element, KeyError for names that the system has not, ValueError where two elements
      take the command of one joint.
    """
    made, taken = [], set()
    for element in elements:
        if isinstance(element, Wrench):
            element = ConstantWrench(element)
        if not isinstance(element, ForceElement | BodyElement | JointElement):
            raise TypeError(
                f"forces holds a {type(element).__name__}; expected force elements (jaxmbd.elements) or Wrenches."
            )
        if isinstance(element, ForceElement):
            for name in (name for side in element.frames for name in _group(side)):
                system.frame_index(name)
        elif isinstance(element, JointElement):
            for joint in element.joints:
                system.v_slice(joint)
                if element.commanded and joint in taken:
                    raise ValueError(
                        f"Two elements take the command of joint {joint!r}; expected one actuator a joint."
                    )
            taken |= set(element.joints) if element.commanded else set()
        made.append(element)
    return tuple(made)


def prepared(elements: tuple[Element, ...], dtype) -> tuple[Element, ...]:
    """The elements with their numbers in one floating-point type."""
    return tuple(astype(element, dtype) for element in elements)


def with_rotors(system: System, elements: Sequence) -> System:
    """The system with the armature that elements add to their joints."""
    armature = system.armature
    for element in elements:
        own = element.armature() if isinstance(element, JointElement) else None
        if own is not None:
            armature = armature.at[system.topology.layout.v_keep[_velocities(system, element)]].add(own)
    return dataclasses.replace(system, armature=armature)


def initial_states(system: System, elements: Sequence[Element]) -> Float[Array, " nz"]:
    """The elements' own states at the start of a simulation, one after the other."""
    dtype = system.gravity.dtype
    parts = [e.initial_state(len(_velocities(system, e))) for e in elements if isinstance(e, JointElement)]
    return jnp.concatenate([jnp.zeros(0, dtype), *(part.astype(dtype) for part in parts)])


def stateless(system: System, elements: Sequence, what: str) -> tuple[Element, ...]:
    """`checked`, and refused where an element has a state of its own."""
    made = checked(system, elements)
    for i, element in enumerate(made):
        if initial_states(system, (element,)).size:
            raise ValueError(
                f"forces[{i}], {type(element).__name__}, has a state of its own (a lag), which {what} cannot follow; "
                "leave its lag out, or use simulate."
            )
    return made


def joint_states(system: System, elements: Sequence[Element], q, v, z, command) -> dict[int, JointState]:
    """What every joint element sees."""
    states, start = {}, 0
    for i, e in enumerate(elements):
        if isinstance(e, JointElement):
            at = _velocities(system, e)
            size = jax.eval_shape(partial(e.initial_state, len(at))).shape[0]
            states[i] = JointState(q[_coordinates(system, e)], v[at], command[at], z[start : start + size])
            start += size
    return states


def states_after(system: System, elements: Sequence[Element], q, v, z, command, t, h) -> Float[Array, " nz"]:
    """The elements' own states a time h after a step began at (t, q, v, z) with a command."""
    states = joint_states(system, elements, q, v, z, command)
    parts = [
        element.state_after(states[i], t, h) for i, element in enumerate(elements) if isinstance(element, JointElement)
    ]
    return jnp.concatenate([z[:0], *parts])


def generalised_forces(system: System, packed: Packed, q, wrenches: tuple) -> Float[Array, " nv"]:
    """J^T of wrenches: what they do on the velocities."""
    rest = jnp.zeros(system.nv, q.dtype)
    system = linearised(dataclasses.replace(system, base_motion=None), q, rest)
    forces = body_forces(system, packed, q, rest, rest, wrenches, jnp.zeros((), q.dtype), gravity=False)
    return -reduced_forces(system, forces)


def _velocities(system: System, element: JointElement) -> np.ndarray:
    return np.concatenate([np.arange(system.nv)[system.v_slice(joint)] for joint in element.joints])


def _coordinates(system: System, element: JointElement) -> np.ndarray:
    return np.concatenate([np.arange(system.nq)[system.q_slice(joint)] for joint in element.joints])


class Acting:
    """The elements at a state: the motion of everything they look at. Lives while a function is traced."""

    def __init__(self, system: System, packed: Packed, elements: tuple[Element, ...], q, v, z, command, t):
        self.system, self.packed, self.t, self.command = system, packed, t, command
        self.count = len(elements)
        self.spatial: dict[int, tuple[Any, Any, Sequence[Side]]] = {}  # element, the motion that it sees, its sides
        self.joints: dict[int, tuple[JointElement, np.ndarray, JointState]] = {}
        self.done: dict[int, list[Force]] = {}
        slots: set[int] = set()
        for e in elements:
            if isinstance(e, BodyElement):
                slots |= {int(slot) for slot in system.topology.layout.last_slot}
            elif isinstance(e, ForceElement):
                slots |= {system.slot_of_frame(name) for side in e.frames for name in _group(side)}
        if slots:
            motions = Motions(system, packed, q, v, t, sorted(slots))
            for i, e in enumerate(elements):
                if isinstance(e, BodyElement):
                    side = motions.bodies()
                    self.spatial[i] = e, side[0], [side]
                elif isinstance(e, ForceElement):
                    sides = [motions.frames(*side) for side in zip(e.frames, e.points, strict=True)]
                    self.spatial[i] = e, tuple(state for state, _, _ in sides), sides
        states = joint_states(system, elements, q, v, z, command)
        for i, e in enumerate(elements):
            if isinstance(e, JointElement):
                self.joints[i] = e, _velocities(system, e), states[i]

    def wrenches(self, i: int) -> list[Force]:
        """What element i does on each of its sides, at its points."""
        if i in self.done:
            return self.done[i]
        element, seen, sides = self.spatial[i]
        found = element.wrenches(seen, self.t)
        found = [found] if isinstance(found, Force) else list(found)
        if len(found) != len(sides):
            raise ValueError(
                f"{type(element).__name__} returned {len(found)} wrenches for {len(sides)} sides; expected one a side."
            )
        self.done[i] = found
        return found

    def body_forces(self) -> tuple[BodyForces, ...]:
        """The sum on every slot's body, at the slot's origin; nothing without such elements."""
        parts, slots = [], []
        for i, (_, _, sides) in self.spatial.items():
            for force, (_, arm, at) in zip(self.wrenches(i), sides, strict=True):
                if np.any(at >= 0):
                    parts.append(_rows(force.shift(arm), at.shape, self.command.dtype))
                    slots.append(at)
        if not parts:
            return ()
        rows = jax.tree.map(lambda *leaves: jnp.concatenate([*leaves, jnp.zeros(1, leaves[0].dtype)]), *parts)
        return (BodyForces(_summed(rows, np.concatenate(slots), self.system.topology.layout.tree.size)),)

    def tau(self) -> Float[Array, " nv"]:
        """Generalised forces of the joint elements, and the command where none takes it."""
        tau = self.command
        taken = np.zeros(self.system.nv, bool)
        for element, at, _ in self.joints.values():
            taken[at] |= element.commanded
        if np.any(taken):
            tau = jnp.where(taken, 0.0, tau)
        for element, at, state in self.joints.values():
            tau = tau + _spread(element.effort(state, self.t), at, self.system.nv)
        return tau

    def energies(self, quantity: str) -> Float[Array, " elements"]:
        """The potential or dissipation of every element."""
        found = {i: getattr(element, quantity)(state, self.t) for i, (element, _, state) in self.joints.items()}
        found |= {i: getattr(element, quantity)(seen, self.t) for i, (element, seen, _) in self.spatial.items()}
        return self._sums(found)

    def powers(self) -> Float[Array, " elements"]:
        """The power that every element gives to the mechanism (and to a moving base)."""
        found = {i: element.effort(state, self.t) * state.v for i, (element, _, state) in self.joints.items()}
        for i, (_, _, sides) in self.spatial.items():
            pairs = zip(self.wrenches(i), sides, strict=True)
            found[i] = jnp.stack([jnp.sum(f.moment.dot(s.omega) + f.force.dot(s.velocity)) for f, (s, _, _) in pairs])
        return self._sums(found)

    def _sums(self, found: dict) -> Float[Array, " elements"]:
        dtype = self.command.dtype
        sums = [jnp.sum(jnp.asarray(found[i], dtype)) for i in range(self.count)]
        return jnp.stack(sums) if sums else jnp.zeros(0, dtype)

    def sides(self, i: int) -> tuple[Float[Array, "*n 6"], ...]:
        """What element i does on each of its sides as six-vectors; nothing for joint elements."""
        if i in self.joints:
            return ()
        pairs = zip(self.wrenches(i), self.spatial[i][2], strict=True)
        rows = [_rows(force, jnp.shape(state.position.x), self.command.dtype) for force, (state, _, _) in pairs]
        return tuple(jnp.stack(jax.tree.leaves(row), -1) for row in rows)

    def attached(self, i: int) -> tuple[Sides, tuple[Array, ...]]:
        """Names and points of what element i acts on; fields act on the bodies' root links, at the bodies' coms."""
        if i in self.joints:
            return (), ()
        element, _, sides = self.spatial[i]
        if isinstance(element, BodyElement):
            return (self.system.body_names,), (self._coms_in_links(sides[0]),)
        dtype, points = self.command.dtype, []
        for names, point in zip(element.frames, element.points, strict=True):
            shape = (3,) if isinstance(names, str) else (len(names), 3)
            points.append(jnp.zeros(shape, dtype) if point is None else jnp.broadcast_to(point, shape))
        return element.frames, tuple(points)

    def _coms_in_links(self, side: Side) -> Float[Array, "nb 3"]:
        bodies, arm, _ = side
        links = self.system.topology.layout.root_links
        R_in, p_in = Mat3.of(self.packed.frame_rotation[links]), Vec3.of(self.packed.frame_position[links])
        com = R_in.T @ (bodies.rotation.T @ arm - p_in)
        return jnp.stack([com.x, com.y, com.z], -1)


def _group(side: str | tuple[str, ...]) -> tuple[str, ...]:
    return (side,) if isinstance(side, str) else side


def _rows(force: Force, shape: tuple[int, ...], dtype) -> Force:
    """A wrench as rows: one for each frame, in the system's type."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf, dtype), shape), force)


def _summed(rows: Force, at: np.ndarray, size: int) -> Force:
    """Sums of the rows of every slot by gathers; the last row is zero, rows on the base (-1) are left out."""
    loaded = sorted(set(at[at >= 0].tolist()))
    members = [np.flatnonzero(at == slot) for slot in loaded]
    width = max(len(m) for m in members)
    pick = np.array([[*m, *[len(at)] * (width - len(m))] for m in members])
    row = np.full(size, len(loaded))
    row[loaded] = np.arange(len(loaded))

    def spread(leaf):
        sums = leaf[pick[:, 0]] if width == 1 else jnp.sum(leaf[pick], axis=1)
        return jnp.concatenate([sums, jnp.zeros(1, leaf.dtype)])[row]

    return jax.tree.map(spread, rows)


def _spread(values: Array, at: np.ndarray, size: int) -> Array:
    """Numbers put at their places in a vector of zeros."""
    place = np.full(size, len(at))
    place[at] = np.arange(len(at))
    return jnp.concatenate([values, jnp.zeros(1, values.dtype)])[place]
