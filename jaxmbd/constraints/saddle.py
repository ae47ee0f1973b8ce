"""The saddle system of constrained dynamics, by the effective inertia of the closures.

    [ M  -J^T ] [ a      ]   [ f     ]
    [ -J   0  ] [ lambda ] = [ -g    ]

M^-1 J^T by the sweeps, one solve a row with one factor; then A lambda = g - J M^-1 f with A = J M^-1 J^T, the
(inverse) effective inertia of the tree reflected to the closures. Redundant rows make A singular: a Cholesky
factorisation with full pivoting, A = L L^T with as many columns as A has rank, gives its pseudo-inverse
A+ = L (L^T L)^-2 L^T, so that the motion is right and the multipliers are the shortest (rows measured by their own
effective inertia). Loops over rows are scans of elementwise operations and batch like the sweeps do.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxmbd.factor import mass_product, solve
from jaxmbd.packing import Packed
from jaxmbd.system import System


class EffectiveInertia(NamedTuple):
    """A = J M^-1 J^T, scaled to a unit diagonal and factorised to its rank."""

    rows: Float[Array, "nc nv"]
    """The Jacobian."""
    motion: Float[Array, "nc nv"]
    """M^-1 J^T, one row a constraint row."""
    scale: Float[Array, " nc"]
    """1 / sqrt(A_ii); zero for rows that no velocity moves."""
    matrix: Float[Array, "nc nc"]
    """S A S."""
    L: Float[Array, "nc nc"]
    inverse: Float[Array, "nc nc"]
    """(L^T L)^-1, with unit columns beyond the rank."""
    rank: Int[Array, ""]


def tolerance(dtype) -> float:
    """Relative pivot of A below which a row depends on others: eps^0.7, so eps^0.35 in J."""
    return float(np.finfo(dtype).eps) ** 0.7


def idle_tolerance(dtype) -> float:
    """Size of a row's entries, relative to the sum before they cancel, below which the row is idle.

    A misfit of 3e-6, or some hundred roundings. In single precision far below the pivots': a row may be small because
    its lever is (0.003 at Cassie's plantar rods), and not because it cancels.
    """
    return max(3e-6, 256.0 * float(np.finfo(dtype).eps))


def effective_inertia(system: System, factor, J: Float[Array, "nc nv"], mesh: Float[Array, " nc"]) -> EffectiveInertia:
    """Factorise the effective inertia of the rows.

    Args:
      factor: of the mass matrix, as `solve` takes it.
      mesh: size of the rows before cancellation: a row is idle where its entries are zero compared with that.
    """
    return factorise(J, jax.vmap(lambda row: solve(system, factor, row))(J), mesh)


def factorise(
    J: Float[Array, "nc nv"],
    motion: Float[Array, "nc nv"],
    mesh: Float[Array, " nc"],
    damping: float | Float[Array, ""] = 0.0,
) -> EffectiveInertia:
    """The same from the motion that each row's unit multiplier makes, in any metric: J again for the Euclidean one.

    `damping` times the largest entry is added to the diagonal of A before it is scaled (Levenberg's parameter of a
    search).
    """
    small = tolerance(J.dtype)
    A = J @ motion.T
    diagonal = jnp.diagonal(A)
    active = (jnp.max(jnp.abs(J), 1, initial=0.0) > idle_tolerance(J.dtype) * mesh) & (diagonal > 0.0)
    scale = jnp.where(active, 1.0 / jnp.sqrt(jnp.where(active, diagonal, 1.0)), 0.0)
    matrix = scale[:, None] * (0.5 * (A + A.T)) * scale[None]
    matrix = matrix + jnp.diag(damping * jnp.max(diagonal, initial=0.0) * scale**2)
    L, rank = pivoted_cholesky(matrix, small)
    n = jnp.arange(len(J))
    beyond = jnp.diag((n >= rank).astype(J.dtype))
    return EffectiveInertia(J, motion, scale, matrix, L, _inverse(L.T @ L + beyond), rank)


def pivoted_cholesky(A: Float[Array, "n n"], small: float) -> tuple[Float[Array, "n n"], Int[Array, ""]]:
    """L with A = L L^T, largest pivots first, zero columns beyond the numerical rank; and that rank."""
    n = len(A)

    def step(carry, _):
        A, left = carry
        pivots = jnp.where(left, jnp.diagonal(A), -1.0)
        pick = jnp.arange(n) == jnp.argmax(pivots)
        pivot = jnp.max(pivots)
        sound = pivot > small
        column = jnp.where(left, jnp.sum(jnp.where(pick[None], A, 0.0), 1), 0.0)
        l = jnp.where(sound, column / jnp.sqrt(jnp.where(sound, pivot, 1.0)), 0.0)
        return (A - l[:, None] * l[None], left & ~pick), (l, sound)

    _, (columns, sound) = lax.scan(step, (A, jnp.ones(n, bool)), None, length=n)
    return columns.T, jnp.sum(sound)


def _inverse(A: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Inverse of a symmetric positive definite matrix by Gauss-Jordan elimination on the diagonal."""
    n = len(A)

    def step(A, k):
        pick = jnp.arange(n) == k
        row = jnp.sum(jnp.where(pick[:, None], A, 0.0), 0)
        pivot = jnp.sum(jnp.where(pick, row, 0.0))
        row = row / pivot
        rest = A - (pivot * row)[:, None] * row[None]
        A = jnp.where(pick[:, None], row[None], jnp.where(pick[None], row[:, None], rest))
        return jnp.where(pick[:, None] & pick[None], -1.0 / pivot, A), None

    return -lax.scan(step, A, jnp.arange(n))[0]


def pseudo_solve(A: EffectiveInertia, b: Float[Array, " nc"]) -> Float[Array, " nc"]:
    """A+ b, refined once; what no multiplier can reach is left out."""

    def scaled(b):
        return A.L @ (A.inverse @ (A.inverse @ (A.L.T @ b)))

    b = A.scale * b
    x = scaled(b)
    return A.scale * (x + scaled(b - A.matrix @ x))


def reachable(A: EffectiveInertia, rows: Float[Array, "k nc"]) -> Bool[Array, " k"]:
    """Which combinations of multipliers are unique: those in the range of A, idle rows excluded."""
    scaled = A.scale[None] * rows
    inside = scaled @ (A.L @ (A.inverse @ A.L.T))
    gone = jnp.where(A.scale[None] > 0.0, 0.0, jnp.abs(rows))
    off, size = jnp.abs(scaled - inside), jnp.abs(scaled)
    limit = np.sqrt(tolerance(rows.dtype))
    return (jnp.max(off, 1) <= limit * jnp.max(size, 1)) & (jnp.max(gone, 1) <= limit * jnp.max(jnp.abs(rows), 1))


def saddle_solve(
    system: System,
    packed: Packed,
    q,
    factor,
    A: EffectiveInertia,
    J: Float[Array, "nc nv"],
    f: Float[Array, " nv"],
    g: Float[Array, " nc"],
    driven=None,
) -> tuple[Float[Array, " nv"], Float[Array, " nc"]]:
    """Accelerations and multipliers: M a = f + J^T lambda, J a = g.

    The derivative is that of the saddle system itself (with q, J and the system's numbers); factors carry none. Where
    multipliers are not unique, the shortest are returned, and only their unique combinations are differentiated. Where
    velocities are `driven`, f and J are zero and so is a.
    """
    # one vector of accelerations and multipliers: JAX cannot transpose a solve of which one output goes unused
    nv = J.shape[1]

    def product(x):
        a, multipliers = x[:nv], x[nv:]
        moved = mass_product(system, packed, q, a if driven is None else jnp.where(driven, 0.0, a))
        moved = moved if driven is None else jnp.where(driven, a, moved)
        return jnp.concatenate([moved - multipliers @ J, -(J @ a)])

    factor, A = lax.stop_gradient((factor, A))

    def inverse(_, b):
        a = solve(system, factor, b[:nv])
        multipliers = pseudo_solve(A, -b[nv:] - A.rows @ a)
        return jnp.concatenate([a + multipliers @ A.motion, multipliers])

    x = lax.custom_linear_solve(product, jnp.concatenate([f, -g]), inverse, symmetric=True)
    return x[:nv], x[nv:]
