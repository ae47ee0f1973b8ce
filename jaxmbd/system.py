"""System: every physical number of a mechanism as a traced leaf, its topology as static data.

Leaves are floating-point arrays, stacked over links, joints, screws and velocities in declaration order, so that any of
them can be differentiated, batched or replaced under one compiled program. Nothing derived is stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxmbd.closures import Constraint
from jaxmbd.joint_kinds import driven
from jaxmbd.joints import Driven, Joint, Mapped, Quaternion, Screws
from jaxmbd.paths import check_value, locate
from jaxmbd.pose import Pose
from jaxmbd.topology import DriveEntry, Topology
from jaxmbd.values import concrete


class System(eqx.Module):
    """A tree of rigid bodies, with constraints that close loops: topology and physical numbers.

    Built by `Builder` or `load`.

    A gradient with respect to a system is a system of the same structure, read by the same paths with `get`.
    """

    gravity: Float[Array, "3"]
    link_mass: Float[Array, " links"]
    link_com: Float[Array, "links 3"]
    link_inertia: Float[Array, "links 6"]
    rotor_momentum: Float[Array, "links 3"]
    in_parent_position: Float[Array, "joints 3"]
    in_parent_rotation: Float[Array, "joints 4"]
    in_child_position: Float[Array, "joints 3"]
    in_child_rotation: Float[Array, "joints 4"]
    axis: Float[Array, "screws 3"]
    pitch: Float[Array, " screws"]
    offset_position: Float[Array, "screws 3"]
    offset_rotation: Float[Array, "screws 4"]
    stiffness: Float[Array, " nv_full"]
    rest: Float[Array, " nq_full"]
    home: Float[Array, " nq_full"]
    damping: Float[Array, " nv_full"]
    friction: Float[Array, " nv_full"]
    friction_speed: Float[Array, " nv_full"]
    armature: Float[Array, " nv_full"]
    lower: Float[Array, " nv_full"]
    upper: Float[Array, " nv_full"]
    effort: Float[Array, " nv_full"]
    speed: Float[Array, " nv_full"]
    frame_position: Float[Array, "frames 3"]
    frame_rotation: Float[Array, "frames 4"]
    ratio: Float[Array, " couplings"]
    offset: Float[Array, " couplings"]
    functions: tuple[Callable[[Array], Pose], ...]
    constraints: tuple[Constraint, ...]
    base_motion: Callable[[Array], Pose] | None
    drives: tuple[Callable[[Array], Array], ...]
    curves: tuple[Callable[[Array], Array], ...]
    coupling_rate: Float[Array, " couplings"] | None
    """Accelerations of followers at rest of their leaders' accelerations; only inside functions, see `couplings.py`."""
    topology: Topology = eqx.field(static=True)
    limit_stiffness: Float[Array, " nv_full"] | None = None  # None where limits do not act: another program
    limit_damping: Float[Array, " nv_full"] | None = None
    limit_width: Float[Array, " nv_full"] | None = None

    @property
    def nq(self) -> int:
        """Number of coordinates."""
        return len(self.topology.layout.q_keep)

    @property
    def nv(self) -> int:
        """Number of velocities."""
        return len(self.topology.layout.v_keep)

    @property
    def nb(self) -> int:
        """Number of moving bodies; links welded together are one body, carriers are none."""
        return len(self.body_names)

    @property
    def mass(self) -> Float[Array, ""]:
        """Mass of all links, those welded to the world included [kg]."""
        return jnp.sum(self.link_mass)

    @property
    def body_names(self) -> tuple[str, ...]:
        """Moving bodies, each named after its most inboard link."""
        named = map(self.topology.named_link, self.topology.layout.root_links)
        return tuple(self.topology.links[link] for link in named if link is not None)

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Joints that have slots in q and v, in declaration order."""
        followers = {f for f, _ in self.topology.couplings}
        return tuple(j.name for i, j in enumerate(self.topology.joints) if j.nv and i not in followers)

    @property
    def frame_names(self) -> tuple[str, ...]:
        """Frames whose motion can be asked for: every link, then the frames declared on them."""
        names, carriers = self.topology.frame_names, self.topology.carriers
        return tuple(name for i, name in enumerate(names) if i not in carriers)

    @property
    def constraint_names(self) -> tuple[str, ...]:
        """Closures and other constraints, in declaration order."""
        return tuple(c.name for c in self.topology.constraints)

    @property
    def report(self) -> tuple[str, ...]:
        """What was ignored, assumed or doubtful when the system was read or built."""
        return self.topology.notes

    def q_slice(self, joint: str) -> slice:
        """Where a joint's coordinates sit in q."""
        return self._slice(joint, self.topology.layout.q_start, self.topology.layout.q_keep, "q")

    def v_slice(self, joint: str) -> slice:
        """Where a joint's velocities sit in v."""
        return self._slice(joint, self.topology.layout.v_start, self.topology.layout.v_keep, "v")

    def _slice(self, name, start, keep, vector) -> slice:
        i = self._joint_index(name)
        for follower, leader in self.topology.couplings:
            if i == follower:
                raise KeyError(
                    f"Joint {name!r} follows {self.topology.joints[leader].name!r} and has no slot in {vector}. "
                    "Ask for "
                    "the leader, or load with mimic='independent'."
                )
        before = int((keep < start[i]).sum())
        return slice(before, before + int(start[i + 1] - start[i]))

    def joint(self, name: str) -> Joint:
        """The joint record of a joint, its drive included."""
        i = self._joint_index(name)
        record = self._undriven(i)
        for drive, law in zip(self.topology.drives, self.drives, strict=True):
            if drive.joint == i:
                return Driven(record, law, drive.velocities, drive.level)
        return record

    def _undriven(self, i: int) -> Joint:
        entry, layout = self.topology.joints[i], self.topology.layout
        if entry.is_mapped:
            return Mapped(self.functions[layout.mapped.index(i)], entry.nq, entry.nv if entry.quasi else None)
        if entry.turning is None:
            return Quaternion(bool(entry.translating))
        at = slice(int(layout.screw_start[i]), int(layout.screw_start[i + 1]))
        frames = self.offset_position[at], self.offset_rotation[at]
        return Screws(
            self.axis[at], self.pitch[at], *frames, turning=entry.turning, helical=entry.helical, name=entry.kind
        )

    def neutral_q(self) -> Float[Array, " nq"]:
        """Coordinates with every joint at home: what the file or the builder says, else zeros and identities."""
        return self.home[self.topology.layout.q_keep]

    def with_drive(
        self,
        joint: str,
        *,
        position: Callable[[Array], Array] | None = None,
        speed: Callable[[Array], Array] | None = None,
        velocities: Sequence[int] | None = None,
    ) -> System:
        """The same mechanism with a joint driven by a law in time, as by `driven`; an older law is replaced."""
        i, plain = self._joint_index(joint), self.without_drive(joint)
        if any(i == follower for follower, _ in self.topology.couplings):
            raise ValueError(f"Joint {joint!r} follows another joint and cannot be driven; drive its leader.")
        record = driven(self._undriven(i), position=position, speed=speed, velocities=velocities)
        entry = DriveEntry(i, record.velocities, record.level)
        topology = dataclasses.replace(plain.topology, drives=(*plain.topology.drives, entry))
        return dataclasses.replace(plain, drives=(*plain.drives, record.law), topology=topology)

    def without_drive(self, *joints: str) -> System:
        """The same mechanism with these joints (all, when none is named) free of their laws."""
        gone = {self._joint_index(name) for name in joints} or {d.joint for d in self.topology.drives}
        kept = [n for n, d in enumerate(self.topology.drives) if d.joint not in gone]
        topology = dataclasses.replace(self.topology, drives=tuple(self.topology.drives[n] for n in kept))
        return dataclasses.replace(self, drives=tuple(self.drives[n] for n in kept), topology=topology)

    def velocity_mask(self, *joints: str) -> Bool[Array, " nv"]:
        """True for the velocities of the named joints: the `driven` of `hybrid_dynamics`."""
        mask = np.zeros(self.nv, bool)
        for joint in joints:
            mask[self.v_slice(joint)] = True
        return jnp.asarray(mask)

    def without_passive_forces(self) -> System:
        """The same mechanism with no springs, damping, friction, armature and acting limits."""
        names = ("stiffness", "damping", "friction", "armature")
        return dataclasses.replace(self.without_limits(), **{n: jnp.zeros_like(getattr(self, n)) for n in names})

    def without_limits(self) -> System:
        """The same mechanism whose limits are on record only, as before `with_limits`."""
        return dataclasses.replace(self, limit_stiffness=None, limit_damping=None, limit_width=None)

    def with_limits(self, stiffness: Any, damping: Any = 0.0, width: Any = None) -> System:
        """The same mechanism whose joints' limits act: one-sided springs and dampers with a smooth onset.

        Steps of `SemiImplicitEuler` stay stable whatever the stiffness. The springs' energy is potential energy.

        Args:
          stiffness: of the stops [N m/rad, N/m]; this and the others one number, or one a velocity of all joints.
          damping: while a stop is touched [N m s/rad, N s/m].
          width: depth over which stiffness and damping set in; 0.01 rad and 0.001 m when left out.

        Raises: ValueError for a negative number, or a limit on a ball or free joint, which cannot act.
        Source: jaxmbd/limits.py has the formulas.
        """
        layout = self.topology.layout
        if width is None:
            turning = [t for j in self.topology.joints for t in (j.turning or (True,) * j.nv)]
            width = np.where(np.array(turning, bool), 1e-2, 1e-3)
        values = {}
        for name, value in (("stiffness", stiffness), ("damping", damping), ("width", width)):
            array = jnp.asarray(value, self.gravity.dtype)
            known = concrete(array)
            if array.shape not in ((), (layout.nv_full,)):
                raise ValueError(f"{name} has shape {array.shape}; expected one number or ({layout.nv_full},).")
            if known is not None and not np.all(known > 0 if name == "width" else known >= 0):
                least = "more than zero" if name == "width" else "zero or more"
                raise ValueError(f"{name} of the limits is {value}; expected {least}.")
            values[f"limit_{name}"] = jnp.broadcast_to(array, (layout.nv_full,))
        known = [concrete(x) for x in (self.lower, self.upper)]
        for i in layout.quaternion:
            at = slice(int(layout.v_start[i]), int(layout.v_start[i + 1]))
            if any(x is not None and np.isfinite(x[at]).any() for x in known):
                name, kind = self.topology.joints[i].name, self.topology.joints[i].kind
                raise ValueError(f"Joint {name!r} is {kind} and has limits; they cannot act. Make them infinite.")
        return dataclasses.replace(self, **values)

    def astype(self, dtype) -> System:
        """The same system with every number in another floating-point type."""
        return jax.tree.map(
            lambda leaf: leaf.astype(dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf, self
        )

    def get(self, path: str) -> Float[Array, "..."]:
        """A physical number by path, as `link.mass`, `joint.axis`, `joint.in_parent.position`, `frame.position`,
        `gravity`.

        Inertia reads as six numbers (Ixx, Ixy, Ixz, Iyy, Iyz, Izz) about the com in link axes.
        """
        own = self._constraint_number(path)
        if own is not None:
            return own(self)
        leaf, at, _ = locate(self.topology, path)
        return self._leaf(leaf)[at]

    def replace(self, values: Mapping[str, Any]) -> System:
        """The system with numbers replaced by path; topology and compiled programs stay the same.

        Raises: KeyError for an unknown path; ValueError, with the unit, for a wrong shape, and for values (where they
        are known, so not under `jit`) that are not finite, negative where they must not be, or a direction of no
        length.
        """
        changed: dict[str, Array] = {}
        system = self
        for path, value in values.items():
            own = self._constraint_number(path)
            if own is not None:
                new = jnp.asarray(value, self.gravity.dtype)
                if new.shape != own(self).shape:
                    raise ValueError(f"{path!r} was given shape {new.shape}; expected shape {own(self).shape}.")
                system = eqx.tree_at(own, system, new)
                continue
            leaf, at, unit = locate(self.topology, path)
            array = changed[leaf] if leaf in changed else self._leaf(leaf)
            new, shape = jnp.asarray(value, array.dtype), array[at].shape
            if leaf == "link_inertia" and new.shape == (3, 3):
                new = six_numbers(new)
            if leaf.endswith("_rotation") and new.shape == (3, 3):
                new = Pose(rotation=new).quaternion
            if new.shape != shape:
                raise ValueError(f"{path!r} was given shape {new.shape}; expected shape {shape} in [{unit}].")
            check_value(path, leaf, unit, new)
            changed[leaf] = array.at[at].set(new)
        return dataclasses.replace(system, **changed)

    def _constraint_number(self, path: str) -> Callable[[System], Array] | None:
        """Where a constraint's own number sits, for paths as `rod.length`, `loop.joint.axis`; None for other paths."""
        name, _, attributes = path.partition(".")
        if not attributes or name not in self.constraint_names:
            return None
        i = self.constraint_names.index(name)

        def number(system):
            value: Any = system.constraints[i]
            for attribute in attributes.split("."):
                value = getattr(value, attribute, None)
            return value

        if not isinstance(number(self), jax.Array):
            raise KeyError(
                f"{path!r}: the constraint {name!r} ({self.topology.constraints[i].kind}) has no such number."
            )
        return number

    def _leaf(self, name: str) -> Array:
        leaf = getattr(self, name)
        if leaf is None:
            raise KeyError(f"There is no {name}: limits do not act; use system.with_limits(stiffness=...).")
        return leaf

    def axes(self, paths: Iterable[str], axis: int = 0) -> System:
        """What `jax.vmap` takes for a system of which only some numbers are batched, as `in_axes` or `out_axes`.

        `batched = jax.vmap(lambda m: system.replace({"rod.mass": m}), out_axes=axes)(masses)` keeps one copy of all
        numbers but the masses; `jax.vmap(mb.mass_matrix, in_axes=(axes, None))(batched, q)` runs over them.

        Args:
          paths: as for `get`. A batch axis belongs to all links' masses, say, not to that of one link.
          axis: where the batch axis is.

        Returns: a tree of the system's structure with `axis` at the leaves that the paths name and None elsewhere.
        """
        leaves = {locate(self.topology, path)[0] for path in paths}
        return dataclasses.replace(jax.tree.map(lambda _: None, self), **dict.fromkeys(leaves, axis))

    def _joint_index(self, name: str) -> int:
        for i, joint in enumerate(self.topology.joints):
            if joint.name == name:
                return i
        raise KeyError(f"No joint {name!r}. Joints: {', '.join(j.name for j in self.topology.joints)}.")

    def frame_index(self, name: str) -> int:
        """Index into links and then frames; -1 for the world."""
        if name == "world":
            return -1
        if name in self.topology.frame_names:
            return self.topology.frame_names.index(name)
        raise KeyError(f"No link or frame {name!r}. Known: world, {', '.join(self.frame_names)}.")

    def slot_of_frame(self, name: str) -> int:
        """The slot that carries a link or frame, -1 for the base."""
        links = [*range(len(self.topology.links)), *(link for _, link in self.topology.frames), -1]
        return self.topology.layout.slot_of_link(links[self.frame_index(name)])


def six_numbers(inertia: Float[Array, "3 3"]) -> Float[Array, "6"]:
    """Ixx, Ixy, Ixz, Iyy, Iyz, Izz of a symmetric tensor."""
    return jnp.stack([inertia[i, j] for i in range(3) for j in range(i, 3)])
