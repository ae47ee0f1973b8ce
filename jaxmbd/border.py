"""Checks of states and systems where they enter a public function, in debug mode only."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import watch
from jaxmbd.system import System

NORM = 1e-3  # how far a quaternion's length may be off one
_UNBOUNDED = ("lower", "upper", "effort", "speed")  # infinite where there is no limit
_NO_NUMBERS = ("topology", "functions", "base_motion", "drives", "curves")


class Doubt(NamedTuple):
    """Something that was found: at which copy, what, and the black box of a run."""

    index: tuple[int, ...]
    text: str | None
    fatal: bool
    system: Any = None
    elements: Any = ()
    box: Any = None


class BlackBox(NamedTuple):
    """The first bad step of a run: its number (-1 if none), state and forces at its start, and what came out.

    `command` is what the control gave, `tau` that with what force elements do in the joints; `z` are their own states.
    """

    step: Any
    t: Any
    q: Any
    v: Any
    z: Any
    command: Any
    tau: Any
    a: Any
    q1: Any
    v1: Any


_open: list[list[Doubt]] = []


def collect() -> list[Doubt]:
    """Begin a list of doubts."""
    _open.append([])
    return _open[-1]


def release(doubts: list[Doubt]) -> None:
    """End it."""
    _open.remove(doubts)


def note(doubt: Doubt) -> None:
    """Add to the innermost list; programs that still run after it was ended are not listened to."""
    if _open:
        _open[-1].append(doubt)


def check_state(system: System, q: Float[Array, " nq"], v, a) -> Float[Array, " nq"]:
    """Show a state and its system to the watcher; returns q."""
    names = [name for name in vars(system) if name not in (*_UNBOUNDED, *_NO_NUMBERS)]
    numbers = {name: getattr(system, name) for name in names if getattr(system, name) is not None}
    bounds = {name: getattr(system, name) for name in ("lower", "upper")}
    return watch.show(partial(_inspect, system.topology), (numbers, bounds, q, v, a), q)


def _inspect(topology, index, values) -> None:
    numbers, bounds, q, v, a = values
    layout = topology.layout
    for name, array in numbers.items():
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            note(Doubt(index, f"{name}{_owner(topology, name, bad[0])} of the system is {array[tuple(bad[0])]}", True))
    v_names = [topology.joints[layout.slot_joint[layout.velocity_slot[i]]].name for i in layout.v_keep]
    q_names = [topology.joints[int(np.searchsorted(layout.q_start, i, "right")) - 1].name for i in layout.q_keep]
    for label, array, names in (("q", q, q_names), ("v", v, v_names), ("a", a, v_names)):
        bad = np.flatnonzero(~np.isfinite(array))
        if len(bad):
            note(Doubt(index, f"{label}[{bad[0]}], joint {names[bad[0]]!r}, is {array[bad[0]]}", True))
    group = layout.group
    for rows in group.turn_q:
        norm = np.linalg.norm(q[rows])
        if np.isfinite(norm) and abs(norm - 1) > NORM:
            text = f"the quaternion q[{rows[0]}:{rows[3] + 1}] of joint {q_names[rows[0]]!r} has length {norm:.6g}"
            note(Doubt(index, f"{text}; expected 1. Divide it by its length, or move q by integrate", True))
    for n, place in enumerate(group.plain_q):
        at = layout.v_keep[group.plain_v[n]]
        lower, upper = bounds["lower"][at], bounds["upper"][at]
        if q[place] < lower or q[place] > upper:
            where = f"joint {q_names[place]!r} is at {q[place]:.6g}, beyond its limits {lower:g} to {upper:g}"
            note(Doubt(index, f"{where}; limits act only after with_limits", False))


def _owner(topology, name, at) -> str:
    """The place in an array of the system, by name where it is one a link or joint."""
    if name.startswith("link_") or name == "rotor_momentum":
        return f" of {topology.links[at[0]]!r}"
    if name.startswith("in_"):
        return f" of {topology.joints[at[0]].name!r}"
    return str([int(i) for i in at]) if len(at) else ""


def watch_run(system: System, elements: tuple, box: Any, through: Array) -> Array:
    """Show the black box of a run, with the system and the force elements that made it."""
    leaves, structure = jax.tree.flatten((system, elements))
    known = [isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves]
    arrays = [leaf for leaf, array in zip(leaves, known, strict=True) if array]

    def inspect(index, values):
        arrays, box = values
        if int(box.step) >= 0:
            given = iter(arrays)
            whole = [jnp.asarray(next(given)) if array else leaf for leaf, array in zip(leaves, known, strict=True)]
            system, elements = jax.tree.unflatten(structure, whole)
            note(Doubt(index, None, True, system, elements, box))

    return watch.show(inspect, (arrays, box), through)
