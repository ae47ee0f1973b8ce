"""Bases of a joint's motions and loads: duals, constraints by differentiation, recovered constraint wrenches.

Schwertassek & Senger (1988), section 3. The relative velocity of a joint is G = phi g + phi_bar zeta in a basis
[phi, phi_bar] of six-vectors that need not be orthogonal; components of loads are taken by projection, lambda = phi^T
Lambda, and put together with the dual basis, Lambda = psi lambda + psi_bar lambda_bar.

Frames: six-vectors [angular; linear] at the outboard frame's origin in inboard axes, as in joint records.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.pose import Pose
from jaxmbd.values import Numbers, concrete, floats


def dual_basis(basis: Numbers, name: str = "The vectors of this basis") -> Float[Array, "6 6"]:
    """The dual basis psi of six vectors phi (columns): psi^T phi = 1 (Eq. 3.20). Its own dual where it is orthonormal.

    Args:
      basis: six vectors as columns; they need not be orthogonal.
      name: what the vectors are, for the error.

    Raises: ValueError where the vectors depend linearly on one another, for concrete values.
    """
    phi = floats(basis)
    if phi.shape != (6, 6):
        raise ValueError(f"A basis has shape {phi.shape}; expected six six-vectors as columns, (6, 6).")
    known = concrete(phi)
    if known is not None:
        _, sizes, combinations = np.linalg.svd(known)
        if not sizes[-1] > 1e2 * np.finfo(known.dtype).eps * max(sizes[0], 1.0):
            parts = ", ".join(f"{x:.2g} of number {i}" for i, x in enumerate(combinations[-1]) if abs(x) > 1e-6)
            raise ValueError(
                f"{name} depend linearly on one another (smallest singular value {sizes[-1]:.1e}: {parts} give zero), "
                "so that no dual basis exists. Take another state, or vectors without this dependence (spherical in "
                "place of gimbal)."
            )
    return jnp.linalg.inv(phi).T


def velocity_constraints(
    function: Callable[[Array, Array, Array], Array], pose: Pose, t: float | Float[Array, ""] = 0.0
) -> tuple[Float[Array, "6 n"], Float[Array, " n"]]:
    """Velocity constraints w^T G = zeta that follow from position constraints f(B, z, t) = 0 (Eqs. 3.1, 3.5).

    Args:
      function: f(B [3, 3], z [3], t) -> [n], zero for every pose that the joint allows.
      pose: orientation B and position z of the outboard frame in the inboard one.
      t: time [s].

    Returns: w = (df/dP) X and zeta = -df/dt, by differentiation along the six relative velocities.
    """
    B, z, t = pose.rotation, pose.position, jnp.asarray(t, float)

    def moved(G):
        return function(so3.matrix(so3.exp(G[:3])) @ B, z + G[3:], t)

    w = jax.jacfwd(moved)(jnp.zeros(6, B.dtype))
    return w.T, -jax.jvp(lambda t: function(B, z, t), (t,), (jnp.ones_like(t),))[1]


def free_modes(w: Numbers) -> tuple[Float[Array, "6 n"], Float[Array, "6 m"]]:
    """Free modes phi, w^T phi = 0, orthonormal; constrained modes phi_bar, w^T phi_bar = 1 (Eqs. 3.10-3.14).

    Raises: ValueError where constraints depend on one another, for concrete values.
    """
    w = floats(w)
    known = concrete(w)
    if known is not None:
        sizes = np.linalg.svd(known, compute_uv=False)
        if sizes.size and sizes[-1] < 1e2 * np.finfo(known.dtype).eps * sizes[0]:
            raise ValueError(
                f"These {w.shape[1]} constraints depend linearly on one another (singular values {sizes}); leave out "
                "those that follow from the others."
            )
    U = jnp.linalg.svd(w, full_matrices=True)[0]
    return U[:, w.shape[1] :], w @ jnp.linalg.inv(w.T @ w)


def constraint_wrench(basis: Numbers, free: int, applied: Numbers, components: Numbers) -> Float[Array, "6"]:
    """The Cartesian constraint wrench Lambda_z = (psi phi^T - 1) Lambda_e + psi_bar lambda_bar (Eq. 3.34).

    Args:
      basis: [phi, phi_bar], six vectors as columns.
      free: number of free modes phi, the first columns.
      applied: applied wrench Lambda_e [N m, N]: springs, actuators in the joint.
      components: lambda_bar = phi_bar^T (Lambda_e + Lambda_z): the whole wrench on the constrained modes.
    """
    phi, psi = floats(basis), dual_basis(basis)
    applied, components = floats(applied), floats(components)
    return psi[:, :free] @ (phi[:, :free].T @ applied) - applied + psi[:, free:] @ components
