"""One call that readies JAX for this library's work on a CPU."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

import jax

EXTRA = "--xla_backend_extra_options="
# Loops whose state is smaller than this many bytes become one routine; XLA's own limit is 1024, which no batch meets.
WHOLE_LOOPS = "xla_cpu_small_while_loop_byte_threshold=1000000000"
# Of XLA's two emitters of kernels the older one is ready in two thirds of the time, and faster inside routines. Only
# versions that are known to have the flag get it: an unknown flag ends the process.
EMITTER = "--xla_cpu_use_fusion_emitters"
HAVE_BOTH = ("0.10.",)


def prepare_cpu(devices: int | None = None) -> None:
    """Make sweeps single routines and every core a device. Call it once, before JAX computes anything.

    XLA's compiler for CPUs turns a loop into a list of kernels that are started one after the other and spread over
    threads. A sweep's kernels are small: starting them and waking threads costs as much as their work. With this
    setting (in the environment variable XLA_FLAGS) each loop is one routine on one thread; `batched` then uses the
    cores, each for its share of a batch. With jaxlib 0.10 XLA's older emitter of kernels is chosen too, which compiles
    faster. Other flags stay, and other devices do not notice.

    Args:
      devices: CPU devices that JAX shows; one for each core that the process may use when left out.

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
    flags = os.environ.get("XLA_FLAGS", "").split()
    options = [flag.removeprefix(EXTRA) for flag in flags if flag.startswith(EXTRA)]
    if WHOLE_LOOPS not in ",".join(options).split(","):
        flags = [flag for flag in flags if not flag.startswith(EXTRA)] + [EXTRA + ",".join([*options, WHOLE_LOOPS])]
    if version("jaxlib").startswith(HAVE_BOTH) and not any(flag.startswith(EMITTER) for flag in flags):
        flags.append(f"{EMITTER}=false")
    os.environ["XLA_FLAGS"] = " ".join(flags)
