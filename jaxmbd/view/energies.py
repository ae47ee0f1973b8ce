"""Energy books of a simulated batch: kinetic, potential, dissipated in the joints, and lost by the stepper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxmbd.curves import linearised
from jaxmbd.energy import energy
from jaxmbd.forces import passive_damping
from jaxmbd.limits import stops
from jaxmbd.packing import full_coordinates, full_velocities
from jaxmbd.system import System


@dataclass(frozen=True)
class EnergyBooks:
    """Energies over time [J]. Without a controller, kinetic + potential + dissipated would stay constant exactly."""

    kinetic: Float[np.ndarray, "batch nt"]
    potential: Float[np.ndarray, "batch nt"]
    dissipated: Float[np.ndarray, "batch nt"]

    @property
    def drift(self) -> Float[np.ndarray, "batch nt"]:
        """The error of the books since the start: the stepper's, and that of the time integral of the dissipation."""
        total = self.kinetic + self.potential + self.dissipated
        return total - total[:, :1]


def energy_books(
    system: System,
    t: Float[np.ndarray, " nt"],
    q: Float[np.ndarray, "batch nt nq"],
    v: Float[np.ndarray, "batch nt nv"],
) -> EnergyBooks:
    """Energy books of a motion without controller or outer forces.

    Accuracy: second order in the distance of the instants. Between two of them the power of a joint is the geometric
    mean of its values there, which stays sensible where a strong damper stops a light link within one step.
    """
    kinetic, potential = (np.asarray(x, float) for x in _over_batch_and_time(energy)(system, q, v))
    power = np.asarray(_over_batch_and_time(dissipated_power)(system, q, v), float)
    between = np.sqrt(power[:, 1:] * power[:, :-1]).sum(-1) * np.diff(t)
    dissipated = np.concatenate([np.zeros((len(q), 1)), np.cumsum(between, axis=1)], axis=1)
    return EnergyBooks(kinetic, potential, dissipated)


def dissipated_power(system: System, q: Float[Array, " nq"], v: Float[Array, " nv"]) -> Float[Array, " nv_full"]:
    """Power that damper and dry friction of each velocity take, followers of couplings included [W]."""
    system = linearised(system, q, v)
    full = full_velocities(system, v)
    damping = passive_damping(system, full)
    if system.limit_stiffness is not None:
        damping = damping + stops(system, full_coordinates(system, q)).damping
    return damping * full**2


def _over_batch_and_time(function: Callable) -> Callable:
    return jax.jit(jax.vmap(jax.vmap(function, (None, 0, 0)), (None, 0, 0)))
