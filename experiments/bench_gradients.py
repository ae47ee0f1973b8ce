"""What do derivatives cost: gradients, full derivatives, second order, rollouts, and the time until they run?

One process a job. Everything is measured beside forward dynamics of the same job, in CPU-seconds of all threads, so the
ratios hold on a busy machine; Pinocchio's analytic derivatives are optional.

    python -m experiments.bench_gradients            # writes results/bench_gradients.json, .md and .png; 13 minutes
    python -m experiments.bench_gradients --quick    # one model, a small batch; writes nothing
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import RESULTS, provenance
from experiments.bench_dynamics import SEED, compile_timed, load, measure, record, states, urdf

ROOT = Path(__file__).parents[1]
MODELS = ("arm7", "g1", "chain32")
BATCH = 1024
BUDGET = 0.6  # seconds of timing a figure
TIME_LIMIT = 600.0  # seconds a job
STEPS, DT = 100, 1e-3  # of a rollout
LONG, COPIES = 10_000, 64  # steps and systems of the memory figure


class Goal(NamedTuple):
    """What a figure should be; `sign` is +1 where more is better."""

    name: str
    limit: float
    sign: int
    unit: str


GOALS = {
    "gradient": Goal("gradient of a scalar of forward dynamics in q, v, tau", 3.0, -1, "x forward"),
    "gradient all": Goal("... and in every physical number", 5.0, -1, "x forward"),
    "rollout": Goal("steps of a rollout", 0.8, +1, "x evaluations of forward dynamics"),
    "rollout gradient": Goal("gradient of a rollout", 4.0, -1, "x the rollout"),
    "full forward": Goal("full derivatives of forward dynamics", 1.0, +1, "x Pinocchio"),
    "full inverse": Goal("full derivatives of inverse dynamics", 1.0, +1, "x Pinocchio"),
    "memory": Goal(f"temporaries of the reverse mode through {LONG} steps of {COPIES} arms", 60.0, -1, "MB"),
    "compile forward": Goal("compile time of forward dynamics", 5.0, -1, "CPU-s"),
    "compile gradient": Goal("compile time of the gradient in everything", 12.0, -1, "CPU-s"),
    "first result": Goal("first result of a second process with a persistent cache", 1.5, -1, "s after the imports"),
    "import": Goal("import of jaxmbd beyond jax and equinox", 0.3, -1, "s"),
}


# what a run must show, a noisy machine allowed for; the other goals are reported as met or missed
KEPT, KEPT_ON, SLACK = ("gradient", "gradient all", "full forward", "rollout gradient"), "arm7, float32", 1.3


def functions(system) -> dict[str, Callable]:
    """Functions of (system, q, v, x, weights) over a batch, in the blocks that `mb.batched` chooses."""
    import jax
    import jax.numpy as jnp

    import jaxmbd as mb

    def dynamics(system, q, v, x, w):
        return jnp.vdot(w, mb.forward_dynamics(system, q, v, x))

    def rollout(system, q, v, x, w):
        return jnp.vdot(w, mb.simulate(system, q, v, duration=STEPS * DT, dt=DT, every=STEPS).v[-1])

    def curvature(system, q, v, x, w):
        """Hessian times a vector: forward over reverse."""
        states = q, v, x
        return jax.jvp(lambda *states: jax.grad(dynamics, (1, 2, 3))(system, *states, w), states, states)[1]

    def over_batch(f):
        return mb.batched(f, (None, 0, 0, 0, 0))

    def plain(f):
        return over_batch(lambda system, q, v, x, w: f(system, q, v, x))

    def total(*args):
        return jnp.sum(over_batch(dynamics)(*args))

    return {
        "forward": plain(mb.forward_dynamics),
        "inverse": plain(mb.inverse_dynamics),
        "gradient": over_batch(jax.grad(dynamics, (1, 2, 3))),
        "gradient all": jax.grad(total, (0, 1, 2, 3)),
        "full forward": plain(mb.forward_dynamics_derivatives),
        "full inverse": plain(mb.inverse_dynamics_derivatives),
        "second order": over_batch(curvature),
        "rollout": over_batch(rollout),
        "rollout gradient": over_batch(jax.grad(rollout, (1, 2))),
    }


def job_model(model: str, dtype: str, quick: bool, folder: Path) -> None:
    """All functions of one model at one batch size, one after the other, forward dynamics before each."""
    import jax
    import jax.numpy as jnp

    import jaxmbd as mb

    mb.prepare_cpu(1)
    batch = 16 if quick else BATCH
    system = load(model)
    floating = system.nq != system.nv
    q, v, x = states(system.nv - 6 if floating else system.nv, floating, batch)
    w = np.random.default_rng(1).normal(size=v.shape)
    args = (system, *(jnp.asarray(y, dtype) for y in (q, v, x, w)))
    job = {"kind": "derivatives", "model": model, "dtype": dtype, "batch": batch}
    budget = BUDGET / 4 if quick else BUDGET
    base = None
    for name, f in functions(system).items():
        if quick and name not in ("forward", "gradient", "full forward"):
            continue
        compiled, trace, xla = compile_timed(f, *args)

        def call(compiled=compiled):
            return jax.block_until_ready(compiled(*args))

        base = base or call
        beside = measure(base, batch, budget / 2)
        figures = measure(call, batch, budget)
        ratio = [a / beside["cpu_s"][1] for a in figures["cpu_s"]]
        compile_s = {"trace_s": round(trace, 3), "xla_s": round(xla, 3)}
        record(folder, job | {"function": name, "ratio": [float(f"{r:.4g}") for r in ratio]} | figures | compile_s)


def job_pinocchio(model: str, dtype: str, quick: bool, folder: Path) -> None:
    """Pinocchio's analytic derivatives, one copy a call."""
    import pinocchio as pin

    text, floating = urdf(model)
    robot = pin.buildModelFromXML(text, pin.JointModelFreeFlyer()) if floating else pin.buildModelFromXML(text)
    data, count = robot.createData(), 64
    samples = [(pin.randomConfiguration(robot, -np.ones(robot.nq), np.ones(robot.nq)), *np.random.default_rng(i).normal(
        size=(2, robot.nv))) for i in range(count)]  # fmt: skip
    for name, f in (("full forward", pin.computeABADerivatives), ("full inverse", pin.computeRNEADerivatives)):

        def call(f=f):
            for q, v, x in samples:
                f(robot, data, q, v, x)

        figures = measure(call, count, BUDGET)
        record(folder, {"kind": "derivatives", "model": model, "dtype": "float64", "batch": 1, "engine": "pinocchio",
                        "function": name} | figures)  # fmt: skip


def job_compile(model: str, dtype: str, quick: bool, folder: Path) -> None:
    """Compile times against the size of a chain and of a binary tree, and the memory of a long reverse mode."""
    import jax
    import jax.numpy as jnp

    import jaxmbd as mb

    mb.prepare_cpu(1)
    systems = {f"chain {n}": mb.models.chain(n) for n in ((8,) if quick else (8, 32, 128))}
    if not quick:
        systems |= {"tree 31": mb.models.binary_tree(31)}
    for name, system in systems.items():
        v = jnp.zeros((COPIES, system.nv), dtype)
        q = jnp.tile(system.neutral_q(), (COPIES, 1)).astype(dtype)
        chosen = functions(system)
        for which in ("forward", "gradient all"):
            jax.clear_caches()
            _, trace, xla = compile_timed(chosen[which], system, q, v, v, v)
            record(folder, {"kind": "compile", "model": name, "function": which, "cpu_s": round(trace + xla, 3)})
    if quick:
        return
    arm = load("arm7").astype(dtype)
    v = jnp.zeros((COPIES, arm.nv), dtype)

    def end(arm, v):
        return jnp.sum(mb.simulate(arm, v, v, duration=LONG * DT, dt=DT, every=LONG).v[-1])

    run = jax.grad(lambda arm, v: jnp.sum(jax.vmap(end, (None, 0))(arm, v)), (0, 1))
    memory = jax.jit(run).lower(arm, v).compile().memory_analysis()
    if memory is not None:
        record(folder, {"kind": "memory", "function": "rollout gradient", "MB": memory.temp_size_in_bytes / 1e6})


START = """
import time
import jax, equinox
begun = time.perf_counter()
import jaxmbd as mb
mb.prepare_cpu()
imported = time.perf_counter()
import jax.numpy as jnp
from importlib.resources import files
system = mb.load(files("jaxmbd") / "robots" / "panda.urdf")
over = (None, 0, 0, 0)
v = jnp.zeros((64, system.nv))
q = jnp.tile(system.neutral_q(), (64, 1))
jax.block_until_ready(jax.jit(jax.vmap(mb.forward_dynamics, over))(system, q, v, v))
print(imported - begun, time.perf_counter() - imported)
"""


def start_times(folder: Path) -> list[dict[str, Any]]:
    """Seconds for importing, and from there to the first result: with an empty cache and with a full one."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    # bytecode is written: an installed package has it
    cache |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    found = []
    for which in ("cold", *["warm"] * 3):
        done = subprocess.run(
            [sys.executable, "-c", START], cwd=ROOT, env=_environment("float32") | cache, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        imported, first = map(float, done.stdout.split())
        found.append({"kind": "start", "cache": which, "import_s": round(imported, 3), "first_s": round(first, 3)})
    return found


def _environment(dtype: str) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")}
    environment |= {"JAX_ENABLE_X64": str(dtype == "float64"), "OMP_NUM_THREADS": "1"}
    return environment | {"JAX_PLATFORMS": environment.get("JAX_PLATFORMS", "cpu")}


JOBS = {"model": job_model, "pinocchio": job_pinocchio, "compile": job_compile}


def main(small: bool = False, note: str = "") -> dict[str, Any]:
    """Run all jobs one after the other; `small` is a few of them."""
    models = MODELS[:1] if small else MODELS
    jobs = [(job, model, "float32") for model in models for job in ("model", "pinocchio")]
    jobs += [] if small else [("model", model, "float64") for model in MODELS]
    begun, problems, records = time.perf_counter(), [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for job, model, dtype in [*jobs, ("compile", "all", "float32")]:
            environment = _environment(dtype) | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
            command = [
                sys.executable,
                "-m",
                "experiments.bench_gradients",
                "--job",
                job,
                model,
                dtype,
                str(small),
                name,
            ]
            try:
                done = subprocess.run(
                    command, cwd=ROOT, env=environment, timeout=TIME_LIMIT, capture_output=True, text=True
                )
                problem = (done.stderr.strip().splitlines() or ["?"])[-1][:300] if done.returncode else None
            except subprocess.TimeoutExpired:
                problem = f"stopped after its {TIME_LIMIT:g} s"
            if problem:
                problems.append(f"{job} {model} {dtype}: {problem}")
            seconds = time.perf_counter() - begun
            print(f"{seconds:5.0f} s  {job} {model} {dtype}  {problem or ''}", file=sys.stderr, flush=True)
        lines = folder / "records.jsonl"
        records = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        if not small:
            records += start_times(folder)
    result = {
        "question": "what do derivatives cost?",
        **provenance("jax", "jaxlib", "numpy", "pin"),
        "seed": SEED,
        "quick": small,
        "seconds": round(time.perf_counter() - begun),
        "load": round(os.getloadavg()[0], 1),
        "note": note,
        "problems": problems,
        "records": records,
    }
    return result | {"goals": [] if small else goals(result)}


def _figure(result, key: str, **wanted) -> Any:
    for r in result["records"]:
        if all(r.get(k) == v for k, v in wanted.items()) and ("engine" in r) == ("engine" in wanted):
            return r[key]
    return None


def _per_second(result, **wanted) -> float | None:
    cpu = _figure(result, "cpu_s", **wanted)
    return None if cpu is None else 1 / cpu[1]


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Every goal with what was measured, model by model."""
    found: list[tuple[str, str, float | None]] = []
    for model in MODELS:
        for dtype in ("float32", "float64"):
            at, where = {"model": model, "dtype": dtype}, f"{model}, {dtype}"
            for name in ("gradient", "gradient all"):
                ratio = _figure(result, "ratio", function=name, **at)
                found.append((name, where, ratio and ratio[1]))
            rollout = _figure(result, "ratio", function="rollout", **at)
            slope = _figure(result, "ratio", function="rollout gradient", **at)
            found.append(("rollout", where, rollout and STEPS / rollout[1]))
            found.append(("rollout gradient", where, slope and rollout and slope[1] / rollout[1]))
            for name in ("full forward", "full inverse"):
                ours = _per_second(result, function=name, **at)
                theirs = _per_second(result, model=model, function=name, engine="pinocchio")
                found.append((name, where, ours and theirs and ours / theirs))
    for r in result["records"]:
        if r["kind"] == "compile":
            name = "compile forward" if r["function"] == "forward" else "compile gradient"
            found.append((name, r["model"], r["cpu_s"]))
        elif r["kind"] == "memory":
            found.append(("memory", "float32", r["MB"]))
    starts = [r for r in result["records"] if r["kind"] == "start" and r["cache"] == "warm"]
    if starts:
        found.append(
            ("first result", "64 Panda arms, loaded from their file", float(np.median([r["first_s"] for r in starts])))
        )
        found.append(("import", "", float(np.median([r["import_s"] for r in starts]))))
    rows = []
    for key, where, value in found:
        if value is not None:
            goal = GOALS[key]
            met = goal.sign * (value - goal.limit) >= 0
            rows.append({"goal": key, "where": where, "value": float(f"{value:.3g}"), "limit": goal.limit, "met": met})
    return rows


def check(result: dict[str, Any]) -> None:
    """No job failed, the derivatives are there, and cost on the arm what they should."""
    ours = [p for p in result["problems"] if "pinocchio" not in p]
    assert not ours, f"jobs failed: {ours}"
    for name in ("forward", "gradient", "full forward"):
        assert _figure(result, "ratio", function=name, model="arm7") is not None, f"no figure of {name}"
    for row in result["goals"]:
        goal = GOALS[row["goal"]]
        slack = SLACK if goal.sign < 0 else 1 / SLACK
        if row["where"] == KEPT_ON and row["goal"] in KEPT:
            assert goal.sign * (row["value"] - slack * goal.limit) >= 0, f"{goal.name}, {row['where']}: {row['value']}"


# --- evidence


def table(result: dict[str, Any]) -> str:
    """The figures in markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [
        f"{result['date']}, {result['cpu']}, {result['cores']} cores, {result['device']}; {versions}; "
        f"load {result['load']}. {result['note']}".strip(),
        "",
        f"Batch {BATCH}, CPU-seconds; cost over that of forward dynamics: median (lowest to highest); thousands of "
        "evaluations (steps, for rollouts) per CPU-second; compile time [CPU-s].",
        "",
        "| model | type | function | x forward | thousands a CPU-second | compile |",
        "|---|---|---|---|---|---|",
    ]
    for r in result["records"]:
        if r["kind"] != "derivatives":
            continue
        count = (STEPS if r["function"].startswith("rollout") else 1) / r["cpu_s"][1] / 1e3
        if "engine" in r:
            lines.append(f"| {r['model']} | {r['dtype']} | {r['function']}, Pinocchio | | {count:.3g} | |")
        else:
            low, middle, high = r["ratio"]
            compiled = r["trace_s"] + r["xla_s"]
            ratio = f"{middle:.2f} ({low:.2f} to {high:.2f})"
            lines.append(f"| {r['model']} | {r['dtype']} | {r['function']} | {ratio} | {count:.3g} | {compiled:.1f} |")
    lines += ["", "| goal | where | measured | aim | |", "|---|---|---|---|---|"]
    for row in result["goals"]:
        goal = GOALS[row["goal"]]
        aim = f"{'≥' if goal.sign > 0 else '≤'} {goal.limit:g} {goal.unit}"
        lines.append(
            f"| {goal.name} | {row['where']} | {row['value']:g} | {aim} | {'' if row['met'] else '**missed**'} |"
        )
    lines += ["", *(f"- not measured: {problem}" for problem in result["problems"])]
    return "\n".join(lines).rstrip() + "\n"


def draw(result: dict[str, Any]):
    """Costs in units of forward dynamics, one group of bars a function."""
    import matplotlib.pyplot as plt

    names = ("gradient", "gradient all", "full inverse", "full forward", "second order")
    figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    colours = ("#d9542b", "#3b76af", "#7f8c4d")
    for m, model in enumerate(MODELS):
        ratios = [_figure(result, "ratio", function=n, model=model, dtype="float32") for n in names]
        x = np.arange(len(names)) + 0.25 * (m - 1)
        middle = np.array([np.nan if r is None else r[1] for r in ratios])
        axes.bar(x, middle, 0.22, color=colours[m], label=model)
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("cost / forward dynamics")
    axes.legend(frameon=False, ncols=3, fontsize=8)
    axes.set_title(f"Derivatives at batch {BATCH}, float32", fontsize=10)
    return figure


def save(result: dict[str, Any], folder: Path = RESULTS) -> None:
    """Write bench_gradients.json, .md and .png."""
    from matplotlib import rc_context

    from jaxmbd.view.plots import STYLE

    folder.mkdir(parents=True, exist_ok=True)
    records = ",\n".join(json.dumps(r) for r in result["records"])
    text = json.dumps(result | {"records": []}, indent=1).replace('"records": []', f'"records": [\n{records}\n]')
    (folder / "bench_gradients.json").write_text(text + "\n", encoding="utf-8")
    (folder / "bench_gradients.md").write_text(table(result), encoding="utf-8")
    with rc_context(STYLE):
        draw(result).savefig(folder / "bench_gradients.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one model, a small batch; writes nothing")
    parser.add_argument("--note", default="", help="a sentence about the machine for the json")
    parser.add_argument("--job", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        what, model, dtype, quick, folder = options.job
        JOBS[what](model, dtype, quick == "True", Path(folder))
        sys.exit()
    evidence = main(small=options.quick, note=options.note)
    print("\n".join(evidence["problems"]))
    if not options.quick:
        save(evidence)
    check(evidence)
