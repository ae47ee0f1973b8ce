"""How a constrained system can move: numerical mobility, independent velocities, and the branch of an assembly.

Positions and velocities are counted apart: non-holonomic rows take freedoms of motion, not of position (Schwertassek &
Senger 1988, section 3). The counts are ranks of the rows at one state, so that redundant rows and singular positions
count as they are. Everything here runs outside compiled functions, on concrete numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd.constraints.dynamics import inertia_at
from jaxmbd.constraints.rows import holonomic
from jaxmbd.crba import joint_inertia
from jaxmbd.kinematics import promote
from jaxmbd.packing import pack
from jaxmbd.system import System


@dataclass(frozen=True)
class Mobility:
    """Freedoms of a system at a state."""

    position: int
    """Freedoms of position: velocities less the rank of the holonomic rows."""
    velocity: int
    """Freedoms of motion: velocities less the rank of all rows."""
    rows: int
    redundant: int
    """Rows that depend on others at this state."""
    independent: tuple[int, ...]
    """Velocities that determine all others, chosen so that the rest follow from them as well-conditioned as can be."""
    smallest: float
    """Smallest singular value that counts in the rank, relative to the largest: near zero by a singular position."""


@jax.jit
def _scaled_rows(system: System, q, v, t):
    """Rows with unit effective inertia, in velocities of unit inertia; and the square root of M that did it."""
    packed = pack(system)
    A, J = inertia_at(system, packed, q, v, t)
    L = jnp.linalg.cholesky(joint_inertia(system, packed, q))
    return A.scale[:, None] * jax.scipy.linalg.solve_triangular(L, J.T, lower=True).T, J, A.scale


def _rank(J: np.ndarray, small: float) -> tuple[int, float]:
    values = np.linalg.svd(J, compute_uv=False) if J.size else np.zeros(0)
    counted = values[values > small * values[:1].max(initial=1e-300)]
    return len(counted), float(counted[-1] / counted[0]) if len(counted) else 1.0


def mobility(system: System, q: Float[Array, " nq"], t: float | Float[Array, ""] = 0.0) -> Mobility:
    """Freedoms of position and of motion at q by numerical rank, and velocities that can serve as independent ones.

    Source: Schwertassek & Senger (1988), sections 1 and 3: independent coordinates chosen by the program.
    """
    free = free_velocities(system)
    if not system.constraints:
        return Mobility(len(free), len(free), 0, 0, free, 1.0)
    q, v, _, t_, system = promote(system, q, None, None, t)
    scaled, J, scale = (np.asarray(x) for x in _scaled_rows(system, q, v, t_))
    small = float(np.finfo(scaled.dtype).eps) ** 0.35
    held = holonomic(system.topology)
    rank, smallest = _rank(scaled, small)
    rank_h, _ = _rank(scaled[held], small)
    dependent = pivot_columns(scale[:, None] * J, rank)
    independent = tuple(i for i in free if i not in dependent)
    return Mobility(len(free) - rank_h, len(free) - rank, len(J), len(J) - rank, independent, smallest)


def free_velocities(system: System) -> tuple[int, ...]:
    """Velocities that no law drives."""
    driven = system.topology.layout.driven if system.topology.drives else np.zeros(system.nv, bool)
    return tuple(int(i) for i in np.flatnonzero(~driven))


def pivot_columns(A: np.ndarray, rank: int) -> list[int]:
    """The first `rank` columns that a QR factorisation with column pivoting takes."""
    A, picked = np.array(A, float), []
    for _ in range(rank):
        sizes = np.sum(A * A, 0)
        sizes[picked] = -1.0
        k = int(np.argmax(sizes))
        picked.append(k)
        direction = A[:, k] / np.linalg.norm(A[:, k])
        A = A - np.outer(direction, direction @ A)
    return picked


def branch(
    system: System, q: Float[Array, " nq"], given: tuple[int, ...] | None = None, t: float | Float[Array, ""] = 0.0
) -> int:
    """Which branch of assembly a position is on: the sign of the determinant of the rows in the dependent velocities.

    Branches are separated by positions where that determinant is zero; a four-bar has two for every crank angle.

    Args:
      given: the independent velocities (that of the crank, say); chosen by the program when left out.

    Returns: 1 or -1; 0 in a singular position, or when `given` is not as many velocities as the mobility asks for.
    """
    if not system.constraints:
        return 1
    q, v, _, t_, system = promote(system, q, None, None, t)
    scaled, J, scale = (np.asarray(x) for x in _scaled_rows(system, q, v, t_))
    held = holonomic(system.topology)
    J, scaled = (scale[:, None] * J)[held], scaled[held]
    rank, _ = _rank(scaled, float(np.finfo(J.dtype).eps) ** 0.35)
    chosen = given if given is not None else mobility(system, q, t).independent
    dependent = [i for i in free_velocities(system) if i not in chosen]
    if len(dependent) != rank:
        return 0
    kept = sorted(pivot_columns(J[:, dependent].T, rank))
    sign, size = np.linalg.slogdet(J[kept][:, dependent])
    return int(sign) if size > rank * np.log(1e-9) else 0
