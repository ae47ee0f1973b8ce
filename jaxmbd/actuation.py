"""What every actuator does between a command and the force at a joint.

    lag z' = u - z,   f = limit((g0 + g1 l + g2 l') z + b0 + b1 l + b2 l'),   tau = f dl/dq

with the command u, the length l of the actuator (the motor's angle, the gear times the joint's) and gain g and bias b:
motors (gain alone), servos and dampers are special cases. `Actuators` is a table of them with their transmissions, as
model files hold; `elements.Actuator` puts them on joints beside other force elements, with rotor inertia and drag.

Source: the actuation model of MuJoCo's documentation, chapter "Computation".
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def lagged(u: Float[Array, "*k"], z: Float[Array, "*k"], lag: Float[Array, "*k"], h) -> Float[Array, "*k"]:
    """z a time h after it was z, the command u held meanwhile; u itself without lag."""
    lagging = lag > 0
    decay = jnp.where(lagging, jnp.exp(-h / jnp.where(lagging, lag, 1.0)), 0.0)
    return u + (z - u) * decay


def affine_force(
    gain: Float[Array, "*k 3"],
    bias: Float[Array, "*k 3"],
    z: Float[Array, "*k"],
    length: Float[Array, "*k"],
    speed: Float[Array, "*k"],
) -> Float[Array, "*k"]:
    """Force before its limit; gain and bias are constant, per length, per speed."""
    state = jnp.stack([jnp.ones_like(length), length, speed], -1)
    return jnp.sum(gain * state, -1) * z + jnp.sum(bias * state, -1)


def limited(
    f: Float[Array, "*k"],
    lower: Float[Array, "*k"],
    upper: Float[Array, "*k"],
    softness: Float[Array, "*k"] | None = None,
) -> Float[Array, "*k"]:
    """f within its bounds; with a softness s the bound sets in smoothly over that width, where s and bounds are finite.

    Smooth: f + s/2 ln(1 + e^(2 (l - f) / s)) - s/2 ln(1 + e^(2 (f - u) / s)), which for bounds -u, u is
    s/2 ln(cosh((f + u) / s) / cosh((f - u) / s)).
    """
    hard = jnp.clip(f, lower, upper)
    if softness is None:
        return hard
    half = 0.5 * jnp.where(softness > 0, softness, 1.0)
    below, above = jnp.isfinite(lower), jnp.isfinite(upper)
    bottom, top = jnp.where(below, lower, 0.0), jnp.where(above, upper, 0.0)
    rise = jnp.where(below, half * jax.nn.softplus((bottom - f) / half), 0.0)
    fall = jnp.where(above, half * jax.nn.softplus((f - top) / half), 0.0)
    return jnp.where(softness > 0, f + rise - fall, hard)
