"""Fixed-step methods for q_dot = N(q) v, v_dot = a(t, q, v) with q on a Lie group.

Every method moves q by the group's exponential, so that quaternions keep their norm without projection.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float


class Equations(NamedTuple):
    """Equations of motion and constraints at a state with some acceleration."""

    balance: Float[Array, " nv"]
    """M a - f: what forces are missing for the acceleration."""
    jacobian: Float[Array, "nc nv"]
    """Multipliers times this are the constraints' forces."""
    residual: Float[Array, " nh"]
    """Holonomic rows, on position level."""
    rate: Float[Array, " nc"]
    """All rows, on velocity level."""


class Problem(Protocol):
    """What a stepper asks of a mechanical system."""

    def acceleration(self, t, q, v) -> Float[Array, " nv"]:
        """v_dot at a state."""
        ...

    def implicit_acceleration(self, t, q, v, h, during=None) -> Float[Array, " nv"]:
        """v_dot with the stiff forces taken at the end of a step h, to first order.

        Velocity products (Coriolis and centrifugal forces) are those of the velocities `during`, of v when left out.
        """
        ...

    def retract(self, q, u) -> Float[Array, " nq"]:
        """q moved along the tangent u by the group's exponential."""
        ...

    def bracket(self, u, w) -> Float[Array, " nv"]:
        """Lie bracket of two tangents (body axes)."""
        ...

    def difference(self, q0, q1) -> Float[Array, " nv"]:
        """The tangent that `retract` moves q0 to q1 along."""
        ...

    def lagrangian(self, t, q, v) -> Float[Array, ""]:
        """Kinetic less potential energy; its slopes are momenta and conservative forces."""
        ...

    def force(self, t, q, v) -> Float[Array, " nv"]:
        """All forces that are not in the Lagrangian."""
        ...

    def momentum(self, t, q, v) -> Float[Array, " nv"]:
        """Slope of the Lagrangian in v."""
        ...

    def velocity(self, t, q, p) -> Float[Array, " nv"]:
        """The v that has the momentum p, up to impulses of the constraints, which v keeps; laws set what they drive."""
        ...

    def given(self, t, q, h) -> tuple[Float[Array, " nv"], np.ndarray] | None:
        """Mean velocities over the step of what laws drive, and which velocities these are; None without laws."""
        ...

    def preconditioner(self, t, q, v, h) -> Callable[[Array], Array]:
        """b [nv + nh] to about [[M + h D / 2 + h^2 K / 4, -J^T], [-J, 0]]^-1 b; symmetric.

        D and K are passive damping and stiffness, J the holonomic constraints' Jacobian. Zero where velocities are
        driven, as b is.
        """
        ...

    def closure(self, t, q) -> Float[Array, " nh"]:
        """Residuals of holonomic constraints."""
        ...

    def closure_jacobian(self, t, q) -> Float[Array, "nh nv"]:
        """Their Jacobian, zero where velocities are driven."""
        ...

    def equations(self, t, q, v, a) -> Equations:
        """The equations of motion in implicit form, and the constraints."""
        ...

    def constraint_motion(self, t, q, v) -> tuple[Float[Array, "nc nv"], Float[Array, " nc"], np.ndarray]:
        """Motion that a unit multiplier of each row makes, M^-1 J^T; the row's effective inertia, one where idle; and
        which rows are holonomic (indices).
        """
        ...


def chart_rate(problem: Problem, u: Array, v: Array) -> Array:
    """Rate of the exponential chart's coordinate u at body velocity v, to the terms of fourth order methods."""
    first = problem.bracket(u, v)
    return v + 0.5 * first + problem.bracket(u, first) / 12.0


class Stepper(eqx.Module):
    """One step of a fixed-step method."""

    @abc.abstractmethod
    def step(self, problem: Problem, t, q, v, h) -> tuple[Array, Array, Array]:
        """Advance by h. Returns q and v at t + h, and the acceleration at the start, or the step's mean where noted."""


class RememberingStepper(Stepper):
    """A method that hands numbers from step to step (not the state's, such as an acceleration of its own)."""

    @abc.abstractmethod
    def start(self, v: Float[Array, " nv"]) -> Any:
        """What the first step is given; v tells size and type."""

    @abc.abstractmethod
    def advance(self, problem: Problem, t, q, v, h, memory) -> tuple[Array, Array, Array, Any]:
        """`step` with what the step before has left, and what it leaves for the next."""

    def step(self, problem, t, q, v, h):
        """A first step."""
        return self.advance(problem, t, q, v, h, self.start(v))[:3]


def require_single_steps(stepper: Stepper, what: str) -> None:
    """Refuse a method that remembers where steps do not follow one another."""
    if isinstance(stepper, RememberingStepper):
        raise ValueError(
            f"{type(stepper).__name__} hands numbers from step to step, which {what} cannot follow; "
            "use another stepper (Newmark() is its kin)."
        )


class SemiImplicitEuler(Stepper):
    """v first, then q with the new v. First order; springs, damping and friction of joints are taken implicitly.

    The passive forces of joints cannot make it unstable. Where the mass matrix is constant it is symplectic. Elsewhere
    velocity products at the start's v do work that they should not, and the energy of a long free motion wanders; taken
    at the mean of the step's velocities they do none, to the accuracy of the mean.

    Args:
      corrections: evaluations more, each with velocity products at the mean velocity that the one before leads to. One
        is enough where undamped motion of seconds and more matters (docs/simulation.md).
    """

    corrections: int = eqx.field(static=True, default=0)

    def step(self, problem, t, q, v, h):
        if self.corrections:
            # a scan, so that the dynamics is compiled once
            def evaluate(a, _):
                return problem.implicit_acceleration(t, q, v, h, v + 0.5 * h * a), None

            a, _ = lax.scan(evaluate, jnp.zeros_like(v), length=self.corrections + 1)
        else:
            a = problem.implicit_acceleration(t, q, v, h)
        v = v + h * a
        return problem.retract(q, h * v), v, a


class RungeKuttaMuntheKaas4(Stepper):
    """The classical fourth-order Runge-Kutta method in the group's exponential chart (Munthe-Kaas 1998)."""

    def step(self, problem, t, q, v, h):
        reach = jnp.array([0.0, 0.5, 0.5, 1.0], v.dtype)  # each stage stands on the one before it
        weight = jnp.array([1.0, 2.0, 2.0, 1.0], v.dtype) / 6.0

        def stage(previous, coefficients):
            w, a = previous
            c, b = coefficients
            u, v_stage = c * h * w, v + c * h * a
            a = problem.acceleration(t + c * h, problem.retract(q, u), v_stage)
            w = chart_rate(problem, u, v_stage)
            return (w, a), (b * w, b * a, a)

        # a scan, so that the dynamics is compiled once and not four times
        _, (w, a, accelerations) = lax.scan(stage, (jnp.zeros_like(v), jnp.zeros_like(v)), (reach, weight))
        return problem.retract(q, h * jnp.sum(w, 0)), v + h * jnp.sum(a, 0), accelerations[0]
