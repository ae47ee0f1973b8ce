"""Rotations as quaternions (w, x, y, z), safe to differentiate twice everywhere.

A quaternion need not have unit length: every function normalises on use. Removable singularities are series in the
squared angle, so that values, gradients and second derivatives are finite at the identity, at rotations by pi, and at
the antipode of a quaternion.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_SMALL = 1e-2  # squared angle below which the series are used: they are exact to 1e-17 there


def _series(x, coefficients):
    total = jnp.zeros_like(x)
    for c in reversed(coefficients):
        total = c + x * total
    return total


# pi/2 in three parts, the first two short enough that their products with a count of quarter turns are exact; then sine
# and cosine on [-pi/4, pi/4], polynomials in the square (S. L. Moshier, Methods and Programs for Mathematical
# Functions, 1989; the Cephes library)
_QUARTERS = {
    "float32": (1.5703125, 4.837512969970703125e-4, 7.54978995489188216e-8),
    "float64": (1.5707962512969970703, 7.54978941586159635335e-8, 5.39030285815811905290e-15),
}
_SINE = {
    "float32": (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4),
    "float64": (
        -1.66666666666666307295e-1,
        8.33333333332211858878e-3,
        -1.98412698295895385996e-4,
        2.75573136213857245213e-6,
        -2.50507477628578072866e-8,
        1.58962301576546568060e-10,
    ),
}
_COSINE = {
    "float32": (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5),
    "float64": (
        4.16666666666665929218e-2, -1.38888888888730564116e-3, 2.48015872888517045348e-5,
        -2.75573141792967388112e-7, 2.08757008419747316778e-9, -1.13585365213876817300e-11,
    ),
}  # fmt: skip


@jax.custom_jvp
def cos_sin(angle: Float[Array, "*n"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Cosine and sine together, by arithmetic alone: XLA's own are worked out one number at a time on a CPU.

    Errors are below one unit in the last place, or below 1e-13 (1e-22 in double precision) next to zeros; beyond 1e4
    rad (1e8) both belong to an angle that is off by less than one unit in its own last place.
    """
    kind = jnp.dtype(angle.dtype).name
    if kind not in _QUARTERS:
        return jnp.cos(angle), jnp.sin(angle)
    turns = jnp.round(angle * (2.0 / np.pi))
    r = angle
    for part in _QUARTERS[kind]:
        r = r - turns * part
    r = jnp.clip(r, -0.79, 0.79)  # stays a rotation where the angle has no digits left behind the point
    square = r * r
    sine = r + r * square * _series(square, _SINE[kind])
    cosine = 1.0 - 0.5 * square + square * square * _series(square, _COSINE[kind])
    quarter = turns - 4.0 * jnp.floor(0.25 * turns)
    odd = (quarter == 1.0) | (quarter == 3.0)
    c, s = jnp.where(odd, sine, cosine), jnp.where(odd, cosine, sine)
    return jnp.where((quarter == 1.0) | (quarter == 2.0), -c, c), jnp.where(quarter >= 2.0, -s, s)


@cos_sin.defjvp
def _cos_sin_jvp(primals, tangents):
    c, s = cos_sin(*primals)
    return (c, s), (-s * tangents[0], c * tangents[0])


def _sinc(square):
    """sin(x)/x from x^2."""
    small = square < _SMALL
    x = jnp.sqrt(jnp.where(small, 1.0, square))
    return jnp.where(
        small, _series(square, (1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800)), jnp.sin(x) / x
    )


def _cosc(square):
    """(1 - cos(x))/x^2 from x^2."""
    small = square < _SMALL
    x2 = jnp.where(small, 1.0, square)
    series = _series(square, (1 / 2, -1 / 24, 1 / 720, -1 / 40320, 1 / 3628800, -1 / 479001600))
    return jnp.where(small, series, (1.0 - jnp.cos(jnp.sqrt(x2))) / x2)


def _sinc3(square):
    """(x - sin(x))/x^3 from x^2."""
    small = square < _SMALL
    x2 = jnp.where(small, 1.0, square)
    x = jnp.sqrt(x2)
    series = _series(square, (1 / 6, -1 / 120, 1 / 5040, -1 / 362880, 1 / 39916800, -1 / 6227020800))
    return jnp.where(small, series, (x - jnp.sin(x)) / (x2 * x))


def identity(dtype=None) -> Float[Array, "4"]:
    """The quaternion of no rotation."""
    return jnp.array([1.0, 0.0, 0.0, 0.0], dtype)


def normalize(quaternion: Float[Array, "*n 4"]) -> Float[Array, "*n 4"]:
    """The quaternion at unit length."""
    return quaternion / jnp.sqrt(jnp.sum(quaternion * quaternion, -1, keepdims=True))


def conjugate(quaternion: Float[Array, "*n 4"]) -> Float[Array, "*n 4"]:
    """The inverse rotation."""
    return jnp.concatenate([quaternion[..., :1], -quaternion[..., 1:]], -1)


def multiply(a: Float[Array, "*n 4"], b: Float[Array, "*n 4"]) -> Float[Array, "*n 4"]:
    """The rotation b followed by a (matrix(a) @ matrix(b))."""
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    w = aw * bw - jnp.sum(av * bv, -1, keepdims=True)
    return jnp.concatenate([w, aw * bv + bw * av + jnp.cross(av, bv)], -1)


def matrix(quaternion: Float[Array, "*n 4"]) -> Float[Array, "*n 3 3"]:
    """Rotation matrix of a quaternion of any non-zero length."""
    numbers = matrix_entries(*(quaternion[..., i] for i in range(4)))
    return jnp.stack(numbers, -1).reshape(*quaternion.shape[:-1], 3, 3)


def matrix_entries(w, x, y, z) -> tuple:
    """The nine entries of that matrix, row by row."""
    s = 2.0 / (w * w + x * x + y * y + z * z)
    return (
        1.0 - s * (y * y + z * z), s * (x * y - w * z), s * (x * z + w * y),
        s * (x * y + w * z), 1.0 - s * (x * x + z * z), s * (y * z - w * x),
        s * (x * z - w * y), s * (y * z + w * x), 1.0 - s * (x * x + y * y),
    )  # fmt: skip


def from_matrix(R: Float[Array, "*n 3 3"]) -> Float[Array, "*n 4"]:
    """Quaternion with non-negative w of a rotation matrix, by the largest of four pivots (Shepperd's method)."""
    xx, yy, zz = R[..., 0, 0], R[..., 1, 1], R[..., 2, 2]
    a, b, c = R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0], R[..., 1, 0] - R[..., 0, 1]
    d, e, f = R[..., 1, 0] + R[..., 0, 1], R[..., 2, 0] + R[..., 0, 2], R[..., 2, 1] + R[..., 1, 2]
    pw, px, py, pz = 1 + xx + yy + zz, 1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz
    candidates = jnp.stack(
        [
            jnp.stack([pw, a, b, c], -1),
            jnp.stack([a, px, d, e], -1),
            jnp.stack([b, d, py, f], -1),
            jnp.stack([c, e, f, pz], -1),
        ],
        -2,
    )
    best = jnp.argmax(jnp.stack([pw, px, py, pz], -1), -1)
    q = normalize(jnp.take_along_axis(candidates, best[..., None, None], -2)[..., 0, :])
    return jnp.where(q[..., :1] < 0, -q, q)


def exp(rotation_vector: Float[Array, "*n 3"]) -> Float[Array, "*n 4"]:
    """Quaternion of a rotation vector (axis times angle [rad])."""
    half = 0.5 * rotation_vector
    square = jnp.sum(half * half, -1, keepdims=True)
    return jnp.concatenate([1.0 - square * _cosc(square), _sinc(square) * half], -1)


def log(quaternion: Float[Array, "*n 4"]) -> Float[Array, "*n 3"]:
    """Rotation vector [rad] of length at most pi."""
    q = normalize(quaternion)
    q = jnp.where(q[..., :1] < 0, -q, q)
    w, v = q[..., :1], q[..., 1:]
    square = jnp.sum(v * v, -1, keepdims=True)
    small = square < 1e-4
    x = jnp.sqrt(jnp.where(small, 1.0, square))
    # asin(x)/x in x^2 near the identity, where w is fixed by the norm
    series = _series(square, (1.0, 1 / 6, 3 / 40, 5 / 112, 35 / 1152, 63 / 2816))
    return 2.0 * jnp.where(small, series, jnp.arctan2(x, w) / x) * v


def left_jacobian(rotation_vector: Float[Array, "3"], vector: Float[Array, "3"]) -> Float[Array, "3"]:
    """V(u) x = the mean of exp(s u) x over s in [0, 1]: the translation of a screw motion."""
    u = rotation_vector
    square = jnp.sum(u * u, -1, keepdims=True)
    first = jnp.cross(u, vector)
    return vector + _cosc(square) * first + _sinc3(square) * jnp.cross(u, first)


def left_jacobian_inverse(rotation_vector: Float[Array, "3"], vector: Float[Array, "3"]) -> Float[Array, "3"]:
    """The inverse of `left_jacobian`, for angles below 2 pi."""
    u = rotation_vector
    square = jnp.sum(u * u, -1, keepdims=True)
    small = square < _SMALL
    x2 = jnp.where(small, 1.0, square)
    series = _series(square, (1 / 12, 1 / 720, 1 / 30240, 1 / 1209600, 1 / 47900160))
    k = jnp.where(small, series, (1.0 - 0.5 * _sinc(x2) / _cosc(x2)) / x2)
    first = jnp.cross(u, vector)
    return vector - 0.5 * first + k * jnp.cross(u, first)


def rotation_about(axis: Float[Array, "3"], angle) -> Float[Array, "3 3"]:
    """Rotation matrix about a unit axis by an angle [rad] (Rodrigues)."""
    K = skew(axis)
    return jnp.eye(3, dtype=K.dtype) + jnp.sin(angle) * K + (1.0 - jnp.cos(angle)) * (K @ K)


def frame_along(axis: Float[Array, "*n 3"]) -> Float[Array, "*n 3 3"]:
    """A rotation matrix whose third column is the unit vector `axis`; which one, makes no difference to its users."""
    off_x = (jnp.abs(axis[..., 0]) < 0.7).astype(axis.dtype)
    x = normalize(jnp.cross(jnp.stack([off_x, 1.0 - off_x, jnp.zeros_like(off_x)], -1), axis))
    return jnp.stack([x, jnp.cross(axis, x), axis], -1)


def skew(v: Float[Array, "*n 3"]) -> Float[Array, "*n 3 3"]:
    """The matrix of v x."""
    x, y, z = v[..., 0], v[..., 1], v[..., 2]
    o = jnp.zeros_like(x)
    return jnp.stack([jnp.stack([o, -z, y], -1), jnp.stack([z, o, -x], -1), jnp.stack([-y, x, o], -1)], -2)
