"""Names of what an MJCF file holds: MuJoCo lets everything be unnamed and gives every kind a name space of its own.

Unnamed elements are called by kind and MuJoCo's index, as `joint3`. Sites share one name space with bodies here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from jaxmbd.io.mjcf_engine import Model, engine


@dataclasses.dataclass(frozen=True)
class Names:
    """Names by MuJoCo's index; `bodies[0]` is the world. `carriers` maps a joint to the link that it moves, if any."""

    bodies: tuple[str, ...]
    joints: tuple[str, ...]
    sites: tuple[str, ...]
    actuators: tuple[str, ...]
    keyframes: tuple[str, ...]
    carriers: dict[int, str]
    welds: dict[int, str]


def names_of(model: Model, notes: list[str]) -> Names:
    """The names of a compiled model; those that had to be changed go into `notes`."""
    mujoco = engine()

    def given(kind: str, count: int) -> list[str]:
        objects = getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}")
        return [mujoco.mj_id2name(model, objects, i) or "" for i in range(count)]

    def named(kind: str, count: int, taken: Iterable[str] = ()) -> list[str]:
        own, used, names = given(kind, count), set(taken), []
        used |= {name for name in own if name}
        for i, name in enumerate(own):
            if name and name not in taken:
                names.append(name)
                continue
            names.append(_free(f"{name}_{kind}" if name else f"{kind}{i}", used))
            if name:
                notes.append(f"{kind} '{name}': the name is a body's, so the {kind} is called '{names[-1]}'")
        return names

    bodies = named("body", model.nbody)
    bodies[0] = "world"
    joints = named("joint", model.njnt)
    sites = named("site", model.nsite, bodies)
    used = {*bodies, *sites}
    carriers: dict[int, str] = {}
    for body in range(1, model.nbody):
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        for joint in range(first, first + count - 1):
            carriers[joint] = _free(f"{bodies[body]}/{joints[joint]}", used)
    used = set(joints)
    welds = {i: _free(f"fixed_{bodies[i]}", used) for i in range(1, model.nbody) if not model.body_jntnum[i]}
    return Names(
        tuple(bodies),
        tuple(joints),
        tuple(sites),
        tuple(named("actuator", getattr(model, "nactuator", model.nu))),
        tuple(named("key", model.nkey)),
        carriers,
        welds,
    )


def _free(name: str, used: set[str]) -> str:
    """A name that is not used yet; it is from now on."""
    while name in used:
        name += "_"
    used.add(name)
    return name
