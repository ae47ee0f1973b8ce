"""Roots inside a step: a fixed number of Newton iterations, differentiated by the implicit function theorem.

The number of iterations is fixed, so that a step costs the same in every copy of a batch. The derivative is that of
the equation and not of the iterations: at r(x, p) = 0 it solves J dx = -(dr/dp) dp, in forward and reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Vector = Float[Array, " n"]


def newton(residual: Callable[[Vector], Vector], start: Vector, iterations: int) -> Vector:
    """The root of a residual by Newton's method with the full Jacobian, formed column by column in forward mode."""

    def solve(residual, x):
        def iterate(x, _):
            return x - jnp.linalg.solve(jax.jacfwd(residual)(x), residual(x)), None

        return lax.scan(iterate, x, length=iterations)[0]

    def tangent_solve(product, b):
        return jnp.linalg.solve(jax.vmap(product, out_axes=1)(jnp.eye(len(b), dtype=b.dtype)), b)

    return lax.custom_root(residual, start, solve, tangent_solve)


def preconditioned_newton(
    residual: Callable[[Vector], Vector], start: Vector, inverse: Callable[[Vector], Vector], iterations: int
) -> Vector:
    """The root of a residual whose Jacobian is close to a symmetric matrix that is cheap to solve with.

    Args:
      inverse: b to M^-1 b, where M is close to the Jacobian. Each iteration shrinks the error by |1 - M^-1 J|; the
        derivative is solved by as many iterations with the same M, so that it is as exact as the value.
    """

    def solve(residual, x):
        return lax.scan(lambda x, _: (x - inverse(residual(x)), None), x, length=iterations)[0]

    def linear(product, b):
        return lax.scan(lambda x, _: (x + inverse(b - product(x)), None), jnp.zeros_like(b), length=iterations)[0]

    def tangent_solve(product, b):
        return lax.custom_linear_solve(product, b, linear, transpose_solve=linear)

    return lax.custom_root(residual, start, solve, tangent_solve)


def saddle_newton(
    residual: Callable[[Vector], Vector], start: Vector, damping: Float[Array, " n"], iterations: int
) -> Vector:
    """The root of a residual whose Jacobian may be singular but consistent: redundant rows of multipliers.

    Each iteration solves (J + eps^(1/2) diag(damping)) dx = -r. For a saddle matrix with the damping on the rows of
    the multipliers that is the proximal point method: errors shrink by about eps^(1/2) times the largest over the
    smallest effective inertia, and combinations of multipliers that do nothing stay near zero. The derivative's
    equation is refined in the same way.

    Args:
      damping: zero on the equations of motion, the size of the effective inertia on the rows; no derivative.
    """
    shift = jnp.diag(jnp.sqrt(jnp.finfo(start.dtype).eps).astype(start.dtype) * lax.stop_gradient(damping))

    def solve(residual, x):
        def iterate(x, _):
            return x - jnp.linalg.solve(jax.jacfwd(residual)(x) + shift, residual(x)), None

        return lax.scan(iterate, x, length=iterations)[0]

    def tangent_solve(product, b):
        J = jax.vmap(product, out_axes=1)(jnp.eye(len(b), dtype=b.dtype))
        x = jnp.linalg.solve(J + shift, b)
        for _ in range(2):
            x = x + jnp.linalg.solve(J + shift, b - J @ x)
        return x

    return lax.custom_root(residual, start, solve, tangent_solve)
