"""The configuration manifold: moving along velocities, differences of configurations, random states.

Quaternion joints move by the exponential: spherical joints on SO(3), free joints on SE(3) (a screw motion at constant
body velocity); all other coordinates add, but for joints with an N(q) of their own, where q_dot = N(q) v is integrated
for constant v to fourth order. Steps are in velocity coordinates: outboard axes for quaternion joints.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxmbd import rotation as so3
from jaxmbd.entries import arranged, entries
from jaxmbd.joints import Mapped
from jaxmbd.kinematics import promote
from jaxmbd.packing import mapped_joint
from jaxmbd.system import System


@jax.jit
def integrate(
    system: System, q: Float[Array, " nq"], v: Float[Array, " nv"], h: float | Float[Array, ""] = 1.0
) -> Float[Array, " nq"]:
    """Coordinates after moving for a time h [s] at constant velocity v (in each joint's own axes)."""
    q, v, _, h, _ = promote(system, q, v, None, h)
    at, step = system.topology.layout.group, h * v
    if at.additive:
        return q + step
    turn, u = entries(q, at.turn_q), entries(step, at.turn_v)
    slide, w = entries(q, at.slide_q), entries(step, at.slide_v)
    forward = _apply(so3.matrix(entries(turn, at.slide_turn)), so3.left_jacobian(entries(u, at.slide_turn), w))
    plain = entries(q, at.plain_q) + entries(step, at.plain_v)
    own = [_flow(mapped_joint(system, i), q[at_q], step[at_v]) for i, at_q, at_v in at.quasi]
    return arranged(at.q_order, plain, so3.multiply(turn, so3.exp(u)), slide + forward, *own)


def _flow(joint: Mapped, q, u):
    """q after unit time at constant velocity u: the classical Runge-Kutta method for q' = N(q) u."""
    half = q + 0.5 * (first := joint.N(q) @ u)
    half = q + 0.5 * (second := joint.N(half) @ u)
    end = q + (third := joint.N(half) @ u)
    return q + (first + 2.0 * (second + third) + joint.N(end) @ u) / 6.0


@jax.jit
def difference(system: System, q0: Float[Array, " nq"], q1: Float[Array, " nq"]) -> Float[Array, " nv"]:
    """The step from q0 to q1: `integrate` along it, with h = 1, gives q1 up to a quaternion's sign.

    Raises: ValueError for joints with an N(q) of their own: constant velocities need not lead from one to the other.
    """
    q0, _, _, _, _ = promote(system, q0, None, None, 0.0)
    q1, _, _, _, _ = promote(system, q1, None, None, 0.0)
    at = system.topology.layout.group
    if at.quasi:
        names = ", ".join(repr(system.topology.joints[i].name) for i, *_ in at.quasi)
        raise ValueError(
            f"No difference of configurations with joint {names}: it has its own N(q), and constant velocities need "
            "not lead from one configuration to the other. Subtract its coordinates themselves."
        )
    if at.additive:
        return q1 - q0
    turn = so3.normalize(entries(q0, at.turn_q))
    u = so3.log(so3.multiply(so3.conjugate(turn), entries(q1, at.turn_q)))
    back = _apply(
        jnp.swapaxes(so3.matrix(entries(turn, at.slide_turn)), -1, -2),
        entries(q1, at.slide_q) - entries(q0, at.slide_q),
    )
    slide = so3.left_jacobian_inverse(entries(u, at.slide_turn), back)
    return arranged(at.v_order, entries(q1, at.plain_q) - entries(q0, at.plain_q), u, slide)


@jax.jit
def q_dot(system: System, q: Float[Array, " nq"], v: Float[Array, " nv"]) -> Float[Array, " nq"]:
    """Rate of the coordinates, q_dot = N(q) v (Schwertassek & Senger 1988, Eq. 3.23)."""
    q, v, _, _, _ = promote(system, q, v, None, 0.0)
    at = system.topology.layout.group
    if at.additive:
        return v
    turn = entries(q, at.turn_q)
    spin = jnp.concatenate([jnp.zeros((len(turn), 1), v.dtype), 0.5 * entries(v, at.turn_v)], -1)
    slide = _apply(so3.matrix(entries(turn, at.slide_turn)), entries(v, at.slide_v))
    own = [mapped_joint(system, i).N(q[at_q]) @ v[at_v] for i, at_q, at_v in at.quasi]
    return arranged(at.q_order, entries(v, at.plain_v), so3.multiply(turn, spin), slide, *own)


def bracket(system: System, u: Float[Array, " nv"], w: Float[Array, " nv"]) -> Float[Array, " nv"]:
    """Lie bracket of two velocity vectors on the configuration group: zero where coordinates add.

    Zero too for joints with an N(q) of their own, which is no group: a method that stands on the bracket is of second
    order there.
    """
    at = system.topology.layout.group
    if at.additive:
        return jnp.zeros_like(w)
    turn_u, turn_w = entries(u, at.turn_v), entries(w, at.turn_v)
    slide_u, slide_w = entries(u, at.slide_v), entries(w, at.slide_v)
    slide = jnp.cross(entries(turn_u, at.slide_turn), slide_w) + jnp.cross(slide_u, entries(turn_w, at.slide_turn))
    own = [jnp.zeros_like(w[at_v]) for *_, at_v in at.quasi]
    return arranged(at.v_order, jnp.zeros_like(entries(w, at.plain_v)), jnp.cross(turn_u, turn_w), slide, *own)


def _apply(R, x):
    return jnp.einsum("nij,nj->ni", R, x)


def random_state(
    system: System, key: Key[Array, ""], spread: float = 1.0
) -> tuple[Float[Array, " nq"], Float[Array, " nv"]]:
    """Coordinates and velocities drawn at random.

    Args:
      key: a JAX random key.
      spread: standard deviation of the velocities [rad/s, m/s].

    Returns: q uniform within the limits where there are any, otherwise angles within a turn, displacements within 1 m
    and rotations uniform; v normal.
    """
    return _random_state(system, key, spread)


@jax.jit
def _random_state(system, key, spread):
    layout, dtype = system.topology.layout, system.gravity.dtype
    key_q, key_v, key_r = jax.random.split(key, 3)
    parts = []
    uniform = jax.random.uniform(key_q, (layout.nv_full,), dtype)
    gauss = jax.random.normal(key_r, (layout.nv_full + len(layout.quaternion), 4), dtype)
    for i, entry in enumerate(system.topology.joints):
        at = slice(int(layout.v_start[i]), int(layout.v_start[i + 1]))
        span = jnp.array([jnp.pi if t else 1.0 for t in entry.turning or (False,) * entry.nv], dtype)
        lower = jnp.where(jnp.isfinite(system.lower[at]), system.lower[at], -span)
        upper = jnp.where(jnp.isfinite(system.upper[at]), system.upper[at], span)
        drawn = lower + (upper - lower) * uniform[at]
        if entry.translating is not None:
            drawn = jnp.concatenate([so3.normalize(gauss[at.start]), drawn[3:]])
        if entry.quasi:
            drawn = jax.random.uniform(jax.random.fold_in(key_q, i), (entry.nq,), dtype, -1.0, 1.0)
        parts.append(drawn)
    q = jnp.concatenate(parts)[layout.q_keep] if parts else jnp.zeros(0, dtype)
    return q, spread * jax.random.normal(key_v, (system.nv,), dtype)
