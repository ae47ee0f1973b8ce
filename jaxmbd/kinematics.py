"""Motion of bodies and frames: poses, velocities and accelerations, from the base outwards.

The recursion of Slaats (1991), Eqs. 3.15-3.39, in world axes with each body's own origin as reference point:

    R_j = R_i C,   omega_j = omega_i + w v,   alpha_j = alpha_i + w a + omega_in x w v
    a_j = a_i + alpha_i x l + omega_i x (omega_i x l) + (omega_in + omega_j) x u v + u a

with a mode (w, u), the shift l from the parent's origin, and omega_in the angular velocity of the joint's inboard
body. The linear velocity of the origins does not enter the dynamics; only `kinematics` carries it.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.border import check_state
from jaxmbd.curves import linearised
from jaxmbd.packing import Mode, Packed, Place, Slot, accelerations_to_slots, locate, pack, to_slots
from jaxmbd.spatial import Mat3, Motion, Scalar, Vec3
from jaxmbd.system import System
from jaxmbd.tree import scan_outward
from jaxmbd.watch import watching


class Rates(NamedTuple):
    """Angular velocity and acceleration (angular, linear at the origin) of a body."""

    omega: Vec3
    acceleration: Motion
    inboard: Vec3 | None  # angular velocity of the inboard body of the current joint, where joints have several slots


class Moving(NamedTuple):
    """Orientation and rates of a body, world axes."""

    rotation: Mat3
    omega: Vec3
    acceleration: Motion
    inboard: Vec3 | None

    @property
    def rates(self) -> Rates:
        return Rates(*self[1:])


def relative_pose(slot: Slot, x: Place) -> tuple[Mat3, Vec3]:
    """Orientation and origin of a slot in the frame of the slot before it."""
    hx, hy, hz = slot.home.columns
    turn = Mat3.of_columns(x.cos * hx + x.sin * hy, x.cos * hy - x.sin * hx, hz)
    shift = slot.origin
    if slot.slide is not None:
        shift = shift + (slot.slide * x.q) * hz
    if x.extra is not None:
        turn, shift = turn + x.extra.rotation, shift + x.extra.origin
    return turn, shift


def place(R_parent: Mat3, slot: Slot, x: Place) -> tuple[Mat3, Vec3, Mode]:
    """Orientation of a slot, shift from its parent's origin, and its mode; all in world axes."""
    turn, shift = relative_pose(slot, x)
    R = R_parent @ turn
    axis = R.columns[2]
    whole = None
    if x.extra is not None and x.extra.mode is not None:
        whole = Mode(axis, slot.turn, slot.slide, None).motion + R @ x.extra.mode
    mode = Mode(axis if whole is None else None, slot.turn, slot.slide, whole)
    return R, R_parent @ shift, mode


def move(parent: Moving, slot: Slot, x: Place, v: Scalar, a: Scalar) -> tuple[Moving, Vec3, Mode]:
    """Slaats' recursion for one slot: its motion, the shift from its parent and its mode (Eqs. 3.26, 3.35)."""
    R, l, mode = place(parent.rotation, slot, x)
    product = None if x.extra is None or x.extra.velocity_product is None else R @ x.extra.velocity_product
    enters = None if x.extra is None else x.extra.enters
    return Moving(R, *advance(parent.rates, l, mode.motion, v, a, product, enters)), l, mode


def advance(
    parent: Rates, l: Vec3, unit: Motion, v: Scalar, a: Scalar, product: Motion | None, enters: Scalar | None
) -> Rates:
    """Velocity and acceleration of a slot from its parent's, all in one set of axes.

    Args:
      l: shift from the parent's origin.
      unit: the slot's mode.
      product: what a mapped joint adds to the acceleration.
      enters: whether the slot starts a joint; None where every slot does.
    """
    relative = v * unit
    omega = parent.omega + relative.angular
    inboard = parent.omega
    if enters is not None and parent.inboard is not None:
        inboard = _select(enters, parent.omega, parent.inboard)
    centripetal = parent.omega.cross(parent.omega.cross(l))
    if relative.linear is not None:
        centripetal = centripetal + (inboard + omega).cross(relative.linear)
    acceleration = parent.acceleration.shift(l) + Motion(inboard.cross(relative.angular), centripetal) + a * unit
    if product is not None:
        acceleration = acceleration + product
    return Rates(omega, acceleration, None if enters is None else inboard)


def _select(condition, a: Vec3, b: Vec3) -> Vec3:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


class Base(NamedTuple):
    """Motion of the base in inertial space."""

    rotation: Float[Array, "3 3"]
    position: Float[Array, "3"]
    velocity: Float[Array, "6"]
    acceleration: Float[Array, "6"]


def base_motion(system: System, t: Float[Array, ""]) -> Base:
    """Pose of the base and, by differentiating it twice, its velocity and (classical) acceleration."""
    dtype = system.gravity.dtype
    if system.base_motion is None:
        zero = jnp.zeros(6, dtype)
        return Base(jnp.eye(3, dtype=dtype), jnp.zeros(3, dtype), zero, zero)
    function = system.base_motion

    def pose(t):
        X = function(t)
        return X.rotation.astype(dtype), X.position.astype(dtype)

    def velocity(t):
        (R, _), (dR, dp) = jax.jvp(pose, (t,), (jnp.ones_like(t),))
        W = dR @ R.T
        return jnp.concatenate([0.5 * jnp.stack([W[2, 1] - W[1, 2], W[0, 2] - W[2, 0], W[1, 0] - W[0, 1]]), dp])

    v, a = jax.jvp(velocity, (t,), (jnp.ones_like(t),))
    return Base(*pose(t), v, a)


def at_base(system: System, place: Place, t, acceleration: Float[Array, "6"] | None = None) -> Moving:
    """State of the base at the start of an outward sweep; `acceleration` is added to its own."""
    base = base_motion(system, t)
    a = base.acceleration if acceleration is None else base.acceleration + acceleration
    omega = Vec3.of(base.velocity[:3])
    return Moving(Mat3.of(base.rotation), omega, Motion.of(a), None if place.extra is None else omega)


class SlotMotion(eqx.Module):
    """Motion of every slot as ordinary arrays: world axes, each slot's own origin, angular before linear."""

    rotation: Float[Array, "slots 3 3"]
    position: Float[Array, "slots 3"]
    velocity: Float[Array, "slots 6"]
    acceleration: Float[Array, "slots 6"]
    mode: Float[Array, "slots 6"]


def slot_motion(system: System, packed: Packed, q, v, a, t) -> SlotMotion:
    """Outward sweep for poses, velocities and classical accelerations."""
    x = locate(system, packed, q, v)
    base = base_motion(system, t)

    def step(parent, xs):
        moving, position, linear = parent
        slot, x, v, a = xs
        state, l, mode = move(moving, slot, x, v, a)
        linear = linear + moving.omega.cross(l)
        relative = v * mode.motion
        if relative.linear is not None:
            linear = linear + relative.linear
        return (state, position + l, linear), (
            state.rotation,
            position + l,
            state.omega,
            linear,
            state.acceleration,
            mode,
        )

    start = (at_base(system, x, t), Vec3.of(base.position), Vec3.of(base.velocity[3:]))
    xs = (packed.slots, x, to_slots(system, v), accelerations_to_slots(system, a))
    R, p, omega, linear, acceleration, mode = scan_outward(system.topology.layout.tree, step, start, xs)
    velocity = vectors(Motion(omega, linear))
    return SlotMotion(matrices(R), vectors(p), velocity, vectors(acceleration), mode_vectors(mode))


class SlotPlaces(NamedTuple):
    """Where every slot is at rest, as ordinary arrays in world axes."""

    rotation: Float[Array, "slots 3 3"]
    position: Float[Array, "slots 3"]
    mode: Float[Array, "slots 6"]


def slot_places(system: System, packed: Packed, q: Float[Array, " nq"], t: Float[Array, ""]) -> SlotPlaces:
    """Outward sweep for orientations, origins and modes."""
    base = base_motion(system, t)

    def step(parent, xs):
        R, p = parent
        R, l, mode = place(R, *xs)
        return (R, p + l), (R, p + l, mode)

    start = (Mat3.of(base.rotation), Vec3.of(base.position))
    R, p, mode = scan_outward(system.topology.layout.tree, step, start, (packed.slots, locate(system, packed, q, None)))
    return SlotPlaces(matrices(R), vectors(p), mode_vectors(mode))


def vectors(record) -> Float[Array, "*n size"]:
    """A record of components as an array, components last."""
    return jnp.stack(jax.tree.leaves(record), -1)


def mode_vectors(mode: Mode) -> Float[Array, "slots 6"]:
    """Modes of all slots as six-vectors."""
    motion = mode.motion
    angular = vectors(motion.angular)
    return jnp.concatenate([angular, jnp.zeros_like(angular) if motion.linear is None else vectors(motion.linear)], -1)


def matrices(R: Mat3) -> Float[Array, "*n 3 3"]:
    """A record of matrices as an array [..., 3, 3]."""
    flat = vectors(R)
    return flat.reshape(*flat.shape[:-1], 3, 3)


class FrameMotion(eqx.Module):
    """Motion of one frame in world axes.

    `velocity` is [angular [rad/s]; linear of the frame's origin [m/s]]; `acceleration` its time derivative (classical).
    """

    rotation: Float[Array, "3 3"]
    position: Float[Array, "3"]
    velocity: Float[Array, "6"]
    acceleration: Float[Array, "6"]

    @property
    def quaternion(self) -> Float[Array, "4"]:
        """Orientation as a quaternion (w, x, y, z)."""
        return so3.from_matrix(self.rotation)


class Kinematics(eqx.Module):
    """Motion of every link and frame; `k["tool"]` is one of them."""

    rotation: Float[Array, "frames 3 3"]
    position: Float[Array, "frames 3"]
    velocity: Float[Array, "frames 6"]
    acceleration: Float[Array, "frames 6"]
    names: tuple[str, ...] = eqx.field(static=True)

    def __getitem__(self, name: str) -> FrameMotion:
        if name not in self.names:
            raise KeyError(f"No link or frame {name!r}. Known: {', '.join(self.names)}.")
        i = self.names.index(name)
        axis = self.position.ndim - 2
        parts = (self.rotation, self.position, self.velocity, self.acceleration)
        return FrameMotion(*(jnp.take(part, i, axis=axis) for part in parts))


@jax.jit
def kinematics(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"] | None = None,
    a: Float[Array, " nv"] | None = None,
    t: float | Float[Array, ""] = 0.0,
) -> Kinematics:
    """Poses, velocities and accelerations of all links and frames (Slaats 1991, section 3.3).

    Args:
      q: coordinates.
      v: velocities, zero when left out.
      a: accelerations v_dot, zero when left out.
      t: time [s], where the base moves.

    Frames: world axes; linear parts at each frame's origin; `acceleration` is the classical one, without gravity.
    """
    q, v, a, t, system = promote(system, q, v, a, t)
    packed = pack(system)
    motion = slot_motion(system, packed, q, v, a, t)
    base = base_motion(system, t)
    names = (*system.topology.frame_names, "world")
    at = jnp.array([system.slot_of_frame(name) for name in names])  # -1 is the row of the base, appended last
    identity, zero = jnp.eye(3, dtype=q.dtype)[None], jnp.zeros((1, 3), q.dtype)
    R_in, p_in = jnp.concatenate([packed.frame_rotation, identity]), jnp.concatenate([packed.frame_position, zero])

    def rows(slots, base):
        return jnp.concatenate([slots, base[None]])[at]

    R, p = rows(motion.rotation, base.rotation), rows(motion.position, base.position)
    velocity, acceleration = rows(motion.velocity, base.velocity), rows(motion.acceleration, base.acceleration)
    r = jnp.einsum("nij,nj->ni", R, p_in)
    omega, alpha = velocity[:, :3], acceleration[:, :3]
    spin = jnp.cross(omega, r)
    return Kinematics(
        R @ R_in,
        p + r,
        jnp.concatenate([omega, velocity[:, 3:] + spin], 1),
        jnp.concatenate([alpha, acceleration[:, 3:] + jnp.cross(alpha, r) + jnp.cross(omega, spin)], 1),
        names,
    )


def promote(system: System, q, v, a, t):
    """Everything in one floating-point type; absent velocities and accelerations are zero. Shapes are checked.

    Couplings given by functions are linearised at this state.

    Raises: ValueError when a vector has not the system's size.
    """
    sizes = {"q": (q, system.nq), "v": (v, system.nv), "a": (a, system.nv)}
    for name, (value, size) in sizes.items():
        if value is not None and jnp.shape(value) != (size,):
            raise ValueError(
                f"{name} has shape {jnp.shape(value)}; this system takes ({size},). "
                "For a batch use jax.vmap(f, in_axes=(None, 0, ...))."
            )
    given = [jnp.asarray(x) for x in (q, v, a) if x is not None]
    dtype = jnp.result_type(system.gravity, *given)
    zero = jnp.zeros(system.nv, dtype)
    v = zero if v is None else jnp.asarray(v, dtype)
    a = zero if a is None else jnp.asarray(a, dtype)
    q = jnp.asarray(q, dtype)
    if watching():
        q = check_state(system, q, v, a)
    return q, v, a, jnp.asarray(t, dtype), linearised(system.astype(dtype), q, v)
