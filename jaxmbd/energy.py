"""Energy, momentum and centre of mass, and the Coriolis matrix that keeps Mdot - 2 C skew.

Sums over bodies of what the outward sweep leaves for each; links welded to the base do not count (but in
`System.mass`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.crba import coupling_matrix, tree_inertia
from jaxmbd.curves import linearised
from jaxmbd.forces import spring_energy
from jaxmbd.kinematics import SlotPlaces, promote, slot_motion, slot_places, vectors
from jaxmbd.limits import stops
from jaxmbd.manifold import q_dot
from jaxmbd.packing import Packed, full_coordinates, full_velocities, pack
from jaxmbd.system import System
from jaxmbd.tree import ancestors


@jax.jit
def energy(
    system: System, q: Float[Array, " nq"], v: Float[Array, " nv"], t: float | Float[Array, ""] = 0.0
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Kinetic and potential energy [J].

    The kinetic part includes armature; the potential part is gravity's, zero at the world origin, the joint
    springs' and that of acting limits. Internal rotors count with their bodies as if locked: their constant relative
    momentum adds nothing.
    """
    q, v, _, t, system = promote(system, q, v, None, t)
    return _energies(system, pack(system), q, v, t)[:2]


def lagrangian(system: System, packed: Packed, q, v, t) -> Float[Array, ""]:
    """Kinetic less potential energy of a system that is packed already, internal rotors included [J].

    A rotor of constant relative momentum h adds h . omega of its body (Routh's function, up to a constant).
    """
    kinetic, potential, rotors = _energies(system, packed, q, v, t)
    return kinetic - potential + rotors


def _energies(system, packed, q, v, t):
    """Kinetic and potential energy, and the rotors' part of the Lagrangian."""
    motion = slot_motion(system, packed, q, v, jnp.zeros_like(v), t)
    body = _masses(packed, motion.rotation)
    omega, linear = motion.velocity[:, :3], motion.velocity[:, 3:]
    rotational = jnp.einsum("ni,nij,nj->", omega, body.tensor, omega)
    mixed = 2.0 * jnp.sum(linear * jnp.cross(omega, body.first_moment))
    armature = jnp.sum(system.armature * full_velocities(system, v) ** 2)
    kinetic = 0.5 * (jnp.sum(body.mass[:, None] * linear**2) + mixed + rotational + armature)
    height = _moment(motion.position, body) @ system.gravity
    full = full_coordinates(system, q)
    potential = spring_energy(system, full) - height
    if system.limit_stiffness is not None:
        potential = potential + stops(system, full).energy
    return kinetic, potential, jnp.sum(body.rotor * omega)


@jax.jit
def com(system: System, q: Float[Array, " nq"], t: float | Float[Array, ""] = 0.0) -> Float[Array, "3"]:
    """Centre of mass of the moving bodies [m], world axes."""
    q, _, _, t, system = promote(system, q, None, None, t)
    packed = pack(system)
    places = slot_places(system, packed, q, t)
    return _com(places.position, _masses(packed, places.rotation))


@jax.jit
def momentum(
    system: System, q: Float[Array, " nq"], v: Float[Array, " nv"], t: float | Float[Array, ""] = 0.0
) -> Float[Array, "6"]:
    """Momentum of the moving bodies, world axes: [angular about their com [N m s]; linear [N s]]."""
    q, v, a, t, system = promote(system, q, v, None, t)
    packed = pack(system)
    motion = slot_motion(system, packed, q, v, a, t)
    body = _masses(packed, motion.rotation)
    omega, linear = motion.velocity[:, :3], motion.velocity[:, 3:]
    p = body.mass[:, None] * linear + jnp.cross(omega, body.first_moment)
    spin = jnp.einsum("nij,nj->ni", body.tensor, omega) + jnp.cross(body.first_moment, linear) + body.rotor
    lever = motion.position - _com(motion.position, body)[None]
    return jnp.concatenate([jnp.sum(spin + jnp.cross(lever, p), 0), jnp.sum(p, 0)])


@jax.jit
def centroidal_momentum_matrix(
    system: System, q: Float[Array, " nq"], t: float | Float[Array, ""] = 0.0
) -> Float[Array, "6 nv"]:
    """The matrix A(q) with momentum = A v: [angular about the com; linear], world axes (internal rotors aside)."""
    q, _, _, t, system = promote(system, q, None, None, t)
    packed, layout = pack(system), system.topology.layout
    places = slot_places(system, packed, q, t)
    body = _masses(packed, places.rotation)
    Jw, Ju = _body_jacobians(system, places)
    h = body.first_moment[:, :, None]
    p = body.mass[:, None, None] * Ju + jnp.cross(Jw, h, axis=1)
    lever = (places.position - _com(places.position, body)[None])[:, :, None]
    angular = jnp.einsum("nij,njk->nik", body.tensor, Jw) + jnp.cross(h, Ju, axis=1) + jnp.cross(lever, p, axis=1)
    A = jnp.concatenate([jnp.sum(angular, 0), jnp.sum(p, 0)])[:, layout.velocity_slot]
    return A @ coupling_matrix(system) if system.topology.couplings else A


@jax.jit
def coriolis_matrix(system: System, q: Float[Array, " nq"], v: Float[Array, " nv"]) -> Float[Array, "nv nv"]:
    """A matrix C(q, v) with bias_force = C v + gravity_force and Mdot - 2 C skew-symmetric (fixed base).

    C = sum over bodies of J^T (I J_dot + B J) with spatial inertias I at the bodies' origins, B V the velocity-product
    force of a body that moves with V, and I_dot - 2 B skew.
    """
    q, v, _, t, system = promote(system, q, v, None, 0.0)
    packed, layout = pack(system), system.topology.layout

    def jacobians(q):
        places = slot_places(system, packed, q, t)
        return *_body_jacobians(system, places), _masses(packed, places.rotation)

    (Jw, Ju, body), (dJw, dJu, _) = jax.jvp(jacobians, (q,), (q_dot(system, q, v),))
    omega = Jw[:, :, layout.velocity_slot] @ full_velocities(system, v)
    W, spin = so3.skew(omega), jnp.einsum("nij,nj->ni", body.tensor, omega)
    B = 0.5 * (W @ body.tensor - body.tensor @ W - so3.skew(spin)) - so3.skew(body.rotor)
    h, turning = so3.skew(body.first_moment), so3.skew(jnp.cross(omega, body.first_moment))
    moment = body.tensor @ dJw + h @ dJu + B @ Jw
    force = body.mass[:, None, None] * dJu - h @ dJw - turning @ Jw
    C = jnp.einsum("nik,nil->kl", Jw, moment) + jnp.einsum("nik,nil->kl", Ju, force)
    C = C[layout.velocity_slot][:, layout.velocity_slot]
    if not system.topology.couplings:
        return C
    G = coupling_matrix(system)
    if not system.topology.curves:
        return G.T @ C @ G
    # v_full = G(q) v: what G changes by counts too, M dG/dt
    M = tree_inertia(system, packed, q)
    turning = jax.jvp(lambda q: coupling_matrix(linearised(system, q, v)), (q,), (q_dot(system, q, v),))[1]
    return G.T @ (C @ G + M @ turning)


class _Masses(NamedTuple):
    """Inertia of every slot's body about the slot's origin, world axes: massless slots have zeros."""

    mass: Float[Array, " slots"]
    first_moment: Float[Array, "slots 3"]
    tensor: Float[Array, "slots 3 3"]
    rotor: Float[Array, "slots 3"]


def _masses(packed: Packed, R: Float[Array, "slots 3 3"]) -> _Masses:
    inertia, rotor = packed.slots.inertia, packed.slots.rotor
    h = jnp.einsum("nij,nj->ni", R, vectors(inertia.first_moment))
    tensor = jnp.stack([vectors(column) for column in inertia.tensor.columns], -1)
    turned = jnp.zeros_like(h) if rotor is None else jnp.einsum("nij,nj->ni", R, vectors(rotor))
    return _Masses(inertia.mass, h, R @ tensor @ jnp.swapaxes(R, -1, -2), turned)


def _moment(position, body: _Masses) -> Float[Array, "3"]:
    """Mass times position of the centre of mass."""
    return jnp.sum(body.mass[:, None] * position + body.first_moment, 0)


def _com(position, body: _Masses) -> Float[Array, "3"]:
    return _moment(position, body) / jnp.sum(body.mass)


def _body_jacobians(system: System, places: SlotPlaces):
    """Angular velocity and velocity of the origin of every slot's body per velocity, [slots, 3, slots] each."""
    on_path = ancestors(system.topology.layout.tree.parents).T[:, None, :]
    w, u = places.mode[:, :3], places.mode[:, 3:]
    Ju = u[None] + jnp.cross(w[None], places.position[:, None, :] - places.position[None])
    Jw = jnp.broadcast_to(w.T[None], (len(w), 3, len(w)))
    return jnp.where(on_path, Jw, 0.0), jnp.where(on_path, jnp.swapaxes(Ju, 1, 2), 0.0)
