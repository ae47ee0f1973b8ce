"""The command line: `jaxmbd simulate` and `jaxmbd info`.

`simulate` reads a robot, steps a batch of copies of it on every device there is (each core of a CPU is one) and writes
what moved. A user's mistake is one line on stderr and exit code 2; a result that is not finite is written all the same,
described, and gives exit code 1.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import jaxmbd as mb
from jaxmbd.integrate import Stepper
from jaxmbd.view import column_names, describe, draw_run

SHIPPED_ROBOT = files("jaxmbd") / "robots" / "panda.urdf"
STEPPERS = {"euler": mb.SemiImplicitEuler, "rk4": mb.RungeKuttaMuntheKaas4}
STOPS = {"stiffness": 1e4, "damping": 1e2}  # [N m/rad, N/m] and [N m s/rad, N s/m]; euler is stable with any
PLOT_FORMATS = (".png", ".pdf", ".svg")
CHUNKS = 25  # pieces of the simulated time: one compiled program each, progress is shown in between


class UserError(Exception):
    """A mistake that the user can mend, told in one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for results that are not finite, 2 for a user's mistake."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv == ["--version"]:
        print(f"jaxmbd {version('jaxmbd')}")
        return 0
    try:
        return _parse(argv)()
    except UserError as error:
        print(f"jaxmbd: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jaxmbd: interrupted", file=sys.stderr)
        return 130


def simulate(
    robot: str | None = None,
    /,
    *,
    batch: int | None = None,
    duration: float = 2.0,
    dt: float = 1e-3,
    out: Path | None = None,
    plot: Path | None = None,
    stepper: Literal["euler", "rk4"] = "euler",
    every: int = 1,
    start: Path | None = None,
    spread: float = 0.3,
    seed: int = 0,
    floating: bool = False,
    mimic: Literal["eliminate", "independent"] = "eliminate",
    loops: Literal["closed", "open"] = "closed",
    limits: bool = False,
    x64: bool = False,
    max_gb: float = 4.0,
) -> int:
    """Simulate a batch of copies of a robot that move under gravity from differing start states.

    Args:
        robot: Model file, .urdf or .xml (MJCF). Without one, the Franka Panda arm that comes with jaxmbd.
        batch: Number of copies. Without it, as many as --start holds, or one.
        duration: Simulated time [s].
        dt: Time step [s].
        out: Write t [nt], q [batch, nt, nq], v [batch, nt, nv] and names to this .npz file.
        plot: Draw angles, energy and the moving mechanism into this .png, .pdf or .svg file.
        stepper: Semi-implicit Euler, which stiff dampers cannot upset, or the more accurate Runge-Kutta-Munthe-Kaas 4.
        every: Keep only every so many-th step.
        start: Start states, .npy (q) or .npz (q, perhaps v), [nq] or [batch, nq]; of a file that --out wrote, the end.
        spread: Without --start, standard deviation of the start poses [rad or m] and speeds [1/s of these].
        seed: Seed of the random start states.
        floating: Put a free joint named root under the root link.
        mimic: Joints that mimic others: eliminate them exactly, or let them move independently.
        loops: Kinematic loops of an MJCF file: keep them closed, or leave their constraints out.
        limits: Let the joints' limits act as stiff, well damped stops; random start poses then lie within them.
        x64: Compute in float64 instead of float32.
        max_gb: Do not start if the states to keep need more memory than this [GB].
    """
    for name, value in {"--batch": batch, "--duration": duration, "--dt": dt, "--every": every}.items():
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{name} is {value}; expected a finite number above zero")
    steps = round(duration / dt)
    if abs(steps * dt - duration) > 1e-6 * duration:
        raise UserError(
            f"--duration {duration:g} s is no whole number of steps of --dt {dt:g} s; "
            f"take --duration {max(steps, 1) * dt:.9g} or another --dt"
        )
    if steps < every:
        raise UserError(f"--duration {duration:g} s is shorter than one kept step ({every} x --dt {dt:g} s)")
    _check_target("--out", out, (".npz",))
    _check_target("--plot", plot, PLOT_FORMATS)
    if limits and stepper != "euler":
        raise UserError(f"--limits needs --stepper euler, which takes the stops implicitly; got {stepper}")
    _set_up_jax(x64)

    system, name = _load(robot, floating, mimic, loops)
    if limits:
        try:
            system = system.with_limits(**STOPS)
        except ValueError as error:
            raise UserError(f"--limits: {_one_line(error)}") from error
    if start is None:
        q, v = _spread_states(system, batch or 1, spread, seed)
    else:
        q, v = _read_states(system, name, start, batch)
    batch = len(q)
    gigabytes = batch * (steps // every + 1) * (system.nq + system.nv) * q.dtype.itemsize / 1e9
    if gigabytes > max_gb:
        raise UserError(
            f"the states to keep need {gigabytes:.1f} GB (batch {batch} x {steps // every + 1} instants x "
            f"{system.nq + system.nv} numbers), more than --max-gb {max_gb:g}; keep fewer instants with "
            f"--every {int(gigabytes / max_gb * every) + 1}, or lower --batch, or raise --max-gb"
        )
    print(f"{name}: {system.nq} coordinates, {system.nv} velocities, {system.nb} bodies, {float(system.mass):.4g} kg")
    t, q, v = _run(system, q, v, steps, dt, every, STEPPERS[stepper]())
    copies = "1 copy" if batch == 1 else f"{batch} copies"
    title = f"{name} · {copies} · {duration:g} s in steps of {dt:g} s · {stepper} · {q.dtype.name}"
    try:
        if out:
            q_names, v_names = column_names(system, "q"), column_names(system, "v")
            np.savez(out, t=t, q=q, v=v, joint_names=system.joint_names, q_names=q_names, v_names=v_names)
            print(f"wrote {out}: t {list(t.shape)}, q {list(q.shape)}, v {list(v.shape)}, {_megabytes(out)}")
        if plot:
            draw_run(system, t, q, v, title).savefig(plot)
            print(f"wrote {plot}: {_megabytes(plot)}")
    except OSError as error:
        raise UserError(f"cannot write the results: {error}") from error
    problem = _not_finite(system, t, q, v, dt)
    if problem:
        print(f"jaxmbd: {problem}", file=sys.stderr)
    return 1 if problem else 0


def info(
    robot: str | None = None,
    /,
    *,
    floating: bool = False,
    mimic: Literal["eliminate", "independent"] = "eliminate",
    loops: Literal["closed", "open"] = "closed",
) -> int:
    """Print what a robot file holds: bodies, joints, their places in q and v, and what was doubtful or left out.

    Args:
        robot: Model file, .urdf or .xml (MJCF). Without one, the Franka Panda arm that comes with jaxmbd.
        floating: Put a free joint named root under the root link.
        mimic: Joints that mimic others: eliminate them exactly, or let them move independently.
        loops: Kinematic loops of an MJCF file: keep them closed, or leave their constraints out.
    """
    system, name = _load(robot, floating, mimic, loops)
    print(f"{name}: {describe(system)}")
    return 0


def _parse(argv: Sequence[str]) -> Callable[[], int]:
    """The command that the arguments ask for, ready to run. Exits for --help."""
    import tyro

    def deferred(command: Callable[..., int]) -> Callable[..., Callable[[], int]]:
        @functools.wraps(command)
        def parsed(*args: Any, **options: Any) -> Callable[[], int]:
            return functools.partial(command, *args, **options)

        return parsed

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.extras.subcommand_cli_from_dict(
                {"simulate": deferred(simulate), "info": deferred(info)},
                prog="jaxmbd",
                description="Multibody dynamics in JAX.",
                args=argv,
                config=(
                    tyro.conf.DisallowNone,
                    tyro.conf.FlagCreatePairsOff,
                    tyro.conf.PositionalMetavarFromFieldName,
                ),
            )
    except SystemExit as exit:
        if not exit.code:
            raise
        # tyro says: a title, a rule, the message in some lines, a rule, hints; boxed where the output is Unicode
        lines = [line.strip("│ ") for line in complaint.getvalue().splitlines()]
        rules = [i for i, line in enumerate(lines) if "───" in line or "-----" in line] + [len(lines)] * 2
        message = " ".join(filter(None, lines[rules[0] + 1 : rules[1]])).split(" Got errors")[0].rstrip(".")
        near = next((line.split()[0] for line in lines if line.startswith("--") and line.strip("-")), None)
        hint = f"perhaps {near}? " if near and near not in message else ""
        raise UserError(f"{message}; {hint}see jaxmbd --help") from None


def _set_up_jax(x64: bool) -> None:
    """Choose the precision, and make every core of the CPU a device unless the caller has chosen a number."""
    jax.config.update("jax_enable_x64", x64)
    chosen = jax.config.values["jax_num_cpu_devices"]
    with contextlib.suppress(RuntimeError):  # a program that calls main() has started its devices before
        mb.prepare_cpu(chosen if chosen > 0 else None)


def _load(
    robot: str | None,
    floating: bool,
    mimic: Literal["eliminate", "independent"],
    loops: Literal["closed", "open"],
) -> tuple[mb.System, str]:
    """The system and the file's name; defects of the file become one line, doubts become warnings."""
    path = Path(str(SHIPPED_ROBOT)) if robot is None else Path(robot)
    if not path.is_file():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; expected a robot's model file")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            system = mb.load(path, floating=floating, mimic=mimic, loops=loops)
    except (ValueError, OSError, ImportError) as error:
        raise UserError(_one_line(error)) from error
    for warning in (w for w in caught if issubclass(w.category, UserWarning)):
        print(f"jaxmbd: warning: {warning.message}", file=sys.stderr)
    if not system.nv:
        raise UserError(f"{path}: nothing moves in it; --floating lets the whole robot move")
    return system, path.stem


def _spread_states(
    system: mb.System, batch: int, spread: float, seed: int
) -> tuple[Float[np.ndarray, "batch nq"], Float[np.ndarray, "batch nv"]]:
    """Random poses about the neutral one, and random speeds; a joint of small range (a finger) is spread less."""
    scale = np.ones(system.nv)
    for joint in system.joint_names:
        lower, upper = (np.asarray(system.get(f"{joint}.{bound}")) for bound in ("lower", "upper"))
        half = (upper - lower) / 2
        scale[system.v_slice(joint)] = np.where((half > 0) & (half < 1), half, 1.0)
    move, v = jax.random.normal(jax.random.key(seed), (2, batch, system.nv)) * jnp.asarray(spread * scale)[None, None]
    q = jax.vmap(lambda move: mb.integrate(system, system.neutral_q(), move, 1.0))(move)
    if system.limit_stiffness is not None:
        for joint in system.joint_names:
            at = system.q_slice(joint)
            if at.stop - at.start == system.v_slice(joint).stop - system.v_slice(joint).start:
                lower, upper = (system.get(f"{joint}.{bound}") for bound in ("lower", "upper"))
                q = q.at[:, at].set(jnp.clip(q[:, at], *(jnp.reshape(x, (1, -1)) for x in (lower, upper))))
    if system.constraints:
        closed = jax.jit(jax.vmap(lambda q, v: mb.assemble(system, q, v)))(q, v)
        q, v = closed.q, closed.v
    return np.asarray(q), np.asarray(v)


def _read_states(
    system: mb.System, name: str, path: Path, batch: int | None
) -> tuple[Float[np.ndarray, "batch nq"], Float[np.ndarray, "batch nv"]]:
    """Start states from a .npy or .npz file, one row a copy; one state alone serves the whole batch."""
    try:
        content = np.load(path)
    except (OSError, ValueError) as error:
        raise UserError(f"--start {path}: {_one_line(error)}; expected a .npy or .npz file of numbers") from error
    given = dict(content) if isinstance(content, np.lib.npyio.NpzFile) else {"q": content}
    if "q" not in given:
        raise UserError(f"--start {path}: has {', '.join(given) or 'nothing'}; expected q, and v if the robot moves")
    states = {"q": given["q"], "v": given.get("v", np.zeros(system.nv))}
    sizes = {"q": system.nq, "v": system.nv}
    rows = batch
    for key, value in states.items():
        if not np.issubdtype(value.dtype, np.number) or not np.all(np.isfinite(value)):
            raise UserError(f"--start {path}: {key} has entries that are no finite numbers")
        value = states[key] = value[:, -1] if value.ndim == 3 else value
        if value.ndim == 2 and rows is None:
            rows = len(value)
        if value.shape not in {(sizes[key],), (rows, sizes[key])}:
            raise UserError(
                f"--start {path}: {key} has shape {list(value.shape)}; {name} needs [{sizes[key]}] or "
                f"[{rows or 'batch'}, {sizes[key]}], in the order that `jaxmbd info` shows"
            )
    q, v = (np.broadcast_to(states[key], (rows or 1, sizes[key])).astype(jnp.result_type(float)) for key in "qv")
    return q, v


def _run(
    system: mb.System,
    q: Float[np.ndarray, "batch nq"],
    v: Float[np.ndarray, "batch nv"],
    steps: int,
    dt: float,
    every: int,
    stepper: Stepper,
) -> tuple[Float[np.ndarray, " nt"], Float[np.ndarray, "batch nt nq"], Float[np.ndarray, "batch nt nv"]]:
    """t [nt], q [batch, nt, nq], v [batch, nt, nv] of a batch, spread over all devices; says how long it took.

    Time runs in equal chunks of one compiled program, so the last one may overrun.
    """
    from tqdm import tqdm

    batch, devices = len(q), jax.devices()
    kept = steps // every
    per_chunk = -(-kept // CHUNKS)
    chunk_steps = per_chunk * every

    def one(system, t0, q, v):
        traj = mb.simulate(system, q, v, duration=chunk_steps * dt, dt=dt, t0=t0, stepper=stepper)
        return traj.q[-1], traj.v[-1], traj.q[every::every], traj.v[every::every]

    advance, state = mb.batched(one, (None, None, 0, 0)), [jnp.asarray(q), jnp.asarray(v)]
    where = f"{min(batch, len(devices))} {devices[0].platform} devices"
    print(f"batch {batch}, {steps} steps of {dt:g} s, {q.dtype.name}, on {where}")
    clock = time.perf_counter()
    compiled = advance.lower(system, jnp.zeros((), q.dtype), *state).compile()
    print(f"compiled in {time.perf_counter() - clock:.1f} s", flush=True)

    t = np.arange(kept + 1) * (every * dt)
    stored = [np.empty((batch, kept + 1, x.shape[1]), x.dtype) for x in (q, v)]
    stored[0][:, 0], stored[1][:, 0] = q, v
    clock = time.perf_counter()
    with tqdm(total=batch * kept * every, unit="step", unit_scale=True, desc="simulating") as bar:
        for first in range(0, kept, per_chunk):
            *state, moved_q, moved_v = compiled(system, jnp.asarray(t[first], q.dtype), *state)
            count = min(per_chunk, kept - first)
            for store, moved in zip(stored, (moved_q, moved_v), strict=True):
                store[:, first + 1 : first + 1 + count] = np.asarray(moved)[:, :count]
            bar.update(batch * count * every)
    seconds = time.perf_counter() - clock
    print(f"simulated in {seconds:.1f} s: {batch * kept * every / seconds:,.0f} steps/s")
    return t, stored[0], stored[1]


def _not_finite(system: mb.System, t, q, v, dt: float) -> str | None:
    """What went wrong first, or None: how many copies, the step, the copy and its joint that moved fastest before."""
    finite = np.isfinite(q).all(-1) & np.isfinite(v).all(-1)
    bad = np.flatnonzero(~finite.all(1))
    if not len(bad):
        return None
    instant = (~finite[bad]).argmax(1)
    copy, at = bad[instant.argmin()], instant.min()
    broken = ~np.isfinite(v[copy, at]) if not np.isfinite(v[copy, at]).all() else np.ones(system.nv, bool)
    fastest = np.where(broken, np.abs(v[copy, at - 1]), -1.0).argmax()
    joint = next(name for name in system.joint_names if fastest in range(*system.v_slice(name).indices(system.nv)))
    return (
        f"{len(bad)} of {len(q)} copies are not finite; the first is copy {copy} at step {round(t[at] / dt)} "
        f"(t = {t[at]:g} s), its fastest joint {joint!r} (speed {v[copy, at - 1, fastest]:.3g} before); "
        "try a smaller --dt"
    )


def _check_target(option: str, path: Path | None, suffixes: tuple[str, ...]) -> None:
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        raise UserError(f"{option} {path}: expected a name that ends in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option} {path}: cannot be written")


def _one_line(error: Exception) -> str:
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    return "; ".join(filter(None, lines)) or type(error).__name__


def _megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.1f} MB"
