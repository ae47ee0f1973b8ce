"""What keeps constraints closed while a simulation runs: projection, or Baumgarte's stabilisation.

Accelerations satisfy the constraints, but integration lets positions and velocities drift. Projection moves them back
after every step, along the shortest way as the mass matrix measures it, so that it does no work to first order:

    q <- q (+) M^-1 J^T mu,  A mu = -residual;    v <- v + M^-1 J^T mu,  A mu = -rate

Baumgarte (1972) adds -2 alpha rate - beta^2 residual to the accelerations of the rows, so that the drift decays.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxmbd.constraints.dynamics import driven_by_law, free_columns
from jaxmbd.constraints.rows import rates, residual, rows
from jaxmbd.constraints.saddle import effective_inertia, saddle_solve
from jaxmbd.curves import linearised
from jaxmbd.factor import mass_factor
from jaxmbd.kinematics import promote
from jaxmbd.manifold import integrate
from jaxmbd.packing import Packed, pack
from jaxmbd.system import System
from jaxmbd.values import Numbers, concrete, floats


class Projection(eqx.Module):
    """Positions and velocities are projected onto the constraints after every step.

    `iterations` of Newton's method on the positions share one factorisation.
    """

    iterations: int = eqx.field(static=True, default=2)


class Baumgarte(eqx.Module):
    """Drift decays at rates alpha and beta [1/s]; critically damped, alpha = beta = 1 / (5 dt), when left out."""

    alpha: Float[Array, ""] | None = None
    beta: Float[Array, ""] | None = None

    def __init__(self, alpha: Numbers | None = None, beta: Numbers | None = None):
        for name, value in (("alpha", alpha), ("beta", beta)):
            known = None if value is None else concrete(value)
            if known is not None and known < 0:
                raise ValueError(f"Baumgarte's {name} is {value}; expected zero or more [1/s].")
        self.alpha = None if alpha is None else floats(alpha)
        self.beta = None if beta is None else floats(beta)

    def rates(self, dt: Float[Array, ""]) -> Float[Array, "2"]:
        """alpha and beta for a step dt [s]."""
        alpha = 0.2 / dt if self.alpha is None else self.alpha
        beta = alpha if self.beta is None else self.beta
        return jnp.stack([jnp.asarray(alpha, dt.dtype), jnp.asarray(beta, dt.dtype)])


@jax.jit
def project(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"] | None = None,
    t: float | Float[Array, ""] = 0.0,
) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
    """The state on the constraints next to a state near them, as the mass matrix measures distance.

    Args:
      q, v: coordinates and velocities close to the constraints; for rough guesses use `assemble`.
      t: time [s].

    Returns: q and v; residuals are down to rounding where the start was off by less than some 1e-3.
    Source: mass-orthogonal projection, e.g. Garcia de Jalon & Bayo (1994), section 5.3.
    """
    q, v, _, t, system = promote(system, q, v, None, t)
    if not system.constraints:
        return q, v
    packed = pack(system)
    for _ in range(3):
        q, v = projected(system, packed, q, v, t, 1)
    return q, v


def projected(system: System, packed: Packed, q, v, t, iterations: int):
    """One factorisation at q, some simplified Newton steps on the positions, one on the velocities."""
    driven = driven_by_law(system)
    frozen = linearised(system, q, v)
    r = rows(frozen, packed, q, v, t)
    factor, J = mass_factor(frozen, packed, q, driven), free_columns(r.jacobian, driven)
    A = effective_inertia(frozen, factor, *lax.stop_gradient((J, r.mesh)))

    def correction(excess):
        return saddle_solve(frozen, packed, q, factor, A, J, jnp.zeros_like(v), -excess, driven)[0]

    moved, excess = q, r.residual
    for i in range(iterations):
        moved = integrate(system, moved, correction(excess))
        if i + 1 < iterations:
            excess = residual(system, packed, moved, t)
    return moved, v + correction(rates(system, packed, moved, v, t))
