"""The models of the speed benches as text that every engine reads, and the states on which they are compared."""

from __future__ import annotations

import tempfile
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments._array_sweeps import cross_matrix, flat_bodies

ROOT = Path(__file__).parents[1]
MODELS = ("arm7", "g1", "quadruped", "chain8", "chain32", "chain128", "tree127")
FILES = {"g1": "g1_29dof", "quadruped": "a1"}  # in tests/data/robots; their root links float
SEED = 0
STILL = '<inertial><mass value="1"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial>'


def urdf(model: str) -> tuple[str, bool]:
    """URDF text that every engine reads, and whether its root link floats."""
    import jaxmbd as mb

    if model == "arm7":
        return locked_fingers((ROOT / "jaxmbd" / "robots" / "panda.urdf").read_text(encoding="utf-8")), False
    if model in FILES:
        return (ROOT / "tests" / "data" / "robots" / f"{FILES[model]}.urdf").read_text(encoding="utf-8"), True
    kind = "chain" if model.startswith("chain") else "tree"
    build = {"chain": mb.models.chain, "tree": mb.models.binary_tree}[kind]
    return mb.to_urdf(build(int(model.removeprefix(kind))), name=model), False


def size(model: str) -> tuple[int, bool]:
    """Number of hinges, and whether the root link floats."""
    if model.startswith(("chain", "tree")):
        return int(model.removeprefix("chain").removeprefix("tree")), False
    joints = ElementTree.fromstring(urdf(model)[0]).iter("joint")
    return sum(j.get("type") in ("revolute", "continuous") for j in joints), model in FILES


def locked_fingers(text: str) -> str:
    """The arm with its finger joints fixed at zero; their mass stays."""
    robot = ElementTree.fromstring(text)
    for joint in robot.iter("joint"):
        if "finger_joint" in joint.get("name", ""):
            joint.set("type", "fixed")
            for part in [p for p in joint if p.tag in ("axis", "limit", "mimic", "dynamics")]:
                joint.remove(part)
    return ElementTree.tostring(robot, encoding="unicode")


def load(model: str):
    """The model as a jaxmbd system, without the passive forces that the other engines leave out."""
    import jaxmbd as mb

    text, floating = urdf(model)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "robot.urdf"
        path.write_text(text, encoding="utf-8")
        return mb.load(path, floating=floating).without_passive_forces()


def states(hinges: int, floating: bool, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, v and a third vector (forces or accelerations) in jaxmbd's layout, moderate numbers from one seed."""
    rng = np.random.default_rng(SEED)
    q, v, x = rng.uniform(-1, 1, (3, batch, hinges)) * np.array([1.0, 0.3, 1.0])[:, None, None]
    if floating:
        turn = rng.normal(size=(batch, 4))
        turn /= np.linalg.norm(turn, axis=1, keepdims=True)
        q = np.hstack([turn, rng.normal(size=(batch, 3)), q])
        v = np.hstack([0.3 * rng.normal(size=(batch, 6)), v])
        x = np.hstack([rng.uniform(-1, 1, (batch, 6)), x])
    return q, v, x


# --- the same bodies with welds merged, for engines that read other formats than URDF or know no fixed joints


class Body(NamedTuple):
    """A body and the hinge above it: parent (-1: the base), its frame in the parent's, axis; inertia about the com."""

    parent: int
    rotation: np.ndarray
    position: np.ndarray
    axis: np.ndarray
    mass: float
    com: np.ndarray
    inertia: np.ndarray


def merged(system) -> tuple[Body | None, list[Body]]:
    """The floating base, None where there is none, and the bodies; body i hangs on the system's hinge i."""
    parents, order, home, origin, axis, inertia, free = flat_bodies(system)
    place = np.argsort(order)
    bodies = []
    for row in place[max(free - 1, 0) :]:
        parent = parents[row] if parents[row] < 0 else int(order[parents[row]]) - free
        m = inertia[row][3, 3]
        moment = inertia[row][:3, 3:]  # m [com x]
        com = np.array([moment[2, 1], moment[0, 2], moment[1, 0]]) / m
        C = cross_matrix(com)
        about_com = inertia[row][:3, :3] - m * C @ C.T
        bodies.append(Body(max(parent, -1), home[row], origin[row], axis[row], float(m), com, about_com))
    return (bodies[0], bodies[1:]) if free else (None, bodies)


def merged_system(system):
    """The same motion from links `link0`, ... on hinges `joint0`, ..., a floating one `base` on `root`."""
    import jaxmbd as mb

    base, bodies = merged(system)
    b, names = mb.Builder(), {-1: "base" if base else "world"}
    if base:
        b.body("base", mass=base.mass, com=base.com, inertia=base.inertia)
        b.joint("root", mb.free(), child="base")
    for i, body in enumerate(bodies):
        b.body(f"link{i}", mass=body.mass, com=body.com, inertia=body.inertia)
        names[i] = f"link{i}"
        at = mb.Pose(body.position, body.rotation)
        b.joint(f"joint{i}", mb.revolute(body.axis), parent=names[body.parent], child=f"link{i}", in_parent=at)
    return b.build()


def write_texts(model: str, folder: Path) -> None:
    """MODEL.urdf (merged, its root link floating where the model does), .xml (MJCF) and .sdf; in double precision."""
    import jaxmbd as mb

    system = load(model)
    flat = merged_system(system)
    (folder / f"{model}.xml").write_text(mb.to_mjcf(flat), encoding="utf-8")
    (folder / f"{model}.sdf").write_text(sdf(model, *merged(system)), encoding="utf-8")
    robot = ElementTree.fromstring(mb.to_urdf(flat))
    for joint in [j for j in robot.iter("joint") if j.get("type") == "floating"]:
        robot.remove(joint)
        robot.remove(next(link for link in robot.iter("link") if link.get("name") == "world"))
    for root in [link for link in robot.iter("link") if link.get("name") == "world"]:  # frax wants a mass for it
        root.append(ElementTree.fromstring(STILL))
    (folder / f"{model}.urdf").write_text(ElementTree.tostring(robot, encoding="unicode"), encoding="utf-8")


def sdf(name: str, base: Body | None, bodies: list[Body]) -> str:
    """SDF text; a base that does not float is a link welded to the world."""
    robot = ElementTree.Element("model", name=name)

    def add(to, tag, text=None, **attributes):
        element = ElementTree.SubElement(to, tag, attributes)
        element.text = text if text is None or isinstance(text, str) else " ".join(f"{x:.17g}" for x in np.ravel(text))
        return element

    def link(name, body, above):
        element = add(robot, "link", name=name)
        if above:
            add(element, "pose", [*body.position, *_rpy(body.rotation)], relative_to=above)
        inertial = add(element, "inertial")
        add(inertial, "pose", [*body.com, 0, 0, 0])
        add(inertial, "mass", [body.mass])
        inertia = add(inertial, "inertia")
        for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)):
            add(inertia, f"i{'xyz'[i]}{'xyz'[j]}", [body.inertia[i, j]])

    def joint(name, kind, parent, child):
        element = add(robot, "joint", name=name, type=kind)
        add(element, "parent", parent)
        add(element, "child", child)
        return element

    still = Body(-1, np.eye(3), np.zeros(3), np.zeros(3), 1.0, np.zeros(3), np.eye(3))
    link("base", base or still, "")
    if base is None:
        joint("weld", "fixed", "world", "base")
    for i, body in enumerate(bodies):
        above = f"link{body.parent}" if body.parent >= 0 else "base"
        link(f"link{i}", body, above)
        add(add(joint(f"joint{i}", "revolute", above, f"link{i}"), "axis"), "xyz", body.axis)
    root = ElementTree.Element("sdf", version="1.10")
    root.append(robot)
    return ElementTree.tostring(root, encoding="unicode")


def _rpy(R: np.ndarray) -> tuple[float, float, float]:
    """Roll, pitch and yaw of Rz(yaw) Ry(pitch) Rx(roll)."""
    return (
        float(np.arctan2(R[2, 1], R[2, 2])),
        float(np.arctan2(-R[2, 0], np.hypot(R[0, 0], R[1, 0]))),
        float(np.arctan2(R[1, 0], R[0, 0])),
    )
