"""Long runs on the host in chunks: an interrupted run keeps what it has, and goes on later from where it stopped."""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd.record import Recording, State, Trajectory, joined
from jaxmbd.simulate import simulate
from jaxmbd.stateful import StatefulControl
from jaxmbd.system import System


def simulate_chunks(
    system: System,
    q: Float[Array, "*batch nq"] | State,
    v: Float[Array, "*batch nv"] | None = None,
    *,
    duration: float,
    dt: float,
    chunk: float,
    control: Any = None,
    t0: float = 0.0,
    folder: str | os.PathLike | None = None,
    **options: Any,
) -> Trajectory | Recording:
    """`simulate` piece by piece; what is finished is on the host (and in `folder`), whatever happens next.

    Args:
      q, v: one state, or a batch [batch, nq] and [batch, nv] of states of the same system.
      duration, chunk: [s]; whole numbers of steps, the chunk also of kept instants (`every`).
      control: as for `simulate`; an array has a row for each step of the whole run, [steps, nv].
      folder: where to write each piece when it is done. A later call with the same folder goes on after the last one.
      options: `stepper`, `every`, `record` and the like, handed to `simulate`.

    Returns: the pieces as one, as NumPy arrays. After Ctrl-C: those that are finished, with a warning.
    """
    pieces: list[Trajectory | Recording] = []
    try:
        for piece in _pieces(system, q, v, duration, dt, chunk, control, t0, folder, options):
            pieces.append(piece)
    except KeyboardInterrupt:
        if not pieces:
            raise
        reached = float(np.max(pieces[-1].end.t))
        warnings.warn(
            f"interrupted at t = {reached:g} s of {t0 + duration:g} s; the pieces until then are returned", stacklevel=2
        )
    return jax.tree.map(np.asarray, joined(pieces))


def _pieces(system, q, v, duration, dt, chunk, control, t0, folder, options) -> Iterator[Trajectory | Recording]:
    count, per_chunk = round(duration / chunk), round(chunk / dt)
    if count < 1 or abs(count * chunk - duration) > 1e-6 * duration:
        raise ValueError(f"duration = {duration} s is no whole number of chunks of {chunk} s.")
    held = None
    if not (control is None or callable(control) or isinstance(control, StatefulControl)):
        held = jnp.asarray(control)
        if len(held) != count * per_chunk:
            raise ValueError(f"control has {len(held)} rows; expected one a step, {count * per_chunk}.")
    if isinstance(q, State):
        state = q
    else:
        q = jnp.asarray(q)
        state = State(jnp.asarray(t0, q.dtype), q, jnp.zeros((*q.shape[:-1], system.nv), q.dtype) if v is None else v)
    origin, batched = float(np.max(np.asarray(state.t))), jnp.ndim(state.q) == 2

    def advance(state, forces):
        def one(q, v, memory, z, past):
            start = State(state.t, q, v, memory, z, past)
            return simulate(system, start, duration=chunk, dt=dt, control=forces, **options)

        return (jax.vmap(one) if batched else one)(state.q, state.v, state.memory, state.z, state.past)

    path = None if folder is None else Path(folder)
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
    run = _fingerprint(system, state, control, (duration, dt, chunk, sorted(options.items(), key=str)))
    for i in range(count):
        file = None if path is None else path / f"piece{i:05d}.pkl"
        if file is not None and file.exists():
            known, piece = pickle.loads(file.read_bytes())
            if known != run:
                raise ValueError(f"{file} belongs to another run (system, start, control or options differ).")
        else:
            forces = control if held is None else held[i * per_chunk : (i + 1) * per_chunk]
            piece = jax.tree.map(np.asarray, advance(state, forces))
            if file is not None:
                partial = file.with_suffix(".part")
                partial.write_bytes(pickle.dumps((run, piece)))
                partial.replace(file)  # so that a file is whole or not there
        yield piece
        # the clock of a chunk starts at a whole number of chunks, so that rounding does not add up
        t = jnp.asarray(origin + (i + 1) * chunk, state.q.dtype)
        state = State(t, piece.end.q, piece.end.v, piece.end.memory, piece.end.z, piece.end.past)


def _fingerprint(*parts: Any) -> str:
    """The same for the same numbers and names."""
    digest = hashlib.sha256()
    leaves, structure = jax.tree.flatten(parts)
    digest.update(str(structure).encode())
    for leaf in leaves:
        number = isinstance(leaf, (jax.Array, np.ndarray, int, float))
        digest.update(np.asarray(leaf).tobytes() if number else getattr(leaf, "__qualname__", str(leaf)).encode())
    return digest.hexdigest()
