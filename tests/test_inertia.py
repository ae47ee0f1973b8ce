"""Inertias: solids against integrals and one another, meshes against solids, projections against a search, bounds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxmbd as mb
from jaxmbd import inertia

TRIANGLE = np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])


def tensor(body):
    return np.asarray(body.inertia)[TRIANGLE]


def sampled(inside, half, n=120):
    """Inertia per unit mass of the points of a fine grid that lie inside: an independent, crude integral."""
    axes = [(np.arange(n) + 0.5) / n * 2 * h - h for h in half]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    x = x[inside(x)]
    second = x.T @ x / len(x)
    return np.trace(second) * np.eye(3) - second


SOLIDS = {
    "box": (inertia.box(2.0, (0.2, 0.4, 0.6)), lambda x: np.ones(len(x), bool), (0.1, 0.2, 0.3)),
    "ellipsoid": (
        inertia.ellipsoid(2.0, (0.1, 0.2, 0.3)),
        lambda x: (x**2 @ np.array([100.0, 25.0, 100 / 9])) < 1,
        (0.1, 0.2, 0.3),
    ),
    "sphere": (inertia.sphere(2.0, 0.3), lambda x: (x**2).sum(-1) < 0.09, (0.3, 0.3, 0.3)),
    "cylinder": (inertia.cylinder(2.0, 0.2, 0.6), lambda x: (x[:, :2] ** 2).sum(-1) < 0.04, (0.2, 0.2, 0.3)),
    "capsule": (
        inertia.capsule(2.0, 0.2, 0.6),
        lambda x: (x[:, :2] ** 2).sum(-1) + np.maximum(np.abs(x[:, 2]) - 0.3, 0.0) ** 2 < 0.04,
        (0.2, 0.2, 0.5),
    ),
}


@pytest.mark.parametrize("name", SOLIDS)
def test_solids_are_what_a_grid_of_points_is(name):
    body, inside, half = SOLIDS[name]
    expected = float(body.mass) * sampled(inside, half)
    # midpoints of 120 cells an axis: 1e-4 for flat sides, a few 1e-3 where cells straddle a curved one
    np.testing.assert_allclose(tensor(body), expected, atol=3e-3 * np.abs(expected).max())
    np.testing.assert_array_equal(body.com, 0.0)


def test_a_rod_is_the_textbook_rod():
    np.testing.assert_allclose(inertia.rod(3.0, 2.0).inertia, [1.0, 0.0, 0.0, 1.0, 0.0, 0.0])


def sphere_mesh(rings=24, sectors=48):
    """A closed surface of triangles about the unit ball; vertices on the ball."""
    polar, around = np.pi * np.arange(1, rings) / rings, 2 * np.pi * np.arange(sectors) / sectors
    body = [[np.sin(p) * np.cos(a), np.sin(p) * np.sin(a), np.cos(p)] for p in polar for a in around]

    def at(r, s):
        return 1 + r * sectors + s % sectors

    faces = [(0, at(0, s), at(0, s + 1)) for s in range(sectors)]
    for r in range(rings - 2):
        for s in range(sectors):
            a, b, c, d = at(r, s), at(r + 1, s), at(r + 1, s + 1), at(r, s + 1)
            faces += [(a, b, c), (a, c, d)]
    last = 1 + (rings - 1) * sectors
    faces += [(at(rings - 2, s), last, at(rings - 2, s + 1)) for s in range(sectors)]
    return np.array([[0.0, 0.0, 1.0], *body, [0.0, 0.0, -1.0]]), np.array(faces)


CUBE = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)
CUBE_FACES = np.array(
    [
        [0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1],
        [2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3],
    ]
)  # fmt: skip


def test_a_mesh_of_a_box_is_the_box():
    size, corner = np.array([0.2, 0.4, 0.6]), np.array([3.0, -2.0, 1.0])
    body = inertia.mesh(CUBE * size + corner, CUBE_FACES, density=500.0)
    expected = inertia.box(500.0 * size.prod(), size)
    np.testing.assert_allclose(body.mass, expected.mass, rtol=1e-12)
    np.testing.assert_allclose(body.com, corner + size / 2, rtol=1e-12)
    np.testing.assert_allclose(tensor(body), tensor(expected), atol=1e-11)  # cancels 14 m^2 per kg: 1e-16 * 1e3


def test_a_mesh_of_a_ball_tends_to_the_ball():
    errors = []
    for rings in (12, 24):
        vertices, faces = sphere_mesh(rings, 2 * rings)
        body = inertia.mesh(0.3 * vertices, faces, mass=2.0)
        errors.append(np.abs(tensor(body) - tensor(inertia.sphere(2.0, 0.3))).max())
    assert errors[1] < 2e-3 and 3.5 < errors[0] / errors[1] < 4.5  # second order in the edge length


def test_a_mesh_is_differentiable_in_its_vertices():
    def xx(stretch):
        return inertia.mesh(stretch * CUBE, CUBE_FACES, density=1.0).inertia[0]

    # a cube of edge s: s^3 s^2 / 6
    np.testing.assert_allclose(jax.grad(xx)(2.0), 5 * 2.0**4 / 6, rtol=1e-12)
    np.testing.assert_allclose(jax.jvp(xx, (2.0,), (1.0,))[1], 5 * 2.0**4 / 6, rtol=1e-12)


def test_meshes_that_bound_nothing_are_refused():
    with pytest.raises(ValueError, match="not closed: 3 edges.*no face on the other side"):
        inertia.mesh(CUBE, CUBE_FACES[1:], density=1.0)
    with pytest.raises(ValueError, match="volume of -1.*anticlockwise"):
        inertia.mesh(CUBE, CUBE_FACES[:, ::-1], density=1.0)
    with pytest.raises(ValueError, match="density .* or its mass"):
        inertia.mesh(CUBE, CUBE_FACES)
    with pytest.raises(ValueError, match="name vertices 0 to 7; there are 7"):
        inertia.mesh(CUBE[:7], CUBE_FACES, mass=1.0)
    with pytest.raises(ValueError, match="rows of three indices"):
        inertia.mesh(CUBE, CUBE_FACES.astype(float), mass=1.0)


def test_capsules_are_cylinders_and_half_balls_joined():
    r, l = 0.2, 0.7
    volume = np.pi * r**2 * l + 4 / 3 * np.pi * r**3
    half = 2 / 3 * np.pi * r**3 / volume
    # a half ball about its own com: its moments about the flat side, moved by 3 r / 8
    low = 2 / 5 * half * r**2 - half * (3 * r / 8) ** 2
    cap = inertia.Inertial(jnp.asarray(half), jnp.zeros(3), jnp.diag(jnp.array([low, low, 2 / 5 * half * r**2])))
    cap = cap._replace(inertia=cap.inertia[np.triu_indices(3)])
    end = l / 2 + 3 * r / 8
    whole = inertia.joined(
        inertia.cylinder(np.pi * r**2 * l / volume, r, l),
        inertia.moved(cap, mb.Pose((0.0, 0.0, end))),
        inertia.moved(cap, mb.Pose((0.0, 0.0, -end), (0.0, 1.0, 0.0, 0.0))),
    )
    for ours, theirs in zip(inertia.capsule(1.0, r, l), whole, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-14)


def random_body(seed):
    """A cloud of points, hence a valid inertia in general position."""
    rng = np.random.default_rng(seed)
    m, x = rng.uniform(0.1, 1.0, 8), rng.normal(size=(8, 3))
    com = m @ x / m.sum()
    second = np.einsum("k,ki,kj->ij", m, x - com[None], x - com[None])
    full = np.trace(second) * np.eye(3) - second
    return inertia.Inertial(jnp.asarray(m.sum()), jnp.asarray(com), jnp.asarray(full[np.triu_indices(3)])), (m, x)


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_pseudo_inertia_is_the_second_moment_of_the_points(seed):
    body, (m, x) = random_body(seed)
    homogeneous = np.concatenate([x, np.ones((8, 1))], 1)
    P = np.einsum("k,ki,kj->ij", m, homogeneous, homogeneous)
    np.testing.assert_allclose(inertia.pseudo_inertia(body), P, atol=1e-12)
    for ours, theirs in zip(inertia.from_pseudo_inertia(jnp.asarray(P)), body, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    assert inertia.doubt(body) == "" and inertia.eigenvalues(body)[0] > 0


@functools.cache
def cholesky_map():
    return jax.jit(lambda theta: inertia.from_log_cholesky(theta)), jax.jit(jax.jacfwd(inertia.from_log_cholesky))


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_log_cholesky_and_its_inverse(seed):
    body, _ = random_body(seed)
    theta = inertia.log_cholesky(body)
    back = cholesky_map()[0](theta)
    for ours, theirs in zip(back, body, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-11)
    # the factor that the paper prints, multiplied out
    a, d1, d2, d3, s12, s23, s13, t1, t2, t3 = np.asarray(theta)
    e = np.exp
    U = e(a) * np.array([[e(d1), s12, s13, t1], [0, e(d2), s23, t2], [0, 0, e(d3), t3], [0, 0, 0, 1]])
    np.testing.assert_allclose(U @ U.T, inertia.pseudo_inertia(body), atol=1e-11)


@given(st.lists(st.floats(-2.0, 2.0), min_size=10, max_size=10))
@settings(max_examples=30, deadline=None)
def test_every_vector_of_parameters_is_a_body(theta):
    theta = jnp.asarray(theta)
    body = cholesky_map()[0](theta)
    assert inertia.doubt(body, rounding=1e-12) == "" and float(body.mass) > 0
    J = np.concatenate([np.reshape(x, (-1, 10)) for x in cholesky_map()[1](theta)])
    assert np.isfinite(J).all() and np.linalg.matrix_rank(J, 1e-12) == 10  # a diffeomorphism: no dead directions


def test_log_cholesky_names_the_boundary():
    with pytest.raises(ValueError, match=r"eigenvalues .*log-Cholesky parameters need all of them above zero.*nearest"):
        inertia.log_cholesky(inertia.rod(1.0, 1.0))
    inside = inertia.nearest(inertia.rod(1.0, 1.0), least=1e-4)
    again = inertia.from_log_cholesky(inertia.log_cholesky(inside))
    np.testing.assert_allclose(again.inertia, inside.inertia, atol=1e-12)


BAD = inertia.Inertial(
    jnp.asarray(2.0), jnp.array([0.1, 0.2, 0.3]), jnp.array([1.0, 0.1, -0.2, 1.5, 0.05, 4.0])
)  # 4 > 1 + 1.5


def test_the_nearest_inertia_is_nearest():
    """No valid body near the projection is nearer: random neighbours, and the conditions of optimality."""
    near = inertia.nearest(BAD)
    assert inertia.eigenvalues(BAD)[0] < -0.1 and inertia.eigenvalues(near)[0] > -1e-14
    np.testing.assert_array_equal(near.com, BAD.com)

    def second(t):
        return 0.5 * np.trace(t) * np.eye(3) - t

    S, S0 = second(tensor(near)), second(tensor(BAD))
    rng = np.random.default_rng(0)
    for _ in range(200):
        w = rng.normal(size=(3, 3)) * 0.3
        other = (np.linalg.cholesky(S + 1e-9 * np.eye(3)) + w) @ (np.linalg.cholesky(S + 1e-9 * np.eye(3)) + w).T
        assert np.linalg.norm(other - S0) >= np.linalg.norm(S - S0) - 1e-9
    # the step is orthogonal to the projection and positive semi-definite (Moreau)
    assert abs(np.sum((S - S0) * S)) < 1e-13 and np.linalg.eigvalsh(S - S0)[0] > -1e-14


def test_valid_inertias_stay_as_they_are():
    for body in (random_body(3)[0], inertia.rod(1.0, 2.0), inertia.sphere(1.0, 0.3)):
        near = inertia.nearest(body)
        np.testing.assert_allclose(near.inertia, body.inertia, atol=1e-14)


def check_nearest_gradient(six, least):
    def f(six):
        return inertia.nearest(inertia.Inertial(jnp.asarray(2.0), jnp.zeros(3), six), least).inertia

    forward, reverse = jax.jacfwd(f)(six), jax.jacrev(f)(six)
    np.testing.assert_allclose(forward, reverse, atol=1e-12)
    h = 1e-6
    numeric = np.stack([(f(six + h * e) - f(six - h * e)) / (2 * h) for e in np.eye(6)], 1)
    np.testing.assert_allclose(forward, numeric, atol=1e-8)


def test_gradient_of_the_projection():
    check_nearest_gradient(BAD.inertia, 0.0)
    check_nearest_gradient(jnp.array([1.0, 0.0, 0.0, 1.0, 0.0, 3.0]), 0.1)  # two second moments coincide
    check_nearest_gradient(inertia.sphere(2.0, 0.5).inertia, 0.0)  # all three do
    check_nearest_gradient(inertia.sphere(2.0, 0.5).inertia, 1.0)  # and are raised


def test_solids_are_differentiable():
    def total(radius, length):
        body = inertia.capsule(1.0, radius, length)
        return jnp.sum(body.inertia)

    for radius, length in ((0.2, 0.5), (0.2, 0.0)):
        g = jax.grad(total, (0, 1))(radius, length)
        h = 1e-6
        np.testing.assert_allclose(g[0], (total(radius + h, length) - total(radius - h, length)) / (2 * h), rtol=1e-6)
        np.testing.assert_allclose(g[1], (total(radius, length + h) - total(radius, length - h)) / (2 * h), rtol=1e-6)
    assert inertia.capsule(jnp.float32(1.0), jnp.float32(0.1), jnp.float32(0.2)).inertia.dtype == jnp.float32


def test_builder_doubts_what_no_body_has():
    b = mb.Builder()
    text = (
        r"Body 'plate': a principal moment exceeds the sum of the others \(1.0, 1.0, 3.0 kg m\^2\), so that its "
        r"pseudo-inertia at the com has the eigenvalues -0.5, 1.5, 1.5, 2.0; all must be zero or more. The nearest "
        r"inertia that a body can have is .* 1.5, 0.0, 0.0, 1.5, 0.0, 3.0"
    )
    with pytest.warns(UserWarning, match=text):
        b.body("plate", 2.0, inertia=np.diag([1.0, 1.0, 3.0]))
    with pytest.warns(UserWarning, match="'a': it has inertia but no mass"):
        b.body("a", 0.0, inertia=np.eye(3))
    with pytest.warns(UserWarning, match="'n': a principal moment is negative"):
        b.body("n", 1.0, inertia=np.diag([1.0, 1.0, -0.1]))


@pytest.mark.filterwarnings("error")
def test_builder_accepts_points_rods_and_plates():
    b = mb.Builder()
    b.body("point", 1.0)
    b.body("rod", *inertia.rod(1.0, 1.0))
    b.body("plate", *inertia.box(1.0, (0.3, 0.4, 0.0)))
    b.body("nothing")
    b.body("dust", 1e-9, inertia=np.diag([1e-30, 1e-30, 2e-30 * (1 + 1e-12)]))
