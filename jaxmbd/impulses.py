"""Impulses: jumps of the velocities under impulsive forces, and sudden locking.

Within an instant only inertia and impulses count: M (v+ - v-) = I (Passerello & Huston 1972, Eqs. 4.9-4.10). Given
jumps in place of given impulses are the mixed problem of the same equation, so the sweeps of hybrid dynamics solve it.
Constraints answer with impulses of their own (`jaxmbd/constraints/impulsive.py`).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxmbd.aba import hybrid
from jaxmbd.constraints.dynamics import ClosureWrenches, driven_by_law, wrenches_of
from jaxmbd.constraints.impulsive import instant, jump
from jaxmbd.factor import mass_product
from jaxmbd.forces import Wrench
from jaxmbd.kinematics import promote
from jaxmbd.packing import Packed, pack
from jaxmbd.reactions import Reactions, reactions_of_motion
from jaxmbd.rnea import held
from jaxmbd.system import System


@jax.jit
def impulse_response(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    x: Float[Array, " nv"] | None = None,
    wrenches: tuple[Wrench, ...] = (),
    driven: Bool[Array, " nv"] | None = None,
    t: float | Float[Array, ""] = 0.0,
) -> tuple[Float[Array, " nv"], Float[Array, " nv"]]:
    """Velocities just after an instant of impulses.

    Args:
      q: coordinates.
      v: velocities just before.
      x: impulses at the joints, dual to v [N m s, N s]; velocities just after where `driven`; zero when left out.
      wrenches: external impulses, wrenches read as moment [N m s] and force [N s].
      driven: velocities whose value just after is given, as those of a joint that locks: x = 0 there, with
        `system.velocity_mask("joint")`. Joints driven by a law of the system keep their velocities.
      t: time [s], where the base moves.

    Returns: (velocities just after, impulses at all joints, those of locking and driven joints included). Constraints
      hold just after; their impulses are `closure_impulses`, those in the joints `impulse_reactions`.
    Source: Passerello & Huston (1972), Eqs. 4.1-4.10.
    """
    q, v, x, t, system = promote(system, q, v, x, t)
    return _response(system, pack(system), q, v, x, wrenches, driven, t)[:2]


@jax.jit
def closure_impulses(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    x: Float[Array, " nv"] | None = None,
    wrenches: tuple[Wrench, ...] = (),
    driven: Bool[Array, " nv"] | None = None,
    t: float | Float[Array, ""] = 0.0,
) -> ClosureWrenches:
    """Impulses by which closures and other constraints act during `impulse_response`, whose arguments these are.

    Returns: as `closure_wrenches`, read as moment [N m s] and force [N s].
    """
    if not system.constraints:
        raise ValueError("This system has no constraints, so there are no closure impulses.")
    q, v, x, t, system = promote(system, q, v, x, t)
    packed = pack(system)
    return wrenches_of(system, packed, q, v, t, _response(system, packed, q, v, x, wrenches, driven, t)[2])


@jax.jit
def impulse_reactions(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    x: Float[Array, " nv"] | None = None,
    wrenches: tuple[Wrench, ...] = (),
    driven: Bool[Array, " nv"] | None = None,
    t: float | Float[Array, ""] = 0.0,
) -> Reactions:
    """Impulses that the joints transmit during `impulse_response`, whose arguments these are.

    Returns: as `reactions`, read as moment [N m s] and force [N s]: what every joint, welds included, exerts on its
      outboard body, at its outboard frame in world axes. `driving` is the part along velocities that lock or are driven
      by a law. Constraints between two frames follow by name.
    Source: Passerello & Huston (1972), Eqs. 4.1-4.10; Schwertassek & Senger (1988), Eqs. 3.28-3.34.
    """
    q, v, x, t, system = promote(system, q, v, x, t)
    packed = pack(system)
    after, _, multipliers = _response(system, packed, q, v, x, wrenches, driven, t)
    known = multipliers if system.constraints else None
    return reactions_of_motion(
        _inertia_alone(system, t),
        packed,
        q,
        jnp.zeros_like(v),
        after - v,
        wrenches,
        t,
        known,
        driven=_held(system, driven),
    )


def _held(system: System, driven):
    """Which velocities are given just after: those that lock, and those that laws drive."""
    by_law = driven_by_law(system)
    if by_law is None or driven is None:
        return driven if by_law is None else by_law
    return driven | by_law


def _response(system: System, packed: Packed, q, v, x, wrenches, driven, t):
    """Velocities just after, impulses at all joints, multipliers of the constraints."""
    still = jnp.zeros_like(v)
    by_law = driven_by_law(system)
    if by_law is not None:
        x = jnp.where(by_law, v, x)
    driven = _held(system, driven)
    given = x if driven is None else jnp.where(driven, x - v, x)
    change, impulses = hybrid(_inertia_alone(system, t), packed, q, still, given, driven, wrenches, t)
    multipliers = jnp.zeros(0, q.dtype)
    if system.constraints:
        at = instant(system, packed, q, v, t, driven)
        more, multipliers = jump(system, packed, q, at, still, at.rate + at.jacobian @ change)
        change = change + more
        if driven is not None:
            felt = mass_product(system, packed, q, more) - multipliers @ at.jacobian
            impulses = jnp.where(driven, impulses + felt, impulses)
    return v + change if driven is None else jnp.where(driven, x, v + change), impulses, multipliers


def _inertia_alone(system: System, t) -> System:
    """The mechanism without gravity, springs, limits, laws and motion of the base: what an instant leaves of it."""
    base = system.base_motion
    return dataclasses.replace(
        system.without_drive().without_limits(),
        gravity=jnp.zeros_like(system.gravity),
        stiffness=jnp.zeros_like(system.stiffness),
        base_motion=None if base is None else jax.tree_util.Partial(held, base(t)),
    )
