"""How fast is the forward dynamics of closed loops beside other engines at the same residual, and over bodies?

Two mechanisms: Cassie (floating, four loops, twelve rows of which two are redundant) and a Stewart platform (five
loops, fifteen rows), without passive forces. Every engine gets the same states on the constraints, and its
accelerations are put into the same measure: the size of J a + gamma, relative to that of the free tree. Engines that
trade that residual against time or numerical condition appear with several settings: Pinocchio with few and many
proximal iterations, MuJoCo and MJX with impedances up to the stiffest they take. Their equality is soft and leaves
gamma to its stabilisation, so everything is measured at rest. The headline is evaluations per CPU-second of the
process; engines without a batched call are called from a Python loop. Peers are optional. MJX runs in a process of its
own, without XLA's fusion, which would compute its gathers again and again.

    python -m experiments.bench_loops          # writes results/bench_loops.json, .md and .png; some minutes
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

import jaxmbd as mb
from experiments import RESULTS, provenance
from experiments._loop_peers import mjx_engine, mujoco_engine, pinocchio_engine
from experiments.bench_dynamics import measure
from jaxmbd.constraints.rows import rows
from jaxmbd.packing import pack
from jaxmbd.view.plots import STYLE

ROOT = Path(__file__).parents[1]
BATCH, SEED = 256, 0
TYPES = ("float64", "float32")
RINGS = (8, 32, 128)  # bodies of a chain whose end is pinned
COLOURS = {"Pinocchio": "#33373d", "MuJoCo": "#7f8c4d", "MJX": "#b79b3c", "jaxmbd": "#3b76af"}
PINOCCHIO = {"mu 1e-2, 2 iterations": (1e-2, 2), "mu 1e-6, 5 iterations": (1e-6, 5)}
IMPEDANCES = (0.9, 0.99, 0.9999)
# what bounds the largest residual at rest, where an engine is asked for its best
BOUNDS = {"jaxmbd float64": 1e-8, "jaxmbd float32": 1e-2, "Pinocchio, mu 1e-6, 5 iterations": 1e-2}
BOUNDS |= {"MuJoCo, impedance 0.9999": 5e-2, "MJX, impedance 0.9999": 5e-2}


def cassie() -> mb.System:
    """Cassie of the test data, whose file needs the package `mujoco`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mb.load(ROOT / "tests" / "data" / "robots" / "cassie.xml").without_passive_forces()


def ring(n: int) -> mb.System:
    """A chain of n hinged rods whose end is pinned to the world where it is in a bent pose."""
    b, hinge = mb.Builder(), mb.revolute((0, 1, 0))
    for i in range(n):
        b.body(f"rod{i}", 1.0, (0, 0, 0.5), np.diag([0.1, 0.1, 0.01]))
        b.joint(f"hinge{i}", hinge, f"rod{i - 1}" if i else "world", f"rod{i}", mb.Pose((0, 0, float(i > 0))))
    b.frame("end", f"rod{n - 1}", mb.Pose((0, 0, 1.0)))
    bent = np.cumsum(bend(n))
    b.frame("pin", "world", mb.Pose((float(np.sin(bent).sum()), 0, float(np.cos(bent).sum()))))
    b.closure("loop", mb.spherical(), "end", "pin")
    return b.build()


def bend(n: int) -> np.ndarray:
    """Joint angles of the pinned pose."""
    return 0.4 * np.sin(1.0 + np.arange(n))


def states(system: mb.System, near: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q and v on the constraints around a position, and forces; one seed."""
    rng = np.random.default_rng(SEED)
    start = mb.assemble(system, near).q

    def one(step, v):
        return mb.project(system, mb.integrate(system, start, step), v)

    q, v = jax.jit(jax.vmap(one))(0.02 * rng.normal(size=(batch, system.nv)), rng.normal(size=(batch, system.nv)))
    return np.asarray(q), np.asarray(v), rng.normal(size=(batch, system.nv))


@jax.jit
def residuals(system, q, v, tau, a):
    """|J a + gamma| / |J a_tree + gamma|, the largest entries of each state; the median and the largest over states."""
    tree = dataclasses.replace(system, constraints=(), topology=dataclasses.replace(system.topology, constraints=()))

    def one(q, v, tau, a):
        r = rows(system, pack(system), q, v, jnp.zeros(()))
        free = mb.forward_dynamics(tree, q, v, tau)
        return jnp.abs(r.jacobian @ a + r.gamma).max() / jnp.abs(r.jacobian @ free + r.gamma).max()

    each = jax.vmap(one)(q, v, tau, a)
    return jnp.median(each), jnp.max(each)


def jaxmbd_engine(system: mb.System, dtype: str) -> Callable:
    """One compiled program for the batch."""
    system, compiled, spent = system.astype(dtype), None, 0.0

    def prepare(q, v, tau):
        nonlocal compiled, spent
        x = tuple(jnp.asarray(y, dtype) for y in (q, v, tau))
        if compiled is None:
            begun = time.process_time()
            compiled = jax.jit(jax.vmap(mb.forward_dynamics, (None, 0, 0, 0))).lower(system, *x).compile()
            spent = time.process_time() - begun

        def call():
            return jax.block_until_ready(compiled(system, *x))

        call.compile_s = round(spent, 2)
        return call

    return prepare


def in_own_process(model: str, impedance: float, x, rest, budget: float) -> dict[str, Any]:
    """MJX's accelerations of both batches of states, and what they cost; ImportError where it is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "states.npz"
        np.savez(path, *x, *rest)
        environment = os.environ | {"XLA_FLAGS": "--xla_disable_hlo_passes=fusion", "JAX_ENABLE_X64": "1"}
        command = [
            sys.executable,
            "-m",
            "experiments.bench_loops",
            "mjx",
            model,
            str(impedance),
            str(path),
            str(budget),
        ]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise ImportError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer")
        found = np.load(Path(folder) / "found.npz")
        return json.loads(done.stdout.splitlines()[-1]) | {"a": found["a"], "rest": found["rest"]}


def mjx_job(model: str, impedance: str, path: str, budget: str) -> None:
    """The other side of `in_own_process`."""
    given = np.load(path)
    x, rest = [given[f"arr_{i}"] for i in range(3)], [given[f"arr_{i}"] for i in range(3, 6)]
    prepare = mjx_engine(models()[model][0], float(impedance))
    begun, call = time.process_time(), prepare(*x)
    first = call()
    spent, still = time.process_time() - begun, prepare(*rest)
    np.savez(Path(path).parent / "found.npz", a=call.back(first), rest=still.back(still()))
    print(json.dumps({"compile_s": round(spent, 2), **measure(call, len(x[0]), float(budget))}))


def models() -> dict[str, tuple[mb.System, np.ndarray]]:
    """The mechanisms, each with a position near which it can be assembled."""
    stewart = mb.linkages.stewart_platform()
    found = {"Stewart": (stewart, np.asarray(stewart.neutral_q()))}
    try:
        system = cassie()
    except ImportError:
        return found
    return {"Cassie": (system, np.asarray(system.neutral_q()))} | found


def main(small: bool = False) -> dict[str, Any]:
    """Time all engines on all mechanisms; `small` takes the platform alone, 16 states and two short chains."""
    started, batch, budget = time.perf_counter(), 16 if small else BATCH, 0.2 if small else 2.0
    speeds, growth, missing = [], [], []
    load = [os.getloadavg()[0]]
    with jax.enable_x64(True):
        for model, (system, near) in models().items():
            if small and model != "Stewart":
                continue
            x = states(system, near, batch)
            rest = (x[0], np.zeros_like(x[1]), x[2])
            engines: dict[str, Callable] = {f"jaxmbd {t}": partial(jaxmbd_engine, system, t) for t in TYPES}
            for name, setting in PINOCCHIO.items():
                engines[f"Pinocchio, {name}"] = partial(pinocchio_engine, system, *setting)
            for impedance in IMPEDANCES:
                engines[f"MuJoCo, impedance {impedance}"] = partial(mujoco_engine, system, impedance)
            engines[f"MJX, impedance {IMPEDANCES[-1]}"] = partial(in_own_process, model, IMPEDANCES[-1])
            reference = None
            for name, make in engines.items():
                try:
                    if name.startswith("MJX"):
                        timed = make(x, rest, budget)
                        a, a_rest = timed.pop("a"), timed.pop("rest")
                    else:
                        prepare = make()
                        call, still = prepare(*x), prepare(*rest)
                        back = getattr(call, "back", np.asarray), getattr(still, "back", np.asarray)
                        a, a_rest = np.array(back[0](call()), float), np.array(back[1](still()), float)
                        timed = {"compile_s": getattr(call, "compile_s", None), **measure(call, batch, budget)}
                except ImportError as error:
                    missing.append(f"{name}: {error}")
                    continue
                reference = a if reference is None else reference
                median, largest = (float(r) for r in residuals(system, *rest, a_rest))
                speeds.append(
                    {
                        "model": model,
                        "engine": name,
                        "rows": sum(sum(c.rows) for c in system.topology.constraints),
                        "residual_at_rest": [median, largest],
                        "off": float(np.abs(a - reference).max() / np.abs(reference).max()),
                        **timed,
                    }
                )
                load.append(os.getloadavg()[0])
        for n in RINGS[:2] if small else RINGS:
            system = ring(n)
            x = states(system, bend(n), batch)
            call = jaxmbd_engine(system, "float64")(*x)
            growth.append({"bodies": n, "compile_s": call.compile_s, **measure(call, batch, budget)})
            load.append(os.getloadavg()[0])
    return {
        "question": "how fast is constrained forward dynamics beside Pinocchio and MuJoCo, is it linear in bodies?",
        "seed": SEED,
        "batch": batch,
        "speeds": speeds,
        "growth": growth,
        "missing": missing,
        "load": [min(load), float(np.median(load)), max(load)],
        "note": "A short run on a machine with other work; CPU-seconds, to be repeated on a quiet one.",
        **provenance("jax", "numpy", "pin", "mujoco", "mujoco-mjx"),
        "seconds": round(time.perf_counter() - started, 1),
    }


def check(result: dict[str, Any]) -> None:
    """Engines agree, constraints are met as far as an engine can, and the cost of a body does not grow."""
    for s in result["speeds"]:
        at_rest, bound = s["residual_at_rest"][1], BOUNDS.get(s["engine"], np.inf)
        assert at_rest < bound, f"{s['engine']} on {s['model']}: residual {at_rest:.1e}, not below {bound}"
        if s["engine"] in ("Pinocchio, mu 1e-6, 5 iterations", "jaxmbd float32"):
            assert s["off"] < 1e-2, f"{s['engine']} on {s['model']} is {s['off']:.1e} off"
    per_body = [g["cpu_s"][1] / g["bodies"] for g in result["growth"]]
    assert per_body[-1] < 1.5 * per_body[0], f"the cost of a body grows: {per_body}"


def table(result: dict[str, Any]) -> str:
    """The figures in markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [
        f"{result['date']}, {result['cpu']}, {result['cores']} cores, {result['device']}; {versions}; load of the "
        f"machine {result['load'][1]:.1f} (median). {result['note']}",
        "",
        f"Constrained forward dynamics, batch {result['batch']}: evaluations per CPU-second, median (lowest to "
        "highest); residual at rest: median (largest), relative to that of the free tree.",
        "",
        "| mechanism | engine | evaluations per CPU-second | residual at rest | compile, CPU-s |",
        "|---|---|---|---|---|",
    ]
    for s in result["speeds"]:
        low, mid, high = (1 / s["cpu_s"][i] for i in (2, 1, 0))
        lines.append(
            f"| {s['model']}, {s['rows']} rows | {s['engine']} | {mid:,.0f} ({low:,.0f} to {high:,.0f}) | "
            f"{s['residual_at_rest'][0]:.0e} ({s['residual_at_rest'][1]:.0e}) | {s['compile_s'] or ''} |"
        )
    lines += [
        "",
        "A chain of hinges whose end is pinned, jaxmbd in float64:",
        "",
        "| bodies | µs an evaluation | µs a body |",
    ]
    lines += ["|---|---|---|"]
    for g in result["growth"]:
        low, mid, high = (1e6 * c for c in g["cpu_s"])
        lines.append(f"| {g['bodies']} | {mid:.1f} ({low:.1f} to {high:.1f}) | {mid / g['bodies']:.2f} |")
    return "\n".join([*lines, *(f"\nnot measured: {reason}" for reason in result["missing"])]) + "\n"


def draw(result: dict[str, Any]) -> Figure:
    """Speeds of the engines, and cost against bodies."""
    figure = Figure(figsize=(10, 3.8), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    models_ = list(dict.fromkeys(s["model"] for s in result["speeds"]))
    marks = dict(zip(models_, "os", strict=False))
    for engine, colour in COLOURS.items():
        for model in models_:
            found = [s for s in result["speeds"] if s["engine"].startswith(engine) and s["model"] == model]
            found.sort(key=lambda s: s["residual_at_rest"][0])
            at = [s["residual_at_rest"][0] for s in found], [1 / s["cpu_s"][1] for s in found]
            left.plot(*at, marks[model] + "-", color=colour, lw=0.7, label=f"{engine}, {model}")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set(title="Constrained forward dynamics", ylabel="evaluations per CPU-second")
    left.set(xlabel="residual of the constraints at rest (median)")
    left.legend(loc="best", fontsize=7)
    bodies = [g["bodies"] for g in result["growth"]]
    right.loglog(bodies, [1e6 * g["cpu_s"][1] for g in result["growth"]], "o-", color=COLOURS["jaxmbd"])
    first = 1e6 * result["growth"][0]["cpu_s"][1] / bodies[0]
    right.loglog(bodies, [first * n for n in bodies], ":", color="#33373d", label="linear")
    right.set(title="One loop, more bodies", xlabel="bodies", ylabel="CPU-µs an evaluation")
    right.legend(loc="best")
    return figure


def save(result: dict[str, Any], folder: Path = RESULTS) -> None:
    """Write bench_loops.json, .md and .png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench_loops.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    (folder / "bench_loops.md").write_text(table(result), encoding="utf-8")
    with rc_context(STYLE):
        draw(result).savefig(folder / "bench_loops.png")


if __name__ == "__main__":
    if sys.argv[1:2] == ["mjx"]:
        mjx_job(*sys.argv[2:])
    else:
        mb.prepare_cpu(1)
        evidence = main()
        save(evidence)
        check(evidence)
