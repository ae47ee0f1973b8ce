"""Fixed-step methods for q_dot = N(q) v, v_dot = a(t, q, v) with q on a Lie group.

Every method moves q by the group's exponential, so that quaternions keep their norm without projection.
"""

from __future__ import annotations

import abc
from typing import Protocol

import equinox as eqx
from jaxtyping import Array, Float


class Problem(Protocol):
    """What a stepper asks of a mechanical system."""

    def acceleration(self, t, q, v) -> Float[Array, " nv"]:
        """v_dot at a state."""
        ...

    def implicit_acceleration(self, t, q, v, h) -> Float[Array, " nv"]:
        """v_dot with the stiff forces taken at the end of a step h, to first order."""
        ...

    def retract(self, q, u) -> Float[Array, " nq"]:
        """q moved along the tangent u by the group's exponential."""
        ...

    def bracket(self, u, w) -> Float[Array, " nv"]:
        """Lie bracket of two tangents (body axes)."""
        ...


class Stepper(eqx.Module):
    """One step of a fixed-step method."""

    @abc.abstractmethod
    def step(self, problem: Problem, t, q, v, h) -> tuple[Array, Array, Array]:
        """Advance by h. Returns q and v at t + h, and the acceleration used at the start of the step."""


class SemiImplicitEuler(Stepper):
    """v first, then q with the new v. First order; springs, damping and friction of joints are taken implicitly.

    Free motion keeps its energy bounded over long times; the passive forces of joints cannot make it unstable.
    """

    def step(self, problem, t, q, v, h):
        a = problem.implicit_acceleration(t, q, v, h)
        v = v + h * a
        return problem.retract(q, h * v), v, a


class RungeKuttaMuntheKaas4(Stepper):
    """The classical fourth-order Runge-Kutta method in the group's exponential chart (Munthe-Kaas 1998)."""

    def step(self, problem, t, q, v, h):
        def chart_rate(u, w):
            # derivative of the chart coordinate u for body velocity w, up to the order of the method
            first = problem.bracket(u, w)
            return w + 0.5 * first + problem.bracket(u, first) / 12.0

        w1, a1 = v, problem.acceleration(t, q, v)
        u, v2 = 0.5 * h * w1, v + 0.5 * h * a1
        w2, a2 = chart_rate(u, v2), problem.acceleration(t + 0.5 * h, problem.retract(q, u), v2)
        u, v3 = 0.5 * h * w2, v + 0.5 * h * a2
        w3, a3 = chart_rate(u, v3), problem.acceleration(t + 0.5 * h, problem.retract(q, u), v3)
        u, v4 = h * w3, v + h * a3
        w4, a4 = chart_rate(u, v4), problem.acceleration(t + h, problem.retract(q, u), v4)
        u = h / 6.0 * (w1 + 2.0 * w2 + 2.0 * w3 + w4)
        return problem.retract(q, u), v + h / 6.0 * (a1 + 2.0 * a2 + 2.0 * a3 + a4), a1
