"""Ready mechanisms: sizes, masses and the geometry that their docstrings promise."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import models

SIZES = {  # name: (system, nq, nv, nb, mass [kg])
    "pendulum": (lambda: models.pendulum(2.0), 1, 1, 1, 2.0),
    "double pendulum": (models.double_pendulum, 2, 2, 2, 2.0),
    "chain": (lambda: models.chain(5, mass=0.5), 5, 5, 5, 2.5),
    "free chain": (lambda: models.chain(3, root=mb.free()), 9, 8, 3, 3.0),
    "binary tree": (lambda: models.binary_tree(7), 7, 7, 7, 7.0),
    "rigid body": (models.rigid_body, 7, 6, 1, 1.0),
    "heavy top": (models.heavy_top, 4, 3, 1, 15.0),
    "furuta": (models.furuta, 2, 2, 2, 0.375),
    "quadruped": (models.quadruped, 19, 18, 13, 8.0 + 4 * 1.7),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    build, nq, nv, nb, mass = SIZES[name]
    system = build()
    assert (system.nq, system.nv, system.nb) == (nq, nv, nb)
    np.testing.assert_allclose(system.mass, mass, rtol=1e-12)
    assert system.report == ()
    assert system.neutral_q().shape == (nq,)


def test_rod():
    """m l^2 / 12 across, nothing along; about any unit axis."""
    np.testing.assert_allclose(models.rod_inertia(2.0, 3.0), np.diag([1.5, 1.5, 0.0]))
    along = np.array([0.6, 0.0, 0.8])
    np.testing.assert_allclose(models.rod_inertia(2.0, 3.0, along) @ along, 0.0, atol=1e-15)
    np.testing.assert_allclose(np.trace(models.rod_inertia(2.0, 3.0, along)), 3.0)


def test_a_quadruped_stands_below_its_trunk():
    system = models.quadruped()
    k = mb.kinematics(system, system.neutral_q())
    feet = np.stack([k[f"{leg}_foot"].position for leg in ("fl", "fr", "hl", "hr")])
    np.testing.assert_allclose(feet[:, :2], [[0.2, 0.1], [0.2, -0.1], [-0.2, 0.1], [-0.2, -0.1]], atol=1e-15)
    np.testing.assert_allclose(feet[:, 2], -0.45, rtol=1e-14)


def test_furuta_moves_as_described():
    """The arm points along x and turns towards y; a positive angle of the pendulum swings its tip ahead of it."""
    system = models.furuta()
    k = mb.kinematics(system, jnp.array([0.0, 0.5]))
    np.testing.assert_allclose(k["pendulum"].position, [0.278, 0.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(k["tip"].position, [0.278, 0.296 * np.sin(0.5), -0.296 * np.cos(0.5)], rtol=1e-13)


def test_uneven_lists_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        models.pendulum_chain([1.0, 1.0], [1.0], [0.0, 0.0])
