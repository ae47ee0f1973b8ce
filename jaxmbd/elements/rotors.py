"""A rotor in a body that speeds up and slows down: a gyrostat with momentum h(t), as reaction wheels have."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxmbd.elements.protocol import ForceElement, FrameState, Sides
from jaxmbd.joints import as_pytree
from jaxmbd.spatial import Force, Vec3


class Rotor(ForceElement):
    """What a balanced rotor with relative angular momentum h(t) does to its carrier: the moment -dh/dt - w x h.

    The carrier's inertia holds the rotor's, as if it did not turn; h is the momentum of its turning against the carrier
    (spin inertia times relative speed, along its axis), a function of time in the frame's axes. The power of the
    moment is that of the motor on the carrier's turning; what the motor puts into the spin is not part of it. Constant
    momentum is `rotor_momentum` of a body; a rotor that a torque drives is a body on a joint.

    Source: Schwertassek & Senger (1988), section 2 (gyrostatic bodies); Euler's equation of a gyrostat.
    """

    frames: Sides = eqx.field(static=True)
    momentum: Callable

    def __init__(self, frame: str, momentum: Callable):
        """Args:
        frame: link or frame that carries the rotor.
        momentum: t -> three numbers [N m s], differentiable. One with numbers to differentiate is an `eqx.Module`.
        """
        self.frames, self.momentum = (frame,), as_pytree(momentum)

    def wrenches(self, motion: tuple[FrameState, ...], t):
        (carrier,) = motion
        dtype = carrier.omega.x.dtype
        h, rate = jax.jvp(
            lambda t: jnp.asarray(self.momentum(t), dtype), (jnp.asarray(t, dtype),), (jnp.ones((), dtype),)
        )
        if h.shape != (3,):
            raise ValueError(f"The momentum of a rotor on {self.frames[0]!r} has shape {h.shape}; expected (3,).")
        h, rate = carrier.rotation @ Vec3.of(h), carrier.rotation @ Vec3.of(rate)
        return (Force(-rate - carrier.omega.cross(h), Vec3.zero()),)
