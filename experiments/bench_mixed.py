"""What do mixed problems and joint reactions cost beside plain forward dynamics?

Forward dynamics, hybrid dynamics with every other acceleration given (the mask is data), and the reactions of all
joints, on an arm and on a chain, in the blocks of `mb.batched`, after `prepare_cpu`. The three take turns, so that
what else the machine does meets all alike. Figures are CPU seconds of the process, all threads counted, and ratios of
medians.

    python -m experiments.bench_mixed            # writes results/bench_mixed.json, .md and .png; some 2 minutes
    python -m experiments.bench_mixed --quick    # small batches; writes nothing
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxmbd as mb
from experiments import RESULTS, provenance
from experiments._bench_report import spread
from experiments.bench_dynamics import load, states

MODELS = ("arm7", "chain32")
DTYPES = ("float32", "float64")
GOALS = {"mixed": 1.1, "reactions": 1.5}
REACHED = {"forward": 1.0, "mixed": 1.15, "reactions": 2.25}  # what docs/mixed.md says, and what repeats differ by
BATCH, ROUNDS, SECONDS = 1024, 15, 0.06
SEED = 0


def functions(nv: int):
    """The three evaluations of (system, q, v, x), batched; and the mask of the mixed problem."""
    driven = jnp.arange(nv) % 2 == 0

    def mixed(system, q, v, x, driven):
        return mb.hybrid_dynamics(system, q, v, x, driven)

    def forward(system, q, v, x, driven):
        return mb.forward_dynamics(system, q, v, x)

    def reactions(system, q, v, x, driven):
        return mb.reactions(system, q, v, x).wrench

    axes = (None, 0, 0, 0, None)
    found = {"forward": forward, "mixed": mixed, "reactions": reactions}
    return driven, {name: jax.jit(mb.batched(f, axes)) for name, f in found.items()}


def loops(text: str) -> list[int]:
    """Fusions inside each loop of a compiled program: what one step of every sweep launches."""
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    counts = []
    for block in re.split(r"\n(?=%?[\w.\-]+ \()", text):
        name = block.split(" ", 1)[0].lstrip("%")
        if name in bodies:
            counts.append(len(re.findall(r" fusion\(", block)))
    return sorted(counts)


def one(model: str, dtype: str, batch: int, rounds: int) -> list[dict]:
    """Figures of one model and precision."""
    system = load(model).astype(dtype)
    q, v, x = (jnp.asarray(y, dtype) for y in states(system.nv, False, batch))
    driven, batched = functions(system.nv)
    programs = {name: f.lower(system, q, v, x, driven).compile() for name, f in batched.items()}

    def call(name):
        jax.block_until_ready(programs[name](system, q, v, x, driven))

    inner, seconds = {}, {name: [] for name in programs}
    for name in programs:
        call(name)
        begun = time.perf_counter()
        call(name)
        inner[name] = max(1, round(SECONDS / (time.perf_counter() - begun)))
    for _ in range(rounds):
        for name in programs:
            begun = time.process_time()
            for _ in range(inner[name]):
                call(name)
            seconds[name].append((time.process_time() - begun) / (inner[name] * batch))
    records = []
    for name, program in programs.items():
        cost = program.cost_analysis()
        record = {"model": model, "dtype": dtype, "batch": batch, "function": name, "cpu_s": spread(seconds[name])}
        record |= {"ratio": float(np.median(seconds[name]) / np.median(seconds["forward"]))}
        # round by round: neighbours in time share the machine's mood
        turns = [a / b for a, b in zip(seconds[name], seconds["forward"], strict=True)]
        record |= {"ratios": spread(turns), "loops": loops(program.as_text())}
        record |= {"megabytes": float(f"{cost.get('bytes accessed', 0.0) / 1e6:.4g}")}
        records.append(record)
    return records


def main(quick: bool = False) -> dict:
    """Measure everything; arrays are made in the precision that is asked for."""
    mb.prepare_cpu(1)
    with jax.enable_x64(True):
        records = []
        for model in MODELS:
            for dtype in DTYPES:
                records += one(model, dtype, 64 if quick else BATCH, 3 if quick else ROUNDS)
                print(*(f"{r['function']} {r['ratio']:.2f}" for r in records[-3:]), model, dtype, flush=True)
    return {"seed": SEED, **provenance("jax", "jaxlib", "numpy"), "goals": GOALS, "records": records}


def check(result: dict) -> None:
    """The bench is whole, and no figure is beyond what docs/mixed.md says."""
    found = {(r["model"], r["dtype"], r["function"]): r["ratios"][1] for r in result["records"]}
    assert len(found) == len(MODELS) * len(DTYPES) * 3, f"{len(found)} figures; expected every model and precision"
    for (model, dtype, function), ratio in found.items():
        bound = REACHED[function]
        assert ratio <= bound, f"{function} of {model} in {dtype}: {ratio:.2f} times forward dynamics, above {bound}"


def table(result: dict) -> str:
    """The figures in markdown."""
    lines = [
        f"{result['date']}, {result['cpu']}, {result['cores']} cores; "
        + ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        + f". Batch {result['records'][0]['batch']}; median (lowest to highest) of the rounds.",
        "",
        "| model | precision | function | CPU µs an evaluation | times forward dynamics | fusions a loop | MB |",
        "|---" * 7 + "|",
    ]
    for r in result["records"]:
        low, middle, high = (1e6 * x for x in r["cpu_s"])
        bottom, ratio, top = r["ratios"]
        lines.append(
            f"| {r['model']} | {r['dtype']} | {r['function']} | {middle:.2f} ({low:.2f} to {high:.2f}) | {ratio:.2f} "
            f"({bottom:.2f} to {top:.2f}) | {', '.join(map(str, r['loops']))} | {r['megabytes']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def save(result: dict, folder: Path = RESULTS) -> None:
    """Write the evidence: json, markdown and a figure."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(exist_ok=True)
    (folder / "bench_mixed.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / "bench_mixed.md").write_text(table(result), encoding="utf-8")
    fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
    for k, (function, colour) in enumerate((("mixed", "#d9542b"), ("reactions", "#3b76af"))):
        rows = [r for r in result["records"] if r["function"] == function]
        low, middle, high = np.array([r["ratios"] for r in rows]).T
        at = np.arange(len(rows)) + 0.3 * k
        ax.bar(at, middle, 0.28, yerr=[middle - low, high - middle], color=colour, label=function)
        ax.axhline(GOALS[function], color=colour, lw=1, ls=":")
    ax.set_xticks(np.arange(len(rows)) + 0.15, [f"{r['model']}\n{r['dtype']}" for r in rows])
    ax.set_ylabel("CPU time, forward dynamics = 1")
    ax.legend(frameon=False)
    fig.savefig(folder / "bench_mixed.png", dpi=150)
    plt.close(fig)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    figures = main(arguments.quick)
    if not arguments.quick:
        save(figures)
        check(figures)
