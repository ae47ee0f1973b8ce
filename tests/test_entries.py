"""Entries by static indices, arithmetic slot by slot, and cosines: the small tools around the sweeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd.entries import arranged, columns, entries, inverse
from jaxmbd.rotation import cos_sin
from jaxmbd.tangents import for_each_copy
from jaxmbd.tree import each

INDICES = {
    "all": np.arange(6),
    "a run": np.array([2, 3, 4]),
    "a run among nothing": np.array([-1, -1, 1, 2, 3, -1]),
    "two runs": np.array([4, 5, 0, 1, 2]),
    "runs and gaps": np.array([-1, 3, 4, -1, 0]),
    "nothing": np.array([-1, -1]),
    "empty": np.zeros(0, int),
    "scattered": np.array([5, 3, 1, -1, 4, 2, 0, -1, 5, 1, 3]),
    "scattered and whole": np.array([5, 3, 1, 4, 2, 0, 5, 1, 3]),
    "a table": np.array([[0, 1], [4, 5], [2, 3]]),
}


@pytest.mark.parametrize("name", INDICES)
def test_entries_are_those_of_an_index(name):
    index, x = INDICES[name], np.random.default_rng(0).normal(size=(6, 2))
    expected = np.where((index >= 0)[..., None], x[index], 0.0)
    np.testing.assert_array_equal(entries(jnp.asarray(x), index), expected)
    batched = jax.vmap(lambda x: entries(x, index), 1, index.ndim)(jnp.asarray(x))
    np.testing.assert_array_equal(batched, expected)
    # linear, so the transpose is that of the matrix that picks the entries
    picks = np.stack([entries(jnp.asarray(row), index).ravel() for row in np.eye(6)], 1)
    w = np.random.default_rng(1).normal(size=expected.shape[:-1])
    slope = jax.grad(lambda x: jnp.vdot(w, entries(x, index)))(jnp.asarray(x[:, 0]))
    np.testing.assert_allclose(slope, picks.T @ w.ravel(), atol=1e-15)


def test_inverse_puts_entries_back():
    index = np.array([4, 0, 2])
    x = jnp.arange(1.0, 4.0)
    np.testing.assert_array_equal(entries(x, inverse(index, 6)), [2.0, 0.0, 3.0, 0.0, 1.0, 0.0])
    np.testing.assert_array_equal(entries(entries(x, inverse(index, 6)), index), x)


@pytest.mark.parametrize("order", [[2, 3, 0, 1, 4], [0, 2, 1, 4, 3], [0, 1, 2, 3, 4]])
def test_parts_are_put_into_order(order):
    parts = jnp.array([10.0, 11.0]), jnp.zeros((0, 3)), jnp.array([[12.0], [13.0], [14.0]])
    np.testing.assert_array_equal(arranged(np.array(order), *parts), 10.0 + np.array(order))


def test_columns():
    assert [c.tolist() for c in columns(jnp.array([[1.0, 2.0], [3.0, 4.0]]))] == [[1.0, 3.0], [2.0, 4.0]]


@pytest.mark.parametrize("n", [1, 3])
def test_each_is_a_map_over_elements(n):
    x = jnp.arange(1.0, 1.0 + n)
    y, z = each(lambda a, b: (a * b["b"], a + 1.0), x, {"b": 2.0 * x})
    np.testing.assert_array_equal(y, 2.0 * x**2)
    np.testing.assert_array_equal(z, x + 1.0)


@pytest.mark.parametrize(("dtype", "far"), [(jnp.float32, 1e4), (jnp.float64, 1e8)])
def test_cosine_and_sine_to_the_last_digit(dtype, far):
    rng = np.random.default_rng(0)
    eighths = np.arange(-40, 41) * (np.pi / 4)
    x = np.concatenate([eighths, rng.uniform(-7, 7, 2000), rng.uniform(-far, far, 2000), [0.0, 1e-20, -1e-20]])
    x = x.astype(dtype)
    exact = x.astype(np.longdouble)
    eps = np.finfo(x.dtype).eps
    for ours, right in zip(jax.jit(cos_sin)(x), (np.cos(exact), np.sin(exact)), strict=True):
        assert ours.dtype == dtype
        # one unit in the last place, and a tenth for the reference's own rounding; at zeros what pi/2 in parts leaves
        np.testing.assert_allclose(ours, right.astype(float), rtol=1.1 * eps, atol=max(4 * eps**2, 1e-22))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_cosine_and_sine_stay_a_rotation_far_out(dtype):
    x = jnp.asarray(10.0 ** np.arange(0, 38), dtype)
    c, s = (np.asarray(y, float) for y in cos_sin(x))
    np.testing.assert_allclose(c * c + s * s, 1.0, atol=4 * np.finfo(dtype).eps)
    near = jnp.asarray([1e5, -3e5, 2e6], dtype)  # off by no more than the angle's own last unit
    c, s = (np.asarray(y, float) for y in cos_sin(near))
    unit = np.spacing(np.abs(np.asarray(near))).astype(float)
    assert np.all(np.abs(c - np.cos(np.asarray(near, float))) <= unit)
    assert np.all(np.abs(s - np.sin(np.asarray(near, float))) <= unit)
    assert np.isnan(cos_sin(jnp.asarray([jnp.inf, jnp.nan], dtype))[0]).all()


def test_cosine_and_sine_differentiate():
    x = jnp.linspace(-4.0, 4.0, 41)
    for order in range(3):
        derivative = jax.vmap(lambda x: cos_sin(x)[1])
        for _ in range(order):
            derivative = (lambda f: jax.vmap(jax.grad(lambda x: f(x[None])[0])))(derivative)
        np.testing.assert_allclose(derivative(x), np.sin(np.asarray(x) + order * np.pi / 2), atol=1e-15)
    half = cos_sin(jnp.ones(2, jnp.bfloat16))  # types without polynomials of their own
    assert half[0].dtype == jnp.bfloat16 and abs(float(half[0][0]) - np.cos(1.0)) < 1e-2


def test_shared_numbers_add_up_over_copies():
    shared, like = {"a": jnp.arange(3.0)}, jnp.array([1.0, -2.0, jnp.nan, jnp.inf])

    def weighted(shared, like, w):
        return jnp.sum(w * for_each_copy(shared, like)["a"])

    spread = jax.vmap(for_each_copy, (None, 0))(shared, like)["a"]
    np.testing.assert_array_equal(spread[:2], [[0.0, 1.0, 2.0]] * 2)
    assert jnp.isnan(spread[2:]).all()  # a copy without a number does not vanish from the sum
    w = jnp.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    total = jax.grad(lambda s: jnp.sum(jax.vmap(weighted, (None, 0, 0))(s, like[:2], w)))(shared)
    np.testing.assert_array_equal(total["a"], [11.0, 22.0, 33.0])
    each_own = jax.vmap(jax.grad(weighted), (None, 0, 0))(shared, like[:2], w)
    np.testing.assert_array_equal(each_own["a"], w)


def test_system_gradient_of_a_batch_is_the_sum_of_its_copies():
    system = mb.models.quadruped()
    q, v = jax.vmap(lambda key: mb.random_state(system, key))(jax.random.split(jax.random.key(0), 3))
    w = jax.random.normal(jax.random.key(1), v.shape)

    def scalar(system, q, v, w):
        return jnp.vdot(w, mb.forward_dynamics(system, q, v, v))

    def total(system):
        return jnp.sum(jax.vmap(scalar, (None, 0, 0, 0))(system, q, v, w))

    at_once = jax.jit(jax.grad(total))(system)
    copies = jax.jit(jax.vmap(jax.grad(scalar), (None, 0, 0, 0)))(system, q, v, w)
    jax.tree.map(
        lambda one, each: (
            np.testing.assert_allclose(one, each.sum(0), rtol=1e-9, atol=1e-9 * (1 + jnp.abs(one).max()))
            if one.size
            else None
        ),
        at_once,
        copies,
    )


@pytest.mark.parametrize("name", ["forward_dynamics", "inverse_dynamics", "reactions"])
def test_a_compiled_batch_differentiates_as_its_copies_do(name):
    """Under `vmap` a rule must leave the batch where its function does; as many copies as slots hide it if not."""
    system = mb.models.rigid_body()
    copies = system.nv
    q, v = jax.vmap(lambda key: mb.random_state(system, key))(jax.random.split(jax.random.key(0), copies))
    x, w = jax.random.normal(jax.random.key(1), (2, copies, system.nv))
    f = getattr(mb, name)

    def scalar(q, v, x, w):
        found = jax.tree.leaves(f(system, q, v, x))
        return sum(jnp.sum(jnp.cos(jnp.arange(y.size) + w[0]) * y.ravel()) for y in found)

    batch = jax.jit(jax.vmap(scalar))
    at_once = jax.jit(jax.grad(lambda *args: jnp.sum(batch(*args)), (0, 1, 2)))(q, v, x, w)
    one = jax.jit(jax.grad(scalar, (0, 1, 2)))
    for i in range(copies):
        for whole, own in zip(at_once, one(q[i], v[i], x[i], w[i]), strict=True):  # the same sums in another order
            np.testing.assert_allclose(whole[i], own, rtol=1e-9, atol=1e-9)
