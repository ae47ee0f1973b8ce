"""Actuators: what stands between a command and the torque of a joint.

command -> first-order lag -> gain and bias -> limit -> gear -> joint (`jaxmbd/actuation.py`). Without a gain the
command is in motor units (torque [N m] or force [N] before the gear). The rotor's inertia appears at the joint times
the ratio squared: its spin against the body that carries the motor. What the rotor is as a part of that body belongs to
the body's own inertia; how its spin and the body's turning act on one another is left out, see docs/forces.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd.actuation import affine_force, lagged, limited
from jaxmbd.elements.protocol import JointElement, Names
from jaxmbd.joints import as_pytree
from jaxmbd.values import Numbers, concrete, floats


class Actuator(JointElement):
    """Motors on joints: ratio limit(gain z + bias) - ratio^2 rotor_damping v, and ratio^2 rotor_inertia as armature.

    z is the command, or follows it with the lag; gain and bias may depend on the motor's angle ratio q and its speed.
    """

    commanded: ClassVar[bool] = True
    joints: tuple[str, ...] = eqx.field(static=True)
    gain: Float[Array, "*k 3"] | None
    bias: Float[Array, "*k 3"] | None
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
        gain: Numbers | None = None,
        bias: Numbers | None = None,
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
        gain: torque per unit of command: constant, per angle, per speed of the motor, [3] or [k, 3]; one if left out.
            A servo that is commanded an angle has gain (kp, 0, 0) and bias (0, -kp, -kd).
        bias: torque without command, likewise; none when left out.
        limit: largest torque of the motor, both ways [N m, N]; none when left out.
        softness: width over which the limit sets in smoothly [N m, N]; a hard limit when left out.
        ratio: turns of the motor per turn of the joint [1, rad/m]; negative where it reverses.
        rotor_inertia: of the motor's rotor [kg m^2].
        rotor_damping: viscous, at the motor [N m s/rad].
        lag: time constant with which the torque follows the command [s]; at once when left out. In a simulation the
            command is then held over each step, and followed exactly within it.
        start: torque at the start of a simulation [k] [N m, N], with a lag; zero when left out.

        Raises: ValueError for limits or softness that are not positive, negative lags, or a start without lag.
        """
        self.joints = (joint,) if isinstance(joint, str) else tuple(joint)
        on = f"of an actuator on {', '.join(self.joints)}"
        for name, value in (("limit", limit), ("softness", softness), ("lag", lag)):
            known = None if value is None else concrete(value)
            if known is not None and not np.all(known >= 0 if name == "lag" else known > 0):
                raise ValueError(f"The {name} {on} is {value}; expected {'0 or ' if name == 'lag' else ''}more than 0.")
        for name, value in (("gain", gain), ("bias", bias)):
            if value is not None and np.shape(floats(value))[-1:] != (3,):
                raise ValueError(
                    f"The {name} {on} has shape {np.shape(floats(value))}; expected three numbers: constant, per "
                    "angle, per speed."
                )
        if softness is not None and limit is None:
            raise ValueError("The softness of an actuator belongs to its limit; give a limit too.")
        if start is not None and (lag is None or jnp.ndim(floats(start)) != 1):
            raise ValueError("start is the torque of an actuator with lag, one number a velocity [k].")
        self.gain, self.bias, self.limit, self.softness, self.lag = (
            None if x is None else _number(x) for x in (gain, bias, limit, softness, lag)
        )
        self.ratio, self.rotor_inertia, self.rotor_damping = (
            _number(ratio),
            _number(rotor_inertia),
            _number(rotor_damping),
        )
        self.start = None if start is None else _number(start)

    def effort(self, at, t):
        torque = self._torque(at)
        if self.limit is not None:
            torque = limited(torque, -self.limit, self.limit, self.softness)
        return self.ratio * torque - self._drag() * at.v

    def _torque(self, at):
        """What the motor would give without its limit."""
        z = at.command if self.lag is None else at.z
        if self.gain is None and self.bias is None:
            return z
        if at.q.shape != at.v.shape:
            raise ValueError(
                f"An actuator with gain or bias sits on {', '.join(self.joints)}, with {at.q.size} coordinates and "
                f"{at.v.size} velocities; expected joints whose coordinates are angles or distances."
            )
        none = jnp.zeros(3, z.dtype)
        gain = none.at[0].set(1.0) if self.gain is None else self.gain
        bias = none if self.bias is None else self.bias
        shape = (*z.shape, 3)
        gain, bias = jnp.broadcast_to(gain, shape), jnp.broadcast_to(bias, shape)
        return affine_force(gain, bias, z, self.ratio * at.q, self.ratio * at.v)

    def _drag(self):
        return self.ratio**2 * self.rotor_damping

    def initial_state(self, size):
        if self.lag is None:
            return jnp.zeros(0)
        return jnp.zeros(size) if self.start is None else self.start

    def state_after(self, at, t, h):
        return at.z if self.lag is None else lagged(at.command, at.z, self.lag, h)

    def armature(self):
        return self.ratio**2 * self.rotor_inertia

    def dissipation(self, at, t):
        return self._drag() * at.v**2


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
