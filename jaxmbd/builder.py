"""Builder: a system written down body by body and joint by joint, checked as a whole, then frozen."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxmbd.closures import Constraint, cut_joint
from jaxmbd.declared import check_names, check_tree, joint_entry, quasi
from jaxmbd.inertia import Inertial
from jaxmbd.inertia import doubt as doubt_of
from jaxmbd.joints import Driven, Joint, Mapped, Screws, as_pytree
from jaxmbd.parts import PASSIVE, Parts, parts_of
from jaxmbd.pose import Pose
from jaxmbd.regular import check_regular
from jaxmbd.spanning import closed, span
from jaxmbd.system import System
from jaxmbd.topology import WORLD, ConstraintEntry, DriveEntry, Topology
from jaxmbd.values import Numbers, concrete, floats, joined, shape, stacked


class Builder:
    """Collects bodies, joints, frames and couplings; `build` checks them and returns a `System`.

    Bodies and frames share one name space, joints have their own. "world" is the base. The order of declaration is the
    order of q, v, bodies and frames.
    """

    def __init__(self, gravity: Numbers = (0.0, 0.0, -9.81), base_motion: Callable[[Array], Pose] | None = None):
        """Args:
        gravity: acceleration of free fall [m/s^2], world axes.
        base_motion: prescribed pose of the base in inertial space as a function of time t [s]; at rest when left out.
        """
        if shape(gravity) != (3,):
            raise ValueError(f"Gravity has shape {shape(gravity)}; expected three numbers [m/s^2].")
        self._gravity = gravity
        self._base_motion = None if base_motion is None else as_pytree(base_motion)
        self._bodies: dict[str, dict[str, Any]] = {}
        self._joints: dict[str, dict[str, Any]] = {}
        self._carriers: set[str] = set()
        self._frames: dict[str, tuple[str, Pose]] = {}
        self._drives: dict[str, Driven] = {}
        self._couplings: dict[str, tuple[str, Numbers, Numbers]] = {}
        self._curves: dict[str, Callable[[Array], Array]] = {}
        self._constraints: dict[str, tuple[Constraint, tuple[str, ...], tuple[str, ...]]] = {}
        self._notes: list[str] = []

    def body(
        self,
        name: str,
        mass: Numbers = 0.0,
        com: Numbers = (0.0, 0.0, 0.0),
        inertia: Numbers | None = None,
        rotor_momentum: Numbers = (0.0, 0.0, 0.0),
        doubt: bool = True,
    ) -> None:
        """Declare a rigid body.

        Args:
          mass: [kg]; may be zero where the mass matrix stays regular.
          com: centre of mass [m] in body axes.
          inertia: tensor [3, 3] about the com in body axes [kg m^2], or its six numbers Ixx Ixy Ixz Iyy Iyz Izz.
          rotor_momentum: constant angular momentum of internal rotors [N m s], body axes (a gyrostat).
          doubt: warn of an inertia that no real body has; points, rods and plates are real.
        """
        self._new_frame_name(name)
        tensor = floats(np.zeros(6) if inertia is None else inertia)
        if tensor.shape == (3, 3):
            tensor = tensor[np.triu_indices(3)]
        for value, label, size in ((mass, "mass", ()), (com, "com", (3,)), (rotor_momentum, "rotor_momentum", (3,))):
            if shape(value) != size:
                raise ValueError(f"Body {name!r}: {label} has shape {shape(value)}; expected {size}.")
        if tensor.shape != (6,):
            raise ValueError(f"Body {name!r}: inertia has shape {tensor.shape}; expected [3, 3] or six numbers.")
        for value, label in ((mass, "mass"), (com, "com"), (tensor, "inertia")):
            known = concrete(value)
            if known is not None and not np.all(np.isfinite(known)):
                raise ValueError(f"Body {name!r}: {label} is {value}; expected finite numbers.")
        known = concrete(mass)
        if known is not None and known < 0:
            raise ValueError(f"Body {name!r}: mass is {known} kg; expected zero or more.")
        if doubt and known is not None and concrete(tensor) is not None:
            found = doubt_of(Inertial(mass, com, tensor))
            if found:
                warnings.warn(f"Body {name!r}: {found}", stacklevel=2)
        self._bodies[name] = {"mass": mass, "com": com, "inertia": tensor, "rotor_momentum": rotor_momentum}

    def carrier(self, name: str) -> None:
        """Declare a massless link between two joints of one body, as of a slide on which a hinge turns the body.

        It is a link for `joint`, but neither counted nor listed among bodies and frames.
        """
        self.body(name)
        self._carriers.add(name)

    def joint(
        self,
        name: str,
        joint: Joint,
        parent: str = "world",
        child: str = "",
        in_parent: Pose | None = None,
        in_child: Pose | None = None,
        *,
        stiffness: Numbers = 0.0,
        rest: Numbers | None = None,
        home: Numbers | None = None,
        damping: Numbers = 0.0,
        friction: Numbers = 0.0,
        friction_speed: Numbers = 1e-2,
        armature: Numbers = 0.0,
        lower: Numbers = -np.inf,
        upper: Numbers = np.inf,
        effort: Numbers = np.inf,
        speed: Numbers = np.inf,
        cut: bool | None = None,
    ) -> None:
        """Declare a joint between two bodies.

        Args:
          joint: the joint record, as `revolute((0, 0, 1))`; `driven(...)` of one follows a law in time.
          parent: the inboard body, "world" for the base.
          child: the outboard body.
          in_parent: inboard joint frame in the parent's frame.
          in_child: outboard joint frame in the child's frame.
          stiffness: spring about `rest` [N m/rad, N/m]; this and the following are one number or one a velocity.
          rest: coordinates at which the spring is slack; `home` when left out.
          home: the joint's coordinates in `neutral_q`; zeros and identity quaternions when left out.
          damping: viscous [N m s/rad, N s/m].
          friction: dry friction [N m, N], smooth: friction * tanh(v / friction_speed).
          friction_speed: speed over which dry friction changes sign [rad/s, m/s].
          armature: reflected rotor inertia [kg m^2, kg].
          lower, upper, effort, speed: limits on record; they act after `System.with_limits`.
          cut: where joints form a loop, whether this one is cut (without coordinates, it becomes a closure of its name
            between the frames `NAME:parent` and `NAME:child`); the program chooses when left out.
        """
        if not name or name in self._joints:
            raise ValueError(f"Joint name {name!r} is {'taken already' if name else 'empty'}; names must be unique.")
        if not isinstance(joint, Joint):
            raise ValueError(f"Joint {name!r} was given {joint!r}; expected a joint record, as mb.revolute((0, 0, 1)).")
        limits = {"lower": lower, "upper": upper, "effort": effort, "speed": speed}
        values = {"stiffness": stiffness, "damping": damping, "friction": friction, "armature": armature} | limits
        values["friction_speed"] = friction_speed
        for label, value in values.items():
            if shape(value) not in ((), (joint.nv,)):
                raise ValueError(
                    f"Joint {name!r}: {label} has shape {shape(value)}; expected one number, "
                    f"or {joint.nv} for its velocities."
                )
            known = concrete(value)
            if label not in limits and known is not None and not np.all(known >= 0):
                raise ValueError(f"Joint {name!r}: {label} is {value}; expected zero or more.")
        known = concrete(friction_speed)
        if known is not None and not np.all(known > 0):
            raise ValueError(f"Joint {name!r}: friction_speed is {friction_speed}; expected more than zero.")
        home = joint.neutral() if home is None else floats(home).reshape(-1)
        rest = home if rest is None else floats(rest).reshape(-1)
        for value, label in ((home, "home"), (rest, "rest")):
            if value.shape != (joint.nq,):
                raise ValueError(f"Joint {name!r}: {label} has shape {value.shape}; expected ({joint.nq},).")
        if isinstance(joint, Driven):
            self._drives[name], joint = joint, joint.joint
        if quasi(joint):
            for label, value, none in (
                ("stiffness", stiffness, 0.0),
                ("lower", lower, -np.inf),
                ("upper", upper, np.inf),
            ):
                known = concrete(value)
                if known is None or not np.all(known == none):
                    raise ValueError(
                        f"Joint {name!r}: {label} has no meaning for a mapped joint with its own N(q), whose "
                        "velocities are no rates of coordinates; put a spring as a force between frames."
                    )
        self._joints[name] = {
            "joint": joint,
            "parent": parent,
            "child": child,
            "in_parent": in_parent if in_parent is not None else Pose(),
            "in_child": in_child if in_child is not None else Pose(),
            "rest": rest,
            "home": home,
            "cut": cut,
            "driven": name in self._drives,
            **{label: floats(value) + np.zeros(joint.nv) for label, value in values.items()},
        }

    def frame(self, name: str, on: str, pose: Pose | None = None) -> None:
        """Declare a named frame fixed on a body."""
        self._new_frame_name(name)
        self._frames[name] = (on, pose if pose is not None else Pose())

    def couple(
        self,
        follower: str,
        leader: str,
        ratio: Numbers = 1.0,
        offset: Numbers = 0.0,
        function: Callable[[Array], Array] | None = None,
    ) -> None:
        """Tie a joint's coordinate to another's: q_follower = ratio * q_leader + offset, or function(q_leader).

        Both joints have one freedom. The function is smooth, takes and gives one number, and is an `eqx.Module` where
        its own numbers are to be differentiated.
        """
        if follower in self._couplings:
            raise ValueError(f"Joint {follower!r} already follows {self._couplings[follower][0]!r}.")
        if function is not None:
            if not callable(function):
                raise ValueError(
                    f"The coupling of {follower!r} to {leader!r} was given {function!r}; expected a function."
                )
            self._curves[follower] = as_pytree(function)
        self._couplings[follower] = (leader, ratio, offset)

    def system(self, system: System | Parts, prefix: str = "", on: str = "world", pose: Pose | None = None) -> None:
        """Declare all parts of a finished system, constraints included, as if they were written down here.

        Args:
          system: a system, or its parts. Gravity and base motion are this builder's, not the system's.
          prefix: put before each of its names, so that several systems fit into one.
          on: body or frame declared before that takes the place of the system's world; where constraints name the
            world and it is moved, the frame `PREFIX:world` stands for it.
          pose: the system's world in `on`.
        """
        parts = parts_of(system) if isinstance(system, System) else system
        base, place = on, pose
        if on in self._frames:
            base, frame = self._frames[on]
            place = frame if pose is None else frame @ pose
        elif on != "world" and on not in self._bodies:
            raise ValueError(f"A system is put on {on!r}, which is no body or frame declared before.")

        def moved(link: str, at: Pose) -> tuple[str, Pose]:
            if link != "world":
                return prefix + link, at
            return base, at if place is None else place @ at

        for name, body in parts.bodies.items():
            self.body(prefix + name, **body, doubt=False)
            if name in parts.carriers:
                self._carriers.add(prefix + name)
        for name, part in parts.joints.items():
            parent, in_parent = moved(part.parent, part.in_parent)
            numbers = part.numbers if part.joint.nv else {}
            self.joint(prefix + name, part.joint, parent, prefix + part.child, in_parent, part.in_child, **numbers)
        for name, (link, at) in parts.frames.items():
            self.frame(prefix + name, *moved(link, at))
        for follower, c in parts.couplings.items():
            self.couple(prefix + follower, prefix + c.leader, c.ratio, c.offset, c.function)
        own_world = base
        if place is not None and any("world" in c.frames for c in parts.constraints.values()):
            own_world = f"{prefix or on}:world"
            self.frame(own_world, base, place)
        for name, c in parts.constraints.items():
            frames = tuple(own_world if frame == "world" else prefix + frame for frame in c.frames)
            self.constraint(prefix + name, c.record, frames, tuple(prefix + joint for joint in c.joints))
        self._notes += [f"{prefix}: {note}" if prefix else note for note in parts.notes]

    def closure(
        self,
        name: str,
        joint: Joint,
        frame_a: str,
        frame_b: str,
    ) -> None:
        """Close a loop by a cut joint: the modes that the joint locks are constraints between two frames.

        Args:
          joint: the joint record, as `revolute((0, 0, 1))`; `fixed()` welds, `driven(...)` follows a law.
          frame_a, frame_b: its inboard and outboard joint frames: links, frames or "world".

        Raises: ValueError for joints that cannot be cut.
        """
        if not isinstance(joint, Joint):
            raise ValueError(f"Closure {name!r} was given {joint!r}; expected a joint record; others by `constraint`.")
        try:
            record = cut_joint(joint)
        except ValueError as error:
            raise ValueError(f"Closure {name!r}: {error}") from None
        self.constraint(name, record, frames=(frame_a, frame_b))

    def constraint(
        self, name: str, constraint: Constraint, frames: tuple[str, ...] = (), joints: tuple[str, ...] = ()
    ) -> None:
        """Declare a constraint between frames or joints: a rod, a gear, a wheel, a user's function.

        Args:
          constraint: as `mb.distance(0.3)`, `mb.gear(2.0)`, `mb.rolling_disc(0.3)`, `mb.holonomic(function)`.
          frames: links, frames or "world", as many as the constraint takes.
          joints: joints whose coordinates it sees, as many as it takes; v must be their rate.
        """
        if not name or name in self._constraints:
            raise ValueError(f"Constraint name {name!r} is {'taken already' if name else 'empty'}; names are unique.")
        if not isinstance(constraint, Constraint):
            raise ValueError(f"Constraint {name!r} was given {constraint!r}; expected one, as mb.distance(0.3).")
        if (len(frames), len(joints)) != constraint.takes:
            raise ValueError(
                f"Constraint {name!r} ({constraint.kind}) was given {len(frames)} frames and {len(joints)} joints; "
                f"it takes {constraint.takes[0]} and {constraint.takes[1]}."
            )
        self._constraints[name] = constraint, tuple(frames), tuple(joints)

    def note(self, text: str) -> None:
        """Add a line to the system's report."""
        self._notes.append(text)

    def build(self) -> System:
        """Check everything and freeze it.

        Raises: ValueError naming the body or joint, what is wrong with it and what to do.
        """
        links = list(self._bodies)
        index = {"world": WORLD} | {name: i for i, name in enumerate(links)}
        check_names(self._bodies, self._joints, self._frames, self._constraints, index)
        tree, loops = span(links, self._joints)
        joints = list(tree.items())
        check_tree(self._bodies, tree, self._constraints, self._couplings, self._drives)
        entries = tuple(joint_entry(n, j, index) for n, j in joints)
        places = [n for n, _ in joints]
        placed, constraints = closed(loops, self._joints, self._frames, self._constraints)
        frames = tuple((name, index[on]) for name, (on, _) in placed.items())
        at = {"world": -1} | {name: i for i, name in enumerate([*links, *placed])}
        constrained = tuple(
            ConstraintEntry(name, c.kind, tuple(at[f] for f in on), tuple(places.index(j) for j in of), c.rows)
            for name, (c, on, of) in constraints.items()
        )
        notes = [f"Joint {name!r} closes a loop and is cut: it has no coordinates." for name in loops]
        couplings = tuple((places.index(f), places.index(c[0])) for f, c in self._couplings.items())
        curves = tuple(list(self._couplings).index(follower) for follower in self._curves)
        drives = tuple(DriveEntry(places.index(n), d.velocities, d.level) for n, d in self._drives.items())
        screws = [j["joint"] for _, j in joints if isinstance(j["joint"], Screws)]
        bodies = list(self._bodies.values())
        rotors = [concrete(b["rotor_momentum"]) for b in bodies]
        gyrostatic = any(rotor is None or rotor.any() for rotor in rotors)
        poses = {
            f"{side}_{part}": stacked([getattr(j[side], attribute) for _, j in joints], (size,))
            for side in ("in_parent", "in_child")
            for part, attribute, size in (("position", "position", 3), ("rotation", "quaternion", 4))
        }
        system = System(
            gravity=jnp.asarray(floats(self._gravity)),
            link_mass=stacked([b["mass"] for b in bodies], ()),
            link_com=stacked([b["com"] for b in bodies], (3,)),
            link_inertia=stacked([b["inertia"] for b in bodies], (6,)),
            rotor_momentum=stacked([b["rotor_momentum"] for b in bodies], (3,)),
            **poses,
            axis=joined([s.axis for s in screws], (3,)),
            pitch=joined([s.pitch for s in screws], ()),
            offset_position=joined([s.offset_position for s in screws], (3,)),
            offset_rotation=joined([s.offset_quaternion for s in screws], (4,)),
            **{label: joined([j[label] for _, j in joints], ()) for label in ("rest", "home")},
            **{label: joined([j[label] for _, j in joints], ()) for label in PASSIVE},
            frame_position=stacked([p.position for _, p in placed.values()], (3,)),
            frame_rotation=stacked([p.quaternion for _, p in placed.values()], (4,)),
            ratio=stacked([c[1] for c in self._couplings.values()], ()),
            offset=stacked([c[2] for c in self._couplings.values()], ()),
            functions=tuple(j["joint"].function for _, j in joints if isinstance(j["joint"], Mapped)),
            constraints=tuple(jax.tree.map(jnp.asarray, c) for c, _, _ in constraints.values()),
            base_motion=self._base_motion,
            drives=tuple(d.law for d in self._drives.values()),
            curves=tuple(self._curves.values()),
            coupling_rate=None,
            topology=Topology(
                tuple(links),
                entries,
                frames,
                couplings,
                gyrostatic,
                (*self._notes, *notes),
                drives,
                curves,
                carriers=frozenset(index[name] for name in self._carriers),
                constraints=constrained,
            ),
        )
        if not check_regular(system) and couplings:
            system = dataclasses.replace(system, topology=dataclasses.replace(system.topology, dense=True))
        return system

    def _new_frame_name(self, name: str) -> None:
        if not name or name == "world":
            raise ValueError(f"{name!r} cannot name a body or frame; 'world' is the base.")
        if name in self._bodies or name in self._frames:
            raise ValueError(f"The name {name!r} is taken already; bodies and frames share one name space.")
