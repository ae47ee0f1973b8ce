"""Jacobians of frames: the velocity of any frame is J(q) v.

Column i is the velocity that mode i gives to the frame, (w_i, u_i + w_i x (p - p_i)), for every mode between the base
and the frame; the partial velocities of Kane and of Passerello & Huston (1972), Eqs. 2.1-2.20.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.crba import coupling_matrix
from jaxmbd.kinematics import SlotPlaces, base_motion, kinematics, promote, slot_places
from jaxmbd.packing import pack
from jaxmbd.system import System
from jaxmbd.tree import ancestors


@partial(jax.jit, static_argnames=("frame", "axes"))
def jacobian(
    system: System, q: Float[Array, " nq"], frame: str, axes: str = "world", t: float | Float[Array, ""] = 0.0
) -> Float[Array, "6 nv"]:
    """Jacobian of a frame: [angular; linear velocity of the frame's origin] = J v.

    Args:
      q: coordinates.
      frame: a link or frame.
      axes: "world", or "local" for the frame's own axes.
      t: time [s], where the base moves.

    Raises: KeyError for an unknown frame, ValueError for other axes.
    """
    if axes not in ("world", "local"):
        raise ValueError(f"The axes of a Jacobian are {axes!r}; expected 'world' or 'local'.")
    q, _, _, t, system = promote(system, q, None, None, t)
    packed, layout = pack(system), system.topology.layout
    places, i = slot_places(system, packed, q, t), system.frame_index(frame)
    slot = system.slot_of_frame(frame)
    base = base_motion(system, t)
    R, p = (base.rotation, base.position) if slot < 0 else (places.rotation[slot], places.position[slot])
    R_in, p_in = (
        (packed.frame_rotation[i], packed.frame_position[i]) if i >= 0 else (jnp.eye(3, dtype=q.dtype), 0.0 * p)
    )
    on_path = ancestors(layout.tree.parents)[:, slot] if slot >= 0 else jnp.zeros(layout.tree.size, bool)
    J = point_jacobian(places, p + R @ p_in) * on_path[None]
    if axes == "local":
        own = (R @ R_in).T
        J = jnp.concatenate([own @ J[:3], own @ J[3:]])
    J = J[:, layout.velocity_slot]
    return J @ coupling_matrix(system) if system.topology.couplings else J


def point_jacobian(places: SlotPlaces, point: Float[Array, "3"]) -> Float[Array, "6 slots"]:
    """Velocity that each mode gives to a body's point, as if every slot moved it."""
    w, u = places.mode[:, :3], places.mode[:, 3:]
    return jnp.concatenate([w, u + jnp.cross(w, point[None] - places.position)], 1).T


@partial(jax.jit, static_argnames=("frame", "axes"))
def jacobian_rate_product(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    frame: str,
    axes: str = "world",
    t: float | Float[Array, ""] = 0.0,
) -> Float[Array, "6"]:
    """J_dot v: the frame's classical acceleration at v_dot = 0, [angular; linear at its origin].

    Frames: world axes; with axes="local" the same vector resolved in the frame's axes. A moving base adds its own part.
    """
    if axes not in ("world", "local"):
        raise ValueError(f"The axes of a Jacobian are {axes!r}; expected 'world' or 'local'.")
    motion = kinematics(system, q, v, None, t)[frame]
    if axes == "world":
        return motion.acceleration
    return jnp.concatenate([motion.rotation.T @ motion.acceleration[:3], motion.rotation.T @ motion.acceleration[3:]])
