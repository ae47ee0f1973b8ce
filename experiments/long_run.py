"""Which stepper keeps the energy over a million steps, and what does each one cost?

Two parts. A double pendulum without friction swings for a million steps of 10 ms, almost three hours: is the error of
its energy bounded, or does it grow? And for every stepper, on a tree with a free, a ball and a screw joint (nv = 10):
the order that its error shows, momentum and energy of free flight, how it treats a stiff spring, the time of a step.

    python -m experiments.long_run          # writes results/long_run.json and .png, prints the table of the docs
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

STEPPERS = {
    "semi-implicit Euler": (mb.SemiImplicitEuler(), 1),
    "semi-implicit Euler, one correction": (mb.SemiImplicitEuler(corrections=1), 1),
    "predictor-corrector": (mb.PredictorCorrector(), 2),
    "Runge-Kutta-Munthe-Kaas 4": (mb.RungeKuttaMuntheKaas4(), 4),
    "commutator-free 4": (mb.CommutatorFree4(), 4),
    "variational midpoint": (mb.VariationalMidpoint(), 2),
    "implicit midpoint": (mb.ImplicitMidpoint(), 2),
    "Newmark": (mb.Newmark(), 2),
    "SDIRK3": (mb.SDIRK3(), 3),
    "generalised alpha": (mb.GeneralizedAlpha(), 2),
    "Radau IIA, two stages": (mb.RadauIIA(), 3),
}
LONG = ("semi-implicit Euler", "variational midpoint", "Runge-Kutta-Munthe-Kaas 4")
TO_THE_LEFT = (  # where the figure has room for the name
    "predictor-corrector",
    "Runge-Kutta-Munthe-Kaas 4",
    "commutator-free 4",
    "generalised alpha",
    "Radau IIA, two stages",
)
COLOURS = ("#7f8c4d", "#3b76af", "#d9542b")
STEPS, SAMPLES, DT = 1_000_000, 1000, 0.01
ANGLES = (0.9, 0.4)  # rad: large, and regular
FLIGHT = 2000, 2e-3  # steps of free flight
SEED = 3


def tree() -> mb.System:
    """A free body, one on a ball joint, one on a screw."""
    b = mb.Builder()
    for name, mass, scale in (("base", 2.0, 0.05), ("ball", 1.0, 0.02), ("nut", 0.6, 0.01)):
        b.body(name, mass=mass, com=(0.02, -0.05, 0.1), inertia=scale * np.diag([1.0, 1.3, 1.7]))
    b.joint("root", mb.free(), child="base")
    b.joint("shoulder", mb.spherical(), "base", "ball", mb.Pose((0.1, 0.2, 0.1)))
    thread = mb.Pose.from_rpy((0.0, 0.1, 0.2), (0.3, -0.5, 0.2))
    b.joint("thread", mb.screw((0.0, 0.6, 0.8), 0.05), "ball", "nut", thread)
    return b.build()


def _drive(size, t, q, v):
    """Forces size * (sin(3 t) - 0.1 v); the size is data, so that one program serves all parts of the table."""
    return size * (jnp.sin(3 * t) - 0.1 * v)


@partial(jax.jit, static_argnames=("stepper", "chunk"))
def advance(stepper, system, state, t, dt, size, chunk: int):
    """End of `chunk` steps, their number inside the program and their size as data; state is (q, v, past)."""
    from jaxmbd.integrate.steppers import RememberingStepper
    from jaxmbd.mechanism import Mechanism
    from jaxmbd.packing import pack

    mechanism = Mechanism(system, pack(system), partial(_drive, size))

    def step(i, state):
        q, v, past = state
        if isinstance(stepper, RememberingStepper):
            q, v, _, past = stepper.advance(mechanism, t + i * dt, q, v, dt, past)
            return q, v, past
        return *stepper.step(mechanism, t + i * dt, q, v, dt)[:2], past

    return jax.lax.fori_loop(0, chunk, step, state)


def run(stepper, system, q, v, duration: float, steps: int, size=0.0):
    """End of a run, in chunks of ten steps, so that runs of all lengths share one program."""
    dt, state = duration / steps, (q, v, stepper.start(v) if hasattr(stepper, "start") else None)
    for i in range(0, steps, 10):
        state = advance(stepper, system, state, i * dt, dt, size, chunk=10)
    return state[:2]


@jax.jit
def books(system, q, v):
    """Momentum about the origin and total energy."""
    p, c = mb.momentum(system, q, v), mb.com(system, q)
    return jnp.concatenate([p[:3] + jnp.cross(c, p[3:]), p[3:]]), sum(mb.energy(system, q, v))


def measure(name: str, exact, small: bool) -> dict[str, Any]:
    """One row of the table."""
    stepper, order = STEPPERS[name]
    system = tree()
    q, v = mb.random_state(system, jax.random.key(SEED), 2.0)
    errors, counts = [], (40, 80)
    for n in counts:
        q_n, v_n = run(stepper, system, q, v, 0.2, n, 1.0)
        gap = mb.difference(system, exact[0], q_n)
        errors.append(float(max(jnp.abs(gap).max(), jnp.abs(v_n - exact[1]).max())))
    flying = system.replace({"gravity": (0.0, 0.0, 0.0)})
    steps = 200 if small else FLIGHT[0]
    q_n, v_n = run(stepper, flying, q, v, steps * FLIGHT[1], steps)
    (p0, e0), (p1, e1) = books(flying, q, v), books(flying, q_n, v_n)
    stiff = system.replace({"shoulder.stiffness": (1e7,) * 3, "thread.stiffness": 1e7})
    q_s, v_s = run(stepper, stiff, system.neutral_q(), jnp.zeros(10), 0.5, 50, 1.0)
    rest = float(jnp.abs(v_s[6:]).max())
    clock = []
    for _ in range(3 if small else 10):
        started = time.process_time()  # not the wall clock: the machine has other work
        jax.block_until_ready(run(stepper, flying, q, v, 0.2, 200))
        clock.append((time.process_time() - started) / 200)
    return {
        "stepper": name,
        "order": order,
        "slope": float(np.log2(errors[0] / errors[1])),
        "error": errors[1],
        "momentum": float(jnp.abs(p1 - p0).max() / jnp.abs(p0).max()),
        "energy": float(abs(e1 / e0 - 1)),
        "stiff": rest if np.isfinite(rest) else None,
        "microseconds": 1e6 * min(clock),
    }


@partial(jax.jit, static_argnames=("stepper", "every", "count"))
def swing(stepper, q, v, every: int, count: int):
    """Energy of the double pendulum after each `every` steps."""
    from jaxmbd.mechanism import Mechanism
    from jaxmbd.packing import pack

    system = mb.models.double_pendulum()
    mechanism = Mechanism(system, pack(system), lambda t, q, v: jnp.zeros_like(v))

    def block(state, _):
        state = jax.lax.fori_loop(0, every, lambda i, s: stepper.step(mechanism, 0.0, *s, DT)[:2], state)
        return state, sum(mb.energy(system, *state))

    return jax.lax.scan(block, (q, v), length=count)[1]


def long_run(name: str, steps: int) -> dict[str, Any]:
    """The error of the energy, relative to what the swing exchanges, along a long run."""
    stepper, _ = STEPPERS[name]
    system = mb.models.double_pendulum()
    q, v = jnp.array(ANGLES), jnp.zeros(2)
    start = float(sum(mb.energy(system, q, v)))
    swung = start - float(mb.energy(system, jnp.zeros(2), v)[1])
    started = time.perf_counter()
    energy = np.asarray(swing(stepper, q, v, steps // SAMPLES, SAMPLES))
    error = (energy - start) / swung
    x = np.linspace(0.0, 1.0, SAMPLES)
    rise = float(np.polyfit(x, error, 1)[0])
    return {
        "stepper": name,
        "steps": steps,
        "rise": rise,
        "spread": float(np.std(error - rise * x)),
        "largest": float(np.abs(error).max()),
        "seconds": round(time.perf_counter() - started, 1),
        "error": [float(f"{e:.4g}") for e in error],
    }


def main(small: bool = False) -> dict[str, Any]:
    """Both parts; `small` takes fewer steps and steppers."""
    started = time.perf_counter()
    with jax.enable_x64(True):
        system = tree()
        q, v = mb.random_state(system, jax.random.key(SEED), 2.0)
        names = ("semi-implicit Euler", "Runge-Kutta-Munthe-Kaas 4") if small else tuple(STEPPERS)
        exact = run(mb.RungeKuttaMuntheKaas4(), system, q, v, 0.2, 800, 1.0)
        table = [measure(name, exact, small) for name in names]
        runs = [long_run(name, 20_000 if small else STEPS) for name in (LONG[::2] if small else LONG)]
    return {
        "seed": SEED,
        "small": small,
        "dt": DT,
        "angles": ANGLES,
        "table": table,
        "runs": runs,
        "dtype": "float64",
        **provenance("jax", "numpy"),
        "seconds": round(time.perf_counter() - started, 1),
    }


def check(result: dict[str, Any]) -> None:
    """Orders as promised; the variational rule keeps momentum to rounding and energy without drift."""
    for row in result["table"]:
        assert abs(row["slope"] - row["order"]) < 0.3, f"{row['stepper']}: slope {row['slope']:.2f}, not {row['order']}"
        if row["stepper"] == "variational midpoint":
            assert row["momentum"] < 1e-11, f"variational midpoint: momentum is off by {row['momentum']:.1e}"
        if row["stepper"] in ("SDIRK3", "semi-implicit Euler", "Radau IIA, two stages"):
            assert row["stiff"] is not None and row["stiff"] < 0.1, f"{row['stepper']}: a stiff spring is not stable"
    for run in result["runs"]:
        if run["stepper"] == "variational midpoint":
            assert run["steps"] >= 1_000_000, f"{run['steps']} steps; expected a million"
            assert abs(run["rise"]) < 3 * run["spread"] / np.sqrt(SAMPLES / 12), (
                f"variational midpoint: the energy drifts by {run['rise']:.1e} over the run, spread {run['spread']:.1e}"
            )
        if run["stepper"] == "Runge-Kutta-Munthe-Kaas 4":
            assert run["largest"] < 1e-2, f"Runge-Kutta loses {run['largest']:.1%} of the energy"


def markdown(result: dict[str, Any]) -> str:
    """The table of docs/simulation.md."""
    lines = [
        "| stepper | order | slope | error | momentum | energy | stiff spring, rad/s | CPU µs a step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in result["table"]:
        stiff = "unstable" if r["stiff"] is None or r["stiff"] > 1e3 else f"{r['stiff']:.0e}"
        lines.append(
            f"| {r['stepper']} | {r['order']} | {r['slope']:.2f} | {r['error']:.1e} | {r['momentum']:.0e} "
            f"| {r['energy']:.0e} | {stiff} | {r['microseconds']:.0f} |"
        )
    return "\n".join(lines)


def save(result: dict[str, Any], folder: Path = RESULTS) -> None:
    """Write long_run.json and long_run.png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "long_run.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    with rc_context(STYLE):
        draw(result).savefig(folder / "long_run.png")


def draw(result: dict[str, Any]) -> Figure:
    """Errors of the energy over the run, and work against precision of all steppers."""
    figure = Figure(figsize=(12, 4), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    for run, colour in zip(result["runs"], COLOURS, strict=False):
        steps = np.linspace(run["steps"] / SAMPLES, run["steps"], SAMPLES)
        left.semilogy(steps, np.maximum(np.abs(run["error"]), 1e-12), ".", ms=2, color=colour)
        left.plot([], [], "o", color=colour, label=run["stepper"])
    left.set(title="Energy of a double pendulum", xlabel="steps of 10 ms", ylabel="error / energy of the swing")
    left.legend(loc="lower right")
    for i, row in enumerate(result["table"]):
        place = row["microseconds"], row["error"]
        left_of = row["stepper"] in TO_THE_LEFT
        offset, side = (-5 if left_of else 5, 4 if i % 2 else -11), "right" if left_of else "left"
        right.loglog(*place, "o", color=INK, ms=4)
        right.annotate(row["stepper"], place, offset, textcoords="offset points", ha=side)
    right.set(
        title="A tree of 10 freedoms, steps of 2.5 ms", xlabel="CPU time of a step [µs]", ylabel="error after 0.2 s"
    )
    right.margins(x=0.5, y=0.2)
    return figure


if __name__ == "__main__":
    evidence = main()
    save(evidence)
    print(markdown(evidence))
    for one in evidence["runs"]:
        print("{stepper}: rise {rise:.1e}, spread {spread:.1e}, largest {largest:.1e}, {seconds} s".format(**one))
    check(evidence)
