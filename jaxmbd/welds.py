"""What welds transmit: inside a body, from the motion that all of its links share.

The sweeps know bodies, which are links welded together. A weld carries what the links beyond it need for their motion,
less what acts on them from outside, and what they hand on to the bodies that hang on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmbd.entries import entries
from jaxmbd.packing import Packed, tensors
from jaxmbd.spatial import Force, Inertia, Mat3, Sym3, Vec3
from jaxmbd.system import System
from jaxmbd.topology import WORLD, Topology
from jaxmbd.transmitted import SlotState, Transmitted


def weld_joints(topology: Topology) -> list[int]:
    """Joints without freedom."""
    return [i for i, joint in enumerate(topology.joints) if not joint.nv]


def welds_move(topology: Topology) -> bool:
    """Whether any weld is inside a body that moves."""
    return any(topology.layout.body(topology.joints[i].child) != WORLD for i in weld_joints(topology))


class Welds(NamedTuple):
    """What the wrenches of welds follow from; slots and bodies in world axes at their own origins."""

    base: SlotState
    state: SlotState | None  # of the slots, where welds move
    hanging: tuple[Force, Vec3]  # what the joints transmit that hang on links beyond welds, and their shifts
    outer: list[Force]  # what acts from outside on links beyond welds, at their bodies' origins
    inertia: Inertia  # of all that is welded beyond each weld, in the axes and at the origin of its body
    rotor: Vec3 | None  # angular momentum of what spins there
    outboard: Vec3  # origin of each weld's outboard frame in its body


def weld_record(
    system: System, packed: Packed, base: SlotState, found: Transmitted, outer: list[tuple[int, Force]]
) -> Welds:
    """What is known of all welds.

    Args:
      found: what the joints transmit, with the state of the slots where welds move.
      outer: links and what acts on them from outside, at their body's origin.
    """
    topology = system.topology
    links = _links(topology)
    rows, welds = np.array(links), np.array(weld_joints(topology))
    R, p = Mat3.of(packed.frame_rotation[rows]), Vec3.of(packed.frame_position[rows])
    none = Vec3(*jnp.zeros((3, len(links)), system.gravity.dtype))
    inertia = Inertia(system.link_mass[rows], none, Sym3.of(tensors(system.link_inertia[rows])).rotated(R))
    inertia = inertia.shift(p + R @ Vec3.of(system.link_com[rows]))
    rotor = R @ Vec3.of(system.rotor_momentum[rows]) if topology.gyrostatic else None
    inertia, rotor = jax.tree.map(partial(_sums, _carried(topology, links)), (inertia, rotor))
    first = np.array([topology.layout.first_slot[i] for i in _hanging(topology)], int)
    return Welds(
        base,
        found.state,
        jax.tree.map(lambda x: entries(x, first), (found.force, found.l)),
        [acting for link, acting in outer if link in links],
        inertia,
        rotor,
        p + R @ Vec3.of(system.in_child_position[welds]),
    )


def weld_wrenches(topology: Topology, pushed: Sequence[int], record: Welds) -> Force:
    """What every weld exerts on its outboard link, at its outboard frame's origin in world axes.

    Args:
      pushed: links on which something acts from outside.
      record: numbers of all welds or slots, [welds or slots, *batch].
    """
    links = _links(topology)
    base = jax.tree.map(lambda x: x[None], record.base)
    R, omega, acceleration = base
    if record.state is not None:
        # the row after the slots, also number -1, is that of the base
        n = topology.layout.tree.size
        slots = np.array([topology.layout.slot_of_link(link) % (n + 1) for link in links])
        at = jax.tree.map(lambda x, y: entries(jnp.concatenate([x, y]), slots), record.state, base)
        R, omega, acceleration = at
    total = record.inertia.rotated(R).inertial_force(omega, acceleration.angular, acceleration.linear)
    if record.rotor is not None:
        total = Force(total.moment + omega.cross(R @ record.rotor), total.force)
    # all of a body's sums are taken at its origin
    carriers = [*(topology.joints[i].parent for i in _hanging(topology)), *(link for link in pushed if link in links)]
    if carriers:
        force, l = record.hanging
        parts = [force.shift(l), *(jax.tree.map(lambda x: -x[None], acting) for acting in record.outer)]
        parts = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
        total = total + jax.tree.map(partial(_sums, _carried(topology, carriers)), parts)
    return total.shift(-(R @ record.outboard))


def _sums(carried: np.ndarray, x):
    """Sums over what each weld carries."""
    return jnp.tensordot(jnp.asarray(carried, x.dtype), x, 1, precision=lax.Precision.HIGHEST)


def _links(topology: Topology) -> list[int]:
    """The link beyond each weld."""
    return [topology.joints[i].child for i in weld_joints(topology)]


def _hanging(topology: Topology) -> list[int]:
    """Joints with freedom on links beyond welds."""
    links = _links(topology)
    return [i for i, joint in enumerate(topology.joints) if joint.nv and joint.parent in links]


def _carried(topology: Topology, links: Sequence[int]) -> np.ndarray:
    """Which welds carry which of the links: [welds, links], of ones and zeros."""
    welded_to = {joint.child: joint.parent for joint in topology.joints if not joint.nv}
    row = {link: n for n, link in enumerate(welded_to)}
    found = np.zeros((len(row), len(links)))
    for n, link in enumerate(links):
        while link in row:
            found[row[link], n] = 1.0
            link = welded_to[link]
    return found
