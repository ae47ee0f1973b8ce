"""URDF text for the tests, one element a line, so that line numbers in messages can be checked: line 1 is <robot>."""

import re
from pathlib import Path

ROBOTS = Path(__file__).parent / "data" / "robots"
SOLID = '<inertial><mass value="2"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial>'


def link(name, inside=SOLID):
    return f'<link name="{name}">{inside}</link>'


def joint(name, kind, parent, child, inside='<axis xyz="0 0 1"/>'):
    return f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>{inside}</joint>'


def mimic(leader, ratio=None, offset=None):
    numbers = "".join(f' {k}="{v}"' for k, v in (("multiplier", ratio), ("offset", offset)) if v is not None)
    return f'<axis xyz="0 0 1"/><mimic joint="{leader}"{numbers}/>'


ARM = [link("base"), link("upper"), link("lower"), joint("j1", "revolute", "base", "upper")]
ARM += [joint("j2", "continuous", "upper", "lower")]


def write_urdf(folder, *lines, name="robot.urdf", head='<robot name="r">', tail="</robot>"):
    path = folder / name
    path.write_text("\n".join([head, *lines, tail]), encoding="utf-8")
    return path


def reported(system, pattern):
    return [line for line in system.report if re.search(pattern, line)]
