"""Derivatives of every function in q, v, a, tau and every number of a System: forward, reverse, second order.

Checked against fourth-order central differences (h = 1e-3: truncation h⁴ times a fifth derivative, rounding eps / h of
the value) leaf by leaf, against the reference's own derivatives by path, and for finiteness at singular states in both
precisions. The arm is cheap to compile and gets everything; the tumbler is the smallest system with quaternions.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
import reference

import jaxmbd as mb

STEP = 1e-3
POINTS = STEP * np.array([-2.0, -1.0, 1.0, 2.0])
WEIGHTS = np.array([1.0, -8.0, 8.0, -1.0]) / (12.0 * STEP)
DIFFERENCES = 1e-7  # of the largest of value and derivative: fifth derivatives up to 1e5, which light wrists have
SYSTEMS = {"arm": rs.arm, "tumbler": rs.tumbler, "floater": rs.floater, "menagerie": rs.menagerie}

FUNCTIONS = {
    "forward_dynamics": lambda s, q, v, a, tau, w: mb.forward_dynamics(s, q, v, tau, w),
    "inverse_dynamics": lambda s, q, v, a, tau, w: mb.inverse_dynamics(s, q, v, a, w),
    "mass_matrix": lambda s, q, v, a, tau, w: mb.mass_matrix(s, q),
    "kinematics": lambda s, q, v, a, tau, w: mb.kinematics(s, q, v, a),
    "energy": lambda s, q, v, a, tau, w: mb.energy(s, q, v),
    "integrate": lambda s, q, v, a, tau, w: mb.integrate(s, q, v, 0.7),
    "difference": lambda s, q, v, a, tau, w: mb.difference(s, q, mb.integrate(s, q, v, 0.7)),
    "momentum": lambda s, q, v, a, tau, w: mb.momentum(s, q, v),
    "minv_product": lambda s, q, v, a, tau, w: mb.minv_product(s, q, tau),
    "log_det_mass": lambda s, q, v, a, tau, w: mb.log_det_mass(s, q),
    "coriolis_matrix": lambda s, q, v, a, tau, w: mb.coriolis_matrix(s, q, v),
    "jacobian": lambda s, q, v, a, tau, w: mb.jacobian(s, q, "tool"),
}
ALL = tuple(FUNCTIONS)
MAIN = ALL[:6]
FEW = ("forward_dynamics", "kinematics", "energy")
DYNAMICS = ALL[:1]


def contract(result):
    """One number from a result: its product with fixed random weights."""
    rng = np.random.default_rng(0)
    leaves = jax.tree.leaves(result)
    return sum(jnp.sum(leaf * rng.normal(size=leaf.shape).astype(leaf.dtype)) for leaf in leaves)


def scalars(names):
    """(system, q, v, a, tau, wrenches) -> one number a function."""
    return lambda *args: jnp.stack([contract(FUNCTIONS[name](*args)) for name in names])


@functools.cache
def values_and_gradients(names):
    """Values [states, functions], and every function's gradient in reverse mode, over a batch of states."""

    def one(*args):
        both = [
            jax.value_and_grad(lambda *x, name=name: scalars((name,))(*x)[0], argnums=tuple(range(6)))(*args)
            for name in names
        ]
        return jnp.stack([value for value, _ in both]), [gradient for _, gradient in both]

    return reference.jit_in_haste(jax.vmap(one, in_axes=(None, 0, 0, 0, 0, None)))


@functools.cache
def forward_mode(names):
    """Derivatives in forward mode along given tangents of everything."""

    def one(args, tangents):
        return jax.jvp(scalars(names), args, tangents)[1]

    return reference.jit_in_haste(jax.vmap(one, in_axes=((None, 0, 0, 0, 0, None),) * 2))


@functools.cache
def curvature(names):
    """Gradients of the sum of the values, and their derivative along given tangents: Hessian-vector products."""

    def one(args, tangents):
        gradient = jax.grad(lambda args: jnp.sum(scalars(names)(*args)))
        return jax.jvp(gradient, (args,), (tangents,))

    return reference.jit_in_haste(one)


def point(name, seed=0, count=8):
    """(system, q, v, a, tau, wrenches) at random states, as many as there are singular ones: one shape, one program."""
    system, (q, *others) = rs.built(SYSTEMS[name]()), rs.states(SYSTEMS[name](), seed, count)
    return (system, off_half_turns(system, q), *others, rs.wrenches_of(rs.wrench_numbers(1)))


def off_half_turns(system, q):
    """Coordinates moved away from half a turn from the rest of a ball spring, where its deflection jumps."""
    q, layout = np.array(q), system.topology.layout
    for at, full in zip(layout.group.turn_q, layout.full_group.turn_q, strict=True):
        rest = np.asarray(system.rest)[full] / np.linalg.norm(np.asarray(system.rest)[full])
        near = np.abs(q[:, at] @ rest) < 0.02 * np.linalg.norm(q[:, at], axis=1)
        q[np.ix_(near, at)] += rest
    return q


def tangents(args, seed=1):
    """A random direction for every leaf, none for limits at infinity."""
    rng = np.random.default_rng(seed)

    def draw(x):
        return np.where(np.isfinite(x), rng.normal(size=np.shape(x)), 0.0).astype(x.dtype)

    return jax.tree.map(draw, args)


def moved(args, direction, step):
    return jax.tree.map(lambda x, d: x + np.asarray(step, x.dtype) * d, args, direction)


def named_leaves(args):
    """Every leaf by a readable name."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(args)}


def along(gradients, direction):
    """Derivatives [states, functions] along a direction: gradients contracted with it, state by state."""

    def one(gradient):
        total = 0.0
        for (path, g), d in zip(jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(direction), strict=True):
            own = path[0].idx in (1, 2, 3, 4)  # states have their own direction; system and wrenches are shared
            axes = "abcdef"[: g.ndim - 1]
            total = total + np.einsum(f"n{axes},{'n' if own else ''}{axes}->n", g, d)
        return total

    return np.stack([one(gradient) for gradient in gradients], axis=1)


def check_against_differences(name, names, args):
    """Reverse mode against central differences, one leaf after another."""
    values, gradients = values_and_gradients(names)(*args)
    leaves, structure = jax.tree.flatten(args)
    directions = jax.tree.leaves(tangents(args))
    for i, (leaf_name, leaf) in enumerate(named_leaves(args).items()):
        if not np.any(directions[i]):
            continue
        zero = [np.zeros_like(leaf) for leaf in leaves]
        direction = jax.tree.unflatten(structure, [*zero[:i], directions[i], *zero[i + 1 :]])
        samples = [values_and_gradients(names)(*moved(args, direction, step))[0] for step in POINTS]
        expected = np.tensordot(WEIGHTS, np.stack(samples), axes=1)
        scale = np.maximum(np.abs(values), np.abs(expected)).max(axis=0) + 1.0
        error = np.abs(along(gradients, direction) - expected) / scale[None, :]
        worst = dict(zip(names, error.max(axis=0), strict=True))
        assert max(worst.values()) < DIFFERENCES, (leaf_name, worst)


def check_modes_agree(name, names, args):
    """Forward mode against reverse mode along one direction through everything."""
    values, gradients = values_and_gradients(names)(*args)
    direction = tangents(args, seed=2)
    expected = along(gradients, direction)
    scale = np.abs(expected).max(axis=0) + 1.0
    ours = np.asarray(forward_mode(names)(args, direction))
    np.testing.assert_allclose(ours / scale, expected / scale, rtol=0, atol=1e-10)


def check_hessian_vector_products(name, names, args):
    """Forward over reverse against central differences of gradients, and the symmetry of second derivatives."""
    args = (args[0], *(x[0] for x in args[1:5]), args[5])
    one, two = tangents(args, seed=3), tangents(args, seed=4)
    product = curvature(names)(args, one)[1]
    samples = [curvature(names)(moved(args, one, step), one)[0] for step in POINTS]
    for path, ours in jax.tree_util.tree_leaves_with_path(product):
        theirs = [dict(jax.tree_util.tree_leaves_with_path(sample))[path] for sample in samples]
        expected = np.tensordot(WEIGHTS, np.stack(theirs), axes=1)
        scale = max(1.0, np.abs(np.stack(theirs)).max(initial=0.0), np.abs(expected).max(initial=0.0))
        assert np.abs(ours - expected).max(initial=0.0) < DIFFERENCES * scale, jax.tree_util.keystr(path)
    crossed = curvature(names)(args, two)[1]
    pairs = [
        sum(np.sum(x * y) for x, y in zip(jax.tree.leaves(p), jax.tree.leaves(d), strict=True))
        for p, d in ((product, two), (crossed, one))
    ]
    np.testing.assert_allclose(*pairs, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------------------------- value, first and second

QUICK = [("tumbler", DYNAMICS)]
BOTH = [("arm", ALL), ("tumbler", ALL)]
THOROUGH = [*BOTH, ("floater", FEW), ("menagerie", DYNAMICS)]


def over(quick, slow=THOROUGH):
    """Cases by the name of the system and the number of functions."""
    marks = [(case, ()) for case in quick] + [(case, pytest.mark.slow) for case in slow]
    return pytest.mark.parametrize(
        ("name", "names"), [pytest.param(*case, id=f"{case[0]}-{len(case[1])}", marks=mark) for case, mark in marks]
    )


@over(QUICK)
def test_reverse_mode_against_central_differences(name, names):
    check_against_differences(name, names, point(name))


@over([], BOTH)
def test_forward_mode_equals_reverse_mode(name, names):
    check_modes_agree(name, names, point(name))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "names"), [("arm", MAIN), ("tumbler", MAIN)])
def test_hessian_vector_products(name, names):
    check_hessian_vector_products(name, names, point(name))


# ------------------------------------------------------------------------------------------ against the reference


@over([], BOTH)
def test_gradients_by_path_equal_those_of_the_reference(name, names):
    """Every number of the system, read from the gradient by its path; and q, v, tau along the tangent."""
    spec, numbers = SYSTEMS[name](), rs.wrench_numbers(1)
    args = point(name)
    q, v, a, tau = (x[0] for x in args[1:5])
    first = values_and_gradients(names)(*args)[1][0]  # of forward_dynamics
    ours = jax.tree.map(lambda g: np.asarray(g)[0], first)
    acting = [(frame, *x, axes) for (frame, axes), x in zip(rs.AXES, numbers, strict=True)]

    def scalar(n, q, v, tau):
        k = reference.motion(spec, n, q, v, jnp.zeros(v.shape))
        return contract(reference.forward_dynamics(spec, n, k, tau, acting))

    gradient = reference.jit_in_haste(jax.grad(scalar, argnums=(0, 1, 2, 3)))
    by_path, d_q, d_v, d_tau = jax.tree.map(np.asarray, gradient(reference.numbers(spec), q, v, tau))
    scale = max(np.abs(x).max() for x in by_path.values())
    for path, expected in by_path.items():
        if path.endswith("rotor_momentum") and not args[0].topology.gyrostatic:
            continue  # a system without rotors leaves them out of its program
        np.testing.assert_allclose(ours[0].get(path), expected, rtol=1e-9, atol=1e-12 * scale, err_msg=path)
    N = np.asarray(jax.vmap(lambda v: reference.q_dot(spec, q, v), out_axes=1)(np.eye(len(v))))
    np.testing.assert_allclose(N.T @ ours[1], N.T @ d_q, rtol=0, atol=1e-11 * (np.abs(d_q).max() + 1.0))
    np.testing.assert_allclose(ours[2], d_v, rtol=0, atol=1e-11 * (np.abs(d_v).max() + 1.0))
    np.testing.assert_allclose(ours[4], d_tau, rtol=0, atol=1e-11 * (np.abs(d_tau).max() + 1.0))


# ------------------------------------------------------------------------------------------------ singular states


def singular_point(name, dtype):
    """Everything at the singular states, and their names."""
    spec = SYSTEMS[name]()
    awkward = rs.singular_states(spec)
    q, v = (np.stack(x) for x in zip(*awkward.values(), strict=True))
    numbers = rs.wrench_numbers(1)
    args = (rs.built(spec), q, v, np.zeros_like(v), np.zeros_like(v), rs.wrenches_of(numbers))
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), args), list(awkward)


def check_finite(results, states):
    for path, leaf in jax.tree_util.tree_leaves_with_path(results):
        finite = np.isfinite(np.asarray(leaf)).reshape(len(states), -1).all(axis=1)
        assert finite.all(), (jax.tree_util.keystr(path), [s for s, ok in zip(states, finite, strict=True) if not ok])


@over(QUICK)
def test_derivatives_are_finite_at_singular_states(name, names):
    args, states = singular_point(name, jnp.float64)
    check_finite(values_and_gradients(names)(*args), states)


@over([], BOTH[1:])
def test_derivatives_are_finite_at_singular_states_in_float32(name, names):
    args, states = singular_point(name, jnp.float32)
    values, gradients = values_and_gradients(names)(*args)
    assert {leaf.dtype for leaf in jax.tree.leaves((values, gradients))} == {jnp.dtype(jnp.float32)}
    check_finite((values, gradients), states)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("arm", jnp.float64), ("tumbler", jnp.float64), ("tumbler", jnp.float32)],
    ids=["arm-float64", "tumbler-float64", "tumbler-float32"],
)
def test_forward_mode_is_finite_at_singular_states(name, dtype):
    args, states = singular_point(name, dtype)
    check_finite(forward_mode(ALL)(args, tangents(args)), states)


@over(QUICK)
def test_derivatives_are_right_at_singular_states(name, names):
    """Finite is not enough: where the functions are smooth their derivatives there are those of the neighbourhood."""
    args, _ = singular_point(name, jnp.float64)
    args = (args[0], off_half_turns(args[0], args[1]), *args[2:])
    values, gradients = values_and_gradients(names)(*args)
    direction = tangents(args, seed=5)
    samples = [values_and_gradients(names)(*moved(args, direction, 0.1 * step))[0] for step in POINTS]
    expected = np.tensordot(10.0 * WEIGHTS, np.stack(samples), axes=1)
    scale = np.maximum(np.abs(values), np.abs(expected)).max(axis=0) + 1.0
    error = np.abs(along(gradients, direction) - expected) / scale[None, :]
    assert error.max() < DIFFERENCES, dict(zip(names, error.T.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("arm", jnp.float64), ("tumbler", jnp.float64), ("arm", jnp.float32)],
    ids=["arm-float64", "tumbler-float64", "arm-float32"],
)
def test_second_derivatives_are_finite_at_singular_states(name, dtype):
    args, states = singular_point(name, dtype)
    for i, state in enumerate(states):
        own = (args[0], *(x[i] for x in args[1:5]), args[5])
        check_finite(jax.tree.map(lambda x: x[None], curvature(MAIN)(own, tangents(own))), [state])
