"""Impulses under constraints: the saddle system of an instant.

    M (v+ - v-) = I + J^T Lambda,   rate(v+) = J v+ + c = 0

so that velocities keep the constraints just after, whatever the impulses I were. Lambda are impulsive multipliers.
Where c = 0, no jump of this kind adds energy: it is the projection by the mass matrix onto what the rows allow.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxmbd.constraints.dynamics import free_columns
from jaxmbd.constraints.rows import rows
from jaxmbd.constraints.saddle import EffectiveInertia, effective_inertia, saddle_solve
from jaxmbd.factor import mass_factor
from jaxmbd.packing import Packed
from jaxmbd.system import System


class Instant(NamedTuple):
    """The rows of all constraints in an instant, their effective inertia factorised."""

    jacobian: Float[Array, "nc nv"]
    free: Float[Array, "nc nv"]
    """The same without the velocities that are given."""
    rate: Float[Array, " nc"]
    """Rates of the rows just before."""
    factor: object
    inertia: EffectiveInertia
    driven: Bool[Array, " nv"] | None


def instant(system: System, packed: Packed, q, v, t, driven) -> Instant:
    """The rows at velocities v; `driven` marks the velocities whose jump is given, None where there are none."""
    r = rows(system, packed, q, v, t)
    J = free_columns(r.jacobian, driven)
    factor = mass_factor(system, packed, q, driven)
    inertia = effective_inertia(system, *lax.stop_gradient((factor, J, r.mesh)))
    return Instant(r.jacobian, J, r.rate, factor, inertia, driven)


def jump(
    system: System, packed: Packed, q, at: Instant, impulses: Float[Array, " nv"], excess: Float[Array, " nc"]
) -> tuple[Float[Array, " nv"], Float[Array, " nc"]]:
    """Jump of the velocities and multipliers: M jump = impulses + J^T Lambda, J jump = -excess, on free velocities."""
    impulses = impulses if at.driven is None else jnp.where(at.driven, 0.0, impulses)
    return saddle_solve(system, packed, q, at.factor, at.inertia, at.free, impulses, -excess, at.driven)
