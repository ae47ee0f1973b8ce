"""Forces on a system: external wrenches at frames, and the passive forces of joints.

Passive forces are springs, viscous dampers and smooth dry friction, one number a velocity; they enter forward and
inverse dynamics alike. (Armature is inertia, not force: it stands on the diagonal of the mass matrix.)
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.packing import Packed, full_coordinates, full_velocities
from jaxmbd.spatial import Force, Mat3, Vec3
from jaxmbd.system import System
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


def wrench_forces(system: System, packed: Packed, R: Mat3, wrenches: tuple[Wrench, ...]) -> Force:
    """Sum of the wrenches on every slot's body, at the slot's origin in world axes.

    Args:
      R: orientation of every slot.
    """
    zero = jnp.zeros(system.topology.layout.tree.size, system.gravity.dtype)
    total = Force(Vec3(zero, zero, zero), Vec3(zero, zero, zero))
    for wrench in wrenches:
        i, slot = system.frame_index(wrench.frame), system.slot_of_frame(wrench.frame)
        if slot < 0:
            continue  # on the world, which does not move
        dtype = zero.dtype
        R_slot = jax.tree.map(lambda entry, slot=slot: entry[slot], R)
        R_frame = packed.frame_rotation[i]
        lever = packed.frame_position[i] + R_frame @ wrench.point.astype(dtype)
        moment, force = wrench.moment.astype(dtype), wrench.force.astype(dtype)
        if wrench.axes == "local":
            moment, force = R_frame @ moment, R_frame @ force
            moment, force = R_slot @ Vec3.of(moment), R_slot @ Vec3.of(force)
        else:
            moment, force = Vec3.of(moment), Vec3.of(force)
        acting = Force(moment, force).shift(R_slot @ Vec3.of(lever))
        total = jax.tree.map(lambda sum_, part, slot=slot: sum_.at[slot].add(part), total, acting)
    return total


def passive_forces(system: System, q: Float[Array, " nq"], v: Float[Array, " nv"]) -> Float[Array, " nv_full"]:
    """Springs, dampers and dry friction: -k (q - rest) - d v - f tanh(v / v_f), followers included."""
    q, v = full_coordinates(system, q), full_velocities(system, v)
    return -spring_gradient(system, q) - passive_damping(system, v) * v


def passive_damping(system: System, v: Float[Array, " nv_full"]) -> Float[Array, " nv_full"]:
    """Damping plus the secant f tanh(v / v_f) / v of dry friction [N m s/rad, N s/m]."""
    ratio = v / system.friction_speed
    small = jnp.abs(ratio) < 1e-2
    safe = jnp.where(small, 1.0, ratio)
    square = ratio * ratio
    series = 1.0 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315 - square * 62 / 2835)))
    return system.damping + system.friction / system.friction_speed * jnp.where(small, series, jnp.tanh(safe) / safe)


def spring_energy(system: System, q: Float[Array, " nq_full"]) -> Float[Array, ""]:
    """Potential energy of the joint springs, sum of k e^2 / 2 [J]."""
    return 0.5 * jnp.sum(
        system.stiffness * _deflection(system, q, jnp.zeros(system.topology.layout.nv_full, q.dtype)) ** 2
    )


def spring_gradient(system: System, q: Float[Array, " nq_full"]) -> Float[Array, " nv_full"]:
    """Gradient of the springs' energy along the velocities [N m, N]."""
    still = jnp.zeros(system.topology.layout.nv_full, q.dtype)
    if not system.topology.layout.quaternion:
        return system.stiffness * _deflection(system, q, still)
    e, pull = jax.vjp(lambda step: _deflection(system, q, step), still)
    return pull(system.stiffness * e)[0]


def _deflection(system, q, step):
    """Deflection of every spring after a small step along the velocities: rotation vectors for quaternion joints."""
    layout = system.topology.layout
    parts = []
    for i, entry in enumerate(system.topology.joints):
        own, rest = (x[layout.q_start[i] : layout.q_start[i + 1]] for x in (q, system.rest))
        ahead = step[layout.v_start[i] : layout.v_start[i + 1]]
        if entry.translating is None:
            parts.append(own + ahead - rest)
            continue
        turn = so3.multiply(so3.conjugate(so3.normalize(rest[:4])), so3.multiply(own[:4], so3.exp(ahead[:3])))
        parts.append(so3.log(turn))
        if entry.translating:
            parts.append(own[4:] + so3.matrix(own[:4]) @ ahead[3:] - rest[4:])
    return jnp.concatenate(parts) if parts else step
