"""The mass matrix, by the composite-body algorithm.

Inwards, each body gathers what it carries: R(k) = sum of phi R phi^T + M(k) (Jain & Rodriguez 1990, Eqs. 5.2-5.5). Then
M_ij = mode_i . phi(i, j) R(j) mode_j for every i on the path from the base to j, all pairs at once.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd.kinematics import mode_vectors, promote, vectors
from jaxmbd.packing import Packed, pack, slot_armature
from jaxmbd.rnea import still_bodies
from jaxmbd.spatial import Inertia, Sym3, Vec3
from jaxmbd.system import System
from jaxmbd.tree import ancestors, scan_inward, scan_outward


@jax.jit
def mass_matrix(system: System, q: Float[Array, " nq"]) -> Float[Array, "nv nv"]:
    """Joint-space inertia M(q), full and symmetric, armature on its diagonal; G^T M G where joints are coupled.

    Cost: O(nv^2).
    Source: Jain & Rodriguez (1990), Eqs. 5.1-5.5.
    """
    q, _, _, _, system = promote(system, q, None, None, 0.0)
    return joint_inertia(system, pack(system), q)


def joint_inertia(system: System, packed: Packed, q: Float[Array, " nq"]) -> Float[Array, "nv nv"]:
    """The mass matrix from a system that is packed already."""
    M = tree_inertia(system, packed, q)
    if not system.topology.couplings:
        return M
    G = coupling_matrix(system)
    return G.T @ M @ G


def tree_inertia(system: System, packed: Packed, q: Float[Array, " nq"]) -> Float[Array, "nv_full nv_full"]:
    """The mass matrix of all joints, as if none followed another."""
    layout = system.topology.layout
    body = still_bodies(system, packed, q)

    def gather(composite, xs):
        inertia, l, mode = xs
        composite = composite + inertia
        return composite.shift(l), composite @ mode.motion

    empty = Inertia(0.0, Vec3.zero(), Sym3(*[0.0] * 6))
    force = scan_inward(layout.tree, gather, empty, (body.inertia, body.l, body.mode))
    position = scan_outward(layout.tree, lambda p, l: (p + l, p + l), Vec3.zero(), body.l)
    mode, force, p = mode_vectors(body.mode), vectors(force), vectors(position)
    # mode_i . (moment_j + (p_j - p_i) x force_j) + ..., for i on the path to j
    lever = p[None, :, :] - p[:, None, :]
    moment = force[None, :, :3] + jnp.cross(lever, force[None, :, 3:])
    M = jnp.sum(mode[:, None, :3] * moment, -1) + jnp.sum(mode[:, None, 3:] * force[None, :, 3:], -1)
    M = jnp.where(ancestors(layout.tree.parents), M, 0.0)
    M = M + jnp.triu(M, 1).T + jnp.diag(slot_armature(system))
    M = M[layout.velocity_slot][:, layout.velocity_slot]
    return M


def coupling_matrix(system: System) -> Float[Array, "nv_full nv"]:
    """G in v_full = G v: unit rows for independent joints, ratios for those that follow."""
    layout = system.topology.layout
    ratio = jnp.ones(layout.nv_full, system.ratio.dtype).at[layout.v_coupled].set(system.ratio)
    return jnp.zeros((layout.nv_full, system.nv), ratio.dtype).at[np.arange(layout.nv_full), layout.v_source].set(ratio)
