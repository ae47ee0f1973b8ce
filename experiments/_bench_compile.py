"""What the dynamics bench asks of the compiler: seconds by bodies and by joint kinds, and no factorisation."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from experiments._bench_models import load

REPEATS = 3  # of every compilation
FACTORISATIONS = re.compile(r"cholesky|triangular[-_]solve|potrf|getrf|geqrf|trsm|LuDecomposition", re.IGNORECASE)


def compile_timed(function: Callable, *arguments) -> tuple[Any, float, float]:
    """The compiled function; CPU seconds of the process for tracing, and for XLA."""
    import jax

    begun = time.process_time()
    lowered = jax.jit(function).lower(*arguments)
    traced = time.process_time()
    compiled = lowered.compile()
    return compiled, traced - begun, time.process_time() - traced


def compilations(quick: bool) -> Iterator[dict[str, Any]]:
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
            yield {"kind": f"compile {axis}", "function": name, "x": x, "cpu_s": [round(trace + xla, 3)]}
    looked_at = {"chain32": chains[32]} | ({} if quick else {"g1": load("g1")})
    for name, system in looked_at.items():
        compiled, *_ = compile_timed(functions["forward"], *arguments(system, 64))
        text = compiled.as_text()
        square = re.findall(rf"\w+\[(?:\d+,)*{system.nv},{system.nv}\]", text)
        found = sorted(set(FACTORISATIONS.findall(text)) | set(square))
        yield {"kind": "factorisations", "model": name, "nv": system.nv, "found": found}


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
