"""Spatial operators: the mass matrix and its inverse as products, dense as in the paper and by the O(N) recursions.

Jain & Rodriguez (1990) write the dynamics of a tree with stacked operators over all bodies, here over all slots:

    M = H Phi M_s Phi* H* + armature,   Phi = (1 - E_Phi)^-1
      = [1 + H Phi K] D [1 + H Phi K]*,          M^-1 = [1 - H Psi K]* D^-1 [1 - H Psi K]

`dense_operators` builds them as matrices, to be read beside the paper and used as an oracle. The functions below it
evaluate the same products by sweeps.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.crba import mass_matrix
from jaxmbd.factor import factorize, outward_accelerations
from jaxmbd.kinematics import promote, slot_places, vectors
from jaxmbd.packing import from_slots, pack, slot_armature, to_slots
from jaxmbd.spatial import Motion, Vec3
from jaxmbd.system import System
from jaxmbd.tree import BASE


class DenseOperators(NamedTuple):
    """The stacked operators as matrices, slots in sweep order; six-vectors [angular; linear] in world axes.

    `E_phi` has phi(parent, k) in block (parent, k); `K` likewise phi(parent, k) G(k), `E_psi` phi(parent, k) (1 - G(k)
    H(k)).
    """

    H: Float[Array, "n n6"]
    E_phi: Float[Array, "n6 n6"]
    Phi: Float[Array, "n6 n6"]
    M_spatial: Float[Array, "n6 n6"]
    armature: Float[Array, "n n"]
    P: Float[Array, "n6 n6"]
    D: Float[Array, "n n"]
    G: Float[Array, "n6 n"]
    K: Float[Array, "n6 n"]
    E_psi: Float[Array, "n6 n6"]
    Psi: Float[Array, "n6 n6"]
    order: Array  # slot of every velocity: rows of H in the order of v


def shift_operator(l: Float[Array, "3"]) -> Float[Array, "6 6"]:
    """phi(x, y) for l from x to y: the force at x equivalent to one at y (Jain & Rodriguez 1990, Eq. 3.8)."""
    top = jnp.concatenate([jnp.eye(3, dtype=l.dtype), so3.skew(l)], 1)
    return jnp.concatenate([top, jnp.concatenate([jnp.zeros((3, 3), l.dtype), jnp.eye(3, dtype=l.dtype)], 1)])


def dense_operators(system: System, q: Float[Array, " nq"]) -> DenseOperators:
    """All operators of the factorisation as matrices, body by body: teaching text and oracle, O(n^3).

    Source: Jain & Rodriguez (1990), Eqs. 3.20-3.22, 5.2, 6.1-6.3.
    """
    q, _, _, t, system = promote(system, q, None, None, 0.0)
    packed, tree = pack(system), system.topology.layout.tree
    n, places = tree.size, slot_places(system, packed, q, t)
    inertia, armature = packed.slots.inertia, slot_armature(system)
    h = jnp.einsum("nij,nj->ni", places.rotation, vectors(inertia.first_moment))
    tensor = jnp.stack([vectors(c) for c in inertia.tensor.columns], -1)
    tensor = places.rotation @ tensor @ jnp.swapaxes(places.rotation, -1, -2)

    H, E_phi, M_spatial = jnp.zeros((n, 6 * n)), jnp.zeros((6 * n, 6 * n)), jnp.zeros((6 * n, 6 * n))
    shifts = [jnp.eye(6)] * n
    for k in range(n):
        block = slice(6 * k, 6 * k + 6)
        H = H.at[k, block].set(places.mode[k])
        off = so3.skew(h[k])
        body = jnp.concatenate(
            [jnp.concatenate([tensor[k], off], 1), jnp.concatenate([-off, inertia.mass[k] * jnp.eye(3)], 1)]
        )
        M_spatial = M_spatial.at[block, block].set(body)
        parent = tree.parents[k]
        if parent != BASE:
            shifts[k] = shift_operator(places.position[k] - places.position[parent])
            E_phi = E_phi.at[6 * parent : 6 * parent + 6, block].set(shifts[k])

    P, D, G, K, E_psi = (
        M_spatial,
        jnp.zeros((n, n)),
        jnp.zeros((6 * n, n)),
        jnp.zeros((6 * n, n)),
        jnp.zeros((6 * n, 6 * n)),
    )
    for k in reversed(range(n)):
        block, parent = slice(6 * k, 6 * k + 6), tree.parents[k]
        P_k, s = P[block, block], places.mode[k]
        d = s @ P_k @ s + armature[k]
        g = P_k @ s / d
        D, G = D.at[k, k].set(d), G.at[block, k].set(g)
        if parent != BASE:
            outer = slice(6 * parent, 6 * parent + 6)
            rest = jnp.eye(6) - jnp.outer(g, s)
            # with armature P+ = P - g d g^T, which (1 - g s^T) P equals
            P = P.at[outer, outer].add(shifts[k] @ (rest @ P_k) @ shifts[k].T)
            K = K.at[outer, k].set(shifts[k] @ g)
            E_psi = E_psi.at[outer, block].set(shifts[k] @ rest)
    one = jnp.eye(6 * n)
    return DenseOperators(
        H, E_phi, jnp.linalg.inv(one - E_phi), M_spatial, jnp.diag(armature),
        P, D, G, K, E_psi, jnp.linalg.inv(one - E_psi), jnp.asarray(system.topology.layout.velocity_slot),
    )  # fmt: skip


@jax.jit
def log_det_mass(system: System, q: Float[Array, " nq"]) -> Float[Array, ""]:
    """log det M(q): the sum of the logarithms of the pivots D (Jain & Rodriguez 1990, Lemma 6.1), O(N)."""
    q, _, _, _, system = promote(system, q, None, None, 0.0)
    if system.topology.couplings:
        return 2.0 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(mass_matrix(system, q)))))
    return jnp.sum(jnp.log(factorize(system, pack(system), q).d))


@jax.jit
def minv_sqrt_product(system: System, q: Float[Array, " nq"], f: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """W f with W W^T = M(q)^-1, W = [1 - H Psi K]* D^(-1/2) (Jain & Rodriguez 1990, Lemma 6.3): one outward sweep.

    With f standard normal, W f has the covariance M^-1 of velocities in thermal equilibrium.
    """
    q, f, _, _, system = promote(system, q, f, None, 0.0)
    if system.topology.couplings:
        return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(mass_matrix(system, q)).T, f, lower=False)
    factor = factorize(system, pack(system), q)
    still = Motion(Vec3.zero(), Vec3.zero())
    a = outward_accelerations(system.topology.layout.tree, factor, to_slots(system, f) / jnp.sqrt(factor.d), still)
    return from_slots(system, a)
