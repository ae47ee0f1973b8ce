"""What forward and inverse dynamics should reach on a CPU, what a run shows of it, and what is asserted of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from experiments._bench_report import MODELS, compile_seconds, figure, rate
from experiments._peer_engines import JAX_PEERS

LARGE = (1024, 8192)
CHAINS = ("chain8", "chain32", "chain128")
SIZES = ("8 bodies", "32 bodies", "128 bodies")


class Goal(NamedTuple):
    """A figure a case and what it should be: at least `limit`, or at most where `most`. `kept` cases are asserted."""

    text: str
    limit: float
    cases: tuple[str, ...]
    measured: Callable[[dict[str, Any], str], float | None]
    kept: tuple[str, ...] = ()
    most: bool = False

    def met(self, value: float) -> bool:
        return value <= self.limit if self.most else value >= self.limit


def _rates(result, engines, model, dtype, function, batch) -> list[float]:
    found = [rate(result, e, model, dtype, function, batch) for e in engines]
    return [r for r in found if r]


def over_pinocchio(dtype: str, function: str) -> Callable:
    """Rate per CPU-second over that of Pinocchio with one thread: the better of vmap and `batched`, the worse batch."""

    def measured(result, model):
        ratios = []
        for batch in LARGE:
            ours = _rates(result, ("jaxmbd", "batched"), model, dtype, function, batch)
            theirs = _rates(result, ("pinocchio",), model, "float64", function, batch)
            ratios += [max(ours) / theirs[0]] if ours and theirs else []
        return min(ratios, default=None)

    return measured


def over_jax_peers(function: str) -> Callable:
    """Rate per CPU-second in float32 over the best that any JAX peer reaches at any batch, the worse batch of ours."""

    def measured(result, model):
        ours = [
            max(r) for batch in LARGE if (r := _rates(result, ("jaxmbd", "batched"), model, "float32", function, batch))
        ]
        theirs = [
            1 / r["cpu_s"][1]
            for r in result["records"]
            if r["kind"] == "speed"
            and (r["engine"] in JAX_PEERS and r["model"] == model and r["function"] == function and r["batch"] > 1)
        ]
        return min(ours) / max(theirs) if ours and theirs else None

    return measured


def over_two_threads(result, model) -> float | None:
    """Evaluations a second by the clock, `batched` over two host devices, over Pinocchio's with two threads."""
    ratios = []
    for batch in LARGE:
        ours = figure(result, "batched", model, "float32", "forward", batch)
        theirs = figure(result, "pinocchio 2", model, "float64", "forward", batch)
        ratios += [theirs["wall_s"][1] / ours["wall_s"][1]] if ours and theirs else []
    return min(ratios, default=None)


def latency(result, model) -> float | None:
    """Microseconds a call of `low_latency` with one state, float32."""
    found = figure(result, "jaxmbd", model, "float32", "forward", 1)
    return 1e6 * found["wall_s"][1] if found else None


def compiling(result, case) -> float | None:
    """CPU-seconds to trace and compile the forward dynamics of a chain."""
    seconds = compile_seconds(result, "bodies").get(int(case.split()[0]))
    return seconds[1] if seconds else None


CPU = "per CPU-second, batches 1024 and 8192"
GOALS = (
    Goal(f"forward, float32 / Pinocchio, {CPU}", 1.3, ("arm7", "g1", "quadruped", *CHAINS),
         over_pinocchio("float32", "forward"), kept=("arm7", "chain8", "chain32")),
    Goal(f"forward, float32 / Pinocchio, {CPU}", 0.7, ("tree127",), over_pinocchio("float32", "forward")),
    Goal(f"forward, float64 / Pinocchio, {CPU}", 0.8, ("arm7", *CHAINS),
         over_pinocchio("float64", "forward"), kept=("arm7", "chain8")),
    Goal(f"forward, float32 / best JAX peer, {CPU}", 4.0, MODELS, over_jax_peers("forward")),
    Goal(f"inverse, float32 / Pinocchio, {CPU}", 1.0, MODELS,
         over_pinocchio("float32", "inverse"), kept=("arm7", *CHAINS)),
    Goal("forward, float32 `batched` / Pinocchio with 2 threads, by the clock", 1.5, MODELS, over_two_threads),
    Goal("forward, one state [µs]", 150.0, ("arm7",), latency, most=True),
    Goal("forward, one state [µs]", 400.0, ("chain32",), latency, most=True),
    Goal("compiling forward dynamics [CPU s]", 5.0, SIZES, compiling, kept=SIZES, most=True),
)  # fmt: skip


def outcome(result: dict[str, Any]) -> list[tuple[Goal, str, float | None]]:
    """Every goal and case with its figure, None where there is none."""
    return [(goal, case, goal.measured(result, case)) for goal in GOALS for case in goal.cases]


def unkept(result: dict[str, Any]) -> list[str]:
    """What is asserted and does not hold."""
    return [
        f"{goal.text}, {case}: {'not measured' if value is None else f'{value:.3g}'}; claimed "
        f"{'at most' if goal.most else 'at least'} {goal.limit:g}"
        for goal, case, value in outcome(result)
        if case in goal.kept and (value is None or not goal.met(value))
    ]


def goals(result: dict[str, Any]) -> str:
    """Goals, figures and verdicts in markdown."""
    lines = [
        "Goals on the CPU. Ratios are of medians, the better of `jax.vmap` and `mb.batched`, at the worse batch.",
        "",
    ]
    lines += ["| goal | | case: figure | missed |", "|---|---|---|---|"]
    for goal in GOALS:
        figures = {case: goal.measured(result, case) for case in goal.cases}
        shown = ", ".join(f"{case}: {'–' if x is None else f'{x:.3g}'}" for case, x in figures.items())
        missed = [case for case, x in figures.items() if x is not None and not goal.met(x)]
        none = all(x is None for x in figures.values())
        verdict = "not measured" if none else ", ".join(missed) or "none"
        lines.append(f"| {goal.text} | {'≤' if goal.most else '≥'} {goal.limit:g} | {shown} | {verdict} |")
    return "\n".join(lines) + "\n"
