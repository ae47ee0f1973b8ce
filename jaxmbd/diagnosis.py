"""Debug mode: which body, joint, step and copy of a batch the first number that is not finite comes from.

Inside `with mb.debug():` states and systems are looked at wherever they enter a public function, and runs remember the
first step that gave a number that is not finite. The step is then taken apart on the host, sweep by sweep.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxmbd import watch
from jaxmbd.border import BlackBox, Doubt, collect, release
from jaxmbd.constraints.dynamics import accelerations
from jaxmbd.elements.loads import evaluate
from jaxmbd.elements.protocol import JointElement
from jaxmbd.factor import factorize
from jaxmbd.packing import pack
from jaxmbd.system import System


class NotFinite(FloatingPointError):
    """A number that is not finite, or a state that no mechanism can be in; says where."""


@contextlib.contextmanager
def debug() -> Iterator[None]:
    """Check what enters and what happens, and say where it went wrong.

    Entering and leaving forget all compiled programs, so that functions compiled before are checked too. Errors come up
    when a call that is not itself inside `jit` or `vmap` is done, otherwise at the end of the block.

    Raises: NotFinite naming step, copy, joint and body of the first number that is not finite; or the first state with
      such a number or a quaternion off unit length. Coordinates beyond recorded limits are warned about.
    """
    jax.clear_caches()
    found = collect()
    watch.start(lambda: _settle(found))
    try:
        yield
        jax.effects_barrier()
        _settle(found)
    finally:
        watch.stop()
        release(found)
        jax.clear_caches()


def _settle(found: list[Doubt]) -> None:
    """Warn about what is doubtful, raise what is wrong: of all copies the one that broke first."""
    doubts, found[:] = list(found), []
    for text in dict.fromkeys(d.text for d in doubts if d.text is not None and not d.fatal):
        warnings.warn(text, stacklevel=4)
    runs = [d for d in doubts if d.box is not None]
    if runs:  # they say more than the checks of what entered functions inside them
        first = min(runs, key=lambda d: int(d.box.step))
        box, others = first.box, f" ({len(runs)} copies are affected, this one first)" if len(runs) > 1 else ""
        place = f"{_at(first.index)}step {int(box.step)}, t = {float(box.t):g} s"
        raise NotFinite(f"{place}: {diagnose(first.system, first.elements, box)}{others}")
    for doubt in doubts:
        if doubt.fatal:
            raise NotFinite(_at(doubt.index) + str(doubt.text))


def _at(index) -> str:
    return f"copy {index[0] if len(index) == 1 else tuple(index)}, " if index else ""


def diagnose(system: System, elements: tuple, box: BlackBox) -> str:
    """What in a step is not finite first, in the order of the computation: forces, pivots, accelerations, motion."""
    layout, topology = system.topology.layout, system.topology

    def joint_of(slot):
        joint = topology.joints[layout.slot_joint[slot]]
        return f"joint {joint.name!r} (body {topology.links[joint.child]!r})"

    def joint_of_velocity(i):
        return joint_of(int(layout.velocity_slot[layout.v_keep[i]]))

    q, v, tau, t = (jnp.asarray(x) for x in (box.q, box.v, box.tau, box.t))
    bad = np.flatnonzero(~np.isfinite(box.command))
    if len(bad):
        return f"the force of the control at {joint_of_velocity(bad[0])} is {box.command[bad[0]]}"
    loads = evaluate(system, elements, q, v, box.command, t, box.z)
    for i, element in enumerate(elements):
        if not all(np.all(np.isfinite(x)) for x in (loads.power[i], *loads.sides[i])):
            where = element.joints if isinstance(element, JointElement) else loads.frames[i]
            return f"the force of {type(element).__name__} (forces[{i}], on {_named(where)}) is not finite"
    packed = pack(system)
    if not topology.couplings:
        pivots = np.asarray(factorize(system, packed, q).d)
        given = layout.velocity_slot[layout.v_keep[np.flatnonzero(layout.driven)]]
        bad = np.setdiff1d(np.flatnonzero(~(np.isfinite(pivots) & (pivots > 0))), given)
        if len(bad):
            slot = bad[-1]  # the sweep comes from the tips: the last slot is the first to break
            return (
                f"the inertia that {joint_of(slot)} has to move is {pivots[slot]:g}, expected more than zero; look at "
                "masses, inertias and armature there and outboard of it"
            )
    a = np.asarray(accelerations(system, packed, q, v, tau, loads.wrenches, t))
    bad = np.flatnonzero(~np.isfinite(a))
    if len(bad):
        full = np.zeros(layout.nv_full)
        full[layout.v_keep[bad]] = 1
        slot = int(np.flatnonzero(full[layout.slot_velocity])[0])
        return f"the acceleration of {joint_of(slot)} is not finite; its speed is {v[bad[0]]:.3g}"
    moved = np.concatenate([np.atleast_1d(x) for x in (box.a, box.v1)]).reshape(2, -1)
    bad = np.flatnonzero(~np.isfinite(moved).all(0))
    fastest = int(bad[np.argmax(np.abs(np.asarray(v))[bad])] if len(bad) else np.argmax(np.abs(np.asarray(v))))
    return (
        f"the stepper's result at {joint_of_velocity(fastest)} is not finite, though the accelerations at the step's "
        f"start are; its speed is {v[fastest]:.3g}: try a smaller dt"
    )


def _named(sides) -> str:
    """Names of joints, or of the frames on both sides of an element."""
    return ", ".join(repr(name) for side in sides for name in ((side,) if isinstance(side, str) else side))
