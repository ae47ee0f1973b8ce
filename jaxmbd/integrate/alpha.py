"""The generalised-alpha method on the configuration group: second order, with the damping of fast motion to choose.

    q1 = q exp(h v + h^2 ((1/2 - beta) a + beta a1)),   v1 = v + h ((1 - gamma) a + gamma a1)
    (1 - alpha_m) a1 + alpha_m a = (1 - alpha_f) w1 + alpha_f w,   w = v_dot(t, q, v),  w1 = v_dot(t + h, q1, v1)

a is an acceleration-like number that goes from step to step; the equations of motion hold at the ends of the steps
(Chung & Hulbert 1993; Arnold & Bruels 2007, Eqs. 4-6, on groups Bruels, Cardona & Arnold 2012). With alpha_m = alpha_f
= 0 these are Newmark's formulas.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxmbd.integrate.implicit import newton
from jaxmbd.integrate.steppers import RememberingStepper
from jaxmbd.values import concrete


class GeneralizedAlpha(RememberingStepper):
    """The generalised-alpha method, solved by Newton's. Second order and A-stable for every spectral radius.

    Args:
      radius: spectral radius for motion that is much faster than the step, 0 to 1: each step multiplies it by that
        much. 1 keeps it, 0 removes it within a step or two; slow motion is damped least for its radius (Chung &
        Hulbert 1993, Eqs. 17, 20, 25).
      alpha_m, alpha_f, beta, gamma: in place of those that the radius gives. alpha_m = alpha_f = 0 is Newmark's method,
        alpha_m = 0 that of Hilber, Hughes & Taylor.
      iterations: of Newton's method, each with the Jacobian of the accelerations, [nv, nv].

    With constraints the accelerations satisfy them, and positions and velocities by the run's `drift`.
    """

    alpha_m: float | Array
    alpha_f: float | Array
    beta: float | Array
    gamma: float | Array
    iterations: int = eqx.field(static=True)

    def __init__(
        self,
        radius: float | Array = 0.8,
        *,
        alpha_m: float | Array | None = None,
        alpha_f: float | Array | None = None,
        beta: float | Array | None = None,
        gamma: float | Array | None = None,
        iterations: int = 3,
    ):
        known = concrete(radius)
        if known is not None and not 0.0 <= known <= 1.0:
            raise ValueError(f"The spectral radius is {radius}; expected 0 (damps all that is fast) to 1 (keeps it).")
        self.alpha_m = (2.0 * radius - 1.0) / (radius + 1.0) if alpha_m is None else alpha_m
        self.alpha_f = radius / (radius + 1.0) if alpha_f is None else alpha_f
        self.gamma = 0.5 + self.alpha_f - self.alpha_m if gamma is None else gamma
        self.beta = 0.25 * (self.gamma + 0.5) ** 2 if beta is None else beta
        self.iterations = iterations

    def start(self, v):
        return jnp.zeros_like(v), jnp.ones((), bool)

    def advance(self, problem, t, q, v, h, memory):
        now = problem.acceleration(t, q, v)
        a = jnp.where(memory[1], now, memory[0])  # the first step begins with the acceleration itself

        def moved(then):
            mean = (1.0 - self.alpha_f) * then + self.alpha_f * now
            a1 = (mean - self.alpha_m * a) / (1.0 - self.alpha_m)
            u = h * v + h * h * ((0.5 - self.beta) * a + self.beta * a1)
            return problem.retract(q, u), v + h * ((1.0 - self.gamma) * a + self.gamma * a1), a1

        def residual(then):
            q1, v1, _ = moved(then)
            return then - problem.acceleration(t + h, q1, v1)

        q1, v1, a1 = moved(newton(residual, now, self.iterations))
        return q1, v1, now, (a1, jnp.zeros((), bool))
