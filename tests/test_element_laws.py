"""Force elements against closed forms, other formulations and the vehicle of Attia's paper."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmbd as mb
from jaxmbd import elements as el

RK4 = mb.RungeKuttaMuntheKaas4()
G = 9.81
ZERO = el.Vec3(0.0, 0.0, 0.0)


def at(position=(0.0, 0.0, 0.0), velocity=(0.0, 0.0, 0.0), omega=(0.0, 0.0, 0.0), rotation=None):
    """Motion of a frame from arrays."""
    R = jnp.eye(3) if rotation is None else rotation
    position, velocity, omega = (el.Vec3.of(jnp.asarray(x, float)) for x in (position, velocity, omega))
    return el.FrameState(el.Mat3.of(R), position, omega, velocity)


def six(force):
    return np.array([float(x) for x in jax.tree.leaves(force)])


def particle(gravity=0.0, mass=1.0):
    b = mb.Builder(gravity=(0, 0, -gravity))
    b.body("p", mass=mass)
    b.joint("move", mb.translational(), child="p")
    return b.build()


def ball(radius, mass=2.0):
    b = mb.Builder(gravity=(0, 0, -G))
    b.body("ball", mass=mass, inertia=0.4 * mass * radius**2 * np.eye(3))
    b.joint("root", mb.free(), child="ball")
    return b.build()


def free_state(position, velocity=(0.0, 0.0, 0.0)):
    return jnp.array([1.0, 0, 0, 0, *position]), jnp.array([0.0, 0, 0, *velocity])


def test_spring_of_free_length_zero_through_its_centre():
    """p = p0 cos(w t), through distance zero, where nothing may break; w^2 = k / m."""
    system, k = particle(), 4.0
    steps = 800
    dt = np.pi / 400  # the centre is met exactly at step 100
    traj = mb.simulate(
        system,
        jnp.array([0.3, -0.2, 0.6]),
        duration=steps * dt,
        dt=dt,
        forces=(el.Spring("world", "p", k),),
        stepper=RK4,
    )
    exact = np.array([0.3, -0.2, 0.6]) * np.cos(2.0 * np.asarray(traj.t))[:, None]
    np.testing.assert_allclose(traj.q, exact, atol=2e-8)


@pytest.mark.slow
def test_spring_pendulum():
    """A mass on a spring with free length: energy and angular momentum about the vertical stay; it hangs at rest."""
    system, k, rest = particle(G, 0.5), 60.0, 0.4
    spring = el.Spring("world", "p", k, 0.0, rest)
    hang = jnp.array([0.0, 0.0, -(rest + 0.5 * G / k)])
    loads = el.evaluate(system, (spring,), hang)
    np.testing.assert_allclose(
        mb.forward_dynamics(system, hang, jnp.zeros(3), loads.tau, loads.wrenches), 0, atol=1e-12
    )

    q, v = jnp.array([0.3, 0.0, -0.3]), jnp.array([0.1, 0.5, 0.0])
    traj = mb.simulate(system, q, v, duration=2.0, dt=5e-3, forces=(spring,), stepper=RK4)
    p, u = np.asarray(traj.q), np.asarray(traj.v)
    energy = 0.25 * np.sum(u**2, 1) + 0.5 * G * p[:, 2] + 0.5 * k * (np.linalg.norm(p, axis=1) - rest) ** 2
    np.testing.assert_allclose(energy, energy[0], atol=1e-6 * k * rest**2)
    np.testing.assert_allclose(p[:, 0] * u[:, 1] - p[:, 1] * u[:, 0], 0.15, atol=1e-8)
    kinetic, potential = jax.jit(jax.vmap(lambda q, v: el.energy(system, (spring,), q, v)))(traj.q, traj.v)
    np.testing.assert_allclose(kinetic + potential, energy, rtol=1e-12)


def test_damper_and_smoothed_spring():
    """Tension k (l - rest) + c dl/dt with l^2 = distance^2 + smoothing^2."""
    a, b = at((0.1, 0, 0), (0, 1.0, 0)), at((0.1, 0.6, 0.8), (0.5, 2.0, -1.0))
    d, u = np.array([0, 0.6, 0.8]), np.array([0.5, 1.0, -1.0])
    for smooth in (0.0, 0.75):
        l = np.hypot(1.0, smooth)
        pull = (30.0 * (l - 0.4) + 2.0 * (d @ u) / l) * d / l
        force_a, force_b = el.Spring("a", "b", 30.0, 2.0, 0.4, smoothing=smooth).wrenches((a, b), 0.0)
        np.testing.assert_allclose(six(force_a), [0, 0, 0, *pull], rtol=1e-12)
        np.testing.assert_allclose(six(force_b), [0, 0, 0, *-pull], rtol=1e-12)


def hinge(**passive):
    b = mb.Builder(gravity=(0, 0, -G))
    b.body("base", mass=2.0, inertia=np.eye(3))
    b.joint("ball", mb.spherical(), child="base")
    b.body("rod", mass=1.0, com=(0, 0, -0.3), inertia=0.1 * np.eye(3))
    turned = mb.Pose((0.1, 0, 0), (0.8, 0.1, 0.5, -0.3))
    b.joint("hinge", mb.revolute((0, 1, 0)), parent="base", child="rod", in_parent=turned, in_child=turned, **passive)
    return b.build()


@pytest.mark.slow
@pytest.mark.parametrize("rest", [0.4, -3.0])
def test_torsion_spring_is_the_spring_of_a_hinge(rest):
    """Against the joint's own spring and damper, up to half a turn from rest."""
    R = mb.Pose((0, 0, 0), (0.8, 0.1, 0.5, -0.3)).rotation
    spring = el.TorsionSpring("base", "rod", R @ jnp.array([0, 2.0, 0]), 7.0, 0.5, rest)
    plain, sprung = hinge(), hinge(stiffness=7.0, damping=0.5, rest=rest)

    @jax.jit
    @jax.vmap
    def both(q, v):
        loads = el.evaluate(plain, (spring,), q, v)
        return (
            mb.forward_dynamics(plain, q, v, loads.tau, loads.wrenches),
            mb.forward_dynamics(sprung, q, v, loads.tau),
        )

    q, v = jax.vmap(mb.random_state, (None, 0))(plain, jax.random.split(jax.random.key(0), 8))
    q = q.at[:, 4].set(rest + jnp.linspace(-3.1, 3.1, 8))
    a, b = both(q, v)
    np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.slow
@pytest.mark.contract("S4-06")
def test_bushing_is_a_free_joint_with_springs():
    """The unconstrained joint: against the springs of a free joint, which takes the same six deflections."""
    k = np.array([4.0, 5.0, 6.0, 70.0, 80.0, 90.0])

    def system(**passive):
        b = mb.Builder(gravity=(0, 0, -G))
        b.body("base", mass=2.0, inertia=np.eye(3))
        b.joint("slide", mb.prismatic((1, 0, 0)), child="base")
        b.body("block", mass=1.0, com=(0.1, 0, -0.3), inertia=0.1 * np.eye(3))
        at = mb.Pose((0.1, 0, 0), (0.8, 0.1, 0.5, -0.3))
        b.joint("free", mb.free(), parent="base", child="block", in_parent=at, **passive)
        b.frame("seat", on="base", pose=at)
        return b.build()

    plain, sprung = system(), system(stiffness=k)
    bushing = el.Bushing("seat", "block", k)

    @jax.jit
    @jax.vmap
    def both(q, v):
        loads = el.evaluate(plain, (bushing,), q, v)
        free = mb.forward_dynamics(plain, q, v, loads.tau, loads.wrenches)
        return (
            free,
            mb.forward_dynamics(sprung, q, v, loads.tau),
            loads.potential[0],
            mb.energy(sprung, q, v)[1],
            mb.energy(plain, q, v)[1],
        )

    q, v = jax.vmap(mb.random_state, (None, 0))(plain, jax.random.split(jax.random.key(0), 8))
    a, b, own, with_springs, without = both(q, v)
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(own, with_springs - without, rtol=1e-11)


def test_bushing_with_a_matrix_and_damping():
    """At small deflections the load is -K e - D e_dot, component by component."""
    rng = np.random.default_rng(0)
    K, D = (m @ m.T for m in rng.normal(size=(2, 6, 6)))
    e, rate = 1e-7 * rng.normal(size=6), 1e-6 * rng.normal(size=6)
    moved = at(e[3:], rate[3:], rate[:3], mb.Pose((0, 0, 0), (1.0, *(0.5 * e[:3]))).rotation)
    on_a, on_b = el.Bushing("a", "b", K, D).wrenches((at(), moved), 0.0)
    np.testing.assert_allclose(six(on_b), -K @ e - D @ rate, rtol=1e-5, atol=1e-11)
    np.testing.assert_allclose(six(on_a), K @ e + D @ rate, rtol=1e-5, atol=1e-11)


GOLDEN = json.loads((Path(__file__).parent / "data" / "attia_vehicle_equilibrium.json").read_text())


@pytest.mark.slow
def test_tyres_and_springs_of_the_vehicle():
    """Static forces of the golden vehicle, and the static deflection of a wheel on its tyre."""
    tyres = GOLDEN["tyre"]
    heights = np.array(GOLDEN["wheel_centre_heights"])
    states = el.FrameState(
        el.Mat3.identity(), el.Vec3(0 * heights, 0 * heights, jnp.asarray(heights)), ZERO, el.Vec3(0.0, 0.0, 0.0)
    )
    for lift_off in (False, True):
        tyre = el.Tyre(("w",) * 4, tyres["radius"], tyres["stiffness"], tyres["damping"], lift_off=lift_off)
        (force,) = tyre.wrenches((states,), 0.0)
        np.testing.assert_allclose(force.force.z, GOLDEN["tyre_forces"], rtol=1e-10)
        np.testing.assert_allclose(np.sum(force.force.z), GOLDEN["total_weight"], rtol=1e-10)
    lengths, spring = np.array(GOLDEN["spring_lengths"]), GOLDEN["spring"]
    rests = [spring["l0_front"]] * 2 + [spring["l0_rear"]] * 2
    for length, rest, expected in zip(lengths, rests, GOLDEN["spring_forces"], strict=True):
        push, _ = el.Spring("a", "b", spring["K"], spring["D"], rest).wrenches((at(), at((0, 0, length))), 0.0)
        np.testing.assert_allclose(-push.force.z, expected, rtol=1e-10)

    system = particle(G, 228.0)
    tyre = el.Tyre("p", tyres["radius"], tyres["stiffness"], tyres["damping"])
    traj = mb.simulate(system, jnp.array([0.0, 0.0, 0.4]), duration=1.5, dt=5e-3, forces=(tyre,), stepper=RK4)
    np.testing.assert_allclose(traj.q[-1, 2], 0.35 - 228.0 * G / 150e3, atol=1e-6)


def test_tyre_lift_off():
    """No force above the radius, no pull below it; the tyre without lift-off pulls."""
    up, leaving = at((0, 0, 0.4)), at((0, 0, 0.34), (0, 0, 2.0))
    pulls, lifts = (el.Tyre("w", 0.35, 150e3, 13e3, lift_off=flag) for flag in (False, True))
    for state in (up, leaving):
        assert float(pulls.wrenches((state,), 0.0)[0].force.z) < -1e3
        assert float(lifts.wrenches((state,), 0.0)[0].force.z) == 0.0
    assert float(lifts.wrenches((at((0, 0, 0.34), (0, 0, -0.1)),), 0.0)[0].force.z) == pytest.approx(1500 + 1300)
    tilted = el.Tyre("w", 0.35, 150e3, ground=el.Plane((0, 0, 1.0), (0, 3.0, 4.0)))
    np.testing.assert_allclose(
        six(tilted.wrenches((at((7, 0.2, 1.1)),), 0.0)[0])[3:], [0, 0.6 * 150e3 * 0.15, 0.8 * 150e3 * 0.15]
    )


def bounce(system, dissipation, height, speed):
    """Trajectory of a ball that meets the ground, with its loads and energy."""
    contact = (el.Contact("ball", 1e5, dissipation, radius=0.1),)
    q, v = free_state((0, 0, 0.1 + height), (0, 0, -speed))
    traj = mb.simulate(system, q, v, duration=0.5, dt=2e-4, forces=contact, stepper=RK4)
    loads, potential = books(system, contact, traj.q, traj.v)
    return traj, loads, np.sum(np.asarray(traj.v)[:, 3:] ** 2, 1) + np.asarray(potential)


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, None, 0, 0))
def books(system, contact, q, v):
    loads = el.evaluate(system, contact, q, v)
    return loads, loads.potential[0] - 2.0 * system.gravity @ q[4:]


@pytest.mark.slow
def test_bouncing_sphere():
    """Without dissipation the energy stays. With it, loss = heat, and the speeds v and e v before and after meet

    c v - ln(1 + c v) = -c e v - ln(1 - c e v), c = 3/2 d: the integral of u / (1 + c u) over the contact vanishes.
    """
    system = ball(0.1)
    traj, _, energy = bounce(system, 0.0, 0.3, 0.0)
    np.testing.assert_allclose(energy, energy[0], atol=1e-5 * energy[0])
    assert np.asarray(traj.q)[:, 6].min() < 0.1 and float(traj.v[-1, 5]) > 0

    d, v = 0.3, 2.0
    traj, loads, energy = bounce(system.replace({"gravity": (0.0, 0.0, 0.0)}), d, 0.05, v)
    heat = 0.5 * 2e-4 * np.cumsum(np.asarray(loads.dissipation)[1:, 0] + np.asarray(loads.dissipation)[:-1, 0])
    np.testing.assert_allclose(energy[1:] + heat, energy[0], atol=1e-4 * energy[0])
    x, y = 1.5 * d * v, 1.5 * d * float(traj.v[-1, 5])
    assert x - np.log1p(x) == pytest.approx(-y - np.log1p(-y), rel=1e-4)
    assert float(traj.v[-1, 5]) < 0.7 * v
    force = np.asarray(loads.sides[0][0])[:, 5]
    assert force.max() > 100 and force.min() >= 0


def test_static_depth_of_a_sphere():
    """m g = k d^1.5."""
    depth = (2.0 * G / 1e5) ** (2 / 3)
    system = ball(0.1)
    q, v = free_state((0, 0, 0.1 - depth))
    loads = el.evaluate(system, (el.Contact("ball", 1e5, 0.3, 0.5, radius=0.1),), q, v)
    np.testing.assert_allclose(mb.forward_dynamics(system, q, v, loads.tau, loads.wrenches), 0, atol=1e-10)


@pytest.mark.slow
def test_a_sliding_ball_comes_to_roll():
    """Friction slows a sliding ball to 5/7 of its speed, whatever the law of friction; then it rolls."""
    depth = (2.0 * G / 1e5) ** (2 / 3)
    system, contact = ball(0.1), el.Contact("ball", 1e5, 0.3, 0.5, radius=0.1, slip_speed=1e-3)
    q, v = free_state((0, 0, 0.1 - depth), (1.0, 0, 0))
    traj = mb.simulate(system, q, v, duration=0.3, dt=2e-4, forces=(contact,), stepper=RK4)
    k = jax.jit(jax.vmap(mb.kinematics, (None, 0, 0)))(system, traj.q, traj.v)["ball"]
    # the lever of friction is shorter by the depth: v = 1 / (1 + 0.4 R^2 / (R - d)^2)... to first order in d / R
    assert float(k.velocity[-1, 3]) == pytest.approx(5 / 7, abs=2 * depth / 0.1)
    assert float(k.velocity[-1, 1]) == pytest.approx(5 / 7 / 0.1, rel=3 * depth / 0.1)
    slowing = -(np.asarray(k.velocity)[100, 3] - np.asarray(k.velocity)[0, 3]) / (100 * 2e-4)
    assert slowing == pytest.approx(0.5 * G, rel=1e-3)


def test_height_field():
    """Through its points, with a continuous slope; on a plane it is the plane; flat beyond the border."""
    grid = np.linspace(-1.0, 1.0, 7)
    x, y = np.meshgrid(grid, grid[:5], indexing="ij")
    z = np.sin(2 * x) + 0.3 * x * y
    field = el.HeightField(z, (-1.0, -1.0), (1 / 3, 1 / 3))
    height = jax.jit(jax.vmap(field.height))
    np.testing.assert_allclose(height(jnp.asarray(x.ravel()), jnp.asarray(y.ravel())), z.ravel(), atol=1e-13)
    slope = jax.jit(jax.vmap(jax.grad(field.height)))
    inner, eps = jnp.asarray(grid[1:-1]), 1e-10
    np.testing.assert_allclose(slope(inner - eps, 0 * inner), slope(inner + eps, 0 * inner), atol=1e-8)
    np.testing.assert_allclose(height(jnp.array([5.0]), jnp.array([0.0])), height(jnp.array([1.0]), jnp.array([0.0])))

    tilt = el.HeightField(0.5 + 0.2 * x - 0.1 * y, (-1.0, -1.0), (1 / 3, 1 / 3))
    plane = el.Plane((0, 0, 0.5), (-0.2, 0.1, 1.0))
    state = at((0.13, -0.4, 0.6), (0.3, -0.2, -0.5), (1.0, 2.0, 3.0))
    on_field, on_plane = (
        el.Contact("f", 1e3, 0.2, 0.4, radius=0.3, ground=ground).wrenches((state,), 0.0)[0] for ground in (tilt, plane)
    )
    assert np.abs(six(on_plane)).max() > 10
    np.testing.assert_allclose(six(on_field), six(on_plane), rtol=1e-11, atol=1e-11)


def test_central_gravity_of_a_dumbbell():
    """Force and torque of two point masses, added up, to the order of (size / distance)^4."""
    r, arm, m, mu = np.array([1.0, 2.0, 2.0]), np.array([0.003, -0.004, 0.012]), 0.7, 5.0
    inertia = 2 * m * (arm @ arm * np.eye(3) - np.outer(arm, arm))
    state = el.BodyState(
        jnp.array(2 * m), el.Sym3.of(jnp.asarray(inertia)), el.Mat3.identity(), el.Vec3(*r), ZERO, ZERO
    )
    gravity = el.CentralGravity(mu)
    found = six(gravity.wrenches(state, 0.0))
    forces = [-mu * m * p / np.linalg.norm(p) ** 3 for p in (r + arm, r - arm)]
    monopole = -2 * mu * m * r / np.linalg.norm(r) ** 3
    torque = np.cross(arm, forces[0]) + np.cross(-arm, forces[1])
    small = (arm @ arm) / (r @ r)
    np.testing.assert_allclose(found[:3], torque, atol=10 * small * np.abs(torque).max())
    second = np.sum(forces, 0) - monopole
    np.testing.assert_allclose(found[3:] - monopole, second, atol=10 * small * np.abs(second).max() + 1e-15)
    energy = sum(-mu * m / np.linalg.norm(p) for p in (r + arm, r - arm))
    assert float(gravity.potential(state, 0.0)) == pytest.approx(energy, rel=10 * small**2)


@pytest.mark.slow
def test_gravity_gradient_libration():
    """Pitch frequency n sqrt(3 (I_roll - I_yaw) / I_pitch) on a circular orbit."""
    mu, radius = 8.0, 2.0
    b = mb.Builder(gravity=(0, 0, 0))
    b.body("craft", mass=1e6, inertia=np.diag([1e-4, 4e-4, 3e-4]))
    b.joint("root", mb.free(), child="craft")
    system, n2 = b.build(), mu / radius**3

    def pitch_acceleration(angle):
        half = 0.5 * angle
        q = jnp.stack([jnp.cos(half), 0.0, jnp.sin(half), 0.0, radius, 0.0, 0.0])
        loads = el.evaluate(system, (el.CentralGravity(mu),), q)
        return mb.forward_dynamics(system, q, jnp.zeros(6), loads.tau, loads.wrenches)[1]

    slope = jax.jit(jax.grad(pitch_acceleration))(0.0)
    np.testing.assert_allclose(slope, -3 * n2 * (3e-4 - 1e-4) / 4e-4, rtol=1e-6)


def test_a_uniform_field_is_gravity():
    b = mb.Builder(gravity=(0.3, 0, -G))
    b.body("rod", mass=1.0, com=(0, 0, -0.5), inertia=0.1 * np.eye(3))
    b.joint("ball", mb.spherical(), child="rod")
    system = b.build()
    weightless = system.replace({"gravity": (0.0, 0.0, 0.0)})
    q, v = mb.random_state(system, jax.random.key(0))
    expected = mb.forward_dynamics(system, q, v, jnp.zeros(3))
    for field in (
        el.Field(lambda p, t: jnp.array([0.3, 0, -G])),
        el.Field(potential=lambda p, t: -jnp.array([0.3, 0, -G]) @ p),
    ):
        loads = el.evaluate(weightless, (field,), q, v)
        np.testing.assert_allclose(
            mb.forward_dynamics(weightless, q, v, loads.tau, loads.wrenches), expected, atol=1e-13
        )


@pytest.mark.slow
def test_energy_books_of_contact_over_a_run():
    """Two spinning balls bounce and slide, on a plane and on hills: what energy is gone is heat, to the steps' error.

    Contact begins and ends within steps of 0.1 ms, where the force has a kink: some 1e-5 of the heat.
    """
    x, y = np.meshgrid(np.linspace(-2, 2, 9), np.linspace(-2, 2, 9), indexing="ij")
    hills = el.HeightField(0.1 * np.sin(2 * x) * np.cos(y), origin=(-2.0, -2.0), spacing=(0.5, 0.5))
    b = mb.Builder()
    for name in ("flat", "hilly"):
        b.body(name, mass=1.0, inertia=0.004 * np.eye(3))
        b.joint(name, mb.free(), child=name)
    system = b.build()
    grounds = (("flat", None), ("hilly", hills))
    floors = tuple(el.Contact(name, 5e3, 0.3, 0.4, radius=0.1, ground=ground) for name, ground in grounds)
    q = system.neutral_q().at[jnp.array([6, 13])].set(jnp.array([0.15, 0.25])).at[jnp.array([11, 12])].set(0.2)
    v = jnp.array([0.0, 8.0, 1.0, 0.7, 0.0, -1.0] * 2)
    h = 1e-4

    @jax.jit
    def books(q, v, t):
        loads = el.evaluate(system, floors, q, v, None, t)
        return sum(mb.energy(system, q, v)) + jnp.sum(loads.potential), loads.dissipation

    record = {"books": lambda t, q, v: books(q, v, t), "q": "q"}
    run = mb.simulate(system, q, v, duration=0.5, dt=h, forces=floors, stepper=RK4, record=record)
    energy, heat = (np.asarray(part) for part in run["books"])
    lost = h / 3 * (heat[0] + heat[-1] + 4 * heat[1:-1:2].sum(0) + 2 * heat[2:-1:2].sum(0))
    assert np.all(lost > 0.1) and np.asarray(run["q"])[:, 6].min() < 0.1
    assert abs(energy[-1] - energy[0] + lost.sum()) < 1e-4 * lost.sum()
