"""How far does a loop come apart, and what does it cost to keep it closed?

A four-bar swings for 100 s in float64. With the fourth-order explicit method three ways of dealing with drift (nothing,
Baumgarte's stabilisation, projection after each step); projection with generalised alpha; and a Radau IIA method, whose
steps satisfy the constraints by themselves. Several steps each: the largest gap at the cut joint, the drift of energy,
and the processor time.

    python -m experiments.loop_drift          # writes results/loop_drift.json and .png
"""

from __future__ import annotations

import json
import time
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
from jaxmbd.view.plots import INK, STYLE

DURATION = 100.0
STEPS = (2e-2, 1e-2, 5e-3, 2.5e-3)  # s
RK4 = mb.RungeKuttaMuntheKaas4()
WAYS = {  # stepper, drift, steps, colour
    "nothing": (RK4, None, STEPS, "#7f8c4d"),
    "Baumgarte": (RK4, mb.Baumgarte(), STEPS, "#3b76af"),
    "projection": (RK4, mb.Projection(), STEPS, "#d9542b"),
    "generalised alpha, projection": (mb.GeneralizedAlpha(0.9), mb.Projection(), STEPS[:2], "#8a5a9c"),
    "Radau IIA": (mb.RadauIIA(), None, STEPS[:3], "#2f8f7f"),
}
SEED = 0


@partial(jax.jit, static_argnames=("stepper", "duration", "dt"))
def swing(system, q, v, drift, stepper, duration: float, dt: float):
    """Largest gap at the cut joint [m] and energy drift, relative to the kinetic energy at its largest."""
    traj = mb.simulate(system, q, v, duration=duration, dt=dt, stepper=stepper, drift=drift)

    def look(q, v):
        k = mb.kinematics(system, q)
        return jnp.linalg.norm(k["coupler_end"].position - k["rocker_end"].position), jnp.stack(mb.energy(system, q, v))

    gap, energy = jax.vmap(look)(traj.q, traj.v)
    return jnp.max(gap), jnp.ptp(jnp.sum(energy, 1)) / jnp.max(energy[:, 0])


def main(small: bool = False) -> dict[str, Any]:
    """Run all ways and steps; `small` runs 2 s."""
    started = time.perf_counter()
    duration = 2.0 if small else DURATION
    with jax.enable_x64(True):
        system = mb.linkages.four_bar()
        at = mb.assemble(system, jnp.array([0.6, -0.3, 1.4]), jnp.array([2.0, 0.0, 0.0]), fixed=("A",))
        runs = []
        for way, (stepper, drift, steps, _) in WAYS.items():
            for dt in steps[:1] if small and stepper is not RK4 else steps:
                program = swing.lower(system, at.q, at.v, drift, stepper, duration, dt).compile()
                before = time.process_time()
                gap, energy = (float(x) for x in program(system, at.q, at.v, drift))
                spent = time.process_time() - before
                runs.append({"way": way, "dt": dt, "gap": gap, "energy": energy, "cpu_s": spent})
    return {
        "question": "how large is the closure error over a long run, and what does each way of limiting it cost?",
        "seed": SEED,
        "duration": duration,
        "runs": runs,
        **provenance("jax", "numpy"),
        "seconds": round(time.perf_counter() - started, 1),
    }


def check(result: dict[str, Any]) -> None:
    """Projection and Radau's method keep the loop closed to 1e-9 m at every step size; without anything it opens."""
    gaps = {(run["way"], run["dt"]): run["gap"] for run in result["runs"]}
    for dt in STEPS:
        assert gaps["projection", dt] < 1e-9, f"the gap is {gaps['projection', dt]:.1e} m at dt = {dt} s"
        assert gaps["projection", dt] < gaps["nothing", dt]
    for (way, dt), gap in gaps.items():
        if way in ("generalised alpha, projection", "Radau IIA"):
            assert gap < 1e-9, f"{way}: the gap is {gap:.1e} m at dt = {dt} s"


def save(result: dict[str, Any], folder: Path = RESULTS) -> None:
    """Write loop_drift.json and .png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "loop_drift.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    with rc_context(STYLE):
        draw(result).savefig(folder / "loop_drift.png")


def draw(result: dict[str, Any]) -> Figure:
    """Gap and energy drift against processor time."""
    figure = Figure(figsize=(10, 4), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    for way, (*_, colour) in WAYS.items():
        runs = [run for run in result["runs"] if run["way"] == way]
        cost = [run["cpu_s"] for run in runs]
        left.loglog(cost, np.maximum([run["gap"] for run in runs], 1e-17), "o-", color=colour, label=way)
        right.loglog(cost, [run["energy"] for run in runs], "o-", color=colour, label=way)
    left.axhline(1e-9, color=INK, lw=0.8, ls=":")
    left.set(title="Largest gap at the cut joint", xlabel="processor time [s]", ylabel="[m]")
    right.set(title="Energy drift / largest kinetic energy", xlabel="processor time [s]", ylabel="[1]")
    left.legend(loc="best")
    figure.suptitle(
        f"A four-bar over {result['duration']:.0f} s, dt = 20 to 2.5 ms (Runge-Kutta 4 where nothing else is said)"
    )
    return figure


if __name__ == "__main__":
    evidence = main()
    save(evidence)
    check(evidence)
