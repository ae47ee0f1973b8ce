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
    _launches,
    _level_sweeps,
    bench_dynamics,
    bench_gpu,
    bench_gradients,
    bench_loops,
    fit_mass,
    four_bar_synthesis,
    long_run,
    loop_drift,
    space_manipulator,
)
from jaxmbd import tree

EXPERIMENTS = sorted(p.stem for p in RESULTS.parent.glob("[a-z]*.py") if p.stem != "bench_gpu")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_committed_evidence_passes_its_check(name):
    evidence = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert {"seed", "versions", "device", "date", "cpu", "cores"} <= evidence.keys()
    importlib.import_module(f"experiments.{name}").check(evidence)
    assert (RESULTS / f"{name}.png").stat().st_size > 10_000


def test_committed_launch_counts_pass_their_check():
    bench_gpu.check_count(json.loads((RESULTS / "gpu_launches.json").read_text(encoding="utf-8")))


def test_launches_are_counted_in_the_loops_of_a_program():
    text = """
%body.1 (p: (s32[], f32[8,64])) -> (s32[], f32[8,64]) {
  %p = (s32[], f32[8,64]) parameter(0)
  %x = f32[8,64]{1,0} get-tuple-element(%p), index=1
  %y = f32[1,64]{1,0} fusion(%x), kind=kLoop, calls=%c
  ROOT %copy.2 = f32[8,64]{1,0} copy(%x)
}
ENTRY %main (a: f32[64]) -> f32[64] {
  %a = f32[64]{0} parameter(0)
  %b = f32[64]{0} fusion(%a), kind=kLoop, calls=%c
  %w = (s32[], f32[8,64]) while(%t), condition=%cond, body=%body.1
}
"""
    # a fusion reads a row of x [8 rounds, 64 copies] and writes one; a copy does the same
    assert _launches.loops(text, batch=64, rounds=8) == [{"loop": "body.1", "launches": 2, "floats": 4}]


@pytest.mark.slow
def test_bench_gpu_finds_right_numbers():
    """The identities hold on this device too; a wrong number is found out."""
    result = bench_gpu.main(small=True)
    bench_gpu.check(result)
    assert {r["function"] for r in result["records"]} == {"forward", "gradient"}
    assert "| arm7 |" in bench_gpu.table(result)
    result["identities"][0]["M symmetric"] = 0.1
    with pytest.raises(AssertionError, match="M symmetric is off by 0.1"):
        bench_gpu.check(result)


@pytest.mark.slow
def test_bench_gradients(tmp_path):
    result = bench_gradients.main(small=True)
    bench_gradients.check(result)
    bench_gradients.save(result, tmp_path)
    assert "| arm7 | float32 | gradient |" in (tmp_path / "bench_gradients.md").read_text(encoding="utf-8")
    with pytest.raises(AssertionError, match="no figure of gradient"):
        bench_gradients.check(result | {"records": [r for r in result["records"] if r.get("function") != "gradient"]})


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
    assert "| arm7 | 1024 |" in (tmp_path / "bench_dynamics.md").read_text(encoding="utf-8")


ENGINES = {("pinocchio", "float64"): 2e-6, ("jaxmbd", "float32"): 1e-6, ("jaxmbd", "float64"): 2e-6}
ENGINES |= {("batched", "float32"): 1.5e-6, ("arrays", "float32"): 8e-6, ("frax", "float32"): 5e-6}
ENGINES |= {("pinocchio 2", "float64"): 1e-6}


def good_bench():
    """What a whole run records if everything is as it should be."""
    speeds = [
        {"kind": "speed", "engine": engine, "model": model, "dtype": dtype, "function": function, "batch": batch}
        | {key: [x * seconds for x in (0.9, 1.0, 1.1)] for key in ("cpu_s", "wall_s")}
        for model in bench_dynamics.MODELS
        for (engine, dtype), seconds in ENGINES.items()
        for function in ("forward", "inverse")
        for batch in (1, 1024, 8192)
    ]
    sizes = [{"kind": "compile bodies", "function": "forward", "x": n, "cpu_s": [3.0]} for n in (8, 32, 128)]
    kinds = ("revolute", "gimbal", "free")
    kinds = [{"kind": "compile kinds", "function": "forward", "x": k, "cpu_s": [3.0, 9.0, 3.1]} for k in kinds]
    looked_at = [{"kind": "factorisations", "model": "g1", "nv": 35, "found": []}]
    return {"quick": False, "partial": False, "problems": [], "records": speeds + sizes + kinds + looked_at}


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
        (changed(times(0.6), engine="pinocchio", model="arm7", batch=8192), "arm7: 1.2; claimed at least 1.3"),
        (changed(times(1.8), kind="compile bodies"), "128 bodies: 5.4; claimed at most 5"),
        (changed(lambda r: r.update(kind="none"), engine="pinocchio", model="chain8"), "chain8: not measured; claimed"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            bench_dynamics.check(result)


def test_a_missing_peer_is_told_and_not_fatal():
    missing = ["speed pinocchio g1 float64: No module named 'pinocchio'"]
    result = good_bench() | {"problems": missing, "date": "", "cpu": "", "cores": 2, "device": "", "versions": {}}
    result |= {"load": [0, 0, 0], "note": ""}
    result["records"] = [r for r in result["records"] if r.get("engine") != "pinocchio"]
    result["records"].append(
        {"kind": "left out", "engine": "brax", "dtype": "float32", "model": "g1", "function": "forward", "batch": 8192}
        | {"why": "a call takes 2.0 s"}
    )
    bench_dynamics.check(result | {"partial": True})
    text = bench_dynamics.table(result)
    assert f"- not measured: {missing[0]}" in text
    assert "- not measured: brax float32 forward, g1, batch 8192: a call takes too long" in text
    with pytest.raises(AssertionError, match="arm7: not measured; claimed at least 1.3"):
        bench_dynamics.check(result)  # a claim over a peer needs the peer


def test_goals_tell_what_is_missed():
    result = good_bench()
    for r in result["records"]:
        if r.get("engine") == "batched" and r["model"] == "g1":
            r["wall_s"] = [1.0, 1.0, 1.0]
    lines = [line for line in bench_dynamics.goals(result).splitlines() if "2 threads" in line]
    assert len(lines) == 1 and "g1: 1e-06" in lines[0]
    assert lines[0].endswith("| arm7, g1, quadruped, chain8, chain32, chain128, tree127 |")  # 0.67 of two threads
    met = [line for line in bench_dynamics.goals(result).splitlines() if "best JAX peer" in line]
    assert met[0].endswith("| none |") and "arm7: 5" in met[0]


def test_a_job_is_stopped_at_its_limits(monkeypatch):
    job = ["speed", "jaxmbd", "arm7", "float32", "True", "nowhere"]
    assert bench_dynamics.run_job(job, "float32", 0.2) == "stopped after its 0.2 s"
    monkeypatch.setattr(bench_dynamics, "MEMORY_LIMIT", 1e-3)
    assert bench_dynamics.run_job(job, "float32", 60.0) == "stopped at its 0.001 GB of memory"


@pytest.mark.external
def test_engines_of_the_bench_agree_on_a_floating_robot(tmp_path):
    pytest.importorskip("mujoco")
    pytest.importorskip("pinocchio")
    bench_dynamics.write_texts("quadruped", tmp_path)
    made = [bench_dynamics.engines(engine, "quadruped", "float64", tmp_path) for engine in ("pinocchio", "mujoco")]
    hinges, floating = bench_dynamics.size("quadruped")
    assert (hinges, floating) == (12, True)
    for batch in (1, 3):
        q, v, x = bench_dynamics.states(hinges, floating, batch)
        for name in ("forward", "inverse"):
            found = {}
            for label, engine in {k: e for engines in made for k, e in engines.items() if k[1] == name}.items():
                if engine.batches(batch):
                    found[label] = engine.answer(q, v, engine.prepare(q, v, x)())
            assert len(found) == (2 if batch == 1 else 4 if name == "forward" else 3)
            expected = found["pinocchio", name]
            for label, result in found.items():
                # round-off, amplified by the condition of the mass matrix
                np.testing.assert_allclose(result, expected, atol=1e-9 * np.abs(expected).max(), err_msg=str(label))


def random_tree(rng, elements):
    """Parents of a random tree with several roots, numbered depth first."""
    parents = [int(rng.integers(-1, i)) for i in range(elements)]
    order = tree.depth_first_order(parents)
    place = {-1: -1} | {old: new for new, old in enumerate(order)}
    return tree.Tree.from_parents([place[parents[i]] for i in order])


@pytest.mark.contract("S1-30")
@pytest.mark.parametrize(("sweep", "start"), [("outward", 0.5), ("inward", 0.0)])
def test_bodies_of_a_level_are_one_batch(sweep, start):
    shape = random_tree(np.random.default_rng(4), 40)
    calls = []

    def step(state, x):
        calls.append(state)
        state = 0.7 * state + x[0]
        return state, (state * x[1], state)

    xs = tuple(jax.numpy.asarray(np.random.default_rng(5).normal(size=(2, 40))))
    found = getattr(_level_sweeps, sweep)(shape, step, start, xs)
    assert len(calls) == max(tree.levels(shape.parents)) < 15  # once a level, whatever the number of bodies
    expected = getattr(tree, f"scan_{sweep}")(shape, step, start, xs)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-13)  # sums of at most 40 terms, in another order


@pytest.mark.contract("S1-30")
def test_forward_dynamics_level_by_level_is_that_of_the_scan():
    system = mb.models.binary_tree(7)
    x = tuple(np.random.default_rng(6).normal(size=(3, 7)))
    program = jax.jit(mb.forward_dynamics).lower(system, *x)
    with _level_sweeps.by_levels():
        unrolled = jax.jit(mb.forward_dynamics).lower(system, *x)
    assert ("while" in program.as_text(), "while" in unrolled.as_text()) == (True, False)
    found, expected = (p.compile()(system, *x) for p in (unrolled, program))
    np.testing.assert_allclose(found, expected, rtol=1e-11)


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
