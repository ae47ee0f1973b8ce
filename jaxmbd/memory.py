"""How much memory a run takes: a calculation from sizes, to choose `every`, `record` and `segment` before compiling."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmbd.integrate.rollout import automatic_segment
from jaxmbd.system import System


class MemoryEstimate(NamedTuple):
    """Bytes. `trajectory` is what the run returns, the rest what it needs besides."""

    trajectory: int
    states: int
    """States that the reverse pass stores: those between the segments and those inside one."""
    step: int
    """Work space of one step, forwards and backwards."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.trajectory + self.states + self.step


# numbers that one step keeps at the same time per slot of the sweeps, measured with XLA's own count on a CPU
_FORWARD, _BACKWARD = 160, 420


def memory_estimate(
    system: System,
    steps: int,
    *,
    batch: int = 1,
    every: int = 1,
    segment: int | None = None,
    recorded: int | None = None,
    gradient: bool = True,
    remat: bool = True,
    dtype=None,
) -> MemoryEstimate:
    """Memory of a run of `simulate` and of its gradient by reverse mode.

    Args:
      steps: of the run.
      batch: copies.
      every, segment, remat: as for `simulate`.
      recorded: numbers kept at an instant, where `record` is given; a whole state, acceleration and force otherwise.
      gradient: whether the run is differentiated in reverse mode (which doubles `trajectory`: its cotangents).
      dtype: the system's when left out.

    Accuracy: states and trajectory are exact, the work space of a step is right within a factor of two or so; compare
      `jax.jit(f).lower(...).compile().memory_analysis()`. Semi-implicit Euler and explicit steppers.
    """
    if steps < 1 or every < 1 or batch < 1:
        raise ValueError(f"steps = {steps}, every = {every}, batch = {batch}; expected one or more of each.")
    size = jnp.dtype(system.gravity.dtype if dtype is None else dtype).itemsize * batch
    slots, state = system.topology.layout.tree.size, system.nq + system.nv
    rows = steps // every + 1
    kept = (1 + state + 2 * system.nv if recorded is None else 1 + recorded) * rows * size
    if not gradient:
        return MemoryEstimate(kept, 0, _FORWARD * slots * size)
    step = (_FORWARD + _BACKWARD) * slots * size
    if not remat:
        return MemoryEstimate(2 * kept, step * steps, step)
    segment = automatic_segment(steps) if segment is None else segment
    if segment == 1:
        return MemoryEstimate(2 * kept, rows * every * state * size, step)
    per_segment = max(segment // every, 1)
    stored = rows if per_segment == 1 else -(-rows // per_segment) + per_segment
    inside = every if every > 1 else 0
    return MemoryEstimate(2 * kept, (stored + inside) * state * size, step)


def compiled_memory(function, *arguments) -> int:
    """Bytes of temporaries that XLA reserves for a function, by its own count; compiles it."""
    analysis = jax.jit(function).lower(*arguments).compile().memory_analysis()
    if analysis is None:
        raise RuntimeError("This backend does not count the memory of compiled programs.")
    return analysis.temp_size_in_bytes
