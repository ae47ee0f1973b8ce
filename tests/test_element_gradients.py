"""Derivatives of force elements at singular points: finite to second order in both modes, right where they exist."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmbd import elements as el
from jaxmbd import rotation as so3

GROUND = el.HeightField([[0.0, 0.2, 0.1], [0.3, 0.0, -0.1], [0.1, 0.1, 0.2]], (-1.0, -1.0))
K = (4.0, 5.0, 6.0, 70.0, 80.0, 90.0)

# name: element, [position, velocity, rotation vector, angular velocity] of its last frame, whether it is smooth there
POINTS = {
    "spring without length": (el.Spring("a", "b", 50.0), {}, True),
    "spring without length, moving": (el.Spring("a", "b", 50.0), {"velocity": (1.0, 2.0, 0.0)}, True),
    "spring and damper without length": (el.Spring("a", "b", 50.0, 3.0), {"velocity": (1.0, 2.0, 0.0)}, False),
    "spring pressed to length zero": (el.Spring("a", "b", 50.0, 3.0, 0.2), {}, False),
    "smoothed spring": (el.Spring("a", "b", 50.0, 3.0, 0.2, smoothing=0.1), {"velocity": (1.0, 2.0, 0.0)}, True),
    "torsion at rest": (el.TorsionSpring("a", "b", (0, 0, 1), 5.0, 1.0), {}, True),
    "torsion, quarter turn": (el.TorsionSpring("a", "b", (0, 0, 2), 5.0, 1.0), {"turn": (0, 0, np.pi / 2)}, True),
    "torsion, half turn": (el.TorsionSpring("a", "b", (0, 0, 1), 5.0), {"turn": (0, 0, np.pi)}, False),
    "torsion, upside down": (el.TorsionSpring("a", "b", (0, 0, 1), 5.0), {"turn": (np.pi, 0, 0)}, False),
    "bushing at rest": (el.Bushing("a", "b", K, K), {}, True),
    "bushing, tiny turn": (el.Bushing("a", "b", K, K), {"turn": (1e-9, 0, 0), "omega": (1.0, 2.0, 3.0)}, True),
    "bushing where series end": (el.Bushing("a", "b", K), {"turn": (0.0, 0.02, 0), "omega": (1.0, 2.0, 3.0)}, True),
    "bushing, 0.2 rad": (el.Bushing("a", "b", K), {"turn": (0.0, 0.2, 0), "velocity": (1.0, 2.0, 3.0)}, True),
    "bushing, third of a turn": (el.Bushing("a", "b", K), {"turn": tuple(np.full(3, 2 * np.pi / 27**0.5))}, True),
    "bushing, half turn": (el.Bushing("a", "b", K), {"turn": (0, np.pi, 0)}, False),
    "sphere touching": (el.Contact("b", 1e3, 0.1, 0.5, radius=0.3), {"position": (0, 0, 0.3)}, True),
    "point touching": (el.Contact("b", 1e3, 0.1, 0.5, exponent=1.0), {}, False),
    "contact without slip": (el.Contact("b", 1e3, 0.1, 0.5, radius=0.3), {"position": (0, 0, 0.2)}, True),
    "contact torn off": (
        el.Contact("b", 1e3, 0.5, 0.5, radius=0.3),
        {"position": (0, 0, 0.2), "velocity": (0, 0, 1 / 0.75)},
        False,
    ),
    "contact high above": (el.Contact("b", 1e3, 0.1, 0.5), {"position": (0, 0, 1e3)}, True),
    "contact on a grid line": (el.Contact("b", 1e3, 0.1, 0.5, ground=GROUND, radius=0.4), {}, True),
    "contact on the border": (
        el.Contact("b", 1e3, 0.1, 0.5, ground=GROUND, radius=0.4),
        {"position": (1, 1, 0)},
        False,
    ),
    "tyre touching": (el.Tyre("b", 0.3, 1e3, 10.0, lift_off=True), {"position": (0, 0, 0.3)}, False),
    "tyre at rest": (el.Tyre("b", 0.3, 1e3, 10.0), {"position": (0, 0, 0.3)}, True),
}


def load(element, x, turn):
    """What acts on the last frame, x [12] away from the state with the given turn; and the energies."""
    kind = x.dtype
    R = so3.matrix(so3.multiply(so3.exp(x[6:9]), so3.exp(turn)))
    still = el.Vec3.of(jnp.zeros(3, kind))
    moved = el.FrameState(*(f(y) for f, y in ((el.Mat3.of, R), *((el.Vec3.of, x[i : i + 3]) for i in (0, 9, 3)))))
    states = (el.FrameState(el.Mat3.of(jnp.eye(3, dtype=kind)), still, still, still), moved)[-len(element.frames) :]
    energies = jnp.stack([element.potential(states, 0.0), element.dissipation(states, 0.0)])
    force = [jnp.asarray(y, kind) for y in jax.tree.leaves(element.wrenches(states, 0.0)[-1])]
    return jnp.concatenate([jnp.stack(force), energies])


@jax.jit
def derivatives(element, x, turn, along):
    """Value, its change along a direction in forward mode, the Jacobian in reverse mode, and how that changes."""

    def f(x):
        return load(element, x, turn)

    return *jax.jvp(f, (x,), (along,)), *jax.jvp(jax.jacrev(f), (x,), (along,))


@jax.jit
def first(element, x, turn):
    return load(element, x, turn), jax.jacrev(load, 1)(element, x, turn)


@jax.jit
def differences(element, x, turn, h):
    """Central differences along every component of the state."""

    def column(step):
        return (load(element, x + step, turn) - load(element, x - step, turn)) / (2 * h)

    return jax.vmap(column)(h * jnp.eye(12)).T


# One of each kind is quick; of two programs more is not shared: six by six matrices and splines take long to compile.
QUICK = ("spring without length", "spring and damper without length", "torsion at rest", "torsion, half turn")
QUICK += ("sphere touching", "contact torn off", "tyre touching")
SINGLE = (
    "spring pressed to length zero",
    "torsion, upside down",
    "bushing at rest",
    "sphere touching",
    "tyre touching",
)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in POINTS])
def test_at_singular_points(name):
    element, state, smooth = POINTS[name]
    parts = [state.get(part, (0.0, 0.0, 0.0)) for part in ("position", "velocity", "none", "omega")]
    x, turn = (
        jnp.concatenate([jnp.asarray(part, float) for part in parts]),
        jnp.asarray(state.get("turn", (0.0,) * 3), float),
    )
    along = jnp.asarray(np.random.default_rng(0).normal(size=12))
    value, forward, reverse, second = derivatives(element, x, turn, along)
    for found in (value, forward, reverse, second):
        assert np.all(np.isfinite(found))
    size = 1 + np.abs(reverse).max()
    np.testing.assert_allclose(forward, reverse @ along, atol=1e-10 * size)
    if smooth:
        h = 1e-6  # differences of a force that grows with depth^1.5 err by stiffness h^0.5 at touch-down
        tolerance = 1e-7 * size + (1.1e3 * 3**1.5 * h**0.5 if name == "sphere touching" else 0.0)
        np.testing.assert_allclose(reverse, differences(element, x, turn, h), atol=tolerance)
    if name == "spring without length":
        np.testing.assert_allclose(reverse[3:6, :3], -50.0 * np.eye(3), atol=1e-12)
        np.testing.assert_allclose(second[6, :3], 50.0 * along[:3], atol=1e-12)

    if name not in SINGLE:  # float32: one of each kind
        return
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), element)
    low = first(single, x.astype(jnp.float32), turn.astype(jnp.float32))
    assert all(np.all(np.isfinite(found)) and found.dtype == np.float32 for found in low)


@pytest.mark.parametrize("u", [-2.0, 0.0, 2.0, 1e4])
def test_limits_of_actuators(u):
    """At the limits and far beyond: smooth limits have the slope (tanh((u + L) / s) - tanh((u - L) / s)) / 2."""
    hard, soft = el.Actuator("j", limit=2.0), el.Actuator("j", limit=2.0, softness=0.1)

    def effort(motor, u):
        none = jnp.zeros(0)
        return motor.effort(el.JointState(jnp.zeros(1), jnp.zeros(1), u, none), 0.0)[0]

    u = jnp.array([u])
    slope = 0.5 * (np.tanh((u + 2) / 0.1) - np.tanh((u - 2) / 0.1))
    np.testing.assert_allclose(jax.grad(effort, 1)(soft, u), slope, atol=1e-12)
    assert np.isfinite(jax.hessian(effort, 1)(soft, u)).all()
    assert 0.0 <= float(jax.grad(effort, 1)(hard, u)[0]) <= 1.0
