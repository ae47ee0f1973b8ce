"""What a program compiled for a GPU launches: kernels inside its loops, and the floats that these move.

A sweep is a `while` loop whose every round launches one kernel for each fusion and each copy in its body. No card is
needed to count them: `compile_for_h100` compiles for one (in an environment of its own, with `jax-cuda12-plugin`,
`jax-cuda12-pjrt` and `nvidia-cuda-nvcc-cu12` of JAX's version).
"""

from __future__ import annotations

import re
from typing import Any

# XLA doubles a loop after it has fused its kernels; each half works in the other's memory and no carry is copied
DOUBLE_BUFFERS = {"xla_gpu_enable_while_loop_unrolling": "WHILE_LOOP_UNROLLING_DOUBLE_BUFFER"}
FLOATS = re.compile(r"f(?:32|64)\[([\d,]*)\]")
INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")

H100 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000
l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84978434048 shared_memory_per_block_optin: 232448
cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
registers_per_core_limit: 65536 registers_per_block_limit: 65536 }
platform_name: "CUDA" dnn_version_info { major: 9 minor: 8 } device_description_str: "NVIDIA H100 80GB HBM3" """


def computations(text: str) -> dict[str, list[str]]:
    """The lines of every computation of a compiled program."""
    found: dict[str, list[str]] = {}
    current = None
    for line in text.splitlines():
        head = re.match(r"^(?:ENTRY )?%?(\S+) \(.*\{", line)
        if head:
            current = head.group(1)
            found[current] = []
        elif current is not None:
            found[current].append(line)
    return found


def loops(text: str, batch: int, rounds: int, rounds_in_body: int = 1) -> list[dict[str, Any]]:
    """Launches of one round of every loop, and the floats read and written a round and copy.

    Args:
      batch: copies in the program; arrays without that dimension are shared and not counted.
      rounds: of a loop; arrays [rounds, ..., batch] are read and written a row a round.
      rounds_in_body: two after double buffering.
    """
    bodies, found = computations(text), []
    for name in re.findall(r"body=%?([\w.\-]+)", text):
        shapes, launches, moved = {}, 0, 0.0
        for line in bodies[name]:
            match = INSTRUCTION.match(line)
            if not match:
                continue
            own, shape, op, rest = match.groups()
            shapes[own] = shape
            if op in ("fusion", "copy"):
                launches += 1
                operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
                moved += sum(_floats(s, batch, rounds) for s in (shape, *(shapes.get(o, "") for o in operands)))
        found.append({"loop": name, "launches": launches / rounds_in_body, "floats": round(moved / rounds_in_body)})
    return found


def _floats(shape: str, batch: int, rounds: int) -> float:
    total = 0.0
    for dims in FLOATS.findall(shape):
        sizes = [int(d) for d in dims.split(",") if d]
        if batch in sizes:
            count = 1.0
            for size in sizes:
                count *= size
            total += count / batch / (rounds if sizes[0] == rounds and len(sizes) > 1 else 1)
    return total


def compile_for_h100(f, *args, options: dict[str, str] | None = None) -> str:
    """The text of f(*args) (shapes suffice), compiled for an H100 on a machine that has none."""
    import jax
    import jax_cuda12_plugin  # noqa: F401 (registers the compiler)
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    jax.default_backend = lambda: "gpu"  # the sweeps choose their layout by it
    topology = topologies.get_topology_desc(platform="cuda", topology_name="t", target_config=H100, topology="1x1x1")
    sharding = SingleDeviceSharding(topology.devices[0])
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), args)
    lowered = jax.jit(f, out_shardings=sharding).trace(*args).lower(lowering_platforms=("cuda",))
    return lowered.compile(compiler_options=options).as_text()
