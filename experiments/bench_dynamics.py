"""How fast are forward and inverse dynamics, and their compilation, next to Pinocchio and to sweeps over 6x6 arrays?

One process a job, each with a time limit. A job first checks its results against the model's reference (Pinocchio, or
jaxmbd in float64 where Pinocchio is missing), then times. The headline is evaluations per CPU-second, all threads of
the process counted: other programs share the machine, and wall time suffers from them. Peers are optional.

    python -m experiments.bench_dynamics            # writes results/bench_dynamics.json, .md and .png; some 15 minutes
    python -m experiments.bench_dynamics --quick    # one model, one batch; writes nothing
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from experiments import RESULTS, provenance
from experiments._array_sweeps import array_sweeps
from experiments._bench_report import BATCHES, ENGINES, MODELS, compile_seconds, draw, rate, spread, table

ROOT = Path(__file__).parents[1]
CHECKED = 64  # states whose results are compared
TOLERANCE = {"float64": 1e-9, "float32": 1e-3}  # of the largest entry
TIME_LIMIT = 200.0  # seconds a job, imports and compilation included; twice that for the job that only compiles
BUDGET = 1.0  # seconds of timing a figure
REPEATS = 3  # of every compilation
SEED = 0

# what a whole run must show
FASTER_THAN_ARRAYS = 4.0
FLAT = 1.3  # compile time of 128 bodies over that of 8
SECONDS_A_KIND = 0.5  # compile time of one more joint kind: the aim, met by all kinds made of screws
SECONDS_BESIDE_SCREWS = {"spherical": 1.0, "free": 1.0}  # what these kinds keep to; docs/performance.md says why

FACTORISATIONS = re.compile(r"cholesky|triangular[-_]solve|potrf|getrf|geqrf|trsm|LuDecomposition", re.IGNORECASE)


# --- models and states


def urdf(model: str) -> tuple[str, bool]:
    """URDF text that every engine reads, and whether its root link floats."""
    if model == "arm7":
        return locked_fingers((ROOT / "jaxmbd" / "robots" / "panda.urdf").read_text(encoding="utf-8")), False
    if model == "g1":
        return (ROOT / "tests" / "data" / "robots" / "g1_29dof.urdf").read_text(encoding="utf-8"), True
    return chain_urdf(int(model.removeprefix("chain"))), False


def locked_fingers(text: str) -> str:
    """The arm with its finger joints fixed at zero; their mass stays."""
    robot = ElementTree.fromstring(text)
    for joint in robot.iter("joint"):
        if "finger_joint" in joint.get("name", ""):
            joint.set("type", "fixed")
            for part in [p for p in joint if p.tag in ("axis", "limit", "mimic", "dynamics")]:
                joint.remove(part)
    return ElementTree.tostring(robot, encoding="unicode")


def chain_urdf(n: int) -> str:
    """The hinges and rods of `mb.models.chain(n)` as URDF text."""
    import jaxmbd as mb

    system = mb.models.chain(n)

    def numbers(path):
        return [f"{x:.9g}" for x in np.ravel(system.get(path))]

    place = (("link", "com"), ("joint", "in_parent.position"), ("joint", "axis"))
    lines = ['<robot name="chain"><link name="base"/>']
    for i in range(n):
        com, at, axis = (" ".join(numbers(f"{path}{i}.{what}")) for path, what in place)
        mass, parent = numbers(f"link{i}.mass")[0], f"link{i - 1}" if i else "base"
        tensor = zip(("ixx", "ixy", "ixz", "iyy", "iyz", "izz"), numbers(f"link{i}.inertia"), strict=True)
        inertia = " ".join(f'{name}="{x}"' for name, x in tensor)
        lines += [
            f'<link name="link{i}"><inertial><origin xyz="{com}"/><mass value="{mass}"/>',
            f"<inertia {inertia}/></inertial></link>",
            f'<joint name="joint{i}" type="revolute"><parent link="{parent}"/>',
            f'<child link="link{i}"/><origin xyz="{at}"/><axis xyz="{axis}"/>',
            '<limit lower="-3" upper="3" effort="1" velocity="1"/></joint>',
        ]
    return "\n".join([*lines, "</robot>"])


def load(model: str):
    """The model as a jaxmbd system, without the passive forces that the other engines leave out."""
    import jaxmbd as mb

    text, floating = urdf(model)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "robot.urdf"
        path.write_text(text, encoding="utf-8")
        return mb.load(path, floating=floating).without_passive_forces()


def states(hinges: int, floating: bool, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, v and a third vector (forces or accelerations) in jaxmbd's layout, moderate numbers from one seed."""
    rng = np.random.default_rng(SEED)
    q, v, x = rng.uniform(-1, 1, (3, batch, hinges)) * np.array([1.0, 0.3, 1.0])[:, None, None]
    if floating:
        turn = rng.normal(size=(batch, 4))
        turn /= np.linalg.norm(turn, axis=1, keepdims=True)
        q = np.hstack([turn, rng.normal(size=(batch, 3)), q])
        v = np.hstack([0.3 * rng.normal(size=(batch, 6)), v])
        x = np.hstack([rng.uniform(-1, 1, (batch, 6)), x])
    return q, v, x


# --- the engines: functions of a batch of states


def pinocchio_engine(model: str) -> dict[str, Callable]:
    """Pinocchio's parallel calls with one thread, on states in jaxmbd's layout turned into its own."""
    import pinocchio as pin

    text, floating = urdf(model)
    robot = pin.buildModelFromXML(text, pin.JointModelFreeFlyer()) if floating else pin.buildModelFromXML(text)
    names = [n for n in load(model).joint_names if n != "root"]
    joints = [robot.joints[robot.getJointId(n)] for n in names]
    base = 7 if floating else 0
    q_from, v_from = np.arange(robot.nq), np.arange(robot.nv)  # row of Pinocchio's vectors <- column of ours
    if floating:
        q_from[:7], v_from[:6] = [4, 5, 6, 1, 2, 3, 0], [3, 4, 5, 0, 1, 2]
    for i, joint in enumerate(joints):
        q_from[joint.idx_q], v_from[joint.idx_v] = base + i, max(base - 1, 0) + i
    pool = pin.ModelPool(robot, 1)
    back = np.argsort(v_from)

    def prepared(function):
        def prepare(q, v, x):
            Q, V, X = (np.asfortranarray(y[:, rows].T) for y, rows in ((q, q_from), (v, v_from), (x, v_from)))
            return lambda: function(1, pool, Q, V, X)

        return prepare

    def rows(result):
        return np.asarray(result).T[:, back]

    return {"forward": (prepared(pin.abaInParallel), rows), "inverse": (prepared(pin.rneaInParallel), rows)}


# --- jobs, each in its own process


def measure(call: Callable[[], Any], batch: int, budget: float) -> dict[str, Any]:
    """Wall and CPU seconds of one evaluation: minimum, median, maximum over repeats of at least 50 ms."""
    call()
    begun = time.perf_counter()
    call()
    once = time.perf_counter() - begun
    inner = max(1, round(0.05 / once))
    repeats = int(np.clip(budget / (inner * once), 3, 15))
    wall, cpu = [], []
    for _ in range(repeats):
        w, c = time.perf_counter(), time.process_time()
        for _ in range(inner):
            call()
        cpu.append((time.process_time() - c) / (inner * batch))
        wall.append((time.perf_counter() - w) / (inner * batch))
    return {"wall_s": spread(wall), "cpu_s": spread(cpu), "repeats": repeats, "calls": inner}


def compile_timed(function: Callable, *arguments) -> tuple[Any, float, float]:
    """The compiled function; CPU seconds of the process for tracing, and for XLA."""
    import jax

    begun = time.process_time()
    lowered = jax.jit(function).lower(*arguments)
    traced = time.process_time()
    compiled = lowered.compile()
    return compiled, traced - begun, time.process_time() - traced


def job_speed(engine: str, model: str, dtype: str, quick: bool, folder: Path) -> None:
    """Compare with the reference, then time every batch."""
    job = {"kind": "speed", "engine": engine, "model": model, "dtype": dtype}
    batches = BATCHES[:1] if quick else BATCHES
    if engine == "pinocchio":
        system, engines = load(model), pinocchio_engine(model)
    else:
        import jax
        import jax.numpy as jnp

        import jaxmbd as mb

        system = load(model)
        if engine == "arrays":
            functions = {"forward": array_sweeps(system)}
        else:
            over = (None, 0, 0, 0)
            functions = {
                "forward": jax.vmap(mb.forward_dynamics, over),
                "inverse": jax.vmap(mb.inverse_dynamics, over),
            }

        def prepared(function):
            def prepare(*x):
                x = tuple(jnp.asarray(y, dtype) for y in x)
                x = x if engine == "arrays" else (system, *x)
                compiled, trace, xla = compile_timed(function, *x)

                def call():
                    return jax.block_until_ready(compiled(*x))

                call.compile = {"trace_s": round(trace, 3), "xla_s": round(xla, 3)}
                return call

            return prepare

        engines = {name: (prepared(f), np.asarray) for name, f in functions.items()}
    floating = system.nq != system.nv
    hinges = system.nv - 6 if floating else system.nv
    reference = folder / f"{model}.npz"
    first = {}
    for name, (prepare, rows) in engines.items():
        calls = {CHECKED: prepare(*states(hinges, floating, CHECKED))}
        first[name] = rows(calls[CHECKED]())
        error = 0.0
        if reference.exists():
            expected = np.load(reference)[name]
            error = float(np.abs(first[name] - expected).max() / np.abs(expected).max())
        if not error < TOLERANCE[dtype]:
            raise ValueError(f"{name} dynamics is off by {error:.2g} of its largest entry; expected {TOLERANCE[dtype]}")
        for batch in batches:
            call = calls.get(batch) or prepare(*states(hinges, floating, batch))
            figures = measure(call, batch, BUDGET / 4 if quick else BUDGET)
            figures |= getattr(call, "compile", {})
            record(folder, job | {"function": name, "batch": batch, "error": error} | figures)
    if not reference.exists():
        np.savez(reference, **first)


def job_compile(quick: bool, folder: Path) -> None:
    """Compile time against the number of bodies and of joint kinds; factorisations in the compiled forward dynamics."""
    import jax
    import jax.numpy as jnp

    import jaxmbd as mb

    def arguments(system, batch):
        v = jnp.zeros((batch, system.nv))
        return system, jnp.tile(system.neutral_q(), (batch, 1)), v, v

    over = (None, 0, 0, 0)
    functions = {"forward": jax.vmap(mb.forward_dynamics, over), "inverse": jax.vmap(mb.inverse_dynamics, over)}
    jax.jit(functions["forward"]).lower(*arguments(mb.models.chain(3), 2)).compile()  # the compiler's own start
    chains = {n: mb.models.chain(n) for n in ((8, 32) if quick else (8, 32, 128))}
    kinds = {} if quick else mixed_systems()
    cases = [("bodies", name, n, system) for name in functions for n, system in chains.items()]
    cases += [("kinds", "forward", kind, system) for kind, system in kinds.items()]
    for _ in range(1 if quick else REPEATS):
        for axis, name, x, system in cases:
            jax.clear_caches()
            _, trace, xla = compile_timed(functions[name], *arguments(system, 64))
            record(folder, {"kind": f"compile {axis}", "function": name, "x": x, "cpu_s": [round(trace + xla, 3)]})
    looked_at = {"chain32": chains[32]} | ({} if quick else {"g1": load("g1")})
    for name, system in looked_at.items():
        compiled, *_ = compile_timed(functions["forward"], *arguments(system, 64))
        text = compiled.as_text()
        square = re.findall(rf"\w+\[(?:\d+,)*{system.nv},{system.nv}\]", text)
        found = sorted(set(FACTORISATIONS.findall(text)) | set(square))
        record(folder, {"kind": "factorisations", "model": name, "nv": system.nv, "found": found})


def mixed_systems() -> dict[str, Any]:
    """Chains of twelve bodies with ever more kinds of joints among them, the rest being hinges."""
    import jax.numpy as jnp

    import jaxmbd as mb

    x, y, z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)

    def curve(q):
        return mb.Pose(position=jnp.stack([q[0], jnp.sin(q[0]), 0.0 * q[0]]))

    joints = {
        "revolute": mb.revolute(y),
        "prismatic": mb.prismatic(x),
        "screw": mb.screw(z, 0.1),
        "cylindrical": mb.cylindrical(z),
        "universal": mb.universal(x, y),
        "planar": mb.planar(),
        "gimbal": mb.gimbal("xyz"),
        "translational": mb.translational(),
        "spherical": mb.spherical(),
        "free": mb.free(),
        "mapped": mb.mapped(curve, 1),
    }
    systems = {}
    for count, name in enumerate(joints, 1):
        b, parent = mb.Builder(), "world"
        for i, joint in enumerate([*joints.values()][:count] + [joints["revolute"]] * (12 - count)):
            b.body(f"link{i}", mass=1.0, com=(0.0, 0.1, 0.2), inertia=np.diag([0.1, 0.2, 0.25]))
            b.joint(f"joint{i}", joint, parent=parent, child=f"link{i}", in_parent=mb.Pose((0.0, 0.0, 0.4)))
            parent = f"link{i}"
        systems[name] = b.build()
    return systems


def record(folder: Path, figures: dict[str, Any]) -> None:
    """Add one line to the run's records; what a job found before its time was up is kept."""
    with open(folder / "records.jsonl", "a", encoding="utf-8") as lines:
        lines.write(json.dumps(figures) + "\n")


def run_job(arguments: list[str], dtype: str, limit: float) -> str | None:
    """Run one job in a process of its own; what went wrong, in one line, or None."""
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")}
    environment |= {"JAX_ENABLE_X64": str(dtype == "float64"), "JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment |= {"JAX_PLATFORMS": environment.get("JAX_PLATFORMS", "cpu"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "experiments.bench_dynamics", "--job", *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, timeout=limit, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return f"stopped after its {limit:g} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]


# --- the whole run


def main(small: bool = False, note: str = "") -> dict[str, Any]:
    """Run all jobs one after the other, a model's engines side by side; `small` is a few of them."""
    models = ("arm7",) if small else MODELS
    begun, problems, loads = time.perf_counter(), [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        order = sorted(ENGINES, key=lambda e: (e[0] != "pinocchio", e[1] != "float64"))  # the reference comes first
        jobs = [["speed", engine, model, dtype] for model in models for engine, dtype in order]
        for job in [["compile", "jaxmbd", "all", "float32"], *jobs]:
            loads.append(os.getloadavg()[0])
            limit = TIME_LIMIT * (2 if job[0] == "compile" else 1)
            problem = run_job([*job, str(small), name], job[-1], limit)
            if problem:
                problems.append(f"{' '.join(job)}: {problem}")
            seconds = time.perf_counter() - begun
            print(f"{seconds:5.0f} s  {' '.join(job)}  {problem or ''}", file=sys.stderr, flush=True)
        lines = folder / "records.jsonl"
        records = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    return {
        "question": "how fast are forward and inverse dynamics and their compilation?",
        **provenance("jax", "jaxlib", "numpy", "pin"),
        "seed": SEED,
        "quick": small,
        "seconds": round(time.perf_counter() - begun),
        "load": spread(loads),
        "note": note,
        "problems": problems,
        "records": records,
    }


def check(result: dict[str, Any]) -> None:
    """The claims on medians; a quick run shows that everything works, and no speed."""
    ours = [p for p in result["problems"] if "pinocchio" not in p]
    assert not ours, f"jobs failed: {ours}"
    factorisations = [r for r in result["records"] if r["kind"] == "factorisations"]
    assert factorisations, "no compiled forward dynamics was looked at"
    for r in factorisations:
        assert not r["found"], f"{r['model']}: the compiled forward dynamics contains {r['found']} (nv = {r['nv']})"
    if result["quick"]:
        return
    for model in MODELS:
        ratio = array_ratio(result, model)
        assert ratio >= FASTER_THAN_ARRAYS, f"{model}: {ratio:.1f} x the 6x6 arrays; expected {FASTER_THAN_ARRAYS} x"
    bodies = {n: median for n, (_, median, _) in compile_seconds(result, "bodies").items()}
    assert bodies[128] <= FLAT * bodies[8], f"compile time grows from {bodies[8]} s (8 bodies) to {bodies[128]} s (128)"
    for (_, (_, before, _)), (kind, (_, after, _)) in pairwise(compile_seconds(result, "kinds").items()):
        limit = SECONDS_BESIDE_SCREWS.get(kind, SECONDS_A_KIND)
        assert after - before <= limit, f"a {kind} joint adds {after - before:.2f} s to the compile time"


def array_ratio(result: dict[str, Any], model: str, batch: int = 1024) -> float:
    """Forward dynamics of jaxmbd over that of the 6x6 arrays, float32, medians."""
    return rate(result, "jaxmbd", model, "float32", "forward", batch) / rate(
        result, "arrays", model, "float32", "forward", batch
    )


# --- evidence


def save(result: dict[str, Any], folder: Path = RESULTS) -> None:
    """Write bench_dynamics.json, .md and .png."""
    from matplotlib import rc_context

    from jaxmbd.view.plots import STYLE

    folder.mkdir(parents=True, exist_ok=True)
    records = ",\n".join(json.dumps(r) for r in result["records"])
    text = json.dumps(result | {"records": []}, indent=1)
    text = text.replace('"records": []', f'"records": [\n{records}\n]')
    (folder / "bench_dynamics.json").write_text(text + "\n", encoding="utf-8")
    (folder / "bench_dynamics.md").write_text(table(result), encoding="utf-8")
    with rc_context(STYLE):
        draw(result).savefig(folder / "bench_dynamics.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one model, one batch; writes nothing")
    parser.add_argument("--note", default="", help="a sentence about the machine for the json")
    parser.add_argument("--job", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        what, engine, model, dtype, quick, folder = options.job
        if what == "compile":
            job_compile(quick == "True", Path(folder))
        else:
            job_speed(engine, model, dtype, quick == "True", Path(folder))
        sys.exit()
    evidence = main(small=options.quick, note=options.note)
    print("\n".join(evidence["problems"]))
    if not options.quick:
        save(evidence)
    check(evidence)
