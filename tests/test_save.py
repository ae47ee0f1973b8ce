"""What is kept comes back: the library's own files bit for bit, pickles, copies; what cannot be kept says so."""

import copy
import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs

import jaxmbd as mb
from jaxmbd import cli
from jaxmbd.io import system_file

DATA = Path(__file__).parent / "data"


def assert_same_bits(a, b):
    assert a.topology == b.topology and a.topology.notes == b.topology.notes
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape and np.asarray(x).tobytes() == np.asarray(y).tobytes()


def round_trip(system, folder):
    mb.save(system, folder / "kept.jaxmbd")
    return mb.load(folder / "kept.jaxmbd")


ROBOTS = sorted([*(DATA / "robots").glob("*.urdf"), *(DATA / "robots").glob("*.xml")])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("path", ROBOTS, ids=lambda path: path.name)
def test_robots_come_back_bit_for_bit(path, tmp_path):
    system = mb.load(path, loops="open")
    assert_same_bits(round_trip(system, tmp_path), system)


SYSTEMS = {
    "every joint but mapped": lambda: rs.random_tree(
        21, [k for k in rs.EVERY_KIND if "mapped" not in k], passive=True, shuffle=True
    ),
    "coupled": rs.arm,
    "gyrostat, massless": rs.floater,
}


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32, jnp.bfloat16])
def test_systems_come_back_bit_for_bit(name, dtype, tmp_path):
    system = rs.build(SYSTEMS[name]()).astype(dtype)
    assert_same_bits(round_trip(system, tmp_path), system)


def test_empty_and_batched_systems(tmp_path):
    assert_same_bits(round_trip(mb.Builder().build(), tmp_path), mb.Builder().build())
    system = rs.build(rs.arm())
    axes = system.axes(["b1.mass", "gravity", "j1.damping"])

    def variant(m, g, d):
        return system.replace({"b1.mass": m, "gravity": g, "j1.damping": d})

    batch = jax.vmap(variant, out_axes=axes)(jnp.arange(1.0, 4.0), jnp.eye(3), jnp.arange(3.0))
    assert batch.link_mass.shape == (3, 5) and batch.link_com.shape == (5, 3)
    assert_same_bits(round_trip(batch, tmp_path), batch)
    whole = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, 3, *x.shape)), system)
    assert_same_bits(round_trip(whole, tmp_path), whole)


def test_text_is_the_same_every_time_and_shows_names(tmp_path):
    system = mb.load(cli.SHIPPED_ROBOT)
    for name in ("a", "b"):
        mb.save(system, tmp_path / f"{name}.jaxmbd")
    text = (tmp_path / "a.jaxmbd").read_text(encoding="utf-8")
    assert text == (tmp_path / "b.jaxmbd").read_text(encoding="utf-8")
    record = json.loads(text)  # standard JSON: no Infinity or NaN
    assert "Infinity" not in text and record["version"] == 1
    assert record["joints"]["panda_joint1"]["upper"] == [2.8973]
    mb.save(system.replace({"panda_link4.mass": 2.5}), tmp_path / "b.jaxmbd")
    changed = (tmp_path / "b.jaxmbd").read_text(encoding="utf-8").splitlines()
    differing = [(a, b) for a, b in zip(text.splitlines(), changed, strict=True) if a != b]
    assert len(differing) == 1 and differing[0][1].strip() == '"mass": 2.5,'


def test_a_file_of_version_1_still_loads():
    """data/saved/version1.jaxmbd was written by the first version of the format; the numbers stand here once more."""
    b = mb.Builder(gravity=(0.0, 0.1, -9.81))
    b.body("rod", 1.5, (0.0, 0.0, -0.5), np.diag([0.125, 0.125, 0.001]), (0.0, 0.5, 0.0))
    b.body("slide", 0.25, inertia=np.diag([0.01, 0.01, 0.01]))
    b.body("ball", 0.5, inertia=np.diag([0.01, 0.01, 0.01]))
    b.body("nut", 0.75, inertia=np.diag([0.01, 0.01, 0.01]))
    hinge = {"damping": 0.1, "stiffness": 2.0, "rest": 0.25, "lower": -1.5, "upper": 1.5, "effort": 10.0, "speed": 3.0}
    b.joint("hinge", mb.revolute((0.0, 1.0, 0.0)), child="rod", in_child=mb.Pose((0.0, 0.0, 0.125)), **hinge)
    spring = {"friction": 0.2, "friction_speed": 0.05, "armature": 0.03}
    b.joint(
        "slider",
        mb.prismatic((0.0, 0.0, 1.0)),
        "rod",
        "slide",
        mb.Pose((0.0, 0.5, 0.0), (0.6, 0.8, 0.0, 0.0)),
        **spring,
    )
    b.joint("socket", mb.spherical(), "slide", "ball", stiffness=1.0, rest=(0.8, 0.0, 0.6, 0.0))
    b.joint("thread", mb.screw_product([mb.Pose((0.0, 0.25, 0.0)), mb.screw((1.0, 0.0, 0.0), 0.02)]), "world", "nut")
    b.frame("tip", "rod", mb.Pose((0.0, 0.0, -1.0)))
    b.couple("thread", "hinge", 2.0, 0.5)
    b.note("written by version 1")
    assert_same_bits(mb.load(DATA / "saved" / "version1.jaxmbd"), b.build())


def edited(folder, change):
    """A saved pendulum with its record changed by hand."""
    path = folder / "edited.jaxmbd"
    mb.save(mb.models.pendulum(), path)
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


FAULTS = {
    "newer": (lambda r: r.update(version=3), "has version 3 of the format; this jaxmbd reads 1 to 2. Update jaxmbd"),
    "other": (lambda r: r.update(format="x"), "expected an object with \"format\": 'jaxmbd system'"),
    "shape": (lambda r: r["links"]["link0"].update(com=[1.0]), r"link0.com has shape \(1,\); expected \(3,\)"),
    "missing": (lambda r: r.pop("frames"), "'frames' is missing"),
    "parent": (lambda r: r["joints"]["hinge0"].update(parent="hub"), "'hinge0' names the link 'hub', which is not in"),
    "circle": (lambda r: r["joints"]["hinge0"].update(parent="link0"), "link 'link0' does not hang on the world"),
    "orphan": (lambda r: r["links"].update(other={}), "link 'other' does not hang on the world"),
    "kind": (lambda r: r["joints"]["hinge0"].pop("turning"), "'hinge0' has neither 'turning' nor 'translating'"),
    "misspelt": (
        lambda r: r["links"]["link0"].update(masss=1.0),
        "'link0' of links has .'masss'., which this format does",
    ),
    "text": (lambda r: r["links"]["link0"].update(mass="heavy"), "could not convert string to float"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_files_that_were_spoilt(fault, tmp_path):
    change, text = FAULTS[fault]
    with pytest.raises(ValueError, match=f"edited.jaxmbd.*{text}"):
        mb.load(edited(tmp_path, change))


def test_what_is_left_out_has_its_default(tmp_path):
    path = edited(tmp_path, lambda r: r["links"]["link0"].pop("mass"))
    assert float(mb.load(path).get("link0.mass")) == 0.0


def curved():
    """Two hinges, the second on a curve over the first."""
    b = mb.Builder()
    for name, parent in (("j", "world"), ("k", "j body")):
        b.body(f"{name} body", 1.0, (0.0, 0.0, 0.3), np.eye(3))
        b.joint(name, mb.revolute((0.0, 1.0, 0.0)), parent, f"{name} body")
    b.couple("k", "j", function=lambda q: 0.2 + 0.5 * q - 0.3 * q**3)
    return b.build()


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="Joints 'j0', 'j1' are given by functions of Python, which no file can hold"):
        mb.save(rs.build(rs.slider()), tmp_path / "x.jaxmbd")
    driven = mb.models.pendulum().with_drive("hinge0", position=mb.laws.Constant(0.3))
    with pytest.raises(ValueError, match="'hinge0' are driven by laws.*without_drive"):
        mb.save(driven, tmp_path / "x.jaxmbd")
    with pytest.raises(ValueError, match="Joints 'k' follow others by functions of Python"):
        mb.save(curved(), tmp_path / "x.jaxmbd")
    b = mb.Builder(base_motion=lambda t: mb.Pose((t, 0.0, 0.0)))
    with pytest.raises(ValueError, match="base moves by a function of Python"):
        mb.save(b.build(), tmp_path / "x.jaxmbd")
    with pytest.raises(ValueError, match="'x.txt': a system is saved with the suffix '.jaxmbd'"):
        mb.save(mb.Builder().build(), tmp_path / "x.txt")
    mb.save(mb.Builder().build(), tmp_path / "x.jaxmbd")
    with pytest.raises(ValueError, match="holds a finished system: floating, mimic, loops and strict do not apply"):
        mb.load(tmp_path / "x.jaxmbd", floating=True)
    (tmp_path / "y.jaxmbd").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="y.jaxmbd: this is no JSON text"):
        mb.load(tmp_path / "y.jaxmbd")


def test_the_format_holds_every_number_of_a_system():
    """A new leaf of System needs its row in the format (and a new version, if old readers would get it wrong)."""
    leaves = {leaf for group in system_file._leaves(True).values() for leaf, _, _ in group.values()}
    fields = {field.name for field in dataclasses.fields(mb.System)}
    beside = {"gravity", "functions", "base_motion", "drives", "curves", "coupling_rate", "topology"}
    assert fields - leaves == beside | {"constraints"}
    static = {field.name for field in dataclasses.fields(mb.models.pendulum().topology)}
    assert static - set(system_file._FLAGS) == {
        "links",
        "joints",
        "frames",
        "couplings",
        "notes",
        "drives",
        "curves",
        "carriers",
        "constraints",
    }


def with_every_constraint():
    """Closures of each kind of record, a rod, a gear, a blade, wheels; limits in force."""
    b = mb.Builder()
    for i in range(3):
        b.body(f"b{i}", 1.0 + i, inertia=np.eye(3))
    b.joint("j0", mb.revolute((0, 0, 1)), "world", "b0", lower=-1.0, upper=1.0)
    b.joint("j1", mb.prismatic((1, 0, 0)), "b0", "b1", mb.Pose((0.5, 0, 0)))
    b.joint("root", mb.free(), child="b2")
    b.frame("tip", "b1", mb.Pose((0.1, 0.2, 0.3)))
    for i, joint in enumerate(
        (mb.revolute((0.6, 0, 0.8)), mb.spherical(), mb.screw((0, 0, 1), 0.02), mb.cylindrical((0, 1, 0)), mb.fixed())
    ):
        b.closure(f"loop{i}", joint, "tip", "b2")
    b.constraint("rod", mb.distance(1 / 3), frames=("tip", "world"))
    b.constraint("mesh", mb.gear(2.0, 0.1), joints=("j0", "j1"))
    b.constraint("blade", mb.knife_edge(), frames=("world", "b2"))
    b.constraint("disc", mb.rolling_disc(0.3), frames=("world", "b2"))
    b.constraint("ball", mb.rolling_ball(0.2), frames=("world", "b1"))
    return b.build().with_limits(stiffness=1e4, damping=10.0, width=jnp.linspace(0.1, 0.8, 8))


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_constraints_and_limits_in_force_come_back_bit_for_bit(dtype, tmp_path):
    system = with_every_constraint().astype(dtype)
    kept = round_trip(system, tmp_path)
    assert_same_bits(kept, system)
    assert json.loads((tmp_path / "kept.jaxmbd").read_text(encoding="utf-8"))["version"] == 2
    assert_same_bits(pickle.loads(pickle.dumps(system)), system)
    whole = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, *x.shape)), system)
    assert_same_bits(round_trip(whole, tmp_path), whole)
    for linkage in (mb.linkages.bennett(), mb.linkages.stewart_platform()):
        assert_same_bits(round_trip(linkage, tmp_path), linkage)


def test_a_loop_that_was_kept_moves_as_before(tmp_path):
    system = mb.linkages.four_bar()
    kept = round_trip(system, tmp_path)
    q, v = jnp.array([0.6, -0.2, 1.5]), jnp.array([1.0, 0.3, -0.5])
    a, b = (mb.forward_dynamics(s, q, v, jnp.ones(3)) for s in (system, kept))
    assert a.tobytes() == b.tobytes() and kept.constraint_names == ("C",)


def test_constraints_that_are_functions_are_refused_by_name(tmp_path):
    b = mb.Builder()
    b.body("bead", 1.0, inertia=np.eye(3))
    b.joint("root", mb.free(), child="bead")
    b.constraint("wire", mb.point_on_curve(lambda s: jnp.stack([s, s**2, 0 * s]), 0.0, 1.0), ("world", "bead"))
    b.constraint("own", mb.holonomic(lambda at: at.position[1][2]), frames=("world", "bead"))
    b.closure("driven", mb.driven(mb.revolute((0, 0, 1)), position=jnp.sin), "world", "bead")
    text = r"'wire' \(point on curve\), 'own' \(holonomic\), 'driven' \(driven revolute\) are given by functions"
    with pytest.raises(ValueError, match=f"Constraints {text}"):
        mb.save(b.build(), tmp_path / "loop.jaxmbd")
    assert not list(tmp_path.iterdir())


SPOILT = {
    "type": (lambda r: r["C"].update(type="spring"), "'C' has the type 'spring'; known: closure, distance"),
    "frame": (lambda r: r["C"].update(frames=["hub", "world"]), "'C' names the frame 'hub', which is not in the file"),
    "one": (lambda r: r["C"].update(frames=["world"]), "'C' acts on 1 frames and 0 joints"),
    "shape": (lambda r: r["C"].update(axis=[[1.0]]), r"C.axis has shape \(1, 1\); expected \(1, 3\)"),
    "extra": (lambda r: r["C"].update(length=1.0), "'C' has .'length'., which this format does not know"),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_constraints_that_were_spoilt(fault, tmp_path):
    change, text = SPOILT[fault]
    path = tmp_path / "edited.jaxmbd"
    mb.save(mb.linkages.four_bar(), path)
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record["constraints"])
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(ValueError, match=f"edited.jaxmbd.*{text}"):
        mb.load(path)


def test_pickles_and_copies():
    for spec in (rs.floater(), rs.arm()):
        system = rs.build(spec)
        assert_same_bits(pickle.loads(pickle.dumps(system)), system)
        assert_same_bits(copy.deepcopy(system), system)
    mapped = rs.build(rs.slider())
    assert_same_bits(copy.deepcopy(mapped), mapped)


READ = """
import pickle, sys
import jaxmbd as mb
system = pickle.load(open(sys.argv[1], "rb"))
fresh = mb.load(sys.argv[2])
assert system.topology == fresh.topology and hash(system.topology) == hash(fresh.topology)
"""


def test_a_pickle_is_read_by_another_process(tmp_path):
    """Names hash differently from process to process; a pickle must not carry a hash along."""
    system = mb.load(cli.SHIPPED_ROBOT)
    hash(system.topology), system.topology.layout
    (tmp_path / "arm.pickle").write_bytes(pickle.dumps(system))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "arm.pickle"), str(cli.SHIPPED_ROBOT)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
