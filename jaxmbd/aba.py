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
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxmbd.couplings import Coupled, couple, expanded_forces, tied
from jaxmbd.crba import joint_inertia
from jaxmbd.curves import linearised
from jaxmbd.drives import with_laws
from jaxmbd.entries import entries
from jaxmbd.forces import passive_forces
from jaxmbd.kinematics import Moving, advance, at_base, promote
from jaxmbd.newton_euler import Known, forces_inward, inertial_force
from jaxmbd.packing import (
    Mode,
    Packed,
    from_slots,
    full_accelerations,
    full_velocities,
    locate,
    pack,
    reduced_forces,
    slot_armature,
    to_slots,
)
from jaxmbd.rnea import Bodies, body_forces, inertial_forces, needed_forces, still_bodies, up
from jaxmbd.spatial import ArticulatedInertia, Force, Motion, Scalar, Vec3
from jaxmbd.system import System
from jaxmbd.tangents import no_tangents, varied
from jaxmbd.tree import Tree, scan_inward, scan_outward


class Factor(NamedTuple):
    """The factorised mass matrix in sweep order: per slot its shift, mode, gain g and pivot d.

    `driven` tells which slots are not eliminated; their g is U. None where all are.
    """

    l: Vec3
    mode: Mode
    g: Force
    d: Scalar
    driven: Scalar | None = None


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
    """The same and what is then known of the motion; None where bodies are not the only thing that moves."""
    return _solved(*primals, keep=True)


def _solved(system, packed, q, v, x, driven, wrenches, t, keep: bool):
    if _is_dense(system, driven):
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
    coupled = couple(system, factor, partial(_solve_tree, system, factor))
    a = tied(system, coupled, a, system.coupling_rate)
    return (entries(a, system.topology.layout.v_keep), tau, coupled), None


def _is_dense(system, driven) -> bool:
    """Whether coupled joints need the reduced mass matrix: if the tree alone is singular, or velocities are given."""
    return bool(system.topology.couplings) and (system.topology.dense or driven is not None)


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
    factor = jnp.linalg.cholesky(_free_part(M, driven))
    a = jnp.where(driven, x, solve(system, factor, jnp.where(driven, 0.0, tau - h - M @ given)))
    return a, jnp.where(driven, M @ a + h - tau, x), factor


def _free_part(M, driven):
    """The mass matrix of the free velocities, with ones for the driven."""
    return jnp.where(driven[:, None] | driven[None, :], jnp.eye(len(M), dtype=M.dtype), M)


def eliminate(system: System, body: Bodies, q, v, x, driven) -> tuple[Factor, Array, Array | None]:
    """The factor, nu of every slot and the given accelerations of the driven slots, for a last sweep outwards."""
    forces, given = x, None
    if driven is not None:
        forces = jnp.where(driven, 0.0, x)
        given = to_slots(system, driven), to_slots(system, jnp.where(driven, x, 0.0))
    tau = passive_forces(system, q, v) + expanded_forces(system, forces)
    factor, nu = _inward(system, body, entries(tau, system.topology.layout.slot_velocity), given)
    return factor, nu, None if given is None else given[1]


def _inward(system, body: Bodies, tau, given=None) -> tuple[Factor, Array]:
    """Articulated inertias and residual forces from the tips to the base.

    Args:
      tau: forces of every slot; passive forces alone where it is driven.
      given: which slots are driven, and their accelerations (zero on the others); None where none is.

    Returns: the factor, and nu = e / d of every slot (e - d a where driven).
    """
    armature = slot_armature(system)
    empties = _emptied(system, armature, given)

    def step(carry, xs):
        P, z = carry
        f, inertia, l, mode, tau, armature, empty, given = xs
        P, z, mode = P + inertia, z + f, mode.motion
        U = P @ mode
        d = mode.dot(U) + armature
        e = tau - mode.dot(z)
        if given is None:
            g = (1.0 / d) * U
            nu = e / d
            P, z = P.without(g, U), z + e * g
        else:
            driven, a = given
            # Two pivots: in the divisions alone does the mask meet numbers of a batch. A factor with a mask in it would
            # be worked out anew by every kernel that it enters, which costs a fifth.
            noted, eliminated = jnp.where(driven, 1.0, d), jnp.where(driven, jnp.inf, d)
            g, nu = (1.0 / noted) * U, (e - d * a) / noted
            P, z = P.without((1.0 / eliminated) * U, U), z + (a + e / eliminated) * U
        if empty is not None:
            # six eliminated freedoms leave nothing: no rounding residue for the parent, but the residue's derivative
            P = jax.tree.map(lambda p: jnp.where(empty, p - lax.stop_gradient(p), p), P)
        return (P.shift(l), z.shift(l)), (g, d, nu)

    zero = (ArticulatedInertia.zero(), Force(Vec3.zero(), Vec3.zero()))
    xs = (body.force, body.inertia, body.l, body.mode, tau, armature, empties, given)
    g, d, nu = scan_inward(system.topology.layout.tree, step, zero, xs)
    return Factor(body.l, body.mode, g, d, None if given is None else given[0]), nu


def _emptied(system, armature, given):
    """First slots of free joints between bodies, which an inward sweep leaves empty; None without such joints."""
    layout = system.topology.layout
    firsts = [
        int(layout.last_slot[layout.body(j.child)]) - 5
        for j in system.topology.joints
        if j.nv == 6 and layout.body(j.parent) >= 0
    ]
    if not firsts:
        return None
    kept = armature != 0 if given is None else (armature != 0) | given[0]
    unloaded = [~jnp.any(kept[first : first + 6]) for first in firsts]
    return jnp.zeros(layout.tree.size, bool).at[np.array(firsts)].set(jnp.stack(unloaded))


def outward_accelerations(tree: Tree, factor: Factor, nu, base: Motion, given=None) -> Float[Array, " slots"]:
    """Accelerations of every slot from the base to the tips: a = nu - g.A+, A = A+ + mode a.

    Args:
      given: accelerations of the driven slots.

    Returns: nu - g.A+ of every slot: its acceleration, and of driven slots the negative of the drive's force.
    """

    def step(A, xs):
        A, _, found = _accelerated(A, *xs)
        return A, found

    return scan_outward(tree, step, base, (factor, nu, given))


def _accelerated(A: Motion, factor: Factor, nu, given):
    """One slot of the last sweep: the acceleration of its body, its own and what is found."""
    A = A.shift(factor.l)
    a = found = nu - A.dot(factor.g)
    if factor.driven is not None:
        a = jnp.where(factor.driven, given, found)
    return A + a * factor.mode.motion, a, found


def _known_accelerations(tree: Tree, factor: Factor, nu, gravity: Motion, given, base: Moving, moving):
    """The same, and what is known of the motion: the sweep carries velocities and accelerations along.

    Args:
      moving: slots, places, velocities, what the first sweep left behind, orientations of parents and slots.
    """
    slots, place, v, body, (R_parent, R) = moving

    def step(carry, xs):
        A, parent = carry
        factor, nu, given, (slot, x, v, inertia, R) = xs
        A, a, found = _accelerated(A, factor, nu, given)
        product = enters = None
        if x.extra is not None:
            enters = x.extra.enters
            product = None if x.extra.velocity_product is None else R @ x.extra.velocity_product
        rates = advance(parent, factor.l, factor.mode.motion, v, a, product, enters)
        rotor = None if slot.rotor is None else R @ slot.rotor
        return (A, rates), (found, parent, inertial_force(inertia, rates, rotor))

    xs = (factor, nu, given, (slots, place, v, body.inertia, R))
    found, rates, own = scan_outward(tree, step, (gravity, base.rates), xs)
    _, force = forces_inward(tree, own, body.l, body.mode, transmitted=True)
    assert force is not None
    return found, Known(Moving(R_parent, *rates), R, body.l, body.mode, body.inertia, force)


def factorize(system: System, packed: Packed, q: Float[Array, " nq"]) -> Factor:
    """Factor of the mass matrix M = [1 + H Phi K] D [1 + H Phi K]^T (Jain & Rodriguez 1990, Lemma 6.1).

    Raises: ValueError for systems with couplings, whose mass matrix is reduced and has no such factors.
    """
    if system.topology.couplings:
        raise ValueError(
            "The factors of the recursion belong to trees without couplings; load with mimic='independent'."
        )
    return _inward(system, still_bodies(system, packed, q), jnp.zeros(system.nv, q.dtype))[0]


def solve(system: System, factor: Factor | Coupled | Array, b: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """M^-1 b from a factor.

    Where velocities are driven, M is that of the free ones, with ones on the diagonal for the driven.
    """
    if isinstance(factor, Factor):
        return _solve_tree(system, factor, b)
    if isinstance(factor, Coupled):
        free = _solve_tree(system, factor.tree, expanded_forces(system, b))
        return entries(tied(system, factor, free), system.topology.layout.v_keep)
    return jax.scipy.linalg.cho_solve((factor, True), b)


def _solve_tree(system: System, factor: Factor, b: Float[Array, " nv_full"]) -> Float[Array, " nv_full"]:
    """M^-1 b of the tree."""
    layout = system.topology.layout
    return from_slots(system, solve_slots(layout.tree, factor, entries(b, layout.slot_velocity)))


def solve_slots(
    tree: Tree, factor: Factor, b: Float[Array, "slots *b"], zero: Scalar = 0.0
) -> Float[Array, "slots *b"]:
    """M^-1 b of a tree in sweep order: two light sweeps (Jain & Rodriguez 1990, Lemma 6.3).

    Args:
      zero: of the shape of one row of b, where that is no number; the factor's rows then broadcast against it.
    """
    driven, nothing = factor.driven, Vec3(zero, zero, zero)

    def step(z, xs):
        l, mode, g, d, b, driven = xs
        e = b - mode.motion.dot(z)
        if driven is None:
            return (z + e * g).shift(l), e / d
        return (z + jnp.where(driven, 0.0, e) * g).shift(l), e / jnp.where(driven, 1.0, d)

    xs = (factor.l, factor.mode, factor.g, factor.d, b, driven)
    nu = scan_inward(tree, step, Force(nothing, nothing), xs)
    given = None if driven is None else jnp.zeros_like(b)
    a = outward_accelerations(tree, factor, nu, Motion(nothing, nothing), given)
    return a if driven is None else jnp.where(driven, b, a)


def mass_product(system: System, packed: Packed, q, a: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """M(q) a by one inverse dynamics at rest, without gravity."""
    system = dataclasses.replace(system, base_motion=None, coupling_rate=None)
    forces = body_forces(system, packed, q, jnp.zeros_like(a), a, (), jnp.zeros((), a.dtype), gravity=False)
    return reduced_forces(system, forces + system.armature * full_velocities(system, a))


def implicit_solve(system: System, packed: Packed, q, factor, b, driven=None) -> Float[Array, " nv"]:
    """M^-1 b whose derivative is that of the linear equation M x = b; b is zero where `driven`, and so is x."""

    def matvec(a):
        if driven is None:
            return mass_product(system, packed, q, a)
        return jnp.where(driven, a, mass_product(system, packed, q, jnp.where(driven, 0.0, a)))

    return lax.custom_linear_solve(matvec, b, lambda _, b: solve(system, factor, b), symmetric=True)


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


@jax.jit
def minv_product(system: System, q: Float[Array, " nq"], f: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """M(q)^-1 f in O(velocities), without forming M (Jain & Rodriguez 1990, Lemma 6.3)."""
    q, f, _, _, system = promote(system, q, f, None, 0.0)
    return inverse_mass_product(system, pack(system), q)(f)


def inverse_mass_product(system: System, packed: Packed, q, driven=None) -> Callable[[Array], Array]:
    """The function f -> M^-1 f, factorised once; where `driven`, f is zero and so is the result."""
    factor = mass_factor(system, packed, q, driven)
    return lambda f: implicit_solve(system, packed, q, factor, f, driven)


def mass_factor(system: System, packed: Packed, q, driven=None) -> Factor | Coupled | Array:
    """The factor of the mass matrix (of the free velocities) that `solve` takes; it carries no derivative."""
    frozen, constants, at = lax.stop_gradient((system, packed, q))
    if _is_dense(system, driven):
        M = joint_inertia(frozen, constants, at)
        return jnp.linalg.cholesky(M if driven is None else _free_part(M, driven))
    zero = jnp.zeros(system.topology.layout.nv_full, q.dtype)
    given = None if driven is None else (to_slots(system, driven), zero)
    factor, _ = _inward(frozen, still_bodies(frozen, constants, at), zero, given)
    if system.topology.couplings:
        return couple(frozen, factor, partial(_solve_tree, frozen, factor))
    return factor
