"""Which four-bar draws a given curve? Gradient descent over link lengths through the assembly of a closed loop.

The target is one turn of Hoeken's straight-line linkage: its coupler point runs straight for half of the turn. From
hundreds of random linkages at once, Adam changes lengths, the coupler's point, and where and how the ground link lies.
The gradient goes through `assemble`: each crank angle is assembled from the one before, and the implicit derivative of
the closed loop tells how the curve moves with the lengths. Lengths are written so that every linkage closes at every
crank angle (Grashof's condition holds by construction): gradients exist everywhere.

    python -m experiments.four_bar_synthesis          # writes results/four_bar_synthesis.json and .png
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
import optax
from matplotlib import rc_context
from matplotlib.figure import Figure

import jaxmbd as mb
from experiments import RESULTS, provenance
from jaxmbd.view.plots import INK, STYLE

POINTS = 20
STARTS = 256
ITERATIONS = 250
SEED = 0
COLOURS = ("#3b76af", "#d9542b", "#7f8c4d")
# Hoeken: 2 : 1 : 2.5 : 2.5, the point at 5
HOEKEN = {"ground": 0.8, "crank": 0.4, "coupler": 1.0, "rocker": 1.0, "point": (2.0, 0.0)}
NAMES = ("ground", "crank", "coupler", "rocker")


def lengths(x):
    """Ground, crank, coupler and rocker from free numbers: the crank is short enough to go round.

    Ground, coupler and rocker are sums of positive numbers (a triangle), and the crank is shorter than twice the least
    of these (Grashof).
    """
    a, b, c = jnp.exp(x[:3])
    crank = 1.95 * jax.nn.sigmoid(x[3]) * jnp.minimum(a, jnp.minimum(b, c))
    return b + c, crank, a + c, a + b


def curve(linkage, turn, system):
    """Coupler point at equal steps of one turn [points, 2], each position assembled from the one before."""
    (ground, crank, coupler, rocker), point, place, tilt, phase, guess = linkage
    zero = jnp.zeros_like(ground)
    system = system.replace(
        {
            "B.in_parent.position": jnp.stack([crank, zero, zero]),
            "D.in_parent.position": jnp.stack([ground, zero, zero]),
            "coupler_end.position": jnp.stack([coupler, zero, zero]),
            "rocker_end.position": jnp.stack([rocker, zero, zero]),
            "trace.position": jnp.stack([point[0], zero, point[1]]),
        }
    )

    def position(previous, angle):
        q = mb.assemble(system, previous.at[0].set(phase + angle), fixed=("A",)).q
        at = mb.kinematics(system, q)["trace"].position
        return q, jnp.stack([at[0], at[2]])

    _, drawn = jax.lax.scan(position, jnp.concatenate([phase[None], guess]), turn)
    R = jnp.stack([jnp.stack([jnp.cos(tilt), -jnp.sin(tilt)]), jnp.stack([jnp.sin(tilt), jnp.cos(tilt)])])
    return drawn @ R.T + place[None]


def unpack(x):
    """Ten free numbers as a linkage; the guess for the first position comes from the elbow of two circles."""
    ground, crank, coupler, rocker = lengths(x)
    phase = x[9]
    pin = crank * jnp.stack([jnp.cos(phase), jnp.sin(phase)])
    d = jnp.stack([ground, 0.0]) - pin
    reach = jnp.sqrt(d @ d)
    opening = jnp.arccos(jnp.clip((coupler**2 + reach**2 - rocker**2) / (2 * coupler * reach), -1.0, 1.0))
    arm = jnp.arctan2(d[1], d[0]) + opening
    elbow = pin + coupler * jnp.stack([jnp.cos(arm), jnp.sin(arm)])
    guess = jax.lax.stop_gradient(jnp.stack([arm - phase, jnp.arctan2(elbow[1], elbow[0] - ground)]))
    return (ground, crank, coupler, rocker), x[4:6], x[6:8], x[8], phase, guess


def misfit(x, target, turn, system):
    """Root mean square distance from the target [m]."""
    return jnp.sqrt(jnp.mean(jnp.sum(jnp.square(curve(unpack(x), turn, system) - target), -1)))


@partial(jax.jit, static_argnames="iterations")
def descend(starts, target, turn, system, iterations: int):
    """Adam on all linkages at once; the numbers at the end and the misfits of all iterations [iterations, starts]."""
    optimizer = optax.adam(optax.cosine_decay_schedule(0.05, iterations))

    def iterate(state, _):
        x, memory = state
        values, gradients = jax.vmap(jax.value_and_grad(misfit), (0, None, None, None))(x, target, turn, system)
        update, memory = optimizer.update(gradients, memory)
        return (optax.apply_updates(x, update), memory), values

    (x, _), values = jax.lax.scan(iterate, (starts, optimizer.init(starts)), length=iterations)
    return x, values


def free_numbers(linkage: dict[str, Any]) -> np.ndarray:
    """The ten numbers of a known linkage with its ground link on the x axis."""
    g, b, r = linkage["ground"], linkage["coupler"], linkage["rocker"]
    a, bb, c = (b + r - g) / 2, (g + r - b) / 2, (g + b - r) / 2
    share = linkage["crank"] / (1.95 * min(a, bb, c))
    return np.array([np.log(a), np.log(bb), np.log(c), np.log(share / (1 - share)), *linkage["point"], 0, 0, 0, 0])


def main(small: bool = False) -> dict[str, Any]:
    """Fit the curve from random starts; `small` takes few starts and iterations."""
    started = time.perf_counter()
    count, iterations = (24, 200) if small else (STARTS, ITERATIONS)
    with jax.enable_x64(True):
        system = mb.linkages.four_bar(gravity=(0.0, 0.0, 0.0))
        turn = jnp.linspace(0.0, 2 * np.pi, POINTS, endpoint=False)
        truth = jnp.asarray(free_numbers(HOEKEN))
        draw_all = jax.jit(jax.vmap(lambda x: curve(unpack(x), turn, system)))
        target = draw_all(truth[None])[0]
        rng = np.random.default_rng(SEED)
        spread = np.array([0.4, 0.4, 0.4, 1.0, 0.6, 0.6, 0.4, 0.4, 0.8, 0.8])
        centre = np.array([np.log(0.5)] * 3 + [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        starts = jnp.asarray(centre + spread * rng.normal(size=(count, 10)))
        x, values = descend(starts, target, turn, system, iterations)
        final = np.asarray(jax.vmap(misfit, (0, None, None, None))(x, target, turn, system))
        best = int(np.nanargmin(final))
        fitted = [float(n) for n in lengths(x[best])]
        size = float(np.sqrt(np.mean(np.sum((target - target.mean(0)[None]) ** 2, -1))))
        curves = np.asarray(draw_all(jnp.stack([starts[best], x[best]])))
        shown = np.asarray(values)[:: max(1, iterations // 100)]
    return {
        "question": "does gradient descent through a closed loop find a four-bar that draws a given coupler curve?",
        "seed": SEED,
        "starts": count,
        "iterations": iterations,
        "size": size,
        "misfit": final.tolist(),
        "finite": bool(np.isfinite(final).all()),
        "best": float(final[best]),
        "within_one_percent": int((final < 0.01 * size).sum()),
        "fitted": dict(zip(NAMES, fitted, strict=True)),
        "target_linkage": {k: HOEKEN[k] for k in NAMES},
        **provenance("jax", "optax", "numpy"),
        "seconds": round(time.perf_counter() - started, 1),
        "history": shown.tolist(),
        "target": np.asarray(target).tolist(),
        "first": curves[0].tolist(),
        "last": curves[1].tolist(),
    }


def check(result: dict[str, Any]) -> None:
    """Every start stays finite, and the best linkage draws the curve to a hundredth of its size."""
    assert result["finite"], "some starts ended without a number"
    off = result["best"] / result["size"]
    assert off < 0.01, f"the best linkage is off by {off:.2%} of the curve's size; expected less than 1 %"
    start = np.median(np.array(result["history"])[0])
    assert np.median(result["misfit"]) < 0.5 * start, "the median misfit has not halved"


def save(result: dict[str, Any], folder: Path = RESULTS) -> None:
    """Write four_bar_synthesis.json and .png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "four_bar_synthesis.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    with rc_context(STYLE):
        draw(result).savefig(folder / "four_bar_synthesis.png")


def draw(result: dict[str, Any]) -> Figure:
    """Misfits of all starts over the iterations; the target and the best curve, at the start and at the end."""
    figure = Figure(figsize=(11, 4.2), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    history = np.array(result["history"]) / result["size"]
    steps = np.linspace(0, result["iterations"], len(history))
    best = int(np.nanargmin(result["misfit"]))
    left.semilogy(steps, history, color=COLOURS[0], lw=0.5, alpha=0.25)
    left.semilogy(steps, history[:, best], color=COLOURS[1], lw=1.8, label="best start")
    left.axhline(0.01, color=INK, lw=0.8, ls=":")
    title = f"{result['starts']} random four-bars at once, {result['within_one_percent']} end below 1 %"
    left.set(title=title, xlabel="iteration", ylabel="distance from the curve / its size")
    left.legend(loc="lower left")
    for key, style, label in (
        ("first", {"color": COLOURS[2], "lw": 1, "ls": "--"}, "best start, before"),
        ("last", {"color": COLOURS[1], "lw": 1.8}, "after"),
    ):
        points = np.array([*result[key], result[key][0]])
        right.plot(points[:, 0], points[:, 1], label=label, **style)
    target = np.array(result["target"])
    right.plot(target[:, 0], target[:, 1], "o", ms=4, mfc="white", mec=INK, label="target")
    right.set(title="Coupler curve", xlabel="x [m]", ylabel="z [m]", aspect="equal")
    right.legend(loc="best")
    return figure


if __name__ == "__main__":
    evidence = main()
    save(evidence)
    check(evidence)
    print(f"best {evidence['best'] / evidence['size']:.3%}, {evidence['within_one_percent']} starts below 1 %")
