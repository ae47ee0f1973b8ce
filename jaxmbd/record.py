"""What a run keeps: whole states, or named quantities alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxmbd.constraints.balance import multipliers_of_motion
from jaxmbd.curves import linearised
from jaxmbd.elements.loads import evaluate
from jaxmbd.energy import com, energy, momentum
from jaxmbd.joints import as_pytree
from jaxmbd.kinematics import kinematics
from jaxmbd.packing import pack
from jaxmbd.reactions import reactions_of_motion
from jaxmbd.system import System

Quantity = Callable[[Array, Array, Array], PyTree]

_PLAIN = ("q", "v", "a", "tau", "energy", "kinetic", "potential", "momentum", "com", "memory")
_MOTION = ("rotation", "position", "velocity", "acceleration")


class State(eqx.Module):
    """Where a run stands: enough to go on from. `memory` belongs to a control that has one, `z` to force elements,
    `past` to a stepper that hands numbers from step to step.
    """

    t: Float[Array, ""]
    q: Float[Array, " nq"]
    v: Float[Array, " nv"]
    memory: PyTree = None
    z: Float[Array, " nz"] | None = None
    past: PyTree = None


class Trajectory(eqx.Module):
    """States at nt instants, the start included.

    `a` and `tau` belong to the step that begins at each instant, as the stepper and the control see it (the mean of the
    step for implicit steppers); where joints are driven by a law, `tau` is the driving force (its power is tau * v).
    `end` is the state to resume from. `z` holds the own states of force elements (of actuators with lag), None where
    they have none.
    """

    t: Float[Array, " nt"]
    q: Float[Array, "nt nq"]
    v: Float[Array, "nt nv"]
    a: Float[Array, "nt nv"]
    tau: Float[Array, "nt nv"]
    end: State
    z: Float[Array, "nt nz"] | None = None


class Recording(eqx.Module):
    """Named quantities at nt instants, the start included; `run["energy"]` is one of them. `end` is for resuming."""

    t: Float[Array, " nt"]
    values: dict[str, PyTree]
    end: State

    def __getitem__(self, name: str) -> PyTree:
        if name not in self.values:
            raise KeyError(f"Nothing recorded as {name!r}. Recorded: {', '.join(self.values)}.")
        return self.values[name]


class Recorder(eqx.Module):
    """The quantities that a run evaluates at each instant that it keeps."""

    functions: dict[str, Callable]
    named: tuple[tuple[str, str], ...] = eqx.field(static=True)

    @property
    def needs_forces(self) -> bool:
        """Whether accelerations or forces of the step are asked for."""
        return any(what in ("a", "tau") or what.endswith((".acceleration", ".reaction")) for _, what in self.named)

    def __call__(self, system: System, elements: tuple, t, q, v, a, tau, memory) -> dict[str, PyTree]:
        plain = {"q": q, "v": v, "a": a, "tau": tau, "memory": memory}
        wanted = {what for _, what in self.named}
        if wanted & {"energy", "kinetic", "potential"}:
            plain["kinetic"], plain["potential"] = energy(system, q, v, t)
            if elements:
                plain["potential"] = plain["potential"] + jnp.sum(evaluate(system, elements, q, v, None, t).potential)
            plain["energy"] = plain["kinetic"] + plain["potential"]
        if "momentum" in wanted:
            plain["momentum"] = momentum(system, q, v, t)
        if "com" in wanted:
            plain["com"] = com(system, q, t)
        of_joints = {what for what in wanted if what.endswith(".reaction")}
        if of_joints:
            wrenches = evaluate(system, elements, q, v, None, t).frame_wrenches if elements else ()
            at_state, packed, multipliers = linearised(system, q, v), pack(system), None
            if system.constraints:
                multipliers = multipliers_of_motion(at_state, packed, q, v, a, tau, wrenches, t)
            r = reactions_of_motion(at_state, packed, q, v, a, wrenches, t, multipliers)
            plain |= {what: r[what.removesuffix(".reaction")].wrench for what in of_joints}
        of_frames = wanted - set(plain)
        if of_frames:
            k = kinematics(system, q, v, a, t)
            for what in of_frames:
                frame, part = what.rsplit(".", 1)
                plain[what] = getattr(k[frame], part)
        values = {name: plain[what] for name, what in self.named}
        return values | {name: function(t, q, v) for name, function in self.functions.items()}


def recorder(system: System, record: Sequence[str] | Mapping[str, str | Quantity]) -> Recorder:
    """What to record, checked against the system's names.

    Raises: KeyError for a quantity that nobody knows.
    """
    if isinstance(record, str):
        record = (record,)
    items = record.items() if isinstance(record, Mapping) else [(name, name) for name in record]
    functions, named = {}, []
    for name, what in items:
        if not isinstance(what, str):
            functions[name] = as_pytree(what)
            continue
        frame, _, part = what.rpartition(".")
        if part == "reaction" and frame in _transmitting(system):
            named.append((name, what))
            continue
        if what not in _PLAIN and (part not in _MOTION or frame not in (*system.frame_names, "world")):
            raise KeyError(
                f"No quantity {what!r} to record. Known: {', '.join(_PLAIN)}; a frame and one of "
                f"{', '.join(_MOTION)}, as '{(*system.frame_names, 'world')[0]}.position'; a joint and 'reaction'; or "
                "a function of (t, q, v) in a dictionary."
            )
        named.append((name, what))
    return Recorder(functions, tuple(named))


def _transmitting(system: System) -> list[str]:
    """Joints, and constraints between two frames."""
    topology = system.topology
    return [j.name for j in topology.joints] + [c.name for c in topology.constraints if len(c.frames) == 2]


def joined(pieces: Sequence[Trajectory | Recording]) -> Trajectory | Recording:
    """Runs that follow one another as one; each one's first instant is the last of the one before."""
    if not pieces:
        raise ValueError("No pieces to join; expected at least one.")
    if len(pieces) == 1:
        return pieces[0]
    axis = jnp.ndim(pieces[0].t) - 1

    def join(*parts: Any):
        rows = [parts[0], *(jnp.take(p, jnp.arange(1, p.shape[axis]), axis=axis) for p in parts[1:])]
        return jnp.concatenate(rows, axis=axis)

    whole = jax.tree.map(join, *(eqx.tree_at(lambda piece: piece.end, piece, None) for piece in pieces))
    return eqx.tree_at(lambda piece: piece.end, whole, pieces[-1].end, is_leaf=lambda x: x is None)
