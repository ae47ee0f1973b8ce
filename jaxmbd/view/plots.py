"""One figure of a simulated batch: how the joints move, where the energy goes, and the mechanism itself.

Left: the coordinates that move most, one copy's line over the batch's median and spread. Right: that copy drawn as a
stick figure at a few instants, its energies, and the drift of the energy books over the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxmbd.kinematics import kinematics
from jaxmbd.system import System
from jaxmbd.view.energies import EnergyBooks, energy_books
from jaxmbd.view.names import column_names, coordinate_units

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COPIES = 32  # of the batch whose energy is drawn
INSTANTS = 2001  # of the motion for the energy integral
PANELS = 8  # coordinates drawn
SNAPSHOTS = 5  # stick figures
INK, BAND, LINE, LOSS = "#33373d", "#3b76af", "#d9542b", "#7f8c4d"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a6",
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.color": "#e6e8eb",
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def draw_run(
    system: System,
    t: Float[np.ndarray, " nt"],
    q: Float[np.ndarray, "batch nt nq"],
    v: Float[np.ndarray, "batch nt nv"],
    title: str = "",
) -> Figure:
    """The figure of a batch of motions without controller; save it with `.savefig(path)`.

    Copies that are not finite are left out of the medians and bands; the copy drawn is the first finite one.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    finite = np.flatnonzero(np.isfinite(q).all((1, 2)) & np.isfinite(v).all((1, 2)))
    lost = len(q) - len(finite)
    if lost:
        title += f" · {lost} of them not finite"
    if len(finite):
        q, v = q[finite], v[finite]
    copy = int(finite[0]) if len(finite) else 0

    with rc_context(STYLE):
        figure = Figure(figsize=(14, 8), dpi=110, layout="constrained")
        figure.suptitle(title, fontsize=12, fontweight="bold")
        parts: Any = figure.subfigures(1, 2, width_ratios=(1, 1.1))
        left, right = parts
        _draw_coordinates(left, system, t, q, copy)
        grid = right.add_gridspec(2, 2, height_ratios=(1.8, 1))
        _draw_mechanism(right.add_subplot(grid[0, :], projection="3d"), system, t, q[0], copy)
        thin = np.unique(np.linspace(0, len(t) - 1, min(len(t), INSTANTS)).round().astype(int))
        books = energy_books(system, t[thin], q[:COPIES, thin], v[:COPIES, thin])
        _draw_energies(right.add_subplot(grid[1, 0]), t[thin], books, copy)
        _draw_drift(right.add_subplot(grid[1, 1]), t[thin], books)
    return figure


def _draw_coordinates(figure: Any, system: System, t, q, copy: int) -> None:
    names, units = column_names(system, "q"), coordinate_units(system)
    order = np.argsort(-np.std(q, axis=1).mean(0), kind="stable")
    chosen = np.sort(order[:PANELS])
    rows = -(-len(chosen) // 2)
    axes = np.atleast_1d(figure.subplots(rows, 2 if len(chosen) > 1 else 1, sharex=True)).ravel()
    for panel, i in zip(axes, chosen, strict=False):
        _draw_spread(panel, t, q[:, :, i])
        panel.plot(t, q[0, :, i], color=LINE, lw=1.3, label=f"copy {copy}")
        panel.set_title(names[i] + (f" [{units[i]}]" if units[i] else ""), loc="left")
    for panel in axes[len(chosen) :]:
        panel.set_visible(False)
    for panel in axes[max(len(chosen) - 2, 0) : len(chosen)]:
        panel.tick_params(labelbottom=True)
        panel.set_xlabel("t [s]")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    if len(chosen) < system.nq:
        figure.suptitle(f"the {len(chosen)} coordinates of {system.nq} that move most", fontsize=9)


def _draw_spread(panel: Any, t, values: Float[np.ndarray, "batch nt"]) -> None:
    """Median and bands of a batch; nothing for a single copy, whose line says all."""
    if len(values) > 1:
        low, quarter, middle, three_quarters, high = np.percentile(values, (5, 25, 50, 75, 95), axis=0)
        panel.fill_between(t, low, high, color=BAND, alpha=0.15, lw=0, label="5 to 95 % of the batch")
        panel.fill_between(t, quarter, three_quarters, color=BAND, alpha=0.25, lw=0, label="25 to 75 %")
        panel.plot(t, middle, color=BAND, lw=1.3, label="median")
    panel.margins(x=0)


def _draw_mechanism(panel: Any, system: System, t, q: Float[np.ndarray, "nt nq"], copy: int) -> None:
    from matplotlib import colormaps

    at = np.unique(np.linspace(0, len(t) - 1, SNAPSHOTS).round().astype(int))
    origins, coms = (np.asarray(x) for x in _link_points(system, q[at]))
    topology = system.topology
    bones = [(j.parent, j.child) for j in topology.joints if j.parent >= 0]
    inner = {parent for parent, _ in bones}
    mass = np.asarray(system.link_mass, float)
    heavy = mass > 0
    tips = [i for i in range(len(topology.links)) if i not in inner and heavy[i]]
    size = 120 * mass[heavy] / max(mass.max(initial=0.0), 1e-30)
    for k, instant in enumerate(at):
        shade = k / max(len(at) - 1, 1)
        color = colormaps["plasma"](0.85 - 0.85 * shade)
        strength = 0.35 + 0.65 * shade
        segments = [origins[k, list(bone)] for bone in bones] + [np.stack([origins[k, i], coms[k, i]]) for i in tips]
        for segment in segments:
            panel.plot(*segment.T, color=color, alpha=strength, lw=2.6, solid_capstyle="round")
        panel.scatter(*coms[k, heavy].T, s=size, color=color, alpha=0.6 * strength, lw=0)
        panel.plot([], [], color=color, alpha=strength, lw=2.6, label=f"{t[instant]:.3g} s")
    for foot in {j.child for j in topology.joints if j.parent < 0 and not j.nv}:
        panel.scatter(*origins[0, foot], s=70, marker="s", color=INK, lw=0, depthshade=False)
    points = np.concatenate([origins.reshape(-1, 3), coms[:, heavy].reshape(-1, 3)])
    points = points[np.isfinite(points).all(1)]
    low, high = np.min(points, axis=0), np.max(points, axis=0)
    middle, half = (low + high) / 2, 0.5 * max(float(np.max(high - low)), 1e-3)
    for axis, name in enumerate("xyz"):
        panel.set(**{f"{name}lim": (middle[axis] - half, middle[axis] + half), f"{name}label": f"{name} [m]"})
        panel.locator_params(axis=name, nbins=4)
    panel.set_box_aspect((1, 1, 1), zoom=1.05)
    panel.view_init(elev=18, azim=-55)
    panel.legend(title=f"copy {copy} at t =", loc="center right", bbox_to_anchor=(-0.02, 0.5))


@jax.jit
def _link_points(
    system: System, q: Float[jax.Array, "nt nq"]
) -> tuple[Float[jax.Array, "nt links 3"], Float[jax.Array, "nt links 3"]]:
    """Origin and centre of mass of every link [m], world axes."""
    rest = jnp.zeros(system.nv, q.dtype)

    def points(q):
        motion = kinematics(system, q, rest, rest)
        links = [motion[name] for name in system.topology.links]
        origins = jnp.stack([link.position for link in links])
        rotations = jnp.stack([link.rotation for link in links])
        return origins, origins + jnp.einsum("lij,lj->li", rotations, system.link_com)

    return jax.vmap(points)(q)


def _draw_energies(panel: Any, t, books: EnergyBooks, copy: int) -> None:
    lines = {"kinetic": (books.kinetic, LINE), "potential": (books.potential, BAND)}
    if np.any(books.dissipated[0]):
        lines["dissipated"] = (books.dissipated, LOSS)
    for label, (energy, color) in lines.items():
        panel.plot(t, energy[0] - energy[0, 0], color=color, lw=1.3, label=label)
    panel.plot(t, books.drift[0], color=INK, lw=1.3, ls="--", label="sum")
    panel.set_title(f"energy of copy {copy} since the start [J]", loc="left")
    panel.set_xlabel("t [s]")
    panel.margins(x=0)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, columnspacing=1.2, handlelength=1.4)


def _draw_drift(panel: Any, t, books: EnergyBooks) -> None:
    drift = books.drift
    _draw_spread(panel, t, drift)
    if len(drift) == 1:
        panel.plot(t, drift[0], color=LINE, lw=1.3)
    panel.set_title(f"drift of the sum, {len(drift)} {'copies' if len(drift) > 1 else 'copy'} [J]", loc="left")
    panel.set_xlabel(f"t [s]   (largest kinetic energy: {np.max(books.kinetic):.3g} J)")
