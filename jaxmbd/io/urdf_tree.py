"""Links and joints to one tree: every defect of the graph, the tree that is left, and the mimic relations.

A URDF file promises one root and one joint above every other link. `check` lists each breach of that promise;
`prune` keeps what hangs together below one root, and on a file without a defect that is everything. Only then can it be
asked whether each joint moves any inertia.
"""

import collections
import dataclasses
from collections.abc import Sequence

from jaxmbd.io.urdf_records import ONE_COORDINATE, Findings, Joint, Link, LoopJoint, Mimic, Model


@dataclasses.dataclass(frozen=True)
class TreeModel:
    """Links and joints below one root, in file order; `mimics` maps a follower to its independent leader."""

    root: str
    links: tuple[Link, ...]
    joints: tuple[Joint, ...]
    loops: tuple[LoopJoint, ...]
    mimics: dict[str, Mimic]


def check(model: Model, found: Findings) -> None:
    """Put every defect of the graph into `found`: names, unknown and second parents, cycles, roots."""
    for items in (model.links, (*model.joints, *model.loops)):
        first = {}
        for item in items:
            if first.setdefault(item.name, item) is not item:
                text = f"the name is taken by line {first[item.name].line}, and names must be unique; rename one"
                found.defect(item.line, str(item), text, "the second one is dropped")
    names = {link.name for link in model.links}
    above: dict[str, Joint] = {}
    for joint in model.joints:
        for end, name in (("parent", joint.parent), ("child", joint.child)):
            if name and name not in names:
                found.defect(joint.line, str(joint), f"its {end} link '{name}' does not exist", "the joint is dropped")
        if not joint.child:
            continue
        other = above.setdefault(joint.child, joint)
        if other is not joint:
            text = (
                f"link '{joint.child}' already hangs on joint '{other.name}' (line {other.line}), and a link has one "
                "parent; a joint that closes a loop is a <loop_joint> (see docs/files.md)"
            )
            found.defect(joint.line, str(joint), text, "the second joint is dropped")
    for loop_joint in model.loops:
        for name in loop_joint.links:
            if name and name not in names:
                found.defect(
                    loop_joint.line, str(loop_joint), f"its link '{name}' does not exist", "the loop joint is dropped"
                )
    for loop in _cycles({child: joint.parent for child, joint in above.items()}):
        joint = above[loop[0]]
        text = f"the links {' <- '.join([*loop, loop[0]])} form a cycle; one of their joints must go"
        found.defect(joint.line, str(joint), text, "the cycle is dropped")
    roots = [link for link in model.links if link.name not in above]
    if len(roots) > 1:
        listed = ", ".join(f"'{link.name}' (line {link.line})" for link in roots)
        text = f"{len(roots)} links have no parent: {listed}; expected one root, join the others to it"
        found.defect(roots[1].line, "<robot>", text, "the largest tree is kept")


def check_mimics(joints: Sequence[Joint], found: Findings) -> dict[str, Mimic]:
    """Each follower with its independent leader: chains are multiplied out; bad relations go into `found`."""
    known = {joint.name: joint for joint in joints}
    direct: dict[str, Mimic] = {}
    for joint in known.values():
        if joint.mimic is None or not joint.usable:
            continue
        if joint.type == "fixed":  # reduced robots have them: whoever fixed the joint left the tag
            found.note(joint.mimic.line, str(joint), "a fixed joint does not move: its mimic is left out")
            continue
        leader = known.get(joint.mimic.leader)
        if joint.type not in ONE_COORDINATE:
            problem = f"a {joint.type} joint cannot mimic; expected one of {', '.join(ONE_COORDINATE)}"
        elif leader is None:
            problem = f"it mimics joint '{joint.mimic.leader}', which does not exist"
        elif leader.usable and leader.type not in ONE_COORDINATE:
            problem = f"it mimics joint '{leader.name}', which is {leader.type} and has not one coordinate"
        else:
            direct[joint.name] = joint.mimic
            continue
        found.defect(joint.mimic.line, str(joint), problem, "its mimic is dropped")
    for loop in _cycles({name: mimic.leader for name, mimic in direct.items()}):
        text = f"the joints {' <- '.join([*loop, loop[0]])} mimic each other, so none of them leads"
        found.defect(direct[loop[0]].line, f"joint '{loop[0]}'", text, "their mimics are dropped")
        for name in loop:
            del direct[name]
    return _independent(direct)


def prune(model: Model, mimics: dict[str, Mimic], notes: list[str]) -> TreeModel | None:
    """The largest tree of usable, uniquely named parts, with a note for each part left out; None if no link is left."""
    links = {link.name: link for link in reversed(model.links)}
    above: dict[str, Joint] = {}
    taken = set()
    for joint in model.joints:
        if joint.usable and joint.name not in taken and {joint.parent, joint.child} <= links.keys():
            if joint.child not in above:
                above[joint.child] = joint
                taken.add(joint.name)
    below = collections.defaultdict(list)
    for child, joint in above.items():
        below[joint.parent].append(child)
    trees = [_reachable(link.name, below) for link in model.links if link.name not in above]
    if not trees:
        return None
    tree = max(trees, key=len)
    kept_links = tuple(link for link in model.links if link.name in tree and links[link.name] is link)
    kept_joints = tuple(joint for joint in model.joints if above.get(joint.child) is joint and joint.child in tree)
    kept_loops = tuple(
        loop for loop in model.loops if loop.usable and loop.name not in taken and set(loop.links) <= tree.keys()
    )
    kept = {id(item) for item in (*kept_links, *kept_joints, *kept_loops)}
    root = next(iter(tree))
    for item in (*model.links, *model.joints, *model.loops):
        if id(item) not in kept:
            notes.append(f"line {item.line}: {item}: dropped, usable joints do not connect it with root link '{root}'")
    names = {joint.name for joint in kept_joints}
    led = {name: mimic for name, mimic in mimics.items() if {name, mimic.leader} <= names}
    for name in sorted(names & mimics.keys() - led.keys()):
        notes.append(
            f"line {mimics[name].line}: joint '{name}': its mimic is dropped with joint '{mimics[name].leader}'"
        )
    return TreeModel(root, kept_links, kept_joints, kept_loops, led)


def idle_joints(tree: TreeModel, eliminate: bool) -> list[Joint]:
    """The joints that move neither mass nor inertia, so that the mass matrix is singular.

    Args:
        eliminate: followers have no coordinate of their own; a leader moves what its followers move.
    """
    above = {joint.child: joint for joint in tree.joints}
    moving: set[str] = set()
    for link in tree.links:
        if link.inertial is None or not (link.inertial.mass or link.inertial.tensor.any()):
            continue
        name = link.name
        while name in above and above[name].name not in moving:
            moving.add(above[name].name)
            name = above[name].parent
    mimics = tree.mimics if eliminate else {}
    led = {mimic.leader for name, mimic in mimics.items() if name in moving and mimic.ratio}
    leaders = {joint.name: mimics[joint.name].leader if joint.name in mimics else joint.name for joint in tree.joints}
    return [joint for joint in tree.joints if joint.type != "fixed" and leaders[joint.name] not in moving | led]


def _independent(direct: dict[str, Mimic]) -> dict[str, Mimic]:
    """Leaders that mimic nothing: q = r1 (r2 q_leader + o2) + o1 along a chain, each relation visited once."""
    solved: dict[str, Mimic] = {}
    for start in direct:
        chain = []
        name = start
        while name in direct and name not in solved:
            chain.append(name)
            name = direct[name].leader
        for name in reversed(chain):
            own = direct[name]
            further = solved.get(own.leader)
            if further is not None:
                ratio, offset = own.ratio * further.ratio, own.ratio * further.offset + own.offset
                own = dataclasses.replace(own, leader=further.leader, ratio=ratio, offset=offset)
            solved[name] = own
    return {name: solved[name] for name in direct}


def _cycles(up: dict[str, str]) -> list[list[str]]:
    """Every cycle of a map in which each key points to one other, as the list of its members."""
    cycles, seen = [], set()
    for start in up:
        path = []
        name = start
        while name in up and name not in seen:
            seen.add(name)
            path.append(name)
            name = up[name]
        if name in path:
            cycles.append(path[path.index(name) :])
    return cycles


def _reachable(root: str, below: dict[str, list[str]]) -> dict[str, None]:
    """The names at and below a root, the root first."""
    order = {root: None}
    waiting = [root]
    while waiting:
        for child in below.get(waiting.pop(), ()):
            order[child] = None
            waiting.append(child)
    return order
