"""Draws the pictures of docs/conventions.md: `python docs/pictures.py [FOLDER]` (docs/images when left out)."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

matplotlib.rcParams |= {"svg.hashsalt": "jaxmbd", "svg.fonttype": "none", "font.size": 10, "mathtext.fontset": "cm"}
GREY, RED, BLUE, GREEN = "#888888", "#c0392b", "#2166ac", "#1a8f4c"


def turned(angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s], [s, c]])


def arrow(ax, start, vector, color, text="", side=(0.06, 0.06), style="-|>"):
    start, vector = np.asarray(start, float), np.asarray(vector, float)
    end = start + vector
    ax.annotate("", end, start, arrowprops={"arrowstyle": style, "color": color, "lw": 1.6, "shrinkA": 0, "shrinkB": 0})
    ax.text(*(end + np.asarray(side)), text, color=color, ha="center", va="center")


def frame(ax, origin, angle, names, color, size=0.7):
    R = turned(angle)
    for axis, name in zip(R.T, names, strict=True):
        arrow(ax, origin, size * axis, color, name, 0.12 * axis)
    ax.plot(*origin, "o", color=color, ms=4)


def blob(ax, center, size, angle, color="#dbe4ee"):
    phi = np.linspace(0, 2 * np.pi, 100)
    shape = np.stack([size[0] * np.cos(phi), size[1] * np.sin(phi) * (1 + 0.15 * np.cos(phi))])
    ax.fill(*(turned(angle) @ shape + np.asarray(center)[:, None]), color=color, zorder=0)


def finish(fig, ax, path):
    ax.set_aspect("equal")
    ax.axis("off")
    fig.savefig(path, metadata={"Date": None}, bbox_inches="tight", facecolor="white")
    plt.close(fig)


def free_body(path):
    """World, body, and the numbers of a free joint."""
    fig, ax = plt.subplots(figsize=(5.6, 3.4))
    origin, angle = np.array([2.6, 1.1]), 0.6
    blob(ax, origin + turned(angle) @ np.array([0.35, 0.1]), (1.0, 0.6), angle)
    frame(ax, (0, 0), 0.0, ("$x$", "$z$"), GREY)
    ax.text(-0.15, -0.2, "world", color=GREY, ha="center")
    frame(ax, origin, angle, ("$x_b$", "$z_b$"), "black")
    arrow(ax, (0, 0), origin, BLUE)
    ax.text(1.15, 0.75, "q[4:7]: position\nin world axes", color=BLUE, ha="center")
    arrow(ax, origin, turned(angle) @ np.array([0.55, -0.9]), RED)
    ax.text(4.0, 0.15, "v[3:6]: velocity of the\norigin, in body axes", color=RED, ha="center")
    phi = np.linspace(0.9, 2.9, 40)
    arc = origin[:, None] + 0.42 * np.stack([np.cos(phi), np.sin(phi)])
    ax.plot(*arc, color=GREEN, lw=1.6)
    arrow(ax, arc[:, -2], arc[:, -1] - arc[:, -2], GREEN)
    ax.text(1.5, 2.05, "v[0:3]: angular velocity,\nin body axes", color=GREEN, ha="center")
    ax.text(4.4, 2.45, "q[0:4]: quaternion (w, x, y, z)\nfrom body to world axes", ha="center")
    com = origin + turned(angle) @ np.array([0.45, 0.15])
    ax.plot(*com, "o", mfc="white", mec="black", ms=7)
    ax.plot(*com, "+", color="black", ms=7)
    ax.text(com[0] + 0.3, com[1] + 0.22, "com; inertia about it\nin body axes", fontsize=8)
    finish(fig, ax, path)


def joint(path):
    """Bodies, joint frames, and what q does between them."""
    fig, ax = plt.subplots(figsize=(5.6, 3.0))
    parent, child, at = np.array([0.0, 0.0]), np.array([3.9, 0.9]), np.array([2.0, 0.35])
    blob(ax, (0.7, 0.1), (1.35, 0.5), 0.1)
    blob(ax, (3.3, 0.75), (1.45, 0.5), 0.35, "#efe6d8")
    frame(ax, parent, 0.1, ("", ""), "black", 0.5)
    ax.text(0.0, -0.3, "parent's frame", ha="center")
    frame(ax, child, 0.8, ("", ""), "black", 0.5)
    ax.text(4.3, 0.5, "child's frame", ha="center")
    frame(ax, at, -0.2, ("", ""), BLUE, 0.7)
    frame(ax, at, 0.45, ("", ""), RED, 0.7)
    arrow(ax, parent, at - parent, BLUE)
    ax.text(1.0, 0.42, "in_parent", color=BLUE, ha="center")
    arrow(ax, child, at - child, RED)
    ax.text(3.3, 0.98, "in_child", color=RED, ha="center")
    phi = np.linspace(-0.2, 0.45, 20)
    ax.plot(*(at[:, None] + 0.85 * np.stack([np.cos(phi), np.sin(phi)])), color=GREEN, lw=1.6)
    ax.text(at[0] + 0.95, at[1] + 0.02, "$q$", color=GREEN)
    ax.text(at[0], -0.45, "inboard joint frame", color=BLUE, ha="center")
    ax.text(at[0], 1.35, "outboard joint frame", color=RED, ha="center")
    finish(fig, ax, path)


def six_vectors(path):
    """One moving body, one velocity, four ways of writing it."""
    fig, ax = plt.subplots(figsize=(5.6, 2.9))
    origin, angle, velocity = np.array([2.3, 0.9]), 0.7, np.array([0.9, 0.35])
    blob(ax, origin + np.array([0.2, 0.1]), (1.0, 0.55), angle)
    frame(ax, (0, 0), 0.0, ("", ""), GREY, 0.5)
    ax.text(0, -0.2, "world", color=GREY, ha="center")
    frame(ax, origin, angle, ("", ""), "black", 0.5)
    arrow(ax, origin, velocity, RED, "$v$", (0.1, 0.05))
    dashed = {"color": GREY, "lw": 1.0, "ls": ":"}
    ax.plot([origin[0], origin[0] + velocity[0]], [origin[1], origin[1]], **dashed)
    ax.plot([origin[0] + velocity[0]] * 2, [origin[1], origin[1] + velocity[1]], **dashed)
    along = turned(angle) @ np.diag(turned(angle).T @ velocity)
    for part in along.T:
        arrow(ax, origin, part, "#e5a29b")
    lines = (
        ("ours, Drake, RBDL: [ω, v], world axes, frame's origin", "black"),
        ("Pinocchio LOCAL_WORLD_ALIGNED: [v, ω]", "black"),
        ('ours with axes="local": [ω, v], frame\'s own axes', "#c0675e"),
        ("Pinocchio LOCAL: [v, ω] in the frame's own axes", "#c0675e"),
        ("Pinocchio WORLD: [v of the point at the world's origin, ω]", GREY),
    )
    for i, (line, color) in enumerate(lines):
        ax.text(3.7, 1.75 - 0.33 * i, line, color=color, fontsize=9)
    finish(fig, ax, path)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    for draw in (free_body, joint, six_vectors):
        draw(folder / f"conventions_{draw.__name__}.svg")
