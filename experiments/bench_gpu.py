"""How fast is one GPU, and is it right? Identities first, then forward dynamics, gradients and rollouts by batch size.

One process, under eight minutes on one card; what is found is written as it is found.

    python -m experiments.bench_gpu             # on a card: writes results/bench_gpu_<card>.json and .md
    python -m experiments.bench_gpu --count     # without one: launches of the program compiled for an H100
    python -m experiments.bench_gpu --quick     # whatever device there is, small batches; writes nothing
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from experiments import RESULTS, provenance
from experiments._launches import DOUBLE_BUFFERS, compile_for_h100, loops

SECONDS = 450.0  # of the whole run; what does not fit is named
BATCHES = (1024, 16384, 131072, 1048576)
MODELS = ("arm7", "g1", "chain32", "quadruped")
STEPS, DT = 100, 1e-3
TOLERANCE = {"float32": 2e-3, "float64": 1e-9}  # of the largest entry
PER_SECOND = {"arm7": 100e6, "g1": 10e6}  # aims of forward dynamics in float32 on an H100
GRADIENT = 4.0  # aim of the gradient over forward dynamics
LAUNCHES = {"chain8": 16, "quadruped": 24}  # aims of one forward dynamics
FLOATS = {"chain8": 350}  # aim, a body and copy
COUNTED = 4096  # copies in a program whose launches are counted


def system_of(model: str):
    import jaxmbd as mb
    from experiments.bench_dynamics import load

    return mb.models.quadruped() if model == "quadruped" else load(model)


def states(system, batch: int, dtype: str, seed: int = 0):
    """Random states, velocities and forces on the device."""
    import jax

    import jaxmbd as mb

    keys = jax.random.split(jax.random.key(seed), batch)
    q, v = jax.jit(jax.vmap(lambda key: mb.random_state(system, key)))(keys)
    x = jax.random.normal(jax.random.key(seed + 1), v.shape)
    return tuple(y.astype(dtype) for y in (q, v, x))


def functions() -> dict[str, Callable]:
    """Batched functions of (system, q, v, tau)."""
    import jax
    import jax.numpy as jnp

    import jaxmbd as mb

    over = (None, 0, 0, 0)
    forward = jax.vmap(mb.forward_dynamics, over)

    def total(system, q, v, tau):
        return jnp.sum(forward(system, q, v, tau))

    def rollout(system, q, v, tau):
        def end(q, v):
            return mb.simulate(system, q, v, duration=STEPS * DT, dt=DT, every=STEPS).v[-1]

        return jax.vmap(end)(q, v)

    return {
        "forward": forward,
        "inverse": jax.vmap(mb.inverse_dynamics, over),
        "gradient": jax.grad(total, (1, 2, 3)),
        "gradient all": jax.grad(total, (0, 1, 2, 3)),
        "rollout": rollout,
    }


def identities(model: str, dtype: str) -> dict[str, float]:
    """Errors over the largest entry: forward after inverse, symmetry and product of M, reverse against forward mode."""
    import jax
    import jax.numpy as jnp

    import jaxmbd as mb

    system = system_of(model).astype(dtype)
    q, v, a = states(system, 256, dtype)
    over = (None, 0, 0, 0)
    tau = jax.vmap(mb.inverse_dynamics, over)(system, q, v, a)
    again = jax.vmap(mb.forward_dynamics, over)(system, q, v, tau)
    M = jax.vmap(mb.mass_matrix, (None, 0))(system, q)
    solved = jax.vmap(mb.minv_product, (None, 0, 0))(system, q, jnp.einsum("bij,bj->bi", M, a))

    def total(q, v, tau):
        return jnp.sum(jnp.sin(jax.vmap(mb.forward_dynamics, over)(system, q, v, tau)))

    slopes = jax.grad(total, (0, 1, 2))(q, v, tau)
    forward = jax.jvp(total, (q, v, tau), (q, v, tau))[1]
    reverse = sum(jnp.vdot(s, x) for s, x in zip(slopes, (q, v, tau), strict=True))
    size = sum(jnp.abs(s * x).sum() for s, x in zip(slopes, (q, v, tau), strict=True))
    return {
        "forward(inverse(a)) = a": float(jnp.abs(again - a).max() / jnp.abs(a).max()),
        "M^-1 M a = a": float(jnp.abs(solved - a).max() / jnp.abs(a).max()),
        "M symmetric": float(jnp.abs(M - jnp.swapaxes(M, 1, 2)).max() / jnp.abs(M).max()),
        "forward mode = reverse mode": float(abs(forward - reverse) / size),
    }


def timed(f, args, options: dict[str, str] | None = None, budget: float = 0.5) -> dict[str, Any]:
    """Seconds to compile (with XLA's options), and of a call: minimum, median and maximum."""
    import jax

    begun = time.perf_counter()
    compiled = jax.jit(f).lower(*args).compile(compiler_options=options)
    compile_s = time.perf_counter() - begun
    jax.block_until_ready(compiled(*args))
    begun = time.perf_counter()
    jax.block_until_ready(compiled(*args))
    once = time.perf_counter() - begun
    seconds = []
    for _ in range(int(np.clip(budget / once, 3, 50))):
        begun = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        seconds.append(time.perf_counter() - begun)
    spread = [float(f"{x:.4g}") for x in (min(seconds), np.median(seconds), max(seconds))]
    return {"compile_s": round(compile_s, 2), "seconds": spread, "text": compiled.as_text()}


def main(small: bool = False) -> dict[str, Any]:
    """Identities and timings on the default device until the time is up."""
    import jax

    from experiments._level_sweeps import by_levels

    begun = time.perf_counter()
    jax.config.update("jax_enable_x64", True)
    result: dict[str, Any] = {
        "question": "how fast is one GPU, and is it right?",
        **provenance("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"),
        "quick": small,
        "identities": [],
        "records": [],
        "left_out": [],
    }
    models, batches = (("arm7",), (64,)) if small else (MODELS, BATCHES)
    for model in models:
        for dtype in TOLERANCE:
            result["identities"].append({"model": model, "dtype": dtype} | identities(model, dtype))
    chosen = functions()
    jobs = [(name, model, batch, "float32", "registers") for batch in batches for model in models for name in chosen]
    jobs += [
        (name, model, batch, "float32", "double buffers")
        for batch in batches
        for model in models
        for name in ("forward", "gradient", "rollout")
    ]
    wide = batches[-2 if len(batches) > 1 else 0]
    jobs += [(name, model, wide, "float64", "registers") for model in models for name in chosen]
    bushy = [model for model in models if model in ("g1", "quadruped")]
    jobs += [("forward", model, batch, "float32", "levels") for model in bushy for batch in batches]
    if small:
        jobs = [job for job in jobs if job[0] in ("forward", "gradient")]
    for name, model, batch, dtype, executor in jobs:
        job = {"function": name, "model": model, "batch": batch, "dtype": dtype, "executor": executor}
        if time.perf_counter() - begun > SECONDS:
            result["left_out"].append(job | {"why": "time was up"})
            continue
        system = system_of(model).astype(dtype)
        if model == "g1" and batch == BATCHES[-1] and name != "forward":
            result["left_out"].append(job | {"why": "too much memory for one card"})
            continue
        try:
            with by_levels() if executor == "levels" else nullcontext():
                options = DOUBLE_BUFFERS if executor == "double buffers" else None
                figures = timed(chosen[name], (system, *states(system, batch, dtype)), options)
        except jax.errors.JaxRuntimeError as error:
            result["left_out"].append(job | {"why": str(error).splitlines()[0][:200]})
            continue
        text = figures.pop("text")
        rounds = loops(text, batch, system.topology.layout.tree.size, 1 if options is None else 2)
        result["records"].append(job | figures | {"launches": sum(r["launches"] for r in rounds)})
        print(
            f"{time.perf_counter() - begun:5.0f} s  {job}  {figures['seconds'][1]:.3g} s", file=sys.stderr, flush=True
        )
    result["total_s"] = round(time.perf_counter() - begun)
    return result


def count() -> dict[str, Any]:
    """Launches and floats of one forward dynamics, compiled for an H100."""
    import jax
    import jax.numpy as jnp

    import jaxmbd as mb

    result = {**provenance("jax", "jaxlib", "jax-cuda12-plugin"), "copies": COUNTED, "device": "compiled for an H100"}
    chosen, records = functions(), []
    for model, system in (("chain8", mb.models.chain(8)), ("quadruped", mb.models.quadruped())):
        q = jax.ShapeDtypeStruct((COUNTED, system.nq), jnp.float32)
        v = jax.ShapeDtypeStruct((COUNTED, system.nv), jnp.float32)
        for name in ("forward", "inverse", "gradient"):
            for kind, options in (("as it is", None), ("double buffers", DOUBLE_BUFFERS)):
                text = compile_for_h100(chosen[name], system.astype("float32"), q, v, v, options=options)
                job = {"model": model, "function": name, "loops_are": kind, "rounds": system.nv}
                records.append(job | {"loops": loops(text, COUNTED, system.nv, 1 if options is None else 2)})
    return result | {"records": records}


def check(result: dict[str, Any]) -> None:
    """The device computes the right numbers."""
    for row in result["identities"]:
        for name, error in row.items():
            if name not in ("model", "dtype"):
                limit = TOLERANCE[row["dtype"]]
                assert error < limit, f"{row['model']}, {row['dtype']}: {name} is off by {error:.2g}; expected {limit}"


def check_count(result: dict[str, Any]) -> None:
    """A round of the sweeps launches few kernels, which move few floats once buffers are doubled."""
    for record in result["records"]:
        if record["function"] == "forward":
            model, launches = record["model"], sum(r["launches"] for r in record["loops"])
            aim = LAUNCHES[model]
            assert launches <= aim, f"{model}: {launches} launches; expected at most {aim}"
            if record["loops_are"] == "double buffers" and model in FLOATS:
                floats = sum(r["floats"] for r in record["loops"])
                assert floats <= FLOATS[model], f"{model}: {floats} floats; expected at most {FLOATS[model]}"


def table(result: dict[str, Any]) -> str:
    """The figures in markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items() if number != "not installed")
    lines = [f"{result['date']}, {result['device']}; {versions}.", ""]
    lines += ["| function | model | type | batch | sweeps by | millions a second: median (range) | launches a round |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for r in result["records"]:
        work = r["batch"] * (STEPS if r["function"] == "rollout" else 1) / 1e6
        low, middle, high = (work / s for s in reversed(r["seconds"]))
        what = f"| {r['function']} | {r['model']} | {r['dtype']} | {r['batch']} | {r['executor']} "
        lines.append(f"{what}| {middle:.3g} ({low:.3g} to {high:.3g}) | {r['launches']:g} |")
    lines += ["", "| identity, error over the largest entry | model | type | |", "|---|---|---|---|"]
    for row in result["identities"]:
        errors = {k: e for k, e in row.items() if k not in ("model", "dtype")}
        lines += [f"| {name} | {row['model']} | {row['dtype']} | {error:.1e} |" for name, error in errors.items()]
    lines += ["", *(f"- left out: {job}" for job in result["left_out"])]
    return "\n".join(lines).rstrip() + "\n"


def count_table(result: dict[str, Any]) -> str:
    """Launches and floats of the sweeps in markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items() if number != "not installed")
    lines = [
        f"{result['date']}, {result['device']}, float32, {result['copies']} copies; {versions}.",
        "",
        "| function | model | loops | rounds | launches a round of each sweep | together | floats a round and copy |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in result["records"]:
        launches = [f"{x['launches']:g}" for x in r["loops"]]
        floats = sum(x["floats"] for x in r["loops"])
        what = f"| {r['function']} | {r['model']} | {r['loops_are']} | {r['rounds']} "
        lines.append(f"{what}| {' + '.join(launches)} | {sum(x['launches'] for x in r['loops']):g} | {floats} |")
    return "\n".join(lines) + "\n"


def save(result: dict[str, Any], name: str, text: str, folder: Path = RESULTS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small batches on whatever device; writes nothing")
    parser.add_argument("--count", action="store_true", help="launches of the program compiled for an H100")
    options = parser.parse_args()
    if options.count:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"
        counted = count()
        save(counted, "gpu_launches", count_table(counted))
        print(count_table(counted))
        check_count(counted)
    else:
        evidence = main(small=options.quick)
        print(table(evidence))
        if not options.quick:
            card = re.sub(r"\W+", "_", evidence["device"]).strip("_").lower()
            save(evidence, f"bench_gpu_{card}", table(evidence))
        check(evidence)
