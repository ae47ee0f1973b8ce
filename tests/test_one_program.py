"""One executable for all values: new numbers, batches of chosen leaves, saved and edited systems compile nothing.

And none of them is answered with an old number: each result is that of a system built anew with the numbers.
"""

import copy
import functools
import logging
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb


def arm(mass=1.0, length=0.7, damping=0.1, pitch=0.05, ratio=0.5, gravity=-9.81, rest=0.2):
    """A small system with leaves of every sort: links, joints, screws, springs, frames, a coupling."""
    b = mb.Builder(gravity=(0.0, 0.1, gravity))
    b.body("a", mass, (0.0, 0.1, -0.3), np.diag([0.1, 0.1, 0.02]))
    b.body("b", 0.8, (0.0, 0.0, 0.2), np.diag([0.05, 0.04, 0.02]))
    b.body("c", 0.3, inertia=np.diag([0.01, 0.01, 0.02]))
    b.joint("swing", mb.revolute((0.0, 1.0, 0.0)), child="a", damping=damping, stiffness=2.0, rest=rest)
    b.joint("turn", mb.spherical(), "a", "b", mb.Pose((0.0, 0.0, -length)))
    b.joint("thread", mb.screw((0.0, 0.0, 1.0), pitch), "b", "c")
    b.couple("thread", "swing", ratio, 0.1)
    b.frame("tip", "c", mb.Pose((0.0, 0.0, 0.1)))
    return b.build()


PATHS = {
    "mass": "a.mass",
    "length": "turn.in_parent.position",
    "damping": "swing.damping",
    "pitch": "thread.pitch",
    "ratio": "thread.ratio",
    "gravity": "gravity",
    "rest": "swing.rest",
}


def changed(**numbers):
    """The arm with numbers replaced by path."""
    whole = {"length": lambda x: jnp.stack([0.0, 0.0, -x]), "gravity": lambda x: jnp.stack([0.0, 0.1, x])}
    values = {PATHS[k]: whole.get(k, lambda x: x)(jnp.asarray(x)) for k, x in numbers.items()}
    return arm().replace(values)


Q = jnp.array([0.3, 0.8, 0.0, 0.6, 0.0])
V = jnp.array([1.0, -0.5, 0.3, 0.2])
TAU = jnp.array([0.1, 0.2, -0.3, 0.4])


def answer(system, q, v, tau):
    """Dynamics, motion of a frame, and a gradient in every physical number."""
    tip = mb.kinematics(system, q, v)["tip"].position
    gradient = jax.grad(lambda s: jnp.sum(mb.inverse_dynamics(s, q, v, tau) ** 2))(system)
    return mb.forward_dynamics(system, q, v, tau), tip, gradient.link_mass


@functools.cache
def program():
    return jax.jit(answer)


class Compilations(logging.Handler):
    """Names of what JAX compiles while this is entered, also inside of other compiled functions."""

    def __enter__(self):
        self.names = []
        self.context = jax.log_compiles()
        self.context.__enter__()
        logging.getLogger("jax").addHandler(self)
        return self

    def __exit__(self, *error):
        logging.getLogger("jax").removeHandler(self)
        self.context.__exit__(*error)

    def emit(self, record):
        if record.getMessage().startswith("Compiling"):
            self.names.append(record.getMessage()[:80])


def run(system, *state):
    """The answer, which may compile nothing."""
    program()(arm(), Q, V, TAU)
    with Compilations() as compiled:
        result = jax.block_until_ready(program()(system, *(state or (Q, V, TAU))))
    assert not compiled.names
    return result


def assert_equal(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_counter_counts():
    with Compilations() as compiled:
        jax.jit(lambda x: jnp.sin(x) * 1.2345)(1.0).block_until_ready()
    assert compiled.names


@pytest.mark.parametrize("name", PATHS)
def test_a_changed_number_compiles_nothing_and_counts(name):
    """As good as a system built with the number, bit for bit; and not the answer of the old one."""
    value = {"mass": 1.7, "length": 0.4, "damping": 0.9, "pitch": 0.11, "ratio": -1.5, "gravity": -3.7, "rest": -0.6}
    new = {name: value[name]}
    result = run(changed(**new))
    assert_equal(result, run(arm(**new)))
    old = run(arm())
    assert any(np.any(np.asarray(x) != np.asarray(y)) for x, y in zip(result, old, strict=True))


def test_whatever_way_a_system_came_it_runs_in_the_same_program(tmp_path):
    system = changed(mass=1.3)
    expected = run(system)
    mb.save(system, tmp_path / "arm.jaxmbd")
    for same in (
        mb.load(tmp_path / "arm.jaxmbd"),
        pickle.loads(pickle.dumps(system)),
        copy.deepcopy(system),
        jax.tree.map(np.asarray, system),
        jax.jit(lambda s: s)(system),
        mb.scale(system, 1.0, 1.0, 1.0),
    ):
        assert_equal(run(same), expected)
    noted = mb.Builder(gravity=system.gravity)
    noted.note("a line in the report is no part of the program")
    noted.system(system)
    assert_equal(run(noted.build()), expected)


def test_plain_numbers_do_not_make_another_program():
    """Python's numbers are weakly typed in JAX; put into a system they are of its type."""
    run(arm().replace({"a.mass": 2, "gravity": [0, 0, -1], "swing.damping": 0.5}))


def test_an_edit_repeated_with_other_values_compiles_nothing():
    def torque(system, q, v):
        return mb.inverse_dynamics(system, q, v, jnp.zeros_like(v))

    f = jax.jit(torque)
    for angle, load in ((0.1, 1.0), (0.7, 5.0), (-0.4, 2.0)):
        edited = mb.attach(mb.lock(arm(), {"swing": angle}), "load", "tip", load)
        f(edited, Q[1:], V[1:])
    assert f._cache_size() == 1


@pytest.mark.slow
def test_one_program_a_precision():
    """Going to and fro between float32 and float64 compiles each once; results are of the asked type."""
    f = jax.jit(lambda *x: (mb.forward_dynamics(*x), mb.kinematics(*x[:3])["tip"].position))
    single = [x.astype(jnp.float32) for x in (Q, V, TAU)]
    for scale in (1.0, 2.0):
        system = changed(mass=scale)
        wide, narrow = f(system, Q, V, TAU), f(system.astype(jnp.float32), *single)
        assert {x.dtype for x in wide} == {jnp.dtype("float64")} and {x.dtype for x in narrow} == {jnp.dtype("float32")}
        for x, y in zip(wide, narrow, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)  # some 100 operations at 6e-8
    assert f._cache_size() == 2


@pytest.mark.slow
def test_a_batch_of_chosen_numbers_is_one_program_and_copies_nothing_else():
    system = arm()
    paths = ["a.mass", "gravity", "swing.damping"]
    axes = system.axes(paths)
    assert (axes.link_mass, axes.gravity, axes.damping, axes.link_com, axes.ratio) == (0, 0, 0, None, None)

    def variant(mass, gravity, damping):
        return system.replace({"a.mass": mass, "gravity": gravity, "swing.damping": damping})

    def brief(system, q, v, tau):
        return mb.forward_dynamics(system, q, v, tau), mb.energy(system, q, v)

    single, batched = jax.jit(brief), jax.jit(jax.vmap(brief, in_axes=(axes, None, None, None)))
    spread = jax.vmap(variant, out_axes=axes)
    rng = np.random.default_rng(0)
    for _ in range(3):
        numbers = rng.uniform(0.5, 2.0, 4), rng.normal(size=(4, 3)), rng.uniform(0.0, 1.0, 4)
        many = spread(*map(jnp.asarray, numbers))
        assert many.link_mass.shape == (4, 3) and many.gravity.shape == (4, 3) and many.link_inertia.shape == (3, 6)
        result = jax.tree.leaves(batched(many, Q, V, TAU))
        for i in range(4):
            one = jax.tree.leaves(single(variant(*(jnp.asarray(x[i]) for x in numbers)), Q, V, TAU))
            for x, y in zip(result, one, strict=True):
                np.testing.assert_allclose(x[i], y, rtol=1e-11, atol=1e-12)
    assert batched._cache_size() == single._cache_size() == 1
    last = system.axes(["a.mass"], axis=-1)
    assert last.link_mass == -1 and last.gravity is None
    with pytest.raises(KeyError, match="No number at 'a.mas'"):
        system.axes(["a.mas"])


def test_library_functions_hold_one_program_a_topology():
    """The functions are compiled themselves: plain calls with other numbers find the program of the first."""
    mb.mass_matrix.clear_cache()
    for mass in (1.0, 2.0, 3.0):
        mb.mass_matrix(changed(mass=mass), Q)
    assert mb.mass_matrix._cache_size() == 1
