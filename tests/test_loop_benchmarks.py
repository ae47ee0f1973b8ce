"""Published benchmarks of constrained mechanisms, and the reduced view on mechanisms with closed forms.

Sources of the numbers are in `data/benchmarks/*.json`: Andrews' squeezing mechanism and the car axis (IVP test set,
Mazzia & Magherini; here against extended-precision solutions), the N-four-bar (IFToMM A02).
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb

FOLDER = Path(__file__).parent / "data" / "benchmarks"
RK4 = mb.RungeKuttaMuntheKaas4()


def benchmark(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


ANDREWS = benchmark("andrews_squeezer")


def andrews():
    """Seven bodies in the plane x, y; three closures of two rows by a user's function, in the benchmark's order."""
    p = ANDREWS["parameters_SI"]
    b = mb.Builder(gravity=(0, 0, 0))
    hinge = mb.revolute((0, 0, 1))

    def link(name, joint, parent, at, mass, com, inertia):
        b.body(name, mass, (*com, 0.0), inertia * np.eye(3))
        b.joint(joint, hinge, parent, name, in_parent=mb.Pose((*at, 0.0)))

    A, B = (p["xa"], p["ya"]), (p["xb"], p["yb"])
    link("K1", "beta", "world", (0, 0), p["m1"], (p["ra"], 0), p["i1"])
    link("K2", "theta", "K1", (p["rr"], 0), p["m2"], (-p["da"], 0), p["i2"])
    link("K3", "gamma", "world", B, p["m3"], (p["sb"], -p["sa"]), p["i3"])
    link("K5", "delta", "world", A, p["m5"], (p["ta"], p["tb"]), p["i5"])
    link("K4", "phi", "K5", (p["zt"], 0), p["m4"], (0, p["ea"] - p["e"]), p["i4"])
    link("K7", "epsilon", "world", A, p["m7"], (-p["ub"], -p["ua"]), p["i7"])
    link("K6", "omega", "K7", (0, -p["u"]), p["m6"], (p["zf"] - p["fa"], 0), p["i6"])
    ends = {"K2": (-p["d"], 0), "K3": (0, -p["ss"]), "K4": (0, -p["e"]), "K6": (p["zf"], 0)}
    for body, at in ends.items():
        b.frame(f"E{body[1]}", on=body, pose=mb.Pose((*at, 0.0)))
    pinned = mb.holonomic(lambda at: (at.position[0] - at.position[1])[:2], rows=2)
    for other in ("E3", "E4", "E6"):
        b.constraint(other, pinned, frames=("E2", other))
    return b.build()


ORDER = ("beta", "theta", "gamma", "phi", "delta", "omega", "epsilon")


def andrews_forces(t, q, v):
    """Drive moment on the crank, and the spring from D on the triangle to the fixed point C."""
    p = ANDREWS["parameters_SI"]

    def stretched(gamma):
        s, c = jnp.sin(gamma), jnp.cos(gamma)
        D = jnp.stack([p["xb"] + p["sc"] * s + p["sd"] * c, p["yb"] - p["sc"] * c + p["sd"] * s])
        length = jnp.sqrt(jnp.sum((D - np.array([p["xc"], p["yc"]])) ** 2))
        return 0.5 * p["c0"] * (length - p["l0"]) ** 2

    return jnp.zeros(7).at[0].set(p["mom"]).at[2].set(-jax.grad(stretched)(q[2]))


@pytest.mark.slow
def test_andrews_squeezer_at_the_end():
    """Accelerations and multipliers at the high-precision end state."""
    system, goal = andrews(), ANDREWS["expected"]["high_precision_t_0_03"]
    own = [ORDER.index(name) for name in system.joint_names]
    q, v = (jnp.array(goal[k])[np.array(own)] for k in ("q", "qdot"))
    tau = andrews_forces(0.0, q, v)
    w = mb.closure_wrenches(system, q, v, tau)
    np.testing.assert_allclose(-w.multipliers, goal["lambda_"], rtol=1e-7)
    np.testing.assert_allclose(
        mb.forward_dynamics(system, q, v, tau), np.array(goal["qddot"])[own], rtol=1e-7, atol=1e-7 * 5e5
    )


@pytest.mark.slow
def test_andrews_squeezer():
    system, goal = andrews(), ANDREWS["expected"]["high_precision_t_0_03"]
    own = np.array([ORDER.index(name) for name in system.joint_names])
    start = jnp.array(ANDREWS["initial_state"]["q"])[own]
    traj = mb.simulate(system, start, duration=0.03, dt=5e-6, control=andrews_forces, stepper=RK4)
    np.testing.assert_allclose(traj.q[-1], np.array(goal["q"])[own], atol=1e-9)
    np.testing.assert_allclose(traj.v[-1], np.array(goal["qdot"])[own], rtol=1e-8, atol=1e-8 * 1e3)


@pytest.mark.slow
def test_car_axis():
    """Two points on a rigid bar, one of them held square to a bumpy road: constraints that depend on time."""
    data = benchmark("car_axis")
    p = data["parameters_SI"]
    m = p["M"] * p["eps"] ** 2 / 2
    b = mb.Builder(gravity=(0, -p["g"], 0))
    for name in ("left", "right"):
        b.body(name, m)
        b.joint(name, mb.screw_product([mb.prismatic((1, 0, 0)), mb.prismatic((0, 1, 0))]), child=name)

    def wheel(t):
        y = p["r"] * jnp.sin(p["omega"] * t)
        return jnp.stack([jnp.sqrt(p["L"] ** 2 - y**2), y])

    b.constraint("bar", mb.distance(p["L"]), frames=("left", "right"))
    b.constraint("square", mb.holonomic(lambda at: wheel(at.t) @ at.position[0, :2], frames=1), frames=("left",))
    system = b.build()

    def springs(t, q, v):
        def pull(d):
            length = jnp.sqrt(d @ d)
            return (p["L0"] - length) / length * d

        return jnp.concatenate([pull(q[:2]), pull(q[2:] - wheel(t))])

    q, v = jnp.array(data["initial_state"]["p"]), jnp.array(data["initial_state"]["v"])
    traj = mb.simulate(system, q, v, duration=3.0, dt=2.5e-4, control=springs, stepper=RK4)
    goal = np.array(data["expected"]["reference_t_3"])
    np.testing.assert_allclose(traj.q[-1], goal[:4], atol=1e-8)
    np.testing.assert_allclose(traj.v[-1], goal[4:8], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("n, until", [(1, 10.0), (2, 10.0), (5, 10.0), (40, 1.0)])
def test_n_four_bar(n, until):
    """Through singular positions on the parallel branch, twice a turn; the official energy drift is 1e-3 J."""
    expected = benchmark("iftomm_a02_n_four_bar")["expected"][f"N={n}"]
    system, dt = mb.linkages.n_four_bar(n), 5e-3
    bars = np.array([1.0 if name.startswith("pivot") else -1.0 for name in system.joint_names])
    traj = mb.simulate(system, np.pi / 2 * bars, -bars, duration=until, dt=dt, stepper=RK4)
    rows = np.array([row for row in expected["table"] if row[0] <= until])
    at = np.rint(rows[:, 0] / dt).astype(int)
    angle = traj.q[at][:, system.q_slice("pivot0")][:, 0]
    np.testing.assert_allclose(np.stack([np.cos(angle), np.sin(angle)], 1), rows[:, 1:3], atol=1e-7)
    E = jax.vmap(lambda q, v: sum(mb.energy(system, q, v)))(traj.q, traj.v)
    assert np.ptp(E) < 1e-6 * n
    pivots = np.array([name.startswith("pivot") for name in system.joint_names])
    np.testing.assert_allclose(np.ptp(traj.q[:, pivots], 1), 0.0, atol=1e-6)  # all bars stay parallel


@pytest.mark.slow
def test_rigid_slider_crank():
    """The block's acceleration at constant crank speed, and the crank's torque from the power, in closed form."""
    system = mb.linkages.slider_crank()
    angle, speed, (r, l) = 0.7, 150.0, (0.15, 0.3)

    def block(phi):
        return r * jnp.cos(phi) + jnp.sqrt(l**2 - (r * jnp.sin(phi)) ** 2)

    def slope(phi):
        return jax.grad(block)(phi)

    guess = jnp.array([angle, -angle - 0.3, 0.4])
    at = mb.assemble(system, guess, jnp.array([speed, 0.0, 0.0]), fixed=("turn",))
    np.testing.assert_allclose(at.q[2], block(angle), rtol=1e-12)
    np.testing.assert_allclose(at.v[2], slope(angle) * speed, rtol=1e-11)
    mask = jnp.array([True, False, False])
    a, tau = mb.hybrid_dynamics(system, at.q, at.v, jnp.zeros(3), mask)
    np.testing.assert_allclose(a[2], jax.grad(slope)(angle) * speed**2, rtol=1e-10)

    def kinetic(phi):  # of rod and block at constant crank speed, from positions alone
        tilt = jnp.arcsin(r * jnp.sin(phi) / l)

        def centre(phi):
            return jnp.stack(
                [
                    r * jnp.cos(phi) + l / 2 * jnp.sqrt(1 - (r * jnp.sin(phi) / l) ** 2),
                    r * jnp.sin(phi) / 2,
                ]
            )

        spin = jax.grad(lambda x: jnp.arcsin(r * jnp.sin(x) / l))(phi) * speed
        velocity = jax.jvp(centre, (phi,), (speed,))[1]
        m = 0.151104
        return (
            0.5 * m * velocity @ velocity
            + 0.5 * m * l**2 / 12 * spin**2
            + 0.5 * 0.075552 * (slope(phi) * speed) ** 2
            + 0.0 * tilt
        )

    np.testing.assert_allclose(tau[0], jax.grad(kinetic)(angle), rtol=1e-9)


@pytest.mark.slow
def test_stewart_platform_is_held_by_its_slides():
    """Six freedoms; the slides' forces balance gravity in every allowed motion (virtual work, no Jacobian involved)."""
    system = mb.linkages.stewart_platform()
    q = system.neutral_q()
    m = mb.mobility(system, q)
    assert (m.position, m.velocity, m.rows, m.redundant) == (6, 6, 15, 0)
    slides = tuple(f"slide{i}" for i in range(6))
    tau = mb.actuator_forces(system, q, jnp.zeros(21), jnp.zeros(21), slides)
    held = np.array([tau[system.v_slice(name)][0] for name in slides])
    np.testing.assert_allclose(held, held[0], rtol=1e-10)  # by symmetry
    rng = np.random.default_rng(0)
    for _ in range(3):
        _, v = mb.project(system, q, rng.normal(size=21))
        power = jax.jvp(lambda q: mb.energy(system, q, jnp.zeros(21))[1], (q,), (mb.q_dot(system, q, v),))[1]
        np.testing.assert_allclose(tau @ v, power, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_equilibrium_and_frequency_of_a_parallelogram():
    """I angle_dd = -G cos(angle) + torque: equilibrium under a torque, its derivative, and the small oscillation."""
    system = mb.linkages.n_four_bar(1)
    I, G = 2 / 3 + 1.0, 9.81 * 2.0
    bars = np.array([1.0 if name.startswith("pivot") else -1.0 for name in system.joint_names])
    start = jnp.asarray(-1.3 * bars)

    def angle(torque):
        return mb.static_equilibrium(system, start, jnp.zeros(3).at[0].set(torque))[0]

    value, slope = jax.value_and_grad(angle)(2.0)
    np.testing.assert_allclose(G * np.cos(value), 2.0, rtol=1e-10)
    np.testing.assert_allclose(slope, -1.0 / (G * np.sin(value)), rtol=1e-9)
    hanging = jnp.asarray(-np.pi / 2 * bars)
    frequencies, shapes = mb.eigenmodes(system, hanging)
    np.testing.assert_allclose(frequencies, [np.sqrt(G / I)], rtol=1e-10)
    np.testing.assert_allclose(shapes[:, 0] * bars, shapes[0, 0] * np.ones(3), rtol=1e-10)
    with pytest.raises(ValueError, match="unstable: a motion grows at 3.43"):
        mb.eigenmodes(system, -hanging)
