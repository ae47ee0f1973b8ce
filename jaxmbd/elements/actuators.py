"""Actuators: what stands between a command and the torque of a joint.

command -> first-order lag -> limit -> gear -> joint. The command is in motor units (torque [N m] or force [N] before
the gear); the rotor's inertia appears at the joint times the ratio squared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd.elements.protocol import JointElement, Names
from jaxmbd.joints import as_pytree
from jaxmbd.values import Numbers, concrete, floats


class Actuator(JointElement):
    """Motors on joints: ratio limit(lag(command)) - ratio^2 rotor_damping v, and ratio^2 rotor_inertia as armature."""

    commanded: ClassVar[bool] = True
    joints: tuple[str, ...] = eqx.field(static=True)
    limit: Float[Array, "*k"] | None
    softness: Float[Array, "*k"] | None
    ratio: Float[Array, "*k"]
    rotor_inertia: Float[Array, "*k"]
    rotor_damping: Float[Array, "*k"]
    lag: Float[Array, "*k"] | None
    start: Float[Array, " k"] | None

    def __init__(
        self,
        joint: Names,
        *,
        limit: Numbers | None = None,
        softness: Numbers | None = None,
        ratio: Numbers = 1.0,
        rotor_inertia: Numbers = 0.0,
        rotor_damping: Numbers = 0.0,
        lag: Numbers | None = None,
        start: Numbers | None = None,
    ):
        """Args:
        joint: joint, or several; numbers are one for all velocities of these joints, or k, one each.
        limit: largest torque of the motor, both ways [N m, N]; none when left out.
        softness: width over which the limit sets in smoothly [N m, N]; a hard limit when left out.
        ratio: turns of the motor per turn of the joint [1, rad/m]; negative where it reverses.
        rotor_inertia: of the motor's rotor [kg m^2].
        rotor_damping: viscous, at the motor [N m s/rad].
        lag: time constant with which the torque follows the command [s]; at once when left out. In a simulation the
            command is then held over each step, and followed exactly within it.
        start: torque at the start of a simulation [k] [N m, N], with a lag; zero when left out.

        Raises: ValueError for negative limits, softness or lags that are not positive, or a start without lag.
        """
        self.joints = (joint,) if isinstance(joint, str) else tuple(joint)
        for name, value in (("limit", limit), ("softness", softness), ("lag", lag)):
            known = None if value is None else concrete(value)
            if known is not None and not np.all(known > 0):
                raise ValueError(
                    f"The {name} of an actuator on {', '.join(self.joints)} is {value}; expected more than 0."
                )
        if softness is not None and limit is None:
            raise ValueError("The softness of an actuator belongs to its limit; give a limit too.")
        if start is not None and (lag is None or jnp.ndim(floats(start)) != 1):
            raise ValueError("start is the torque of an actuator with lag, one number a velocity [k].")
        self.limit, self.softness, self.lag = (None if x is None else _number(x) for x in (limit, softness, lag))
        self.ratio, self.rotor_inertia, self.rotor_damping = (
            _number(ratio),
            _number(rotor_inertia),
            _number(rotor_damping),
        )
        self.start = None if start is None else _number(start)

    def effort(self, at, t):
        return self.ratio * self._limited(at.command if self.lag is None else at.z) - self._drag() * at.v

    def _limited(self, u):
        if self.limit is None:
            return u
        if self.softness is None:
            return jnp.clip(u, -self.limit, self.limit)
        return soft_limit(u, self.limit, self.softness)

    def _drag(self):
        return self.ratio**2 * self.rotor_damping

    def initial_state(self, size):
        if self.lag is None:
            return jnp.zeros(0)
        return jnp.zeros(size) if self.start is None else self.start

    def state_after(self, at, t, h):
        return at.z if self.lag is None else at.command + (at.z - at.command) * jnp.exp(-h / self.lag)

    def armature(self):
        return self.ratio**2 * self.rotor_inertia

    def dissipation(self, at, t):
        return self._drag() * at.v**2


def soft_limit(u: Float[Array, "*k"], limit: Float[Array, "*k"], softness: Float[Array, "*k"]) -> Float[Array, "*k"]:
    """u inside the limit L, L outside, smooth over the width s: s/2 ln(cosh((u + L) / s) / cosh((u - L) / s))."""
    half = 0.5 * softness
    return half * (jax.nn.softplus((u + limit) / half) - jax.nn.softplus((u - limit) / half)) - limit


class JointLaw(JointElement):
    """A user's force on joints: a function (q, v, t) of their coordinates and velocities, besides the control."""

    commanded: ClassVar[bool] = False
    joints: tuple[str, ...] = eqx.field(static=True)
    law: Callable
    energy: Callable | None

    def __init__(self, joint: Names, law: Callable, potential: Callable | None = None):
        """Args:
        joint: joint, or several, whose coordinates and velocities follow one another.
        law: (q, v, t) -> forces dual to v [N m, N]. A function with numbers to differentiate is an `eqx.Module`.
        potential: q -> stored energy [J], for the balance of energy.
        """
        self.joints = (joint,) if isinstance(joint, str) else tuple(joint)
        self.law, self.energy = as_pytree(law), None if potential is None else as_pytree(potential)

    def effort(self, at, t):
        effort = jnp.asarray(self.law(at.q, at.v, t), at.v.dtype)
        if effort.shape != at.v.shape:
            raise ValueError(
                f"The law on {', '.join(self.joints)} gives shape {effort.shape}; expected {at.v.shape}, one number a "
                "velocity."
            )
        return effort

    def potential(self, at, t):
        return 0.0 if self.energy is None else self.energy(at.q)


def _number(value: Numbers | Sequence) -> Array:
    return jnp.asarray(floats(value))
