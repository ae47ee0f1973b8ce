"""The inertia of one body in the form that other libraries take, and back.

Here a body has a mass [kg], a com [m] and its inertia about the com (Ixx Ixy Ixz Iyy Iyz Izz) [kg m^2], all in body
axes (`jaxmbd.inertia.Inertial`). The others differ in the point, the order and the axes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.inertia import Inertial

_PINOCCHIO = np.array([0, 1, 3, 2, 4, 5])  # xx xy yy xz yz zz, from xx xy xz yy yz zz; its own inverse
_DRAKE = np.array([0, 3, 5, 1, 2, 4])  # xx yy zz xy xz yz


class Principal(NamedTuple):
    """MuJoCo's `body_mass`, `body_ipos`, `body_iquat` (w, x, y, z) and `body_inertia` (principal moments)."""

    mass: Float[Array, ""]
    ipos: Float[Array, "3"]
    iquat: Float[Array, "4"]
    inertia: Float[Array, "3"]


class UnitInertia(NamedTuple):
    """Drake's `SpatialInertia`: mass, `p_PScm_E`, and the unit inertia `G_SP_E` (Gxx Gyy Gzz Gxy Gxz Gyz) [m^2]."""

    mass: Float[Array, ""]
    p_PScm_E: Float[Array, "3"]
    G_SP_E: Float[Array, "6"]


class Body(NamedTuple):
    """The arguments of RBDL's `Body`: mass, com and the inertia [3, 3] about the com."""

    mass: Float[Array, ""]
    com: Float[Array, "3"]
    inertia_C: Float[Array, "3 3"]


def inertia_to_pinocchio(body: Inertial) -> Float[Array, "10"]:
    """Pinocchio's dynamic parameters: m, m c, and Ixx Ixy Iyy Ixz Iyz Izz about the frame's origin."""
    mass, com, six = (jnp.asarray(x) for x in body)
    return jnp.concatenate([mass[None], mass * com, (six + mass * _steiner(com))[_PINOCCHIO]])


def inertia_from_pinocchio(parameters: Float[Array, "10"]) -> Inertial:
    """The inverse of `inertia_to_pinocchio`; for a mass above zero."""
    mass, com = parameters[0], parameters[1:4] / parameters[0]
    return Inertial(mass, com, parameters[4:][_PINOCCHIO] - mass * _steiner(com))


def inertia_to_mujoco(body: Inertial) -> Principal:
    """Principal axes and moments at the com. No derivative exists where two moments coincide."""
    mass, com, six = (jnp.asarray(x) for x in body)
    moments, axes = jnp.linalg.eigh(_tensor(six))
    axes = axes.at[:, 0].multiply(jnp.sign(jnp.linalg.det(axes)))
    return Principal(mass, com, so3.from_matrix(axes), moments)


def inertia_from_mujoco(principal: Principal) -> Inertial:
    """The inverse of `inertia_to_mujoco`, from any principal frame."""
    mass, com, quaternion, moments = (jnp.asarray(x) for x in principal)
    R = so3.matrix(quaternion)
    return Inertial(mass, com, _six(R @ jnp.diag(moments) @ R.T))


def inertia_to_drake(body: Inertial) -> UnitInertia:
    """Mass, com and the unit inertia about the frame's origin; for a mass above zero."""
    mass, com, six = (jnp.asarray(x) for x in body)
    return UnitInertia(mass, com, (six / mass + _steiner(com))[_DRAKE])


def inertia_from_drake(inertia: UnitInertia) -> Inertial:
    """The inverse of `inertia_to_drake`."""
    mass, com, unit = (jnp.asarray(x) for x in inertia)
    return Inertial(mass, com, mass * (unit[np.argsort(_DRAKE)] - _steiner(com)))


def inertia_to_rbdl(body: Inertial) -> Body:
    """Mass, com and the tensor about the com."""
    return Body(jnp.asarray(body.mass), jnp.asarray(body.com), _tensor(jnp.asarray(body.inertia)))


def inertia_from_rbdl(body: Body) -> Inertial:
    """The inverse of `inertia_to_rbdl`."""
    return Inertial(jnp.asarray(body.mass), jnp.asarray(body.com), _six(jnp.asarray(body.inertia_C)))


def _steiner(com):
    """Six numbers of c.c 1 - c c^T."""
    return _six(jnp.dot(com, com) * jnp.eye(3, dtype=com.dtype) - com[:, None] * com[None])


def _tensor(six):
    return six[np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])]


def _six(tensor):
    return jnp.stack([tensor[i, j] for i in range(3) for j in range(i, 3)])
