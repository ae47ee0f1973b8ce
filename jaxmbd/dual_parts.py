"""Parts of joints' wrenches along the duals of their modes, W = S (S^T S)^-1, from the projections on the modes.

Schwertassek & Senger (1988), Eqs. 3.28-3.34. Arrays are [slots, *batch] and [joints, *batch].
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxmbd.entries import entries
from jaxmbd.spatial import Force, Motion, Scalar, Vec3
from jaxmbd.topology import Topology


def dual_parts(
    topology: Topology, mode: Motion, l: Vec3, along: Float[Array, " slots"], driven: Bool[Array, " slots"] | np.ndarray
) -> tuple[Force, Force]:
    """Parts of all joints' wrenches along the duals of the free and of the driven modes.

    Args:
      mode: of every slot at its own origin, to which `l` leads from the slot before.
      along: projection of what the joint transmits on every mode.
    """
    loads = jnp.where(driven, 0.0, along), jnp.where(driven, along, 0.0)
    groups, order, known = [], np.full(len(topology.joints), -1), 0
    for orthonormal, slots, joints in _alike(topology):
        take = partial(entries, index=slots)
        S = _at_last_slot(jax.tree.map(take, mode), jax.tree.map(take, l))
        projections = [list(take(load)) for load in loads]
        groups.append([_combined(S, p if orthonormal else _weights(S, p)) for p in projections])
        order[joints] = known + np.arange(len(joints))
        known += len(joints)
    if not groups:
        nothing = jnp.zeros((len(order), *along.shape[1:]), along.dtype)
        zero = Vec3(nothing, nothing, nothing)
        return Force(zero, zero), Force(zero, zero)
    applied, driving = jax.tree.map(lambda *x: entries(jnp.concatenate(x), order), *groups)
    return applied, driving


def _alike(topology: Topology) -> list[tuple[bool, np.ndarray, np.ndarray]]:
    """Joints with as many modes: whether these are unit vectors at right angles, their slots [modes, joints], they."""
    layout = topology.layout
    count = (layout.joint_slots < layout.tree.size).sum(1)
    orthonormal = np.isin(np.arange(len(count)), layout.quaternion)
    found = []
    for k, special in sorted({(int(k), bool(s)) for k, s in zip(count, orthonormal, strict=True) if k}):
        joints = np.flatnonzero((count == k) & (orthonormal == special))
        found.append((special, layout.joint_slots[joints, :k].T, joints))
    return found


def _at_last_slot(mode: Motion, l: Vec3) -> list[Force]:
    """Modes of joints at the origin of the outboard frame, that of their last slot, as six-vectors of the dual kind."""
    found, apart = [], None
    for k in reversed(range(len(l.x))):
        unit, step = jax.tree.map(lambda x, k=k: x[k], (mode, l))
        unit = unit if apart is None else unit.shift(apart)
        found.insert(0, Force(unit.angular, unit.linear_part))
        apart = step if apart is None else apart + step
    return found


def _combined(vectors: list[Force], weights: list[Scalar]) -> Force:
    """Their weighted sum."""
    total = weights[0] * vectors[0]
    for weight, vector in zip(weights[1:], vectors[1:], strict=True):
        total = total + weight * vector
    return total


def _weights(S: list[Force], projections: list[Scalar]) -> list[Scalar]:
    """(S^T S)^-1 times the projections.

    Where modes depend on one another (gimbal lock) the smallest weights that do, by a ridge and one refinement.
    """
    gram = [[a.moment.dot(b.moment) + a.force.dot(b.force) for b in S] for a in S]
    if len(S) == 1:
        size = gram[0][0]
        return [jnp.where(size > 0.0, projections[0] / jnp.where(size > 0.0, size, 1.0), 0.0)]
    ridge = jnp.finfo(gram[0][0].dtype).eps ** 0.75 * sum(gram[k][k] for k in range(len(S)))
    factors = _factors([[x + ridge if i == j else x for j, x in enumerate(row)] for i, row in enumerate(gram)])
    weights = _solution(factors, projections)
    left = [p - sum(x * w for x, w in zip(row, weights, strict=True)) for row, p in zip(gram, projections, strict=True)]
    return [w + more for w, more in zip(weights, _solution(factors, left), strict=True)]


def _factors(A: list[list[Scalar]]) -> tuple[list[list[Scalar]], list[Scalar]]:
    """L, row by row below its diagonal of ones, and D of a small positive definite A = L D L^T."""
    L, D = [[] for _ in A], []
    for i, row in enumerate(L):
        scaled = []  # L D
        for j in range(i):
            scaled.append(A[i][j] - sum(x * y for x, y in zip(scaled, L[j], strict=True)))
            row.append(scaled[j] / D[j])
        D.append(A[i][i] - sum(x * y for x, y in zip(scaled, row, strict=True)))
    return L, D


def _solution(factors: tuple[list[list[Scalar]], list[Scalar]], b: list[Scalar]) -> list[Scalar]:
    """x of L D L^T x = b."""
    (L, D), x = factors, []
    for i, row in enumerate(L):
        x.append(b[i] - sum(a * y for a, y in zip(row, x, strict=True)))
    x = [a / d for a, d in zip(x, D, strict=True)]
    for i in reversed(range(len(x))):
        x[i] = x[i] - sum(L[j][i] * x[j] for j in range(i + 1, len(x)))
    return x
