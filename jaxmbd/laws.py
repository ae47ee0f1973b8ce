"""Laws in time for driven joints, as modules whose numbers can be differentiated."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.values import Numbers, concrete, floats


class Cycloid(eqx.Module):
    """From one position to another within a time, at rest and without acceleration at both ends.

    theta(t) = start + (end - start) (s - sin(2 pi s) / (2 pi)) with s = (t - begin) / duration, held before and after.
    Source: Passerello & Huston (1972), Eq. 5.1.
    """

    start: Float[Array, "*k"]
    end: Float[Array, "*k"]
    duration: Float[Array, ""]
    begin: Float[Array, ""]

    def __init__(self, start: Numbers, end: Numbers, duration: Numbers, begin: Numbers = 0.0):
        """Args:
        start, end: positions [rad, m], one or one a driven velocity.
        duration: [s].
        begin: time at which the motion starts [s].
        """
        known = concrete(duration)
        if known is not None and not (known.shape == () and known > 0):
            raise ValueError(f"The duration of a cycloid is {duration} s; expected one positive number.")
        self.start, self.end = jnp.asarray(floats(start)), jnp.asarray(floats(end))
        self.duration, self.begin = jnp.asarray(floats(duration)), jnp.asarray(floats(begin))

    def __call__(self, t):
        s = jnp.clip((t - self.begin) / self.duration, 0.0, 1.0)
        return self.start + (self.end - self.start) * (s - jnp.sin(2 * jnp.pi * s) / (2 * jnp.pi))


class Sine(eqx.Module):
    """mean + amplitude sin(frequency t + phase); a position or a speed."""

    amplitude: Float[Array, "*k"]
    frequency: Float[Array, "*k"]
    phase: Float[Array, "*k"]
    mean: Float[Array, "*k"]

    def __init__(self, amplitude: Numbers, frequency: Numbers, phase: Numbers = 0.0, mean: Numbers = 0.0):
        """Args:
        amplitude, mean: [rad, m] or their rates.
        frequency: angular frequency [rad/s].
        phase: [rad].
        """
        self.amplitude, self.frequency, self.phase, self.mean = (
            jnp.asarray(floats(x)) for x in (amplitude, frequency, phase, mean)
        )

    def __call__(self, t):
        return self.mean + self.amplitude * jnp.sin(self.frequency * t + self.phase)


class Constant(eqx.Module):
    """One value for all time: a position at which a joint is held, or a speed at which it turns."""

    value: Float[Array, "*k"]

    def __init__(self, value: Numbers):
        """Args:
        value: [rad, m], or [rad/s, m/s] as a speed.
        """
        self.value = jnp.asarray(floats(value))

    def __call__(self, t):
        return self.value + 0.0 * t
