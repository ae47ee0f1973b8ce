"""`batched`: the same numbers as `vmap`, in blocks, on one device and on eight, and its derivatives."""

import mmap
import os
import platform
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb

EIGHT = """
import jax
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp, numpy as np
import jaxmbd as mb

system = mb.models.chain(3)
assert len(jax.devices()) == 8
q, v = jax.vmap(mb.random_state, (None, 0))(system, jax.random.split(jax.random.key(0), 100))
tau = jnp.ones_like(v)


def total(masses, devices):
    f = mb.batched(
        lambda m, q, v, tau: mb.forward_dynamics(system.replace({"link1.mass": m}), q, v, tau), chunk=5, devices=devices
    )
    a = f(masses, q, v, tau)
    return jnp.sum(a * jnp.cos(a)), a


masses = jnp.linspace(0.5, 2.0, 100)
(one, a), g = jax.value_and_grad(total, has_aux=True)(masses, jax.devices()[:1])
(eight, b), h = jax.value_and_grad(total, has_aux=True)(masses, None)
assert len(b.sharding.device_set) == 8, b.sharding
np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)
np.testing.assert_allclose(one, eight, rtol=1e-13)
np.testing.assert_allclose(g, h, rtol=1e-12, atol=1e-12)
print("equal")
"""


def test_eight_devices_equal_one():
    result = subprocess.run(
        [sys.executable, "-c", EIGHT], capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["equal"]


PREPARED = """
import os
import jaxmbd as mb
mb.prepare_cpu(2)
mb.prepare_cpu(2)
import jax, jax.numpy as jnp, numpy as np

assert os.environ["XLA_FLAGS"].split() == [
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_backend_extra_options=xla_cpu_use_math=x,xla_cpu_small_while_loop_byte_threshold=1000000000",
    "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT",
    "--xla_cpu_prefer_vector_width=512",
], os.environ["XLA_FLAGS"]
system = mb.models.chain(3)
q = jnp.linspace(0.0, 1.0, 12).reshape(4, 3)
compiled = jax.jit(jax.vmap(mb.forward_dynamics, (None, 0, 0, 0))).lower(system, q, q, q).compile()
assert len(jax.devices()) == 2 and "xla_cpu_small_call" in compiled.as_text()
assert jax.config.read("jax_cpu_enable_async_dispatch")  # several devices work at once
np.save("prepared.npy", compiled(system, q, q, q))


def text(f, *args):
    return jax.jit(f).lower(*args).compile().as_text()


# products of large matrices are the library's, sums over copies are not: the gradient is a routine
def layers(x, weights):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]


assert "__ynn_fusion" in text(layers, jnp.ones((128, 64)), jnp.ones((5, 64, 64)))


def total(system, q):
    over = (None, 0, 0, 0)
    return jnp.sum(jnp.sin(mb.batched(mb.forward_dynamics, over, devices=jax.devices()[:1])(system, q, q, q)))


slopes = text(jax.grad(total), system, jnp.ones((256, 3)))
assert "xla_cpu_small_call" in slopes and "__ynn_fusion" not in slopes
try:
    mb.prepare_cpu(3)
except RuntimeError as error:
    print(error)
"""


def test_prepared_cpu_makes_routines_of_sweeps(tmp_path):
    """The same numbers; other flags of XLA stay; too late a call says so and changes nothing."""
    options = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    options += " --xla_backend_extra_options=xla_cpu_use_math=x"
    result = subprocess.run(
        [sys.executable, "-c", PREPARED],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": options, "JAX_ENABLE_X64": "1"}
        | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "JAX has started its devices already" in result.stdout
    q = jnp.linspace(0.0, 1.0, 12).reshape(4, 3)
    plain = jax.vmap(mb.forward_dynamics, (None, 0, 0, 0))(mb.models.chain(3), q, q, q)
    np.testing.assert_allclose(np.load(tmp_path / "prepared.npy"), plain, rtol=1e-12)
    with pytest.raises(ValueError, match="devices is 0; expected one or more"):
        mb.prepare_cpu(0)


KEEPING = """
import resource
import jaxmbd as mb
mb.prepare_cpu(1)
import jax.numpy as jnp

f = mb.batched(lambda x: x + jnp.zeros(8192, x.dtype))  # 32 MB of results
x = jnp.ones(1024, "float32")
faults = []
for _ in range(30):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    y = f(x).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(faults)[15])  # the first calls, and a few later ones, ask for memory that nothing has left behind
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is told by glibc's call")
def test_prepared_cpu_keeps_the_memory_of_results():
    """No page is asked for anew in each call; thresholds that the environment sets stay."""
    faults = {}
    for name, extra in {"kept": {}, "set before": {"MALLOC_MMAP_THRESHOLD_": "100000"}}.items():
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)} | extra
        result = subprocess.run([sys.executable, "-c", KEEPING], capture_output=True, text=True, env=environment)
        assert result.returncode == 0, result.stderr
        faults[name] = float(result.stdout)
    pages = 1024 * 8192 * 4 / mmap.PAGESIZE
    assert faults["kept"] < 0.01 * pages < 0.99 * pages < faults["set before"], faults


@pytest.mark.parametrize(("dtype", "copies"), [("float32", 128), ("float64", 64)])
def test_blocks_suit_a_cache(dtype, copies):
    """Rows of 512 bytes: as many copies as make that."""
    x, keys = jnp.ones((2 * copies, 3), dtype), jax.random.split(jax.random.key(0), 2 * copies)  # keys do not count
    text = str(jax.make_jaxpr(mb.batched(lambda x, key: jnp.sin(x), devices=jax.devices()[:1]))(x, keys))
    assert f"[{copies},3] = sin" in text


@pytest.mark.parametrize(("batch", "chunk"), [(1, None), (7, 3), (12, 4), (5, 100)])
def test_blocks_equal_vmap(batch, chunk):
    x, shared = jnp.arange(2.0 * batch).reshape(batch, 2), {"scale": jnp.array(3.0), "none": None}

    def f(x, shared):
        return {"y": jnp.sin(x) * shared["scale"], "n": x.sum(), "nothing": x[:0]}

    ours = mb.batched(f, (0, None), chunk=chunk)(x, shared)
    jax.tree.map(np.testing.assert_array_equal, ours, jax.vmap(f, (0, None))(x, shared))

    def total(batch, scale):
        return jnp.sum(jnp.cos(batch(x, {"scale": scale, "none": None})["y"]))

    # blocks are computed again in the reverse pass; what they share gets the sum of their parts
    slopes = (
        jax.grad(total, 1)(batch, shared["scale"])
        for batch in (mb.batched(f, (0, None), chunk=chunk), jax.vmap(f, (0, None)))
    )
    np.testing.assert_allclose(*slopes, rtol=1e-12)


def test_a_leaf_of_an_argument_may_be_mapped_alone():
    f = mb.batched(lambda p: p["a"] * p["b"], ({"a": 0, "b": None},), chunk=2)
    np.testing.assert_array_equal(f({"a": jnp.arange(5.0), "b": jnp.array(2.0)}), 2.0 * np.arange(5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mb.batched(jnp.sin, chunk=0), "chunk is 0; expected one or more"),
        (lambda: mb.batched(jnp.sin, in_axes=1)(jnp.ones((2, 3))), "in_axes = .*; expected 0 or None"),
        (lambda: mb.batched(jnp.add)(jnp.ones(2), jnp.ones(3)), "leading sizes .* expected one size"),
        (lambda: mb.batched(jnp.sin)(jnp.ones(0)), "leading sizes .* expected one size above zero"),
        (lambda: mb.batched(jnp.add, (0, 0, 0))(jnp.ones(2), jnp.ones(2)), "3 entries for 2 arguments"),
    ],
)
def test_bad_use_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
