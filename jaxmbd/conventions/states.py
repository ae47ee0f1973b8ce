"""States, Jacobians and inertias in the layouts of Pinocchio, MuJoCo, Drake and RBDL, and back.

Each library orders joints, quaternions and six-vectors in its own way, and takes the velocity of a free body in other
axes. For every joint, theirs are `q' = f(q)` and `v' = V(q) v` with an orthogonal matrix V; all else follows:

    a' = V a + V_dot v,   tau' = V tau,   M' = V M V^T,   J' = J V^T

(for a free joint V_dot v is where a spatial and a classical acceleration differ). Functions take one state; `jax.vmap`
goes outside. docs/conventions.md shows all layouts.

Frames: joint frames must be the same in both libraries. URDF and MJCF files have no pose of a joint in its child; nor
does what `to_urdf` and `to_mjcf` write. Free joints of MuJoCo sit on the world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmbd import rotation as so3
from jaxmbd.curves import linearised
from jaxmbd.packing import full_accelerations, full_coordinates, full_velocities, reduced_forces
from jaxmbd.system import System


class State(NamedTuple):
    """Numbers in one layout; None for those that are not given.

    `a` is dv/dt entry by entry; `mass_matrix` and `jacobian` belong to v; `motion` are six-vectors of frames,
    velocities or accelerations.
    """

    q: Float[Array, " nq"]
    v: Float[Array, " nv"] | None = None
    a: Float[Array, " nv"] | None = None
    tau: Float[Array, " nv"] | None = None
    mass_matrix: Float[Array, "nv nv"] | None = None
    jacobian: Float[Array, "*n 6 nv"] | None = None
    motion: Float[Array, "*n 6"] | None = None


class _Rule(NamedTuple):
    """How a library lays out one kind of joint."""

    to: Callable[[Array], Array]
    back: Callable[[Array], Array]
    size: int | None = None  # of their coordinates; None where it is ours
    turn: Callable[[Array], Array] | None = None  # V(q); None for the identity
    apart: int = 0  # coordinates that stand at the end of q, after all joints


class _Library(NamedTuple):
    rules: dict[str, _Rule]
    linear_first: bool = False  # six-vectors


def _same(q):
    return q


def _last(q):  # quaternion and position -> position, vector part, scalar part
    return jnp.concatenate([q[4:], q[1:4], q[:1]])


def _first(q):
    return jnp.concatenate([q[-1:], q[-4:-1], q[:-4]])


def _blocks(upper, lower, swap=False):
    """The matrix of [upper part; lower part] from [angular; linear]; `swap` puts the linear part on top."""
    zero = jnp.zeros((3, 3), upper.dtype)
    return jnp.block([[zero, lower], [upper, zero]] if swap else [[upper, zero], [zero, lower]])


def _local(q):
    return _blocks(jnp.eye(3, dtype=q.dtype), jnp.eye(3, dtype=q.dtype), swap=True)


def _half_local(q):
    return _blocks(jnp.eye(3, dtype=q.dtype), so3.matrix(q[:4]), swap=True)


def _world(q):
    return _blocks(so3.matrix(q[:4]), so3.matrix(q[:4]))


def _moving_plane(q):
    return so3.rotation_about(jnp.array([0.0, 0.0, 1.0], q.dtype), q[2]).T


def _rpy(q):
    R = so3.matrix(q)
    yaw, pitch = jnp.arctan2(R[1, 0], R[0, 0]), jnp.arctan2(-R[2, 0], jnp.hypot(R[0, 0], R[1, 0]))
    return jnp.stack([jnp.arctan2(R[2, 1], R[2, 2]), pitch, yaw])


def _from_rpy(rpy):
    turns = [so3.exp(rpy[i] * jnp.eye(3, dtype=rpy.dtype)[i]) for i in range(3)]
    return so3.multiply(turns[2], so3.multiply(turns[1], turns[0]))


_PINOCCHIO = _Library(
    {
        "free": _Rule(_last, _first, 7, _local),
        "spherical": _Rule(_last, _first, 4),
        "continuous": _Rule(
            lambda q: jnp.concatenate([jnp.cos(q), jnp.sin(q)]), lambda c: jnp.arctan2(c[1:], c[:1]), 2
        ),
        "planar": _Rule(
            lambda q: jnp.concatenate([q[:2], jnp.cos(q[2:]), jnp.sin(q[2:])]),
            lambda c: jnp.concatenate([c[:2], jnp.arctan2(c[3:], c[2:3])]),
            4,
            _moving_plane,
        ),
    },
    linear_first=True,
)
_MUJOCO = _Library(
    {
        "free": _Rule(lambda q: jnp.roll(q, 3), lambda q: jnp.roll(q, -3), 7, _half_local),
    }
)
_DRAKE = _Library(
    {
        "free": _Rule(_same, _same, 7, _world),
        "spherical": _Rule(_rpy, _from_rpy, 3, so3.matrix),
    }
)
_RBDL = _Library(
    {
        "free": _Rule(_last, _first, 7, _half_local, apart=1),
        "spherical": _Rule(_last, _first, 4, apart=1),
    }
)


_LIBRARIES = {"pinocchio": _PINOCCHIO, "mujoco": _MUJOCO, "drake": _DRAKE, "rbdl": _RBDL}


class _Block(NamedTuple):
    """A joint of the other library: our record of it and where it sits in all our coordinates and velocities."""

    joint: int
    rule: _Rule
    q: slice
    v: slice


def to_pinocchio(system: System, state: State | Float[Array, " nq"], joints: Sequence[str] | None = None) -> State:
    """Ours in Pinocchio's layout.

    Free flyer: q [position, quaternion x y z w], v [linear, angular] in body axes. Spherical: q quaternion x y z w.
    Continuous: q [cos, sin]. Planar: q [x, y, cos, sin], v in the moving axes. Six-vectors and rows of Jacobians are
    [linear, angular]: what is given in world axes belongs to pinocchio.LOCAL_WORLD_ALIGNED, with axes="local" to LOCAL.

    Args:
      state: what is to be converted, or q alone. Accelerations need the velocities beside them.
      joints: their order of joints, `list(model.names)[1:]`; ours when left out. Joints that follow others may be
        among them: their coordinates and velocities are filled in, their forces are zero.

    Raises: ValueError when the joints are not ours, and for matrices when followers are among them.
    """
    return _converted(_to, system, "pinocchio", state, joints)


def from_pinocchio(system: System, state: State | Float[Array, " nq"], joints: Sequence[str] | None = None) -> State:
    """Pinocchio's layout in ours; the inverse of `to_pinocchio`. Forces on followers go to their leaders."""
    return _converted(_from, system, "pinocchio", state, joints)


def to_mujoco(system: System, state: State | Float[Array, " nq"], joints: Sequence[str] | None = None) -> State:
    """Ours in MuJoCo's layout; arguments as for `to_pinocchio`.

    Free joint: qpos [position, quaternion w x y z], qvel [linear in world axes, angular in body axes]. Joints of
    several screws are several joints in MuJoCo, with the same numbers. Six-vectors are [angular, linear]: the first
    three rows of a Jacobian are `jacr` of mj_jac, the others `jacp`.
    """
    return _converted(_to, system, "mujoco", state, joints)


def from_mujoco(system: System, state: State | Float[Array, " nq"], joints: Sequence[str] | None = None) -> State:
    """MuJoCo's layout in ours; the inverse of `to_mujoco`."""
    return _converted(_from, system, "mujoco", state, joints)


def to_drake(system: System, state: State | Float[Array, " nq"], joints: Sequence[str] | None = None) -> State:
    """Ours in Drake's layout; arguments as for `to_pinocchio`.

    Quaternion floating joint: q [quaternion w x y z, position], v [angular, linear] in parent axes. Spherical: Drake's
    ball joint has q roll, pitch, yaw (singular at pitch = pi/2) and v the angular velocity in parent axes. Six-vectors
    are [angular, linear].
    """
    return _converted(_to, system, "drake", state, joints)


def from_drake(system: System, state: State | Float[Array, " nq"], joints: Sequence[str] | None = None) -> State:
    """Drake's layout in ours; the inverse of `to_drake`."""
    return _converted(_from, system, "drake", state, joints)


def to_rbdl(system: System, state: State | Float[Array, " nq"], joints: Sequence[str] | None = None) -> State:
    """Ours in RBDL's layout; arguments as for `to_pinocchio`.

    Floating base: q [position, quaternion x y z], the scalar parts of all quaternions at the end of q; v [linear in
    parent axes, angular in body axes]. Six-vectors are [angular, linear].
    """
    return _converted(_to, system, "rbdl", state, joints)


def from_rbdl(system: System, state: State | Float[Array, " nq"], joints: Sequence[str] | None = None) -> State:
    """RBDL's layout in ours; the inverse of `to_rbdl`."""
    return _converted(_from, system, "rbdl", state, joints)


def _converted(direction, system, library, state, joints) -> State:
    state = state if isinstance(state, State) else State(state)
    if state.a is not None and state.v is None:
        raise ValueError("Accelerations need the velocities too: give v beside a.")
    given = {name: jnp.asarray(x, system.gravity.dtype) for name, x in state._asdict().items() if x is not None}
    state = State(**given)
    return direction(system, library, state, None if joints is None else tuple(joints))


@partial(jax.jit, static_argnames=("library", "joints"))
def _to(system: System, library: str, state: State, joints: tuple[str, ...] | None) -> State:
    rules, layout = _LIBRARIES[library], system.topology.layout
    blocks = _order(system, rules, joints, state)
    system = _tangent(system, state)
    q = full_coordinates(system, state.q)
    own = [b.rule.to(q[b.q]) for b in blocks]
    apart = [len(x) - b.rule.apart for x, b in zip(own, blocks, strict=True)]
    parts = [x[:n] for x, n in zip(own, apart, strict=True)] + [x[n:] for x, n in zip(own, apart, strict=True)]
    v = a = tau = None
    if state.v is not None:
        v = full_velocities(system, state.v)
    if state.a is not None:
        a = full_accelerations(system, state.a)
        a = _join([_turn(b, q) @ a[b.v] + _drift(system, b, q, v) for b in blocks], q)
    if state.tau is not None:
        tau = jnp.zeros(layout.nv_full, q.dtype).at[layout.v_keep].set(state.tau)
        tau = _join([_turn(b, q) @ tau[b.v] for b in blocks], q)
    V = _matrix(system, blocks, q)
    return State(
        _join(parts, q),
        None if v is None else _join([_turn(b, q) @ v[b.v] for b in blocks], q),
        a,
        tau,
        None if state.mass_matrix is None else V @ state.mass_matrix @ V.T,
        None if state.jacobian is None else _rows(rules, state.jacobian, -2) @ V.T,
        None if state.motion is None else _rows(rules, state.motion, -1),
    )


@partial(jax.jit, static_argnames=("library", "joints"))
def _from(system: System, library: str, state: State, joints: tuple[str, ...] | None) -> State:
    rules, layout = _LIBRARIES[library], system.topology.layout
    blocks, q = _order(system, rules, joints, state), state.q
    sizes = [(b.q.stop - b.q.start if b.rule.size is None else b.rule.size) - b.rule.apart for b in blocks]
    starts, tail = np.cumsum([0, *sizes]), int(sum(sizes))
    ends = np.cumsum([0, *(b.v.stop - b.v.start for b in blocks)])
    nq, nv = tail + sum(b.rule.apart for b in blocks), int(ends[-1])
    for name, size in (("q", nq), ("v", nv), ("a", nv), ("tau", nv)):
        given = getattr(state, name)
        if given is not None and given.shape != (size,):
            raise ValueError(f"{name} has shape {given.shape}; in {library}'s layout these joints have {size} entries.")
    ours = jnp.zeros(layout.nq_full, q.dtype)
    for b, start, size in zip(blocks, starts, sizes, strict=False):
        own = jnp.concatenate([q[start : start + size], q[tail : tail + b.rule.apart]])
        ours, tail = ours.at[b.q].set(b.rule.back(own)), tail + b.rule.apart

    def back(x, speeds=None):
        full = jnp.zeros(layout.nv_full, q.dtype)
        for b, start, stop in zip(blocks, ends[:-1], ends[1:], strict=True):
            own = x[start:stop] if speeds is None else x[start:stop] - _drift(system, b, ours, speeds)
            full = full.at[b.v].set(_turn(b, ours).T @ own)
        return full

    v = None if state.v is None else back(state.v)
    system = _tangent(system, State(ours[layout.q_keep], None if v is None else v[layout.v_keep]))
    V = _matrix(system, blocks, ours)
    return State(
        ours[layout.q_keep],
        None if v is None else v[layout.v_keep],
        None if state.a is None else back(state.a, v)[layout.v_keep],
        None if state.tau is None else reduced_forces(system, back(state.tau)),
        None if state.mass_matrix is None else V.T @ state.mass_matrix @ V,
        None if state.jacobian is None else _rows(rules, state.jacobian, -2) @ V,
        None if state.motion is None else _rows(rules, state.motion, -1),
    )


def _tangent(system: System, state: State) -> System:
    """The system with its couplings on a curve as they are at this state."""
    return linearised(system, state.q, jnp.zeros(system.nv, state.q.dtype) if state.v is None else state.v)


def _order(system: System, library: _Library, names: tuple[str, ...] | None, state: State) -> list[_Block]:
    topology, layout = system.topology, system.topology.layout
    index = {entry.name: i for i, entry in enumerate(topology.joints) if entry.nv}
    names = system.joint_names if names is None else names
    followers = {topology.joints[f].name for f, _ in topology.couplings}
    unknown, missing = set(names) - set(index), set(system.joint_names) - set(names)
    if unknown or missing or len(set(names)) < len(names):
        raise ValueError(
            f"The other library's joints must be ours, once each: unknown here {sorted(unknown)}, missing there "
            f"{sorted(missing)}. Moving joints here: {', '.join(index)}."
        )
    matrices = state.mass_matrix is not None or state.jacobian is not None
    if matrices and followers & set(names):
        raise ValueError(
            f"Joints {sorted(followers & set(names))} follow others here and are free there, so that Jacobians and "
            "mass matrices have no counterpart; load the model with mimic='independent'."
        )
    blocks = []
    for i in (index[name] for name in names):
        rule = library.rules.get(topology.joints[i].kind, _Rule(_same, _same))
        q, v = (slice(int(s[i]), int(s[i + 1])) for s in (layout.q_start, layout.v_start))
        blocks.append(_Block(i, rule, q, v))
    return blocks


def _turn(block: _Block, q) -> Array:
    """V of a joint."""
    n = block.v.stop - block.v.start
    return jnp.eye(n, dtype=q.dtype) if block.rule.turn is None else block.rule.turn(q[block.q])


def _drift(system, block: _Block, q, v) -> Array:
    """V_dot v of a joint."""
    own, speed = q[block.q], v[block.v]
    turn = block.rule.turn
    if turn is None:
        return jnp.zeros_like(speed)
    rate = system.joint(system.topology.joints[block.joint].name).N(own) @ speed
    return jax.jvp(lambda own: turn(own) @ speed, (own,), (rate,))[1]


def _matrix(system, blocks: list[_Block], q) -> Array:
    """V of all joints, [their velocities, our independent ones]."""
    n = sum(b.v.stop - b.v.start for b in blocks)
    V, row = jnp.zeros((n, system.topology.layout.nv_full), q.dtype), 0
    for b in blocks:
        size = b.v.stop - b.v.start
        V, row = V.at[row : row + size, b.v].set(_turn(b, q)), row + size
    return V[:, system.topology.layout.v_keep]


def _rows(library: _Library, array, axis: int) -> Array:
    return jnp.roll(array, 3, axis) if library.linear_first else jnp.asarray(array)


def _join(parts: list[Array], like) -> Array:
    return jnp.concatenate(parts) if parts else jnp.zeros(0, like.dtype)
