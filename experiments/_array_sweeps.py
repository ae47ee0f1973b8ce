"""Forward dynamics of hinge trees with [6] and [6, 6] arrays: what the bench compares component sweeps with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def array_sweeps(system) -> Callable:
    """Forward dynamics by the same three sweeps with [6] and [6, 6] arrays, in body axes (Featherstone 2008, ch. 7).

    This is the layout that most JAX codes have. For trees of hinges whose root may float.
    """
    import jax
    import jax.numpy as jnp

    from jaxmbd.tree import BASE, Tree, depth_first_order, scan_inward, scan_outward

    parents, order, home, origin, axis, inertia, free = flat_bodies(system)
    tree = Tree.from_parents(parents)
    dtype = system.gravity.dtype
    home, origin, inertia = (jnp.asarray(x, dtype) for x in (home, origin, inertia))
    assert depth_first_order(parents) == list(range(tree.size)), "slots in sweep order"
    modes = jnp.asarray(np.hstack([axis, np.zeros_like(axis)]), dtype)
    if free:
        modes = modes.at[:6].set(jnp.eye(6, dtype=dtype))
    moving_base = jnp.asarray([p == BASE or i < free for i, p in enumerate(parents)])
    cross_axis = jnp.asarray([cross_matrix(a) for a in axis], dtype)

    def crm(v):
        w, u = skew(v[:3]), skew(v[3:])
        return jnp.block([[w, jnp.zeros((3, 3), dtype)], [u, w]])

    def skew(a):
        zero = jnp.zeros((), dtype)
        return jnp.array([[zero, -a[2], a[1]], [a[2], zero, -a[0]], [-a[1], a[0], zero]])

    def velocities(v_parent, xs):
        R, p, mode, still, inertia, qd = xs
        X = jnp.block([[R.T, jnp.zeros((3, 3), dtype)], [-R.T @ skew(p), R.T]])
        v = X @ v_parent + mode * qd
        c = jnp.where(still, 0.0, crm(v) @ (mode * qd))
        return v, (X, c, inertia, -crm(v).T @ (inertia @ v))

    def elimination(carry, xs):
        P, z = carry
        X, c, inertia, f, mode, tau = xs
        P, z = P + inertia, z + f
        U = P @ mode
        d = mode @ U
        e = tau - mode @ z
        P = P - jnp.outer(U, U) / d
        z = z + P @ c + U * (e / d)
        return (X.T @ P @ X, X.T @ z), (U / d, e / d)

    def accelerations(A, xs):
        X, c, mode, g, nu = xs
        A = X @ A + c
        a = nu - g @ A
        return A + mode * a, a

    def forward(q, v, tau):
        angle = q[7:] if free else q
        angle = jnp.concatenate([jnp.zeros(free, dtype), angle])[order]
        sine, cosine = jnp.sin(angle)[:, None, None], jnp.cos(angle)[:, None, None]
        R = home @ (jnp.eye(3, dtype=dtype)[None] + sine * cross_axis + (1 - cosine) * (cross_axis @ cross_axis))
        p = origin
        if free:
            w, xyz = q[0], q[1:4]
            K = skew(xyz)
            R = R.at[0].set(jnp.eye(3, dtype=dtype) + 2 * w * K + 2 * K @ K)
            p = p.at[0].set(q[4:7])
        start = jnp.zeros(6, dtype)
        X, c, I, f = scan_outward(tree, velocities, start, (R, p, modes, moving_base, inertia, v[order]))
        zero = (jnp.zeros((6, 6), dtype), start)
        g, nu = scan_inward(tree, elimination, zero, (X, c, I, f, modes, tau[order]))
        up = jnp.concatenate([jnp.zeros(3, dtype), -system.gravity])
        return scan_outward(tree, accelerations, up, (X, c, modes, g, nu))[jnp.argsort(order)]

    return jax.vmap(forward)


def cross_matrix(a: np.ndarray) -> np.ndarray:
    """a x as a matrix."""
    return np.cross(a, np.eye(3)).T


def flat_bodies(system):
    """Welded links merged, one row a velocity in sweep order: parents, the velocity of each row, pose at zero in the
    parent, axis, inertia [6, 6] about the row's origin; and how many rows (6 or 0) a free joint at the root takes.
    """
    import jaxmbd as mb
    from jaxmbd.tree import depth_first_order

    k = mb.kinematics(system, system.neutral_q())
    R, p = (np.asarray(x, float) for x in (k.rotation, k.position))
    joints = system.topology.joints
    inboard = {j.child: j for j in joints}
    free = 6 if any(j.nv == 6 for j in joints) else 0

    def carrier(link):
        """The link whose joint moves this one, -1 for the world."""
        while link >= 0 and inboard[link].nv == 0:
            link = inboard[link].parent
        return link

    moving = [j for j in joints if j.nv]
    row = {-1: -1} | {j.child: i + max(free - 1, 0) for i, j in enumerate(moving)}
    parents = [*range(-1, free - 1)] + [row[carrier(j.parent)] for j in moving if j.nv == 1]
    n = len(parents)
    home, origin, axis, inertia = np.tile(np.eye(3), (n, 1, 1)), np.zeros((n, 3)), np.zeros((n, 3)), np.zeros((n, 6, 6))
    for j in moving:
        i, outer = row[j.child], carrier(j.parent)
        R_outer, p_outer = (R[outer], p[outer]) if outer >= 0 else (np.eye(3), np.zeros(3))
        home[i], origin[i] = R_outer.T @ R[j.child], R_outer.T @ (p[j.child] - p_outer)
        if j.nv == 1:
            axis[i] = system.get(f"{j.name}.axis")
    for link, name in enumerate(system.topology.links):
        body = carrier(link)
        if body < 0:
            continue
        turn = R[body].T @ R[link]
        m, com = float(system.get(f"{name}.mass")), np.asarray(system.get(f"{name}.com"), float)
        C = cross_matrix(R[body].T @ (p[link] - p[body]) + turn @ com)
        xx, xy, xz, yy, yz, zz = np.asarray(system.get(f"{name}.inertia"), float)
        about_com = turn @ np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]) @ turn.T
        inertia[row[body]] += np.block([[about_com + m * C @ C.T, m * C], [m * C.T, m * np.eye(3)]])
    order = np.array(depth_first_order(parents))
    place = {-1: -1} | {int(old): new for new, old in enumerate(order)}
    parents = [place[parents[i]] for i in order]
    return parents, order, home[order], origin[order], axis[order], inertia[order], free
