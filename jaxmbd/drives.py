"""Driven velocities: laws in time that prescribe the motion of joints (rheonomic joints).

A law gives positions theta(t), whose first and second derivatives are the velocities and accelerations, or speeds
kappa(t) (Schwertassek & Senger 1988, Eqs. 3.15-3.18; Slaats 1991, section 4.1). Derivatives come by differentiation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
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
        if entry.level == "speed":
            size = len(entry.velocities)
        else:
            size = joint.nq if joint.translating is not None else len(entry.velocities)

        def value(t, law=law, size=size, name=joint.name, dtype=v.dtype):
            x = jnp.asarray(law(t), dtype)
            if x.shape != (size,) and not (size == 1 and x.shape == ()):
                raise ValueError(f"The law of joint {name!r} gives shape {x.shape}; expected ({size},).")
            return jnp.reshape(x, (size,))

        if entry.level == "speed":
            speeds = value
        elif joint.translating is None:
            q = q.at[at_q + jnp.array(entry.velocities)].set(value(t))

            def speeds(t, value=value):
                return jax.jvp(value, (t,), (jnp.ones_like(t),))[1]

        else:
            own = value(t)
            q = q.at[at_q : at_q + size].set(own.at[:4].set(so3.normalize(own[:4])))

            def speeds(t, value=value):
                x, rate = jax.jvp(value, (t,), (jnp.ones_like(t),))
                scale = jnp.sum(x[:4] ** 2)
                omega = 2.0 * so3.multiply(so3.conjugate(x[:4]), rate[:4])[1:] / scale
                return jnp.concatenate([omega, so3.matrix(x[:4]).T @ rate[4:]]) if len(x) > 4 else omega

        rate, change = jax.jvp(speeds, (t,), (jnp.ones_like(t),))
        v, a = v.at[at_v].set(rate), a.at[at_v].set(change)
    return q, v, a


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
