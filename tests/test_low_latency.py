"""`low_latency`: the same numbers and derivatives as the function itself, in one routine on a prepared CPU."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jaxmbd as mb

ROUTINE = """
import jaxmbd as mb
mb.prepare_cpu(1)
import jax, jax.numpy as jnp, numpy as np

system, q = mb.models.chain(3), jnp.linspace(0.0, 1.0, 3)
cost = lambda system, q, v: jnp.sum(mb.forward_dynamics(system, q, v, v) ** 2)


def kernels(f, *args):
    text = f.lower(*args).compile().as_text()
    return text[text.index("ENTRY"):].count(" fusion(")


for f in (lambda *x: mb.forward_dynamics(*x, x[-1]), jax.grad(cost, 1)):
    plain, routine = (kernels(g, system, q, q) for g in (jax.jit(f), mb.low_latency(f)))
    assert plain > 20 and routine <= 2, (plain, routine)
    batch = jnp.stack([q, q + 1.0])
    assert kernels(mb.batched(f, (None, 0, 0)), system, batch, batch) <= 2
    np.testing.assert_allclose(mb.low_latency(f)(system, q, q), f(system, q, q), rtol=1e-12)
assert jax.config.read("jax_cpu_enable_async_dispatch") is False
print("done")
"""


def test_it_is_one_routine_on_a_prepared_cpu():
    """Of a function and of its gradient, and of a batch that is one block; the plain function is dozens of kernels."""
    result = subprocess.run(
        [sys.executable, "-c", ROUTINE],
        capture_output=True,
        text=True,
        env=os.environ
        | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "PYTHONPATH": os.pathsep.join(sys.path), "XLA_FLAGS": ""},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["done"]


def test_derivatives_are_those_of_the_function():
    system, q = mb.models.chain(2), jnp.array([0.3, -0.4])

    def f(system, q, *, push):
        return mb.forward_dynamics(system, q, push * q, q)

    ours = mb.low_latency(f)
    check_grads(lambda q, push: ours(system, q, push=push), (q, jnp.array(0.7)), order=1)
    np.testing.assert_allclose(
        *(jax.grad(lambda s, g=g: g(s, q, push=0.7).sum())(system).get("link1.mass") for g in (ours, f)), rtol=1e-12
    )
    np.testing.assert_allclose(
        *(jax.vmap(lambda q, g=g: g(system, q, push=0.7))(jnp.stack([q, 2 * q])) for g in (ours, f)), rtol=1e-12
    )


def test_it_may_use_numbers_from_outside_and_of_any_type():
    def value(scale, wrapped):
        def f(x, n, on, key):
            return {"y": scale * x["a"] ** n, "n": n + 1, "on": ~on, "none": x["b"], "key": jax.random.fold_in(key, n)}

        key = jax.random.key(7)
        out = (mb.low_latency(f) if wrapped else f)({"a": jnp.array([2.0, 3.0]), "b": None}, 3, jnp.array(True), key)
        assert out["n"] == 4 and not out["on"] and out["none"] is None and out["key"] == jax.random.fold_in(key, 3)
        return out["y"].sum()

    np.testing.assert_allclose(jax.grad(value)(2.0, True), 35.0, rtol=1e-12)
    np.testing.assert_allclose(jax.jvp(lambda s: value(s, True), (2.0,), (1.0,)), (70.0, 35.0), rtol=1e-12)


@pytest.mark.parametrize("batch", [3, 300])
def test_batches_may_use_differentiated_numbers_from_outside(batch):
    """In one block (one routine) and in several."""
    x = jnp.linspace(0.0, 1.0, batch)

    def total(scale, over):
        return over(lambda x: jnp.sin(scale * x))(x).sum()

    np.testing.assert_allclose(jax.grad(total)(2.0, mb.batched), jax.grad(total)(2.0, jax.vmap), rtol=1e-12)
