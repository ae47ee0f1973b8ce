"""What the dynamics bench recorded, as a table in markdown and as a figure."""

from __future__ import annotations

from typing import Any

import numpy as np

MODELS = ("arm7", "g1", "chain8", "chain32", "chain128")
BATCHES = (64, 1024, 8192)
ENGINES = (("pinocchio", "float64"), ("jaxmbd", "float32"), ("jaxmbd", "float64"), ("arrays", "float32"))
LABELS = dict(zip(ENGINES, ("Pinocchio", "jaxmbd float32", "jaxmbd float64", "6x6 arrays float32"), strict=True))
COLOURS = dict(zip(ENGINES, ("#33373d", "#d9542b", "#3b76af", "#7f8c4d"), strict=True))


def spread(values) -> list[float]:
    """Minimum, median, maximum."""
    return [float(f"{x:.4g}") for x in (min(values), np.median(values), max(values))]


def rate(result: dict[str, Any], engine: str, model: str, dtype: str, function: str, batch: int, which: int = 1):
    """Evaluations per CPU-second (0 best, 1 median, 2 worst repeat), None where there is no figure."""
    wanted = {"kind": "speed", "engine": engine, "model": model, "dtype": dtype, "function": function, "batch": batch}
    for figures in result["records"]:
        if all(figures.get(key) == value for key, value in wanted.items()):
            return 1 / figures["cpu_s"][which]
    return None


def compile_seconds(result: dict[str, Any], kind: str, function: str = "forward") -> dict[Any, list[float]]:
    """Minimum, median and maximum by number of bodies, or by the joint kind that was added last."""
    seconds: dict[Any, list[float]] = {}
    for r in result["records"]:
        if r["kind"] == f"compile {kind}" and r["function"] == function:
            seconds.setdefault(r["x"], []).extend(r["cpu_s"])
    return {x: spread(samples) for x, samples in seconds.items()}


def table(result: dict[str, Any]) -> str:
    """The figures in markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [
        f"{result['date']}, {result['cpu']}, {result['cores']} cores, {result['device']}; {versions}; "
        f"load of the machine {result['load'][1]:.1f} (median over the jobs). {result['note']}".strip(),
        *_speeds(result, "forward", ENGINES),
        *_speeds(result, "inverse", [e for e in ENGINES if e[0] != "arrays"]),
    ]
    for kind, title in (("bodies", "the bodies of a chain"), ("kinds", "joint kinds, each added to those before it")):
        lines += ["", f"Compile time by {title}, CPU seconds: median (lowest to highest).", ""]
        found = {f: compile_seconds(result, kind, f) for f in ("forward", "inverse")}
        found = {f: seconds for f, seconds in found.items() if seconds}
        for f, seconds in found.items():
            if f == next(iter(found)):
                lines += [f"| | {' | '.join(map(str, seconds))} |", "|---" * (len(seconds) + 1) + "|"]
            lines += [f"| {f} | {' | '.join(f'{m:.2f} ({a:.2f} to {b:.2f})' for a, m, b in seconds.values())} |"]
    for r in result["records"]:
        if r["kind"] == "factorisations":
            found = ", ".join(r["found"]) or "none"
            lines += ["", f"Factorisations, or arrays [nv, nv], in {r['model']}'s compiled forward dynamics: {found}."]
    lines += ["", *(f"- not measured: {problem}" for problem in result["problems"])]
    return "\n".join(lines).rstrip() + "\n"


def _speeds(result, function, engines) -> list[str]:
    """One row a model and batch: every engine's rate, and ratios to jaxmbd in float32."""
    others = [e for e in engines if e[0] != "jaxmbd"]
    head = ["model", "batch", *(LABELS[e] for e in engines), *(f"float32 / {e[0]}" for e in others)]
    title = f"{function.capitalize()} dynamics, thousands of evaluations per CPU-second: median (lowest to highest)."
    lines = ["", title, "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for model in MODELS:
        for batch in BATCHES:
            rates = {e: [rate(result, e[0], model, e[1], function, batch, w) for w in range(3)] for e in engines}
            ratios = [_ratio(rates["jaxmbd", "float32"][1], rates[e][1]) for e in others]
            if any(r[1] for r in rates.values()):
                lines.append(f"| {' | '.join([model, str(batch), *map(_thousands, rates.values()), *ratios])} |")
    return lines


def _thousands(rates) -> str:
    if rates[1] is None:
        return "–"
    best, median, worst = (f"{r / 1e3:.0f}" if r > 1e5 else f"{r / 1e3:.1f}" for r in rates)
    return f"{median} ({worst} to {best})"


def _ratio(a, b) -> str:
    return f"{a / b:.2g}" if a and b else "–"


def draw(result: dict[str, Any]):
    """Rates at batch 1024 by model and engine; compile times by bodies and by joint kinds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), dpi=120, layout="constrained")
    (forward, inverse), (bodies, kinds) = figure.subplots(2, 2)
    for axes, function in ((forward, "forward"), (inverse, "inverse")):
        for shift, (engine, colour) in zip(np.linspace(-0.24, 0.24, len(ENGINES)), COLOURS.items(), strict=True):
            rates = [[rate(result, engine[0], m, engine[1], function, 1024, w) for w in range(3)] for m in MODELS]
            found = [(i + shift, *r) for i, r in enumerate(rates) if r[1]]
            if found:
                at, best, median, worst = np.array(found).T
                axes.vlines(at, worst, best, color=colour, lw=5, alpha=0.3)
                axes.plot(at, median, "o", color=colour, ms=5, label=LABELS[engine])
        axes.set_yscale("log")
        axes.set_xticks(range(len(MODELS)), MODELS)
        axes.set(title=f"{function.capitalize()} dynamics, batch 1024", ylabel="evaluations per CPU-second")
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    for function, colour in (("forward", COLOURS[ENGINES[1]]), ("inverse", COLOURS[ENGINES[2]])):
        seconds = compile_seconds(result, "bodies", function)
        if seconds:
            low, mid, high = np.array(list(seconds.values())).T
            bodies.errorbar(
                list(seconds), mid, (mid - low, high - mid), fmt="o-", color=colour, capsize=3, label=function
            )
    bodies.set(
        title="Compile time of chains", xlabel="bodies", ylabel="trace + XLA [CPU s]", ylim=(0, None), xscale="log"
    )
    bodies.set_xticks([8, 32, 128], ["8", "32", "128"])
    bodies.minorticks_off()
    bodies.legend()
    seconds = compile_seconds(result, "kinds")
    if seconds:
        low, mid, high = np.array(list(seconds.values())).T
        kinds.set_axisbelow(True)
        kinds.grid(axis="x", visible=False)
        kinds.bar(range(len(mid)), mid, color=COLOURS[ENGINES[1]], alpha=0.5)
        kinds.errorbar(range(len(mid)), mid, (mid - low, high - mid), fmt="none", ecolor=COLOURS[ENGINES[1]], capsize=3)
        kinds.set_xticks(
            range(len(mid)), [*list(seconds)[:1], *(f"+ {k}" for k in list(seconds)[1:])], rotation=40, ha="right"
        )
    kinds.set(title="Compile time, forward dynamics, one joint kind more each", ylabel="trace + XLA [CPU s]")
    return figure
