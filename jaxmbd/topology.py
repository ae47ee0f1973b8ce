"""Static structure of a system: who hangs on whom, by which joint, and where everything sits in q, v and the sweeps.

A `Topology` is what one compiled program depends on: names, parents and joint shapes, no physical number. `Layout`
holds the index arrays that follow from it. Links joined by fixed joints form one body. The elements of the sweeps are
*slots*, one per velocity: a joint with k velocities is k slots, the body's inertia belongs to the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from jaxmbd.tree import BASE, Tree, depth_first_order

WORLD = -1


@dataclass(frozen=True)
class JointEntry:
    """One joint: names, the links it joins (world -1), and its shape."""

    name: str
    kind: str
    parent: int
    child: int
    nq: int
    nv: int
    turning: tuple[bool, ...] | None = None  # for a product of screws, as the next
    helical: tuple[bool, ...] = ()
    translating: bool | None = None  # for a quaternion joint; mapped when both are None
    quasi: bool = False  # a mapped joint with its own N(q)

    @property
    def is_screws(self) -> bool:
        return self.turning is not None

    @property
    def is_mapped(self) -> bool:
        return self.turning is None and self.translating is None


@dataclass(frozen=True)
class DriveEntry:
    """A law in time: the joint, which of its velocities, and whether it gives their positions or their speeds."""

    joint: int
    velocities: tuple[int, ...]
    level: str


@dataclass(frozen=True)
class ConstraintEntry:
    """One constraint: name, kind, the frames (indices of `System.frame_index`) and joints it acts on, its rows."""

    name: str
    kind: str
    frames: tuple[int, ...]
    joints: tuple[int, ...]
    rows: tuple[int, int]  # holonomic, non-holonomic


@dataclass(frozen=True)
class Topology:
    """Everything static about a system. Hashable; equal topologies share compiled programs."""

    links: tuple[str, ...]
    joints: tuple[JointEntry, ...]
    frames: tuple[tuple[str, int], ...]  # user frames: name, link (world -1)
    couplings: tuple[tuple[int, int], ...]  # joints: follower, leader
    gyrostatic: bool
    notes: tuple[str, ...] = field(compare=False)
    drives: tuple[DriveEntry, ...] = ()
    curves: tuple[int, ...] = ()  # couplings given by functions
    dense: bool = False  # couplings alone make the mass matrix regular: the recursion over the tree would fail
    carriers: frozenset[int] = frozenset()  # massless links between the joints of one body, which nobody counts
    constraints: tuple[ConstraintEntry, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict:
        """Without what is cached: the hash of a string differs from one Python process to the next."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def _hash(self) -> int:
        shape = self.links, self.joints, self.frames, self.couplings, self.gyrostatic
        return hash((shape, self.drives, self.curves, self.dense, self.carriers, self.constraints))

    @property
    def frame_names(self) -> tuple[str, ...]:
        """Links, carriers included, and then frames: the order of everything that is stacked over both."""
        return self.links + tuple(name for name, _ in self.frames)

    def named_link(self, link: int) -> int | None:
        """The link that names a body whose root is `link`: a carrier passes on to what is welded to it, if anything."""
        while link in self.carriers:
            welded = [j.child for j in self.joints if j.parent == link and not j.nv]
            if not welded:
                return None
            link = welded[0]
        return link

    @cached_property
    def layout(self) -> Layout:
        return Layout(self)


class Layout:
    """Index arrays of a topology. Slots are in sweep order; joints, links, q and v in declaration order."""

    def __init__(self, topology: Topology):
        joints, n_links = topology.joints, len(topology.links)
        joint_of_link = {j.child: i for i, j in enumerate(joints)}

        # links that fixed joints weld together; root link and depth below it
        def root_of(link):
            depth = 0
            while link != WORLD and joints[joint_of_link[link]].nv == 0:
                link, depth = joints[joint_of_link[link]].parent, depth + 1
            return link, depth

        roots = [root_of(link) for link in range(n_links)]
        root_links = [link for link in range(n_links) if roots[link] == (link, 0)]
        body_of_root = {link: b for b, link in enumerate(root_links)} | {WORLD: WORLD}
        self.root_links = np.array(root_links, int)
        self.body_of_link = np.array([body_of_root[r] for r, _ in roots], int)
        self.joint_of_body = np.array([joint_of_link[r] for r in root_links], int)
        welds: dict[int, list[int]] = {}
        for link, (_, depth) in enumerate(roots):
            if depth:
                welds.setdefault(depth, []).append(joint_of_link[link])
        self.weld_levels = [np.array(welds[d], int) for d in sorted(welds)]

        # coordinates and velocities of every joint, followers of couplings included
        self.q_start = np.cumsum([0, *(j.nq for j in joints)])
        self.v_start = np.cumsum([0, *(j.nv for j in joints)])
        self.nq_full, self.nv_full = int(self.q_start[-1]), int(self.v_start[-1])
        self.screw_start = np.cumsum([0, *(j.nv if j.is_screws else 0 for j in joints)])
        self.mapped = [i for i, j in enumerate(joints) if j.is_mapped]
        self.quaternion = [i for i, j in enumerate(joints) if j.translating is not None]

        # independent coordinates: full vectors without the followers of couplings
        followers = {f for f, _ in topology.couplings}
        keep = [i for i in range(len(joints)) if i not in followers]
        self.q_keep = np.array([n for i in keep for n in range(self.q_start[i], self.q_start[i + 1])], int)
        self.v_keep = np.array([n for i in keep for n in range(self.v_start[i], self.v_start[i + 1])], int)
        place_q = {int(full): i for i, full in enumerate(self.q_keep)}
        place_v = {int(full): i for i, full in enumerate(self.v_keep)}
        source = {f: leader for f, leader in topology.couplings}
        self.q_source = np.array(
            [place_q[int(self.q_start[source.get(i, i)]) + k] for i, j in enumerate(joints) for k in range(j.nq)], int
        )
        self.v_source = np.array(
            [place_v[int(self.v_start[source.get(i, i)]) + k] for i, j in enumerate(joints) for k in range(j.nv)], int
        )
        self.q_coupled = np.array([self.q_start[f] for f, _ in topology.couplings], int)
        self.v_coupled = np.array([self.v_start[f] for f, _ in topology.couplings], int)

        # driven velocities, law by law, and where they sit in the independent q and v
        self.driven = np.zeros(len(self.v_keep), bool)
        self.drive_v = [
            np.array([place_v[int(self.v_start[d.joint]) + k] for k in d.velocities], int) for d in topology.drives
        ]
        self.drive_q = [place_q[int(self.q_start[d.joint])] for d in topology.drives]
        for at in self.drive_v:
            self.driven[at] = True

        self.v_leader = self.v_keep[self.v_source[self.v_coupled]]

        self.group = Group(joints, keep)
        self.full_group = Group(joints, list(range(len(joints))))

        # bodies in sweep order (over declaration order numbers), then slots
        parent_body = [self.body(joints[j].parent) for j in self.joint_of_body]
        self.body_order = _depth_first(parent_body)
        slots: list[tuple[int, int]] = []
        parents: list[int] = []
        self.last_slot = np.zeros(len(root_links), int)
        for b in self.body_order:
            j = int(self.joint_of_body[b])
            for k in range(joints[j].nv):
                outer = BASE if parent_body[b] == BASE else int(self.last_slot[parent_body[b]])
                parents.append(outer if k == 0 else len(slots) - 1)
                slots.append((j, k))
            self.last_slot[b] = len(slots) - 1
        self.tree = Tree.from_parents(parents)
        self.parent_body = np.array(parent_body, int)

        self.slot_joint = np.array([j for j, _ in slots], int)
        self.slot_first = np.array([k == 0 for _, k in slots], bool)
        self.first_slot = {j: i for i, (j, k) in enumerate(slots) if k == 0}
        self.slot_velocity = np.array([self.v_start[j] + k for j, k in slots], int)
        self.velocity_slot = np.argsort(self.slot_velocity)
        self.slot_is_screw = np.array([joints[j].is_screws for j, _ in slots], bool)
        self.slot_screw = np.array([self.screw_start[j] + k if joints[j].is_screws else 0 for j, k in slots], int)
        self.slot_coordinate = np.array([self.q_start[j] + k if joints[j].is_screws else 0 for j, k in slots], int)
        turning = [joints[j].turning for j, _ in slots]
        self.slot_turning = np.array([t is not None and t[k] for t, (_, k) in zip(turning, slots, strict=True)], bool)
        self.slot_body = np.full(len(slots), -1)
        self.slot_body[self.last_slot] = np.arange(len(root_links))
        self.slot_helical = np.array([bool(joints[j].helical) and joints[j].helical[k] for j, k in slots], bool)
        # what a unit velocity does along a slot's axis: turn and slide; the pitch of helical slots comes on top
        quaternion = np.array([joints[j].translating is not None for j, _ in slots], bool)
        leading = np.array([k < 3 for _, k in slots], bool)
        self.slot_turn = np.where(quaternion, leading, self.slot_turning).astype(float)
        self.slot_slide = np.where(quaternion, ~leading, self.slot_is_screw & ~self.slot_turning).astype(float)
        # axes of the slots of quaternion joints: frames whose z is x, y, z of the outboard frame in turn
        cycle = np.stack([np.roll(np.eye(3), shift, axis=0) for shift in (1, 2, 0)])
        self.slot_frame = np.stack(
            [cycle[k % 3] if q else np.eye(3) for q, (_, k) in zip(quaternion, slots, strict=True)] or [np.eye(3)]
        )[: len(slots)]
        # joints in the order of a sweep over links (each joint is that of its child link), and their slots
        parent_joint = [joint_of_link.get(j.parent, BASE) for j in joints]
        self.joint_order = np.array(_depth_first(parent_joint), int)
        place = {joint: i for i, joint in enumerate(self.joint_order)} | {BASE: BASE}
        self.joint_tree = Tree.from_parents([place[parent_joint[j]] for j in self.joint_order])
        own = [[i for i, (joint, _) in enumerate(slots) if joint == j] for j in range(len(joints))]
        width = max((len(o) for o in own), default=0)
        self.joint_slots = np.array([o + [len(slots)] * (width - len(o)) for o in own], int).reshape(len(joints), width)
        self.only_hinges = bool(np.all(self.slot_is_screw & self.slot_turning & ~self.slot_helical))

    @property
    def nb(self) -> int:
        return len(self.root_links)

    def body(self, link: int) -> int:
        """The body that a link belongs to, -1 when it is welded to the world."""
        return WORLD if link == WORLD else int(self.body_of_link[link])

    def slot_of_link(self, link: int) -> int:
        """The slot whose frame a link is rigidly attached to, -1 for the world."""
        body = self.body(link)
        return BASE if body == WORLD else int(self.last_slot[body])


class Group:
    """Where the factors of the configuration group sit in the independent q and v.

    Additive numbers (`plain`), rotations by quaternion (`turn`), and the translations of free joints (`slide`), each
    with the rotation it belongs to. Joints with an N(q) of their own are no group: `quasi` names them, with their
    entries of q and v.
    """

    def __init__(self, joints: tuple[JointEntry, ...], keep: list[int]):
        plain_q, plain_v, turn_q, turn_v, slide_q, slide_v, slide_turn = [], [], [], [], [], [], []
        self.quasi: list[tuple[int, np.ndarray, np.ndarray]] = []
        q = v = 0
        for i in keep:
            joint = joints[i]
            if joint.quasi:
                self.quasi.append((i, np.arange(q, q + joint.nq), np.arange(v, v + joint.nv)))
            elif joint.translating is None:
                plain_q += range(q, q + joint.nq)
                plain_v += range(v, v + joint.nv)
            else:
                turn_q.append(range(q, q + 4))
                turn_v.append(range(v, v + 3))
                if joint.translating:
                    slide_q.append(range(q + 4, q + 7))
                    slide_v.append(range(v + 3, v + 6))
                    slide_turn.append(len(turn_q) - 1)
            q, v = q + joint.nq, v + joint.nv
        self.additive = not turn_q and not self.quasi
        self.plain_q, self.plain_v = np.array(plain_q, int), np.array(plain_v, int)
        self.turn_q, self.turn_v = np.array(turn_q, int).reshape(-1, 4), np.array(turn_v, int).reshape(-1, 3)
        self.slide_q, self.slide_v = np.array(slide_q, int).reshape(-1, 3), np.array(slide_v, int).reshape(-1, 3)
        self.slide_turn = np.array(slide_turn, int)
        # the translations of quaternion joints, -1 for those that only turn
        self.shift_q, self.shift_v = (np.full((len(turn_q), 3), -1) for _ in range(2))
        self.shift_q[self.slide_turn], self.shift_v[self.slide_turn] = self.slide_q, self.slide_v
        self.additive_q = np.full(v, -1)  # the coordinate whose rate each velocity is; -1 where that is no one number
        self.additive_q[self.plain_v] = self.plain_q
        # where each entry of q and v stands when the parts follow one another: plain, turn, slide, quasi one by one
        own_q, own_v = [q for _, q, _ in self.quasi], [v for *_, v in self.quasi]
        self.q_order = np.argsort(np.concatenate([self.plain_q, self.turn_q.ravel(), self.slide_q.ravel(), *own_q]))
        self.v_order = np.argsort(np.concatenate([self.plain_v, self.turn_v.ravel(), self.slide_v.ravel(), *own_v]))


def _depth_first(parents: list[int]) -> list[int]:
    """Elements in the order of a sweep, whatever the order they are given in."""
    order = _outward_first(parents)
    renumbered = {element: i for i, element in enumerate(order)} | {BASE: BASE}
    return [order[i] for i in depth_first_order([renumbered[parents[element]] for element in order])]


def _outward_first(parents: list[int]) -> list[int]:
    """Elements so ordered that parents come before their children, otherwise as given."""
    order: list[int] = []
    placed = {BASE}
    pending = list(range(len(parents)))
    while pending:
        ready = [i for i in pending if parents[i] in placed]
        order += ready
        placed |= set(ready)
        pending = [i for i in pending if i not in placed]
    return order
