"""MJCF files that are refused: what must not be trusted, what is no MJCF, and what MuJoCo's compiler says."""

import functools
import re

import numpy as np
import pytest
from mjcf_text import HINGE, ROBOTS, body, mjcf, write_mjcf

import jaxmbd as mb
from jaxmbd.io import MjcfError, xml_file

mujoco = pytest.importorskip("mujoco")
pytestmark = pytest.mark.external

BOX = [(x, y, z) for x in (0, 0.2) for y in (0, 0.4) for z in (0, 0.6)]


@pytest.fixture
def write(tmp_path):
    return functools.partial(write_mjcf, tmp_path)


def refusal(path, **options):
    with pytest.raises(MjcfError) as caught:
        mb.load(path, **options)
    return str(caught.value)


# ---------------------------------------------------------------- the text


def test_document_types_are_refused(tmp_path):
    path = tmp_path / "bomb.xml"
    path.write_text('<!DOCTYPE mujoco [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>\n<mujoco model="&b;"/>')
    assert "bomb.xml: 1 defect\n  line 1: file: a document type (<!DOCTYPE ...>) is refused" in refusal(path)


def test_size_and_depth_are_bounded(write, monkeypatch):
    assert re.search(r"line 3: XML: Excessive depth", refusal(write("<body>" * 300 + "</body>" * 300)))
    path = write(body("a", HINGE))
    monkeypatch.setattr(xml_file, "MAX_BYTES", 10)
    assert re.search(r"line 1: file: \d+ bytes, at most 10 are read; expected a <mujoco> element", refusal(path))


def test_copies_are_bounded(write):
    """Seven characters more make a file ten times as large: the product of nested counts is bounded."""
    nested = '<replicate count="1000" offset="0 0 1"><replicate count="1000" offset="1 0 0">'
    path = write(f'{nested}<geom size="0.1"/></replicate></replicate>')
    assert "line 3: <replicate>: asks for 1000000 copies, at most 100000 are made" in refusal(path)
    three = '<replicate count="3" offset="0 0 1"><body><joint/><geom size="0.1" pos="1 0 0"/></body></replicate>'
    assert mb.load(write(three)).nv == 3


def test_other_formats_are_named(write, tmp_path):
    path = tmp_path / "robot.xml"
    path.write_text('<robot name="r"><link name="a"/></robot>')
    expected = "line 1: <robot>: the root of an MJCF file is <mujoco>; this is a URDF file, rename it to .urdf"
    assert expected in refusal(path)
    path.write_text("<mujocoinclude/>")
    assert "line 1: <mujocoinclude>: the root of an MJCF file is <mujoco>; is this another format, or" in refusal(path)
    path.write_text("")
    assert "line 1: file: is empty, expected a <mujoco> element" in refusal(path)
    path.write_text("<mujoco>\n<worldbody></mujoco>")
    assert "line 2: XML: Opening and ending tag mismatch" in refusal(path)
    with pytest.raises(FileNotFoundError):
        mb.load(tmp_path / "nowhere.xml")


@pytest.mark.parametrize(
    "inside, expected",
    [
        (body("a", '<joint tipe="hinge"/>'), "line 3: MuJoCo's compiler: XML Error: Schema violation: unrecognized"),
        ('<body name="a"><joint/></body>', "mass and inertia of moving bodies must be larger than mjMINVAL"),
        (body("a", HINGE, HINGE), "repeated name 'j' in joint"),
        (
            body("a", HINGE, HINGE.replace('"j"', '"k"')),
            "Joint 'j' (revolute) can move without moving any inertia, so that forces on it have no finite answer",
        ),
    ],
)
def test_what_the_compiler_refuses(write, inside, expected):
    message = refusal(write(inside))
    assert expected in message and message.startswith("model.xml: 1 defect\n  line ")


# ---------------------------------------------------------------- other files


def test_includes_stay_in_the_folder(tmp_path):
    """A part outside is refused until strict=False; a part that is not there is named; all at once."""
    (tmp_path / "outside.xml").write_text(f"<mujocoinclude>{body('b', HINGE)}</mujocoinclude>")
    folder = tmp_path / "model"
    folder.mkdir()
    path = write_mjcf(folder, '<include file="../outside.xml"/>')
    assert f"line 3: <include>: file '../outside.xml' lies outside the model's folder {folder}; move it" in refusal(
        path
    )
    assert mb.load(path, strict=False).joint_names == ("j",)
    lines = f'<include file="../outside.xml"/>{body("a")}\n<include file="gone.xml"/>'
    message = refusal(write_mjcf(folder, lines))
    assert "2 defects" in message
    flex = '<body name="c"><flexcomp name="f" type="mesh" file="../x.obj"/></body>'
    assert "line 3: <flexcomp>: file '../x.obj' lies outside" in refusal(write_mjcf(folder, flex))
    assert f"line 4: <include>: file 'gone.xml' does not exist in {folder}" in message


def test_included_files_are_looked_through_too(write, tmp_path):
    path = write('<include file="part.xml"/>')
    (tmp_path / "part.xml").write_text('<!DOCTYPE x [<!ENTITY a "b">]><mujocoinclude/>')
    assert "part.xml: 1 defect\n  line 1: file: a document type" in refusal(path)
    (tmp_path / "part.xml").write_text('<mujocoinclude>\n<include file="/etc/hostname"/></mujocoinclude>')
    assert "line 2: part.xml: <include>: file '/etc/hostname' lies outside" in refusal(path)


def mesh(folder):
    """A box of 0.2 x 0.4 x 0.6 m as a mesh file: MuJoCo takes the convex hull of its corners."""
    faces = ["1 3 7 5", "1 2 4 3", "2 6 8 4", "5 7 8 6", "3 4 8 7", "1 5 6 2"]
    lines = [f"v {x} {y} {z}" for x, y, z in BOX]
    for face in faces:
        a, b, c, d = face.split()
        lines += [f"f {a} {b} {c}", f"f {a} {c} {d}"]
    (folder / "box.obj").write_text("\n".join(lines))


ASSETS = (
    '<mesh name="box" file="box.obj"/><texture name="t" type="2d" file="gone.png"/><material name="m" texture="t"/>'
)
ASSETS += '<hfield name="h" file="gone.png" size="1 1 1 1"/>'
LOOKS = '<geom type="mesh" mesh="box" material="m"/>'
SOLID = '<inertial pos="0 0 0.1" mass="2" diaginertia="1 1 1"/>'


def test_meshes_without_inertia_are_not_opened(write):
    """Pictures and contact shapes: of bodies with an <inertial>, of the world, of no density; and height fields."""
    lone = f'<body name="a">{SOLID}{HINGE}{LOOKS}</body><geom type="hfield" hfield="h"/>{LOOKS}'
    system = mb.load(write(lone + body("b", LOOKS.replace("/>", ' density="0"/>')), asset=ASSETS))
    assert float(system.get("a.mass")) == 2.0 and not [line for line in system.report if "opened" in line]


def test_meshes_that_give_inertia_are_opened(write, tmp_path):
    path = write(f'<body name="a">{HINGE}{LOOKS}</body>', asset=ASSETS)
    message = refusal(path)
    assert re.search(r"box.obj'.*; the inertia of a body comes from mesh 'box': give the body an <inertial>", message)
    mesh(tmp_path)
    system = mb.load(path)
    mass = 1000 * 0.2 * 0.4 * 0.6
    assert float(system.get("a.mass")) == pytest.approx(mass, rel=1e-6)
    np.testing.assert_allclose(system.get("a.com"), [0.1, 0.2, 0.3], rtol=1e-6)
    sizes = np.array([0.2, 0.4, 0.6]) ** 2
    expected = mass / 12 * (sizes.sum() - sizes)
    np.testing.assert_allclose(np.asarray(system.get("a.inertia"))[[0, 3, 5]], expected, rtol=1e-6)
    assert "meshes opened, because bodies take their inertia from them: box" in system.report
    folder = tmp_path / "model"
    folder.mkdir()
    path = write_mjcf(folder, f'<body name="a">{HINGE}{LOOKS}</body>', asset=ASSETS.replace("box.obj", "../box.obj"))
    assert f"<mesh> 'box': file '../box.obj' lies outside the model's folder {folder}" in refusal(path)
    assert float(mb.load(path, strict=False).mass) == pytest.approx(mass, rel=1e-6)


def test_shared_text_is_what_the_compiler_reads(tmp_path):
    """`mjcf` itself: a model of these tests through MuJoCo alone."""
    model = mujoco.MjModel.from_xml_string(mjcf(body("a", HINGE)))
    assert model.njnt == 1 and mb.load(write_mjcf(tmp_path, body("a", HINGE))).nv == model.nv
    assert mb.load(ROBOTS / "hopper.xml", strict=False).nv == 6
