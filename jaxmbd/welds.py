"""What welds transmit: inside a body, from the motion that all of its links share.

The sweeps know bodies, which are links welded together. A weld carries what the links beyond it need for their motion,
less what acts on them from outside, and what they hand on to the bodies that hang on them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxmbd.batch_last import batch_last
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


def weld_wrenches(
    system: System, packed: Packed, base: SlotState, found: Transmitted, outer: list[tuple[int, Force]]
) -> Force:
    """What every weld exerts on its outboard link, at its outboard frame's origin in world axes.

    Args:
      found: what the joints transmit, with the state of the slots where welds move.
      outer: links and what acts on them from outside, at their body's origin.
    """
    topology, layout = system.topology, system.topology.layout
    welds = weld_joints(topology)
    links = np.array([topology.joints[j].child for j in welds])
    slots = np.array([layout.slot_of_link(int(link)) for link in links])
    place = {int(link): n for n, link in enumerate(links)}
    hanging = [i for i, joint in enumerate(topology.joints) if joint.nv and joint.parent in place]
    first = np.array([layout.first_slot[i] for i in hanging], int)
    rows = _beyond(topology, place, hanging)
    outer = [(place[link], acting) for link, acting in outer if link in place]
    link = _Link(
        Mat3.of(packed.frame_rotation[links]),
        Vec3.of(packed.frame_position[links]),
        system.link_mass[links],
        Vec3.of(system.link_com[links]),
        Sym3.of(tensors(system.link_inertia[links])),
        Vec3.of(system.rotor_momentum[links]) if topology.gyrostatic else None,
        Vec3.of(system.in_child_position[np.array(welds)]),
    )

    def of_components(record) -> Force:
        base, state, (force, l), link, acting = record
        base = jax.tree.map(lambda y: y[None], base)
        R, omega, acceleration = base
        if state is not None:
            # the row after the slots is that of the base
            R, omega, acceleration = jax.tree.map(lambda x, y: jnp.concatenate([x, y])[slots], state, base)
        com = link.position + link.rotation @ link.com
        none = Vec3(*(jnp.zeros_like(x) for x in (com.x, com.y, com.z)))
        inertia = Inertia(link.mass, none, link.tensor.rotated(link.rotation)).shift(com).rotated(R)
        needed = inertia.inertial_force(omega, acceleration.angular, acceleration.linear)
        if link.rotor is not None:
            needed = Force(needed.moment + omega.cross(R @ (link.rotation @ link.rotor)), needed.force)
        for (n, _), part in zip(outer, acting, strict=True):
            needed = jax.tree.map(lambda x, y, n=n: x.at[n].add(-y), needed, part)
        # all of a body's sums are taken at its origin
        handed = force.shift(l)
        parts = jax.tree.map(lambda x, y: jnp.concatenate([x, y, jnp.zeros_like(x[:1])]), needed, handed)
        total = jax.tree.map(lambda x: x[rows].sum(1), parts)
        return total.shift(-(R @ (link.position + link.rotation @ link.outboard)))

    transmitted = jax.tree.map(lambda x: x[first], (found.force, found.l))
    record = (base, found.state, transmitted, link, [acting for _, acting in outer])
    return batch_last(of_components, record)


class _Link(NamedTuple):
    """Links beyond welds: their place in their body's axes, inertia in their own, and the weld's frame on them."""

    rotation: Mat3
    position: Vec3
    mass: Array
    com: Vec3
    tensor: Sym3
    rotor: Vec3 | None
    outboard: Vec3


def _beyond(topology: Topology, place: dict[int, int], hanging: list[int]) -> np.ndarray:
    """For each weld the rows of what it carries: links welded beyond it and joints that hang on them; padded.

    Args:
      place: rows of the links beyond welds.
      hanging: joints whose rows follow.
    """
    welded_to = {joint.child: joint.parent for joint in topology.joints if not joint.nv}
    rows: list[list[int]] = [[] for _ in place]
    carried = [*place, *(topology.joints[i].parent for i in hanging)]
    for n, link in enumerate(carried):
        while link in place:
            rows[place[link]].append(n)
            link = welded_to[link]
    width = max(map(len, rows))
    return np.array([row + [len(carried)] * (width - len(row)) for row in rows])
