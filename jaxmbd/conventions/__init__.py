"""Numbers in the layouts of other libraries (Pinocchio, MuJoCo, Drake, RBDL) and back: states, matrices, inertias."""

from jaxmbd.conventions.inertias import (
    Body,
    Principal,
    UnitInertia,
    inertia_from_drake,
    inertia_from_mujoco,
    inertia_from_pinocchio,
    inertia_from_rbdl,
    inertia_to_drake,
    inertia_to_mujoco,
    inertia_to_pinocchio,
    inertia_to_rbdl,
)
from jaxmbd.conventions.states import (
    State,
    from_drake,
    from_mujoco,
    from_pinocchio,
    from_rbdl,
    to_drake,
    to_mujoco,
    to_pinocchio,
    to_rbdl,
)

__all__ = [
    "Body",
    "Principal",
    "State",
    "UnitInertia",
    "from_drake",
    "from_mujoco",
    "from_pinocchio",
    "from_rbdl",
    "inertia_from_drake",
    "inertia_from_mujoco",
    "inertia_from_pinocchio",
    "inertia_from_rbdl",
    "inertia_to_drake",
    "inertia_to_mujoco",
    "inertia_to_pinocchio",
    "inertia_to_rbdl",
    "to_drake",
    "to_mujoco",
    "to_pinocchio",
    "to_rbdl",
]
