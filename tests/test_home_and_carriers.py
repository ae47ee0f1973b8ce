"""`home`, the coordinates of `neutral_q`, and carriers, the massless links between the joints of one body."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb


def crane(carrier, last=None):
    """A trolley that slides and turns, in two joints, and a hook that hangs on it."""
    b = mb.Builder()
    if carrier:
        b.carrier("rail")
    else:
        b.body("rail")
    b.body("trolley", mass=2.0, com=(0.1, 0, 0), inertia=np.diag([0.1, 0.2, 0.3]))
    b.body("hook", mass=1.0, inertia=np.diag([0.01, 0.01, 0.01]))
    b.joint("slide", mb.prismatic((1, 0, 0)), child="rail", home=0.7, stiffness=3.0)
    b.joint("turn", last or mb.revolute((0, 0, 1)), parent="rail", child="trolley")
    b.joint("ball", mb.spherical(), parent="trolley", child="hook", home=(0, 0, 1, 0), in_parent=mb.Pose((0.5, 0, -1)))
    b.frame("tip", on="hook")
    return b.build()


def test_carriers_are_no_bodies():
    """Names and numbers leave the carrier out, every result is that of a body without mass in its place."""
    with_carrier, with_body = crane(True), crane(False)
    assert with_carrier.body_names == ("trolley", "hook") and with_carrier.nb == 2 and with_body.nb == 3
    assert with_carrier.frame_names == ("trolley", "hook", "tip")
    assert with_carrier.topology != with_body.topology
    q, v = with_body.neutral_q().at[1].set(0.4), jnp.arange(5.0)
    k, other = mb.kinematics(with_carrier, q, v), mb.kinematics(with_body, q, v)
    for name in ("trolley", "hook", "tip", "rail"):
        np.testing.assert_array_equal(k[name].velocity, other[name].velocity)
    np.testing.assert_array_equal(mb.mass_matrix(with_carrier, q), mb.mass_matrix(with_body, q))
    assert with_carrier.frame_index("tip") == with_body.frame_index("tip") == 3


def test_what_is_welded_to_a_carrier_names_the_body():
    assert crane(True, last=mb.fixed()).body_names == ("trolley", "hook")


def test_home_is_neutral_and_where_springs_are_slack():
    system = crane(True)
    np.testing.assert_array_equal(system.neutral_q(), [0.7, 0, 0, 0, 1, 0])
    assert float(system.get("slide.rest")) == float(system.get("slide.home")) == 0.7
    np.testing.assert_array_equal(system.get("turn.home"), 0.0)
    moved = system.replace({"slide.home": -0.2, "ball.home": (1.0, 0, 0, 0)})
    np.testing.assert_array_equal(moved.neutral_q(), [-0.2, 0, 1, 0, 0, 0])
    assert float(moved.get("slide.rest")) == 0.7
    assert float(mb.energy(system, system.neutral_q(), jnp.zeros(5))[1]) == pytest.approx(-9.81, rel=1e-12)


def test_home_must_fit():
    b = mb.Builder()
    b.body("a", mass=1.0)
    with pytest.raises(ValueError, match=r"Joint 'j': home has shape \(2,\); expected \(1,\)"):
        b.joint("j", mb.prismatic((1, 0, 0)), child="a", home=(0.0, 1.0))
    with pytest.raises(ValueError, match=r"Joint 'j': rest has shape \(2,\); expected \(4,\)"):
        b.joint("j", mb.spherical(), child="a", rest=(0.0, 1.0))
