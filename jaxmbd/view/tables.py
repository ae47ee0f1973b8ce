"""What a system holds, as text: joints with their places in q and v, links with their inertias, and the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxmbd.system import System


def describe(system: System) -> str:
    """A page on a system, in SI units; inertias about the com in link axes."""
    links = system.topology.links
    parts = [
        f"{system.nq} coordinates (nq), {system.nv} velocities (nv)",
        f"{system.nb} moving bodies, {len(links) - len(system.topology.carriers)} links, {float(system.mass):.6g} kg",
        "",
        *_aligned(_joint_rows(system)),
        "",
        *_aligned(_link_rows(system)),
    ]
    return "\n".join([*parts, "", *system.report] if system.report else parts)


def _joint_rows(system: System) -> list[list[str]]:
    links, followers = system.topology.links, dict(system.topology.couplings)
    numbers = ["lower", "upper", "damping", "friction", "armature", "stiffness"]
    rows = [["joint", "kind", "q", "v", "parent", "child", *numbers]]
    for i, joint in enumerate(system.topology.joints):
        if i in followers:
            places = [f"follows {system.topology.joints[followers[i]].name}", ""]
        elif joint.nv:
            places = [_place(system.q_slice(joint.name)), _place(system.v_slice(joint.name))]
        else:
            places = ["", ""]
        ends = ["world" if link < 0 else links[link] for link in (joint.parent, joint.child)]
        values = [_number(system.get(f"{joint.name}.{number}")) if joint.nv else "" for number in numbers]
        rows.append([joint.name, joint.kind, *places, *ends, *values])
    return rows


def _link_rows(system: System) -> list[list[str]]:
    rows = [["link", "mass", "com", "inertia xx xy xz yy yz zz"]]
    for i, link in enumerate(system.topology.links):
        if i in system.topology.carriers:
            continue
        rows.append([link, *(_number(system.get(f"{link}.{number}")) for number in ("mass", "com", "inertia"))])
    return rows


def _place(at: slice) -> str:
    return f"{at.start}" if at.stop - at.start == 1 else f"{at.start}:{at.stop}"


def _number(value: Any) -> str:
    """One number or several; one for all if they are equal, none for a bound that is not there."""
    numbers = [f"{number:.4g}" for number in np.ravel(value)]
    return "" if {"inf", "-inf"} >= set(numbers) else " ".join(numbers if len(set(numbers)) > 1 else numbers[:1])


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
