"""Couplings given by functions, q_f = g(q_l): what they are at one state.

A curve enters every algorithm as its tangent: ratio g', offset g - g' q_l, and the acceleration g'' v_l^2 that the
follower has at a = 0. The tangent moves with the state, so derivatives come out right.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.system import System


def linearised(system: System, q: Float[Array, " nq"], v: Float[Array, " nv"]) -> System:
    """The system with the ratios, offsets and accelerations of its curved couplings at a state."""
    topology = system.topology
    if not topology.curves:
        return system
    ratio, offset, rate = system.ratio, system.offset, jnp.zeros_like(system.ratio)
    for i, g in zip(topology.curves, system.curves, strict=True):
        follower, leader = (topology.joints[j].name for j in topology.couplings[i])

        def value(x, g=g, follower=follower):
            y = jnp.asarray(g(x), x.dtype)
            if y.shape != ():
                raise ValueError(
                    f"The coupling function of joint {follower!r} gives shape {y.shape}; expected a number."
                )
            return y

        x, speed = q[system.q_slice(leader)][0], v[system.v_slice(leader)][0]
        one = jnp.ones_like(x)

        def slope(x, value=value, one=one):
            return jax.jvp(value, (x,), (one,))[1]

        first, second = jax.jvp(slope, (x,), (one,))
        ratio = ratio.at[i].set(first)
        offset = offset.at[i].set(value(x) - first * x)
        rate = rate.at[i].set(second * speed * speed)
    return dataclasses.replace(system, ratio=ratio, offset=offset, coupling_rate=rate)
