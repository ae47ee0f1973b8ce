"""MJCF text for the tests: line 1 is <mujoco>, each section a line of its own."""

from pathlib import Path

DATA = Path(__file__).parent / "data"
ROBOTS, ZOO = DATA / "robots", DATA / "mjcf" / "zoo.xml"
HINGE = '<joint name="j" axis="0 0 1" pos="0.1 0 0"/>'
BALL = '<joint name="ball" type="ball"/>'


def body(name, *inside, place=""):
    """A sphere of 0.1 m away from its body's origin, with whatever else is inside."""
    named = f'name="{name}" ' if name else ""
    return f'<body {named}{place}><geom size="0.1" pos="0.3 0.1 0"/>{"".join(inside)}</body>'


def mjcf(worldbody, head="", **sections):
    lines = ["<mujoco>", head, f"<worldbody>{worldbody}</worldbody>"]
    return "\n".join([*lines, *(f"<{tag}>{text}</{tag}>" for tag, text in sections.items()), "</mujoco>"])


def write_mjcf(folder, worldbody, head="", name="model.xml", **sections):
    path = folder / name
    path.write_text(mjcf(worldbody, head, **sections), encoding="utf-8")
    return path
