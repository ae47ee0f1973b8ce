"""Full derivatives of the dynamics in closed form, against forward mode along `integrate` and against Pinocchio."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems

import jaxmbd as mb
from jaxmbd.derivatives import _is_plain

PANDA = Path(mb.__file__).parent / "robots" / "panda.urdf"
PAIRS = {
    "forward": (mb.forward_dynamics, mb.forward_dynamics_derivatives),
    "inverse": (mb.inverse_dynamics, mb.inverse_dynamics_derivatives),
}


@functools.cache
def system_of(name):
    if name == "panda":
        return mb.load(PANDA)
    return random_systems.built(getattr(random_systems, name)())


def states(system, count=4, dtype="float64"):
    keys = jax.random.split(jax.random.key(3), count)
    q, v = jax.vmap(functools.partial(mb.random_state, system))(keys)
    x = jax.vmap(lambda key: jax.random.normal(key, (system.nv,)))(keys)
    return tuple(y.astype(dtype) for y in (q, v, x))


def along(dynamics, system, q, v, x, *rest):
    """The same derivatives by forward mode, one velocity at a time."""

    def moved(u, v, x):
        return dynamics(system, mb.integrate(system, q, u), v, x, *rest)

    return jax.jacfwd(moved, (0, 1, 2))(jnp.zeros_like(v), v, x)


@functools.cache
def programs(which):
    dynamics, derivatives = PAIRS[which]
    over = (None, 0, 0, 0)
    return jax.jit(jax.vmap(derivatives, over)), jax.jit(jax.vmap(functools.partial(along, dynamics), over))


# quaternion joints, springs and armature; couplings
NAMES = [
    pytest.param("floater", marks=pytest.mark.slow),
    "panda",
    pytest.param("arm", marks=pytest.mark.slow),
    pytest.param("tumbler", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", PAIRS)
def test_closed_forms_equal_forward_mode(which, name):
    system = system_of(name)
    closed, forward = (program(system, *states(system)) for program in programs(which))
    for ours, expected in zip(closed, forward, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-11 * np.abs(expected).max() + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("which", PAIRS)
def test_float32_without_a_batch(which):
    system, (q, v, x) = system_of("floater"), states(system_of("floater"), 1)
    exact = PAIRS[which][1](system, q[0], v[0], x[0])
    single = PAIRS[which][1](system.astype("float32"), *(y[0].astype("float32") for y in (q, v, x)))
    for ours, expected in zip(single, exact, strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("which", PAIRS)
def test_they_can_be_differentiated_themselves(which):
    """Each table's derivative over a batch, in forward mode, in reverse mode and by differences."""
    system = system_of("floater")
    q, v, x = states(system, 2)
    direction = jax.random.normal(jax.random.key(0), (2, *v.shape))

    @jax.jit
    def totals(moved):
        """Of each table, moved along integrate and in the velocities."""
        at = jax.vmap(mb.integrate, (None, 0, 0))(system, q, moved[0])
        tables = jax.vmap(PAIRS[which][1], (None, 0, 0, 0))(system, at, v + moved[1], x)
        return jnp.stack([jnp.sum(jnp.sin(table)) for table in tables])

    still = jnp.zeros_like(direction)
    _, forward = jax.jit(lambda moved: jax.jvp(totals, (moved,), (direction,)))(still)
    reverse = jnp.sum(jax.jit(jax.jacrev(totals))(still) * direction[None], (1, 2, 3))
    h = 1e-6
    differences = (totals(h * direction) - totals(-h * direction)) / (2 * h)
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)
    # differences of sines of entries of some hundreds
    np.testing.assert_allclose(forward, differences, atol=1e-6 * np.abs(differences).max())


@pytest.mark.slow
def test_what_has_no_closed_form_is_differentiated():
    """Wrenches, mapped joints and constraints."""
    system = mb.models.chain(3)
    q, v, x = (y[0] for y in states(system, 1))
    push = (mb.Wrench("link2", force=(1.0, 2.0, 3.0), axes="local"),)
    for which, (dynamics, derivatives) in PAIRS.items():
        for ours, expected in zip(
            derivatives(system, q, v, x, push), along(dynamics, system, q, v, x, push), strict=True
        ):
            np.testing.assert_allclose(ours, expected, atol=1e-12, err_msg=which)
    for special in (random_systems.built(random_systems.menagerie()), mb.linkages.four_bar()):
        assert not _is_plain(special, ()) and _is_plain(system, ())
    loop = mb.linkages.four_bar()
    q, v = loop.neutral_q(), jnp.zeros(loop.nv)
    tables = mb.forward_dynamics_derivatives(loop, q, v, v)
    push = jax.random.normal(jax.random.key(2), v.shape)
    added = mb.forward_dynamics(loop, q, v, push) - mb.forward_dynamics(loop, q, v, v)  # linear in the forces
    np.testing.assert_allclose(tables.tau @ push, added, atol=1e-9 * np.abs(added).max())
    for ours, expected in zip(tables[:2], along(mb.forward_dynamics, loop, q, v, v)[:2], strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-12 * (1 + np.abs(expected).max()))


@pytest.mark.external
def test_pinocchio_agrees():
    pin = pytest.importorskip("pinocchio")
    system = mb.load(PANDA, mimic="independent").without_passive_forces()
    robot = pin.buildModelFromUrdf(str(PANDA))
    names = [robot.names[1 + i] for i in range(robot.njoints - 1)]
    assert names == list(system.joint_names)
    q, v, x = states(system)
    ours = programs("forward")[0](system, q, v, x)
    data = robot.createData()
    for i in range(len(q)):
        expected = pin.computeABADerivatives(robot, data, *(np.asarray(y[i]) for y in (q, v, x)))
        for table, theirs in zip(ours, expected, strict=True):
            theirs = np.triu(theirs) + np.triu(theirs, 1).T if table is ours.tau else theirs
            np.testing.assert_allclose(table[i], theirs, atol=1e-9 * np.abs(theirs).max())
