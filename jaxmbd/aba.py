"""Forward dynamics: from forces to motion, by the articulated-body algorithm in O(number of velocities).

Three sweeps. Outwards: the motion at a = 0 and with it the velocity-product forces. Inwards: articulated inertias P and
residual forces z, eliminating one mode a slot (Jain & Rodriguez 1990, Eqs. 6.1, 7.2; Slaats 1991, Eqs. 3.51-3.60):

    U = P s,  d = s.U + armature,  g = U / d,  e = tau - s.z,  P+ = P - g U^T,  z+ = z + g e

Outwards again: the accelerations, a = e / d - g.A+, A = A+ + s a. Gravity is the base's acceleration -g in the last
sweep.

A joint with k freedoms is k slots with massless bodies between, which is exact. The derivative is that of the linear
system M(q) a = tau - h(q, v), solved with the factors of the value.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from jaxmbd.crba import joint_inertia
from jaxmbd.forces import Wrench, passive_forces
from jaxmbd.kinematics import promote
from jaxmbd.packing import (
    Mode,
    Packed,
    from_slots,
    full_velocities,
    locate,
    pack,
    reduced_forces,
    slot_armature,
    to_slots,
)
from jaxmbd.rnea import Bodies, body_forces, inertial_forces, still_bodies
from jaxmbd.spatial import ArticulatedInertia, Force, Motion, Scalar, Vec3
from jaxmbd.system import System
from jaxmbd.tree import scan_inward, scan_outward


class Factor(NamedTuple):
    """The factorised mass matrix in sweep order: per slot its shift, mode, gain g and pivot d."""

    l: Vec3
    mode: Mode
    g: Force
    d: Scalar


@jax.jit
def forward_dynamics(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    wrenches: tuple[Wrench, ...] = (),
    t: float | Float[Array, ""] = 0.0,
) -> Float[Array, " nv"]:
    """Accelerations v_dot under forces tau, passive joint forces, gravity and wrenches.

    Args:
      q: coordinates.
      v: velocities.
      tau: generalised forces dual to v [N m, N].
      wrenches: external wrenches acting on the bodies.
      t: time [s], where the base moves.

    Returns: v_dot, entry by entry [rad/s^2, m/s^2].
    Cost: O(velocities); with couplings one dense factorisation.
    Source: Jain & Rodriguez (1990), Eqs. 7.2-7.3; Slaats (1991), section 3.5.
    """
    q, v, tau, t, system = promote(system, q, v, tau, t)
    return accelerations(system, pack(system), q, v, tau, wrenches, t)


def accelerations(system: System, packed: Packed, q, v, tau, wrenches, t, extra_armature=None) -> Float[Array, " nv"]:
    """Forward dynamics of a system that is packed already.

    Args:
      packed: `pack(system)`; a rollout computes it once.
      extra_armature: [nv_full], added to the diagonal of the mass matrix: the implicit terms of a stepper.
    """
    if extra_armature is not None:
        system = dataclasses.replace(system, armature=system.armature + extra_armature)
    return _accelerations(system, packed, q, v, tau, wrenches, t)[0]


@jax.custom_jvp
def _accelerations(system, packed, q, v, tau, wrenches, t):
    """Accelerations, and the factor of the mass matrix for use in `solve` alone (its derivative counts as zero)."""
    tau = tau + reduced_forces(system, passive_forces(system, q, v))
    if system.topology.couplings:
        h = body_forces(system, packed, q, v, jnp.zeros_like(v), wrenches, t, gravity=True)
        factor = jnp.linalg.cholesky(joint_inertia(system, packed, q))
        return solve(system, factor, tau - reduced_forces(system, h)), factor
    x = locate(system, packed, q, v)
    v, tau = to_slots(system, v), to_slots(system, tau)
    body = inertial_forces(system, packed, x, v, jnp.zeros_like(v), wrenches, t, gravity=False)
    factor, nu = _inward(system, body, tau)
    up = jnp.concatenate([jnp.zeros(3, v.dtype), -system.gravity])
    return from_slots(system, outward_accelerations(system, factor, nu, Motion.of(up))), factor


def _inward(system, body: Bodies, tau) -> tuple[Factor, Array]:
    """Articulated inertias and residual forces from the tips to the base: the factor and nu = e / d of every slot."""
    armature = slot_armature(system)
    empties = _emptied(system, armature)

    def step(carry, xs):
        P, z = carry
        f, inertia, l, mode, tau, armature, empty = xs
        P, z, mode = P + inertia, z + f, mode.motion
        U = P @ mode
        d = mode.dot(U) + armature
        g = (1.0 / d) * U
        e = tau - mode.dot(z)
        P, z = P.without(g, U), z + e * g
        if empty is not None:
            # six eliminated freedoms leave nothing: no rounding residue for the parent, but the residue's derivative
            P = jax.tree.map(lambda p: jnp.where(empty, p - lax.stop_gradient(p), p), P)
        return (P.shift(l), z.shift(l)), (g, d, e / d)

    zero = (ArticulatedInertia.zero(), Force(Vec3.zero(), Vec3.zero()))
    xs = (body.force, body.inertia, body.l, body.mode, tau, armature, empties)
    g, d, nu = scan_inward(system.topology.layout.tree, step, zero, xs)
    return Factor(body.l, body.mode, g, d), nu


def _emptied(system, armature):
    """First slots of free joints between bodies, which an inward sweep leaves empty; None without such joints."""
    layout = system.topology.layout
    firsts = [
        int(layout.last_slot[layout.body(j.child)]) - 5
        for j in system.topology.joints
        if j.nv == 6 and layout.body(j.parent) >= 0
    ]
    if not firsts:
        return None
    unloaded = [jnp.all(armature[first : first + 6] == 0) for first in firsts]
    return jnp.zeros(layout.tree.size, bool).at[np.array(firsts)].set(jnp.stack(unloaded))


def outward_accelerations(system, factor: Factor, nu, base: Motion):
    """Accelerations of every slot from the base to the tips: a = nu - g.A+, A = A+ + mode a."""

    def step(A, xs):
        l, mode, g, nu = xs
        A = A.shift(l)
        a = nu - A.dot(g)
        return A + a * mode.motion, a

    return scan_outward(system.topology.layout.tree, step, base, (factor.l, factor.mode, factor.g, nu))


def factorize(system: System, packed: Packed, q: Float[Array, " nq"]) -> Factor:
    """Factor of the mass matrix M = [1 + H Phi K] D [1 + H Phi K]^T (Jain & Rodriguez 1990, Lemma 6.1).

    Raises: ValueError for systems with couplings, whose mass matrix is reduced and has no such factors.
    """
    if system.topology.couplings:
        raise ValueError(
            "The factors of the recursion belong to trees without couplings; load with mimic='independent'."
        )
    return _inward(system, still_bodies(system, packed, q), jnp.zeros(system.nv, q.dtype))[0]


def solve(system: System, factor: Factor | Array, b: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """M^-1 b from a factor: two light sweeps (Jain & Rodriguez 1990, Lemma 6.3)."""
    if not isinstance(factor, Factor):
        return jax.scipy.linalg.cho_solve((factor, True), b)

    def step(z, xs):
        l, mode, g, d, b = xs
        e = b - mode.motion.dot(z)
        return (z + e * g).shift(l), e / d

    xs = (factor.l, factor.mode, factor.g, factor.d, to_slots(system, b))
    nu = scan_inward(system.topology.layout.tree, step, Force(Vec3.zero(), Vec3.zero()), xs)
    still = Motion(Vec3.zero(), Vec3.zero())
    return from_slots(system, outward_accelerations(system, factor, nu, still))


def mass_product(system: System, packed: Packed, q, a: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """M(q) a by one inverse dynamics at rest, without gravity."""
    system = dataclasses.replace(system, base_motion=None)
    forces = body_forces(system, packed, q, jnp.zeros_like(a), a, (), jnp.zeros((), a.dtype), gravity=False)
    return reduced_forces(system, forces + system.armature * full_velocities(system, a))


def implicit_solve(system: System, packed: Packed, q, factor, b) -> Float[Array, " nv"]:
    """M^-1 b whose derivative is that of the linear equation M x = b."""
    return lax.custom_linear_solve(
        lambda a: mass_product(system, packed, q, a), b, lambda _, b: solve(system, factor, b), symmetric=True
    )


def _accelerations_jvp(primals, tangents):
    """Differentiate M(q) a + h(q, v) = tau and solve for the tangent of a; absent tangents cost nothing."""
    a, factor = _accelerations(*primals)
    leaves, structure = jax.tree.flatten(primals)
    moving = structure.flatten_up_to(tangents)
    active = [i for i, tangent in enumerate(moving) if not isinstance(tangent, SymbolicZero)]

    def residual(*values):
        changed = list(leaves)
        for i, value in zip(active, values, strict=True):
            changed[i] = value
        system, packed, q, v, tau, wrenches, t = jax.tree.unflatten(structure, changed)
        needed = body_forces(system, packed, q, v, a, wrenches, t, gravity=True)
        needed = needed + system.armature * full_velocities(system, a) - passive_forces(system, q, v)
        return tau - reduced_forces(system, needed)

    _, b = jax.jvp(residual, [leaves[i] for i in active], [moving[i] for i in active])
    system, packed, q = primals[:3]
    return (a, factor), (implicit_solve(system, packed, q, factor, b), jax.tree.map(jnp.zeros_like, factor))


_accelerations.defjvp(_accelerations_jvp, symbolic_zeros=True)


@jax.jit
def minv_product(system: System, q: Float[Array, " nq"], f: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """M(q)^-1 f in O(velocities), without forming M (Jain & Rodriguez 1990, Lemma 6.3)."""
    q, f, _, _, system = promote(system, q, f, None, 0.0)
    packed = pack(system)
    still = lax.stop_gradient((system, packed, q))
    factor = jnp.linalg.cholesky(joint_inertia(*still)) if system.topology.couplings else factorize(*still)
    return implicit_solve(system, packed, q, factor, f)
