"""The command line does its main job, and every mistake gets one line that says what to do."""

import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import cli

PANDA = str(cli.SHIPPED_ROBOT)
SMALL = ["--duration", "0.03", "--dt", "0.001"]


def run(folder, *arguments):
    """The command in a process of its own, as a user starts it, in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "jaxmbd", *map(str, arguments)], cwd=folder, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def panda():
    return mb.load(PANDA)


@pytest.fixture(scope="module")
def main_job(tmp_path_factory):
    """The main job with no robot named: odd batch (shares are padded), uneven chunks, every third step kept."""
    folder = tmp_path_factory.mktemp("main_job")
    done = run(
        folder,
        "simulate",
        "--batch",
        5,
        "--duration",
        0.17,
        "--every",
        3,
        "--out",
        "run.npz",
        "--plot",
        "run.png",
        "--x64",
    )
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.mark.slow
def test_limits_keep_the_joints_in_their_ranges(tmp_path, panda):
    """Without --limits the Panda's joints turn far beyond their ranges; with it all stay, the finger too."""
    loose, held = (tmp_path / name for name in ("loose.npz", "held.npz"))
    for path, more in ((loose, []), (held, ["--limits"])):
        done = run(tmp_path, "simulate", "--batch", 4, "--duration", 0.5, "--every", 5, "--out", path, *more)
        assert done.returncode == 0, done.stderr
    over = []
    for path in (loose, held):
        q = np.load(path)["q"]
        bounds = [
            np.concatenate([np.ravel(panda.get(f"{j}.{b}")) for j in panda.joint_names]) for b in ("lower", "upper")
        ]
        over.append(np.maximum(q - bounds[1], bounds[0] - q).max(axis=(0, 1)))
    # a stop gives way by half its onset (0.01 rad, 1 mm) at some 50 N m, and a little more in a blow
    assert over[0].max() > 1.0 and over[1].max() < 0.03 and over[1][-1] < 3e-3, over
    done = run(tmp_path, "simulate", "--limits", "--stepper", "rk4", *SMALL)
    assert done.returncode == 2 and "--limits needs --stepper euler" in done.stderr


def test_main_job_says_what_it_does(main_job):
    _, done = main_job
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    assert "panda: 8 coordinates, 8 velocities" in done.stdout
    assert f"on {min(5, cores)} cpu devices" in done.stdout
    assert re.search(r"compiled in \d+\.\d s", done.stdout)
    assert re.search(r"simulated in \d+\.\d s: [\d,]+ steps/s", done.stdout)
    assert "wrote run.npz: t [57], q [5, 57, 8], v [5, 57, 8]" in done.stdout
    assert "wrote run.png" in done.stdout
    assert "100%" in done.stderr, "the progress bar"
    assert "Error" not in done.stderr and "Warning" not in done.stderr


def test_main_job_files(main_job, panda):
    folder, _ = main_job
    with np.load(folder / "run.npz") as saved:
        assert saved["q"].shape == (5, 57, panda.nq) and saved["v"].shape == (5, 57, panda.nv)
        np.testing.assert_allclose(saved["t"], np.arange(57) * 0.003, rtol=1e-14)
        assert saved["q"].dtype == np.float64
        assert tuple(saved["joint_names"]) == panda.joint_names
        assert len(saved["q_names"]) == panda.nq and len(saved["v_names"]) == panda.nv
        assert np.std(saved["q"][:, 0], axis=0).min() > 0, "the copies start from differing poses"
    assert (folder / "run.png").read_bytes().startswith(b"\x89PNG")


def test_batch_is_the_same_as_one_by_one(main_job, panda):
    """Sharding, padding, blocks, chunks and thinning are bookkeeping: the numbers are those of `simulate` alone.

    The two differ in the order of floating-point operations; over 170 steps that stays near 1e3 ulp.
    """
    folder, _ = main_job
    with np.load(folder / "run.npz") as saved:
        q, v = saved["q"], saved["v"]
    one = jax.jit(lambda q, v: mb.simulate(panda, q, v, duration=0.168, dt=1e-3))
    for copy in range(5):
        traj = one(q[copy, 0], v[copy, 0])
        np.testing.assert_allclose(q[copy], traj.q[::3], rtol=0, atol=1e-11)
        np.testing.assert_allclose(v[copy], traj.v[::3], rtol=0, atol=1e-10)


def test_float32_unless_asked_and_same_seed_same_numbers(tmp_path, panda):
    for name in "ab":
        done = run(tmp_path, "simulate", "--batch", 3, "--seed", 1, "--out", f"{name}.npz", *SMALL)
        assert done.returncode == 0, done.stderr
    a, b = (np.load(tmp_path / f"{name}.npz")["q"] for name in "ab")
    assert a.dtype == np.float32
    np.testing.assert_array_equal(a, b)
    starts = [cli._spread_states(panda, 3, 0.3, seed)[0] for seed in (1, 2)]
    assert np.abs(starts[0] - starts[1]).max() > 0.1


@pytest.mark.slow
def test_a_run_goes_on_where_another_ended(tmp_path):
    first = ["--batch", 2, "--x64", "--dt", 0.001]
    for command in (
        [*first, "--duration", 0.04, "--out", "whole.npz"],
        [*first, "--duration", 0.03, "--out", "part.npz"],
        ["--x64", "--dt", 0.001, "--start", "part.npz", "--duration", 0.01, "--out", "rest.npz"],
    ):
        done = run(tmp_path, "simulate", *command)
        assert done.returncode == 0, done.stderr
    whole, rest = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "rest.npz")
    np.testing.assert_allclose(whole["q"][:, 30:], rest["q"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(whole["v"][:, 30:], rest["v"], rtol=0, atol=1e-11)


def test_one_start_state_serves_the_batch(tmp_path, panda):
    np.save(tmp_path / "start.npy", np.linspace(-0.5, 0.5, panda.nq))
    done = run(tmp_path, "simulate", PANDA, "--batch", 2, "--start", "start.npy", "--out", "run.npz", *SMALL)
    assert done.returncode == 0, done.stderr
    q = np.load(tmp_path / "run.npz")["q"]
    np.testing.assert_allclose(q[:, 0], np.tile(np.linspace(-0.5, 0.5, panda.nq), (2, 1)), atol=1e-6)
    np.testing.assert_array_equal(q[0], q[1])


def test_not_finite_is_told_and_written(tmp_path, panda):
    """Copy 1 starts at a speed whose square float32 cannot hold."""
    v = np.zeros((2, panda.nv))
    v[1, 3] = 1e30
    np.savez(tmp_path / "start.npz", q=np.zeros((2, panda.nq)), v=v)
    done = run(tmp_path, "simulate", "--start", "start.npz", "--out", "run.npz", "--plot", "run.png", *SMALL)
    assert done.returncode == 1
    assert "1 of 2 copies are not finite; the first is copy 1 at step 1 (t = 0.001 s)" in done.stderr
    assert "its fastest joint 'panda_joint4'" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run.png").exists()
    finite = np.isfinite(np.load(tmp_path / "run.npz")["q"]).all((1, 2))
    assert finite.tolist() == [True, False]


@pytest.fixture
def keep_settings(monkeypatch):
    """`main` in this process, without the change of precision that the command makes."""
    monkeypatch.setattr(cli, "_set_up_jax", lambda x64: None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", "nowhere.urdf"], r"nowhere\.urdf: no such file"),
        (["info", "."], r"\.: is a folder"),
        (["simulate", "broken.urdf"], r"broken\.urdf.*arm"),
        (["simulate", "text.urdf"], r"text\.urdf"),
        (["simulate", "model.stl"], r"'\.stl' is not known"),
        (["simulate", "welded.urdf"], r"nothing moves in it; --floating"),
        (["simulate", "--bach", "3"], r"--bach.*--batch"),
        (["simulate", "--batch", "three"], r"--batch.*'three'"),
        (["simulate", "--mimic", "maybe"], r"'maybe'.*--mimic.*'eliminate', 'independent'"),
        (["fly"], r"fly"),
        ([], r"one of \{simulate, info\}; see jaxmbd --help"),
        (["simulate", "--batch", "0"], r"--batch is 0; expected a finite number above zero"),
        (["simulate", "--dt", "-1e-3"], r"--dt is -0\.001"),
        (["simulate", "--duration", "nan"], r"--duration is nan"),
        (["simulate", "--duration", "1e-9"], r"no whole number of steps of --dt 0\.001 s; take --duration 0\.001"),
        (["simulate", "--duration", "1", "--dt", "3e-3"], r"take --duration 0\.999 or"),
        (["simulate", "--every", "3000"], r"shorter than one kept step"),
        (["simulate", "--out", "no/such/run.npz"], r"there is no folder no/such; make it first"),
        (["simulate", "--out", "run.csv"], r"--out run\.csv: expected a name that ends in \.npz"),
        (["simulate", "--plot", "run.doc"], r"ends in \.png or \.pdf or \.svg"),
        (["simulate", "--start", "nowhere.npy"], r"--start nowhere\.npy: .*No such file"),
        (["simulate", "--start", "text.urdf"], r"--start text\.urdf: .*expected a \.npy or \.npz file"),
        (["simulate", "--start", "flat.npy"], r"q has shape \[5\]; panda needs \[8\] or \[batch, 8\]"),
        (["simulate", "--batch", "4", "--start", "three.npy"], r"q has shape \[3, 8\]; panda needs \[8\] or \[4, 8\]"),
        (["simulate", "--start", "nan.npy"], r"q has entries that are no finite numbers"),
        (["simulate", "--start", "other.npz"], r"has angles; expected q"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path, monkeypatch, capsys, keep_settings):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.urdf").write_text(
        "<robot name='r'><link name='a'/>"
        "<joint name='arm' type='revolute'><parent link='a'/><child link='z'/></joint></robot>"
    )
    (tmp_path / "text.urdf").write_text("this is no model")
    (tmp_path / "model.stl").write_text("solid")
    (tmp_path / "welded.urdf").write_text("<robot name='r'><link name='a'/></robot>")
    np.save("flat.npy", np.zeros(5))
    np.save("three.npy", np.zeros((3, 8)))
    np.save("nan.npy", np.full(8, np.nan))
    np.savez("other.npz", angles=np.zeros(8))
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(r"jaxmbd: error: [^\n]*\n", said), said
    assert re.search(message, said), said


def test_memory_is_guarded_and_the_advice_works(capsys, keep_settings):
    too_much = ["simulate", "--batch", "1000", "--duration", "1000", "--max-gb", "0.1"]
    assert cli.main(too_much) == 2
    said = capsys.readouterr().err
    every = int(re.search(r"--every (\d+)", said)[1])
    assert "the states to keep need 128.0 GB (batch 1000 x 1000001 instants x 16 numbers)" in said  # float64 here
    instants = 1_000_000 // every + 1
    assert 0.09 < 1000 * instants * 16 * 8 / 1e9 <= 0.1


def test_info(capsys):
    assert cli.main(["info"]) == 0
    said = capsys.readouterr().out
    assert "panda: 8 coordinates (nq), 8 velocities (nv)" in said
    assert "17.4519 kg" in said  # the sum over the file's links
    assert re.search(r"panda_finger_joint2 +prismatic +follows panda_finger_joint1", said)
    assert re.search(r"panda_joint4 +\S+ +3 +3 +panda_link3 +panda_link4 +-3\.072 +-0\.0698 +0\.003", said)
    assert cli.main(["info", "--floating", "--mimic", "independent"]) == 0
    said = capsys.readouterr().out
    assert "16 coordinates (nq), 15 velocities (nv)" in said
    assert re.search(r"root +free +0:7 +0:6 +world +panda_link0", said)


def test_version_and_help(capsys):
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"jaxmbd \d+\.\d+\.\d+\n", capsys.readouterr().out)
    with pytest.raises(SystemExit) as left:
        cli.main(["simulate", "--help"])
    assert not left.value.code
    said = capsys.readouterr().out
    options = "batch duration dt out plot every start spread seed floating mimic loops x64 max-gb".split()
    assert all(f"--{option}" in said for option in options)
