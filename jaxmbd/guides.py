"""A point guided by a curve: a bead on a wire, a pin in a slot, a follower on a cam."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxmbd import rotation as so3
from jaxmbd.closures import Constraint
from jaxmbd.joints import as_pytree, unit

_SAMPLES = 64  # of the curve, from which the search for the nearest point starts


class PointOnCurve(Constraint):
    """The second frame's origin lies on a curve that is fixed in the first frame.

    Rows: the distances from the nearest point of the curve [m] along two directions across its tangent. The curve's
    parameter there is found by Newton's method from the nearest of some samples; steps through which derivatives are
    taken follow, each of which adds an order.
    """

    curve: Callable[[Array], Array]
    lower: float = eqx.field(static=True)
    upper: float = eqx.field(static=True)

    @property
    def kind(self) -> str:
        return "point on curve"

    @property
    def rows(self) -> tuple[int, int]:
        return 2, 0

    def residual(self, at):
        _, p = at.relative

        def curve(s):
            return jnp.reshape(jnp.asarray(self.curve(s), p.dtype), (3,))

        def off(p, s):
            """Derivative of half the squared distance by the parameter, negative."""
            value, slope = jax.jvp(curve, (s,), (jnp.ones_like(s),))
            return (p - value) @ slope

        def step(p, s):
            value, slope = jax.value_and_grad(off, 1)(p, s)
            return s - value / slope

        still = lax.stop_gradient(p)
        samples = jnp.linspace(self.lower, self.upper, _SAMPLES, dtype=p.dtype)
        nearest = jnp.argmin(jnp.sum((jax.vmap(curve)(samples) - still[None]) ** 2, -1))
        s = samples[nearest]
        for _ in range(6):
            s = step(still, s)
        s = lax.stop_gradient(s)
        tangent = lax.stop_gradient(jax.jvp(curve, (s,), (jnp.ones_like(s),))[1])
        x, y, _ = so3.frame_along(unit(tangent)).T
        for _ in range(3):
            s = step(p, s)
        d = p - curve(s)
        return jnp.stack([x @ d, y @ d])


def point_on_curve(curve: Callable[[Array], Array], lower: float, upper: float) -> PointOnCurve:
    """The second frame's origin lies on a smooth curve of the first frame; where along it, is free.

    Args:
      curve: position [m] as a function of a parameter, three times differentiable and regular (its derivative is not
        zero). An `eqx.Module` brings numbers that are differentiated too.
      lower, upper: the parameters between which the nearest point is looked for.
    """
    if not upper > lower:
        raise ValueError(f"The curve's parameters run from {lower} to {upper}; expected lower < upper.")
    return PointOnCurve(as_pytree(curve), float(lower), float(upper))
