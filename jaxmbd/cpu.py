"""JAX on a CPU: how it is readied for this library's work, and a function as one routine."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib.metadata import version

import jax
import jax.numpy as jnp
from jax import lax

from jaxmbd.tangents import varied

EXTRA = "--xla_backend_extra_options="
# Loops whose state is smaller than this many bytes become one routine; XLA's own limit is 1024, which no batch meets.
WHOLE_LOOPS = "xla_cpu_small_while_loop_byte_threshold=1000000000"
# Of XLA's two emitters of kernels the older one is ready in two thirds of the time, and faster inside routines.
# Sums are left to XLA's own code: those by a library of kernels (YNN), which no routine can call, would take a gradient
# in numbers that copies share apart. Products of matrices are worth the library. And vectors are as wide as the
# processor has them, where XLA would stop at 256 bits. Only versions that are known to have these flags get them: an
# unknown flag ends the process.
CHOSEN = {
    "--xla_cpu_use_fusion_emitters": "false",
    "--xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT",
    "--xla_cpu_prefer_vector_width": "512",
}
HAVE_THEM = ("0.10.",)
# The environment's names for two thresholds of glibc, and the numbers by which `mallopt` knows them.
THRESHOLDS = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}
KEPT = 1 << 30  # bytes that are not handed back when they are freed


def prepare_cpu(devices: int | None = None) -> None:
    """Make sweeps single routines and every core a device. Call it once, before JAX computes anything.

    XLA's compiler for CPUs turns a loop into a list of kernels that are started one after the other and spread over
    threads. A sweep's kernels are small: starting them and waking threads costs as much as their work. With this
    setting (in the environment variable XLA_FLAGS) each loop is one routine on one thread; `batched` then uses the
    cores, each for its share of a batch. With jaxlib 0.10 XLA's older emitter of kernels is chosen too, which compiles
    faster, no library of kernels for sums, which a routine cannot call, and vectors of up to 512 bits. Flags that are
    set already stay as they are, and other devices do not notice. Products of large matrices, those of a neural network
    in a loop, stay with the library, and what they stand in is then no routine, but its sweeps are.

    The C library (glibc) is told to keep up to 1 GB of memory that results leave behind. It would hand that of large
    results back, and the system would clear it page by page for the results of the next call. Where the environment
    sets the library's thresholds (`MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_` or `GLIBC_TUNABLES`), they stay.

    Args:
      devices: CPU devices that JAX shows; one for each core that the process may use when left out. With one device a
        call computes on the thread that made it: to hand a small one to another thread takes longer than to compute
        it, so that a loop that asks for one state at a time (`low_latency`) is best off with `prepare_cpu(1)`.

    Raises: RuntimeError when JAX has started its devices already: then nothing is changed. ValueError for less than
      one device.
    """
    if devices is not None and devices < 1:
        raise ValueError(f"devices is {devices}; expected one or more, or None for one a core.")
    if devices is None:
        devices = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        jax.config.update("jax_num_cpu_devices", devices)
    except RuntimeError as error:
        raise RuntimeError("JAX has started its devices already; call prepare_cpu() before the first array.") from error
    jax.config.update("jax_cpu_enable_async_dispatch", devices > 1)
    flags = os.environ.get("XLA_FLAGS", "").split()
    options = [flag.removeprefix(EXTRA) for flag in flags if flag.startswith(EXTRA)]
    if WHOLE_LOOPS not in ",".join(options).split(","):
        flags = [flag for flag in flags if not flag.startswith(EXTRA)] + [EXTRA + ",".join([*options, WHOLE_LOOPS])]
    if version("jaxlib").startswith(HAVE_THEM):
        flags += [f"{name}={value}" for name, value in CHOSEN.items() if not any(f.startswith(name) for f in flags)]
    os.environ["XLA_FLAGS"] = " ".join(flags)
    _keep_memory()


def _keep_memory() -> None:
    """Have glibc keep what is freed, where nobody has told it otherwise; other C libraries have no such call."""
    tuned = any(name in os.environ for name in THRESHOLDS) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if tuned or sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        for number in THRESHOLDS.values():
            library.mallopt(number, KEPT)


def low_latency(f: Callable) -> Callable:
    """`jax.jit(f)` for calls one at a time from Python, with one state or a few, as in the loop of a controller.

    Compiled for a CPU, a function of one state is hundreds of kernels with less work in them than their start takes.
    After `prepare_cpu` all of f is one routine on one thread, and a call takes half the time, a quarter after
    `prepare_cpu(1)`. For batches see `batched`.

    Args:
      f: a function of arrays and of records of them, such as a system. The system is best an argument: what f takes
        from outside is copied in each call.

    Returns: the compiled function; on other devices it is `jax.jit(f)`, and without `prepare_cpu` nothing is gained. It
      can be differentiated, but its derivative is no routine: take derivatives inside, `low_latency(jax.grad(cost))`.
    """
    routine = one_routine(f)

    @jax.jit
    @wraps(f)
    def call(*args, **kwargs):
        return (routine if jax.default_backend() == "cpu" else f)(*args, **kwargs)

    return call


def one_routine(f: Callable, into: Callable | None = None) -> Callable:
    """f as a loop of one round, which `prepare_cpu` makes a single routine; its derivatives are those of f itself.

    The compiler must not see that it is one round, nor that nothing changes from round to round: else it unrolls the
    loop or takes the work out of it.

    Args:
      f: a function of arrays and of records of them.
      into: the same as into(result, *args), which writes over all of a result: then a large one is never copied.
    """

    @wraps(f)
    def call(*args, **kwargs):
        # numbers that f takes from outside may be differentiated, too: they become inputs
        closed, outside = jax.closure_convert(lambda args, kwargs: f(*args, **kwargs), args, kwargs)
        if into is None:
            return _once(closed, None, ((args, kwargs, *outside), None))
        write, result = into, jax.eval_shape(f, *args, **kwargs)
        inside, beside = jax.closure_convert(
            lambda result, args, kwargs: write(result, *args, **kwargs), result, args, kwargs
        )
        return _once(closed, inside, ((args, kwargs, *outside), (args, kwargs, *beside)))

    return call


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _once(f, into, inputs):
    result = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(f, *inputs[0]))
    rounds = lax.optimization_barrier(jnp.int32(1))

    def body(carry):
        i, inputs, result = lax.optimization_barrier(carry)
        return i + 1, inputs, into(result, *inputs[1]) if into else f(*inputs[0])

    return lax.while_loop(lambda carry: carry[0] < rounds, body, (jnp.int32(0), inputs, result))[2]


def _once_jvp(f, into, primals, tangents):
    rebuilt, values, moves = varied((primals[0][0],), (tangents[0][0],))
    return jax.jvp(lambda *values: f(*rebuilt(*values)[0]), values, moves)


_once.defjvp(_once_jvp, symbolic_zeros=True)
