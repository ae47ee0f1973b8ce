"""Loops in URDF files: `<loop_joint>`, read, left out, refused, written."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from urdf_text import joint, link, reported, write_urdf

import jaxmbd as mb
from jaxmbd.constraints.rows import residual
from jaxmbd.io import UrdfError
from jaxmbd.packing import pack

ROD = '<inertial><origin xyz="0.5 0 0"/><mass value="1"/><inertia ixx="0.1" iyy="0.2" izz="0.2"/></inertial>'
TURN = '<axis xyz="0 -1 0"/>'


def four_bar(loop):
    """Hinges A, B, D of a four-bar, and what closes it."""
    at = '<origin xyz="{} 0 0"/>' + TURN
    return [
        *(link(name, ROD) for name in ("crank", "coupler", "rocker")),
        link("ground", ""),
        joint("A", "continuous", "ground", "crank", TURN),
        joint("B", "continuous", "crank", "coupler", at.format(0.4)),
        joint("D", "continuous", "ground", "rocker", at.format(1.1)),
        loop,
    ]


LOOP = (
    '<loop_joint name="C" type="{}"><link1 link="coupler" xyz="1 0 0" rpy="0 0 0"/>'
    '<link2 link="rocker" xyz="0.8 0 0"/><axis xyz="0 -2 0"/></loop_joint>'
)
REVOLUTE = LOOP.format("revolute")


@pytest.mark.slow
def test_a_loop_joint_closes_the_loop(tmp_path):
    """As if declared by hand; the report says so."""
    system = mb.load(write_urdf(tmp_path, *four_bar(REVOLUTE)))
    by_hand = mb.linkages.four_bar()
    assert system.constraint_names == ("C",) and system.nv == 3
    assert reported(system, "line 9: loop joint 'C': closes a loop, revolute between 'coupler' and 'rocker'")
    q = jnp.array([0.6, -0.2, 1.5])
    ours, theirs = (residual(s, pack(s), q, jnp.zeros(())) for s in (system, by_hand))
    np.testing.assert_allclose(ours, theirs, atol=1e-14)
    assert np.abs(ours).max() > 0.1  # not yet assembled
    at = mb.assemble(system, q, fixed=("A",))
    k = mb.kinematics(system, at.q)
    np.testing.assert_allclose(k["C:link1"].position, k["C:link2"].position, atol=1e-12)


def test_open_loops_leave_it_out_and_say_so(tmp_path):
    system = mb.load(write_urdf(tmp_path, *four_bar(REVOLUTE)), loops="open")
    assert not system.constraints and "C:link1" not in system.frame_names
    assert reported(system, "loop joint 'C': loops=\"open\": left out .revolute between 'coupler' and 'rocker'")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fixed", "spherical", "prismatic", "continuous"])
def test_the_kinds_of_loop_joints(kind, tmp_path):
    system = mb.load(write_urdf(tmp_path, *four_bar(LOOP.format(kind))))
    expected = {"fixed": 6, "spherical": 3, "prismatic": 5, "continuous": 5}
    assert system.topology.constraints[0].rows == (expected[kind], 0)
    again = mb.load(write_urdf(tmp_path, mb.to_urdf(system), head="", tail="", name="again.urdf"))
    q = jnp.array([0.6, -0.2, 1.5])
    ours, theirs = (residual(s, pack(s), q, jnp.zeros(())) for s in (system, again))
    np.testing.assert_allclose(ours, theirs, atol=1e-14)


BAD = {
    "type": (LOOP.format("planar"), "type 'planar' is not known, expected one of fixed, revolute"),
    "none": ('<loop_joint name="C"><link1 link="crank"/><link2 link="rocker"/></loop_joint>', "has no type"),
    "end": ('<loop_joint name="C" type="fixed"><link1 link="crank"/></loop_joint>', "names no link2, expected <link2"),
    "link": (REVOLUTE.replace("rocker", "hub"), "its link 'hub' does not exist"),
    "axis": (REVOLUTE.replace("0 -2 0", "0 0 0"), "the axis is zero, expected a direction"),
    "name": (REVOLUTE.replace('"C"', '"A"'), "the name is taken by line 6"),
    "number": (REVOLUTE.replace("0.8 0 0", "0.8 0"), 'link2 xyz="0.8 0">: expected 3 finite numbers'),
}


@pytest.mark.parametrize("fault", BAD)
def test_defects_are_named_with_their_line(fault, tmp_path):
    text, message = BAD[fault]
    path = write_urdf(tmp_path, *four_bar(text))
    with pytest.raises(UrdfError, match=f"line 9: loop joint '[CA]': .*{re.escape(message)}"):
        mb.load(path)
    with pytest.warns(UserWarning, match="the loop joint is dropped|the second one is dropped"):
        assert not mb.load(path, strict=False).constraints


def test_a_second_parent_points_to_the_loop_joint(tmp_path):
    lines = [*four_bar(""), joint("C", "continuous", "coupler", "rocker")]
    with pytest.raises(UrdfError, match="a joint that closes a loop is a <loop_joint>"):
        mb.load(write_urdf(tmp_path, *lines))


@pytest.mark.slow
def test_text_of_a_system_with_loops_reads_back(tmp_path):
    """Frames on moved links, on the world and on bodies themselves; accelerations are the same."""
    b = mb.Builder()
    for name in ("crank", "coupler"):
        b.body(name, 1.0, (0.2, 0.1, 0.0), 0.1 * np.eye(3))
    turned = mb.Pose.from_rpy((0.1, 0.0, 0.2), (0.3, -0.2, 0.5))
    b.joint("A", mb.revolute((0, 1, 0)), child="crank", in_child=turned)
    b.joint("B", mb.revolute((0, 1, 0)), "crank", "coupler", mb.Pose((0.4, 0, 0)), in_child=mb.Pose((0.1, 0, 0)))
    b.joint("slide", mb.prismatic((0, 0, 1)), "crank", child=_body(b, "slider"))
    b.frame("anchor", "world", mb.Pose((0.7, 0.1, 0.2)))
    b.closure("pin", mb.spherical(), "anchor", "coupler")
    b.closure("rail", mb.revolute((0, 1, 0)), "coupler", "slider")
    system = b.build()
    again = mb.load(write_urdf(tmp_path, mb.to_urdf(system), head="", tail="", name="again.urdf"))
    assert again.constraint_names == system.constraint_names
    q = jnp.array([0.3, -0.8, 0.2])
    ours, theirs = (residual(s, pack(s), q, jnp.zeros(())) for s in (system, again))
    np.testing.assert_allclose(ours, theirs, atol=1e-13)
    J = [jax.jacfwd(lambda q, s=s: residual(s, pack(s), q, jnp.zeros(())))(q) for s in (system, again)]
    np.testing.assert_allclose(J[0], J[1], atol=1e-13)


def _body(b, name):
    b.body(name, 0.5, inertia=0.1 * np.eye(3))
    return name


def test_constraints_that_urdf_cannot_say_are_listed():
    b = mb.Builder()
    b.body("bead", 1.0, inertia=np.eye(3))
    b.joint("root", mb.free(), child="bead")
    b.constraint("rod", mb.distance(0.5), frames=("world", "bead"))
    with pytest.raises(ValueError, match=r"URDF cannot say 1 things.*\n  constraint 'rod' \(distance\), which is left"):
        mb.to_urdf(b.build())
    with pytest.raises(ValueError, match=r"MJCF cannot say 1 things.*\n  constraint 'rod' \(distance\), which is left"):
        mb.to_mjcf(b.build())
