"""Values that define a dynamics, but hardly the intended one: inertias of no real body, and joints that move no mass.

A body is a density, so the second moments of its mass, Σ = ½ tr(I) 1 − I about the com, are positive semi-definite. In
principal axes that is the triangle inequality: each moment is at most the sum of the other two. Points, rods and
plates lie on the boundary and are fine.

Source: P. M. Wensing, S. Kim, J.-J. E. Slotine, "Linear matrix inequalities for physically-consistent inertial
parameter identification", IEEE Robotics and Automation Letters 3 (2018) 60-67: the condition on Σ.
"""

import numpy as np

from jaxmbd.io.urdf_records import Findings, Link
from jaxmbd.io.urdf_tree import TreeModel

# Files write tensors with few digits; a breach below this fraction of the largest moment is rounding.
ROUNDING = 1e-5


def doubt_inertia(link: Link, found: Findings) -> None:
    """Put a doubt into `found` when no real body has the link's inertia; it names the nearest valid one."""
    if link.inertial is None:
        return
    mass, tensor = link.inertial.mass, link.inertial.tensor
    if mass == 0.0 and np.any(tensor):
        found.doubt(link.line, str(link), "has inertia but no mass; give it a mass, or zero inertia")
    moments = np.linalg.eigvalsh(tensor)
    rounding = ROUNDING * np.abs(moments).max()
    if 0.5 * moments.sum() - moments[2] >= -rounding:
        return
    listed = ", ".join(repr(float(moment)) for moment in moments)
    if moments[0] < -rounding:
        condition = f"is not positive semi-definite, principal moments {listed} kg m²"
    else:
        condition = f"breaks the triangle inequality, principal moments {listed} kg m²: one exceeds the others' sum"
    nearest = nearest_inertia(tensor)
    entries = zip(("ixx", "ixy", "ixz", "iyy", "iyz", "izz"), nearest[np.triu_indices(3)], strict=True)
    advice = " ".join(f'{key}="{float(value)!r}"' for key, value in entries)
    found.doubt(
        link.line, str(link), f"its inertia {condition}; the nearest valid one, about the com in link axes, is {advice}"
    )


def nearest_inertia(tensor: np.ndarray) -> np.ndarray:
    """The valid inertia whose Σ is nearest in the Frobenius norm: negative second moments become zero."""
    second, axes = np.linalg.eigh(0.5 * np.trace(tensor) * np.eye(3) - tensor)
    second = np.maximum(second, 0.0)
    return (axes * (second.sum() - second)) @ axes.T


def doubt_massless(tree: TreeModel, eliminate: bool, found: Findings) -> None:
    """Put a doubt into `found` for each joint that moves neither mass nor inertia: the mass matrix is singular."""
    above = {joint.child: joint for joint in tree.joints}
    loaded = set()
    for link in tree.links:
        if link.inertial is None or not (link.inertial.mass or np.any(link.inertial.tensor)):
            continue
        name = link.name
        while name in above and above[name].name not in loaded:
            loaded.add(above[name].name)
            name = above[name].parent
    if eliminate:
        loaded |= {mimic.leader for name, mimic in tree.mimics.items() if name in loaded and mimic.ratio}
    for joint in tree.joints:
        follows = eliminate and joint.name in tree.mimics
        if joint.type != "fixed" and joint.name not in loaded and not follows:
            text = "moves neither mass nor inertia: the mass matrix is singular; give its links mass, or make it fixed"
            found.doubt(joint.line, str(joint), text)
