"""Forward dynamics of a system with its constraints.

Trees go straight to the articulated-body algorithm. With constraints the tree's accelerations come first; then the
closures' effective inertia tells the multipliers, and these the correction (recursive operational-space inertia,
Rodriguez & Kreutz-Delgado; Jain & Rodriguez 1990, section 9; Slaats 1991, Eqs. 4.5-4.12):

    a = a_tree + M^-1 J^T lambda,   J M^-1 J^T lambda = -(J a_tree + gamma) - 2 alpha rate - beta^2 residual
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxmbd import aba
from jaxmbd.constraints.rows import rows, wrench_map
from jaxmbd.constraints.saddle import effective_inertia, reachable, saddle_solve
from jaxmbd.curves import linearised
from jaxmbd.drives import with_laws
from jaxmbd.factor import mass_factor, mass_product
from jaxmbd.forces import Wrench
from jaxmbd.kinematics import promote
from jaxmbd.packing import Packed, pack
from jaxmbd.system import System


@jax.jit
def forward_dynamics(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    wrenches: tuple[Wrench, ...] = (),
    t: float | Float[Array, ""] = 0.0,
) -> Float[Array, " nv"]:
    """Accelerations v_dot under forces tau, passive joint forces, gravity and wrenches; constraints are kept.

    Args:
      q: coordinates.
      v: velocities; with constraints q and v should satisfy them (`assemble`).
      tau: generalised forces dual to v [N m, N]; without effect where a joint is driven by a law.
      wrenches: external wrenches acting on the bodies.
      t: time [s], where the base moves, joints are driven or a constraint depends on it.

    Returns: v_dot, entry by entry [rad/s^2, m/s^2]. Redundant constraints are tolerated.
    Cost: O(velocities) for trees, with nc constraint rows nc light solves and O(nc^3) more; every coupling adds one
      solve of two light sweeps.
    Source: Jain & Rodriguez (1990), Eqs. 7.2-7.3; Slaats (1991), sections 3.5 and 4.2.
    """
    q, v, tau, t, system = promote(system, q, v, tau, t)
    return accelerations(system, pack(system), q, v, tau, wrenches, t)


@jax.jit
def hybrid_dynamics(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    x: Float[Array, " nv"],
    driven: Bool[Array, " nv"],
    wrenches: tuple[Wrench, ...] = (),
    t: float | Float[Array, ""] = 0.0,
) -> tuple[Float[Array, " nv"], Float[Array, " nv"]]:
    """Part of the motion and part of the forces given: the rest of both; constraints are kept.

    Args:
      q: coordinates.
      v: velocities.
      x: accelerations v_dot where `driven`, generalised forces elsewhere.
      driven: which velocities have their acceleration given, as `system.velocity_mask("joint")`; those that the
        system's own laws drive come on top, and their x is not looked at.
      wrenches: external wrenches acting on the bodies.
      t: time [s], where the base moves or joints are driven.

    Returns: (a, tau), complete. tau where driven is the force of the drive, beside passive joint forces; its power is
      tau * v.
    Cost: that of forward dynamics, O(velocities).
    Source: Slaats (1991), section 4.1; Schwertassek & Senger (1988), Eqs. 3.15-3.18; Passerello & Huston (1972),
      Eqs. 3.30-3.31.
    """
    q, v, x, t, system = promote(system, q, v, x, t)
    driven = jnp.asarray(driven)
    if driven.shape != (system.nv,) or driven.dtype != bool:
        raise ValueError(
            f"driven is {driven.dtype}{list(driven.shape)}; expected a mask bool[{system.nv}], one truth a velocity, "
            "as system.velocity_mask('joint') gives."
        )
    return hybrid(system, pack(system), q, v, x, driven, wrenches, t)


def accelerations(
    system: System,
    packed: Packed,
    q,
    v,
    tau,
    wrenches,
    t,
    extra_armature=None,
    stabilization: Float[Array, "2"] | None = None,
) -> Float[Array, " nv"]:
    """Forward dynamics of a system that is packed already.

    Args:
      packed: `pack(system)`; a rollout computes it once.
      extra_armature: [nv_full], added to the diagonal of the mass matrix: the implicit terms of a stepper.
      stabilization: Baumgarte's alpha and beta [1/s]; none when left out.
    """
    if not system.constraints:
        return aba.accelerations(system, packed, q, v, tau, wrenches, t, extra_armature)
    if extra_armature is not None:
        system = dataclasses.replace(system, armature=system.armature + extra_armature)
    return constrained(system, packed, q, v, tau, None, wrenches, t, stabilization)[0]


def hybrid(system: System, packed: Packed, q, v, x, driven, wrenches, t):
    """Accelerations and forces of a system that is packed already; `driven` is None where all forces are given."""
    if not system.constraints:
        return aba.hybrid(system, packed, q, v, x, driven, wrenches, t)
    return constrained(system, packed, q, v, x, driven, wrenches, t)[:2]


def constrained(
    system: System, packed: Packed, q, v, x, driven, wrenches, t, stabilization: Float[Array, "2"] | None = None
) -> tuple[Float[Array, " nv"], Float[Array, " nv"], Float[Array, " nc"]]:
    """Accelerations, forces and multipliers; constraints do not move what is driven, but its drive feels them."""
    system = linearised(system, q, v)
    x, driven = with_laws(system, x, driven, q, v, t)
    tree, tau, factor = aba._hybrid(system, packed, q, v, x, driven, wrenches, t)
    r = rows(system, packed, q, v, t)
    wanted = -r.gamma - r.jacobian @ tree
    if stabilization is not None:
        wanted = wanted - 2.0 * stabilization[0] * r.rate - stabilization[1] ** 2 * r.residual
    J = free_columns(r.jacobian, driven)
    A = effective_inertia(system, *lax.stop_gradient((factor, J, r.mesh)))
    a, multipliers = saddle_solve(system, packed, q, factor, A, J, jnp.zeros_like(v), wanted, driven)
    if driven is not None:
        felt = mass_product(system, packed, q, a) - multipliers @ r.jacobian
        tau = jnp.where(driven, tau + felt, tau)
    return tree + a, tau, multipliers


def free_columns(J: Float[Array, "nc nv"], driven) -> Float[Array, "nc nv"]:
    """The Jacobian without the velocities that a law drives."""
    return J if driven is None else jnp.where(driven[None, :], 0.0, J)


def driven_by_law(system: System):
    """Mask of the velocities that the system's own laws drive; None without any."""
    return jnp.asarray(system.topology.layout.driven) if system.topology.drives else None


class ClosureWrench(eqx.Module):
    """What a constraint does to the body of its last frame: at that frame's origin, world axes.

    `unique` tells which of the six components [moment; force] are determined; where rows are redundant the others are
    those of the shortest multipliers.
    """

    moment: Float[Array, "3"]
    force: Float[Array, "3"]
    unique: Bool[Array, "6"]


class ClosureWrenches(eqx.Module):
    """Wrenches of all constraints; `w["loop"]` is one of them. `multipliers` are dual to the rows."""

    moment: Float[Array, "constraints 3"]
    force: Float[Array, "constraints 3"]
    unique: Bool[Array, "constraints 6"]
    multipliers: Float[Array, " nc"]
    load: Float[Array, " nv"]
    """Generalised forces of all constraints, J^T multipliers."""
    names: tuple[str, ...] = eqx.field(static=True)

    def __getitem__(self, name: str) -> ClosureWrench:
        if name not in self.names:
            raise KeyError(f"No constraint {name!r}. Known: {', '.join(self.names)}.")
        i = self.names.index(name)
        return ClosureWrench(*(jnp.take(x, i, axis=x.ndim - 2) for x in (self.moment, self.force, self.unique)))


@jax.jit
def closure_wrenches(
    system: System,
    q: Float[Array, " nq"],
    v: Float[Array, " nv"],
    tau: Float[Array, " nv"],
    wrenches: tuple[Wrench, ...] = (),
    t: float | Float[Array, ""] = 0.0,
) -> ClosureWrenches:
    """Wrenches by which closures and other constraints act, during `forward_dynamics`.

    Returns: per constraint the moment [N m] and force [N] on the body of its last frame (`frame_b` of a closure); the
      opposite wrench acts on the body of the first. Where rows are redundant, not every component is unique: the
      multipliers are then the shortest, each row measured by its own effective inertia, and `unique` says which
      components are determined.
    Source: Slaats (1991), Eq. 4.5; the load R^T lambda of Eqs. 2.5-2.8.
    """
    q, v, tau, t, system = promote(system, q, v, tau, t)
    if not system.constraints:
        raise ValueError("This system has no constraints, so there are no closure wrenches.")
    packed = pack(system)
    multipliers = constrained(system, packed, q, v, tau, None, wrenches, t)[2]
    return wrenches_of(system, packed, q, v, t, multipliers)


def wrenches_of(system: System, packed: Packed, q, v, t, multipliers: Float[Array, " nc"]) -> ClosureWrenches:
    """The wrenches of known multipliers; of impulsive ones, the impulses [N m s, N s]."""
    maps = wrench_map(system, packed, q, v, t)
    wrench = maps @ multipliers
    still = lax.stop_gradient((system, packed, q, v, t))
    A, _ = inertia_at(*still)
    J = rows(linearised(system, q, v), packed, q, v, t).jacobian
    unique = jax.vmap(lambda rows: reachable(A, rows))(lax.stop_gradient(maps))
    return ClosureWrenches(wrench[:, :3], wrench[:, 3:], unique, multipliers, multipliers @ J, system.constraint_names)


def inertia_at(system: System, packed: Packed, q, v, t):
    """Effective inertia and Jacobian of the constraints at a state, for what needs no accelerations."""
    system, driven = linearised(system, q, v), driven_by_law(system)
    r = rows(system, packed, q, v, t)
    J = free_columns(r.jacobian, driven)
    return effective_inertia(system, mass_factor(system, packed, q, driven), J, r.mesh), J
