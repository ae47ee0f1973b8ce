"""Reading and writing rows: values, both modes of differentiation, and batches of batches, against plain indexing."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import tree
from jaxmbd.rows import put_row, take_row

I = 2


def replaced(rows, row):
    return put_row(rows, row, I)


def taken(rows, row):
    return take_row(rows, I) + 0 * row


PAIRS = {
    "put": (replaced, lambda rows, row: rows.at[I].set(row)),
    "take": (taken, lambda rows, row: rows[I] + 0 * row),
}


def inputs(*lead):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(*lead, 5))), jnp.asarray(rng.normal(size=lead))


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_derivatives_are_those_of_indexing(name):
    ours, plain = PAIRS[name]
    x, dx = inputs(), jax.tree.map(jnp.cos, inputs())
    np.testing.assert_array_equal(ours(*x), plain(*x))
    for f, d in zip(jax.jvp(ours, x, dx), jax.jvp(plain, x, dx), strict=True):
        np.testing.assert_array_equal(f, d)
    out, pull = jax.vjp(ours, *x)
    _, plain_pull = jax.vjp(plain, *x)
    for got, expected in zip(pull(jnp.sin(out)), plain_pull(jnp.sin(out)), strict=True):
        np.testing.assert_array_equal(got, expected)
    for argument in (0, 1):  # the other one is a constant
        first = jax.jacrev(ours, argument)(*x)
        np.testing.assert_array_equal(first, jax.jacfwd(plain, argument)(*x))


@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (0, None), (None, 0)], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_a_batch_is_its_copies(name, axes):
    ours, plain = PAIRS[name]
    rows, row = inputs(3)
    x = (
        rows[0] if axes[0] is None else jnp.moveaxis(rows, 0, axes[0]),
        row[0] if axes[1] is None else row,
    )
    np.testing.assert_array_equal(jax.vmap(ours, axes)(*x), jax.vmap(plain, axes)(*x))

    def total(f):
        return lambda *x: jnp.sum(jnp.sin(jax.vmap(f, axes)(*x)))

    for got, expected in zip(jax.grad(total(ours), (0, 1))(*x), jax.grad(total(plain), (0, 1))(*x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", PAIRS)
def test_a_batch_of_batches_in_a_loop(name):
    """The carry of a `scan`, differentiated, twice batched: what a sweep over rows is."""
    ours, plain = PAIRS[name]
    rows, row = inputs(3, 4)

    def looped(f):
        def step(rows, x):
            y = f(rows, x)
            return (y if y.ndim else rows.at[0].set(y)) * 0.5, y

        return lambda rows, row: jnp.sum(jax.lax.scan(step, rows, jnp.stack([row, 2 * row]))[1] ** 2)

    def slopes(f):
        return jax.jit(jax.vmap(jax.vmap(jax.grad(looped(f), (0, 1)))))(rows, row)

    for got, expected in zip(slopes(ours), slopes(plain), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_a_batch_of_bushy_trees_neither_gathers_nor_scatters():
    """What a shared system is packed with has no batch, and may."""
    system, copies = mb.models.binary_tree(7), 11
    assert system.topology.layout.tree.registers > tree.MOST_REGISTERS
    x = jnp.zeros((copies, system.nv))
    program = str(jax.make_jaxpr(jax.vmap(lambda q, v, tau: mb.forward_dynamics(system, q, v, tau)))(x, x, x))
    assert "put_row" in program and "take_row" in program
    assert not re.findall(rf"\[[\d,]*\b{copies}\b[\d,]*\] = (?:gather|scatter).*", program)


def test_a_batch_of_row_numbers_is_refused():
    rows, row = inputs(3)
    with pytest.raises(NotImplementedError, match="one schedule for all copies"):
        jax.vmap(take_row)(rows, jnp.arange(3))
    with pytest.raises(NotImplementedError, match="one schedule for all copies"):
        jax.vmap(put_row)(rows, row, jnp.arange(3))
