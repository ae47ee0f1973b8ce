"""How fast are forward and inverse dynamics, and their compilation, next to other engines for the same models?

One process a job, each with limits of time and memory. A job first checks its results against Pinocchio's (where that
is missing, against the first job's that runs), then times. The headline is evaluations per CPU-second, all threads of
the process counted: other programs may share the machine, and wall time suffers from them. Both are recorded. Peers are
optional: `pip install jaxmbd[peers]`; what is missing or fails is listed with the reason.

    python -m experiments.bench_dynamics            # writes results/bench_dynamics.json, .md and .png; under an hour
    python -m experiments.bench_dynamics --quick    # one model, one batch; writes nothing
    python -m experiments.bench_dynamics --models arm7 --engines jaxmbd,pinocchio    # writes with --write NAME only
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from experiments import RESULTS, provenance
from experiments._array_sweeps import array_sweeps
from experiments._bench_compile import FACTORISATIONS, compilations, compile_timed
from experiments._bench_goals import goals, unkept
from experiments._bench_models import MODELS, ROOT, SEED, load, locked_fingers, size, states, urdf, write_texts
from experiments._bench_report import ARRAY_MODELS, compile_seconds, draw, rate, spread, table
from experiments._level_sweeps import by_levels
from experiments._peer_engines import CANNOT, ENVIRONMENT, JAX_PEERS, PACKAGES, Engine, engines

__all__ = ["FACTORISATIONS", "compile_timed", "load", "locked_fingers", "rate", "size", "states", "urdf"]

OWN = ("jaxmbd", "unprepared", "batched", "arrays", "levels")
LEVELS = ("quadruped", "tree127")  # models with few levels
DTYPES = {"jaxmbd": ("float64", "float32"), "batched": ("float32", "float64"), "pinocchio": ("float64",)}
DTYPES |= {"mujoco": ("float64",), **dict.fromkeys(JAX_PEERS, ("float32",))}
# where the JAX peers run in float64 too; frax, which is quick to compile and meant for float64, almost everywhere
ALSO_DOUBLE = {"arm7": JAX_PEERS} | {m: ("frax",) for m in MODELS if m not in ("arm7", "tree127")}
CHECKED = 64  # states of the first batch, whose results are compared
BATCHES = (1024, 8192, 1, 64)  # in the order in which they are measured, should a job's time not do for all
LARGEST = {"arm7": (65536,)}
TOLERANCE = {"float64": 1e-9, "float32": 1e-3}  # of the largest entry

TIME_LIMIT = {"compile": 400.0, "own": 200.0, "peer": 100.0}  # seconds a job, imports and compilation included
ENOUGH = {"own": 110.0, "peer": 40.0}  # seconds after which a job begins no further figure
MEMORY_LIMIT = 6.0  # GB a job, resident
WHOLE_LIMIT = 3300.0  # seconds after which no further job is begun
LONGEST_CALL = 2.0  # seconds; slower batches are left out
BUDGET = 0.4  # seconds of timing a figure

# what a whole run must show, beside the goals of _bench_goals
FASTER_THAN_ARRAYS = 4.0
FLAT = 1.3  # compile time of 128 bodies over that of 8
SECONDS_A_KIND = 0.5  # compile time of one more joint kind: the aim, met by all kinds made of screws
SECONDS_BESIDE_SCREWS = {"spherical": 1.0, "free": 1.0}  # what these kinds keep to; docs/performance.md says why


def own_engines(engine: str, model: str, dtype: str) -> dict[tuple[str, str], Engine]:
    """jaxmbd itself: by `jax.vmap` (one state by `mb.low_latency`) after `mb.prepare_cpu(1)`, and without that; by
    `mb.batched` over two host devices, 64 states on one of them; level by level; sweeps of arrays.
    """
    import jax
    import jax.numpy as jnp

    import jaxmbd as mb

    if engine in ("jaxmbd", "batched"):
        mb.prepare_cpu(2 if engine == "batched" else 1)
    system = load(model)
    over = (None, 0, 0, 0)

    def prepared(function):
        def prepare(*x):
            x = tuple(jnp.asarray(y, dtype) for y in x)
            if engine == "arrays":
                compiled, arguments = jax.jit(array_sweeps(system)), x
            elif engine == "batched":
                devices = jax.devices()[:1] if len(x[0]) <= 64 else jax.devices()
                compiled, arguments = mb.batched(function, over, devices=devices), _placed(system, x, devices)
            elif engine == "levels":
                arguments = (system, *x)
                with by_levels():
                    compiled = jax.jit(jax.vmap(function, over)).lower(*arguments).compile()
            elif len(x[0]) == 1:
                compiled = (mb.low_latency if engine == "jaxmbd" else jax.jit)(function)
                arguments = (system, *(y[0] for y in x))
            else:
                compiled, arguments = jax.jit(jax.vmap(function, over)), (system, *x)
            return lambda: jax.block_until_ready(compiled(*arguments))

        return prepare

    def answer(q, v, result):
        return np.atleast_2d(np.asarray(result))

    functions = {"forward": mb.forward_dynamics, "inverse": mb.inverse_dynamics}
    if engine in ("arrays", "levels"):
        del functions["inverse"]
    sizes = {"jaxmbd": BATCHES + LARGEST.get(model, ()), "levels": BATCHES[:1]}
    sizes |= {"unprepared": [b for b in BATCHES if b <= 1024]}
    sizes |= {"batched": [b for b in sizes["jaxmbd"] if b > 1], "arrays": [b for b in BATCHES if b > 1]}
    of = sizes[engine].__contains__
    return {(engine, name): Engine(prepared(f), answer, of) for name, f in functions.items()}


def _placed(system, arrays, devices):
    """The arguments where `mb.batched` wants them, as results of an earlier call would be."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(devices), ("batch",))
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
    return jax.device_put(system, everywhere), *(jax.device_put(x, split) for x in arrays)


# --- jobs, each in its own process


def measure(call: Callable[[], Any], batch: int, budget: float) -> dict[str, Any]:
    """Wall and CPU seconds of one evaluation: minimum, median, maximum over repeats of at least 20 ms."""
    call()
    begun = time.perf_counter()
    call()
    once = time.perf_counter() - begun
    inner = max(1, round(0.02 / once))
    repeats = int(np.clip(budget / (inner * once), 3, 15))
    wall, cpu = [], []
    for _ in range(repeats):
        w, c = time.perf_counter(), time.process_time()
        for _ in range(inner):
            call()
        cpu.append((time.process_time() - c) / (inner * batch))
        wall.append((time.perf_counter() - w) / (inner * batch))
    return {"wall_s": spread(wall), "cpu_s": spread(cpu), "repeats": repeats, "calls": inner}


def job_speed(engine: str, model: str, dtype: str, quick: bool, folder: Path) -> None:
    """Compare every function with the reference, then time it at every batch."""
    begun = time.perf_counter()
    own = engine in OWN
    batches = BATCHES[:1] if quick else BATCHES + LARGEST.get(model, ())
    functions = own_engines(engine, model, dtype) if own else engines(engine, model, dtype, folder)
    hinges, floating = size(model)
    reference = folder / f"{model}.npz"
    expected = dict(np.load(reference)) if reference.exists() else {}
    job = {"engine": engine, "model": model, "dtype": dtype}
    for name in [name for e, name in CANNOT if e == engine]:
        record(folder, job | {"kind": "left out", "function": name, "why": CANNOT[engine, name]})

    wrong, seconds, compiling, found = {}, {}, 0.0, {}
    for batch in batches:
        for (label, name), one in functions.items():
            if name in wrong or not one.batches(batch):
                continue
            of = job | {"engine": label, "function": name, "batch": batch}
            slow = seconds.get((label, name), 0.0) * batch
            spent = time.perf_counter() - begun
            if slow > LONGEST_CALL or (batch != BATCHES[0] and spent + compiling > ENOUGH["own" if own else "peer"]):
                why = f"a call takes {slow:.1f} s" if slow > LONGEST_CALL else f"{spent:.0f} s had passed"
                record(folder, of | {"kind": "left out", "why": why})
                continue
            q, v, x = states(hinges, floating, batch)
            if floating and name == "forward":
                x[:, :6] = 0.0  # nothing but gravity acts on the base: not every engine can be given more
            wall, cpu = time.perf_counter(), time.process_time()
            call = one.prepare(q, v, x)
            result = call()
            compiling = time.perf_counter() - wall
            first = {"first_cpu_s": round(time.process_time() - cpu, 3)}
            if batch == BATCHES[0]:
                found[name] = one.answer(q, v, result)[:CHECKED]
                right = expected.get(name, found[name])
                error = float(np.abs(found[name] - right).max() / np.abs(right).max())
                if not error < TOLERANCE[dtype]:
                    wrong[name] = f"{name} dynamics is off by {error:.2g} of its largest entry"
                    continue
            figures = measure(call, batch, BUDGET / 4 if quick else BUDGET)
            if batch > 1:
                seconds[label, name] = figures["wall_s"][1]
            record(folder, of | {"kind": "speed", "error": error if batch == BATCHES[0] else None} | first | figures)
    if wrong:
        raise ValueError(f"{'; '.join(wrong.values())}; expected {TOLERANCE[dtype]:g} ({dtype})")
    if not reference.exists() and dtype == "float64":
        np.savez(reference, **found)


def record(folder: Path, figures: dict[str, Any]) -> None:
    """Add one line to the run's records; what a job found before its time was up is kept."""
    with open(folder / "records.jsonl", "a", encoding="utf-8") as lines:
        lines.write(json.dumps(figures) + "\n")


def run_job(arguments: list[str], dtype: str, limit: float, extra: dict[str, str] | None = None) -> str | None:
    """Run one job in a process of its own; what went wrong, in one line, or None.

    Args:
      limit: seconds, after which the process is stopped; so it is when it holds more than MEMORY_LIMIT (seen on Linux).
      extra: environment variables.
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")}
    environment |= {"JAX_ENABLE_X64": str(int(dtype == "float64")), "JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment |= {"JAX_PLATFORMS": environment.get("JAX_PLATFORMS", "cpu"), "OMP_NUM_THREADS": "1", **(extra or {})}
    command = [sys.executable, "-m", "experiments.bench_dynamics", "--job", *arguments]
    begun = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        stopped = None
        while stopped is None and process.poll() is None:
            time.sleep(0.1)
            if time.perf_counter() - begun > limit:
                stopped = f"stopped after its {limit:g} s"
            elif _resident(process.pid) > MEMORY_LIMIT:
                stopped = f"stopped at its {MEMORY_LIMIT:g} GB of memory"
        if stopped:
            process.kill()
        code = process.wait()
        said.seek(0)
        lines = said.read().strip().splitlines()
    return stopped or (None if code == 0 else (lines or [f"exit code {code}"])[-1][:300])


def _resident(process: int) -> float:
    """Memory of a process in GB, 0 where the system does not tell."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    kilobytes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(kilobytes[0]) / 1e6 if kilobytes else 0.0


# --- the whole run


def jobs(models: tuple[str, ...], chosen: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """(engine, model, dtype), a model's engines side by side, the reference first."""
    order = [e for e in ("pinocchio", "mujoco", *OWN, *JAX_PEERS) if e in chosen]
    dtypes = {e: DTYPES.get(e, ("float32",)) for e in order}
    double = [(e, m, "float64") for m in models for e in ALSO_DOUBLE.get(m, ()) if e in order]
    single = [(e, m, d) for m in models for e in order for d in dtypes[e] if e != "levels" or m in LEVELS]
    return sorted(single + double, key=lambda job: models.index(job[1]))


def main(
    small: bool = False, note: str = "", models: tuple[str, ...] = (), chosen: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Run all jobs one after the other; `small`, or a choice of models or engines, is a few of them."""
    partial, every_model = bool(models or chosen), not models
    models = models or (("arm7",) if small else MODELS)
    chosen = chosen or (*PACKAGES, *OWN)
    missing = [e for e in chosen if e in PACKAGES and not _installed(PACKAGES[e][1])]
    problems = [f"{e}: not installed (package {PACKAGES[e][0]}, in the extra `peers`)" for e in missing]
    begun, loads = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        todo = [("compile", "jaxmbd", "all", "float32")] if every_model and "jaxmbd" in chosen else []
        todo += [("texts", "jaxmbd", m, "float64") for m in models if set(chosen) & set(PACKAGES) - set(missing)]
        todo += [("speed", *job) for job in jobs(models, tuple(e for e in chosen if e not in missing))]
        for job in todo:
            kind, engine, model, dtype = job
            loads.append(os.getloadavg()[0])
            seconds = time.perf_counter() - begun
            limit = TIME_LIMIT["compile" if kind == "compile" else "own" if engine in OWN else "peer"]
            extra = ENVIRONMENT.get(engine)
            problem = f"not begun, {seconds:.0f} s had passed" if seconds > WHOLE_LIMIT else None
            problem = problem or run_job([*job, str(small), name], dtype, limit, extra)
            if problem:
                problems.append(f"{' '.join(job)}: {problem}")
                double = (kind, engine, model, "float64")
                if "is off by" in problem and engine in JAX_PEERS and double not in todo:
                    todo.append(double)  # single precision is not enough for this engine and model
            took = time.perf_counter() - begun - seconds
            print(f"{seconds:5.0f} s + {took:3.0f}  {' '.join(job)}  {problem or ''}", file=sys.stderr, flush=True)
        lines = folder / "records.jsonl"
        records = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    packages = sorted({package for package, _ in PACKAGES.values()})
    return {
        "question": "how fast are forward and inverse dynamics and their compilation?",
        **provenance("jax", "jaxlib", "numpy", *packages),
        "seed": SEED,
        "quick": small,
        "partial": partial,
        "seconds": round(time.perf_counter() - begun),
        "load": spread(loads),
        "note": note,
        "problems": problems,
        "records": records,
    }


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package that would hold it
        return False


def check(result: dict[str, Any]) -> None:
    """The claims on medians; a quick run or a part shows that everything works, and no speed."""
    ours = [p for p in result["problems"] if not set(p.replace(":", "").split()[:2]) & set(PACKAGES)]
    assert not ours, f"jobs failed: {ours}"
    if result.get("partial"):
        return
    factorisations = [r for r in result["records"] if r["kind"] == "factorisations"]
    assert factorisations, "no compiled forward dynamics was looked at"
    for r in factorisations:
        assert not r["found"], f"{r['model']}: the compiled forward dynamics contains {r['found']} (nv = {r['nv']})"
    if result["quick"]:
        return
    for model in ARRAY_MODELS:
        ratio = array_ratio(result, model)
        assert ratio >= FASTER_THAN_ARRAYS, f"{model}: {ratio:.1f} x the 6x6 arrays; expected {FASTER_THAN_ARRAYS} x"
    bodies = {n: median for n, (_, median, _) in compile_seconds(result, "bodies").items()}
    assert bodies[128] <= FLAT * bodies[8], f"compile time grows from {bodies[8]} s (8 bodies) to {bodies[128]} s (128)"
    for (_, (_, before, _)), (kind, (_, after, _)) in pairwise(compile_seconds(result, "kinds").items()):
        limit = SECONDS_BESIDE_SCREWS.get(kind, SECONDS_A_KIND)
        assert after - before <= limit, f"a {kind} joint adds {after - before:.2f} s to the compile time"
    assert not unkept(result), "; ".join(unkept(result))


def array_ratio(result: dict[str, Any], model: str, batch: int = 1024) -> float:
    """Forward dynamics of jaxmbd over that of the 6x6 arrays, float32, medians."""
    return rate(result, "jaxmbd", model, "float32", "forward", batch) / rate(
        result, "arrays", model, "float32", "forward", batch
    )


# --- evidence


def save(result: dict[str, Any], folder: Path = RESULTS, name: str = "bench_dynamics") -> None:
    """Write a json, a table and a figure of that name."""
    from matplotlib import rc_context

    from jaxmbd.view.plots import STYLE

    folder.mkdir(parents=True, exist_ok=True)
    records = ",\n".join(json.dumps(r) for r in result["records"])
    text = json.dumps(result | {"records": []}, indent=1)
    text = text.replace('"records": []', f'"records": [\n{records}\n]')
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(table(result) + "\n" + goals(result), encoding="utf-8")
    with rc_context(STYLE):
        draw(result).savefig(folder / f"{name}.png")


def _several(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Reads names with commas between them."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        unknown = [n for n in names if n not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} unknown; choose from {', '.join(known)}")
        return names

    return read


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one model, one batch; writes nothing")
    parser.add_argument("--models", type=_several(MODELS), default=(), help="a part of them, with commas")
    parser.add_argument("--engines", type=_several((*PACKAGES, *OWN)), default=(), help="a part of them, with commas")
    parser.add_argument("--write", metavar="NAME", default="", help="write the results of a part, under this name")
    parser.add_argument("--note", default="", help="a sentence about the machine for the json")
    parser.add_argument("--job", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        what, engine, model, dtype, quick, folder = options.job
        if what == "compile":
            for figures in compilations(quick == "True"):
                record(Path(folder), figures)
        elif what == "texts":
            write_texts(model, Path(folder))
        else:
            job_speed(engine, model, dtype, quick == "True", Path(folder))
        sys.exit()
    evidence = main(options.quick, options.note, options.models, options.engines)
    if options.write or not (options.quick or options.models or options.engines):
        save(evidence, name=options.write or "bench_dynamics")
    else:
        print(table(evidence) + "\n" + goals(evidence))
    check(evidence)
