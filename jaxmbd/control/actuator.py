"""Actuators: limits and first-order lag between what a controller commands and what acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd.joints import as_pytree
from jaxmbd.simulate import Control, StatefulControl
from jaxmbd.values import Numbers, floats


class LaggedActuator(StatefulControl):
    """A controller's command, limited, reaching the joints with a first-order lag: lag * dtau/dt = command - tau.

    The command is evaluated at the start of each step and held over it (a digital controller); within the step the
    force follows the lag's exponential exactly, whatever the stepper. The memory is the force that acts.

    Args:
      control: the command as a function of (t, q, v).
      limit: largest force, one number or one a velocity [N m, N]; `system.effort` holds a file's.
      lag: time constant [s], one number or one a velocity; zero for none.
      initial: force at the start; none when left out.
    """

    control: Callable[[Array, Array, Array], Array]
    limit: Float[Array, "..."]
    lag: Float[Array, "..."]
    initial: Float[Array, "..."]

    def __init__(self, control: Control, limit: Numbers = jnp.inf, lag: Numbers = 0.0, initial: Numbers = 0.0):
        self.control = as_pytree(control)
        self.limit, self.lag, self.initial = (jnp.asarray(floats(x)) for x in (limit, lag, initial))

    def start(self, t, q, v) -> Any:
        return jnp.broadcast_to(self.initial.astype(v.dtype), v.shape)

    def plan(self, memory, t, q, v, h):
        limit = self.limit.astype(v.dtype)
        command = jnp.clip(jnp.asarray(self.control(t, q, v), v.dtype), -limit, limit)
        acting = jax.tree_util.Partial(_acting, command, memory, self.lag.astype(v.dtype), t)
        return acting, acting(t + h, q, v)


def _acting(command, initial, lag, start, t, q, v):
    """The force a time t - start after the step began."""
    lagging = lag > 0
    decay = jnp.where(lagging, jnp.exp(-(t - start) / jnp.where(lagging, lag, 1.0)), 0.0)
    return command + (initial - command) * decay
