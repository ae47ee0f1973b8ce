"""The factorised mass matrix of a tree: M = [1 + H Phi K] D [1 + H Phi K]^T (Jain & Rodriguez 1990, Lemma 6.1).

One sweep inwards eliminates mode after mode and leaves a gain g and a pivot d for every slot; two light sweeps with
them are a product with M^-1. Coupled trees bring factors of their own, behind the same `solve`.
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
from jaxmbd.entries import entries
from jaxmbd.kinematics import promote
from jaxmbd.packing import (
    Mode,
    Packed,
    from_slots,
    full_velocities,
    pack,
    reduced_forces,
    slot_armature,
    to_slots,
)
from jaxmbd.rnea import Bodies, body_forces, still_bodies
from jaxmbd.spatial import ArticulatedInertia, Force, Motion, Scalar, Vec3
from jaxmbd.system import System
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


def factor_inward(system, body: Bodies, tau, given=None) -> tuple[Factor, Array]:
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
        A, _, found = accelerated(A, *xs)
        return A, found

    return scan_outward(tree, step, base, (factor, nu, given))


def accelerated(A: Motion, factor: Factor, nu, given):
    """One slot of the last sweep: the acceleration of its body, its own and what is found."""
    A = A.shift(factor.l)
    a = found = nu - A.dot(factor.g)
    if factor.driven is not None:
        a = jnp.where(factor.driven, given, found)
    return A + a * factor.mode.motion, a, found


def factorize(system: System, packed: Packed, q: Float[Array, " nq"]) -> Factor:
    """Factor of the mass matrix M = [1 + H Phi K] D [1 + H Phi K]^T (Jain & Rodriguez 1990, Lemma 6.1).

    Raises: ValueError for systems with couplings, whose mass matrix is reduced and has no such factors.
    """
    if system.topology.couplings:
        raise ValueError(
            "The factors of the recursion belong to trees without couplings; load with mimic='independent'."
        )
    return factor_inward(system, still_bodies(system, packed, q), jnp.zeros(system.nv, q.dtype))[0]


def solve(system: System, factor: Factor | Coupled | Array, b: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """M^-1 b from a factor.

    Where velocities are driven, M is that of the free ones, with ones on the diagonal for the driven.
    """
    if isinstance(factor, Factor):
        return solve_tree(system, factor, b)
    if isinstance(factor, Coupled):
        free = solve_tree(system, factor.tree, expanded_forces(system, b))
        return entries(tied(system, factor, free), system.topology.layout.v_keep)
    return jax.scipy.linalg.cho_solve((factor, True), b)


def solve_tree(system: System, factor: Factor, b: Float[Array, " nv_full"]) -> Float[Array, " nv_full"]:
    """M^-1 b of the tree."""
    layout = system.topology.layout
    return from_slots(system, solve_slots(layout.tree, factor, entries(b, layout.slot_velocity)))


def solve_slots(tree: Tree, factor: Factor, b: Float[Array, " slots"]) -> Float[Array, " slots"]:
    """M^-1 b of a tree in sweep order: two light sweeps (Jain & Rodriguez 1990, Lemma 6.3)."""
    driven, nothing = factor.driven, Vec3.zero()

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
    if is_dense(system, driven):
        M = joint_inertia(frozen, constants, at)
        return jnp.linalg.cholesky(M if driven is None else free_part(M, driven))
    zero = jnp.zeros(system.topology.layout.nv_full, q.dtype)
    given = None if driven is None else (to_slots(system, driven), zero)
    factor, _ = factor_inward(frozen, still_bodies(frozen, constants, at), zero, given)
    if system.topology.couplings:
        return couple(frozen, factor, partial(solve_tree, frozen, factor))
    return factor


def is_dense(system, driven) -> bool:
    """Whether coupled joints need the reduced mass matrix: if the tree alone is singular, or velocities are given."""
    return bool(system.topology.couplings) and (system.topology.dense or driven is not None)


def free_part(M, driven):
    """The mass matrix of the free velocities, with ones for the driven."""
    return jnp.where(driven[:, None] | driven[None, :], jnp.eye(len(M), dtype=M.dtype), M)
