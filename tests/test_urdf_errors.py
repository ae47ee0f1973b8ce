"""URDF files that are refused or doubted: each message with element, name and line; what strict=False makes of them."""

import functools
import re
import warnings

import jax
import numpy as np
import pytest
from urdf_text import ARM, ROBOTS, SOLID, joint, link, mimic, reported, write_urdf

import jaxmbd as mb
from jaxmbd.inertia import nearest_tensor
from jaxmbd.io import UrdfError, urdf_xml, xml_file


@pytest.fixture
def write(tmp_path):
    return functools.partial(write_urdf, tmp_path)


def refusal(path, **options):
    with pytest.raises(UrdfError) as caught:
        mb.load(path, **options)
    return str(caught.value)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "lines, expected",
    [
        ([link("a"), "<link/>"], "line 3: <link>: has no name, but every link and joint needs one"),
        ([], "line 1: <robot>: holds no usable <link>; a robot needs at least one"),
        ([link("a"), link("a")], "line 3: link 'a': the name is taken by line 2, and names must be unique; rename one"),
        (
            [*ARM[:4], joint("j1", "revolute", "upper", "lower")],
            "line 6: joint 'j1': the name is taken by line 5, and names must be unique",
        ),
        ([link("a"), joint("j", "revolute", "b", "a")], "line 3: joint 'j': its parent link 'b' does not exist"),
        ([link("a"), joint("j", "revolute", "a", "b")], "line 3: joint 'j': its child link 'b' does not exist"),
        (
            [*ARM, joint("j3", "revolute", "base", "lower")],
            "line 7: joint 'j3': link 'lower' already hangs on joint 'j2' (line 6), and a link has one parent; "
            "a joint that closes a loop is a <loop_joint>",
        ),
        (
            [*ARM, joint("j3", "revolute", "lower", "base")],
            "line 5: joint 'j1': the links upper <- base <- lower <- upper form a cycle; one of their joints must go",
        ),
        ([*ARM[:4]], "line 4: <robot>: 2 links have no parent: 'base' (line 2), 'lower' (line 4); expected one root"),
        (
            [*ARM[:2], joint("j", "Revolute", "base", "upper")],
            "line 4: joint 'j': type 'Revolute' is not known, expected one of revolute, continuous, prismatic, fixed, "
            "floating, planar",
        ),
        (
            [*ARM[:2], joint("j", "revolute", "base", "upper").replace(' type="revolute"', "")],
            "line 4: joint 'j': has no type, expected one of revolute",
        ),
        (
            [link("a"), '<joint name="j" type="fixed"><parent/></joint>'],
            "line 3: joint 'j': names no parent link, expected <parent link=\"...\">\n"
            "  line 3: joint 'j': names no child link, expected <child link=\"...\">",
        ),
        (
            [*ARM[:2], joint("j", "revolute", "base", "upper", '<axis xyz="0 0 0"/>')],
            "line 4: joint 'j': the axis is zero, expected a direction",
        ),
        (
            [*ARM[:2], joint("j", "revolute", "base", "upper", '<dynamics damping="-1"/>')],
            "line 4: joint 'j': its damping is -1.0, expected zero or more: it would feed energy in",
        ),
        (
            [link("a", SOLID.replace('"2"', '"-2"'))],
            "line 2: link 'a': the mass is -2.0 kg, expected zero or more",
        ),
        (
            [link("a", SOLID.replace('<mass value="2"/>', ""))],
            "line 2: link 'a': <inertial> gives no mass, expected <mass value=\"...\">",
        ),
        (
            [link("a", SOLID.replace('iyy="1"', "").replace('izz="1"', ""))],
            "line 2: link 'a': <inertia> lacks iyy, izz, expected all three moments",
        ),
        ([link("a", SOLID + SOLID)], "line 2: link 'a': has 2 <inertial> elements (lines 2, 2), expected one"),
    ],
)
def test_refusals(write, lines, expected):
    assert expected in refusal(write(*lines))


@pytest.mark.parametrize(
    "text", ["0 0", "0 0 0 0", "0,0,0", "0 0 nan", "0 inf 0", "0 0 1e999", "0 0 1e100", "0 0 1_0", "0 0 ${z}", ""]
)
def test_numbers_must_be_numbers(write, text):
    path = write(*ARM[:2], joint("j", "revolute", "base", "upper", f'<origin xyz="{text}"/><axis xyz="0 0 1"/>'))
    message = refusal(path)
    assert f"line 4: joint 'j': <origin xyz=\"{text}\">: expected 3 finite numbers separated by blanks" in message
    assert ("xacro" in message) == ("$" in text)


def test_infinite_limits_are_limits(write):
    inside = '<axis xyz="0 0 1"/><limit lower="-inf" upper="Infinity" effort="nan" velocity="1"/>'
    assert "line 4: joint 'j': <limit effort=\"nan\">" in refusal(
        write(*ARM[:2], joint("j", "revolute", "base", "upper", inside))
    )
    inside = inside.replace("nan", "inf")
    assert float(mb.load(write(*ARM[:2], joint("j", "revolute", "base", "upper", inside))).get("j.speed")) == 1.0


def test_all_defects_at_once(write):
    lines = [link("a", SOLID.replace('"2"', '"x"')), link("b"), link("b"), joint("j", "hinge", "a", "c")]
    with pytest.raises(UrdfError, match=r"^robot.urdf: 5 defects\n  line 2: ") as caught:
        mb.load(write(*lines))
    assert [defect.line for defect in caught.value.defects] == [2, 3, 4, 5, 5]
    assert isinstance(caught.value, ValueError)


# ---------------------------------------------------------------- strict=False


def test_lenient_keeps_what_hangs_together(write):
    """Bad mass: massless; unknown type, second parent and second name: the joint goes; what then floats goes too."""
    lines = [
        *ARM,
        link("tool", SOLID.replace('"2"', '"-2"')),
        joint("j3", "revolute", "lower", "tool", '<axis xyz="0 0 1"/><dynamics damping="x"/><limit effort="y"/>'),
        link("lost"),
        joint("j4", "magic", "tool", "lost"),
        joint("j5", "revolute", "base", "tool"),
        joint("j1", "revolute", "tool", "lost"),
        link("island"),
    ]
    path = write(*lines)
    message = refusal(path)
    assert "8 defects" in message
    with pytest.warns(UserWarning, match=r"robot.urdf is loaded, but:\n  line 7: link 'tool': the mass is") as caught:
        system = mb.load(path, strict=False)
    assert [entry.category for entry in caught].count(UserWarning) == 1
    assert system.joint_names == ("j1", "j2") and system.frame_names == ("base", "upper", "lower", "tool")
    assert float(system.get("tool.mass")) == 0.0
    for expected in (
        "line 7: link 'tool': the mass is -2.0 kg, expected zero or more: the inertial is dropped",
        "line 8: joint 'j3': <dynamics damping=\"x\">: expected one finite number: its dynamics are dropped",
        "line 8: joint 'j3': <limit effort=\"y\">: expected one finite number: its limits are dropped",
        "line 9: link 'lost': dropped, usable joints do not connect it with root link 'base'",
        "line 10: joint 'j4': type 'magic' is not known",
        "line 11: joint 'j5': link 'tool' already hangs on joint 'j3'",
        "line 13: link 'island': dropped, usable joints do not connect it with root link 'base'",
        "line 8: joint 'j3': moves neither mass nor inertia",
    ):
        assert any(line.startswith(expected) for line in system.report), expected


def test_lenient_still_refuses_nothing_at_all(write):
    loop = [link("a"), link("b"), joint("j", "revolute", "a", "b"), joint("k", "revolute", "b", "a")]
    assert "form a cycle" in refusal(write(*loop), strict=False)
    assert "holds no usable <link>" in refusal(write(), strict=False)


def test_lenient_changes_nothing_on_a_sound_file():
    strict, lenient = (mb.load(ROBOTS / "panda.urdf", strict=s) for s in (True, False))
    assert jax.tree.structure(strict) == jax.tree.structure(lenient)
    jax.tree.map(np.testing.assert_array_equal, strict, lenient)


# ---------------------------------------------------------------- implausible, but defined


@pytest.mark.parametrize(
    "mass, moments, expected",
    [
        (1.0, (1.0, 1.0, 3.0), r"its inertia breaks the triangle inequality, principal moments 1.0, 1.0, 3.0 kg m²"),
        (1.0, (-1.0, 2.0, 2.0), r"its inertia is not positive semi-definite, principal moments -1.0, 2.0, 2.0 kg m²"),
        (0.0, (1.0, 1.0, 1.0), r"has inertia but no mass; give it a mass, or zero inertia"),
    ],
)
def test_implausible_inertia_warns(write, mass, moments, expected):
    xx, yy, zz = moments
    inertial = f'<inertial><mass value="{mass}"/><inertia ixx="{xx}" iyy="{yy}" izz="{zz}"/></inertial>'
    with pytest.warns(UserWarning, match=f"line 2: link 'a': {expected}"):
        system = mb.load(write(link("a", inertial)))
    assert reported(system, f"line 2: link 'a': {expected}")
    np.testing.assert_array_equal(system.get("a.inertia"), [xx, 0.0, 0.0, yy, 0.0, zz])


@pytest.mark.parametrize("moments", [(0.0, 0.0, 0.0), (0.0, 1.0, 1.0), (1.0, 2.0, 3.0)], ids=["point", "rod", "plate"])
def test_the_boundary_is_plausible(write, moments):
    xx, yy, zz = moments
    inertial = f'<inertial><origin rpy="1 2 3"/><mass value="1"/><inertia ixx="{xx}" iyy="{yy}" izz="{zz}"/></inertial>'
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        mb.load(write(link("a", inertial)))


def test_nearest_inertia():
    """A valid tensor stays; diag(1, 1, 3) has Σ = diag(1.5, 1.5, -0.5), so the nearest is diag(1.5, 1.5, 3)."""
    turn = urdf_xml.rotation_matrix(urdf_xml.quaternion_from_rpy(0.4, 0.5, 0.6))
    for given, expected in (((1.0, 2.0, 2.5), (1.0, 2.0, 2.5)), ((1.0, 1.0, 3.0), (1.5, 1.5, 3.0))):
        nearest = nearest_tensor(turn @ np.diag(given) @ turn.T)
        np.testing.assert_allclose(nearest, turn @ np.diag(expected) @ turn.T, atol=1e-14)


def test_joints_that_move_nothing_are_named(write):
    """A massless leaf on a joint, and a massless follower, which is harmless: its leader moves mass."""
    lines = [*ARM, link("tip", ""), joint("j3", "revolute", "lower", "tip")]
    expected = "line 8: joint 'j3': moves neither mass nor inertia, so forces on it have no finite answer"
    assert expected in refusal(write(*lines))
    with pytest.warns(UserWarning, match=f"{expected}; give its links mass or fix it: it is fixed"):
        assert mb.load(write(*lines), strict=False).joint_names == ("j1", "j2")
    lines[-1] = joint("j3", "revolute", "lower", "tip", mimic("j1"))
    assert mb.load(write(*lines)).joint_names == ("j1", "j2")
    assert expected in refusal(write(*lines), mimic="independent")
    lines[-1] = joint("j3", "fixed", "lower", "tip")
    assert mb.load(write(*lines)).frame_names[-1] == "tip"


def test_a_leader_moves_what_its_followers_move(write):
    """The leader's own link is massless; a group in which nobody moves anything is refused as a whole."""
    lines = [link("base"), link("a", ""), link("b"), joint("lead", "revolute", "base", "a")]
    lines += [joint("follow", "revolute", "base", "b", mimic("lead", 2))]
    assert mb.load(write(*lines)).joint_names == ("lead",)
    lines[2] = link("b", "")
    message = refusal(write(*lines))
    assert "line 5: joint 'lead': moves neither" in message and "line 6: joint 'follow': moves neither" in message
    with pytest.warns(UserWarning, match="it is fixed"):
        assert mb.load(write(*lines), strict=False).nv == 0


def test_a_point_on_its_axis_is_named(write):
    """Mass on the axis only: the builder's own check of the mass matrix speaks, with the file's name."""
    point = '<inertial><origin xyz="0 0 1"/><mass value="1"/></inertial>'
    message = refusal(write(link("base"), link("a", point), joint("spin", "revolute", "base", "a")))
    assert re.search(r"^robot.urdf: 1 defect\n  line 1: <robot>: Joint 'spin' .*without moving any inertia", message)


# ---------------------------------------------------------------- files that must not be trusted, or are no URDF


def test_document_types_are_refused(write):
    bomb = '<!DOCTYPE robot [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>\n<robot name="&b;">'
    assert "line 1: file: a document type (<!DOCTYPE ...>) is refused because it can define" in refusal(
        write(head=bomb)
    )
    secret = '<!DOCTYPE robot [<!ENTITY x SYSTEM "file:///etc/hostname">]>\n<robot name="&x;">'
    assert "document type" in refusal(write(link("a"), head=secret))
    commented = "<!-- <!DOCTYPE robot> -->\n<robot>"
    assert mb.load(write(link("a"), head=commented)).nv == 0


def test_document_type_in_another_encoding(tmp_path):
    path = tmp_path / "robot.urdf"
    path.write_text('<?xml version="1.0" encoding="utf-16"?><!DOCTYPE robot><robot/>', encoding="utf-16")
    assert "document type" in refusal(path)


def test_size_and_depth_are_bounded(write, monkeypatch):
    deep = "<visual>" * 300 + "</visual>" * 300
    assert re.search(r"line 2: XML: Excessive depth.*; the file is not well formed", refusal(write(link("a", deep))))
    path = write(link("a"))
    monkeypatch.setattr(xml_file, "MAX_BYTES", 10)
    assert re.search(r"line 1: file: \d+ bytes, at most 10 are read; expected a <robot> element", refusal(path))


def test_long_chains_need_no_recursion(write):
    """The Python stack would end at a thousand."""
    count = 3000
    lines = [link(f"l{i}") for i in range(count + 1)]
    lines += [joint(f"j{i}", "fixed", f"l{i}", f"l{i + 1}") for i in range(count)]
    lines += [joint("again", "hinge", f"l{count}", "l0")]
    assert "form a cycle" in refusal(write(*lines))


def test_xml_errors_have_lines(write):
    assert "line 3: XML: Opening and ending tag mismatch" in refusal(write(link("a"), "<link></joint>"))
    assert "line 1: file: is empty, expected a <robot> element" in refusal(write(head="", tail=""))
    assert "line 2: XML: Entity 'x' not defined; the file is not well formed" in refusal(write("<link name='&x;'/>"))


def test_other_formats_are_named(write):
    assert "line 1: <sdf>: the root of a URDF file is <robot>" in refusal(write(head="<sdf>", tail="</sdf>"))
    with pytest.raises(ValueError, match=r"a.xml: 1 defect\n  line 1: <robot>: the root of an MJCF file is <mujoco>"):
        mb.load(write(name="a.xml"))
    with pytest.raises(ValueError, match=r"'a.sdf': the suffix '.sdf' is not known; expected .urdf, or .xml \(MJCF\)"):
        mb.load(write(name="a.sdf"))
    with pytest.raises(FileNotFoundError):
        mb.load("nowhere.urdf")


def test_xacro_is_refused_with_the_command(write):
    command = "run `xacro {} -o robot.urdf` and load that file"
    message = refusal(write(name="arm.urdf.xacro"))
    assert "a xacro source must be expanded first: " + command.format("arm.urdf.xacro") in message
    macro = '<xacro:include filename="x"/>'
    for head in ("<robot>", '<robot xmlns:xacro="http://www.ros.org/wiki/xacro">'):
        message = refusal(write(link("a"), macro, head=head, name="arm.urdf"))
        assert "line 3: <xacro:include>: xacro must be expanded first: " + command.format("arm.urdf") in message


@pytest.mark.parametrize("option", ["mimic", "loops"])
def test_unknown_options(option):
    with pytest.raises(ValueError, match=f"{option}='soft' is not known; expected '.*' or '.*'"):
        mb.load(ROBOTS / "panda.urdf", **{option: "soft"})


# ---------------------------------------------------------------- bad mimics


def test_bad_mimics(write):
    lines = [link(name) for name in "abcdefg"]
    lines += [joint("self", "revolute", "a", "b", mimic("self"))]  # line 9
    lines += [joint("p", "revolute", "a", "c", mimic("q")), joint("q", "revolute", "a", "d", mimic("p"))]
    lines += [joint("lost", "revolute", "a", "e", mimic("nobody", 1, "x"))]
    lines += [joint("lost2", "revolute", "a", "f", mimic("nobody"))]
    lines += [joint("flat", "planar", "a", "g", mimic("p"))]
    message = refusal(write(*lines))
    for expected in (
        "line 9: joint 'self': the joints self <- self mimic each other, so none of them leads",
        "line 10: joint 'p': the joints p <- q <- p mimic each other, so none of them leads",
        "line 12: joint 'lost': <mimic offset=\"x\">: expected one finite number",
        "line 13: joint 'lost2': it mimics joint 'nobody', which does not exist",
        "line 14: joint 'flat': a planar joint cannot mimic; expected one of revolute, continuous, prismatic",
    ):
        assert expected in message
    with pytest.warns(UserWarning, match="its mimic is dropped"):
        assert mb.load(write(*lines), strict=False).joint_names == ("self", "p", "q", "lost", "lost2", "flat")


def test_mimic_of_a_joint_that_was_fixed(write):
    """Reduced robots are written so: the joint is fixed, its tag is still there."""
    lines = [*ARM, link("finger"), joint("f", "fixed", "lower", "finger", mimic("j1"))]
    system = mb.load(write(*lines))
    assert system.joint_names == ("j1", "j2")
    assert reported(system, "line 8: joint 'f': a fixed joint does not move: its mimic is left out")


def test_mimic_of_a_dropped_joint(write):
    """The unknown type is named once; without its leader the follower is free."""
    lines = [*ARM, link("x"), joint("j3", "magic", "lower", "x"), link("y")]
    lines += [joint("j4", "revolute", "lower", "y", mimic("j3"))]
    assert "robot.urdf: 1 defect\n  line 8: joint 'j3': type 'magic'" in refusal(write(*lines))
    with pytest.warns(UserWarning, match="line 8: joint 'j3': type 'magic'"):
        system = mb.load(write(*lines), strict=False)
    assert system.joint_names == ("j1", "j2", "j4")
    assert reported(system, "line 10: joint 'j4': its mimic is dropped with joint 'j3'")


def test_mimic_of_a_joint_without_one_coordinate(write):
    lines = [
        link("a"),
        link("b"),
        link("c"),
        joint("p", "planar", "a", "b"),
        joint("f", "revolute", "b", "c", mimic("p")),
    ]
    assert "line 6: joint 'f': it mimics joint 'p', which is planar and has not one coordinate" in refusal(
        write(*lines)
    )


def test_mimic_names_no_joint(write):
    lines = [*ARM[:2], joint("j1", "revolute", "base", "upper", "<mimic/>")]
    assert "line 4: joint 'j1': <mimic> names no joint, expected <mimic joint=\"...\">" in refusal(write(*lines))
