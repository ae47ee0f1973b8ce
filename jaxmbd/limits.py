"""Joint limits as one-sided springs and dampers with a smooth onset, active after `System.with_limits`.

With the depth e beyond a limit and the width w of the onset, the spring force is k s(e) with

    s = 0 (e < 0),   e^2 / 2w (0 < e < w),   e - w / 2 (e > w)

so that the stiffness k s' grows from zero to k without a jump and the force has a continuous derivative. The damper
acts with the same onset, -d s' v. Inside the limits nothing acts. Quaternion joints have no limits.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.entries import arranged, entries
from jaxmbd.system import System


class Stops(NamedTuple):
    """What the limits do at a configuration, one number a velocity."""

    force: Float[Array, " nv_full"]
    """Spring force along the velocity [N m, N]."""
    stiffness: Float[Array, " nv_full"]
    damping: Float[Array, " nv_full"]
    energy: Float[Array, ""]


def stops(system: System, q: Float[Array, " nq_full"]) -> Stops:
    """The limits' spring force, its stiffness, the damping and the energy, at coordinates of all joints.

    Raises: ValueError where limits are not active.
    """
    k, d, w = system.limit_stiffness, system.limit_damping, system.limit_width
    if k is None or d is None or w is None:
        raise ValueError("The limits of this system do not act; use system.with_limits(stiffness=..., damping=...).")
    at = system.topology.layout.full_group
    own = at.plain_v
    x = entries(q, at.plain_q)
    k, d, w, lower, upper = (entries(y, own) for y in (k, d, w, system.lower, system.upper))
    over, under = _beyond(x, upper), -_beyond(x, lower, -1.0)
    side = jnp.where(over > 0, 1.0, jnp.where(under > 0, -1.0, 0.0)).astype(x.dtype)
    depth = jnp.maximum(over, under)
    inside, deep = jnp.clip(depth, 0.0, w), jnp.maximum(depth - w, 0.0)
    onset = inside / w
    energy = jnp.sum(k * (inside**3 / (6.0 * w) + 0.5 * deep * (w + deep)))
    parts = (-side * k * (0.5 * inside * onset + deep), k * onset, d * onset)
    rest = jnp.zeros(len(at.v_order) - len(own), x.dtype)
    force, stiffness, damping = (arranged(at.v_order, part, rest) for part in parts)
    return Stops(force, stiffness, damping, energy)


def _beyond(x, limit, side=1.0):
    """x - limit, and beyond no infinite limit."""
    finite = jnp.isfinite(limit)
    return jnp.where(finite, x - jnp.where(finite, limit, 0.0), -side)
