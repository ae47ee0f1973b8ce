"""Single precision: how many digits the dynamics keep, and how errors grow along a chain.

eps = 2^-23 = 1.2e-7. A result of a backward stable recursion over n bodies errs by about c n eps of its largest entry,
and a solution of M a = f by eps times the condition of M; the bounds below are of this form, ten times what is seen.
`error_table` and `chain_table` return the numbers, `print_table` shows them: run this file as a program.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_tree import equations

import jaxmbd as mb
from jaxmbd import models

ROBOTS = Path(__file__).parent / "data" / "robots"
EPS = {"float32": float(np.finfo(np.float32).eps), "float64": float(np.finfo(np.float64).eps)}
COUNT = 8

SYSTEMS = {
    "arm": lambda: mb.load(ROBOTS / "iiwa14.urdf"),
    "humanoid": lambda: mb.load(ROBOTS / "g1_29dof.urdf", floating=True),
}
QUANTITIES = ("inverse_dynamics", "mass_matrix", "position", "rotation", "velocity", "acceleration", "forward_dynamics")


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0))
def results(system, q, v, a):
    """Forward dynamics starts from the forces of the given accelerations, which it should find again."""
    tau = mb.inverse_dynamics(system, q, v, a)
    k = mb.kinematics(system, q, v, a)
    found = (mb.mass_matrix(system, q), k.position, k.rotation, k.velocity, k.acceleration)
    return dict(zip(QUANTITIES, (tau, *found, mb.forward_dynamics(system, q, v, tau)), strict=True))


@functools.cache
def both(name):
    """Results in float32 and float64 from the same numbers: those of float32."""
    system = SYSTEMS[name]().astype(jnp.float32)
    keys = jax.random.split(jax.random.key(0), COUNT)
    q, v = jax.vmap(mb.random_state, in_axes=(None, 0))(system, keys)
    a = jax.random.normal(jax.random.key(1), v.shape, jnp.float32)
    single = results(system, q, v, a)
    double = results(*(x.astype(jnp.float64) for x in (system, q, v, a)))
    return single, double


def error_table(name):
    """Relative error of each quantity, the largest difference over the largest entry; and the condition of M."""
    single, double = both(name)
    errors = {
        key: float(np.abs(np.asarray(single[key], float) - double[key]).max() / np.abs(double[key]).max())
        for key in QUANTITIES
    }
    return errors | {"condition of M": float(np.linalg.cond(double["mass_matrix"]).max())}


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_results_are_float32(name):
    """Nothing turns into float64 on the way, though 64-bit types are on."""
    single, double = both(name)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(single)} == {"float32"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(double)} == {"float64"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_errors_of_the_dynamics(name):
    """c n eps for recursions over n velocities; eps times the condition of M for forward dynamics."""
    table = error_table(name)
    n = SYSTEMS[name]().nv
    for key in QUANTITIES[:-1]:
        assert table[key] < 2 * n * EPS["float32"], (key, table[key])
    assert table["forward_dynamics"] < min(1e-2, EPS["float32"] * table["condition of M"]), table


def test_no_float64_inside():
    """No equation of a float32 simulation computes with 64-bit floats; constants may be cast or selected."""
    system = models.pendulum_chain([1.0] * 3, [0.5] * 3, [0.1] * 3).astype(jnp.float32)
    q = jnp.full(3, 0.3, jnp.float32)
    idle = {"convert_element_type", "broadcast_in_dim", "select_n"}
    for stepper in (mb.SemiImplicitEuler(), mb.RungeKuttaMuntheKaas4()):
        run = functools.partial(mb.simulate, system, duration=0.1, dt=0.01, stepper=stepper)
        program = list(equations(jax.make_jaxpr(run)(q).jaxpr))
        assert len(program) > 500
        for eqn, _ in program:
            if eqn.primitive.name not in idle:
                assert not any(getattr(v.aval, "dtype", None) == jnp.float64 for v in (*eqn.invars, *eqn.outvars)), eqn


# ------------------------------------------------------------------------------ relative and global description (S1-29)

LENGTHS = (10, 100, 1000)
LINK = 0.5  # [m], exact in binary


def angles():
    """Joint angles of a chain that wanders, exact in float32, in float64."""
    return np.random.default_rng(0).uniform(-1, 1, LENGTHS[-1]).astype(np.float32).astype(float)


def exact_poses(q):
    """Poses of all links in extended precision, by products of matrices and nothing of the library."""
    R, p, rotations, positions = np.eye(3, dtype=np.longdouble), np.zeros(3, np.longdouble), [], []
    for i, angle in enumerate(q.astype(np.longdouble)):
        c, s = np.cos(angle), np.sin(angle)
        turn = [[c, 0, s], [0, 1, 0], [-s, 0, c]] if i % 2 == 0 else [[1, 0, 0], [0, c, -s], [0, s, c]]
        R = R @ np.array(turn, np.longdouble)
        rotations.append(R)
        positions.append(p)
        p = p + LINK * R[:, 2]
    return np.array(rotations), np.array(positions)


def relative_angles(rotations):
    """Joint angles back from global orientations, each from a pair of neighbours."""
    inner = np.concatenate([np.eye(3, dtype=rotations.dtype)[None], rotations[:-1]])
    between = np.einsum("nji,njk->nik", inner, rotations)
    about_y, about_x = (np.arctan2(between[:, 0, 2], between[:, 0, 0]), np.arctan2(between[:, 2, 1], between[:, 1, 1]))
    return np.where(np.arange(len(rotations)) % 2 == 0, about_y, about_x)


@functools.cache
def longest_chain():
    return models.chain(LENGTHS[-1], LINK)


def chain_poses(dtype):
    """Poses of the links of the longest chain; the first n links of it are a chain of n."""
    system = longest_chain().astype(dtype)
    k = mb.kinematics(system, jnp.asarray(angles(), dtype))
    assert k.rotation.dtype == dtype
    return np.asarray(k.rotation)[: LENGTHS[-1]], np.asarray(k.position)[: LENGTHS[-1]]


@functools.cache
def chain_table(dtype):
    """Largest errors up to a chain length: orientation [rad], position [m], and angles after a round trip [rad]."""
    q = angles()
    R_exact, p_exact = exact_poses(q)
    R, p = chain_poses(dtype)
    back = np.abs(relative_angles(R) - q)
    turned = np.sqrt(np.sum((R - R_exact) ** 2, (1, 2)).astype(float) / 2)
    moved = np.sqrt(np.sum((p - p_exact) ** 2, 1)).astype(float)
    largest = np.maximum.accumulate
    return {
        n: {"orientation": float(largest(turned)[n - 1]), "position": float(largest(moved)[n - 1])}
        | {"round trip": float(back[:n].max())}
        for n in LENGTHS
    }


@pytest.mark.contract("S1-29")
@pytest.mark.parametrize("dtype", EPS)
def test_errors_along_a_chain(dtype):
    """What Slaats (1991, chapter 5) presumes of relative coordinates, in numbers.

    Every joint turns the frame by a rotation that is wrong by about eps, and the errors add like a random walk: some
    sqrt(n) eps in orientation; position collects lever times orientation error, LINK n times that. The way back from
    global poses to joint angles takes neighbours only, so that a common error cancels, but not the orthogonality that n
    products have lost: sqrt(n) eps again.
    """
    table, eps = chain_table(dtype), EPS[dtype]
    for n, row in table.items():
        assert row["orientation"] < 2 * n**0.5 * eps, (n, row)
        assert row["position"] < LINK * n**1.5 * eps, (n, row)
        assert row["round trip"] < 2 * n**0.5 * eps, (n, row)
    assert table[1000]["orientation"] > table[10]["orientation"]  # accumulation is real, though slow
    assert table[1000]["orientation"] < 100 * table[10]["orientation"]


@pytest.mark.contract("S1-29")
def test_round_trip_keeps_the_digits_of_the_precision():
    """Five digits of every angle in float32 and fourteen in float64 survive the global description of 1000 bodies."""
    for dtype, digits in (("float32", 5), ("float64", 14)):
        assert chain_table(dtype)[1000]["round trip"] < 10.0**-digits


def print_table(table, title):
    """A table {row: {column: number}} as Markdown."""
    columns = list(next(iter(table.values())))
    print(f"\n| {title} | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|")
    for row, values in table.items():
        print(f"| {row} | " + " | ".join(f"{values[c]:.1e}" for c in columns) + " |")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print_table({name: error_table(name) for name in SYSTEMS}, "float32, relative error")
    for precision in EPS:
        print_table(chain_table(precision), f"{precision}, bodies")
