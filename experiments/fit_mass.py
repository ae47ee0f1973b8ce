"""How well does gradient descent through a simulation find a link's mass and a joint's damping from noisy angles?

A Panda arm, the file that comes with jaxmbd, drops from a few poses. Its hand carries a payload that the file does not
know of, and one joint turns less freely than the file says. From the joint angles alone, blurred like an encoder's,
Adam recovers both numbers: the gradient of the misfit goes through `simulate` to the physical numbers that
`System.replace` sets. The measurement comes from a simulation with a quarter of the fit's step, so that the fit cannot
lean on its own integration errors. The Jacobian of the fitted angles tells how exact an estimate can be at all.

    python -m experiments.fit_mass          # writes results/fit_mass.json and .png
"""

from __future__ import annotations

import json
import time
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib import rc_context
from matplotlib.figure import Figure

import jaxmbd as mb
from experiments import RESULTS, provenance
from jaxmbd.view.plots import INK, STYLE

PATHS = ("panda_hand.mass", "panda_joint4.damping")
UNITS = ("kg", "N m s/rad")
TRUTH = (1.6, 0.4)
POSES = ((0.0, -0.5, 0.0, -1.8, 0.0, 1.5, 0.0, 0.02), (0.5, 0.4, -0.3, -1.2, 0.6, 2.0, -0.4, 0.02))
DURATION, DT, FINER = 0.5, 0.01, 4
NOISE = 2e-3  # rad, m
SEED = 0
COLOURS = ("#3b76af", "#d9542b", "#7f8c4d")


def angles(system: mb.System, numbers, q0, dt: float):
    """Joint angles [poses, nt, nq] of arms with these two numbers that drop from the poses q0."""
    changed = system.replace(dict(zip(PATHS, numbers, strict=True)))

    def drop(q):
        return mb.simulate(changed, q, duration=DURATION, dt=dt, stepper=mb.RungeKuttaMuntheKaas4()).q

    return jax.vmap(drop)(q0)


@jax.jit
def misfit(numbers, system, q0, measured):
    """Mean squared error in units of the noise: one, where nothing but noise is left."""
    return jnp.mean(jnp.square((angles(system, numbers, q0, DT) - measured) / NOISE))


@partial(jax.jit, static_argnames="steps")
def descend(start, system, q0, measured, steps: int):
    """Adam on the physical numbers; returns the numbers and misfits of all iterations, the start included."""
    # b2: the steep slopes of the start are soon forgotten, or they would slow down the end
    optimizer = optax.adam(optax.cosine_decay_schedule(0.05, steps), b2=0.95)

    def iterate(state, _):
        numbers, memory = state
        value, gradient = jax.value_and_grad(misfit)(numbers, system, q0, measured)
        update, memory = optimizer.update(gradient, memory)
        return (optax.apply_updates(numbers, update), memory), (numbers, value)

    (numbers, _), (history, values) = jax.lax.scan(iterate, (start, optimizer.init(start)), length=steps)
    last = misfit(numbers, system, q0, measured)
    return jnp.concatenate([history, numbers[None]]), jnp.append(values, last)


@jax.jit
def deviations(numbers, system, q0):
    """Standard deviations that the noise alone gives the best possible estimate (Cramér-Rao): sqrt diag (JᵀJ/σ²)⁻¹."""
    J = jax.jacfwd(lambda x: jnp.ravel(angles(system, x, q0, DT)) / NOISE)(numbers)
    return jnp.sqrt(jnp.diag(jnp.linalg.inv(J.T @ J)))


def main(small: bool = False) -> dict[str, Any]:
    """Measure, fit, and say how far off the two numbers are; `small` takes fewer iterations."""
    started = time.perf_counter()
    system = mb.load(files("jaxmbd") / "robots" / "panda.urdf")
    q0 = jnp.array(POSES)
    exact = jax.jit(angles, static_argnums=3)(system, jnp.array(TRUTH), q0, DT / FINER)[:, ::FINER]
    measured = exact + NOISE * jax.random.normal(jax.random.key(SEED), exact.shape)
    start = jnp.stack([system.get(path) for path in PATHS])
    history, values = descend(start, system, q0, measured, 120 if small else 200)
    fitted = history[-1]
    return {
        "question": "are a link mass and a joint damping recovered from noisy joint angles by gradient descent?",
        "seed": SEED,
        "robot": "panda.urdf",
        "paths": PATHS,
        "units": UNITS,
        "true": list(TRUTH),
        "start": start.tolist(),
        "fitted": fitted.tolist(),
        "error": [abs(float(x) / true - 1) for x, true in zip(fitted, TRUTH, strict=True)],
        "deviation": deviations(fitted, system, q0).tolist(),
        "misfit_start": float(values[0]),
        "misfit_end": float(values[-1]),
        "misfit_of_truth": float(misfit(jnp.array(TRUTH), system, q0, measured)),
        "noise": NOISE,
        "samples": measured.size,
        "iterations": len(values) - 1,
        "dtype": measured.dtype.name,
        **provenance("jax", "optax", "numpy"),
        "seconds": round(time.perf_counter() - started, 1),
        "history": np.asarray(history).tolist(),
        "misfit": np.asarray(values).tolist(),
        "t": np.linspace(0.0, DURATION, measured.shape[1]).tolist(),
        "measured": np.asarray(measured[0]).tolist(),
        "before": np.asarray(angles(system, start, q0, DT)[0]).tolist(),
        "after": np.asarray(angles(system, fitted, q0, DT)[0]).tolist(),
        "coordinates": system.joint_names,
    }


def check(result: dict[str, Any]) -> None:
    """Both numbers within 2 %, within four standard deviations of the truth, and nothing but noise left."""
    for path, fitted, true, error, deviation in zip(
        result["paths"], result["fitted"], result["true"], result["error"], result["deviation"], strict=True
    ):
        assert error < 0.02, f"{path}: {fitted:.4f}, off by {error:.1%}; expected {true} within 2 %"
        off = abs(fitted - true) / deviation
        assert off < 4, f"{path}: {fitted:.4f} is {off:.1f} standard deviations from {true}; expected at most 4"
    assert result["misfit_start"] > 100, f"the misfit starts at {result['misfit_start']:.3g}; nothing to learn"
    # mean of n squared normal numbers: 1 with standard deviation sqrt(2 / n)
    floor = 1 + 4 * np.sqrt(2 / result["samples"])
    end = result["misfit_end"]
    assert end < floor, f"the misfit ends at {end:.3f}; noise alone explains {floor:.3f}"


def save(result: dict[str, Any], folder: Path = RESULTS) -> None:
    """Write fit_mass.json and fit_mass.png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fit_mass.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    with rc_context(STYLE):
        draw(result).savefig(folder / "fit_mass.png")


def draw(result: dict[str, Any]) -> Figure:
    """Misfit and estimates over the iterations; angles of the joints that move most, measured, before and after."""
    figure = Figure(figsize=(12, 4), dpi=130, layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.3))

    left.semilogy(result["misfit"], color=COLOURS[0])
    left.axhline(1.0, color=INK, lw=0.8, ls=":")
    left.annotate("noise alone", (result["iterations"], 1.0), (0, 4), textcoords="offset points", ha="right")
    left.set(title="Misfit of the angles", xlabel="iteration", ylabel="mean squared error / noise variance")

    history = np.array(result["history"])
    middle.axhline(1.0, color=INK, lw=0.8, ls=":")
    for path, unit, true, fitted, deviation, estimates, colour in zip(
        result["paths"],
        result["units"],
        result["true"],
        result["fitted"],
        result["deviation"],
        history.T,
        COLOURS,
        strict=False,
    ):
        label = f"{path}\n{fitted:.4f} ± {deviation:.4f} {unit}, true {true}"
        middle.plot(estimates / true, color=colour, label=label)
    middle.set(title="Estimates", xlabel="iteration", ylabel="estimate / true number", ylim=(0, None))
    middle.legend(loc="lower right")

    t, measured = np.array(result["t"]), np.array(result["measured"])
    most = np.argsort(-np.ptp(measured, axis=0))[:3]
    for column, colour in zip(np.sort(most), COLOURS, strict=False):
        right.plot(t, np.array(result["before"])[:, column], color=colour, lw=1, ls="--")
        right.plot(t, np.array(result["after"])[:, column], color=colour, lw=1.4)
        right.plot(t, measured[:, column], "o", ms=3, mfc="white", mec=colour, mew=0.8)
        end = (t[-1], result["after"][-1][column])
        right.annotate(result["coordinates"][column], end, (4, -3), textcoords="offset points", color=colour)
    for style, label in (("o", "measured"), ("--", "file's numbers"), ("-", "fitted numbers")):
        right.plot([], [], style, color=INK, ms=3, mfc="white", lw=1.2, label=label)
    right.set(title="First drop, the joints that move most", xlabel="time [s]", ylabel="angle [rad]")
    right.set_xlim(0, 1.28 * t[-1])
    right.legend(loc="upper left")
    return figure


if __name__ == "__main__":
    evidence = main()
    save(evidence)
    check(evidence)
    for line in zip(evidence["paths"], evidence["fitted"], evidence["deviation"], evidence["units"], strict=True):
        print("{}: {:.4f} +- {:.4f} {}".format(*line))
