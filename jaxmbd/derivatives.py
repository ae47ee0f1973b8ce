"""Full derivatives of inverse and forward dynamics in closed form.

With a joint's mode S, its inboard body's velocity V and (spatial) acceleration A, and what is composed of all bodies
outboard of slot i or j - inertia I, twice the Coriolis map B, force f - the entries for i outboard of j are

    dtau_i/dq_j = I S_i . P_j + B^T S_i . Q_j,      Q = V x S,   P = A x S + V x Q
    dtau_j/dq_i = S_j . (I P_i + B Q_i + S_i x* f)
    dtau_i/dv_j = I S_i . R_j + B^T S_i . S_j,      R = Q + (velocity of the joint's outboard body) x S
    dtau_j/dv_i = S_j . (I R_i + B S_i)

(Carpentier & Mansard 2018; Singh, Russell & Wensing 2022, in world axes at each slot's own origin). B takes angular
velocities alone: a 3x3 matrix for the moments, and the linear momentum for the forces. For forward dynamics
da/dq = -M^-1 dtau/dq, da/dv = -M^-1 dtau/dv, with M^-1 from the factors of the articulated-body algorithm.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxmbd import aba
from jaxmbd.batch_last import batch_last
from jaxmbd.constraints.dynamics import forward_dynamics
from jaxmbd.entries import entries
from jaxmbd.factor import Factor, solve
from jaxmbd.forces import Wrench, additive_stiffness, passive_forces, quaternion_stiffness
from jaxmbd.kinematics import at_base, move, promote
from jaxmbd.manifold import integrate
from jaxmbd.newton_euler import inertial_force
from jaxmbd.packing import (
    Packed,
    accelerations_to_slots,
    from_slots,
    full_velocities,
    locate,
    pack,
    reduced_forces,
    to_slots,
)
from jaxmbd.pairs import Own, Part, pairs
from jaxmbd.rnea import inverse_dynamics, up
from jaxmbd.spatial import Force, Inertia, Mat3, Motion, Scalar, Sym3, Vec3
from jaxmbd.system import System
from jaxmbd.tree import Tree, ancestors, packs, scan_inward, scan_outward


class ForwardDerivatives(NamedTuple):
    """Derivatives of the accelerations, rows as in v: [rad/s^2, m/s^2] per unit of the column.

    Columns of `q` are motions along `integrate`, in each joint's own velocity coordinates [rad, m], of `v` velocities
    [rad/s, m/s], of `tau` forces [N m, N].
    """

    q: Float[Array, "nv nv"]
    v: Float[Array, "nv nv"]
    tau: Float[Array, "nv nv"]
    """M^-1 of a tree."""


class InverseDerivatives(NamedTuple):
    """Derivatives of the generalised forces, rows as in v: [N m, N] per unit of the column.

    Columns of `q` are motions along `integrate`, in each joint's own velocity coordinates [rad, m], of `v` velocities
    [rad/s, m/s], of `a` accelerations [rad/s^2, m/s^2].
    """

    q: Float[Array, "nv nv"]
    v: Float[Array, "nv nv"]
    a: Float[Array, "nv nv"]
    """The mass matrix."""


@jax.jit
def inverse_dynamics_derivatives(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    a: Float[Array, " nv"],
    wrenches: tuple[Wrench, ...] = (),
    t: float | Float[Array, ""] = 0.0,
) -> InverseDerivatives:
    """Derivatives of `inverse_dynamics` with respect to q (along `integrate`), v and a.

    Args: those of `inverse_dynamics`.

    Returns: (dtau/dq, dtau/dv, M), unpackable and by name.
    Cost: O(nv^2); with wrenches, mapped joints or couplings on curves nv forward derivatives, O(nv^2) too but slower.
    Source: Singh, Russell & Wensing (2022).
    """
    q, v, a, t, system = promote(system, q, v, a, t)
    if not _is_plain(system, wrenches):
        return InverseDerivatives(*_along(inverse_dynamics, system, q, v, a, wrenches, t))
    return InverseDerivatives(*_tables(system, pack(system), q, v, a, t))


@jax.jit
def forward_dynamics_derivatives(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    wrenches: tuple[Wrench, ...] = (),
    t: float | Float[Array, ""] = 0.0,
) -> ForwardDerivatives:
    """Derivatives of `forward_dynamics` with respect to q (along `integrate`), v and tau.

    Args: those of `forward_dynamics`.

    Returns: (da/dq, da/dv, da/dtau), unpackable and by name.
    Cost: O(nv^2) and one product of nv x nv matrices; with constraints, drives, wrenches, mapped joints or couplings on
      curves nv forward derivatives instead.
    Source: Carpentier & Mansard (2018).
    """
    q, v, tau, t, system = promote(system, q, v, tau, t)
    if not _is_plain(system, wrenches):
        return ForwardDerivatives(*_along(forward_dynamics, system, q, v, tau, wrenches, t))
    packed, tree = pack(system), system.topology.layout.tree
    a, _, factor = aba._hybrid(system, packed, q, v, tau, None, (), t)
    by_q, by_v, M = _tables(system, packed, q, v, a, t)
    if isinstance(factor, Factor):
        residuals = _ordered(system, batch_last(partial(_residuals, tree), factor))
        inverse = _product(residuals.T, residuals / from_slots(system, factor.d)[:, None])
    else:
        inverse = jax.vmap(partial(solve, system, factor), 1, 1)(jnp.eye(system.nv, dtype=q.dtype))
    inverse = _inverse_of(M, inverse)
    return ForwardDerivatives(_product(inverse, -by_q), _product(inverse, -by_v), inverse)


@jax.custom_jvp
def _product(A: Float[Array, "n k"], B: Float[Array, "k m"]) -> Float[Array, "n m"]:
    """A B; on a CPU column by column, since a routine cannot call the library that XLA takes for products.

    Its derivative is that of a product: a reverse pass keeps no partial sums.
    """
    if packs():
        return A @ B

    def step(total, xs):
        column, row = xs
        return total + column[:, None] * row[None], None

    return lax.scan(step, jnp.zeros((len(A), B.shape[1]), A.dtype), (A.T, B), unroll=8)[0]


@_product.defjvp
def _product_jvp(primals, tangents):
    (A, B), (dA, dB) = primals, tangents
    return _product(A, B), dA @ B + A @ dB


@jax.custom_jvp
def _inverse_of(M: Float[Array, "nv nv"], inverse: Float[Array, "nv nv"]) -> Float[Array, "nv nv"]:
    """M^-1, known already without a derivative (factors have none): dM^-1 = -M^-1 dM M^-1."""
    return inverse


@_inverse_of.defjvp
def _inverse_of_jvp(primals, tangents):
    inverse = _inverse_of(*primals)
    return inverse, -inverse @ tangents[0] @ inverse


def _is_plain(system: System, wrenches) -> bool:
    """Whether the closed forms hold."""
    topology = system.topology
    special = topology.constraints or topology.drives or topology.curves or topology.layout.mapped
    return not (special or wrenches)


def _along(dynamics, system, q, v, x, wrenches, t):
    """Derivatives of a function of the state, velocity by velocity."""
    still = jnp.zeros_like(v)

    def moved(u, v, x):
        return dynamics(system, integrate(system, q, u), v, x, wrenches, t)

    return jax.jacfwd(moved, (0, 1, 2))(still, v, x)


def _tables(system: System, packed: Packed, q, v, a, t) -> tuple[Float[Array, "nv nv"], ...]:
    """dtau/dq, dtau/dv and M, passive forces and armature included."""
    part = _parts(system, packed, q, v, a, t)
    if not system.topology.couplings:
        order = system.topology.layout.slot_velocity
        by_v = jax.jvp(partial(passive_forces, system, q), (v,), (jnp.ones_like(v),))[1]  # velocity by velocity
        stiffness, damping, armature = (
            entries(x, order) for x in (additive_stiffness(system, q), -by_v, system.armature)
        )
        turning = quaternion_stiffness(system, q) if system.topology.layout.quaternion else None
        own = Own(stiffness, damping, armature, turning)
        tables = batch_last(partial(pairs, system), (part, own), at=-2)
        return tuple(_ordered(system, table) for table in tables)
    passive_q, passive_v = _passive(system, q, v)
    G = jax.vmap(partial(full_velocities, system), 1, 1)(jnp.eye(system.nv, dtype=q.dtype))
    tables = batch_last(partial(pairs, system), (part, None), at=-2)
    by_q, by_v, M = (G.T @ _ordered(system, table) @ G for table in tables)
    return by_q - passive_q.T, by_v - passive_v.T, M + G.T @ (system.armature[:, None] * G)


def _passive(system: System, q, v) -> tuple[Float[Array, "nv nv"], Float[Array, "nv nv"]]:
    """How the passive forces vary with q and v: row k belongs to velocity k."""

    def forces(u, v):
        return reduced_forces(system, passive_forces(system, integrate(system, q, u), v))

    seeds, still = jnp.eye(system.nv, dtype=q.dtype), jnp.zeros_like(v)
    by_u, by_v = jax.linearize(lambda u: forces(u, v), still)[1], jax.linearize(lambda v: forces(still, v), v)[1]
    return jax.vmap(by_u)(seeds), jax.vmap(by_v)(seeds)


def _ordered(system: System, table: Float[Array, "slots slots"]) -> Float[Array, "nv_full nv_full"]:
    """Rows and columns in declaration order."""
    order = system.topology.layout.velocity_slot
    return table if np.array_equal(order, np.arange(len(order))) else table[order][:, order]


class _Composed(NamedTuple):
    """Sums over the bodies outboard of a slot; and the velocity outboard of its joint, with the number 1 beside it."""

    inertia: Inertia
    coriolis: Mat3
    momentum: Vec3
    force: Force
    outer: Motion | None
    known: Scalar | None

    def shift(self, l: Vec3) -> _Composed:
        p = self.momentum
        arm = Mat3.outer(p, l) - l.dot(p) * Mat3.identity()
        return self._replace(
            inertia=self.inertia.shift(l), coriolis=self.coriolis - 2.0 * arm, force=self.force.shift(l)
        )

    def coriolis_force(self, omega: Vec3) -> Force:
        return Force(self.coriolis @ omega, -2.0 * self.momentum.cross(omega))


def _parts(system: System, packed: Packed, q, v, a, t) -> Part:
    """Two sweeps: motion outwards, composed quantities inwards."""
    x, tree = locate(system, packed, q, v), system.topology.layout.tree
    several = x.extra is not None

    def outward(parent, xs):
        moving, position, linear, joint = parent
        slot, x, v, a = xs
        state, l, mode = move(moving, slot, x, v, a)
        S = Motion(mode.motion.angular, mode.motion.linear_part)
        linear = linear + moving.omega.cross(l)
        at_origin = moving.acceleration.shift(l).linear_part + moving.omega.cross(moving.omega.cross(l))
        V = Motion(moving.omega, linear)
        A = Motion(moving.acceleration.angular, at_origin - moving.omega.cross(linear))
        if several:
            V, A = jax.tree.map(partial(jnp.where, x.extra.enters), (V, A), joint)
        Q = _bracket(V, S)
        linear = linear + v * S.linear_part
        inertia = slot.inertia.rotated(state.rotation)
        rotor = None if slot.rotor is None else state.rotation @ slot.rotor
        own = Motion(state.omega, linear)
        force = inertial_force(inertia, state.rates, rotor)
        composed = _Composed(inertia, *_coriolis(inertia, own, rotor), force, None, None)
        y = position + l, l, S, Q, _bracket(A, S) + _bracket(V, Q), own, composed, x.extra.enters if several else None
        return (state, position + l, linear, (V, A) if several else None), y

    base = at_base(system, x, t, up(system))
    zero = Vec3.zero()
    still = Motion(zero, zero)
    start = (base, zero, zero, (still, still) if several else None)
    xs = (packed.slots, x, to_slots(system, v), accelerations_to_slots(system, a))
    position, l, S, Q, P, own, composed, enters = scan_outward(tree, outward, start, xs)

    def inward(outboard, xs):
        own, composed, l, S, Q, P, enters = xs
        total = jax.tree.map(jnp.add, outboard._replace(outer=None, known=None), composed)
        velocity = own
        if several:
            velocity = jax.tree.map(lambda outer, own: jnp.where(outboard.known > 0, outer, own), outboard.outer, own)
        I, R = total.inertia, Q + _bracket(velocity, S)
        turned = Force(
            S.angular.cross(total.force.moment) + S.linear_part.cross(total.force.force),
            S.angular.cross(total.force.force),
        )
        by_q = I @ P + total.coriolis_force(Q.angular) + turned
        by_v = I @ R + total.coriolis_force(S.angular)
        down = total.coriolis.T @ S.angular - 2.0 * S.linear_part.cross(total.momentum)
        if several:
            inside = jnp.where(enters, 0.0, 1.0)
            total = total._replace(outer=inside * velocity, known=inside)
        return total.shift(l), (R, I @ S, down, by_q, by_v)

    nothing = _Composed(
        Inertia(0.0, zero, Sym3(*[0.0] * 6)),
        Mat3(*[0.0] * 9),
        zero,
        Force(zero, zero),
        still if several else None,
        0.0 if several else None,
    )
    R, inertia_S, down, by_q, by_v = scan_inward(tree, inward, nothing, (own, composed, l, S, Q, P, enters))
    return Part(position, S, Q, P, R, inertia_S, down, by_q, by_v)


def _coriolis(inertia: Inertia, V: Motion, rotor: Vec3 | None) -> tuple[Mat3, Vec3]:
    """The map 2 B of a body for moments, and its linear momentum."""
    h, J, omega = inertia.first_moment, inertia.tensor, V.angular
    momentum = inertia.mass * V.linear_part + omega.cross(h)
    spin = J @ omega + h.cross(V.linear_part)
    if rotor is not None:
        spin = spin + rotor
    turning = Mat3.of_columns(*(omega.cross(column) for column in J.columns))
    moved = Mat3.outer(h, V.linear_part)
    rate = turning + turning.T - moved - moved.T + 2.0 * h.dot(V.linear_part) * Mat3.identity()
    x, y, z = spin.x, spin.y, spin.z
    return rate - Mat3(0.0 * x, -z, y, z, 0.0 * x, -x, -y, x, 0.0 * x), momentum


def _bracket(V: Motion, S: Motion) -> Motion:
    """V x S, the rate of a motion S that is carried along with V."""
    return Motion(V.angular.cross(S.angular), V.angular.cross(S.linear_part) + V.linear_part.cross(S.angular))


def _residuals(tree: Tree, factor: Factor) -> Float[Array, "slots slots *batch"]:
    """L^-1 of M = L D L^T, column by column in sweep order: 1 - H Psi K (Jain & Rodriguez 1990, Lemma 6.3).

    The columns are swept inwards together. None meets another on its way to the base, so that the forces z of a column
    wait in their place where branches join, and need no registers.
    """
    n, batch = len(factor.d), factor.d.shape[1:]
    dtype, trailing = factor.d.dtype, (1,) * len(batch)
    outboard = ancestors(tree.parents).reshape(n, n, *trailing)
    branched = not np.array_equal(tree.parents, np.arange(n) - 1)
    one = np.eye(n).reshape(n, n, *trailing)

    def step(z, xs):
        (l, mode, g), one, outboard = xs
        e = one - mode.motion.dot(z)
        new = (z + e * g).shift(l)
        if branched:
            e = jnp.where(outboard, e, 0.0)
            new = jax.tree.map(partial(jnp.where, outboard), new, z)
        return new, e

    zero = jnp.zeros((n, *batch), dtype)
    still = Force(Vec3(zero, zero, zero), Vec3(zero, zero, zero))
    rows = jax.tree.map(lambda x: x[:, None], (factor.l, factor.mode, factor.g))
    return lax.scan(step, still, (rows, jnp.asarray(one, dtype), outboard), reverse=True)[1]
