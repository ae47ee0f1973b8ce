"""Couplings q_f = ratio q_l + offset, eliminated exactly and without the dense mass matrix.

With one row e_f - ratio e_l of J for every coupling, the accelerations of all joints under forces f are

    a = (1 - R S^-1 J) M^-1 f,   R = M^-1 J^T,   S = J R

M^-1 is the recursion's, R one light solve a coupling, S as large as there are couplings. It is the elimination
(G^T M G)^-1 G^T of the followers, whatever forces between leader and follower do the tying.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.entries import entries, inverse
from jaxmbd.system import System


class Coupled(NamedTuple):
    """The factor of the tree, the responses R^T to the tying forces, and the factor of S."""

    tree: Any
    response: Float[Array, "couplings nv_full"]
    schur: Float[Array, "couplings couplings"]


def couple(system: System, factor: Any, solve_tree: Callable[[Array], Array]) -> Coupled:
    """The factor of a coupled system from that of its tree.

    Args:
      solve_tree: f [nv_full] -> M^-1 f of the tree.
    """
    layout, ratio = system.topology.layout, system.ratio
    follower, leader = layout.v_coupled, layout.v_leader
    k = len(follower)
    rows = jnp.zeros((k, layout.nv_full), ratio.dtype)
    rows = rows.at[jnp.arange(k), follower].set(1.0).at[jnp.arange(k), leader].add(-ratio)
    response = jax.vmap(solve_tree)(rows)
    S = _gaps(system, response)
    return Coupled(factor, response, S if k == 1 else jnp.linalg.cholesky(S))


def tied(
    system: System, factor: Coupled, a: Float[Array, " nv_full"], rate: Float[Array, " couplings"] | None = None
) -> Float[Array, " nv_full"]:
    """Accelerations of all joints with the couplings, from those that the tree would have without.

    Args:
      rate: J a of followers on a curve; zero when left out.
    """
    gap = _gaps(system, a) if rate is None else _gaps(system, a) - rate
    if len(gap) == 1:
        return a - (gap / factor.schur[0]) * factor.response[0]
    return a - jax.scipy.linalg.cho_solve((factor.schur, True), gap) @ factor.response


def _gaps(system: System, a: Float[Array, "*n nv_full"]) -> Float[Array, "*n couplings"]:
    """J a: what followers do beside what they should, [..., couplings]."""
    layout = system.topology.layout
    if a.ndim == 1:
        return entries(a, layout.v_coupled) - system.ratio * entries(a, layout.v_leader)
    return a[..., layout.v_coupled] - system.ratio[None] * a[..., layout.v_leader]


def expanded_forces(system: System, tau: Float[Array, " nv"]) -> Float[Array, " nv_full"]:
    """Forces on all joints that are worth the forces on the independent ones: none on followers."""
    layout = system.topology.layout
    if not system.topology.couplings:
        return tau
    return entries(tau, inverse(layout.v_keep, layout.nv_full))
