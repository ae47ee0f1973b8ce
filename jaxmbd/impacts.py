"""Impacts: jumps of the velocities where contacts close, with restitution and friction.

All contacts are solved together in terms of their impulses, through the matrix W = J M^-1 J^T that tells how each one's
impulse moves every other; constraints of the system enter M^-1 (`jaxmbd/constraints/impulsive.py`).
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.constraints.dynamics import ClosureWrenches, wrenches_of
from jaxmbd.constraints.impulsive import instant, jump
from jaxmbd.crba import coupling_matrix
from jaxmbd.factor import inverse_mass_product
from jaxmbd.jacobian import point_jacobian
from jaxmbd.kinematics import SlotPlaces, base_motion, promote, slot_places
from jaxmbd.packing import Packed, pack
from jaxmbd.system import System
from jaxmbd.tree import ancestors
from jaxmbd.values import Numbers, concrete, shape

SWEEPS = 200  # of the projected Gauss-Seidel iteration that finds which contacts act


class Contact(eqx.Module):
    """A point of one body that may strike another (the world when left out) at a surface with a given normal.

    `normal` points from the other body towards this one, in the axes of `other`; `point` is in the frame's own axes.
    """

    normal: Float[Array, "3"]
    point: Float[Array, "3"]
    restitution: Float[Array, ""]
    friction: Float[Array, ""]
    frame: str = eqx.field(static=True)
    other: str = eqx.field(static=True)

    def __init__(
        self,
        frame: str,
        normal: Numbers = (0.0, 0.0, 1.0),
        point: Numbers = (0.0, 0.0, 0.0),
        restitution: Numbers = 0.0,
        friction: Numbers = 0.0,
        other: str = "world",
    ):
        """Args:
        frame: link or frame that carries the point.
        normal: direction, normalised on use.
        point: [m].
        restitution: Newton's coefficient, 0 (plastic) to 1 (elastic).
        friction: coefficient of dry friction.
        other: link or frame that is struck.
        """
        for name, value, size, upper in (
            ("normal", normal, (3,), None),
            ("point", point, (3,), None),
            ("restitution", restitution, (), 1.0),
            ("friction", friction, (), jnp.inf),
        ):
            known = concrete(value)
            if shape(value) != size or (upper is not None and known is not None and not 0.0 <= known <= upper):
                expected = f"shape {size}" if upper is None else f"one number from 0 to {upper:g}"
                raise ValueError(f"Contact of {frame!r}: {name} is {value}; expected {expected}.")
        self.frame, self.other = frame, other
        self.normal, self.point = jnp.asarray(normal, float), jnp.asarray(point, float)
        self.restitution, self.friction = jnp.asarray(restitution, float), jnp.asarray(friction, float)


class Impact(eqx.Module):
    """Velocities just after an impact, and the impulses of every contact [N s]: along its normal, and across it."""

    v: Float[Array, " nv"]
    normal: Float[Array, " contacts"]
    tangential: Float[Array, "contacts 3"]
    """In world axes, on the body of the contact's frame."""
    closures: ClosureWrenches | None = None
    """Impulses of closures and other constraints, as `closure_impulses` gives them; None in a tree."""


@jax.jit
def impact(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    contacts: tuple[Contact, ...],
    t: float | Float[Array, ""] = 0.0,
) -> Impact:
    """Velocities after simultaneous impacts at closed contacts.

    In three phases, none of which adds energy:

    1. Along the normals, all contacts together: after it no contact closes, and one that carries an impulse opens with
       `restitution` times the speed at which it closed (Newton's law). Where differing coefficients would add energy,
       the impulses are taken back towards the plastic ones until the energy is kept.
    2. Across: the impulses p that would stop all sliding, each scaled by c / sqrt(c^2 + |p|^2) with c = friction times
       the normal impulse: a smooth form of |p| <= c.
    3. Plastic along the normals once more, since friction may have pressed contacts together.

    Args:
      q: coordinates.
      v: velocities just before.
      contacts: points that touch; that they do is for the caller to know. Contacts that open stay out of it.
      t: time [s], where the base moves.

    Joints driven by a law keep their velocities. Impulses of redundant contacts are those of least norm; directions in
    which drives and constraints let a contact not move take no impulse. Constraints hold throughout: velocities that
    break them are put right first.
    """
    q, v, _, t, system = promote(system, q, v, None, t)
    packed = pack(system)
    axes, J = _rows(system, packed, q, contacts, t)  # [contacts, 3, 3], [contacts, 3, nv]; the normal last
    n = len(contacts)
    driven = system.topology.layout.driven
    J_free = jnp.where(driven[None], 0.0, J.reshape(3 * n, -1))
    mask = jnp.asarray(driven) if system.topology.drives else None
    B = jax.vmap(inverse_mass_product(system, packed, q, mask))(J_free)
    W, multipliers, per_contact = J_free @ B.T, jnp.zeros(0, q.dtype), jnp.zeros((3 * n, 0), q.dtype)
    if system.constraints:
        at = instant(system, packed, q, v, t, mask)
        right, multipliers = jump(system, packed, q, at, jnp.zeros_like(v), at.rate)
        v, tree = v + right, jnp.diagonal(W)
        B, per_contact = jax.vmap(lambda row: jump(system, packed, q, at, row, jnp.zeros_like(at.rate)))(J_free)
        # what is left of a blocked direction is rounding
        moves = jnp.sum(J_free * B, 1) > jnp.finfo(q.dtype).eps ** 0.7 * tree
        B, per_contact = jnp.where(moves[:, None], B, 0.0), jnp.where(moves[:, None], per_contact, 0.0)
        J = jnp.where(moves.reshape(n, 3, 1), J, 0.0)
        J_free = jnp.where(moves[:, None], J_free, 0.0)
        W = J_free @ B.T
    along = 3 * jnp.arange(n) + 2
    across = jnp.array([3 * i + k for i in range(n) for k in (0, 1)])
    W_n, W_t = W[along][:, along], W[across][:, across]
    restitution = jnp.stack([c.restitution for c in contacts]).astype(q.dtype)
    friction = jnp.stack([c.friction for c in contacts]).astype(q.dtype)

    closing = J[:, 2] @ v
    plastic = _complementary(W_n, closing)
    normal = _complementary(W_n, closing - restitution * jnp.maximum(-closing, 0.0))
    normal = _not_gaining(W_n, closing, plastic, normal)
    v = v + normal @ B[along]

    sliding = J[:, :2].reshape(2 * n, -1) @ v
    stop = -_least(W_t, sliding).reshape(n, 2)
    limit = friction * normal
    size = jnp.sum(stop * stop, -1)
    scale = limit / jnp.sqrt(limit**2 + size + jnp.finfo(q.dtype).tiny)
    across_impulse = (scale[:, None] * stop).reshape(-1)
    gain, power = across_impulse @ W_t @ across_impulse, across_impulse @ sliding
    safe = jnp.where(gain > 0, gain, 1.0)
    across_impulse = jnp.where(gain > 0, jnp.clip(-power / safe, 0.0, 1.0), 0.0) * across_impulse
    v = v + across_impulse @ B[across]

    again = _complementary(W_n, J[:, 2] @ v)
    v = v + again @ B[along]
    tangential = jnp.einsum("nij,nj->ni", axes[:, :, :2], across_impulse.reshape(n, 2))
    closures = None
    if system.constraints:
        contact = jnp.concatenate([across_impulse.reshape(n, 2), (normal + again)[:, None]], 1).reshape(-1)
        closures = wrenches_of(system, packed, q, v, t, multipliers + contact @ per_contact)
    return Impact(v, normal + again, tangential, closures)


def _rows(system: System, packed: Packed, q, contacts, t) -> tuple[Float[Array, "n 3 3"], Float[Array, "n 3 nv"]]:
    """Axes of every contact in the world (columns, the normal last), and its relative velocity in them as J v."""
    places, base, layout = slot_places(system, packed, q, t), base_motion(system, t), system.topology.layout
    dtype, path = q.dtype, ancestors(layout.tree.parents)

    def pose(frame):
        i, slot = system.frame_index(frame), system.slot_of_frame(frame)
        R, p = (base.rotation, base.position) if slot < 0 else (places.rotation[slot], places.position[slot])
        return (R, p) if i < 0 else (R @ packed.frame_rotation[i], p + R @ packed.frame_position[i])

    def velocity(frame, point, places: SlotPlaces):
        slot = system.slot_of_frame(frame)
        moved = path[:, slot] if slot >= 0 else np.zeros(len(path))
        return point_jacobian(places, point)[3:] * jnp.asarray(moved, dtype)[None]

    axes, rows = [], []
    for contact in contacts:
        R, p = pose(contact.frame)
        point = p + R @ contact.point.astype(dtype)
        normal = contact.normal.astype(dtype)
        own = pose(contact.other)[0] @ so3.frame_along(normal / jnp.sqrt(normal @ normal))
        J = velocity(contact.frame, point, places) - velocity(contact.other, point, places)
        J = J[:, layout.velocity_slot]
        axes.append(own)
        rows.append(own.T @ (J @ coupling_matrix(system) if system.topology.couplings else J))
    return jnp.stack(axes), jnp.stack(rows)


def _complementary(W, u) -> Float[Array, " n"]:
    """Impulses p >= 0 with W p + u >= 0 and p (W p + u) = 0; of several, that of least norm among the acting contacts.

    A projected Gauss-Seidel iteration tells which contacts act; for them the equation is solved, and differentiated.
    """
    W_known, u_known = lax.stop_gradient((W, u))
    diagonal = jnp.diagonal(W_known)
    safe = jnp.where(diagonal > 0, diagonal, 1.0)

    def sweep(p, _):
        def one(p, i):
            new = jnp.maximum(p[i] - (W_known[i] @ p + u_known[i]) / safe[i], 0.0)
            return p.at[i].set(jnp.where(diagonal[i] > 0, new, 0.0)), None

        return lax.scan(one, p, jnp.arange(len(u)))[0], None

    p, _ = lax.scan(sweep, jnp.zeros_like(u), None, length=SWEEPS)
    acting = p > 1e2 * jnp.finfo(u.dtype).eps * jnp.max(jnp.abs(u) / safe, initial=0.0)
    both = acting[:, None] & acting[None, :]
    return jnp.where(acting, -_least(jnp.where(both, W, 0.0), jnp.where(acting, u, 0.0)), 0.0)


def _least(W, u) -> Float[Array, " n"]:
    """Solution of W p = u of (nearly) least norm where W is singular: the proximal point iteration."""
    ridge = jnp.sqrt(jnp.finfo(u.dtype).eps) * (lax.stop_gradient(jnp.max(jnp.diagonal(W))) + jnp.finfo(u.dtype).tiny)
    factor = jnp.linalg.cholesky(W + ridge * jnp.eye(len(u), dtype=u.dtype))

    def improve(p, _):
        return p + jax.scipy.linalg.cho_solve((factor, True), u - W @ p), None

    return lax.scan(improve, jnp.zeros_like(u), None, length=4)[0]


def _not_gaining(W, u, plastic, wanted):
    """The impulses nearest to the wanted, on the way from the plastic ones, that do not add energy."""

    def energy(p):
        return 0.5 * p @ W @ p + p @ u

    way = wanted - plastic
    a, b, c = 0.5 * way @ W @ way, way @ (W @ plastic + u), jnp.minimum(energy(plastic), 0.0)
    gaining = energy(wanted) > 0
    root = jnp.sqrt(jnp.where(gaining, b * b - 4.0 * a * c, 1.0))
    part = (root - b) / (2.0 * jnp.where(gaining, a, 1.0))
    return plastic + jnp.where(gaining, jnp.clip(part, 0.0, 1.0), 1.0) * way
