"""Feedback and feed-forward: PD on the configuration manifold, computed torque, sampled signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.joints import as_pytree
from jaxmbd.manifold import difference
from jaxmbd.rnea import inverse_dynamics
from jaxmbd.system import System
from jaxmbd.values import Numbers, concrete, floats


class Sampled(eqx.Module):
    """A signal given by samples, as a function of time; before the first and after the last it stays.

    `Sampled(times, forces)` is a control as it stands: it takes (t, q, v) and looks at t alone.
    """

    times: Float[Array, " n"]
    values: Float[Array, "n *size"]
    kind: Literal["linear", "hold"] = eqx.field(static=True)

    def __init__(self, times: Numbers, values: Numbers, kind: Literal["linear", "hold"] = "linear"):
        """Args:
        times: increasing [s].
        values: one row a time.
        kind: "linear" between the samples, or "hold" each until the next.
        """
        if kind not in ("linear", "hold"):
            raise ValueError(f"The kind of a sampled signal is {kind!r}; expected 'linear' or 'hold'.")
        self.times, self.values, self.kind = jnp.asarray(floats(times)), jnp.asarray(floats(values)), kind
        if self.times.ndim != 1 or not len(self.times) or self.values.shape[:1] != self.times.shape:
            raise ValueError(
                f"Samples have times of shape {self.times.shape} and values of shape {self.values.shape}; "
                "expected (n,) and (n, ...), n at least one."
            )
        known = concrete(self.times)
        if known is not None and not (known[1:] > known[:-1]).all():
            raise ValueError("The times of a sampled signal do not increase; sort them and drop what is there twice.")

    def __call__(self, t, q=None, v=None) -> Float[Array, " *size"]:
        last = len(self.times) - 1
        i = jnp.clip(jnp.searchsorted(self.times, t, side="right") - 1, 0, last)
        if self.kind == "hold" or not last:
            return self.values[i]
        i = jnp.minimum(i, last - 1)
        part = (t - self.times[i]) / (self.times[i + 1] - self.times[i])
        part = jnp.clip(part, 0.0, 1.0)
        return (1.0 - part) * self.values[i] + part * self.values[i + 1]


class Reference(eqx.Module):
    """A motion to follow, q as a function of time; velocities and accelerations are its derivatives on the manifold."""

    model: System
    q: Callable[[Array], Array]

    def __init__(self, model: System, q: Callable[[Array], Array] | Numbers):
        """Args:
        model: says how q moves.
        q: a function of time [s], twice differentiable; or constant coordinates [nq].
        """
        self.model = model
        self.q = as_pytree(q) if callable(q) else _Constant(jnp.asarray(floats(q)))

    def __call__(self, t) -> tuple[Float[Array, " nq"], Float[Array, " nv"], Float[Array, " nv"]]:
        t = jnp.asarray(t, self.model.gravity.dtype)

        v, a = jax.jvp(lambda t: _velocity(self.model, self.q, t), (t,), (jnp.ones_like(t),))
        return self.q(t), v, a


def _velocity(model, function, t):
    """v with q_dot = N(q) v, from the rate of the coordinates."""
    q, rate = jax.jvp(function, (t,), (jnp.ones_like(t),))
    return jax.jvp(lambda other: difference(model, q, other), (q,), (rate,))[1]


class _Constant(eqx.Module):
    value: Array

    def __call__(self, t):
        return self.value


class PD(eqx.Module):
    """tau = stiffness * (reference - q) + damping * (its velocity - v), differences on the manifold.

    Args:
      reference: what to follow.
      stiffness: [N m/rad, N/m], one number or one a velocity.
      damping: [N m s/rad, N s/m], likewise.
    """

    reference: Reference
    stiffness: Float[Array, "..."]
    damping: Float[Array, "..."]

    def __init__(self, reference: Reference, stiffness: Numbers, damping: Numbers):
        self.reference = reference
        self.stiffness, self.damping = (_gains(reference.model, x) for x in (stiffness, damping))

    def __call__(self, t, q, v) -> Float[Array, " nv"]:
        q_ref, v_ref, _ = self.reference(t)
        return self.stiffness * difference(self.reference.model, q, q_ref) + self.damping * (v_ref - v)


class ComputedTorque(eqx.Module):
    """Feed-forward by inverse dynamics of the model along the reference, and PD about it.

    tau = inverse_dynamics(model, q_ref, v_ref, a_ref) + stiffness * (q_ref - q) + damping * (v_ref - v).
    """

    feedback: PD

    def __init__(self, reference: Reference, stiffness: Numbers = 0.0, damping: Numbers = 0.0):
        self.feedback = PD(reference, stiffness, damping)

    def __call__(self, t, q, v) -> Float[Array, " nv"]:
        model = self.feedback.reference.model
        return inverse_dynamics(model, *self.feedback.reference(t), t=t) + self.feedback(t, q, v)


def _gains(model, value):
    gains = jnp.asarray(floats(value))
    if gains.shape not in ((), (model.nv,)):
        raise ValueError(f"A gain has shape {gains.shape}; expected one number or ({model.nv},), one a velocity.")
    return jnp.broadcast_to(gains, (model.nv,))
