"""Names and units for the columns of q and v."""

from typing import Literal

from jaxmbd.system import System


def column_names(system: System, vector: Literal["q", "v"]) -> list[str]:
    """A name for each column of q or v: the joint's, with the place in brackets where a joint has several."""
    names = []
    for joint in system.joint_names:
        place = system.q_slice(joint) if vector == "q" else system.v_slice(joint)
        size = place.stop - place.start
        names += [joint] if size == 1 else [f"{joint}[{k}]" for k in range(size)]
    return names


def coordinate_units(system: System) -> list[str]:
    """The unit of each coordinate: rad, m, or none for parts of a quaternion and coordinates of a mapped joint."""
    units = []
    entries = {entry.name: entry for entry in system.topology.joints}
    for joint in system.joint_names:
        entry = entries[joint]
        if entry.turning is not None:
            units += ["rad" if turns else "m" for turns in entry.turning]
        else:
            units += [""] * min(entry.nq, 4) + ["m" if entry.translating else ""] * (entry.nq - 4)
    return units
