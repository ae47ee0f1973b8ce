"""A table of actuators: controls to generalised forces, tau = B(q)^T f(ctrl, length, speed).

Each makes one force (`jaxmbd/actuation.py`) and passes it on by a moment: the rate of its length is moment @ v. The
moment acts on a joint, on a linear combination of joints (a fixed tendon), or as a wrench at a frame. That covers
motors, servos, dampers, geared and lagging drives of MuJoCo's general model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.actuation import affine_force, lagged, limited
from jaxmbd.jacobian import jacobian
from jaxmbd.joints import as_pytree
from jaxmbd.kinematics import promote
from jaxmbd.packing import full_coordinates, full_velocities, reduced_forces
from jaxmbd.stateful import StatefulControl
from jaxmbd.system import System


@dataclasses.dataclass(frozen=True)
class Transmission:
    """What an actuator pulls at: one joint, the joints of a fixed tendon, or a frame.

    `in_parent` takes the gear of a ball or free joint's rotation in inboard axes, otherwise it is in outboard axes.
    """

    kind: Literal["joint", "tendon", "frame"]
    targets: tuple[str, ...]
    in_parent: bool = False


class Actuators(eqx.Module):
    """The map (q, v, ctrl) -> tau of nu actuators; every number is a leaf, names and targets are static.

    length = gear * (coefficients @ coordinates), with one term a joint; speed = its rate. For a ball joint the length
    is its rotation vector times the gear's first three entries; for a free joint and a frame it is zero, and the gear
    is a wrench [force, moment]: of a frame in its own axes, of a free joint force in world and moment in outboard axes.
    """

    gear: Float[Array, "nu 6"]
    gain: Float[Array, "nu 3"]
    """Factor of ctrl: constant, per length, per speed."""
    bias: Float[Array, "nu 3"]
    """Force without ctrl: constant, per length, per speed."""
    ctrl_range: Float[Array, "nu 2"]
    force_range: Float[Array, "nu 2"]
    coefficients: Float[Array, " terms"]
    """Of every joint of every fixed tendon; 1 for an actuator on a joint. In the order of `transmissions`."""
    joint_range: Float[Array, "limited 2"]
    """Bounds of the summed actuator force on single joints [N m, N]; with couplings, that of frames comes on top."""
    names: tuple[str, ...] = eqx.field(static=True)
    transmissions: tuple[Transmission, ...] = eqx.field(static=True)
    bounded_joints: tuple[str, ...] = eqx.field(static=True, default=())
    softness: Float[Array, " nu"] | None = None
    """Width over which the force range sets in smoothly [N m, N]; zero, or None for all: a hard limit."""
    lag: Float[Array, " nu"] | None = None
    """Time constant with which each follows its control [s]; zero for none, None without any."""

    @property
    def nu(self) -> int:
        """Number of controls."""
        return len(self.names)

    def __call__(
        self, system: System, q: Float[Array, " nq"], v: Float[Array, " nv"], ctrl: Float[Array, " nu"]
    ) -> Float[Array, " nv"]:
        """Generalised forces tau of the actuators, once they have followed their controls [N m, N].

        Args:
            system: the mechanism; joints and frames are found by name.
            q: coordinates.
            v: velocities.
            ctrl: controls, clipped to `ctrl_range`; their unit is that of the actuator's gain.

        Raises:
            ValueError: ctrl has another shape.
            KeyError: the system has no such joint or frame.
        """
        if jnp.shape(ctrl) != (self.nu,):
            raise ValueError(
                f"ctrl has shape {jnp.shape(ctrl)}; expected ({self.nu},), one for each of: {', '.join(self.names)}."
            )
        return _forces(self, system, q, v, self._clipped(ctrl))

    def _clipped(self, ctrl):
        return jnp.clip(ctrl, self.ctrl_range[:, 0], self.ctrl_range[:, 1])

    def _lags(self, dtype):
        return jnp.zeros(self.nu, dtype) if self.lag is None else self.lag.astype(dtype)

    def control(
        self, system: System, ctrl: Float[Array, " nu"] | Callable[[Array, Array, Array], Array]
    ) -> ActuatorControl | LaggedControl:
        """The `control` of `simulate` that these actuators give with constant controls, or with ctrl(t, q, v).

        Where some lag, the controls are held over each step and followed exactly within it, from zero at the start.
        """
        kind = ActuatorControl if self.lag is None else LaggedControl
        return kind(self, system, as_pytree(ctrl) if callable(ctrl) else jnp.asarray(ctrl, float))


class ActuatorControl(eqx.Module):
    """Forces of actuators as a function of time and state: the `control` argument of `simulate`."""

    actuators: Actuators
    system: System
    ctrl: Array | Callable[[Array, Array, Array], Array]

    def __call__(self, t: Array, q: Array, v: Array) -> Array:
        return self.actuators(self.system, q, v, self.ctrl(t, q, v) if callable(self.ctrl) else self.ctrl)


class LaggedControl(StatefulControl):
    """The same where actuators lag; the memory is the controls that they have reached."""

    actuators: Actuators
    system: System
    ctrl: Array | Callable[[Array, Array, Array], Array]

    def start(self, t, q, v):
        return jnp.zeros(self.actuators.nu, v.dtype)

    def plan(self, memory, t, q, v, h):
        ctrl = self.ctrl(t, q, v) if callable(self.ctrl) else self.ctrl
        command = self.actuators._clipped(jnp.asarray(ctrl, v.dtype)).astype(v.dtype)
        acting = jax.tree_util.Partial(_acting, self.actuators, self.system, command, memory, t)
        return acting, lagged(command, memory, self.actuators._lags(v.dtype), h)


def _acting(actuators, system, command, memory, start, t, q, v):
    """Forces a time t - start after a step began with a command."""
    return _forces(actuators, system, q, v, lagged(command, memory, actuators._lags(v.dtype), t - start))


@jax.jit
def _forces(actuators: Actuators, system: System, q, v, ctrl):
    q, v, _, _, system = promote(system, q, v, None, 0.0)
    nu, nv_full = actuators.nu, system.topology.layout.nv_full
    cast = jax.tree.map(lambda leaf: leaf.astype(q.dtype), actuators)
    q_full, v_full = full_coordinates(system, q), full_velocities(system, v)

    # terms of joints with one coordinate: actuator, slots in q and v of all joints, moment
    row, at_q, at_v, term = _terms(actuators, system)
    moment = cast.gear[row, 0] * cast.coefficients[term]
    length = jax.ops.segment_sum(moment * q_full[at_q], row, nu)
    speed = jax.ops.segment_sum(moment * v_full[at_v], row, nu)
    # ball and free joints, and frames
    blocks = _blocks(actuators, cast.gear, system, q_full)
    frames = _frames(actuators, cast.gear, system, q)
    for i, at, direction, extent in blocks:
        length, speed = length.at[i].add(extent), speed.at[i].add(direction @ v_full[at])
    for i, direction in frames:
        speed = speed.at[i].add(direction @ v)

    force = affine_force(cast.gain, cast.bias, jnp.asarray(ctrl, q.dtype), length, speed)
    force = limited(force, cast.force_range[:, 0], cast.force_range[:, 1], cast.softness)

    tau = jax.ops.segment_sum(moment * force[row], at_v, nv_full)
    for i, at, direction, _ in blocks:
        tau = tau.at[at].add(force[i] * direction)
    at_frames = sum((force[i] * direction for i, direction in frames), jnp.zeros_like(v))
    coupled = bool(system.topology.couplings)
    if not coupled:
        tau = tau + at_frames
    for k, name in enumerate(actuators.bounded_joints):
        at = _place(system, name)[1]
        tau = tau.at[at].set(jnp.clip(tau[at], cast.joint_range[k, 0], cast.joint_range[k, 1]))
    return reduced_forces(system, tau) + at_frames if coupled else tau


def _place(system: System, name: str) -> tuple[slice, slice, bool | None]:
    """Where a joint sits in q and v of all joints, and whether it translates (None: no quaternion joint)."""
    names = [joint.name for joint in system.topology.joints]
    if name not in names:
        raise KeyError(f"An actuator acts on joint {name!r}, which the system does not have: {', '.join(names)}.")
    i, layout = names.index(name), system.topology.layout
    at_q, at_v = (slice(int(start[i]), int(start[i + 1])) for start in (layout.q_start, layout.v_start))
    return at_q, at_v, system.topology.joints[i].translating


def _terms(actuators: Actuators, system: System) -> tuple[np.ndarray, ...]:
    """Actuator, slot in q, slot in v, and coefficient of every term of joints with one coordinate."""
    terms, count = [], 0
    for i, transmission in enumerate(actuators.transmissions):
        if transmission.kind == "frame":
            continue
        for name in transmission.targets:
            at_q, at_v, translating = _place(system, name)
            if translating is None and at_v.stop - at_v.start == 1:
                terms.append((i, at_q.start, at_v.start, count))
            count += 1
    return tuple(np.array(terms, int).reshape(-1, 4).T)


def _blocks(actuators: Actuators, gear, system: System, q_full) -> list[tuple[int, slice, Array, Array]]:
    """Actuator, slots in v, moment and length of every actuator on a ball or free joint."""
    found = []
    for i, transmission in enumerate(actuators.transmissions):
        if transmission.kind != "joint":
            continue
        at_q, at_v, translating = _place(system, transmission.targets[0])
        if translating is None:
            continue
        quaternion = q_full[at_q][:4]
        back = so3.matrix(quaternion).T
        spin = gear[i, 3:] if translating else gear[i, :3]
        spin = back @ spin if transmission.in_parent else spin
        if translating:
            found.append((i, at_v, jnp.concatenate([spin, back @ gear[i, :3]]), jnp.zeros((), gear.dtype)))
        else:
            found.append((i, at_v, spin, so3.log(quaternion) @ spin))
    return found


def _frames(actuators: Actuators, gear, system: System, q) -> list[tuple[int, Array]]:
    """Actuator and moment on the independent velocities of every actuator at a frame."""
    jacobians: dict[str, Array] = {}
    found = []
    for i, transmission in enumerate(actuators.transmissions):
        if transmission.kind == "frame":
            name = transmission.targets[0]
            if name not in jacobians:
                jacobians[name] = jacobian(system, q, name, axes="local")
            found.append((i, jnp.concatenate([gear[i, 3:], gear[i, :3]]) @ jacobians[name]))
    return found
