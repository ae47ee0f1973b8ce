"""Assembly: from a rough guess to positions and velocities that satisfy the constraints.

Positions by Levenberg-Marquardt steps on the tangent of the configuration, with the closures' own rank-revealing
factorisation, so that redundant rows do no harm; then a few steps from the position found, through which derivatives
are taken: each step adds one order. Inverse kinematics is the assembly of a system with one constraint more for every
target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.closures import Constraint
from jaxmbd.constraints.mobility import branch as branch_of
from jaxmbd.constraints.mobility import free_velocities
from jaxmbd.constraints.rows import Rows, rows, spans
from jaxmbd.constraints.saddle import factorise, pseudo_solve
from jaxmbd.drives import driven_motion
from jaxmbd.kinematics import promote
from jaxmbd.manifold import difference, integrate
from jaxmbd.packing import pack
from jaxmbd.pose import Pose
from jaxmbd.system import System
from jaxmbd.topology import ConstraintEntry
from jaxmbd.values import Numbers, floats


class Assembly(eqx.Module):
    """A state on the constraints.

    `branch` is the sign that tells the branch (`branch`), None inside compiled functions; `residual` the size of what
    is left of each constraint [m, rad].
    """

    q: Float[Array, " nq"]
    v: Float[Array, " nv"]
    residual: Float[Array, " constraints"]
    branch: int | None = eqx.field(static=True)


def assemble(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"] | None = None,
    *,
    fixed: tuple[str, ...] = (),
    branch: int | None = None,
    starts: int = 32,
    seed: int = 0,
    t: float | Float[Array, ""] = 0.0,
) -> Assembly:
    """The position on the constraints near a guess, and the velocity on them nearest to v.

    Args:
      q: a guess, rough or good.
      v: a guess, zero when left out; corrected along the shortest way.
      fixed: joints whose coordinates and velocities stay as guessed.
      branch: 1 or -1 to ask for a branch (see `mb.branch`, with the velocities of `fixed` as the given ones); further
        starts around the guess are tried until it is met.
      starts: how many of those at most.
      seed: of their random directions.
      t: time [s].

    Returns: an `Assembly`. Its derivatives hold the branch: of the motions that keep the constraints closed the
      shortest, of the coordinates that are not fixed.
    Raises: ValueError naming the constraint that cannot be met, and by how much (outside compiled functions).
    """
    mask = np.ones(system.nv)
    for name in fixed:
        mask[system.v_slice(name)] = 0.0
    given = tuple(int(i) for i in np.flatnonzero(mask == 0.0))
    if not system.constraints:
        raise ValueError("This system has no constraints, so there is nothing to assemble.")
    traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((system, q, v, t)))
    if traced and branch is not None:
        raise ValueError("A branch can be chosen outside compiled functions only; inside, the guess chooses it.")
    guess, tried, best = jnp.asarray(q), 0, None
    while True:
        q_closed, v_closed, left = _assembled(system, guess, v, given, t)
        if traced:
            return Assembly(q_closed, v_closed, left, None)
        found = branch_of(system, q_closed, given or None, t)
        closed = bool(left.max() < 1e2 * np.sqrt(np.finfo(left.dtype).eps))
        best = left if best is None or left.max() < best.max() else best
        if closed and branch in (None, found):
            return Assembly(q_closed, v_closed, left, found)
        if tried == starts or branch is None and tried >= 4:
            break
        tried += 1
        step = np.random.default_rng([seed, tried]).normal(size=system.nv) * mask * (0.1 if branch is None else 1.5)
        guess = integrate(system, jnp.asarray(q), jnp.asarray(step, left.dtype))
    if float(best.max()) < 1e2 * np.sqrt(np.finfo(best.dtype).eps):
        raise ValueError(
            f"The mechanism was assembled, but in {tried} starts never on branch {branch} (found {found}). "
            "Give a guess nearer to that branch, or more starts."
        )
    worst = int(np.argmax(best))
    entry = system.topology.constraints[worst]
    raise ValueError(
        f"Constraint {entry.name!r} ({entry.kind}) cannot be met from this guess: {float(best[worst]):.3g} m or rad "
        "are left. Check lengths and frames, free some of the fixed joints, or start from another guess."
    )


class _Search(NamedTuple):
    """Where the iteration stands: the best position with its rows, and the damping of the next step."""

    q: Float[Array, " nq"]
    rows: Rows
    damping: Float[Array, ""]
    count: Float[Array, ""]


@partial(jax.jit, static_argnames="fixed")
def _assembled(system: System, q, v, fixed: tuple[int, ...], t):
    q, v, _, t, system = promote(system, q, v, None, t)
    packed, small = pack(system), float(np.finfo(q.dtype).eps)
    q, v, _ = driven_motion(system, q, v, t)
    held = [i for i in range(system.nv) if i in fixed or i not in free_velocities(system)]
    free = jnp.ones_like(v).at[np.array(held, int)].set(0.0)
    still = lax.stop_gradient((system, packed, q, t))

    def rows_at(q):
        r = rows(still[0], still[1], q, jnp.zeros_like(free), still[3])
        return r._replace(jacobian=r.jacobian * free[None])

    def improve(s: _Search) -> _Search:
        """Levenberg-Marquardt: the shortest step that closes the linearised rows, damped until the residual falls."""
        A = factorise(s.rows.jacobian, s.rows.jacobian, s.rows.mesh, s.damping)
        step = -pseudo_solve(A, s.rows.residual) @ A.motion
        step = step / jnp.maximum(1.0, jnp.sqrt(jnp.sum(step**2)))  # at most a radian at once
        candidate = integrate(still[0], s.q, step)
        r = rows_at(candidate)
        better = jnp.sum(r.residual**2) < jnp.sum(s.rows.residual**2)
        q, r = jax.tree.map(lambda a, b: jnp.where(better, a, b), (candidate, r), (s.q, s.rows))
        return _Search(q, r, jnp.where(better, 0.2 * s.damping, jnp.maximum(5.0 * s.damping, 1e-3)), s.count + 1.0)

    def going(s: _Search):
        return (s.count < 200.0) & (jnp.sum(s.rows.residual**2) > (4.0 * small) ** 2) & (s.damping < 1e6)

    zero = jnp.zeros((), q.dtype)
    found = lax.stop_gradient(lax.while_loop(going, improve, _Search(still[2], rows_at(still[2]), zero + 1e-2, zero)))
    A = factorise(found.rows.jacobian, found.rows.jacobian, found.rows.mesh)

    # from the position found, chord steps: the factor is frozen, the rows are not, and each step adds an order
    u = lax.stop_gradient(difference(system, q, found.q))
    closed = integrate(system, q, free * u)

    def polish(state, _):
        q, v = state
        r = rows(system, packed, q, v, t)
        q = integrate(system, q, -pseudo_solve(A, r.residual) @ A.motion)
        return (q, v - pseudo_solve(A, r.rate) @ A.motion), r.residual

    (closed, v), sizes = lax.scan(polish, (closed, v), None, length=4)
    left = jnp.stack([jnp.sqrt(jnp.sum(sizes[-1, at] ** 2)) for at in spans(system.topology)])
    return closed, v, lax.stop_gradient(left)


class Target(Constraint):
    """One frame at a given place: position alone, or orientation too."""

    position: Float[Array, "3"]
    quaternion: Float[Array, "4"] | None

    @property
    def kind(self) -> str:
        return "target"

    @property
    def rows(self) -> tuple[int, int]:
        return 3 if self.quaternion is None else 6, 0

    @property
    def takes(self) -> tuple[int, int]:
        return 1, 0

    def residual(self, at):
        off = at.position[0] - self.position
        if self.quaternion is None:
            return off
        return jnp.concatenate([off, so3.log(so3.from_matrix(so3.matrix(self.quaternion).T @ at.rotation[0]))])


def inverse_kinematics(
    system: System,
    q: Float[Array, " nq"],
    targets: Mapping[str, Pose | Numbers],
    *,
    fixed: tuple[str, ...] = (),
    t: float | Float[Array, ""] = 0.0,
) -> Assembly:
    """Coordinates near q that put frames at targets, constraints kept.

    Args:
      q: where to start; the branch follows from it.
      targets: frame -> pose in world axes, or position [m] alone.
      fixed: joints that stay.

    Returns: an `Assembly`, its residuals those of the system's constraints and then of the targets. Differentiable
      where the targets are reached.
    Raises: ValueError naming the target that cannot be reached and by how much (outside compiled functions).
    """
    records, entries = [], []
    for frame, target in targets.items():
        if isinstance(target, Pose):
            record = Target(jnp.asarray(target.position), jnp.asarray(target.quaternion))
        else:
            record = Target(jnp.asarray(floats(target)), None)
            if record.position.shape != (3,):
                raise ValueError(f"The target of {frame!r} has shape {record.position.shape}; expected (3,) or a Pose.")
        records.append(record)
        entries.append(ConstraintEntry(frame, "target", (system.frame_index(frame),), (), record.rows))
    if not records:
        raise ValueError("Inverse kinematics was given no target.")
    topology = dataclasses.replace(system.topology, constraints=(*system.topology.constraints, *entries))
    extended = dataclasses.replace(system, constraints=(*system.constraints, *records), topology=topology)
    return assemble(extended, q, fixed=fixed, t=t)
