"""Topological order of a tree and the two sweeps over it, the only places where the library walks from body to body.

The elements of a tree (one per velocity) are numbered depth first. A sweep is one `lax.scan` whose carry is the element
just visited and a few registers: an element that has several children is kept in a register until its last child has
read it. Children are visited by growing need (Sethi & Ullman 1970), so that K <= log2(elements + 1) - 1 registers do:
none for a chain, one for a quadruped. An inward sweep is the exact transpose: what a child hands to its parent travels
by the same routes, and sums meet at the parent. Each register is a choice over all that a sweep carries, which costs
time to compile; bushes that would need more than `MOST_REGISTERS` keep their elements in the rows of arrays instead
(`rows.py`).

Cost: O(elements) time and memory in either direction, and in the derivative of either; no gather, no scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmbd.rows import put_row, take_row

BASE = -1
MOST_REGISTERS = 1  # beyond, rows compile in half the time and run faster; with one register they run a tenth slower


def check_parents(parents: Sequence[int]) -> None:
    """Raise unless every element's parent is the base (-1) or an element of lower number (Slaats 1991, Eq. 3.2)."""
    for i, p in enumerate(parents):
        if not BASE <= p < i:
            raise ValueError(
                f"Body {i} has parent {p}; expected the base ({BASE}) or a body of lower number (0 to {i - 1}). "
                "Number the bodies from the base outwards."
            )


def body_connection(beta: Sequence[int]) -> tuple[int, ...]:
    """Parents (base -1) from a body connection array with bodies 1..n and inertial space 0 (Slaats 1991, Eq. 3.1)."""
    parents = tuple(int(b) - 1 for b in beta)
    check_parents(parents)
    return parents


def children(parents: Sequence[int]) -> list[list[int]]:
    """Children of every element, in ascending order."""
    result: list[list[int]] = [[] for _ in parents]
    for i, p in enumerate(parents):
        if p != BASE:
            result[p].append(i)
    return result


def levels(parents: Sequence[int]) -> list[int]:
    """Number of joints between each element and the base."""
    check_parents(parents)
    depth: list[int] = []
    for p in parents:
        depth.append(1 if p == BASE else depth[p] + 1)
    return depth


def ancestors(parents: Sequence[int]) -> np.ndarray:
    """Boolean [n, n]: entry (i, j) tells whether i lies on the path from the base to j, j included."""
    check_parents(parents)
    path = np.eye(len(parents), dtype=bool)
    for j, p in enumerate(parents):
        if p != BASE:
            path[:, j] |= path[:, p]
    return path


def branches(parents: Sequence[int]) -> list[list[int]]:
    """Maximal unbranched runs: each starts at a child of the base or of an element with several children."""
    kids = children(parents)
    runs = []
    for i, p in enumerate(parents):
        if p == BASE or len(kids[p]) > 1:
            run = [i]
            while len(kids[run[-1]]) == 1:
                run.append(kids[run[-1]][0])
            runs.append(run)
    return runs


def _needs(kids: list[list[int]]) -> list[int]:
    """Registers that each element's subtree needs, when its neediest child is visited last."""
    need = [0] * len(kids)
    for i in reversed(range(len(kids))):
        below = sorted(need[c] for c in kids[i])
        if below:
            need[i] = max([below[-1], *(1 + n for n in below[:-1])])
    return need


def depth_first_order(parents: Sequence[int]) -> list[int]:
    """The elements in the order of a sweep: a parent before its children, the neediest child last."""
    check_parents(parents)
    kids = children(parents)
    need = _needs(kids)
    order: list[int] = []
    stack = [i for i in reversed(range(len(parents))) if parents[i] == BASE]
    while stack:
        i = stack.pop()
        order.append(i)
        stack.extend(sorted(kids[i], key=lambda c: (need[c], c), reverse=True))
    return order


@jax.tree_util.register_static
@dataclass(frozen=True)
class Tree:
    """Static schedule of a sweep over depth-first numbered elements.

    `read[i]` is where element i finds its parent: 0 the element before it, r > 0 register r, -1 the base.
    `write[i]` is the register in which element i is kept for later children, 0 for none.
    """

    parents: tuple[int, ...]
    read: tuple[int, ...]
    write: tuple[int, ...]
    registers: int

    @staticmethod
    def from_parents(parents: Sequence[int]) -> Tree:
        """Schedule for elements numbered as `depth_first_order` numbers them."""
        check_parents(parents)
        kids = children(parents)
        read, write, free, used = [], [0] * len(parents), [], 0
        for i, p in enumerate(parents):
            if p == BASE:
                read.append(BASE)
            elif p == i - 1:
                read.append(0)
            elif write[p]:
                read.append(write[p])
                if kids[p][-1] == i:
                    free.append(write[p])
            else:
                raise ValueError(f"Elements are not numbered depth first: {p}, the parent of {i}, is out of reach.")
            if len(kids[i]) > 1:
                if not free:
                    used += 1
                    free.append(used)
                write[i] = free.pop()
        return Tree(tuple(parents), tuple(read), tuple(write), used)

    @property
    def size(self) -> int:
        return len(self.parents)

    def schedule(self) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """For every register, which elements read it and which write it."""
        registers = range(1, self.registers + 1)
        return tuple(np.equal(self.read, r) for r in registers), tuple(np.equal(self.write, r) for r in registers)


def scan_outward(tree: Tree, step: Callable, base: Any, xs: Any) -> Any:
    """Base to tips: `state, y = step(state of the parent, x)` for every element; returns the stacked ys.

    Args:
      step: a pure function of scalars, written for one element.
      base: state of the base, the parent of the roots.
      xs: pytree of arrays [elements, ...] in sweep order.
    """
    if not tree.size:
        return _no_elements(step, base, xs)
    base = _typed(base, xs)
    several_roots = tree.read.count(BASE) > 1
    if tree.registers > MOST_REGISTERS:
        return _outward_by_rows(tree, step, base, xs)

    def visit(carry, scheduled):
        parent, registers = carry
        (reads, writes, root), x = scheduled
        for read, register in zip(reads, registers, strict=True):
            parent = _where(read, register, parent)
        if several_roots:
            parent = _where(root, base, parent)
        state, y = step(parent, x)
        registers = tuple(_where(write, state, register) for write, register in zip(writes, registers, strict=True))
        return (state, registers), y

    reads, writes = tree.schedule()
    roots = np.equal(tree.read, BASE) if several_roots else None
    start = (base, (base,) * tree.registers)
    return _scan(visit, start, ((reads, writes, roots), xs))


def scan_inward(tree: Tree, step: Callable, zero: Any, xs: Any) -> Any:
    """Tips to base: `contribution, y = step(sum over the children, x)` for every element; returns the stacked ys.

    Args:
      step: a pure function of scalars, written for one element; its contribution goes to the parent.
      zero: the sum of no contributions; addition is leaf by leaf.
      xs: pytree of arrays [elements, ...] in sweep order.
    """
    if not tree.size:
        return _no_elements(step, zero, xs)
    zero = _typed(zero, xs)
    unbranched = tree.registers == 0 and tree.read.count(BASE) == 1
    if tree.registers > MOST_REGISTERS:
        return _inward_by_rows(tree, step, zero, xs)

    def visit(carry, scheduled):
        total, registers = carry
        (reads, writes, hands_on), x = scheduled
        for write, register in zip(writes, registers, strict=True):
            total = _add(total, _where(write, register, zero))
        registers = tuple(_where(write, zero, register) for write, register in zip(writes, registers, strict=True))
        contribution, y = step(total, x)
        registers = tuple(
            _add(register, _where(read, contribution, zero)) for read, register in zip(reads, registers, strict=True)
        )
        handed_on = contribution if unbranched else _where(hands_on, contribution, zero)
        return (handed_on, registers), y

    reads, writes = tree.schedule()
    hands_on = None if unbranched else np.equal(tree.read, 0)
    start = (zero, (zero,) * tree.registers)
    return _scan(visit, start, ((reads, writes, hands_on), xs), reverse=True)


def each(f: Callable, *xs: Any) -> Any:
    """f(x) of every element by itself; returns the stacked results.

    On a CPU a scan, like the sweeps: so the batch of a `vmap` stays where they want it, last, and the arithmetic of an
    element is vectorised over it. A loop of one round would not survive the compiler.
    """
    if packs() or len(jax.tree.leaves(xs)[0]) == 1:
        return jax.vmap(f)(*xs)
    return lax.scan(lambda _, x: (None, f(*x)), None, xs)[1]


def rows_of(parents: Sequence[int]) -> tuple[np.ndarray, int]:
    """The row of an array in which each element is kept until its last child is visited, and the number of rows.

    Elements are numbered depth first. The base has the first row; a last child takes over its parent's.
    """
    last = {p: i for i, p in enumerate(parents)}
    rows, free, used = np.zeros(len(parents) + 1, np.int32), [], 1  # the base comes last, so that -1 finds it
    for i, p in enumerate(parents):
        if last[p] == i:
            free.append(int(rows[p]))
        if not free:
            free.append(used)
            used += 1
        rows[i] = free.pop()
        if i not in last:
            free.append(int(rows[i]))
    return rows, used


def _outward_by_rows(tree, step, base, xs):
    rows, count = rows_of(tree.parents)

    def visit(kept, scheduled):
        (above, own), x = scheduled
        state, y = step(_row(kept, above), x)
        return _with_row(kept, own, state), y

    start = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), base)
    return _scan(visit, start, ((rows[list(tree.parents)], rows[:-1]), xs))


def _inward_by_rows(tree, step, zero, xs):
    rows, count = rows_of(tree.parents)
    last = {p: i for i, p in enumerate(tree.parents)}
    leaf = np.array([i not in last for i in range(tree.size)])
    first_to_add = np.array([last[p] == i for i, p in enumerate(tree.parents)])  # children are visited backwards

    def visit(sums, scheduled):
        (above, own, leaf, first_to_add), x = scheduled
        contribution, y = step(_where(leaf, zero, _row(sums, own)), x)
        total = _where(first_to_add, contribution, _add(_row(sums, above), contribution))
        return _with_row(sums, above, total), y

    start = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), zero)
    schedule = rows[list(tree.parents)], rows[:-1], leaf, first_to_add
    return _scan(visit, start, (schedule, xs), reverse=True)


def _row(rows, i):
    return jax.tree.map(lambda x: take_row(x, i), rows)


def _with_row(rows, i, row):
    return jax.tree.map(lambda x, new: put_row(x, new, i), rows, row)


def packs() -> bool:
    """Whether carry and outputs of a sweep are one array each: a step then launches a quarter of the kernels.

    For GPUs and TPUs; on a CPU the sweep would be several times slower.
    """
    return jax.default_backend() != "cpu"


def together(record: Any) -> tuple[Any, Callable]:
    """What a linear sweep reads of all elements, and how a step takes its element apart.

    One array where sweeps are packed: so are then its cotangents, in reverse mode.
    """
    if not packs() or not jax.tree.leaves(record):
        return record, lambda x: x
    return _packed(record), lambda x: _unpacked(x, record)


def _scan(visit, start, xs, reverse=False):
    """`lax.scan` without the last carry.

    Reverse mode works a step out once more (`checkpoint`, with all that chooses by the schedule) and stores its inputs
    alone. NumPy's arrays among them JAX would copy in a loop of its own; so the program gets a value of its own.
    """
    visit = jax.checkpoint(visit, prevent_cse=False)
    xs = jax.tree.map(lambda x: lax.max(x, x) if isinstance(x, np.ndarray) else x, xs)
    if not packs():
        return lax.scan(visit, start, xs, reverse=reverse)[1]
    first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
    y = jax.eval_shape(visit, start, first)[1]

    def packed(carry, x):
        carry, y = visit(_unpacked(carry, start), x)
        return _packed(carry), _packed(y)

    return _unpacked(lax.scan(packed, _packed(start), xs, reverse=reverse)[1], y)


def _packed(record):
    """Arrays of one type and shape as one array [..., numbers]."""
    leaves = jax.tree.leaves(record)
    return jnp.stack(leaves, axis=-1) if leaves else jnp.zeros(0)


def _unpacked(array, like):
    """The reverse."""
    return jax.tree.unflatten(jax.tree.structure(like), [array[..., i] for i in range(array.shape[-1])])


def _no_elements(step, carry, xs):
    """The empty stack of outputs of a tree without elements."""
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
    y = jax.eval_shape(step, carry, one)[1]
    return jax.tree.map(lambda leaf: jnp.zeros((0, *leaf.shape), leaf.dtype), y)


def _typed(state, xs):
    """Python numbers of an initial state as arrays of the data's floating-point type."""
    dtype = jnp.result_type(*(x for x in jax.tree.leaves(xs) if jnp.issubdtype(x.dtype, jnp.floating)))
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), state)


def _where(condition, a, b):
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def _add(a, b):
    return jax.tree.map(jnp.add, a, b)
