"""The two sweeps against a walk over the tree in plain Python, their registers, and what they cost.

Sums of small integers are exact in floating point, so the sweeps must equal the walks to the last bit.
"""

import math
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend import core

import jaxmbd as mb
from jaxmbd import models
from jaxmbd import tree as tree_module
from jaxmbd.tree import BASE, Tree, children, depth_first_order, scan_inward, scan_outward

STAR, CHAIN = [BASE, *[0] * 6], list(range(-1, 9))
FOREST = [BASE, BASE, 1, 1, BASE, 4, 3, 3, 2, BASE]
BINARY = [(i - 1) // 2 if i else BASE for i in range(15)]
COMB = [BASE, 0, 0, 2, 2, 4, 4, 6, 6, 8]  # a spine with a tooth on every element
BUSH = [(i - 1) // 2 if i else BASE for i in range(31)]
SHAPES = {"star": STAR, "chain": CHAIN, "forest": FOREST, "binary": BINARY, "comb": COMB, "single": [BASE]}
# More registers than there are, and a forest of two such bushes.
SHAPES |= {"bush": BUSH, "bushes": [*BUSH, *(BASE if p == BASE else p + len(BUSH) for p in BUSH)]}


@st.composite
def parent_lists(draw, largest=40):
    """Parents of a random tree or forest: some draws take recent parents (long branches), some any (bushes)."""
    n, reach = draw(st.integers(1, largest)), draw(st.sampled_from([1, 3, largest]))
    return [BASE if i == 0 else draw(st.integers(max(BASE, i - reach), i - 1)) for i in range(n)]


def scheduled(parents):
    """The tree in sweep order, with the old number of every element."""
    order = depth_first_order(parents)
    place = {old: new for new, old in enumerate(order)} | {BASE: BASE}
    return Tree.from_parents([place[parents[old]] for old in order]), order


def outward(parents, x):
    """state = 2 parent - x mod 64 and a count of ancestors: what an element has and tells its children."""

    def step(parent, x):
        value, depth = parent
        state = (jnp.mod(2.0 * value - x, 64.0), depth + 1.0)
        return state, (*state, value)

    tree, order = scheduled(parents)
    ours = scan_outward(tree, step, (7.0, 0.0), jnp.asarray(x)[jnp.array(order)])
    walked, states = [None] * len(parents), {BASE: (7.0, 0.0)}
    for i in range(len(parents)):  # parents come first in the list
        value, depth = states[parents[i]]
        states[i] = ((2.0 * value - x[i]) % 64.0, depth + 1.0)
        walked[i] = (*states[i], value)
    return ours, [walked[i] for i in order]


def inward(parents, x):
    """contribution = 2 total + x mod 64 and a count of elements: sums over children, in any order."""

    def step(total, x):
        value, count = total
        handed = (jnp.mod(2.0 * value + x, 64.0), count + 1.0)
        return handed, (*handed, value)

    tree, order = scheduled(parents)
    ours = scan_inward(tree, step, (0.0, 0.0), jnp.asarray(x)[jnp.array(order)])
    walked, handed, kids = [None] * len(parents), {}, children(parents)
    for i in reversed(range(len(parents))):
        value, count = (sum(handed[c][k] for c in kids[i]) for k in (0, 1))
        handed[i] = ((2.0 * value + x[i]) % 64.0, count + 1.0)
        walked[i] = (*handed[i], value)
    return ours, [walked[i] for i in order]


def equal(ours, walked):
    np.testing.assert_array_equal(np.stack([np.asarray(leaf) for leaf in ours], 1), np.array(walked, float))


def numbers(n):
    return (np.arange(n) * 37 % 23).astype(float)


@pytest.mark.parametrize("sweep", [outward, inward])
@pytest.mark.parametrize("shape", SHAPES)
def test_sweeps_equal_a_walk(sweep, shape):
    equal(*sweep(SHAPES[shape], numbers(len(SHAPES[shape]))))


@contextmanager
def registers_up_to(most):
    """Sweeps that use rows of an array for what needs more registers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_module, "MOST_REGISTERS", most)
        yield


@pytest.mark.parametrize("most", [99, -1], ids=["registers", "rows"])
@settings(max_examples=6, deadline=None, derandomize=True)
@given(parents=parent_lists(24))
def test_sweeps_equal_a_walk_on_random_trees(most, parents):
    with registers_up_to(most):
        for sweep in (outward, inward):
            equal(*sweep(parents, numbers(len(parents))))


@pytest.mark.slow
@pytest.mark.parametrize("most", [99, -1], ids=["registers", "rows"])
@settings(max_examples=50, deadline=None, derandomize=True)
@given(parents=parent_lists(60))
def test_sweeps_equal_a_walk_on_many_random_trees(most, parents):
    with registers_up_to(most):
        for sweep in (outward, inward):
            equal(*sweep(parents, numbers(len(parents))))


@pytest.mark.parametrize("sweep", [scan_outward, scan_inward])
def test_an_empty_tree_has_empty_results(sweep):
    tree = Tree.from_parents([])
    y = sweep(tree, lambda state, x: (state, {"a": x, "b": 2.0 * x[0]}), 0.0, jnp.zeros((0, 3)))
    assert tree.size == 0 and y["a"].shape == (0, 3) and y["b"].shape == (0,)


def test_an_inward_sweep_is_the_transpose_of_an_outward_one():
    """<w, outward x> = <inward w, x> for the linear recursion y = c (y_parent + x)."""
    tree, order = scheduled(FOREST)
    rng = np.random.default_rng(0)
    c, x, w = jnp.array(rng.normal(size=(3, len(order))))

    def out(x):
        def step(above, xs):
            y = xs[0] * (above + xs[1])
            return y, y

        return scan_outward(tree, step, 0.0, (c, x))

    def into(w):
        def step(below, xs):
            z = xs[0] * (below + xs[1])
            return z, z

        return scan_inward(tree, step, 0.0, (c, w))

    y, pull = jax.vjp(out, x)
    np.testing.assert_allclose(pull(w)[0], into(w), rtol=1e-14)
    np.testing.assert_allclose(w @ y, into(w) @ x, rtol=1e-13)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(parent_lists(200))
def test_order_and_registers(parents):
    """Parents precede children, subtrees are contiguous, and K <= log2(n + 1) - 1."""
    tree, order = scheduled(parents)
    n = tree.size
    assert sorted(order) == list(range(n))
    assert all(p < i for i, p in enumerate(tree.parents))
    size = [1] * n
    for i in reversed(range(n)):
        if tree.parents[i] != BASE:
            size[tree.parents[i]] += size[i]
    last = [i + size[i] - 1 for i in range(n)]
    assert all(p == BASE or last[i] <= last[p] for i, p in enumerate(tree.parents))
    assert tree.registers <= math.log2(n + 1) - 1
    assert max((0, *tree.write, *tree.read)) == tree.registers


@settings(max_examples=100, deadline=None, derandomize=True)
@given(parent_lists(60))
def test_every_parent_is_found_where_the_schedule_says(parents):
    """A register keeps an element until its last child has read it: nothing overwrites it before."""
    tree, _ = scheduled(parents)
    held = {BASE: BASE}
    for i, (p, read, write) in enumerate(zip(tree.parents, tree.read, tree.write, strict=True)):
        held[0] = i - 1
        assert held[read] == p
        if write:
            held[write] = i


@pytest.mark.parametrize(
    ("shape", "registers"), [("chain", 0), ("single", 0), ("star", 1), ("comb", 1), ("binary", 3), ("forest", 1)]
)
def test_registers_of_known_shapes(shape, registers):
    assert scheduled(SHAPES[shape])[0].registers == registers


def test_a_quadruped_needs_one_register():
    assert models.quadruped().topology.layout.tree.registers == 1


@pytest.mark.parametrize("parents", [[BASE, 0, 0, 1], [BASE, BASE, 0]])
def test_other_than_depth_first_numbers_are_rejected(parents):
    with pytest.raises(ValueError, match="not numbered depth first: ., the parent of ., is out of reach"):
        Tree.from_parents(parents)


def test_wrong_parents_are_rejected():
    with pytest.raises(ValueError, match=r"Body 1 has parent 2; expected the base \(-1\) or a body of lower number"):
        depth_first_order([BASE, 2, 0])


# ------------------------------------------------------------------------------------------------- cost (S1-22)

FACTORISATIONS = ("cholesky", "lu", "triangular_solve", "eigh", "svd", "qr", "householder_product", "schur")


def equations(jaxpr, times=1):
    """Every equation of a program, inner ones included, with the number of its executions."""
    for eqn in jaxpr.eqns:
        repeat = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        assert eqn.primitive.name not in ("while", "cond")  # whose cost would depend on the data
        inner = [
            x for value in eqn.params.values() for x in jax.tree.leaves(value, is_leaf=_is_program) if _is_program(x)
        ]
        for program in inner:
            yield from equations(program.jaxpr if isinstance(program, core.ClosedJaxpr) else program, repeat)
        if not inner:
            yield eqn, times


def _is_program(x):
    return isinstance(x, core.ClosedJaxpr | core.Jaxpr)


def operations(eqn):
    """Scalar results of one equation; products and sums of a matrix product."""
    size = sum(math.prod(v.aval.shape) for v in eqn.outvars)
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        size *= 2 * math.prod(eqn.invars[0].aval.shape[i] for i in contracted)
    return size


def program(system):
    q, v = system.neutral_q(), jnp.zeros(system.nv)
    return jax.make_jaxpr(mb.forward_dynamics)(system, q, v, v).jaxpr


def cost(system):
    return sum(times * operations(eqn) for eqn, times in equations(program(system)))


@pytest.mark.contract("S1-22")
def test_forward_dynamics_costs_the_same_for_every_body():
    """Operations of the traced program: linear in the bodies of a chain to the last one, and nearly so on a tree."""
    sizes = (8, 32, 128)
    counts = [cost(models.chain(n)) for n in sizes]
    slope = (counts[1] - counts[0]) / (sizes[1] - sizes[0])
    assert counts[2] - counts[1] == slope * (sizes[2] - sizes[1])
    assert abs(counts[0] - 8 * slope) < 0.2 * counts[0]  # little else than the sweeps
    # a balanced tree passes registers along, a few dozen selections each, or keeps what it needs in rows of an array
    small, large = (cost(models.binary_tree(n)) / n for n in (15, 63))
    assert slope < small < large < 1.6 * small


@pytest.mark.contract("S1-22")
def test_forward_dynamics_factorises_no_matrix():
    """Joint-sized inverses only: scalars, one a velocity. No array of the program is n x n, no product runs over n."""
    n = 32
    for eqn, _ in equations(program(models.chain(n))):
        assert eqn.primitive.name not in FACTORISATIONS
        for v in eqn.outvars:
            assert sum(size >= n for size in v.aval.shape) <= 1, eqn
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            assert max(eqn.invars[0].aval.shape[i] for i in contracted) < n, eqn


@pytest.mark.slow
@pytest.mark.contract("S1-22")
def test_the_compiled_program_calls_no_solver():
    """XLA's program for the machine at hand: no library call, no square array of the size of the system."""
    n = 32
    system = models.chain(n)
    q = system.neutral_q()
    text = jax.jit(mb.forward_dynamics).lower(system, q, q, q).compile().as_text()
    assert f"[{n},{n}]" not in text
    assert not any(
        word in text.lower() for word in ("cholesky", "triangular", "lapack", "getrf", "potrf", "custom-call")
    )


def test_a_program_with_a_factorisation_would_be_found_out():
    """The dense route, M by composite bodies and a Cholesky factor, fails both checks."""
    system = models.chain(32)
    q = system.neutral_q()

    def dense(q):
        return jax.scipy.linalg.solve(mb.mass_matrix(system, q), q, assume_a="pos")

    found = list(equations(jax.make_jaxpr(dense)(q).jaxpr))
    assert {"cholesky", "triangular_solve"} <= {eqn.primitive.name for eqn, _ in found}
    assert any(v.aval.shape == (32, 32) for eqn, _ in found for v in eqn.outvars)


@contextmanager
def changed(**names):
    """Sweeps compiled anew, with other names in their module."""
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setattr(tree_module, name, value)
        yield
    jax.clear_caches()


AS_ON_A_GPU = {"packs": lambda: True}  # carry and outputs in one array each
BY_ROWS = {"MOST_REGISTERS": -1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "names"),
    [("arm", AS_ON_A_GPU), ("floater", AS_ON_A_GPU), ("floater", BY_ROWS), ("tumbler", AS_ON_A_GPU | BY_ROWS)],
    ids=["arm packed", "floater packed", "floater by rows", "tumbler packed by rows"],
)
def test_other_sweeps_give_the_same_numbers(name, names):
    """Forward dynamics with its gradient in states and all physical numbers, and kinematics, on trees with branches."""
    spec = getattr(random_systems, name)()
    system, (q, v, a, tau) = random_systems.built(spec), (x[0] for x in random_systems.states(spec, 0, 1))

    def total(system, q, v, tau):
        return jnp.sum(jnp.sin(mb.forward_dynamics(system, q, v, tau)))

    def everything(q, v, a, tau):
        value, gradient = jax.value_and_grad(total, (0, 1, 2, 3))(system, q, v, tau)
        return value, gradient, mb.kinematics(system, q, v, a), mb.inverse_dynamics(system, q, v, a)

    with changed(**names):
        ours = jax.jit(everything)(q, v, a, tau)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(jax.jit(everything)(q, v, a, tau)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)
