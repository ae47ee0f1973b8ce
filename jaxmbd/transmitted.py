"""What the joints of a tree transmit: the sum of what all bodies beyond a joint need for their motion.

Two routes to the same numbers. From a known motion by inverse dynamics. From forces without leaving forward dynamics:
its last sweep holds the acceleration A of every body, so f = f(a = 0) + I A is at hand there, and one light sweep
inwards adds up. The first route is also the derivative of the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.aba import accelerations, eliminate
from jaxmbd.constraints.rows import OnFrames
from jaxmbd.drives import with_laws
from jaxmbd.forces import BodyForces, Wrench, at_body, wrench_forces
from jaxmbd.kinematics import at_base
from jaxmbd.newton_euler import forces_inward, moving_bodies
from jaxmbd.packing import Mode, Packed, accelerations_to_slots, locate, to_slots
from jaxmbd.rnea import up
from jaxmbd.spatial import Force, Mat3, Motion, Vec3
from jaxmbd.system import System
from jaxmbd.tangents import varied
from jaxmbd.topology import WORLD
from jaxmbd.tree import scan_outward


class SlotState(NamedTuple):
    """Orientation, angular velocity and acceleration, with gravity as an acceleration of the base."""

    rotation: Mat3
    omega: Vec3
    acceleration: Motion


class Transmitted(NamedTuple):
    """Of every slot, in world axes at the slot's own origin."""

    force: Force  # what its joint exerts on its body
    along: Float[Array, " slots"]  # the same along the slot's mode
    l: Vec3  # shift from the slot before
    mode: Mode
    state: SlotState | None  # if asked for


def base_state(system: System, packed: Packed, q, v, t) -> SlotState:
    """The same of the base."""
    base = at_base(system, locate(system, packed, q, v), t, up(system))
    return SlotState(base.rotation, base.omega, base.acceleration)


def by_motion(
    system: System, packed: Packed, q, v, a, wrenches: tuple[Wrench, ...], t, closing: Sequence[OnFrames] = ()
) -> Transmitted:
    """What the joints transmit while the system moves with known accelerations, constraints acting with known forces.

    Args:
      closing: what the constraints do to their frames.
    """
    layout, x = system.topology.layout, locate(system, packed, q, v)
    speeds, rates = to_slots(system, v), accelerations_to_slots(system, a)
    base = at_base(system, x, t, up(system))
    body, state = moving_bodies(layout.tree, packed.slots, x, speeds, rates, base, _kept)
    needed, at = body.force, SlotState(base.rotation, base.omega, base.acceleration)
    for link, acting in outer_forces(system, packed, state.rotation, at, wrenches, closing):
        slot = layout.slot_of_link(link)
        if slot >= 0:
            needed = jax.tree.map(lambda sum_, part, slot=slot: sum_.at[slot].add(-part), needed, acting)
    along, force = forces_inward(layout.tree, needed, body.l, body.mode, transmitted=True)
    assert force is not None
    return Transmitted(force, along, body.l, body.mode, state)


def _kept(_, moving) -> SlotState:
    return SlotState(moving.rotation, moving.omega, moving.acceleration)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def by_forces(
    stateful: bool, system: System, packed: Packed, q, v, tau, wrenches: tuple[Wrench, ...], t
) -> Transmitted:
    """What the joints transmit under forces tau, for a tree whose joints are not coupled.

    Args:
      stateful: whether the state of the slots is wanted too.
    """
    tree, place, wrenches = system.topology.layout.tree, locate(system, packed, q, v), on_links(wrenches)
    x, driven = with_laws(system, tau, None, q, v, t)
    speeds, base = to_slots(system, v), at_base(system, place, t)

    def keep(_, moving):
        return _kept(_, moving) if stateful else moving.rotation if wrenches else None

    body, kept = moving_bodies(tree, packed.slots, place, speeds, jnp.zeros_like(speeds), base, keep)
    if wrenches:
        R = kept.rotation if stateful else kept
        body = body._replace(force=body.force - wrench_forces(system, packed, R, wrenches))
    factor, nu, given = eliminate(system, body, q, v, x, driven)

    def step(A, xs):
        (f, l, mode, inertia), g, driven, nu, given = xs
        A = A.shift(l)
        a = nu - A.dot(g)
        if driven is not None:
            a = jnp.where(driven, given, a)
        A = A + a * mode.motion
        return A, (f + inertia @ A, A if stateful else None)

    xs = (body, factor.g, factor.driven, nu, given)
    needed, A = scan_outward(tree, step, Motion.of(up(system)), xs)
    along, force = forces_inward(tree, needed, body.l, body.mode, transmitted=True)
    assert force is not None
    state = kept._replace(acceleration=kept.acceleration + A) if stateful else None
    return Transmitted(force, along, body.l, body.mode, state)


@partial(by_forces.defjvp, symbolic_zeros=True)
def _by_forces_jvp(stateful, primals, tangents):
    rebuilt, values, moves = varied(primals, tangents)

    def known(*values):
        system, packed, q, v, tau, wrenches, t = rebuilt(*values)
        a = accelerations(system, packed, q, v, tau, wrenches, t)
        result = by_motion(system, packed, q, v, a, wrenches, t)
        return result if stateful else result._replace(state=None)

    return jax.jvp(known, values, moves)


def on_links(wrenches: Sequence[Wrench | BodyForces]) -> tuple[Wrench, ...]:
    """The wrenches, each of which must name its link.

    Raises: ValueError for sums over bodies: they do not tell what acts beyond a weld.
    """
    named = tuple(wrench for wrench in wrenches if not isinstance(wrench, BodyForces))
    if len(named) < len(wrenches):
        raise ValueError(
            "Reactions need to know which link a force acts on; give `frame_wrenches` of the elements' loads in place "
            "of `wrenches`."
        )
    return named


def outer_forces(
    system: System,
    packed: Packed,
    R: Mat3 | None,
    base: SlotState,
    wrenches: Sequence[Wrench],
    closing: Sequence[OnFrames],
) -> Iterator[tuple[int, Force]]:
    """Links, and what wrenches and constraints do to them: at the origin of the link's body, in world axes.

    Args:
      R: orientation of every slot.
    """
    topology, n = system.topology, len(system.topology.links)

    def link_of(frame):
        return frame if frame < n else topology.frames[frame - n][1]

    def rotation(link):
        slot = topology.layout.slot_of_link(link)
        return base.rotation if slot < 0 else jax.tree.map(lambda x: x[slot], R)

    for wrench in on_links(wrenches):
        frame = system.frame_index(wrench.frame)
        link = link_of(frame)
        if link != WORLD:
            yield link, at_body(packed, frame, rotation(link), wrench)
    for on in closing:
        for frame, wrench in zip(map(int, on.frames), on.wrench, strict=True):
            link = link_of(frame)
            if link != WORLD:
                yield link, Force.of(wrench).shift(rotation(link) @ Vec3.of(packed.frame_position[frame]))
