"""Inertias that define a dynamics, but belong to no real body.

A body is a density, so the second moments of its mass, Σ = ½ tr(I) 1 − I about the com, are positive semi-definite. In
principal axes that is the triangle inequality: each moment is at most the sum of the other two. Points, rods and
plates lie on the boundary and are fine.

Source: P. M. Wensing, S. Kim, J.-J. E. Slotine, "Linear matrix inequalities for physically-consistent inertial
parameter identification", IEEE Robotics and Automation Letters 3 (2018) 60-67: the condition on Σ.
"""

import numpy as np

from jaxmbd.inertia import nearest_tensor
from jaxmbd.io.urdf_records import Findings, Link

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
    nearest = nearest_tensor(tensor)
    entries = zip(("ixx", "ixy", "ixz", "iyy", "iyz", "izz"), nearest[np.triu_indices(3)], strict=True)
    advice = " ".join(f'{key}="{float(value)!r}"' for key, value in entries)
    found.doubt(
        link.line, str(link), f"its inertia {condition}; the nearest valid one, about the com in link axes, is {advice}"
    )
