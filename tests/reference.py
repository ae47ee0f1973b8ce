"""Dynamics of a tree of rigid bodies, written from the definitions: slow, dense, and sharing no code with jaxmbd.

A system is a plain specification (see `random_systems.py`) plus `numbers`: a dictionary from paths such as
"link.mass" to arrays, so that every function here can be differentiated in every number. World poses are products
of joint poses. Velocities are directional derivatives of poses along q_dot = N(q) v, accelerations are directional
derivatives of velocities, and the equations of motion are Kane's with Jacobians by automatic differentiation:

    tau = sum over bodies J_cᵀ m (c'' − g) + J_wᵀ (I w' + w × I w) − passive forces − wrenches.

Frames: everything in world axes, bodies at their centres of mass, six-vectors [angular; linear].
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

QUATERNION_KINDS = ("spherical", "free")


def _hasty_options():
    """Options for XLA's CPU compiler under which a test's program compiles in a third of the time and runs slower."""
    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x + 1, compiler_options=options)(0)
    except Exception:  # another version of XLA may not know them; whatever it says, the tests run without
        return {}
    return options


jit_in_haste = functools.partial(jax.jit, compiler_options=_hasty_options())


# ---------------------------------------------------------------------------------------------- rotations

EPSILON = np.zeros((3, 3, 3))  # (x × y)_i = EPSILON_ijk x_j y_k
HAMILTON = np.zeros((4, 4, 4))  # (a ⊗ b)_i = HAMILTON_ijk a_j b_k, quaternions (w, x, y, z)
for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
    EPSILON[i, j, k], EPSILON[i, k, j] = 1.0, -1.0
    HAMILTON[i + 1, j + 1, k + 1], HAMILTON[i + 1, k + 1, j + 1] = 1.0, -1.0
    HAMILTON[i + 1, 0, i + 1] = HAMILTON[i + 1, i + 1, 0] = 1.0
    HAMILTON[0, i + 1, i + 1] = -1.0
HAMILTON[0, 0, 0] = 1.0
CONJUGATE = np.diag([1.0, -1.0, -1.0, -1.0])


def skew(x):
    """Matrix of the cross product, skew(x) y = x × y."""
    return jnp.einsum("ijk,j->ik", EPSILON, x)


def axis_angle(axis, angle):
    """Rotation matrix by Rodrigues' formula 1 + sin K + (1 − cos) K²."""
    K = skew(axis) / jnp.sqrt(axis @ axis)
    return np.eye(3) + jnp.sin(angle) * K + (1.0 - jnp.cos(angle)) * (K @ K)


def quaternion_product(a, b):
    """Hamilton product of (w, x, y, z) quaternions."""
    return jnp.einsum("ijk,j,k->i", HAMILTON, a, b)


def quaternion_matrix(quaternion):
    """Rotation matrix of a quaternion of any length: the linear map x -> q ⊗ x ⊗ q* / |q|² of vectors."""
    left = jnp.einsum("ijk,j->ik", HAMILTON, quaternion)
    right = jnp.einsum("ijk,k->ij", HAMILTON, CONJUGATE @ quaternion)
    return (left @ right)[1:, 1:] / (quaternion @ quaternion)


def compose(first, second):
    """Pose (R, p) of frame c in a from those of b in a and of c in b."""
    (Ra, pa), (Rb, pb) = first, second
    return Ra @ Rb, pa + Ra @ pb


def inverse(pose):
    """Pose of a in b from that of b in a."""
    R, p = pose
    return R.T, -(R.T @ p)


IDENTITY = (np.eye(3), np.zeros(3))


# ----------------------------------------------------------------------------------------------- joint poses

SIMPLE = {"fixed": 0, "revolute": 1, "continuous": 1, "prismatic": 1, "screw": 1, "cylindrical": 2, "universal": 2}
SIMPLE |= {"planar": 3, "gimbal": 3, "translational": 3}


def sizes(joint):
    """Number of coordinates and of velocities of a joint, (nq, nv)."""
    if joint.kind == "spherical":
        return 4, 3
    if joint.kind == "free":
        return 7, 6
    if joint.kind == "screw_product":
        return len(joint.parameters["screws"]), len(joint.parameters["screws"])
    if joint.kind == "mapped":
        return joint.parameters["nq"], joint.parameters.get("nv", joint.parameters["nq"])
    return SIMPLE[joint.kind], SIMPLE[joint.kind]


def turned_plane(normal):
    """The inboard x and y axes after the least rotation that takes z to the normal (Rodrigues' formula again)."""
    n = normal / np.sqrt(normal @ normal)
    K = np.cross(np.cross(np.eye(3)[2], n), np.eye(3)).T
    R = np.eye(3) + K + K @ K / (1.0 + n[2])
    return R[:, 0], R[:, 1]


def axes_and_pitches(joint):
    """The directions and the pitches [m/rad] that are numbers of a joint, in order of its coordinates."""
    p = joint.parameters
    if joint.kind in ("revolute", "continuous", "prismatic"):
        return [p["axis"]], [0.0]
    if joint.kind == "screw":
        return [p["axis"]], [p["pitch"]]
    if joint.kind == "cylindrical":
        return [p["axis"], p["axis"]], [0.0, 0.0]
    if joint.kind == "universal":
        return [p["axis1"], p["axis2"]], [0.0, 0.0]
    if joint.kind == "planar":
        return [*turned_plane(p["normal"]), p["normal"] / np.linalg.norm(p["normal"])], [0.0] * 3
    if joint.kind == "gimbal":
        return [np.eye(3)["xyz".index(letter)] for letter in p["sequence"]], [0.0] * 3
    if joint.kind == "translational":
        return list(np.eye(3)), [0.0] * 3
    if joint.kind == "screw_product":
        return [axis for _, axis, _ in p["screws"]], [pitch for *_, pitch in p["screws"]]
    return [], []


def joint_pose(joint, u, turns, pitches, q):
    """Pose (R, p) of the outboard joint frame in the inboard one.

    u are the joint's directions at unit length, turns[i] the rotation about u[i] by q[i].
    """
    origin = np.zeros(3)
    if joint.kind == "fixed":
        return IDENTITY
    if joint.kind in ("revolute", "continuous"):
        return turns[0], origin
    if joint.kind == "prismatic":
        return np.eye(3), q[0] * u[0]
    if joint.kind == "screw":
        return turns[0], pitches[0] * q[0] * u[0]
    if joint.kind == "cylindrical":
        return turns[0], q[1] * (turns[0] @ u[1])
    if joint.kind == "universal":
        return turns[0] @ turns[1], origin
    if joint.kind == "planar":
        return turns[2], q[0] * u[0] + q[1] * u[1]
    if joint.kind == "gimbal":
        return turns[0] @ turns[1] @ turns[2], origin
    if joint.kind == "translational":
        return np.eye(3), q[0] * u[0] + q[1] * u[1] + q[2] * u[2]
    if joint.kind == "spherical":
        return quaternion_matrix(q), origin
    if joint.kind == "free":
        return quaternion_matrix(q[:4]), q[4:]
    if joint.kind == "screw_product":
        pose = IDENTITY
        for i, ((position, quaternion), _, _) in enumerate(joint.parameters["screws"]):
            screw = turns[i], pitches[i] * q[i] * u[i]
            pose = compose(compose(pose, (quaternion_matrix(quaternion), position)), screw)
        return pose
    if joint.kind == "mapped":
        return joint.parameters["function"](q)
    raise ValueError(f"reference.py knows no joint kind {joint.kind!r}")


def joint_q_dot(joint, q, v):
    """Rate of a joint's coordinates: half q ⊗ (0, w) for quaternions, R v for a free joint's position, N(q) v where
    the joint has an N of its own, else v.
    """
    if "N" in joint.parameters:
        return joint.parameters["N"](q) @ v
    if joint.kind not in QUATERNION_KINDS:
        return v
    rate = 0.5 * quaternion_product(q[:4], jnp.concatenate([jnp.zeros(1), v[:3]]))
    return rate if joint.kind == "spherical" else jnp.concatenate([rate, quaternion_matrix(q[:4]) @ v[3:]])


# ----------------------------------------------------------------------------------- numbers and coordinates


def numbers(spec):
    """Every physical number of a specification by path."""
    n = {"gravity": spec.gravity}
    for body in spec.bodies:
        I = body.inertia
        six = [I[0, 0], I[0, 1], I[0, 2], I[1, 1], I[1, 2], I[2, 2]]
        n |= {f"{body.name}.mass": body.mass, f"{body.name}.com": body.com, f"{body.name}.inertia": six}
        n[f"{body.name}.rotor_momentum"] = body.rotor_momentum
    for joint in spec.joints:
        for side, pose in (("in_parent", joint.in_parent), ("in_child", joint.in_child)):
            n[f"{joint.name}.{side}.position"], n[f"{joint.name}.{side}.rotation"] = pose
        axes, pitches = axes_and_pitches(joint)
        if axes:  # one screw has a direction [3] and a pitch, several have [k, 3] and [k]
            several = len(axes) > 1
            n[f"{joint.name}.axis"] = axes if several else axes[0]
            if joint.kind in ("screw", "screw_product"):
                n[f"{joint.name}.pitch"] = pitches if several else pitches[0]
        if sizes(joint)[1] == 0:
            continue
        for key in ("stiffness", "rest", "damping", "friction", "friction_speed", "armature"):
            value, one = np.asarray(getattr(joint, key)), sizes(joint)[key != "rest"] == 1
            n[f"{joint.name}.{key}"] = value.reshape(()) if one else value
    for frame in spec.frames:
        n[f"{frame.name}.position"], n[f"{frame.name}.rotation"] = frame.pose
    for coupling in spec.couplings:
        n |= {f"{coupling.follower}.ratio": coupling.ratio, f"{coupling.follower}.offset": coupling.offset}
    return {path: jnp.asarray(value, float) for path, value in n.items()}


def moving(spec):
    """Joints with freedoms."""
    return [joint for joint in spec.joints if sizes(joint)[1]]


def heavy(spec):
    """Bodies that take part in the dynamics: all but those welded to the world."""
    joint_of = {joint.child: joint for joint in spec.joints}

    def moves(name):
        return name != "world" and (sizes(joint_of[name])[1] > 0 or moves(joint_of[name].parent))

    return [body for body in spec.bodies if moves(body.name)]


def _followers(spec):
    return {coupling.follower: coupling.leader for coupling in spec.couplings}


def independent(spec):
    """Joints with slots in q and v, in order of declaration."""
    return [joint for joint in spec.joints if joint.name not in _followers(spec)]


def split(spec, x, which):
    """Pieces of q (which = 0) or v (which = 1) by independent joint."""
    pieces, start = {}, 0
    for joint in independent(spec):
        size = sizes(joint)[which]
        pieces[joint.name] = x[start : start + size]
        start += size
    return pieces


def coordinates(spec, n, q):
    """Coordinates of every joint, followers by q_follower = ratio q_leader + offset."""
    pieces, waiting = split(spec, q, 0), dict(_followers(spec))
    while waiting:
        for follower in [f for f, leader in waiting.items() if leader in pieces]:
            leader = waiting.pop(follower)
            pieces[follower] = n[f"{follower}.ratio"] * pieces[leader] + n[f"{follower}.offset"]
    return pieces


def speeds(spec, n, v):
    """Velocities of every joint."""
    pieces, waiting = split(spec, v, 1), dict(_followers(spec))
    while waiting:
        for follower in [f for f, leader in waiting.items() if leader in pieces]:
            pieces[follower] = n[f"{follower}.ratio"] * pieces[waiting.pop(follower)]
    return pieces


def q_dot(spec, q, v):
    """q_dot = N(q) v."""
    qs, vs = split(spec, q, 0), split(spec, v, 1)
    return jnp.concatenate([joint_q_dot(joint, qs[joint.name], vs[joint.name]) for joint in independent(spec)])


# ------------------------------------------------------------------------------------------------- kinematics


def joint_poses(spec, n, q):
    """Pose of the outboard frame of every joint in the inboard one, by name."""
    qs = coordinates(spec, n, q)
    screws = [j for j in spec.joints if f"{j.name}.axis" in n]
    pieces = {}
    if screws:  # the rotations of all joints at once: a few array operations in place of a few for each
        u = jnp.concatenate([n[f"{j.name}.axis"].reshape(-1, 3) for j in screws])
        u = u / jnp.sqrt(jnp.sum(u * u, axis=1))[:, None]
        turns = jax.vmap(axis_angle)(u, jnp.concatenate([qs[j.name] for j in screws]))
        ends = np.cumsum([sizes(j)[0] for j in screws])
        for j, end in zip(screws, ends, strict=True):
            at = range(end - sizes(j)[0], end)
            pitches = n.get(f"{j.name}.pitch", np.zeros(len(at))).reshape(-1)
            pieces[j.name] = [u[i] for i in at], [turns[i] for i in at], pitches
    return {j.name: joint_pose(j, *pieces.get(j.name, ((), (), ())), qs[j.name]) for j in spec.joints}


def constant_poses(spec, n):
    """Poses of joint frames in bodies and of frames on bodies, by path."""
    paths = [f"{j.name}.{side}" for j in spec.joints for side in ("in_parent", "in_child")]
    paths += [frame.name for frame in spec.frames]
    R = jax.vmap(quaternion_matrix)(jnp.stack([n[f"{path}.rotation"] for path in paths]))
    return {path: (R[i], n[f"{path}.position"]) for i, path in enumerate(paths)}


def poses(spec, n, q):
    """World pose (R, p) of every body and frame by name."""
    joints, constant = joint_poses(spec, n, q), constant_poses(spec, n)
    world, waiting = {"world": IDENTITY}, list(spec.joints)
    while waiting:
        joint = next(j for j in waiting if j.parent in world)
        waiting.remove(joint)
        inboard = compose(world[joint.parent], constant[f"{joint.name}.in_parent"])
        outboard = compose(inboard, joints[joint.name])
        world[joint.child] = compose(outboard, inverse(constant[f"{joint.name}.in_child"]))
    for frame in spec.frames:
        world[frame.name] = compose(world[frame.on], constant[frame.name])
    return world


def frame_names(spec):
    """Names that have a pose: bodies, then frames."""
    return [b.name for b in spec.bodies] + [f.name for f in spec.frames]


def points(spec, n, q):
    """Rotations [k, 3, 3], positions [k, 3]: centres of mass of heavy bodies, then origins of all bodies and frames."""
    world = poses(spec, n, q)
    coms = [compose(world[b.name], (np.eye(3), n[f"{b.name}.com"])) for b in heavy(spec)]
    both = coms + [world[name] for name in frame_names(spec)]
    return jnp.stack([R for R, _ in both]), jnp.stack([p for _, p in both])


def velocities(spec, n, q, v):
    """Velocities [k, 6] of `points`: angular from R' Rᵀ, linear from p'."""
    (R, _), (R_dot, p_dot) = jax.jvp(lambda q: points(spec, n, q), (q,), (q_dot(spec, q, v),))
    w = -0.5 * jnp.einsum("aij,kil,kjl->ka", EPSILON, R_dot, R)
    return jnp.concatenate([w, p_dot], axis=1)


class Motion(NamedTuple):
    """The state and what follows from it without masses; rows as in `points`, J maps v to V."""

    q: jax.Array
    v: jax.Array
    a: jax.Array
    R: jax.Array
    p: jax.Array
    V: jax.Array
    A: jax.Array
    J: jax.Array
    N: jax.Array


def motion(spec, n, q, v, a):
    """Poses, velocities, classical accelerations (the time derivative of the velocities), Jacobians, q_dot = N v."""
    R, p = points(spec, n, q)
    V, A = jax.jvp(lambda q, v: velocities(spec, n, q, v), (q, v), (q_dot(spec, q, v), a))
    J = jax.jacfwd(lambda v: velocities(spec, n, q, v))(jnp.zeros(v.shape))
    N = jax.jacfwd(lambda v: q_dot(spec, q, v))(jnp.zeros(v.shape))
    return Motion(q, v, a, R, p, V, A, J, N)


def row(spec, name):
    """Row of a body's or frame's origin in `points`."""
    return len(heavy(spec)) + frame_names(spec).index(name)


# --------------------------------------------------------------------------------------------------- dynamics


def _masses(spec, n):
    return jnp.stack([n[f"{b.name}.mass"] for b in heavy(spec)])


def world_inertias(spec, n, k):
    """Inertias [nb, 3, 3] about the centres of mass in world axes."""
    R = k.R[: len(heavy(spec))]
    six = jnp.stack([n[f"{b.name}.inertia"] for b in heavy(spec)])
    local = six[:, np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])]
    return jnp.einsum("kia,kab,kjb->kij", R, local, R)


def _rotor_momenta(spec, n, k):
    """Angular momenta [nb, 3] of the rotors inside gyrostats, world axes."""
    own = jnp.stack([n[f"{b.name}.rotor_momentum"] for b in heavy(spec)])
    return jnp.einsum("kij,kj->ki", k.R[: len(heavy(spec))], own)


def _armature_energy(spec, n, v):
    vs = speeds(spec, n, v)
    return 0.5 * sum(jnp.sum(n[f"{j.name}.armature"] * vs[j.name] ** 2) for j in moving(spec))


def mass_matrix(spec, n, k):
    """M = sum J_cᵀ m J_c + J_wᵀ I J_w, plus the Hessian of the energy ½ sum armature v²."""
    J = k.J[: len(heavy(spec))]
    linear = jnp.einsum("kia,k,kib->ab", J[:, 3:], _masses(spec, n), J[:, 3:])
    angular = jnp.einsum("kia,kij,kjb->ab", J[:, :3], world_inertias(spec, n, k), J[:, :3])
    return linear + angular + jax.hessian(lambda v: _armature_energy(spec, n, v))(k.v)


def gravity_potential(spec, n, k):
    """Potential energy of gravity, zero at the world origin."""
    return -jnp.sum(_masses(spec, n) * (k.p[: len(heavy(spec))] @ n["gravity"]))


def deflection(joint, q, rest):
    """What a joint's springs are stretched by: q − rest, for a rotation the rotation vector from rest to q."""
    if joint.kind not in QUATERNION_KINDS:
        return q - rest
    unit = q[:4] / jnp.sqrt(q[:4] @ q[:4])
    turn = quaternion_product(CONJUGATE @ rest[:4] / jnp.sqrt(rest[:4] @ rest[:4]), unit)
    turn = turn * jnp.sign(turn[0])
    sine = jnp.sqrt(turn[1:] @ turn[1:])
    return jnp.concatenate([2.0 * jnp.arctan2(sine, turn[0]) * turn[1:] / sine, q[4:] - rest[4:]])


def spring_potential(spec, n, q):
    """½ k e² over all joints with springs; a rotation away from rest, where the reference is smooth."""
    qs, total = coordinates(spec, n, q), 0.0
    for j in spec.joints:
        if np.any(np.asarray(j.stiffness)):
            total += 0.5 * jnp.sum(n[f"{j.name}.stiffness"] * deflection(j, qs[j.name], n[f"{j.name}.rest"]) ** 2)
    return jnp.asarray(total, float)


def energy(spec, n, k):
    """(kinetic, potential) energy."""
    potential = gravity_potential(spec, n, k) + spring_potential(spec, n, k.q)
    return 0.5 * k.v @ mass_matrix(spec, n, k) @ k.v, potential


def gravity_force(spec, n, k):
    """Gravity on the left-hand side, −J_cᵀ m g: the gradient of its potential along the tangent."""
    return -jnp.einsum("kia,k,i->a", k.J[: len(heavy(spec)), 3:], _masses(spec, n), n["gravity"])


def passive_force(spec, n, k):
    """Springs, dampers and dry friction of all joints, −k (q − rest) − d v − f tanh(v / speed), by their power."""

    def power(w):
        vs, ws = speeds(spec, n, k.v), speeds(spec, n, w)
        total = 0.0
        for j in moving(spec):
            friction = n[f"{j.name}.friction"] * jnp.tanh(vs[j.name] / n[f"{j.name}.friction_speed"])
            total -= jnp.sum((n[f"{j.name}.damping"] * vs[j.name] + friction) * ws[j.name])
        return total

    springs = k.N.T @ jax.grad(lambda q: spring_potential(spec, n, q))(k.q)
    return jax.grad(power)(k.v) - springs


def inertia_force(spec, n, k, a):
    """Generalised inertia force J_cᵀ m c'' + J_wᵀ (I w' + w × I w) + armature a."""
    nb = len(heavy(spec))
    J, V, A = k.J[:nb], k.V[:nb], k.A[:nb] + k.J[:nb] @ (a - k.a)
    I, w = world_inertias(spec, n, k), V[:, :3]
    spin = jnp.einsum("kij,kj->ki", I, w) + _rotor_momenta(spec, n, k)
    torque = jnp.einsum("kij,kj->ki", I, A[:, :3]) + jnp.cross(w, spin)
    force = _masses(spec, n)[:, None] * A[:, 3:]
    armature = jax.hessian(lambda v: _armature_energy(spec, n, v))(k.v) @ a
    return jnp.einsum("kia,ki->a", J[:, :3], torque) + jnp.einsum("kia,ki->a", J[:, 3:], force) + armature


def wrench_force(spec, n, k, wrenches):
    """Generalised force of wrenches (frame, moment, force, point in frame axes, axes) by their power."""
    total = jnp.zeros(k.v.shape)
    for frame, moment, force, point, axes in wrenches:
        R, J = k.R[row(spec, frame)], k.J[row(spec, frame)]
        turn = R if axes == "local" else np.eye(3)
        moment, force, arm = turn @ moment, turn @ force, R @ point
        total += J[:3].T @ (moment + jnp.cross(arm, force)) + J[3:].T @ force
    return total


def bias_force(spec, n, k):
    """Forces that keep v constant without passive forces: C v + g."""
    return inertia_force(spec, n, k, jnp.zeros(k.v.shape)) + gravity_force(spec, n, k)


def inverse_dynamics(spec, n, k, wrenches=()):
    """Joint forces for a motion."""
    internal = inertia_force(spec, n, k, k.a) + gravity_force(spec, n, k)
    return internal - passive_force(spec, n, k) - wrench_force(spec, n, k, wrenches)


def forward_dynamics(spec, n, k, tau, wrenches=()):
    """Accelerations for joint forces, by a dense solve."""
    rest = inverse_dynamics(spec, n, k, wrenches) - mass_matrix(spec, n, k) @ k.a
    return jnp.linalg.solve(mass_matrix(spec, n, k), tau - rest)


def com(spec, n, k):
    """Centre of mass of the system."""
    m = _masses(spec, n)
    return m @ k.p[: len(heavy(spec))] / jnp.sum(m)


def momentum(spec, n, k):
    """Momentum [6]: angular about the system's centre of mass, then linear."""
    nb = len(heavy(spec))
    linear = _masses(spec, n)[:, None] * k.V[:nb, 3:]
    spin = jnp.einsum("kij,kj->ki", world_inertias(spec, n, k), k.V[:nb, :3]) + _rotor_momenta(spec, n, k)
    arms = k.p[:nb] - com(spec, n, k)[None, :]
    return jnp.concatenate([jnp.sum(spin + jnp.cross(arms, linear), axis=0), jnp.sum(linear, axis=0)])


def evaluate(spec, n, q, v, a, tau, wrenches=()):
    """Every quantity at one state, by the library's name of its function."""
    k = motion(spec, n, q, v, a)
    return {
        "motion": k,
        "forward_dynamics": forward_dynamics(spec, n, k, tau, wrenches),
        "inverse_dynamics": inverse_dynamics(spec, n, k, wrenches),
        "mass_matrix": mass_matrix(spec, n, k),
        "bias_force": bias_force(spec, n, k),
        "gravity_force": gravity_force(spec, n, k),
        "energy": energy(spec, n, k),
        "momentum": momentum(spec, n, k),
        "com": com(spec, n, k),
        "q_dot": q_dot(spec, q, v),
    }


@functools.lru_cache
def evaluate_batch(spec, axes=()):
    """`evaluate` over a batch of states, compiled in haste: evaluate_batch(spec)(n, q, v, a, tau, wrench numbers).

    `axes` gives the frame and the axes of every wrench; its numbers (moment, force, point) come with the call.
    """

    def one(n, q, v, a, tau, wrenches):
        acting = [(frame, *numbers, axis) for (frame, axis), numbers in zip(axes, wrenches, strict=True)]
        return evaluate(spec, n, q, v, a, tau, acting)

    batched = jax.vmap(one, in_axes=(None, 0, 0, 0, 0, None))
    return jit_in_haste(batched)
