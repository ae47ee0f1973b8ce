"""Adaptive solvers, dense output and adjoints: an adapter to diffrax, which is imported only when it is used.

diffrax integrates vectors, so the configuration moves in its ambient coordinates, q_dot = N(q) v, and quaternions leave
the unit sphere by the solver's error. The dynamics normalises what it reads, and states are projected back when they
are given out (`t`, `q`, `v`, and `evaluate`). To first order the projection removes the part of the error that points
off the sphere and leaves the rest: a state is as accurate after it as before, and never more than the tolerance says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.drives import driven_motion
from jaxmbd.elements.acting import prepared, stateless, with_rotors
from jaxmbd.entries import arranged, entries
from jaxmbd.joints import as_pytree
from jaxmbd.kinematics import promote
from jaxmbd.manifold import q_dot
from jaxmbd.mechanism import Mechanism
from jaxmbd.packing import pack
from jaxmbd.stateful import Control
from jaxmbd.system import System
from jaxmbd.values import Numbers


class Solution(eqx.Module):
    """States at the instants asked for; with dense output at any other, by `evaluate`.

    `norm_error` is how far the quaternions were off unit length before the projection, the largest of each instant.
    `steps` counts accepted and rejected steps. `solution` is diffrax's own record.
    """

    t: Float[Array, " nt"]
    q: Float[Array, "nt nq"]
    v: Float[Array, "nt nv"]
    norm_error: Float[Array, " nt"]
    steps: Any
    solution: Any
    system: System

    def evaluate(self, t: Numbers) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
        """q and v at a time, by the solver's own interpolation.

        Raises: ValueError without dense output.
        """
        if self.solution.interpolation is None:
            raise ValueError("This solution has no dense output; call simulate_adaptive(..., dense=True).")
        q, v = self.solution.evaluate(jnp.asarray(t, self.t.dtype))
        return project(self.system, q), v


def simulate_adaptive(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"] | None = None,
    *,
    duration: Numbers,
    instants: Float[Array, " nt"] | None = None,
    control: Control | None = None,
    forces: Sequence = (),
    t0: Numbers = 0.0,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    solver: Any = None,
    adjoint: Any = None,
    controller: Any = None,
    dense: bool = False,
    dt0: Numbers | None = None,
    max_steps: int = 100_000,
) -> Solution:
    """Motion by any solver of diffrax, with its step-size control, dense output and adjoints.

    Args:
      q, v: state at the start; v is zero when left out.
      duration: [s].
      instants: times of the states to return, increasing [s]; start and end when left out.
      control: forces tau [nv] as a function of (t, q, v); none when left out.
      forces: force elements and `Wrench`es, as for `simulate`; none with a lag, whose command is held over steps.
      t0: time at the start [s].
      rtol, atol: tolerances of the error of each step in the coordinates [rad, m, 1] and velocities.
      solver: `diffrax.Dopri8()` when left out; `diffrax.Kvaerno5()` for stiff systems.
      adjoint: how to differentiate; `diffrax.RecursiveCheckpointAdjoint()` (reverse mode) when left out,
        `diffrax.ForwardMode()` for forward mode.
      controller: in place of a PID controller with rtol and atol, as `diffrax.ConstantStepSize()` (which needs dt0).
      dense: keep what `Solution.evaluate` needs.
      dt0: first step; chosen by the controller when left out.
      max_steps: more raise an error, or give infinite states inside compiled functions.
    """
    import diffrax

    q, v, _, t0, _ = promote(system, q, v, None, t0)
    law = None if control is None else as_pytree(control)
    elements = prepared(stateless(system, forces, "simulate_adaptive"), q.dtype)
    system = with_rotors(system.astype(q.dtype), elements)
    q, v, _ = driven_motion(system, q, v, t0)
    end = t0 + jnp.asarray(duration, t0.dtype)
    times = jnp.stack([t0, end]) if instants is None else jnp.asarray(instants, t0.dtype)
    controller = diffrax.PIDController(rtol=rtol, atol=atol) if controller is None else controller

    def rate(t, state, args):
        system, law, elements = args
        q, v = state
        t = jnp.asarray(t, q.dtype)
        nothing = jnp.zeros_like(v)

        def tau(t, q, v):
            return nothing if law is None else jnp.asarray(law(t, q, v), q.dtype)

        # forces see unit quaternions, as they do in fixed steps; N(q) sees q as it is, so that its norm stays
        mechanism = Mechanism(system, pack(system), tau, elements)
        return q_dot(system, q, v), mechanism.acceleration(t, project(system, q), v)

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(rate),
        diffrax.Dopri8() if solver is None else solver,
        t0=t0,
        t1=end,
        dt0=None if dt0 is None else jnp.asarray(dt0, t0.dtype),
        y0=(q, v),
        args=(system, law, elements),
        stepsize_controller=controller,
        saveat=diffrax.SaveAt(ts=times, dense=dense),
        adjoint=diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint,
        max_steps=max_steps,
    )
    saved, (raw_q, raw_v) = cast(Any, (solution.ts, solution.ys))
    norms = jax.vmap(lambda q: norm_error(system, q))(raw_q)
    raw_q, raw_v, _ = jax.vmap(lambda q, v, t: driven_motion(system, q, v, t))(raw_q, raw_v, saved)
    return Solution(
        t=saved,
        q=jax.vmap(lambda q: project(system, q))(raw_q),
        v=raw_v,
        norm_error=norms,
        steps={name: solution.stats[f"num_{name}_steps"] for name in ("accepted", "rejected")},
        solution=solution,
        system=system,
    )


def project(system: System, q: Float[Array, " nq"]) -> Float[Array, " nq"]:
    """Coordinates with quaternions of unit length."""
    at = system.topology.layout.group
    if not len(at.turn_q):
        return q
    own = [q[at_q] for _, at_q, _ in at.quasi]
    turn = so3.normalize(entries(q, at.turn_q))
    return arranged(at.q_order, entries(q, at.plain_q), turn, entries(q, at.slide_q), *own)


def norm_error(system: System, q: Float[Array, " nq"]) -> Float[Array, ""]:
    """How far the quaternions are off unit length, the largest; zero without quaternions."""
    at = system.topology.layout.group
    if not len(at.turn_q):
        return jnp.zeros((), q.dtype)
    square = jnp.sum(entries(q, at.turn_q) ** 2, -1)
    return jnp.max(jnp.abs(jnp.sqrt(square) - 1.0))
