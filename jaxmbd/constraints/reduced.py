"""The reduced view of a constrained system: equilibria, linearisation, eigenmodes and actuator forces.

Independent velocities are chosen by the program (`mobility`). With N a basis of the allowed motions, scaled so that its
independent entries are the unit matrix, a perturbation is u = N y in position and N w + C y in velocity, where C keeps
the velocity constraints as the position moves. Then

    y_dot = independent part of (N w + C y - [v, N y]),   w_dot = independent part of (a_u N y + a_v (N w + C y))
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Complex, Float

from jaxmbd.constraints.dynamics import accelerations, inertia_at
from jaxmbd.constraints.mobility import free_velocities, mobility, pivot_columns
from jaxmbd.constraints.rows import holonomic, residual, rows
from jaxmbd.constraints.saddle import pseudo_solve
from jaxmbd.kinematics import promote
from jaxmbd.manifold import bracket, difference, integrate
from jaxmbd.packing import pack
from jaxmbd.rnea import inverse_dynamics
from jaxmbd.system import System


class Linearization(eqx.Module):
    """x_dot = A x + B tau about a state, x = [y, w]: perturbations of independent coordinates and velocities.

    `position` and `velocity` map y and w to perturbations of all coordinates (along `integrate`) and velocities.
    """

    A: Float[Array, "n n"]
    B: Float[Array, "n nv"]
    position: Float[Array, "nv nd"]
    velocity: Float[Array, "nv nw"]
    independent_position: tuple[int, ...] = eqx.field(static=True)
    independent_velocity: tuple[int, ...] = eqx.field(static=True)

    @property
    def eigenvalues(self) -> Complex[np.ndarray, " n"]:
        """Of A [1/s], by imaginary part and then by real part."""
        values = np.linalg.eigvals(np.asarray(self.A))
        return values[np.lexsort((values.real, np.round(np.abs(values.imag), 9)))]


@jax.jit
def _derivatives(system: System, q, v, tau, t):
    packed, still = pack(system), jnp.zeros_like(v)

    def motion(u, v, tau):
        return accelerations(system, packed, integrate(system, q, u), v, tau, (), t)

    a_u, a_v, a_tau = jax.jacfwd(motion, (0, 1, 2))(still, v, tau)
    if not system.constraints:
        empty = jnp.zeros((0, len(v)), v.dtype)
        return a_u, a_v, a_tau, empty, empty, jnp.zeros(0, v.dtype)
    rate_u = jax.jacfwd(lambda u: rows(system, packed, integrate(system, q, u), v, t).rate)(still)
    A, J = inertia_at(system, packed, q, v, t)
    return a_u, a_v, a_tau, J, rate_u, A.scale


def _basis(J: np.ndarray, rank: int, free: tuple[int, ...]) -> tuple[np.ndarray, tuple[int, ...]]:
    """Allowed motions with a unit matrix at the independent entries, and which those are."""
    nv = J.shape[1]
    dependent = pivot_columns(J, rank)
    independent = [i for i in free if i not in dependent]
    N = np.zeros((nv, len(independent)))
    N[independent] = np.eye(len(independent))
    if rank:
        N[dependent] = -np.linalg.lstsq(J[:, dependent], J[:, independent], rcond=None)[0]
    return N, tuple(independent)


def linearize(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"] | None = None,
    tau: Float[Array, " nv"] | None = None,
    t: float = 0.0,
) -> Linearization:
    """Linear equations of motion about a state of equilibrium or of steady motion, constraints eliminated.

    Args:
      q, v: on the constraints. Where v is not zero, the coordinates that move on must not matter (a wheel's turn, say).
      tau: forces, zero when left out.
      t: time [s].

    Works on concrete numbers, outside compiled functions.
    """
    q, v, tau, t_, system = promote(system, q, v, tau, t)
    a_u, a_v, a_tau, J, rate_u, scale = (np.asarray(x) for x in _derivatives(system, q, v, tau, t_))
    count = mobility(system, q, t)
    J, rate_u = scale[:, None] * J, scale[:, None] * rate_u
    held, free = holonomic(system.topology), free_velocities(system)
    Np, at_p = _basis(J[held], len(free) - count.position, free)
    Nv, at_v = _basis(J, len(free) - count.velocity, free)
    C = np.zeros_like(Np)
    dependent = [i for i in free if i not in at_v]
    if dependent:
        C[dependent] = -np.linalg.lstsq(J[:, dependent], rate_u @ Np, rcond=None)[0]
    carried = np.asarray(jax.vmap(lambda u: bracket(system, v, u))(jnp.asarray(Np.T))).T if Np.size else Np
    p, w = list(at_p), list(at_v)
    A = np.block([[(C - carried)[p], Nv[p]], [(a_u @ Np + a_v @ C)[w], (a_v @ Nv)[w]]])
    B = np.concatenate([np.zeros((len(p), system.nv)), a_tau[w]])
    return Linearization(jnp.asarray(A), jnp.asarray(B), jnp.asarray(Np), jnp.asarray(Nv), at_p, at_v)


def eigenmodes(
    system: System, q: Float[Array, " nq"], t: float = 0.0
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "nv n"]]:
    """Angular frequencies [rad/s] of small undamped oscillations about an equilibrium, and their shapes.

    Args:
      q: an equilibrium (`static_equilibrium`).

    Returns: frequencies in ascending order and shapes in velocity coordinates, one column a mode, largest entry 1.
    Raises: ValueError where the equilibrium is unstable.
    """
    linear = linearize(system, q, t=t)
    nd = linear.position.shape[1]
    values, vectors = np.linalg.eig(-np.asarray(linear.A)[nd:, :nd])
    squares, shapes = np.real(values), np.real(vectors)
    worst = squares.min(initial=0.0)
    if worst < -1e-6 * max(np.abs(squares).max(initial=0.0), 1.0):
        raise ValueError(
            f"This equilibrium is unstable: a motion grows at {np.sqrt(-worst):.4g} 1/s. "
            "Use linearize(...).eigenvalues."
        )
    order = np.argsort(squares)
    shapes = np.asarray(linear.position) @ shapes[:, order]
    return np.sqrt(np.maximum(squares[order], 0.0)), shapes / np.abs(shapes).max(0)[None]


def static_equilibrium(
    system: System,
    q: Float[Array, " nq"],
    tau: Float[Array, " nv"] | None = None,
    t: float | Float[Array, ""] = 0.0,
) -> Float[Array, " nq"]:
    """Coordinates near q at which the system stays at rest under forces tau, constraints kept.

    Args:
      q: a guess.
      tau: generalised forces, zero when left out.

    Returns: q, differentiable in tau and in every number of the system. Stable or not: see `linearize`.
    Raises: ValueError where none was found (outside compiled functions).
    """
    found, left = _equilibrium(system, q, tau, t)
    if not isinstance(left, Tracer) and not float(left) < np.sqrt(np.finfo(left.dtype).eps):
        raise ValueError(
            f"No equilibrium was found near this guess: accelerations and residuals of {float(left):.3g} are left. "
            "Start nearer, or check that the forces can be balanced."
        )
    return found


@jax.jit
def _equilibrium(system: System, q, tau, t):
    q, _, tau, t, system = promote(system, q, None, tau, t)
    still = jnp.zeros_like(tau)

    def unbalanced(given, q):
        system, tau, t = given
        packed = pack(system)
        a = accelerations(system, packed, q, still, tau, (), t)
        return jnp.concatenate([a, residual(system, packed, q, t)]) if system.constraints else a

    given = (system, tau, t)
    frozen, start = lax.stop_gradient((given, q))

    def derivative(q):
        return jax.jacfwd(lambda u: unbalanced(frozen, integrate(system, q, u)))(still)

    def improve(state):
        q, F, damping, count = state
        D = derivative(q)
        step = -jnp.linalg.solve(D.T @ D + damping * jnp.eye(len(still), dtype=D.dtype), D.T @ F)
        step = step / jnp.maximum(1.0, 2.0 * jnp.sqrt(jnp.sum(step**2)))
        candidate = integrate(frozen[0], q, step)
        F_new = unbalanced(frozen, candidate)
        better = jnp.sum(F_new**2) < jnp.sum(F**2)
        q, F = jax.tree.map(lambda a, b: jnp.where(better, a, b), (candidate, F_new), (q, F))
        return q, F, jnp.where(better, 0.1 * damping, 10.0 * damping), count + 1

    def going(state):
        return (jnp.sum(state[1] ** 2) > (1e2 * jnp.finfo(q.dtype).eps) ** 2) & (state[3] < 100) & (state[2] < 1e12)

    first = (start, unbalanced(frozen, start), jnp.asarray(1e-3, q.dtype), 0)
    found = lax.while_loop(going, improve, first)[0]
    inverse = jnp.linalg.pinv(derivative(found), rtol=float(np.finfo(q.dtype).eps) ** 0.5)
    found, inverse = lax.stop_gradient((found, inverse))

    def polish(q, _):
        F = unbalanced(given, q)
        return integrate(system, q, -inverse @ F), F

    at = integrate(system, q, lax.stop_gradient(difference(system, q, found)))
    found, left = lax.scan(polish, at, None, length=3)
    return found, lax.stop_gradient(jnp.max(jnp.abs(left[-1]), initial=0.0))


@partial(jax.jit, static_argnames="joints")
def actuator_forces(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    a: Float[Array, " nv"],
    joints: tuple[str, ...],
    t: float | Float[Array, ""] = 0.0,
) -> Float[Array, " nv"]:
    """Inverse dynamics of a constrained system: forces at some joints that produce an allowed acceleration.

    M a + bias = S tau + J^T lambda, of which the constraint forces take what does no work. With more joints than
    freedoms the shortest forces are returned; with too few, those that come nearest.

    Args:
      q, v, a: a motion that the constraints allow.
      joints: the actuated joints.

    Returns: generalised forces [nv], zero at all other joints.
    """
    q, v, a, t, system = promote(system, q, v, a, t)
    needed = inverse_dynamics(system, q, v, a, (), t)
    S = np.zeros((system.nv, system.nv))
    for name in joints:
        at = system.v_slice(name)
        S[at, at] = np.eye(at.stop - at.start)
    S = jnp.asarray(S[:, S.any(0)], q.dtype)
    if not system.constraints:
        return S @ (S.T @ needed)
    A, J = inertia_at(system, pack(system), q, v, t)

    def working(f):
        """What of a force the constraints do not take."""
        return f - pseudo_solve(A, A.motion @ f) @ J

    forces = jnp.linalg.pinv(jax.vmap(working, 1, 1)(S), rtol=float(np.finfo(q.dtype).eps) ** 0.5) @ working(needed)
    return S @ forces
