"""Driven velocities: laws in time that prescribe the motion of joints (rheonomic joints).

A law gives positions theta(t), whose first and second derivatives are the velocities and accelerations, or speeds
kappa(t) (Schwertassek & Senger 1988, Eqs. 3.15-3.18; Slaats 1991, section 4.1). Derivatives come by differentiation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxmbd import rotation as so3
from jaxmbd.system import System


def driven_motion(
    system: System, q: Float[Array, " nq"], v: Float[Array, " nv"], t: Float[Array, ""]
) -> tuple[Float[Array, " nq"], Float[Array, " nv"], Float[Array, " nv"]]:
    """Coordinates and velocities with those of the laws put in, and the accelerations of the laws (zero elsewhere).

    Where a law gives speeds, the coordinates stay as they are. q, v and t have one floating-point type.
    """
    layout, topology = system.topology.layout, system.topology
    a = jnp.zeros_like(v)
    for entry, law, at_q, at_v in zip(topology.drives, system.drives, layout.drive_q, layout.drive_v, strict=True):
        joint = topology.joints[entry.joint]
        whole = entry.level == "position" and joint.translating is not None
        size = joint.nq if whole else len(entry.velocities)
        value = _Law(law, size, joint.name, v.dtype)
        if whole:
            q = jax.lax.dynamic_update_slice(q, _unit_turn(value(t)), (at_q,))
        elif entry.level == "position":
            q = q.at[at_q + np.array(entry.velocities)].set(value(t))
        speeds = value if entry.level == "speed" else partial(_body_speeds if whole else _rates, value)
        rate, change = jax.jvp(speeds, (t,), (jnp.ones_like(t),))
        v, a = v.at[at_v].set(rate), a.at[at_v].set(change)
    return q, v, a


class _Law(NamedTuple):
    """A law whose values have been checked."""

    law: Callable[[Array], Array]
    size: int
    joint: str
    dtype: Any

    def __call__(self, t: Float[Array, ""]) -> Float[Array, " size"]:
        x = jnp.asarray(self.law(t), self.dtype)
        if x.shape != (self.size,) and not (self.size == 1 and x.shape == ()):
            raise ValueError(f"The law of joint {self.joint!r} gives shape {x.shape}; expected ({self.size},).")
        return jnp.reshape(x, (self.size,))


def _rates(position, t):
    return jax.jvp(position, (t,), (jnp.ones_like(t),))[1]


def _unit_turn(x):
    """Coordinates of a quaternion joint with the quaternion at unit length."""
    return jnp.concatenate([so3.normalize(x[:4]), x[4:]])


def _body_speeds(position, t):
    """Velocities of a spherical or free joint, in outboard axes, from its coordinates as a function of time."""
    x, rate = jax.jvp(position, (t,), (jnp.ones_like(t),))
    omega = 2.0 * so3.multiply(so3.conjugate(x[:4]), rate[:4])[1:] / jnp.sum(x[:4] ** 2)
    if len(x) == 4:
        return omega
    return jnp.concatenate([omega, so3.matrix(x[:4]).T @ rate[4:]])


def with_laws(
    system: System,
    x: Float[Array, " nv"],
    driven: Bool[Array, " nv"] | None,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    t: Float[Array, ""],
) -> tuple[Float[Array, " nv"], Bool[Array, " nv"] | None]:
    """Given forces or accelerations x and the mask of the latter, with what the system's own laws prescribe."""
    if not system.topology.drives:
        return x, driven
    mask = system.topology.layout.driven
    x = jnp.where(mask, driven_motion(system, q, v, t)[2], x)
    return x, jnp.asarray(mask) if driven is None else driven | mask
