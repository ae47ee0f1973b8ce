"""Inertias of real bodies: of solids and meshes, put together and moved, checked, projected, and without bounds.

A body is a density, so its second moments are positive semi-definite. Mass m, first moment h and second moment
S = integral of x x^T dm make up the pseudo-inertia, [4, 4],

    P = [[S, h], [h^T, m]],   S = tr(I) 1 / 2 - I  with I about the frame's origin,

and an inertia belongs to a body exactly when P has no negative eigenvalue (Wensing, Kim & Slotine 2018, IEEE Robotics
and Automation Letters 3, 60-67). Points, rods and plates lie on the boundary and are fine.

Units: kg, m, kg m^2. `Inertial` unpacks into `Builder.body`: `b.body("box", *inertia.box(2.0, (0.1, 0.2, 0.3)))`.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxmbd.pose import Pose
from jaxmbd.values import Numbers, concrete, floats

_SIX = np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])


class Inertial(NamedTuple):
    """Mass [kg], centre of mass [m], and inertia about it (Ixx Ixy Ixz Iyy Iyz Izz) [kg m^2], in a body's axes."""

    mass: Numbers
    com: Numbers
    inertia: Numbers


def box(mass: Numbers, size: Numbers) -> Inertial:
    """A solid box about its centre, edges `size` [m] along x, y, z."""
    m, s = _arrays(mass, size)
    return _from_second(m, jnp.diag(m * s**2 / 12))


def ellipsoid(mass: Numbers, semi_axes: Numbers) -> Inertial:
    """A solid ellipsoid about its centre, semi-axes [m] along x, y, z."""
    m, s = _arrays(mass, semi_axes)
    return _from_second(m, jnp.diag(m * s**2 / 5))


def sphere(mass: Numbers, radius: Numbers) -> Inertial:
    """A solid ball about its centre."""
    m, r = _arrays(mass, radius)
    return _from_second(m, jnp.diag(jnp.stack([m * r**2 / 5] * 3)))


def cylinder(mass: Numbers, radius: Numbers, length: Numbers) -> Inertial:
    """A solid cylinder about its centre, its axis along z."""
    m, r, l = _arrays(mass, radius, length)
    return _from_second(m, jnp.diag(jnp.stack([m * r**2 / 4, m * r**2 / 4, m * l**2 / 12])))


def rod(mass: Numbers, length: Numbers) -> Inertial:
    """A thin rod about its centre, along z."""
    return cylinder(mass, 0.0, length)


def capsule(mass: Numbers, radius: Numbers, length: Numbers) -> Inertial:
    """A solid capsule about its centre, along z: a cylinder of `length` and a half ball at each end."""
    m, r, l = _arrays(mass, radius, length)
    ends = m * (4 * r) / (4 * r + 3 * l)  # both half balls, by volume
    middle = m - ends
    across = middle * r**2 / 4 + ends * r**2 / 5
    # a half ball about its flat side: r^2 / 5; its com is 3 r / 8 from there
    along = middle * l**2 / 12 + ends * (r**2 / 5 + l * r * 3 / 8 + l**2 / 4)
    return _from_second(m, jnp.diag(jnp.stack([across, across, along])))


def mesh(
    vertices: Float[Array, "n 3"],
    faces: Int[np.ndarray, "m 3"],
    density: Numbers | None = None,
    mass: Numbers | None = None,
) -> Inertial:
    """A solid bounded by triangles, in the axes and about the origin of its vertices.

    Args:
      vertices: [m]; the result is differentiable in them.
      faces: three indices of vertices each, anticlockwise seen from outside; the surface is closed.
      density: [kg/m^3]; or
      mass: [kg]; one of the two.

    Raises: ValueError for a surface that is open or inside out.

    Source: sum over tetrahedra from the origin (B. Mirtich, "Fast and accurate computation of polyhedral mass
    properties", J. Graphics Tools 1 (1996) 31-50, gives the same integrals by faces).
    """
    if (density is None) == (mass is None):
        raise ValueError("A mesh needs its density [kg/m^3] or its mass [kg], one of the two.")
    corners, faces = jnp.asarray(vertices), np.asarray(faces)
    if faces.ndim != 2 or faces.shape[1] != 3 or not np.issubdtype(faces.dtype, np.integer):
        raise ValueError(f"Faces have shape {faces.shape} and type {faces.dtype}; expected rows of three indices.")
    if faces.size and (faces.min() < 0 or faces.max() >= len(corners)):
        raise ValueError(f"Faces name vertices {faces.min()} to {faces.max()}; there are {len(corners)}.")
    edges = Counter(map(tuple, np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).tolist()))
    lonely = [edge for edge in edges if edges[edge] != edges[edge[::-1]]]
    if lonely or not len(faces):
        raise ValueError(
            f"The surface is not closed: {len(lonely)} edges, as that from vertex {lonely[0] if lonely else ()}, have "
            "no face on the other side, or one that is wound the other way."
        )
    T = corners[faces]  # tetrahedra with the origin
    six_volumes = jnp.sum(T[:, 0] * jnp.cross(T[:, 1], T[:, 2]), -1)
    sums = jnp.sum(T, 1)
    volume = jnp.sum(six_volumes) / 6
    known = concrete(volume)
    if known is not None and not known > 0:
        raise ValueError(f"The mesh has a volume of {known} m^3; its faces must be anticlockwise seen from outside.")
    first = jnp.einsum("t,ti->i", six_volumes, sums) / 24
    second = jnp.einsum("t,ti,tj->ij", six_volumes, sums, sums) + jnp.einsum("t,tki,tkj->ij", six_volumes, T, T)
    rho = jnp.asarray(density) if mass is None else jnp.asarray(mass) / volume
    com, m = first / volume, rho * volume
    return _from_second(m, rho * second / 120 - m * com[:, None] * com[None], com)


def moved(body: Inertial, pose: Pose) -> Inertial:
    """The inertia of the same body in a frame in which its own one has the given pose."""
    R = pose.rotation
    return Inertial(
        jnp.asarray(body.mass), R @ jnp.asarray(body.com) + pose.position, _six(R @ _tensor(body.inertia) @ R.T)
    )


def joined(*bodies: Inertial) -> Inertial:
    """The inertia of several bodies in one frame, welded together (parallel axes)."""
    P = sum(pseudo_inertia(body) for body in bodies)
    return from_pseudo_inertia(jnp.asarray(P))


def pseudo_inertia(body: Inertial) -> Float[Array, "4 4"]:
    """P = [[S, h], [h^T, m]] about the origin of the body's frame."""
    mass, com = jnp.asarray(body.mass), jnp.asarray(body.com)
    second = _second(jnp.asarray(body.inertia)) + mass * com[:, None] * com[None]
    h = (mass * com)[:, None]
    return jnp.block([[second, h], [h.T, mass[None, None]]])


def from_pseudo_inertia(P: Float[Array, "4 4"]) -> Inertial:
    """The inertia with a given pseudo-inertia; a body without mass has its com at the origin."""
    mass, h = P[3, 3], P[:3, 3]
    com = jnp.where(mass == 0, 0.0, h / jnp.where(mass == 0, 1.0, mass))
    return _from_second(mass, P[:3, :3] - h[:, None] * com[None], com)


def nearest(body: Inertial, least: Numbers = 0.0) -> Inertial:
    """The nearest inertia that some body has: negative eigenvalues of the pseudo-inertia at the com are raised.

    Nearest in the Frobenius norm of the pseudo-inertia about the com, which stays where it is. Valid inertias come back
    as they are. Derivatives are those of the projection, also where moments coincide.

    Args:
      least: smallest eigenvalue [kg m^2] of the second moments that is let through; more than zero keeps clear of the
        boundary.
    """
    mass = jnp.asarray(body.mass)
    second = _raised(_second(jnp.asarray(body.inertia)), jnp.asarray(least, mass.dtype))
    return _from_second(jnp.maximum(mass, 0.0), second, jnp.asarray(body.com))


def log_cholesky(body: Inertial) -> Float[Array, "10"]:
    """Parameters without bounds: every vector of ten numbers is a body, and every body inside the boundary is one.

    [alpha, d1, d2, d3, s12, s23, s13, t1, t2, t3] with P = U U^T,
    U = exp(alpha) [[exp(d1), s12, s13, t1], [0, exp(d2), s23, t2], [0, 0, exp(d3), t3], [0, 0, 0, 1]].

    Raises: ValueError for known inertias on or beyond the boundary (points, rods, plates), whose logarithm is infinite;
    `nearest(body, least=...)` moves them inside.

    Source: C. Rucker, P. M. Wensing, "Smooth parameterization of rigid-body inertia", IEEE Robotics and Automation
    Letters 7 (2022) 2771-2778, Eqs. 10-13.
    """
    P = pseudo_inertia(body)
    if concrete(P) is not None and not eigenvalues(body)[0] > 0:
        raise ValueError(
            f"The pseudo-inertia has eigenvalues {_listed(eigenvalues(body))} at the com; log-Cholesky parameters need "
            "all of them above zero. Take nearest(body, least=...) first."
        )
    U = jnp.flip(jnp.linalg.cholesky(jnp.flip(P)))  # flipped both ways, a lower factor is an upper one
    scale = U[3, 3]
    d = jnp.log(jnp.diagonal(U)[:3] / scale)
    return jnp.concatenate([jnp.log(scale)[None], d, jnp.stack([U[0, 1], U[1, 2], U[0, 2]]) / scale, U[:3, 3] / scale])


def from_log_cholesky(theta: Float[Array, "10"]) -> Inertial:
    """The inertia of log-Cholesky parameters; the inverse of `log_cholesky`."""
    alpha, d, (s12, s23, s13), t = theta[0], jnp.exp(theta[1:4]), theta[4:7], theta[7:]
    zero, one = jnp.zeros_like(alpha), jnp.ones_like(alpha)
    U = jnp.stack(
        [
            jnp.stack([d[0], s12, s13, t[0]]),
            jnp.stack([zero, d[1], s23, t[1]]),
            jnp.stack([zero, zero, d[2], t[2]]),
            jnp.stack([zero, zero, zero, one]),
        ]
    )
    # with t = com, the second moments about the com are those of the upper left part alone
    mass, C = jnp.exp(2 * alpha), U[:3, :3]
    return _from_second(mass, mass * C @ C.T, t)


def eigenvalues(body: Inertial) -> Float[np.ndarray, "4"]:
    """Eigenvalues of the pseudo-inertia about the com, ascending: three second moments [kg m^2] and the mass [kg]."""
    six = np.asarray(body.inertia, float)
    tensor = six if six.shape == (3, 3) else six[_SIX]
    second = 0.5 * np.trace(tensor) * np.eye(3) - tensor
    return np.sort(np.append(np.linalg.eigvalsh(second), np.asarray(body.mass, float)))


def doubt(body: Inertial, rounding: float = 1e-5) -> str:
    """Why no body can have this inertia, with the nearest one that some body has; "" when nothing is wrong.

    Args:
      rounding: breaches below this fraction of the largest eigenvalue are digits that a file left out.
    """
    mass, six = float(np.asarray(body.mass)), np.asarray(body.inertia, float)
    tensor = six if six.shape == (3, 3) else six[_SIX]
    if mass == 0 and tensor.any():
        return "it has inertia but no mass"
    moments = np.linalg.eigvalsh(tensor)
    second = 0.5 * moments.sum() - moments
    if mass >= 0 and second.min() >= -rounding * np.abs(second).max():
        return ""
    if mass < 0:
        broken = f"its mass is {mass!r} kg"
    elif moments[0] < -rounding * np.abs(moments).max():
        broken = f"a principal moment is negative ({_listed(moments)} kg m^2)"
    else:
        broken = f"a principal moment exceeds the sum of the others ({_listed(moments)} kg m^2)"
    valid = nearest_tensor(tensor)
    return (
        f"{broken}, so that its pseudo-inertia at the com has the eigenvalues {_listed(eigenvalues(body))}; all must "
        f"be zero or more. The nearest inertia that a body can have is (Ixx Ixy Ixz Iyy Iyz Izz) "
        f"{_listed(valid[np.triu_indices(3)])}"
    )


def nearest_tensor(tensor: np.ndarray) -> np.ndarray:
    """The valid tensor [3, 3] about the com with the nearest second moments: negative ones become zero."""
    second, axes = np.linalg.eigh(0.5 * np.trace(tensor) * np.eye(3) - tensor)
    second = np.maximum(second, 0.0)
    return (axes * (second.sum() - second)) @ axes.T


@jax.custom_jvp
def _raised(S, least):
    """The symmetric matrix with eigenvalues of at least `least`."""
    values, axes = jnp.linalg.eigh(S)
    return (axes * jnp.maximum(values, least)[None]) @ axes.T


@_raised.defjvp
def _raised_jvp(primals, tangents):
    # divided differences of max(x, least) are safe where eigenvalues coincide (Daleckii & Krein)
    (S, least), (dS, dleast) = primals, tangents
    values, axes = jnp.linalg.eigh(S)
    above, below = jnp.maximum(values - least, 0.0), jnp.minimum(values - least, 0.0)
    gap = above[:, None] - below[None]
    both = jnp.minimum(values[:, None], values[None]) >= least
    across = jnp.where(gap > 0, above[:, None] / jnp.where(gap > 0, gap, 1.0), 0.0)
    across = jnp.where((above[:, None] > 0) & (below[None] < 0), across, 0.0)
    slope = jnp.where(both, 1.0, across + across.T)
    d = axes @ (slope * (axes.T @ (0.5 * (dS + dS.T)) @ axes)) @ axes.T
    d = d + (axes * jnp.where(values < least, dleast, 0.0)[None]) @ axes.T
    return (axes * jnp.maximum(values, least)[None]) @ axes.T, d


def _arrays(*values):
    return tuple(jnp.asarray(floats(value)) for value in values)


def _tensor(six):
    return jnp.asarray(six)[_SIX]


def _six(tensor):
    return jnp.stack([tensor[i, j] for i in range(3) for j in range(i, 3)])


def _second(six):
    """Second moments about the com of an inertia, S = tr(I) 1 / 2 - I."""
    six = _six(six) if six.shape == (3, 3) else six
    tensor = _tensor(six)
    return 0.5 * jnp.trace(tensor) * jnp.eye(3, dtype=tensor.dtype) - tensor


def _from_second(mass, second, com=None) -> Inertial:
    tensor = jnp.trace(second) * jnp.eye(3, dtype=second.dtype) - second
    return Inertial(jnp.asarray(mass), jnp.zeros(3, second.dtype) if com is None else com, _six(tensor))


def _listed(values) -> str:
    return ", ".join(repr(float(value)) for value in values)
