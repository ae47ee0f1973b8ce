"""Every experiment runs small and passes its own check; the committed evidence passes it too."""

import copy
import importlib
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxmbd as mb
from experiments import (
    RESULTS,
    bench_dynamics,
    bench_loops,
    fit_mass,
    four_bar_synthesis,
    long_run,
    loop_drift,
    space_manipulator,
)

EXPERIMENTS = sorted(p.stem for p in RESULTS.parent.glob("[a-z]*.py"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_committed_evidence_passes_its_check(name):
    evidence = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert {"seed", "versions", "device", "date", "cpu", "cores"} <= evidence.keys()
    importlib.import_module(f"experiments.{name}").check(evidence)
    assert (RESULTS / f"{name}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_fit_mass(tmp_path):
    with jax.enable_x64(False):
        result = fit_mass.main(small=True)
    fit_mass.check(result)
    fit_mass.save(result, tmp_path)
    assert json.loads((tmp_path / "fit_mass.json").read_text())["fitted"] == result["fitted"]
    for change, complaint in (
        ({"fitted": [1.7, 0.4], "error": [0.0625, 0.0]}, "panda_hand.mass: 1.7000, off by 6"),
        ({"fitted": [1.6, 0.404], "deviation": [1e-3, 1e-4]}, "standard deviations"),
        ({"misfit_end": 2.0}, "the misfit ends at 2.000"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            fit_mass.check(result | change)


@pytest.mark.slow
@pytest.mark.contract("S5-22", "S5-23")
def test_space_manipulator(tmp_path):
    result = space_manipulator.main(small=True)
    space_manipulator.check(result)
    space_manipulator.save(result, tmp_path)
    assert json.loads((tmp_path / "space_manipulator.json").read_text())["jump"] == result["jump"]
    for change, complaint in (
        ({"largest_momentum": [0.0, 0.0, 0.0, 0.1, 0.0, 0.0]}, "linear momentum reaches 1.0e-01"),
        ({"net_angles_deg": [1.0, 0.0, 0.0]}, "expected a turn"),
        ({"net_angles_of_other_law_deg": [50.0, 0.0, 0.0]}, "another law in time turns the body"),
        ({"holding_error": 1e-3}, "rates of momenta differ by 1.0e-03"),
        ({"jump": [113.0, *result["jump"][1:]]}, "coordinate 1 jumps by 113.0000; Fig. 17 prints 112"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            space_manipulator.check(result | change)


@pytest.mark.slow
def test_four_bar_synthesis(tmp_path):
    result = four_bar_synthesis.main(small=True)
    assert result["finite"] and result["best"] < 0.03 * result["size"]  # few starts and iterations: three in a hundred
    four_bar_synthesis.save(result, tmp_path)
    good = json.loads((RESULTS / "four_bar_synthesis.json").read_text())
    for change, complaint in (
        ({"best": 0.02 * good["size"]}, "the best linkage is off by 2.00% of the curve's size"),
        ({"finite": False}, "ended without a number"),
        ({"misfit": [10.0] * good["starts"]}, "median misfit has not halved"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            four_bar_synthesis.check(good | change)


@pytest.mark.slow
def test_loop_drift(tmp_path):
    result = loop_drift.main(small=True)
    loop_drift.check(result)
    loop_drift.save(result, tmp_path)
    worse = [run | {"gap": 1e-8} for run in result["runs"]]
    with pytest.raises(AssertionError, match="the gap is 1.0e-08 m at dt = 0.02 s"):
        loop_drift.check(result | {"runs": worse})


@pytest.mark.slow
def test_bench_loops(tmp_path):
    """The platform alone, with whatever peers are installed."""
    result = bench_loops.main(small=True)
    bench_loops.check(result)
    bench_loops.save(result, tmp_path)
    assert {"jaxmbd float64", "jaxmbd float32"} <= {s["engine"] for s in result["speeds"]}
    bad = copy.deepcopy(result)
    bad["speeds"][0]["residual_at_rest"] = [1e-3, 1e-3]
    with pytest.raises(AssertionError, match="jaxmbd float64 on Stewart: residual 1.0e-03"):
        bench_loops.check(bad)


@pytest.mark.slow
def test_long_run(tmp_path):
    result = long_run.main(small=True)
    long_run.check(result)
    long_run.save(result, tmp_path)
    assert json.loads((tmp_path / "long_run.json").read_text())["runs"][0]["stepper"] == "semi-implicit Euler"
    assert long_run.markdown(result).count("\n") == 3


def test_long_run_check_finds_what_is_wrong():
    good = json.loads((RESULTS / "long_run.json").read_text(encoding="utf-8"))

    def changed(part, stepper, **values):
        result = copy.deepcopy(good)
        next(row for row in result[part] if row["stepper"] == stepper).update(values)
        return result

    variational = "variational midpoint"
    for result, complaint in (
        (changed("table", "SDIRK3", slope=2.2), "SDIRK3: slope 2.20, not 3"),
        (changed("table", variational, momentum=1e-6), "momentum is off by 1.0e-06"),
        (changed("table", "SDIRK3", stiff=None), "SDIRK3: a stiff spring is not stable"),
        (changed("runs", variational, rise=1e-3), "the energy drifts by 1.0e-03"),
        (changed("runs", variational, steps=1000), "1000 steps; expected a million"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            long_run.check(result)


@pytest.mark.slow
def test_bench_dynamics(tmp_path):
    result = bench_dynamics.main(small=True)
    bench_dynamics.check(result)
    bench_dynamics.save(result, tmp_path)
    assert "| arm7 | 64 |" in (tmp_path / "bench_dynamics.md").read_text(encoding="utf-8")


def good_bench():
    """What a whole run records if everything is as it should be."""
    speeds = [
        {"kind": "speed", "engine": engine, "model": model, "dtype": dtype, "function": "forward", "batch": 1024}
        | {"cpu_s": [x * seconds for x in (0.9, 1.0, 1.1)]}
        for model in bench_dynamics.MODELS
        for (engine, dtype), seconds in zip(bench_dynamics.ENGINES, (2e-6, 1e-6, 2e-6, 8e-6), strict=True)
    ]
    sizes = [{"kind": "compile bodies", "function": "forward", "x": n, "cpu_s": [3.0]} for n in (8, 32, 128)]
    kinds = ("revolute", "gimbal", "free")
    kinds = [{"kind": "compile kinds", "function": "forward", "x": k, "cpu_s": [3.0, 9.0, 3.1]} for k in kinds]
    looked_at = [{"kind": "factorisations", "model": "g1", "nv": 35, "found": []}]
    return {"quick": False, "problems": [], "records": speeds + sizes + kinds + looked_at}


def test_bench_check_finds_what_is_wrong():
    def changed(change, **of):
        result = copy.deepcopy(good_bench())
        for r in result["records"]:
            if all(r.get(key) == value for key, value in of.items()):
                change(r)
        return result

    def times(factor):
        return lambda r: r.update(cpu_s=[factor * x for x in r["cpu_s"]])

    bench_dynamics.check(good_bench())
    for result, complaint in (
        (good_bench() | {"problems": ["speed jaxmbd g1 float32: stopped"]}, "jobs failed"),
        (changed(times(0.4), kind="speed", engine="arrays", model="g1"), r"g1: 3\.2 x the 6x6 arrays"),
        (changed(times(1.4), kind="compile bodies", x=128), "compile time grows"),
        (changed(times(1.2), kind="compile kinds", x="gimbal"), "a gimbal joint adds"),
        (changed(lambda r: r.update(found=["cholesky"]), kind="factorisations"), "contains .*cholesky"),
        (changed(lambda r: r.update(kind="none"), kind="factorisations"), "no compiled forward dynamics"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            bench_dynamics.check(result)


def test_a_missing_peer_is_told_and_not_fatal():
    missing = ["speed pinocchio g1 float64: No module named 'pinocchio'"]
    result = good_bench() | {"problems": missing, "date": "", "cpu": "", "cores": 2, "device": "", "versions": {}}
    result |= {"load": [0, 0, 0], "note": ""}
    result["records"] = [r for r in result["records"] if r.get("engine") != "pinocchio"]
    bench_dynamics.check(result)
    assert f"- not measured: {missing[0]}" in bench_dynamics.table(result)


def test_bench_models_are_what_they_say():
    arm, chain = bench_dynamics.load("arm7"), bench_dynamics.load("chain8")
    panda = mb.load(bench_dynamics.ROOT / "jaxmbd" / "robots" / "panda.urdf")
    assert (arm.nv, chain.nv) == (7, 8)
    assert float(arm.mass) == pytest.approx(float(panda.mass), rel=1e-12)
    assert re.search("coupl|mimic", " ".join(arm.report)) is None
    same = mb.models.chain(8)
    q, v, a = (x[0] for x in bench_dynamics.states(8, False, 1))
    # nine digits in the file, and a chain amplifies them little
    np.testing.assert_allclose(mb.inverse_dynamics(chain, q, v, a), mb.inverse_dynamics(same, q, v, a), rtol=1e-7)


def test_array_sweeps_are_forward_dynamics():
    for model, floating in (("g1", True), ("chain8", False)):
        system = bench_dynamics.load(model)
        x = bench_dynamics.states(system.nv - 6 * floating, floating, 3)
        expected = np.stack([mb.forward_dynamics(system, *one) for one in zip(*x, strict=True)])
        found = bench_dynamics.array_sweeps(system)(*map(jax.numpy.asarray, x))
        # round-off, amplified by the condition of the mass matrix
        np.testing.assert_allclose(found, expected, atol=1e-9 * np.abs(expected).max())


def test_factorisations_would_be_found():
    def solve(M, b):
        return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(M), b)

    compiled = jax.jit(solve).lower(np.eye(5), np.ones(5)).compile().as_text()
    assert bench_dynamics.FACTORISATIONS.search(compiled)


def test_locked_fingers_keep_nothing_that_a_fixed_joint_cannot_have():
    text = bench_dynamics.locked_fingers(
        (Path(mb.__file__).parent / "robots" / "panda.urdf").read_text(encoding="utf-8")
    )
    assert "mimic" not in text
    assert text.count('type="prismatic"') == 0
