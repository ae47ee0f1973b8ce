"""Pictures show the numbers that they were given, and the energy books close."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd.view import column_names, draw_run
from jaxmbd.view.energies import energy_books
from jaxmbd.view.names import coordinate_units
from jaxmbd.view.plots import PANELS, _link_points

INERTIA, DAMPING, FRICTION, SPEED = 0.2, 0.3, 0.5, 2.0


def flywheel(gravity=0.0, **passive):
    """A wheel on a hinge along z: one freedom, moment of inertia INERTIA about the axis."""
    b = mb.Builder(gravity=(0.0, 0.0, gravity))
    b.body("wheel", mass=1.0, inertia=INERTIA * jnp.eye(3))
    b.joint("hinge", mb.revolute((0.0, 0.0, 1.0)), child="wheel", **passive)
    return b.build()


def arm(links=2):
    """Links of 1 m along -z on hinges about y, the com in the middle of each."""
    b = mb.Builder()
    for i in range(links):
        b.body(f"link{i}", mass=1.0, com=(0.0, 0.0, -0.5), inertia=0.1 * jnp.eye(3))
        b.joint(
            f"hinge{i}",
            mb.revolute((0.0, 1.0, 0.0)),
            parent=f"link{i - 1}" if i else "world",
            child=f"link{i}",
            in_parent=mb.Pose((0.0, 0.0, -1.0 if i else 0.0)),
        )
    return b.build()


def test_dissipated_energy_of_a_damped_wheel():
    """I w' = -c w from w0: w = w0 exp(-c t / I), dissipated = I (w0^2 - w^2) / 2, by the midpoint rule (dt^2)."""
    t = np.linspace(0, 1, 2001)
    v = SPEED * np.exp(-DAMPING * t / INERTIA)[None, :, None]
    q = INERTIA / DAMPING * (SPEED - v)
    books = energy_books(flywheel(damping=DAMPING), t, q, v)
    lost = 0.5 * INERTIA * (SPEED**2 - v[0, :, 0] ** 2)
    np.testing.assert_allclose(books.dissipated[0], lost, atol=1e-6)
    np.testing.assert_allclose(books.drift, 0, atol=1e-6)


def test_a_damper_that_stops_a_wheel_within_a_step_takes_about_its_energy():
    """An implicit step leaves v1 = v0 / (1 + k), k = c h / I; c h v0 v1 is 2 k / (1 + k) times the energy."""
    k, h = 300.0, 1e-3
    v = np.array([SPEED, SPEED / (1 + k)])[None, :, None]
    books = energy_books(flywheel(damping=k * INERTIA / h), np.array([0.0, h]), np.zeros((1, 2, 1)), v)
    np.testing.assert_allclose(books.dissipated[0, 1], 2 * k / (1 + k) * 0.5 * INERTIA * SPEED**2, rtol=1e-12)


def test_springs_and_armature_are_not_dissipation():
    """A free swing of a spring and a wheel with rotor inertia: q = A cos(w t), w^2 = k / (I + armature)."""
    stiffness, armature = 4.0, 0.05
    t = np.linspace(0, 2, 501)
    rate = np.sqrt(stiffness / (INERTIA + armature))
    q, v = np.cos(rate * t)[None, :, None], -rate * np.sin(rate * t)[None, :, None]
    books = energy_books(flywheel(stiffness=stiffness, armature=armature), t, q, v)
    np.testing.assert_array_equal(books.dissipated, 0)
    np.testing.assert_allclose(books.drift, 0, atol=1e-13)


def test_dry_friction_at_speed_dissipates_force_times_way():
    t = np.linspace(0, 1, 101)
    v = np.full((1, 101, 1), SPEED)
    books = energy_books(flywheel(friction=FRICTION, friction_speed=1e-2), t, SPEED * t[None, :, None], v)
    np.testing.assert_allclose(books.dissipated[0], FRICTION * SPEED * t, rtol=1e-12)


def test_names_and_units():
    b = mb.Builder()
    for i, (name, joint) in enumerate(
        {
            "base": mb.free(),
            "ball": mb.spherical(),
            "rod": mb.cylindrical((0.0, 0.0, 1.0)),
            "hinge": mb.revolute((1, 0, 0)),
        }.items()
    ):
        b.body(f"b{i}", mass=1.0, inertia=jnp.eye(3))
        b.joint(name, joint, parent=f"b{i - 1}" if i else "world", child=f"b{i}")
    system = b.build()
    q_names, v_names = column_names(system, "q"), column_names(system, "v")
    assert q_names == [f"base[{k}]" for k in range(7)] + [f"ball[{k}]" for k in range(4)] + [
        "rod[0]",
        "rod[1]",
        "hinge",
    ]
    assert v_names == [f"base[{k}]" for k in range(6)] + [f"ball[{k}]" for k in range(3)] + [
        "rod[0]",
        "rod[1]",
        "hinge",
    ]
    assert coordinate_units(system) == [""] * 4 + ["m"] * 3 + [""] * 4 + ["rad", "m", "rad"]


def test_stick_figure_points():
    """Two hinges at 30 and 60 degrees about y: the second link lies along -x."""
    origins, coms = _link_points(arm(), jnp.array([[0.0, 0.0], [np.pi / 6, np.pi / 3]]))
    tip = np.array([-np.sin(np.pi / 6), 0, -np.cos(np.pi / 6)])
    np.testing.assert_allclose(origins[0], [[0, 0, 0], [0, 0, -1]], atol=1e-15)
    np.testing.assert_allclose(origins[1], [[0, 0, 0], tip], atol=1e-15)
    np.testing.assert_allclose(coms[1], [tip / 2, tip + [-0.5, 0, 0]], atol=1e-15)


@pytest.mark.parametrize("batch", [1, 6])
def test_figure_shows_the_numbers(batch, tmp_path):
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, 21)
    q = np.sin(t)[None, :, None] + rng.normal(size=(batch, 1, 2))
    v = np.cos(t)[None, :, None] * np.ones((batch, 1, 2))
    figure = draw_run(arm(), t, q, v, "two links")
    panels = {panel.get_title(loc="left"): panel for panel in figure.axes}
    for i in range(2):
        lines = {line.get_label(): line.get_ydata() for line in panels[f"hinge{i} [rad]"].lines}
        np.testing.assert_array_equal(lines["copy 0"], q[0, :, i])
        if batch > 1:
            np.testing.assert_allclose(lines["median"], np.median(q[:, :, i], axis=0), rtol=1e-14)
    assert figure.get_suptitle() == "two links"
    energy = next(panel for title, panel in panels.items() if title.startswith("energy of copy 0"))
    for part, label in enumerate(("kinetic", "potential")):
        drawn = next(line.get_ydata() for line in energy.lines if line.get_label() == label)
        change = mb.energy(arm(), q[0, -1], v[0, -1])[part] - mb.energy(arm(), q[0, 0], v[0, 0])[part]
        np.testing.assert_allclose(drawn[-1], change, rtol=1e-12)
    figure.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 20_000


def test_lost_copies_are_left_out():
    t = np.linspace(0, 1, 5)
    q = np.ones((3, 5, 2)) * np.array([np.nan, 1.0, 2.0])[:, None, None]
    figure = draw_run(arm(), t, q, np.zeros_like(q), "three")
    assert figure.get_suptitle() == "three · 1 of them not finite"
    panel = next(panel for panel in figure.axes if panel.get_title(loc="left") == "hinge0 [rad]")
    lines = {line.get_label(): line.get_ydata() for line in panel.lines}
    np.testing.assert_array_equal(lines["copy 1"], 1.0)
    np.testing.assert_array_equal(lines["median"], 1.5)


def test_nothing_finite_still_gives_a_figure(tmp_path):
    q = np.full((2, 5, 2), np.nan)
    q[:, 0] = 0.0
    draw_run(arm(), np.linspace(0, 1, 5), q, q, "lost").savefig(tmp_path / "lost.png")


def test_many_coordinates_draw_those_that_move_most():
    links = PANELS + 3
    t = np.linspace(0, 1, 5)
    q = np.arange(links) * t[None, :, None] * np.ones((2, 1, 1))
    figure = draw_run(arm(links), t, q, np.zeros_like(q), "many")
    drawn = [panel.get_title(loc="left") for panel in figure.axes if "hinge" in panel.get_title(loc="left")]
    assert drawn == [f"hinge{i} [rad]" for i in range(3, links)]
