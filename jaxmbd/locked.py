"""Locked modes of a joint whose coordinates cannot be read off a pose: mapped joints, screws with offsets.

The coordinates q of the cut joint are those of its place nearest to the relative pose, and the rows what is left of the
misfit e = [rotation; displacement] across the joint's own motions D = de/dq:

    D^T e(q) = 0,   rows L^T e(q),   L^T D = 0

The search runs on frozen numbers, from several starts; steps through which derivatives are taken follow, each of which
adds an order. D and L are those of the place found: where the joint allows the pose, e is zero, and neither the rows'
span nor the motion depends on them (implicit constraints by differentiation, Schwertassek & Senger 1988, section 3).
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxmbd.joints import Joint, Screws

_ITERATIONS = 15  # of the search from each start


def turned(R: Float[Array, "3 3"]) -> Float[Array, "3"]:
    """A rotation as three numbers: axis times 2 tan(angle / 2), zero for the identity alone."""
    w = jnp.stack([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]])
    return 2.0 * w / jnp.maximum(1.0 + jnp.trace(R), 1e-3)


def misfit(joint: Joint, q: Float[Array, " nq"], R: Float[Array, "3 3"], p: Float[Array, "3"]) -> Float[Array, "6"]:
    """What turns and moves the outboard frame of the joint at q to a relative pose, in inboard axes [rad, m]."""
    place = joint.pose(q)
    return jnp.concatenate([turned(R @ place.rotation.T), p - place.position])


def coordinates(
    joint: Joint, R: Float[Array, "3 3"], p: Float[Array, "3"]
) -> tuple[Float[Array, " nq"], Float[Array, "6 nq"]]:
    """Coordinates of the joint's place nearest to a relative pose, and de/dq there, which is frozen.

    Accuracy: derivatives of q up to the third order.
    """
    still, at = lax.stop_gradient((joint, (R, p)))

    def derivative(q):
        return jax.jacfwd(lambda q: misfit(still, q, *at))(q)

    def search(q):
        def improve(state, _):
            q, e, damping = state
            D = derivative(q)
            candidate = q - _least(D, damping) @ e
            e_new = misfit(still, candidate, *at)
            better = e_new @ e_new < e @ e
            q, e = jax.tree.map(lambda a, b: jnp.where(better, a, b), (candidate, e_new), (q, e))
            return (q, e, jnp.where(better, 0.1 * damping, 10.0 * damping)), None

        first = q, misfit(still, q, *at), jnp.asarray(1e-2, q.dtype)
        (q, e, _), _ = lax.scan(improve, first, None, length=_ITERATIONS)
        return q, e @ e

    found, left = jax.vmap(search)(jnp.asarray(_starts(joint), p.dtype))
    q = lax.stop_gradient(found[jnp.argmin(left)])
    D = lax.stop_gradient(derivative(q))
    inverse = lax.stop_gradient(_least(D, 0.0))
    for _ in range(3):
        q = q - inverse @ misfit(joint, q, R, p)
    return q, D


def locked_rows(joint: Joint, R: Float[Array, "3 3"], p: Float[Array, "3"]) -> Float[Array, " n"]:
    """The 6 - nq numbers that vanish where the joint allows the relative pose."""
    q, D = coordinates(joint, R, p)
    return _complement(D).T @ misfit(joint, q, R, p)


def locked_rates(
    joint: Joint, R: Float[Array, "3 3"], p: Float[Array, "3"], twist: Float[Array, "6"]
) -> Float[Array, " n"]:
    """The nq - nv numbers that vanish where a joint with fewer speeds than coordinates allows a relative velocity.

    Args:
      twist: relative velocity [angular; linear] at the outboard origin, in inboard axes.
    """
    q, _ = coordinates(joint, R, p)
    q_dot = -_least(jax.jacfwd(lambda q: misfit(joint, q, R, p))(q), 0.0) @ twist
    return _complement(joint.N(q)).T @ q_dot


def _starts(joint: Joint) -> Float[np.ndarray, "starts nq"]:
    """Angles all round for turning screws, slides at zero; around zero for the coordinates of a mapped joint."""
    turning = joint.turning if isinstance(joint, Screws) else (True,) * joint.nq
    reach = 2.0 * np.pi / 3.0 if isinstance(joint, Screws) else 1.5
    values = (0.0, reach, -reach) if sum(turning) <= 3 else (0.5 * reach, -0.5 * reach)
    return np.array(list(itertools.product(*(values if turns else (0.0,) for turns in turning))))


def _least(D: Float[Array, "m n"], damping) -> Float[Array, "n m"]:
    """(D^T D + damping size 1)^-1 D^T by Gauss-Jordan elimination, for few columns."""
    n, rounding = D.shape[1], float(np.finfo(D.dtype).eps)
    A = D.T @ D
    A = A + (damping + 4.0 * rounding) * jnp.trace(A) * jnp.eye(n, dtype=D.dtype)
    X = jnp.concatenate([A, D.T], 1)
    for k in range(n):
        row = X[k] / X[k, k]
        X = jnp.where((np.arange(n) == k)[:, None], row[None], X - X[:, k, None] * row[None])
    return X[:, n:]


def _complement(D: Float[Array, "m n"]) -> Float[Array, "m k"]:
    """An orthonormal basis of the directions across the columns of D, by Householder's reflections."""
    m, n = D.shape
    Q = jnp.eye(m, dtype=D.dtype)
    for k in range(n):
        x = jnp.where(np.arange(m) >= k, D[:, k], 0.0)
        sign = jnp.where(x[k] < 0.0, -1.0, 1.0)
        v = x.at[k].add(sign * jnp.sqrt(jnp.maximum(x @ x, np.finfo(D.dtype).tiny)))
        scale = 2.0 / jnp.maximum(v @ v, np.finfo(D.dtype).tiny)
        D = D - scale * v[:, None] * (v @ D)[None]
        Q = Q - scale * (Q @ v)[:, None] * v[None]
    return Q[:, n:]
