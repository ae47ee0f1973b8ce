"""The forces that the motion of a tree needs, slot by slot, and how they vary with everything that they depend on.

Two sweeps (Jain & Rodriguez 1990, Eq. 4.1; Slaats 1991, section 3.3): motion outwards, forces inwards.

Their variation is written down, not left to differentiation. Seen from axes that turn along with each body's own
variation, inertia, modes and what hangs on the body stay what they are, and only three things vary: the joint turns its
outer body by theta and moves it by delta against its inner one (both zero for a body's velocities), rates change, and
physical numbers do. With x' = dx - (turn so far) x x for every vector x,

    parent's vectors, seen from the child:   x' + x x theta,        shift:  l' = delta + l x theta
    child's force, seen from the parent:     f' + theta x f

and the rest is the linearised step itself. The variation is linear in its inputs: two light sweeps, whose transposes
are the reverse mode (the same sums as the closed forms of Carpentier & Mansard 2018 and Singh, Russell & Wensing 2022,
contracted with one vector).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.kinematics import Moving, Rates, advance, move
from jaxmbd.packing import Mode, Place, Slot
from jaxmbd.spatial import Force, Inertia, Mat3, Motion, Scalar, Vec3
from jaxmbd.tangents import filled, filled_fields, for_each_copy, jvp_where, no_tangents, varied
from jaxmbd.tree import Tree, scan_inward, scan_outward, together


class Bodies(NamedTuple):
    """What the outward sweep leaves behind for every slot: world axes, the slot's own origin."""

    force: Force  # needed for the motion, less what acts from outside
    l: Vec3  # shift from the parent's origin
    mode: Mode
    inertia: Inertia


def moving_bodies(
    tree: Tree, slots: Slot, x: Place, v, a, base: Moving, keep: Callable[[Moving, Moving], Any]
) -> tuple[Bodies, Any]:
    """Outward sweep: the force that each slot's body needs for its motion, its shift, mode and inertia.

    Args:
      v, a: per slot.
      base: motion of the base; minus gravity in its acceleration is what holds the bodies against gravity.
      keep: (parent's motion, own motion) -> what else is wanted of every slot.
    """

    def step(parent, xs):
        slot, x, v, a = xs
        state, l, mode = move(parent, slot, x, v, a)
        inertia = slot.inertia.rotated(state.rotation)
        rotor = None if slot.rotor is None else state.rotation @ slot.rotor
        return state, (
            Bodies(inertial_force(inertia, state.rates, rotor), l, mode, inertia),
            keep(parent, state),
        )

    return scan_outward(tree, step, base, (slots, x, v, a))


def inertial_force(inertia: Inertia, state: Rates, rotor: Vec3 | None) -> Force:
    """Force that a body needs for its motion; `rotor` is the angular momentum of what spins in it."""
    f = inertia.inertial_force(state.omega, state.acceleration.angular, state.acceleration.linear_part)
    return f if rotor is None else Force(f.moment + state.omega.cross(rotor), f.force)


def _nothing(*_):
    return None


class Known(NamedTuple):
    """What is known of a motion once it is solved for, in world axes: what its variation would else compute again."""

    parent: Moving  # motion of the slot before
    rotation: Mat3
    l: Vec3
    mode: Mode
    inertia: Inertia
    along: Scalar  # generalised force on the slot
    force: Force  # what the slot transmits, at its own origin


@jax.custom_jvp
def slot_forces(tree: Tree, slots: Slot, x: Place, v, a, base: Moving, known: Known | None) -> Float[Array, " slots"]:
    """Generalised force on every slot for the motion of the bodies: no armature, no passive forces.

    Args:
      known: this motion, where it has been worked out before; for the derivative alone.
    """
    body, _ = moving_bodies(tree, slots, x, v, a, base, _nothing)
    return forces_inward(tree, body.force, body.l, body.mode)[0]


def _known(tree: Tree, slots: Slot, x: Place, v, a, base: Moving) -> Known:
    """The same two sweeps, for their variation."""
    body, (parent, R) = moving_bodies(tree, slots, x, v, a, base, lambda parent, state: (parent, state.rotation))
    along, force = forces_inward(tree, body.force, body.l, body.mode, transmitted=True)
    assert force is not None
    return Known(parent, R, body.l, body.mode, body.inertia, along, force)


@jax.custom_jvp
def _as_known(known: Known, *motion) -> Known:
    """`known`, which came without a derivative, with that of the sweeps."""
    return known


def _as_known_jvp(primals, tangents):
    known, *motion = primals
    rebuilt, values, moves = varied(tuple(motion), tuple(tangents[1:]))
    if not values:
        return known, no_tangents(known)
    return known, jax.jvp(lambda *values: _known(*rebuilt(*values)), values, moves)[1]


_as_known.defjvp(_as_known_jvp, symbolic_zeros=True)


def forces_inward(
    tree: Tree, force: Force, l: Vec3, mode: Mode, transmitted: bool = False
) -> tuple[Float[Array, " slots"], Force | None]:
    """What forces on the bodies ask of every slot; and, if asked for, what every slot transmits at its own origin."""

    def step(f, xs):
        own, l, mode = xs
        f = f + own
        return f.shift(l), (mode.motion.dot(f), f if transmitted else None)

    return scan_inward(tree, step, Force(Vec3.zero(), Vec3.zero()), (force, l, mode))


class _Slots(NamedTuple):
    """What the variation of a slot depends on: world axes, the slot's own origin."""

    known: Known
    slot: Slot
    x: Place
    v: Scalar
    a: Scalar

    @property
    def axis(self) -> Vec3:
        """Of a screw."""
        return self.known.rotation.columns[2] if self.known.mode.axis is None else self.known.mode.axis

    @property
    def motion(self) -> tuple:
        """What its rates follow from."""
        extra, known = self.x.extra, self.known
        product = None if extra is None or extra.velocity_product is None else known.rotation @ extra.velocity_product
        return known.parent.rates, known.l, known.mode.motion, self.v, self.a, product

    def motion_from(self, parent: Rates, l: Vec3, unit: Motion, v: Scalar, a: Scalar, product: Motion | None):
        """The recursion in fixed axes."""
        return advance(parent, l, unit, v, a, product, None if self.x.extra is None else self.x.extra.enters)


class _Varied(NamedTuple):
    """Variation of every slot's inputs; None where it is zero for all slots."""

    home: Vec3 | None  # turn of the home pose, in the axes of the slot before
    origin: Vec3 | None
    angle: Scalar | None
    q: Scalar | None
    slide: Scalar | None
    v: Scalar | None
    a: Scalar | None
    inertia: Inertia | None
    rotor: Vec3 | None
    extra_turn: Vec3 | None = None
    extra_origin: Vec3 | None = None
    mode: Motion | None = None
    product: Motion | None = None


def _variation(primals, tangents):
    tree, slots, x, v, a, base, known = primals
    _, d_slots, d_x, d_v, d_a, d_base, _ = tangents
    d_slots, d_base = filled_fields(slots, d_slots), filled_fields(base, d_base)
    d_cos, d_sin = filled(x.cos, d_x.cos), filled(x.sin, d_x.sin)
    varied = _Varied(
        home=None if d_slots.home is None else _spin(d_slots.home @ slots.home.T),
        origin=d_slots.origin,
        angle=None if d_cos is None or d_sin is None else x.cos * d_sin - x.sin * d_cos,
        q=None if slots.slide is None else filled(x.q, d_x.q),
        slide=d_slots.slide,
        v=filled(v, d_v),
        a=filled(a, d_a),
        inertia=d_slots.inertia,
        rotor=d_slots.rotor,
    )
    if x.extra is not None:
        d_extra = filled_fields(x.extra, d_x.extra)
        turn = None if d_extra.rotation is None else _spin(d_extra.rotation @ x.extra.rotation.T)
        varied = varied._replace(
            extra_turn=turn, extra_origin=d_extra.origin, mode=d_extra.mode, product=d_extra.velocity_product
        )
    if len(v):
        of_system = {name: getattr(varied, name) for name in ("home", "origin", "slide", "inertia", "rotor")}
        if jax.tree.leaves(of_system):
            varied = varied._replace(**for_each_copy(of_system, v[0]))
    motion = (tree, slots, x, v, a, base)
    known = _known(*motion) if known is None else _as_known(known, *motion)
    # the value comes from a sweep, as in `slot_forces` itself: under `vmap` a rule must leave the batch where its
    # function does
    return known.along, _varied_forces(tree, _Slots(known, slots, x, v, a), varied, _varied_base(base, d_base))


slot_forces.defjvp(_variation, symbolic_zeros=True)


def _varied_forces(tree: Tree, moved: _Slots, varied: _Varied, base: Rates) -> Float[Array, " slots"]:
    """The two linear sweeps: variation of the motion outwards, of the forces inwards."""
    inputs, apart = together(varied)

    def outward(parent, xs):
        slot, d = xs[0], apart(xs[1])
        turn, drift = _displacement(slot, d)
        unit, product = _varied_mode(slot, d)
        l = drift
        if turn is not None:
            parent = jax.tree.map(jnp.add, parent, _cross(slot.known.parent.rates, turn))
            l = _sum(drift, slot.known.l.cross(turn))
        state = jvp_where(slot.motion_from, slot.motion, (parent, l, unit, d.v, d.a, product))[1]
        return state, (state, turn, drift, unit)

    def inward(f, xs):
        slot, (d_inertia, d_rotor, state, turn, drift, unit) = xs[0], apart(xs[1])
        known, R = slot.known, slot.known.rotation
        rotor = None if slot.slot.rotor is None else R @ slot.slot.rotor
        at = (known.inertia, slot.motion_from(*slot.motion), rotor)
        inertia = None if d_inertia is None else d_inertia.rotated(R)
        rotor = None if d_rotor is None else R @ d_rotor
        f = f + jvp_where(inertial_force, at, (inertia, state, rotor))[1]
        tau = known.mode.motion.dot(f)
        if unit is not None:
            tau = tau + unit.dot(known.force)
        if turn is not None:
            f = f + Force(turn.cross(known.force.moment), turn.cross(known.force.force))
        f = f.shift(known.l)
        if drift is not None:
            f = Force(f.moment + drift.cross(known.force.force), f.force)
        return f, tau

    motion = scan_outward(tree, outward, base, (moved, inputs))
    inputs, apart = together((varied.inertia, varied.rotor, *motion))
    return scan_inward(tree, inward, Force(Vec3.zero(), Vec3.zero()), (moved, inputs))


def _displacement(slot: _Slots, d: _Varied) -> tuple[Vec3 | None, Vec3 | None]:
    """Variation of a slot's pose against its parent: its turn and the drift of its origin, in world axes.

    None where it is zero for all slots.
    """
    R, axis = slot.known.parent.rotation, slot.axis
    turn = drift = None
    if d.home is not None:
        turn = R @ d.home
        if slot.slot.slide is not None:
            drift = turn.cross((slot.slot.slide * slot.x.q) * axis)
    for given in (d.origin, d.extra_origin):
        drift = _sum(drift, None if given is None else R @ given)
    turn = _sum(turn, None if d.extra_turn is None else R @ d.extra_turn)
    turn = _sum(turn, None if d.angle is None else d.angle * axis)
    drift = _sum(drift, None if d.q is None else (slot.slot.slide * d.q) * axis)
    drift = _sum(drift, None if d.slide is None else (d.slide * slot.x.q) * axis)
    return turn, drift


def _varied_mode(slot: _Slots, d: _Varied) -> tuple[Motion | None, Motion | None]:
    """Variation of a slot's mode and velocity product in its own axes, drawn in world axes."""
    R, zero = slot.known.rotation, jnp.zeros_like(slot.v)
    steeper = None if d.slide is None else Motion(Vec3(zero, zero, zero), d.slide * R.columns[2])
    unit = _sum(None if d.mode is None else R @ d.mode, steeper)
    return unit, None if d.product is None else R @ d.product


def _varied_base(base: Moving, d: Moving) -> Rates:
    """Variation of the base's motion, seen from axes that turn with the base."""
    zero = Vec3.zero()
    still = Rates(zero, Motion(zero, zero), None if base.inboard is None else zero)
    varied = jax.tree.map(lambda new, known: known if new is None else new, d.rates, still, is_leaf=_is_none)
    if d.rotation is None:
        return varied
    turn = base.rotation @ _spin(base.rotation.T @ d.rotation)
    return jax.tree.map(jnp.add, varied, _cross(base.rates, turn))


def _cross(rates: Rates, turn: Vec3) -> Rates:
    """x cross turn of every vector."""
    a, inboard = rates.acceleration, rates.inboard
    assert a.linear is not None
    return Rates(
        rates.omega.cross(turn),
        Motion(a.angular.cross(turn), a.linear.cross(turn)),
        None if inboard is None else inboard.cross(turn),
    )


def _spin(skew: Mat3) -> Vec3:
    """The vector of a skew matrix."""
    return 0.5 * Vec3(skew.zy - skew.yz, skew.xz - skew.zx, skew.yx - skew.xy)


def _sum(a, b):
    """Of two variations, None the zero one."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _is_none(x) -> bool:
    return x is None
