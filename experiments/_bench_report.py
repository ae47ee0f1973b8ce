"""What the dynamics bench recorded, as tables in markdown and as a figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments._bench_models import MODELS

ARRAY_MODELS = tuple(m for m in MODELS if m not in ("quadruped", "tree127"))  # where the 6x6 arrays bound a claim
BATCHES = (1, 64, 1024, 8192, 65536)
NAMES = {
    "jaxmbd": "jaxmbd", "unprepared": "jaxmbd without `prepare_cpu`", "batched": "jaxmbd `batched`",
    "pinocchio": "Pinocchio", "pinocchio 2": "Pinocchio, 2 threads",
    "mujoco": "MuJoCo", "mujoco 2": "MuJoCo, 2 threads", "brax": "Brax", "jaxsim": "JaxSim", "frax": "frax",
    "mjx": "MJX", "levels": "level by level", "arrays": "6x6 arrays",
}  # fmt: skip
CPP = ("pinocchio", "mujoco")
OWN = ("jaxmbd", "unprepared", "batched")
JAX_LIKE = ("jaxmbd", "unprepared", "brax", "jaxsim", "frax", "mjx", "levels", "arrays")
DRAWN = {  # engine, dtype: colour, marker
    ("jaxmbd", "float32"): ("#d9542b", "o"), ("jaxmbd", "float64"): ("#3b76af", "o"),
    ("pinocchio", "float64"): ("#33373d", "s"), ("mujoco", "float64"): ("#8a8f98", "s"),
    ("frax", "float32"): ("#7f8c4d", "^"), ("brax", "float32"): ("#b08a3e", "v"),
    ("mjx", "float32"): ("#8d6a9f", "<"), ("jaxsim", "float32"): ("#4d9a92", ">"),
}  # fmt: skip


def spread(values) -> list[float]:
    """Minimum, median, maximum."""
    return [float(f"{x:.4g}") for x in (min(values), np.median(values), max(values))]


def figure(result: dict[str, Any], engine: str, model: str, dtype: str, function: str, batch: int):
    """The record of one figure, None where there is none."""
    wanted = {"kind": "speed", "engine": engine, "model": model, "dtype": dtype, "function": function, "batch": batch}
    for record in result["records"]:
        if all(record.get(key) == value for key, value in wanted.items()):
            return record
    return None


def rate(result: dict[str, Any], engine: str, model: str, dtype: str, function: str, batch: int, which: int = 1):
    """Evaluations per CPU-second (0 best, 1 median, 2 worst repeat), None where there is no figure."""
    found = figure(result, engine, model, dtype, function, batch)
    return 1 / found["cpu_s"][which] if found else None


def compile_seconds(result: dict[str, Any], kind: str, function: str = "forward") -> dict[Any, list[float]]:
    """Minimum, median and maximum by number of bodies, or by the joint kind that was added last."""
    seconds: dict[Any, list[float]] = {}
    for r in result["records"]:
        if r["kind"] == f"compile {kind}" and r["function"] == function:
            seconds.setdefault(r["x"], []).extend(r["cpu_s"])
    return {x: spread(samples) for x, samples in seconds.items()}


# --- tables


def table(result: dict[str, Any]) -> str:
    """The figures in markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [
        f"{result['date']}, {result['cpu']}, {result['cores']} cores, {result['device']}; {versions}; "
        f"load of the machine {result['load'][1]:.1f} (median over the jobs). {result['note']}".strip()
    ]
    large = tuple(b for b in BATCHES if b > 1)
    cpu, wall = "thousands of evaluations per CPU-second", "thousands of evaluations a second by the clock"
    for function in ("forward", "inverse"):
        title = f"{function.capitalize()} dynamics, {{}}: median (lowest to highest)."
        lines += _speeds(result, title.format(cpu), function, (*OWN, *CPP), large, "cpu_s")
        lines += _speeds(result, title.format(f"JAX engines, {cpu}"), function, JAX_LIKE, large, "cpu_s")
        lines += _speeds(result, title.format(wall), function, ("batched", "pinocchio 2", "mujoco 2"), large, "wall_s")
        one = f"{function.capitalize()} dynamics of one state, microseconds by the clock: median (lowest to highest)."
        lines += _speeds(result, one, function, tuple(NAMES), (1,), "wall_s")
    for kind, title in (("bodies", "the bodies of a chain"), ("kinds", "joint kinds, each added to those before it")):
        found = {f: compile_seconds(result, kind, f) for f in ("forward", "inverse")}
        found = {f: seconds for f, seconds in found.items() if seconds}
        if found:
            lines += ["", f"Compile time by {title}, CPU seconds: median (lowest to highest).", ""]
        for f, seconds in found.items():
            if f == next(iter(found)):
                lines += [f"| | {' | '.join(map(str, seconds))} |", "|---" * (len(seconds) + 1) + "|"]
            lines += [f"| {f} | {' | '.join(f'{m:.2f} ({a:.2f} to {b:.2f})' for a, m, b in seconds.values())} |"]
    for r in result["records"]:
        if r["kind"] == "factorisations":
            found = ", ".join(r["found"]) or "none"
            lines += ["", f"Factorisations, or arrays [nv, nv], in {r['model']}'s compiled forward dynamics: {found}."]
    lines += ["", *(f"- not measured: {problem}" for problem in [*result["problems"], *_left_out(result)])]
    return "\n".join(lines).rstrip() + "\n"


def _speeds(result, title, function, engines, batches, key) -> list[str]:
    """One row a model and batch, one column an engine and dtype that has a figure."""
    chosen = [r for r in result["records"] if r["kind"] == "speed" and r["function"] == function]
    chosen = [r for r in chosen if r["engine"] in engines and r["batch"] in batches]
    figures = {(r["model"], r["batch"], r["engine"], r["dtype"]): r[key] for r in chosen if key in r}
    columns = sorted({k[2:] for k in figures}, key=lambda column: (engines.index(column[0]), column[1]))
    if not columns:
        return []
    heads = [NAMES[e] if e.startswith(CPP) else f"{NAMES[e]} {dtype}" for e, dtype in columns]
    lines = ["", title, "", f"| model | batch | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    for model in MODELS:
        for batch in batches:
            row = [figures.get((model, batch, *column)) for column in columns]
            if any(row):
                lines.append(f"| {model} | {batch} | {' | '.join(_shown(r, batch) for r in row)} |")
    return lines


def _shown(seconds, batch: int) -> str:
    """A cell: thousands a second, or microseconds of a single evaluation."""
    if seconds is None:
        return "–"
    low, median, high = (1e6 * s if batch == 1 else 1e-3 / s for s in seconds)
    low, median, high = (f"{x:.0f}" if x > 100 else f"{x:.1f}" for x in (min(low, high), median, max(low, high)))
    return f"{median} ({low} to {high})"


def _left_out(result) -> list[str]:
    """Figures that jobs left out, those with one reason together."""
    groups: dict[tuple[str, ...], dict[str, list]] = {}
    for r in result["records"]:
        if r["kind"] == "left out":
            why = "a call takes too long" if r["why"].startswith("a call") else r["why"]
            why = "the job's time had passed" if why.endswith("had passed") else why
            case = groups.setdefault((r["engine"], r["dtype"], r["function"], why), {})
            case.setdefault(r["model"], []).extend([r["batch"]] if "batch" in r else [])
    lines = []
    for (engine, dtype, function, why), cases in groups.items():
        where = "; ".join(f"{m}, batch {', '.join(map(str, b))}" if b else m for m, b in cases.items())
        lines.append(f"{engine} {dtype} {function}, {where}: {why}")
    return lines


# --- figure


def draw(result: dict[str, Any]):
    """Rates at batch 1024 by model and engine; compile times by bodies and by joint kinds, where they were measured.

    Of jaxmbd `batched` is drawn; plain `jax.vmap` where a result has nothing else.
    """
    from matplotlib.figure import Figure

    compiled = bool(compile_seconds(result, "bodies"))
    figure = Figure(figsize=(12, 9 if compiled else 5.5), dpi=120, layout="constrained")
    panels = figure.subplots(1 + compiled, 2, squeeze=False, height_ratios=(5, 3)[: 1 + compiled])
    forward, inverse = panels[0]
    own = "batched" if any(r.get("engine") == "batched" for r in result["records"]) else "jaxmbd"
    for axes, function in ((forward, "forward"), (inverse, "inverse")):
        for shift, (engine, (colour, marker)) in zip(np.linspace(-0.33, 0.33, len(DRAWN)), DRAWN.items(), strict=True):
            engine = (own if engine[0] == "jaxmbd" else engine[0], engine[1])
            rates = [[rate(result, engine[0], m, engine[1], function, 1024, w) for w in range(3)] for m in MODELS]
            found = [(i + shift, *r) for i, r in enumerate(rates) if r[1]]
            if found:
                at, best, median, worst = np.array(found).T
                axes.vlines(at, worst, best, color=colour, lw=4, alpha=0.3)
                label = NAMES[engine[0]].replace("`", "") + (f" {engine[1]}" if engine[0] not in CPP else "")
                axes.plot(at, median, marker, color=colour, ms=6, label=label)
        axes.set_yscale("log")
        axes.set_xticks(range(len(MODELS)), MODELS)
        axes.set_xlim(-0.6, len(MODELS) - 0.4)
        for edge in np.arange(len(MODELS) - 1) + 0.5:
            axes.axvline(edge, color="0.85", lw=0.8)
        axes.grid(axis="x", visible=False)
        axes.set(title=f"{function.capitalize()} dynamics, batch 1024", ylabel="evaluations per CPU-second")
    handles = forward.get_legend_handles_labels()
    if handles[0]:
        figure.legend(*handles, loc="outside upper center", ncols=len(DRAWN) // 2)
    if compiled:
        _draw_compile_times(result, *panels[1])
    return figure


def _draw_compile_times(result: dict[str, Any], bodies, kinds) -> None:
    colours = {"forward": DRAWN["jaxmbd", "float32"][0], "inverse": DRAWN["jaxmbd", "float64"][0]}
    for function, colour in colours.items():
        seconds = compile_seconds(result, "bodies", function)
        if seconds:
            low, mid, high = np.array(list(seconds.values())).T
            bars = (mid - low, high - mid)
            bodies.errorbar(list(seconds), mid, bars, fmt="o-", color=colour, capsize=3, label=function)
            bodies.legend()
    bodies.set(title="Compile time of chains", xlabel="bodies", ylabel="trace + XLA [CPU s]", xscale="log")
    bodies.set_ylim(0, None)
    bodies.set_xticks([8, 32, 128], ["8", "32", "128"])
    bodies.minorticks_off()
    seconds = compile_seconds(result, "kinds")
    if seconds:
        low, mid, high = np.array(list(seconds.values())).T
        colour, names = colours["forward"], list(seconds)
        kinds.set_axisbelow(True)
        kinds.grid(axis="x", visible=False)
        kinds.bar(range(len(mid)), mid, color=colour, alpha=0.5)
        kinds.errorbar(range(len(mid)), mid, (mid - low, high - mid), fmt="none", ecolor=colour, capsize=3)
        kinds.set_xticks(range(len(mid)), [*names[:1], *(f"+ {k}" for k in names[1:])], rotation=40, ha="right")
    kinds.set(title="Compile time, forward dynamics, one joint kind more each", ylabel="trace + XLA [CPU s]")
