"""Forward dynamics: from forces to motion, by the articulated-body algorithm in O(number of velocities).

Three sweeps. Outwards: the motion at a = 0 and with it the velocity-product forces. Inwards: articulated inertias P and
residual forces z, eliminating one mode a slot (Jain & Rodriguez 1990, Eqs. 6.1, 7.2; Slaats 1991, Eqs. 3.51-3.60):

    U = P s,  d = s.U + armature,  g = U / d,  e = tau - s.z,  P+ = P - g U^T,  z+ = z + g e

Outwards again: the accelerations, a = e / d - g.A+, A = A+ + s a. Gravity is the base's acceleration -g in the last
sweep.

Where the acceleration is given in place of the force, the mode is not eliminated: P+ = P, z+ = z + U a; the last sweep
finds the driving force d a + U.A+ - e (Slaats 1991, section 4.1; Schwertassek & Senger 1988, Eq. 3.15).

A joint with k freedoms is k slots with massless bodies between, which is exact. The derivative is that of the linear
system M(q) a = tau - h(q, v), solved with the factors of the value.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.couplings import couple, expanded_forces, tied
from jaxmbd.crba import joint_inertia
from jaxmbd.curves import linearised
from jaxmbd.drives import with_laws
from jaxmbd.entries import entries
from jaxmbd.factor import (
    Factor,
    accelerated,
    factor_inward,
    free_part,
    implicit_solve,
    is_dense,
    mass_product,
    outward_accelerations,
    solve,
    solve_tree,
)
from jaxmbd.forces import passive_forces
from jaxmbd.kinematics import Moving, advance, at_base
from jaxmbd.newton_euler import Known, forces_inward, inertial_force
from jaxmbd.packing import (
    Packed,
    from_slots,
    full_accelerations,
    locate,
    reduced_forces,
    to_slots,
)
from jaxmbd.rnea import Bodies, body_forces, inertial_forces, needed_forces, up
from jaxmbd.spatial import Motion
from jaxmbd.system import System
from jaxmbd.tangents import no_tangents, varied
from jaxmbd.tree import Tree, scan_outward


def accelerations(system: System, packed: Packed, q, v, tau, wrenches, t, extra_armature=None) -> Float[Array, " nv"]:
    """Forward dynamics of a system that is packed already, its drives included.

    Args:
      packed: `pack(system)`; a rollout computes it once.
      extra_armature: [nv_full], added to the diagonal of the mass matrix: the implicit terms of a stepper.
    """
    if extra_armature is not None:
        system = dataclasses.replace(system, armature=system.armature + extra_armature)
    return hybrid(system, packed, q, v, tau, None, wrenches, t)[0]


def hybrid(system: System, packed: Packed, q, v, x, driven, wrenches, t):
    """Accelerations and forces of a system that is packed already; `driven` is None where all forces are given."""
    system = linearised(system, q, v)
    x, driven = with_laws(system, x, driven, q, v, t)
    a, tau, _ = _hybrid(system, packed, q, v, x, driven, wrenches, t)
    return a, tau


@jax.custom_jvp
def _hybrid(system, packed, q, v, x, driven, wrenches, t):
    """Accelerations, forces, and the factor of the mass matrix for use in `solve` alone (its derivative is zero)."""
    return _solved(system, packed, q, v, x, driven, wrenches, t, keep=False)[0]


@jax.custom_jvp
def _kept(*primals):
    """The same and what is then known of the motion; None with couplings, which change what the sweeps have found."""
    return _solved(*primals, keep=True)


def _solved(system, packed, q, v, x, driven, wrenches, t, keep: bool) -> tuple[Any, Known | None]:
    """Accelerations, forces and the factor; and what is then known of the motion, if asked for."""
    if is_dense(system, driven):
        return _dense(system, packed, q, v, x, driven, wrenches, t), None
    place, tree = locate(system, packed, q, v), system.topology.layout.tree
    speeds, keep = to_slots(system, v), keep and not system.topology.couplings
    body, rotations = inertial_forces(
        system, packed, place, speeds, jnp.zeros_like(speeds), wrenches, t, gravity=False, rotations=keep
    )
    factor, nu, given = eliminate(system, body, q, v, x, driven)
    known = None
    if keep:
        base = at_base(system, place, t, up(system))
        moving = packed.slots, place, speeds, body, rotations
        found, known = _known_accelerations(tree, factor, nu, Motion.of(up(system)), given, base, moving)
    else:
        found = outward_accelerations(tree, factor, nu, Motion.of(up(system)), given)
    a, tau = from_slots(system, found), x
    if driven is not None:
        a, tau = jnp.where(driven, x, a), jnp.where(driven, -a, x)
    if not system.topology.couplings:
        return (a, tau, factor), known
    coupled = couple(system, factor, partial(solve_tree, system, factor))
    a = tied(system, coupled, a, system.coupling_rate)
    return (entries(a, system.topology.layout.v_keep), tau, coupled), None


def _dense(system, packed, q, v, x, driven, wrenches, t):
    """The same through the reduced mass matrix G^T M G."""
    tau = reduced_forces(system, passive_forces(system, q, v)) + (x if driven is None else jnp.where(driven, 0.0, x))
    M = joint_inertia(system, packed, q)
    still = jnp.zeros_like(v)
    h = body_forces(system, packed, q, v, still, wrenches, t, gravity=True)
    h = reduced_forces(system, h + system.armature * full_accelerations(system, still))
    if driven is None:
        factor = jnp.linalg.cholesky(M)
        return solve(system, factor, tau - h), x, factor
    given = jnp.where(driven, x, 0.0)
    factor = jnp.linalg.cholesky(free_part(M, driven))
    a = jnp.where(driven, x, solve(system, factor, jnp.where(driven, 0.0, tau - h - M @ given)))
    return a, jnp.where(driven, M @ a + h - tau, x), factor


def eliminate(system: System, body: Bodies, q, v, x, driven) -> tuple[Factor, Array, Array | None]:
    """The factor, nu of every slot and the given accelerations of the driven slots, for a last sweep outwards."""
    forces, given = x, None
    if driven is not None:
        forces = jnp.where(driven, 0.0, x)
        given = to_slots(system, driven), to_slots(system, jnp.where(driven, x, 0.0))
    tau = passive_forces(system, q, v) + expanded_forces(system, forces)
    factor, nu = factor_inward(system, body, entries(tau, system.topology.layout.slot_velocity), given)
    return factor, nu, None if given is None else given[1]


def _known_accelerations(tree: Tree, factor: Factor, nu, gravity: Motion, given, base: Moving, moving):
    """The last sweep and what is then known of the motion: velocities and accelerations are carried along.

    Args:
      moving: slots, places, velocities, what the first sweep left behind, orientations of parents and slots.
    """
    slots, place, v, body, (R_parent, R) = moving

    def step(carry, xs):
        A, parent = carry
        factor, nu, given, (slot, x, v, inertia, R) = xs
        A, a, found = accelerated(A, factor, nu, given)
        product = enters = None
        if x.extra is not None:
            enters = x.extra.enters
            product = None if x.extra.velocity_product is None else R @ x.extra.velocity_product
        rates = advance(parent, factor.l, factor.mode.motion, v, a, product, enters)
        rotor = None if slot.rotor is None else R @ slot.rotor
        return (A, rates), (found, parent, inertial_force(inertia, rates, rotor))

    xs = (factor, nu, given, (slots, place, v, body.inertia, R))
    found, rates, own = scan_outward(tree, step, (gravity, base.rates), xs)
    along, force = forces_inward(tree, own, body.l, body.mode, transmitted=True)
    assert force is not None
    return found, Known(Moving(R_parent, *rates), R, body.l, body.mode, body.inertia, along, force)


def _hybrid_jvp(primals, tangents):
    found, moves, _ = _variation(primals, tangents)
    return found, moves


def _kept_jvp(primals, tangents):
    found, moves, known = _variation(primals, tangents)
    return (found, known), (moves, no_tangents(known))


def _variation(primals, tangents):
    """Differentiate M(q) a + h(q, v) = tau and solve for the unknown part; absent tangents cost nothing.

    The motion is known from the solution; its variation alone is worked out.
    """
    (a, tau, factor), known = _kept(*primals)
    rebuilt, values, moves = varied(primals, tangents)

    def residual(*values):
        system, packed, q, v, x, driven, wrenches, t = rebuilt(*values)
        motion, acting = (a, x) if driven is None else (jnp.where(driven, x, a), jnp.where(driven, tau, x))
        return acting - needed_forces(system, packed, q, v, motion, wrenches, t, known), x

    _, (b, dx) = jax.jvp(residual, values, moves)
    system, packed, q, _, _, driven, _, _ = primals
    found, still = (a, tau, factor), no_tangents(factor)
    if driven is None:
        return found, (implicit_solve(system, packed, q, factor, b), dx, still), known
    free = implicit_solve(system, packed, q, factor, jnp.where(driven, 0.0, b), driven)
    forces = jnp.where(driven, mass_product(system, packed, q, free) - b, dx)
    return found, (jnp.where(driven, dx, free), forces, still), known


_hybrid.defjvp(_hybrid_jvp, symbolic_zeros=True)
_kept.defjvp(_kept_jvp, symbolic_zeros=True)
