"""Controls with a memory, as `simulate` takes them beside plain functions of (t, q, v)."""

from __future__ import annotations

import abc
from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, PyTree

Control = Callable[[Array, Array, Array], Array]
"""Forces tau [nv] as a function of (t, q, v)."""


class StatefulControl(eqx.Module):
    """A control with a memory: an actuator that lags, an integrating controller, a sampled filter.

    Once a step it plans the forces of that step and its next memory.
    """

    @abc.abstractmethod
    def start(self, t, q, v) -> PyTree:
        """Memory at the start of a run."""

    @abc.abstractmethod
    def plan(self, memory, t, q, v, h) -> tuple[Control, PyTree]:
        """Forces as a function of (t, q, v) during the step that begins here, and the memory after it."""
