"""What force elements do at a state: loads for the dynamics, and every element's wrenches, power and energies."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.elements.acting import Acting, checked, initial_states, prepared, with_rotors
from jaxmbd.elements.protocol import Sides
from jaxmbd.energy import energy as system_energy
from jaxmbd.forces import BodyForces, Wrench
from jaxmbd.kinematics import promote
from jaxmbd.packing import pack
from jaxmbd.system import System


class Loads(eqx.Module):
    """What elements do at a state.

    `wrenches` and `tau` are for the dynamics: `forward_dynamics(system, q, v, loads.tau, loads.wrenches)`, with
    `with_rotors(system, elements)` where actuators have rotors. The rest is one entry an element, in their order.
    """

    tau: Float[Array, " nv"]
    """Generalised forces of the joint elements, and the command where none takes it [N m, N]."""
    wrenches: tuple[BodyForces, ...]
    """What acts on the bodies, summed."""
    sides: tuple[tuple[Float[Array, "*n 6"], ...], ...]
    """What acts on each side's frames: [moment; force], world axes, at its point. For fields: on every body's com;
    empty for joint elements."""
    power: Float[Array, " elements"]
    """Power given to the mechanism [W]; for passive elements the loss of potential less what is dissipated."""
    potential: Float[Array, " elements"]
    """Stored energy [J]."""
    dissipation: Float[Array, " elements"]
    """Power turned into heat [W]."""
    points: tuple[tuple[Float[Array, "*n 3"], ...], ...]
    """Where each side is attached, in its frames' axes [m]."""
    frames: tuple[Sides, ...] = eqx.field(static=True)
    """Names of the sides' frames."""

    @property
    def frame_wrenches(self) -> tuple[Wrench, ...]:
        """What acts on the bodies one by one, at the frames: for `reactions`, which asks which link a force acts on."""
        made = []
        for frames, sides, points in zip(self.frames, self.sides, self.points, strict=True):
            for names, six, point in zip(frames, sides, points, strict=True):
                if isinstance(names, str):
                    made.append(Wrench(names, six[..., :3], six[..., 3:], point))
                    continue
                for n, name in enumerate(names):
                    made.append(Wrench(name, six[..., n, :3], six[..., n, 3:], point[..., n, :]))
        return tuple(made)


def evaluate(
    system: System,
    elements: Sequence,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"] | None = None,
    command: Float[Array, " nv"] | None = None,
    t: float | Float[Array, ""] = 0.0,
    z: Float[Array, " nz"] | None = None,
) -> Loads:
    """What force elements do at a state: loads for the dynamics, and every element's wrenches, power and energies.

    Args:
      elements: force elements and `Wrench`es.
      q: coordinates.
      v: velocities, zero when left out.
      command: the control's output; zero when left out.
      t: time [s].
      z: the elements' own states, those of the start when left out.

    Raises: as `simulate` for what is no element, names that the system has not, and numbers that do not fit.
    """
    return _evaluate(system, checked(system, elements), q, v, command, t, z)


@jax.jit
def _evaluate(system, elements, q, v, command, t, z):
    q, v, command, t, system = promote(system, q, v, command, t)
    made = prepared(elements, q.dtype)
    start = initial_states(system, made)
    z = start if z is None else jnp.asarray(z, q.dtype)
    if z.shape != start.shape:
        raise ValueError(f"z has shape {z.shape}; these elements have {start.shape}.")
    acting = Acting(system, pack(system), made, q, v, z, command, t)
    return Loads(
        tau=acting.tau(),
        wrenches=acting.body_forces(),
        sides=tuple(acting.sides(i) for i in range(len(made))),
        power=acting.powers(),
        potential=acting.energies("potential"),
        dissipation=acting.energies("dissipation"),
        points=tuple(acting.attached(i)[1] for i in range(len(made))),
        frames=tuple(acting.attached(i)[0] for i in range(len(made))),
    )


def energy(
    system: System,
    elements: Sequence,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    t: float | Float[Array, ""] = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Kinetic and potential energy [J] as `jaxmbd.energy`, with the elements' rotors and potentials."""
    elements = checked(system, elements)
    kinetic, potential = system_energy(with_rotors(system, elements), q, v, t)
    return kinetic, potential + jnp.sum(evaluate(system, elements, q, v, None, t).potential)
