"""Forces on a system: external wrenches at frames, and the passive forces of joints.

Passive forces are springs, viscous dampers and smooth dry friction, one number a velocity; they enter forward and
inverse dynamics alike. So do the stops of joint limits, once `with_limits` has switched them on. (Armature is inertia,
not force: it stands on the diagonal of the mass matrix.)
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.entries import columns, entries, inverse
from jaxmbd.limits import stops
from jaxmbd.packing import Packed, full_coordinates, full_velocities
from jaxmbd.spatial import Force, Mat3, Vec3
from jaxmbd.system import System
from jaxmbd.tree import each
from jaxmbd.values import Numbers


class Wrench(eqx.Module):
    """A moment and a force that act on a body at a frame.

    Frames: `point` is where the force acts, in the frame's own axes from its origin; `moment` and `force` are in world
    axes, or in the frame's own with axes="local".
    """

    moment: Float[Array, "3"]
    force: Float[Array, "3"]
    point: Float[Array, "3"]
    frame: str = eqx.field(static=True)
    axes: str = eqx.field(static=True)

    def __init__(
        self,
        frame: str,
        moment: Numbers = (0.0, 0.0, 0.0),
        force: Numbers = (0.0, 0.0, 0.0),
        point: Numbers = (0.0, 0.0, 0.0),
        axes: str = "world",
    ):
        """Args:
        frame: link or frame that the wrench acts on.
        moment: [N m].
        force: [N].
        point: [m].
        axes: "world" or "local".
        """
        if axes not in ("world", "local"):
            raise ValueError(f"The axes of a wrench are {axes!r}; expected 'world' or 'local'.")
        self.frame, self.axes = frame, axes
        self.moment, self.force, self.point = (jnp.asarray(x, float) for x in (moment, force, point))


class BodyForces(eqx.Module):
    """What force elements do on every slot's body, at the slot's origin in world axes: stands among wrenches."""

    force: Force


def wrench_forces(system: System, packed: Packed, R: Mat3, wrenches: tuple[Wrench | BodyForces, ...]) -> Force:
    """Sum of the wrenches on every slot's body, at the slot's origin in world axes.

    Args:
      R: orientation of every slot.
    """
    zero = jnp.zeros(system.topology.layout.tree.size, system.gravity.dtype)
    total = Force(Vec3(zero, zero, zero), Vec3(zero, zero, zero))
    for wrench in wrenches:
        if isinstance(wrench, BodyForces):
            total = total + wrench.force
            continue
        i, slot = system.frame_index(wrench.frame), system.slot_of_frame(wrench.frame)
        if slot < 0:
            continue  # on the world, which does not move
        acting = at_body(packed, i, jax.tree.map(lambda entry, slot=slot: entry[slot], R), wrench)
        total = jax.tree.map(lambda sum_, part, slot=slot: sum_.at[slot].add(part), total, acting)
    return total


def at_body(packed: Packed, frame: int, R: Mat3, wrench: Wrench) -> Force:
    """A wrench at a link or frame (by index), seen from its body's origin, in world axes; R turns the body's axes."""
    R_frame, p_frame = packed.frame_rotation[frame], packed.frame_position[frame]
    point, moment, force = (x.astype(p_frame.dtype) for x in (wrench.point, wrench.moment, wrench.force))
    if wrench.axes == "local":
        moment, force = R @ Vec3.of(R_frame @ moment), R @ Vec3.of(R_frame @ force)
    else:
        moment, force = Vec3.of(moment), Vec3.of(force)
    return Force(moment, force).shift(R @ Vec3.of(p_frame + R_frame @ point))


def passive_forces(system: System, q: Float[Array, " nq"], v: Float[Array, " nv"]) -> Float[Array, " nv_full"]:
    """Springs, dampers and dry friction: -k (q - rest) - d v - f tanh(v / v_f), followers included."""
    q, v = full_coordinates(system, q), full_velocities(system, v)

    def force(pull, v, damping, friction, speed):
        return -pull - _damping(v, damping, friction, speed) * v

    forces = each(force, spring_gradient(system, q), v, system.damping, system.friction, system.friction_speed)
    return forces if system.limit_stiffness is None else forces + limit_forces(system, q, v)


def limit_forces(system: System, q: Float[Array, " nq_full"], v: Float[Array, " nv_full"]) -> Float[Array, " nv_full"]:
    """Springs and dampers of the limits, where those act."""
    stop = stops(system, q)
    return stop.force - stop.damping * v


def passive_damping(system: System, v: Float[Array, " nv_full"]) -> Float[Array, " nv_full"]:
    """Damping plus the secant f tanh(v / v_f) / v of dry friction [N m s/rad, N s/m]."""
    return _damping(v, system.damping, system.friction, system.friction_speed)


def _damping(v, damping, friction, speed):
    ratio = v / speed
    small = jnp.abs(ratio) < 1e-2
    safe = jnp.where(small, 1.0, ratio)
    square = ratio * ratio
    series = 1.0 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315 - square * 62 / 2835)))
    return damping + friction / speed * jnp.where(small, series, jnp.tanh(safe) / safe)


def spring_energy(system: System, q: Float[Array, " nq_full"]) -> Float[Array, ""]:
    """Potential energy of the joint springs, sum of k e^2 / 2 [J]."""
    return 0.5 * jnp.sum(system.stiffness * _springs(system, q)[0] ** 2)


def spring_gradient(system: System, q: Float[Array, " nq_full"]) -> Float[Array, " nv_full"]:
    """Gradient of the springs' energy along the velocities [N m, N]."""
    return _springs(system, q)[1]


def _springs(system, q):
    """Deflection e of every spring (rotation vectors for quaternion joints), and the gradient of sum of k e^2 / 2."""
    at, rest, stiffness = system.topology.layout.full_group, system.rest, system.stiffness
    e = entries(q, at.additive_q) - entries(rest, at.additive_q)
    gradient = stiffness * e
    if not len(at.turn_q):
        return e, gradient
    turn, pull, back = each(_quaternion_springs, *_quaternion_joints(system, q))
    n = len(e)
    slide = _vectors(q, at.shift_q) - _vectors(rest, at.shift_q)
    e = e + _spread(turn, at.turn_v, n) + _spread(slide, at.shift_v, n)
    return e, gradient + _spread(pull, at.turn_v, n) + _spread(back, at.shift_v, n)


def _quaternion_joints(system, q):
    """What `_quaternion_springs` asks for, of all quaternion joints."""
    at, rest, stiffness = system.topology.layout.full_group, system.rest, system.stiffness
    slack, own = (columns(entries(x, at.turn_q)) for x in (rest, q))
    slide = _vectors(q, at.shift_q) - _vectors(rest, at.shift_q)
    return slack, own, slide, _vectors(stiffness, at.turn_v), _vectors(stiffness, at.shift_v)


def additive_stiffness(system: System, q: Float[Array, " nq_full"]) -> Float[Array, " nv_full"]:
    """Stiffness of springs and limits where coordinates add, zeros at quaternion joints [N m/rad, N/m]."""
    at = system.topology.layout.full_group
    own = jnp.where(np.isin(np.arange(len(at.v_order)), at.plain_v), system.stiffness, 0.0)
    return own if system.limit_stiffness is None else own + stops(system, q).stiffness


def quaternion_stiffness(system: System, q: Float[Array, " nq_full"]) -> tuple[Vec3, Vec3]:
    """How the springs of quaternion joints pull along turn and translation as the joint moves along either.

    Components [joints, 6], one for each direction of motion: three of the turn, three of the translation.
    """

    def stiffness(slack, own, slide, *springs):
        def pull(w, u):
            scalar, v, half = own[0], Vec3(*own[1:]), Vec3.of(0.5 * w)
            x = v + scalar * half + v.cross(half)
            moved = slide + Mat3(*so3.matrix_entries(*own)) @ Vec3.of(u)
            return _quaternion_springs(slack, (scalar - v.dot(half), x.x, x.y, x.z), moved, *springs)[1:]

        still = jnp.zeros(3, own[0].dtype)
        along = jax.linearize(pull, still, still)[1]
        return jax.vmap(along)(*jnp.split(jnp.eye(6, dtype=still.dtype), 2, 1))

    return each(stiffness, *_quaternion_joints(system, q))


def _vectors(x, index) -> Vec3:
    return Vec3(*columns(entries(x, index)))


def _spread(vectors: Vec3, index, size: int):
    """The components in their places [size], as far as they have one; zero where none does."""
    places = zip((vectors.x, vectors.y, vectors.z), index.T, strict=True)
    return sum(entries(x, inverse(place, size)) for x, place in places if np.any(place >= 0))


def _quaternion_springs(rest, own, slide: Vec3, stiffness: Vec3, stiff: Vec3) -> tuple[Vec3, Vec3, Vec3]:
    """Rotation vector of a quaternion joint, and the pull of its springs along its turn and its translation."""
    turn, pull = _ball_spring(rest, own, stiffness)
    back = Vec3(stiff.x * slide.x, stiff.y * slide.y, stiff.z * slide.z)
    return turn, pull, Mat3(*so3.matrix_entries(*own)).T @ back


def _ball_spring(rest, own, stiffness: Vec3) -> tuple[Vec3, Vec3]:
    """Rotation vector from `rest` to `own`, both quaternions, and the gradient of its springs' energy.

    With e = 2 a u, where a is half the angle and u the axis, the gradient along the angular velocity in outboard axes
    is f - e x f / 2 + c e x (e x f), f = K e, c = (1 - a cot a) / (4 a^2).
    """
    (rw, *r), (qw, *v) = rest, own
    r, v = Vec3(*r), Vec3(*v)
    w, v = rw * qw + r.dot(v), rw * v - qw * r - r.cross(v)
    sign = jnp.where(w < 0, -1.0, 1.0).astype(w.dtype) / jnp.sqrt(w * w + v.dot(v))
    w, v = sign * w, sign * v
    square = v.dot(v)
    small = square < 1e-4
    sine = jnp.sqrt(jnp.where(small, 1.0, square))
    series = 1.0 + square * (1 / 6 + square * (3 / 40 + square * (5 / 112 + square * 35 / 1152)))
    gain = jnp.where(small, series, jnp.arctan2(sine, w) / sine)  # a / sin a
    half = gain * gain * square
    series = 1 / 12 + half * (1 / 180 + half * (1 / 1890 + half / 18900))
    c = jnp.where(small, series, (1.0 - gain * w) / (4.0 * jnp.where(small, 1.0, half)))
    e = 2.0 * gain * v
    f = Vec3(stiffness.x * e.x, stiffness.y * e.y, stiffness.z * e.z)
    across = e.cross(f)
    return e, f - 0.5 * across + c * e.cross(across)
