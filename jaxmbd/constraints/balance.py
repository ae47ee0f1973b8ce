"""Equations of motion and constraints as residuals: what implicit methods for differential-algebraic systems ask for.

    M a + h(q, v) - tau - J^T lambda = 0,   residual(q, t) = 0,   rate(q, v, t) = 0

Forward dynamics eliminates lambda; here it stays an unknown of the method.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxmbd.constraints.dynamics import driven_by_law, free_columns
from jaxmbd.constraints.impulsive import instant, jump
from jaxmbd.constraints.rows import holonomic, rows
from jaxmbd.constraints.saddle import idle_tolerance
from jaxmbd.curves import linearised
from jaxmbd.drives import with_laws
from jaxmbd.factor import implicit_solve, mass_factor
from jaxmbd.forces import Wrench
from jaxmbd.integrate.steppers import Equations
from jaxmbd.packing import Packed
from jaxmbd.rnea import needed_forces
from jaxmbd.system import System


def equations(system: System, packed: Packed, q, v, a, tau, wrenches, t) -> Equations:
    """The equations at a state with an acceleration; where joints are driven by laws, a less that of the law."""
    system = linearised(system, q, v)
    balance = needed_forces(system, packed, q, v, a, wrenches, t) - tau
    law, driven = with_laws(system, jnp.zeros_like(v), None, q, v, t)
    if driven is not None:
        balance = jnp.where(driven, a - law, balance)
    if not system.constraints:
        none = jnp.zeros(0, q.dtype)
        return Equations(balance, jnp.zeros((0, len(v)), q.dtype), none, none)
    r = rows(system, packed, q, v, t)
    held = np.flatnonzero(holonomic(system.topology))
    return Equations(balance, free_columns(r.jacobian, driven), r.residual[held], r.rate)


def multipliers_of_motion(
    system: System, packed: Packed, q, v, a, tau, wrenches: tuple[Wrench, ...], t
) -> Float[Array, " nc"]:
    """Multipliers that explain accelerations a: J^T lambda = M a + h - tau, what does not fit measured by M^-1."""
    system = linearised(system, q, v)
    missing = tau - needed_forces(system, packed, q, v, a, wrenches, t)
    at = instant(system, packed, q, v, t, driven_by_law(system))
    return jump(system, packed, q, at, missing, jnp.zeros_like(at.rate))[1]


def constraint_motion(
    system: System, packed: Packed, q, v, t
) -> tuple[Float[Array, "nc nv"], Float[Array, " nc"], np.ndarray]:
    """M^-1 J^T, one row a constraint row; the rows' effective inertia (no derivative), one where idle; and which are
    holonomic.
    """
    if not system.constraints:
        return jnp.zeros((0, len(v)), q.dtype), jnp.zeros(0, q.dtype), np.zeros(0, int)
    system, driven = linearised(system, q, v), driven_by_law(system)
    r = rows(system, packed, q, v, t)
    J, factor = free_columns(r.jacobian, driven), mass_factor(system, packed, q, driven)
    motion = jax.vmap(lambda row: implicit_solve(system, packed, q, factor, row, driven))(J)
    inertia = jnp.sum(J * motion, 1)
    active = jnp.max(jnp.abs(J), 1) > idle_tolerance(q.dtype) * r.mesh
    weight = lax.stop_gradient(jnp.where(active, inertia, 1.0))
    return jnp.where(active[:, None], motion, 0.0), weight, np.flatnonzero(holonomic(system.topology))
