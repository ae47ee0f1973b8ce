"""What jit, vmap, grad and another precision may not change: values, the number of traces, dtypes, finiteness."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_systems as rs
import reference

import jaxmbd as mb

STATES = 4
ROUNDING = 1e-12  # of the largest entry: two orders of summation


def close(ours, theirs, tolerance=ROUNDING):
    """Equal to within tolerance times the largest entry (and one)."""
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=tolerance * max(1.0, np.abs(theirs).max()))


def arm():
    """(system, q, v, a, tau) of the arm, four states."""
    return rs.built(rs.arm()), *(jnp.asarray(x) for x in rs.states(rs.arm(), 0, STATES))


# ------------------------------------------------------------------------------------------------- vmap and jit


def test_vmap_equals_a_loop():
    """A batch inside an outer jit, and plain calls of the public function state by state."""
    system, q, v, a, tau = arm()
    batched = reference.jit_in_haste(jax.vmap(mb.forward_dynamics, in_axes=(None, 0, 0, 0)))(system, q, v, tau)
    one_by_one = jnp.stack([mb.forward_dynamics(system, *state) for state in zip(q, v, tau, strict=True)])
    close(batched, one_by_one)
    assert jnp.all(jnp.isfinite(batched))


@pytest.mark.parametrize("name", ["energy", pytest.param("forward_dynamics", marks=pytest.mark.slow)])
def test_jit_equals_eager(name):
    spec = rs.random_tree(6, ("revolute", "prismatic"), "chain", passive=True)
    states = [x[0] for x in rs.states(spec, 0, 1)]
    with jax.disable_jit():
        eager = rs.QUANTITIES[name](rs.built(spec), *states, ())
    compiled = rs.QUANTITIES[name](rs.built(spec), *states, ())
    for one, other in zip(jax.tree.leaves(eager), jax.tree.leaves(compiled), strict=True):
        close(one, other)


# ------------------------------------------------------------------------------------------------------- traces


class Counted:
    """A sliding bead's pose that counts how often it is traced."""

    def __init__(self):
        self.calls = 0

    def __call__(self, q):
        self.calls += 1
        return mb.Pose(jnp.stack([q[0], 0.1 * q[0] ** 2, 0.0 * q[0]]))


def bead(function, mass=1.0):
    """A bead that slides along a user's curve, with a hinged bob below it."""
    b = mb.Builder()
    b.body("bead", mass=mass, inertia=0.1 * np.eye(3))
    b.body("bob", mass=0.5, com=(0, 0, -0.4), inertia=0.02 * np.eye(3))
    b.joint("slide", mb.mapped(function, 1), child="bead", damping=0.1)
    b.joint("hinge", mb.revolute((0, 1, 0)), parent="bead", child="bob", in_parent=mb.Pose((0, 0, -0.1)))
    return b.build()


def test_one_trace_a_shape():
    """New numbers, new states, another array library, a system built anew: the program stays."""
    function = Counted()
    system = bead(function)
    q, v, tau = jnp.array([0.3, 0.2]), jnp.array([1.0, -1.0]), jnp.zeros(2)

    def trace(*args):
        jax.eval_shape(mb.forward_dynamics, *args)
        return function.calls

    traced = trace(system, q, v, tau)
    assert traced > 0
    changed = {"bead.mass": 2.0, "hinge.axis": (1.0, 0.0, 0.0), "slide.damping": 0.3, "gravity": (0.0, 1.0, -5.0)}
    assert trace(system.replace(changed), q, v, tau) == traced
    assert trace(system, np.ones(2), np.ones(2), np.ones(2)) == traced
    assert trace(bead(function, mass=3.0), q, v, tau) == traced
    with_time = trace(system, q, v, tau, (), 0.5)
    assert trace(system, q, v, tau, (), 1.5) == with_time


def test_one_trace_a_shape_under_vmap_and_grad():
    """An outer program is traced again for another batch size, the function inside it is not."""
    function, outer = Counted(), []
    system = bead(function)

    def kinetic(system, q):
        outer.append(1)
        return mb.energy(system, q, jnp.ones(2))[0]

    program = jax.jit(jax.vmap(jax.grad(kinetic), in_axes=(None, 0)))
    states = jnp.arange(6.0).reshape(3, 2)
    jax.eval_shape(program, system, states)
    traced = function.calls
    jax.eval_shape(program, system.replace({"bob.mass": 0.7}), states + 1.0)
    assert function.calls == traced and len(outer) == 1
    jax.eval_shape(program, system, states[:2])
    assert function.calls == traced and len(outer) == 2


# ------------------------------------------------------------------------------------ gradients and batched numbers


def test_gradient_with_respect_to_a_system_is_read_by_path():
    """`get` on the gradient is the derivative in that number, as if it alone had been replaced."""
    system, q, v, a, tau = arm()

    def work(system):
        kinetic, potential = mb.energy(system, q[0], v[0])
        return kinetic + potential

    gradient = reference.jit_in_haste(jax.grad(work))(system)
    assert isinstance(gradient, mb.System)
    paths = ["b2.mass", "b3.com", "b2.inertia", "gravity", "j1.axis", "j2.in_parent.position", "j3.in_child.rotation"]
    paths += ["j1.stiffness", "j2.rest", "j2.armature", "j4.ratio", "j4.offset"]
    h, rng = 1e-5, np.random.default_rng(0)
    for path in paths:
        value = np.asarray(system.get(path))
        direction = rng.normal(size=value.shape)
        ahead, back = (work(system.replace({path: value + step * direction})) for step in (h, -h))
        expected = (ahead - back) / (2 * h)  # h² and eps / h leave seven digits
        np.testing.assert_allclose(np.sum(gradient.get(path) * direction), expected, rtol=0, atol=1e-7, err_msg=path)
        assert np.any(gradient.get(path)), path
    assert not np.any(gradient.get("b0.mass"))  # welded to the world: it cannot be felt


def test_batch_of_chosen_numbers():
    """A batch axis on masses and dampers only; everything else is shared."""
    system, q, v, a, tau = arm()
    masses = system.link_mass[None, :] * jnp.linspace(0.5, 2.0, STATES)[:, None]
    in_axes = dataclasses.replace(jax.tree.map(lambda _: None, system), link_mass=0, damping=0)
    dampers = system.damping[None, :] * jnp.linspace(0.0, 1.0, STATES)[:, None]
    batch = dataclasses.replace(system, link_mass=masses, damping=dampers)
    batched = reference.jit_in_haste(jax.vmap(mb.forward_dynamics, in_axes=(in_axes, 0, 0, 0)))
    together = batched(batch, q, v, tau)
    for i in range(STATES):
        one = dataclasses.replace(system, link_mass=masses[i], damping=dampers[i])
        close(together[i], mb.forward_dynamics(one, q[i], v[i], tau[i]))


def test_batch_of_whole_systems():
    """Systems of one topology stack leaf by leaf."""
    system, q, v, a, tau = arm()
    several = [system.replace({"b2.mass": 1.0 + i, "j1.axis": (1.0, i, 0.0)}) for i in range(STATES)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
    together = reference.jit_in_haste(jax.vmap(mb.forward_dynamics))(stacked, q, v, tau)
    for i, one in enumerate(several):
        close(together[i], mb.forward_dynamics(one, q[i], v[i], tau[i]))


def test_systems_are_pytrees_of_numbers():
    """Leaves are floating-point arrays only; equal topologies are equal and hash alike, so that programs are shared."""
    system = rs.built(rs.menagerie())
    assert all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(system))
    again, other = rs.build(rs.arm()), rs.built(rs.arm())
    assert again.topology == other.topology and hash(again.topology) == hash(other.topology)
    assert jax.tree.structure(again) == jax.tree.structure(other)
    assert again.topology != system.topology


# ---------------------------------------------------------------------------------------------------- precision


def test_float32_without_x64():
    """Built and run where no 64-bit type exists: every result is float32, finite, and near the float64 one.

    Errors are rounding of size eps32 = 1.2e-7 times the condition of the mass matrix, some 100 for the arm.
    """
    spec, names, (q, v, a, tau) = rs.arm(), (*rs.MAIN, "momentum"), rs.states(rs.arm(), 0, STATES)
    exact = rs.results(spec, q, v, a, tau, rs.wrench_numbers(0))
    with jax.enable_x64(False):  # JAX as it starts
        system = rs.build(spec)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(system))
        states = (jnp.asarray(x, jnp.float32) for x in (q, v, a, tau))
        results = rs.results(spec, *states, rs.wrench_numbers(0), names, system)
    exact = {name: exact[name] for name in names}
    for (path, ours), theirs in zip(jax.tree_util.tree_leaves_with_path(results), jax.tree.leaves(exact), strict=True):
        assert ours.dtype == np.float32, jax.tree_util.keystr(path)
        close(ours, theirs, 1e-4)


@pytest.mark.parametrize("name", rs.ALL)
def test_float32_stays_float32_where_x64_is_on(name):
    """By the types alone, for every function; nothing is compiled."""
    system, *states = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[-1:], jnp.float32), arm())
    system = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), rs.built(rs.arm()))
    shapes = jax.eval_shape(lambda *args: rs.QUANTITIES[name](*args, ()), system, *states)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}


def test_wide_input_widens_the_result():
    """float64 states with a float32 system: the result has the wider type, not an error."""
    system, q, v, a, tau = arm()
    narrow = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), system)
    assert mb.integrate(narrow, q[0], v[0], 0.1).dtype == jnp.float64


# ----------------------------------------------------------------------------------------------- states by chance


def test_random_states():
    """Reproducible from a key, different for another, unit quaternions."""
    spec = rs.tumbler()
    system = rs.built(spec)
    draw = jax.jit(jax.vmap(mb.random_state, in_axes=(None, 0)))
    keys = jax.random.split(jax.random.key(0), rs.BATCH)
    q, v = draw(system, keys)
    again = draw(system, keys)
    np.testing.assert_array_equal(q, again[0])
    np.testing.assert_array_equal(v, again[1])
    assert np.unique(np.asarray(q)[:, 0]).size == rs.BATCH
    for joint in ("j0", "j1"):
        close(jnp.sum(q[:, system.q_slice(joint)][:, :4] ** 2, axis=1), np.ones(rs.BATCH))
    assert jnp.all(jnp.isfinite(q)) and jnp.all(jnp.isfinite(v))


def test_random_states_respect_limits():
    b = mb.Builder()
    b.body("link", mass=1.0, inertia=np.eye(3))
    b.joint("hinge", mb.revolute((0, 0, 1)), child="link", lower=-0.2, upper=0.1)
    system = b.build()
    q, _ = jax.vmap(mb.random_state, in_axes=(None, 0))(system, jax.random.split(jax.random.key(1), 100))
    assert -0.2 <= q.min() < -0.1 and 0.0 < q.max() <= 0.1


# ------------------------------------------------------------------------------------------------------- errors


def test_sizes_are_checked_while_tracing():
    system, q, v, a, tau = arm()
    with pytest.raises(ValueError, match=r"q has shape \(4,\); this system takes \(3,\)"):
        mb.forward_dynamics(system, jnp.zeros(4), v[0], tau[0])
    with pytest.raises(ValueError, match="jax.vmap"):
        mb.inverse_dynamics(system, q, v, a)


def test_unknown_names_are_listed():
    system, q, v, a, tau = arm()
    with pytest.raises(KeyError, match="No link or frame 'hand'"):
        mb.jacobian(system, q[0], "hand")
    with pytest.raises(ValueError, match="axes of a Jacobian are 'body'; expected 'world' or 'local'"):
        mb.jacobian(system, q[0], "tool", axes="body")
    with pytest.raises(KeyError, match="No number at 'b1.colour'"):
        system.get("b1.colour")
    with pytest.raises(ValueError, match=r"'b1.com' was given shape \(2,\); expected shape \(3,\)"):
        system.replace({"b1.com": (0.0, 1.0)})
    with pytest.raises(KeyError, match="'j4' follows 'j2' and has no slot in q"):
        system.q_slice("j4")
    with pytest.raises(ValueError, match="axes of a wrench are 'body'"):
        mb.Wrench("tool", axes="body")
