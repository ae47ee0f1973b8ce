"""Random trees with every joint kind: a plain specification in numpy, and `build`, which hands it to `mb.Builder`.

The specification is what `reference.py` computes with, so nothing in it comes from jaxmbd. Inertias are those of
random clouds of points, hence physically valid; poses, axes and pitches are random; bodies may be massless where the
mass matrix stays regular. `states` draws random states and `singular_states` the awkward ones on purpose.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import reference

import jaxmbd as mb

IDENTITY = (np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))
EVERY_KIND = (
    "revolute",
    "spherical",
    "screw",
    "fixed",
    "universal",
    "planar",
    "free",
    "cylindrical",
    "prismatic",
    "mapped:surface",
    "screw_product:3",
    "gimbal:zxz",
    "translational",
)


@dataclass(frozen=True, eq=False)
class BodySpec:
    """A rigid body; inertia [3, 3] about its centre of mass in body axes."""

    name: str
    mass: float = 0.0
    com: Any = field(default_factory=lambda: np.zeros(3))
    inertia: Any = field(default_factory=lambda: np.zeros((3, 3)))
    rotor_momentum: Any = field(default_factory=lambda: np.zeros(3))


@dataclass(frozen=True, eq=False)
class JointSpec:
    """A joint; poses are (position, quaternion), passive numbers arrays [nv]."""

    name: str
    kind: str
    parameters: dict
    parent: str
    child: str
    in_parent: tuple = IDENTITY
    in_child: tuple = IDENTITY
    stiffness: Any = 0.0
    rest: Any = 0.0
    damping: Any = 0.0
    friction: Any = 0.0
    friction_speed: Any = 1e-2
    armature: Any = 0.0


@dataclass(frozen=True, eq=False)
class FrameSpec:
    """A named frame on a body."""

    name: str
    on: str
    pose: tuple = IDENTITY


@dataclass(frozen=True, eq=False)
class CouplingSpec:
    """q_follower = ratio q_leader + offset."""

    follower: str
    leader: str
    ratio: float
    offset: float


@dataclass(frozen=True, eq=False)
class SystemSpec:
    """A tree of bodies; joints in order of declaration, which need not be an order from base to tips."""

    bodies: tuple[BodySpec, ...]
    joints: tuple[JointSpec, ...]
    frames: tuple[FrameSpec, ...] = ()
    couplings: tuple[CouplingSpec, ...] = ()
    gravity: Any = field(default_factory=lambda: np.array([0.0, 0.0, -9.81]))


# --------------------------------------------------------------------------------------------- user functions


def surface(q):
    """Pose (R, p) of a body that slides on a saddle and tilts with it."""
    R = reference.axis_angle(jnp.array([1.0, 0.0, 0.0]), q[1]) @ reference.axis_angle(jnp.array([0.0, 1.0, 0.0]), q[0])
    return R, jnp.stack([q[0], 0.5 * q[1], 0.3 * q[0] ** 2 - 0.2 * q[0] * q[1]])


def curve(q):
    """Pose (R, p) of a bead that turns while it runs along a space curve."""
    R = reference.axis_angle(jnp.array([0.3, -0.5, 0.8]), 1.3 * q[0] + 0.2 * jnp.sin(q[0]))
    return R, jnp.stack([jnp.cos(q[0]), 0.5 * jnp.sin(2.0 * q[0]), 0.3 * q[0]])


def blade(q):
    """Pose (R, p) of a body in the plane: x, y, yaw."""
    return reference.axis_angle(jnp.array([0.0, 0.0, 1.0]), q[2]), jnp.stack([q[0], q[1], 0.0 * q[0]])


def blade_rates(q):
    """q_dot = N v of a knife edge: v = speed along the blade, yaw rate."""
    c, s, z = jnp.cos(q[2]), jnp.sin(q[2]), 0.0 * q[2]
    return jnp.stack([jnp.stack([c, z]), jnp.stack([s, z]), jnp.stack([z, z + 1.0])])


RADIUS = 0.4


def disc(q):
    """Pose (R, p) of a disc on the plane z = 0: x, y of the contact point, yaw, lean, spin about its own y."""
    turn = reference.axis_angle
    R = turn(jnp.array([0.0, 0.0, 1.0]), q[2]) @ turn(jnp.array([1.0, 0.0, 0.0]), q[3])
    centre = jnp.stack([q[0], q[1], 0.0 * q[0]]) + RADIUS * R[:, 2]
    return R @ turn(jnp.array([0.0, 1.0, 0.0]), q[4]), centre


def disc_rates(q):
    """q_dot = N v of rolling without slipping: v = rates of yaw, lean and spin; the contact runs along the heading."""
    c, s, z = jnp.cos(q[2]), jnp.sin(q[2]), 0.0 * q[2]
    rows = [[z, z, RADIUS * c], [z, z, RADIUS * s], [z + 1.0, z, z], [z, z + 1.0, z], [z, z, z + 1.0]]
    return jnp.stack([jnp.stack(row) for row in rows])


def cardan(q):
    """Pose (R, p) of a ball joint in the angles x-y-z, and ..."""
    R = np.eye(3)
    for axis, angle in zip(np.eye(3), q, strict=True):
        R = R @ reference.axis_angle(jnp.asarray(axis), angle)
    return R, jnp.zeros(3) * q[0]


def cardan_rates(q):
    """... the rates of the angles by the angular velocity in outboard axes: quasi-velocities, no rates of anything."""
    (cy, cz), (sy, sz), z = jnp.cos(q[1:]), jnp.sin(q[1:]), 0.0 * q[0]
    rows = [[cz / cy, -sz / cy, z], [sz, cz, z], [-cz * sy / cy, sz * sy / cy, z + 1.0]]
    return jnp.stack([jnp.stack(row) for row in rows])


MAPPED = {"surface": (surface, 2), "curve": (curve, 1)}
QUASI = {"blade": (blade, 3, 2, blade_rates), "disc": (disc, 5, 3, disc_rates), "cardan": (cardan, 3, 3, cardan_rates)}


def as_pose(function):
    """A function q -> (R, p) as the q -> Pose that `mb.mapped` takes."""

    def pose(q):
        R, p = function(q)
        return mb.Pose(p, R)

    return pose


# ------------------------------------------------------------------------------------------------- generators


def unit(rng):
    """A random direction."""
    x = rng.normal(size=3)
    return x / np.linalg.norm(x)


def random_pose(rng, length=0.4):
    """A random (position, quaternion)."""
    quaternion = rng.normal(size=4)
    return rng.normal(size=3) * length, quaternion / np.linalg.norm(quaternion)


def random_body(rng, name):
    """A body made of six random points with masses of order 0.3 kg."""
    masses, at = rng.uniform(0.1, 0.6, size=6), rng.normal(size=(6, 3)) * 0.3
    com = masses @ at / masses.sum()
    arms = at - com[None, :]
    second = np.einsum("k,ki,kj->ij", masses, arms, arms)
    inertia = np.trace(second) * np.eye(3) - second
    return BodySpec(name, float(masses.sum()), com, inertia)


def _parameters(rng, kind, argument):
    if kind in ("revolute", "continuous", "prismatic", "cylindrical"):
        return {"axis": unit(rng)}
    if kind == "screw":
        return {"axis": unit(rng), "pitch": float(rng.uniform(0.05, 0.3))}
    if kind == "universal":
        first = unit(rng)
        second = np.cross(first, unit(rng)) + 0.2 * first
        return {"axis1": first, "axis2": second / np.linalg.norm(second)}
    if kind == "planar":
        return {"normal": unit(rng)}
    if kind == "gimbal":
        return {"sequence": argument}
    if kind == "screw_product":
        return {"screws": [(random_pose(rng, 0.3), unit(rng), 0.1 * float(rng.normal())) for _ in range(int(argument))]}
    if kind == "mapped" and argument in QUASI:
        return dict(zip(("function", "nq", "nv", "N"), QUASI[argument], strict=True))
    if kind == "mapped":
        function, nq = MAPPED[argument]
        return {"function": function, "nq": nq}
    return {}


def random_joint(rng, kind, name, parent, child, passive=False, offsets=True):
    """A joint of a kind such as "revolute", "gimbal:zxz", "screw_product:3" or "mapped:curve"."""
    kind, _, argument = kind.partition(":")
    joint = JointSpec(name, kind, _parameters(rng, kind, argument), parent, child)
    if offsets:
        joint = replace(joint, in_parent=random_pose(rng), in_child=random_pose(rng, 0.2))
    nq, nv = reference.sizes(joint)
    joint = replace(joint, stiffness=np.zeros(nv), damping=np.zeros(nv), friction=np.zeros(nv))
    joint = replace(joint, armature=np.zeros(nv), friction_speed=np.full(nv, 1e-2), rest=np.zeros(nq))
    if kind in reference.QUATERNION_KINDS:
        joint = replace(joint, rest=np.concatenate([np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(nq - 4)]))
    if not passive:
        return joint
    joint = replace(joint, damping=rng.uniform(0.1, 0.5, nv), friction=rng.uniform(0.1, 0.4, nv))
    if "N" in joint.parameters:
        return joint  # springs need rates of coordinates
    joint = replace(joint, friction_speed=rng.uniform(0.3, 0.8, nv), armature=rng.uniform(0.02, 0.2, nv))
    joint = replace(joint, stiffness=rng.uniform(0.5, 3.0, nv))
    if kind in reference.QUATERNION_KINDS:
        return replace(joint, rest=np.concatenate([random_pose(rng)[1], rng.normal(size=nq - 4) * 0.3]))
    return replace(joint, rest=rng.normal(size=nq) * 0.3)


def random_tree(
    seed: int,
    joint_kinds: Sequence[str],
    shape: str = "tree",
    passive: bool = False,
    massless: Sequence[int] = (),
    couple: Sequence[tuple[int, int]] = (),
    offsets: bool = True,
    shuffle: bool = False,
) -> SystemSpec:
    """A tree with one moving body a joint kind.

    Args:
        seed: of the numbers, and of the parents where shape is "tree".
        joint_kinds: joint i carries body "b<i>" and is named "j<i>".
        shape: "chain", "star" (every body on the first), "branches" (a binary tree) or "tree" (random parents).
        passive: springs, dampers, friction and armature in every joint.
        massless: bodies without mass or inertia.
        couple: pairs (follower, leader) of joints with one coordinate.
        offsets: random poses of the joints in their bodies, else none.
        shuffle: declare bodies and joints in random order.
    """
    rng = np.random.default_rng(seed)
    parents = {
        "chain": lambda i: i - 1,
        "star": lambda i: min(i, 1) - 1,
        "branches": lambda i: (i - 1) // 2 if i else -1,
        "tree": lambda i: int(rng.integers(max(0, i - 3), i)) if i else -1,
    }
    bodies, joints = [], []
    for i, kind in enumerate(joint_kinds):
        parent = parents[shape](i)
        bodies.append(BodySpec(f"b{i}") if i in massless else random_body(rng, f"b{i}"))
        inboard = "world" if parent < 0 else f"b{parent}"
        joints.append(random_joint(rng, kind, f"j{i}", inboard, f"b{i}", passive, offsets))
    frames = (FrameSpec("tool", f"b{len(bodies) - 1}", random_pose(rng)), FrameSpec("eye", "b0", random_pose(rng)))
    couplings = [CouplingSpec(f"j{f}", f"j{k}", rng.uniform(-2.0, 2.0), 0.2 * rng.normal()) for f, k in couple]
    if shuffle:
        bodies = [bodies[i] for i in rng.permutation(len(bodies))]
        joints = [joints[i] for i in rng.permutation(len(joints))]
    return SystemSpec(tuple(bodies), tuple(joints), frames, tuple(couplings), rng.normal(size=3) * 6.0)


def constructed(joint: JointSpec):
    """The library's record of a joint."""
    p = joint.parameters
    if joint.kind == "universal":
        return mb.universal(p["axis1"], p["axis2"])
    if joint.kind == "gimbal":
        return mb.gimbal(p["sequence"])
    if joint.kind == "screw_product":
        factors = [(mb.Pose(*pose), mb.screw(axis, pitch)) for pose, axis, pitch in p["screws"]]
        return mb.screw_product([factor for pair in factors for factor in pair])
    if joint.kind == "mapped":
        return mb.mapped(as_pose(p["function"]), p["nq"], N=p.get("N"))
    return getattr(mb, joint.kind)(*p.values())


def build(spec: SystemSpec) -> mb.System:
    """The System of a specification, through the public builder."""
    b = mb.Builder(gravity=spec.gravity)
    for body in spec.bodies:
        b.body(body.name, body.mass, body.com, body.inertia, body.rotor_momentum)
    for joint in spec.joints:
        keys = ("stiffness", "rest", "damping", "friction", "friction_speed", "armature")
        passive = {key: getattr(joint, key) for key in keys if reference.sizes(joint)[1]}
        in_parent, in_child = mb.Pose(*joint.in_parent), mb.Pose(*joint.in_child)
        b.joint(joint.name, constructed(joint), joint.parent, joint.child, in_parent, in_child, **passive)
    for frame in spec.frames:
        b.frame(frame.name, on=frame.on, pose=mb.Pose(*frame.pose))
    for coupling in spec.couplings:
        b.couple(coupling.follower, coupling.leader, ratio=coupling.ratio, offset=coupling.offset)
    return b.build()


# ----------------------------------------------------------------------------------------------------- states


def _quaternion(rng, turn):
    if turn is None:
        quaternion = rng.normal(size=4)
        return quaternion / np.linalg.norm(quaternion)
    return np.concatenate([[np.cos(turn / 2)], np.sin(turn / 2) * unit(rng)])


def _coordinates(spec, rng, scale, turn):
    pieces = []
    for joint in reference.independent(spec):
        nq, _ = reference.sizes(joint)
        rotation = [_quaternion(rng, turn)] if joint.kind in reference.QUATERNION_KINDS else []
        pieces += rotation + [rng.normal(size=nq - 4 * len(rotation)) * scale]
    return np.concatenate(pieces)


def states(spec: SystemSpec, seed: int, count: int) -> tuple[np.ndarray, ...]:
    """Random q, v, a, tau, each [count, ...]."""
    rng = np.random.default_rng(seed)
    nv = sum(reference.sizes(joint)[1] for joint in reference.independent(spec))
    q = np.stack([_coordinates(spec, rng, 0.7, None) for _ in range(count)])
    return (q, *(rng.normal(size=(count, nv)) for _ in range(3)))


def singular_states(spec: SystemSpec, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Awkward (q, v) by name: at rest, straight, turned by pi, by tiny angles, on and opposite the springs' rest."""
    rng = np.random.default_rng(seed)
    nv = sum(reference.sizes(joint)[1] for joint in reference.independent(spec))
    straight = _coordinates(spec, rng, 0.0, 0.0)
    slack = np.concatenate([np.reshape(j.rest, -1) for j in reference.independent(spec) if reference.sizes(j)[1]])
    return {
        "at rest": (_coordinates(spec, rng, 0.7, None), np.zeros(nv)),
        "straight and at rest": (straight, np.zeros(nv)),
        "straight and moving": (straight, rng.normal(size=nv)),
        "turned by pi": (_coordinates(spec, rng, 0.0, np.pi), rng.normal(size=nv)),
        "turned by almost pi": (_coordinates(spec, rng, 1e-3, np.pi - 1e-9), np.zeros(nv)),
        "turned by a hair": (_coordinates(spec, rng, 1e-12, 1e-10), 1e-10 * rng.normal(size=nv)),
        "springs slack": (slack, rng.normal(size=nv)),
        "turned by pi from the rest of springs": (_half_turns(spec, slack), np.zeros(nv)),
    }


def _half_turns(spec, q):
    """Coordinates with every quaternion turned by pi about x."""
    pieces = reference.split(spec, q, 0)
    turn = np.array([0.0, 1.0, 0.0, 0.0])
    for joint in reference.independent(spec):
        own = pieces[joint.name]
        if joint.kind in reference.QUATERNION_KINDS:
            pieces[joint.name] = np.concatenate([reference.quaternion_product(own[:4], turn), own[4:]])
    return np.concatenate(list(pieces.values()))


# ------------------------------------------------------------------- the few systems that most tests compile for


def _with_gyrostat(spec, name):
    """One body with a spinning rotor inside."""
    momenta = {name: np.array([0.3, -0.5, 0.2])}
    bodies = [replace(b, rotor_momentum=momenta.get(b.name, np.zeros(3))) for b in spec.bodies]
    return replace(spec, bodies=tuple(bodies))


@functools.cache
def menagerie() -> SystemSpec:
    """Every joint kind once on a random tree, declared in random order, with everything passive and a coupling."""
    return random_tree(1, EVERY_KIND, "tree", passive=True, couple=((8, 0),), shuffle=True)


@functools.cache
def floater() -> SystemSpec:
    """A free body with two branches, a massless spider in one and a gyrostat in the other; its root is not braked."""
    kinds = ("free", "spherical", "universal", "revolute", "fixed", "prismatic", "screw")
    spec = random_tree(2, kinds, "branches", passive=True, massless=(2,))
    root = random_joint(np.random.default_rng(0), "free", "j0", "world", "b0")
    return _with_gyrostat(replace(spec, joints=(root, *spec.joints[1:])), "b3")


@functools.cache
def arm() -> SystemSpec:
    """A chain of hinges and a slider on a pedestal welded to the world, with passive forces and a coupled finger."""
    kinds = ("fixed", "revolute", "continuous", "prismatic", "revolute")
    return random_tree(3, kinds, "chain", passive=True, couple=((4, 2),))


@functools.cache
def slider() -> SystemSpec:
    """Joints whose poses are users' functions, one on the other, between a planar joint and a ball."""
    return random_tree(6, ("mapped:surface", "mapped:curve", "planar", "spherical"), "chain", passive=True)


@functools.cache
def zoo() -> SystemSpec:
    """Every joint kind once on a random tree as in `menagerie`, without a coupling: all by the recursions."""
    return random_tree(1, EVERY_KIND, "tree", passive=True, shuffle=True)


@functools.cache
def skater() -> SystemSpec:
    """Joints with an N(q) of their own: a blade, a disc and quasi-velocities, with a hinge and a ball between."""
    kinds = ("mapped:blade", "revolute", "mapped:disc", "mapped:cardan", "spherical")
    return random_tree(8, kinds, "tree", passive=True)


@functools.cache
def tumbler() -> SystemSpec:
    """Two bodies, free and on a ball joint, with springs in both: the smallest system with every quaternion joint."""
    return random_tree(4, ("free", "spherical"), "chain", passive=True)


QUANTITIES = {
    "kinematics": lambda s, q, v, a, tau, w: mb.kinematics(s, q, v, a),
    "forward_dynamics": lambda s, q, v, a, tau, w: mb.forward_dynamics(s, q, v, tau, w),
    "inverse_dynamics": lambda s, q, v, a, tau, w: mb.inverse_dynamics(s, q, v, a, w),
    "mass_matrix": lambda s, q, v, a, tau, w: mb.mass_matrix(s, q),
    "energy": lambda s, q, v, a, tau, w: mb.energy(s, q, v),
    "momentum": lambda s, q, v, a, tau, w: mb.momentum(s, q, v),
    "q_dot": lambda s, q, v, a, tau, w: mb.q_dot(s, q, v),
    "jacobian": lambda s, q, v, a, tau, w: mb.jacobian(s, q, "tool"),
    "bias_force": lambda s, q, v, a, tau, w: mb.bias_force(s, q, v),
    "gravity_force": lambda s, q, v, a, tau, w: mb.gravity_force(s, q),
    "com": lambda s, q, v, a, tau, w: mb.com(s, q),
    "jacobian_rate_product": lambda s, q, v, a, tau, w: mb.jacobian_rate_product(s, q, v, "tool"),
    "minv_product": lambda s, q, v, a, tau, w: mb.minv_product(s, q, tau),
    "coriolis_matrix": lambda s, q, v, a, tau, w: mb.coriolis_matrix(s, q, v),
    "centroidal_momentum_matrix": lambda s, q, v, a, tau, w: mb.centroidal_momentum_matrix(s, q),
    "log_det_mass": lambda s, q, v, a, tau, w: mb.log_det_mass(s, q),
}
# What is compiled for each system: everything somewhere, nothing everywhere.
MAIN = ("kinematics", "forward_dynamics", "inverse_dynamics", "mass_matrix", "energy", "q_dot")
MORE = (
    *MAIN,
    "momentum",
    "bias_force",
    "minv_product",
    "coriolis_matrix",
    "centroidal_momentum_matrix",
    "log_det_mass",
)
ALL = tuple(QUANTITIES)


@functools.cache
def evaluate_batch(names: tuple[str, ...]):
    """The library's counterpart of `reference.evaluate_batch`: (system, q, v, a, tau, wrenches) -> results by name."""

    def one(*args):
        return {name: QUANTITIES[name](*args) for name in names}

    return reference.jit_in_haste(jax.vmap(one, in_axes=(None, 0, 0, 0, 0, None)))


AXES = (("tool", "world"), ("eye", "local"), ("b1", "local"))


def wrench_numbers(seed: int):
    """Moment, force and point of one random wrench for every entry of AXES."""
    return tuple(tuple(x) for x in np.random.default_rng(seed).normal(size=(len(AXES), 3, 3)))


def wrenches_of(numbers) -> tuple:
    """The library's wrenches with these numbers."""
    return tuple(mb.Wrench(frame, *x, axes=axes) for (frame, axes), x in zip(AXES, numbers, strict=True))


BATCH = 16  # states in one call, always: another number would compile anew


@functools.cache
def built(spec: SystemSpec):
    """`build`, once a specification."""
    return build(spec)


def results(spec, q, v, a, tau, numbers=None, names=ALL, system=None):
    """`evaluate_batch` at up to BATCH states as numpy arrays; wrenches act when their numbers are given.

    `system` may be the built specification with other numbers.
    """
    count = len(q)
    padded = [np.concatenate([x, np.repeat(x[:1], BATCH - count, axis=0)]) for x in (q, v, a, tau)]
    zeros = jax.tree.map(np.zeros_like, wrench_numbers(0))
    system = built(spec) if system is None else system
    values = evaluate_batch(names)(system, *padded, wrenches_of(zeros if numbers is None else numbers))
    return jax.tree.map(lambda x: np.asarray(x)[:count], values)
