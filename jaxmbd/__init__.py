"""jaxmbd: multibody dynamics in JAX, batched and differentiable in every physical number."""

from jaxmbd import conventions, elements, inertia, laws, models
from jaxmbd.aba import forward_dynamics, hybrid_dynamics, minv_product
from jaxmbd.actuators import Actuators
from jaxmbd.adaptive import Solution, simulate_adaptive
from jaxmbd.batching import batched
from jaxmbd.builder import Builder
from jaxmbd.chunks import simulate_chunks
from jaxmbd.control import PD, ComputedTorque, LaggedActuator, Reference, Sampled
from jaxmbd.crba import mass_matrix
from jaxmbd.diagnosis import NotFinite, debug
from jaxmbd.editing import attach, combine, graft, lock, scale
from jaxmbd.energy import centroidal_momentum_matrix, com, coriolis_matrix, energy, momentum
from jaxmbd.events import Event, EventRun, simulate_events
from jaxmbd.forces import Wrench
from jaxmbd.growth import gradient_growth
from jaxmbd.impulses import Contact, Impact, impact, impulse_response
from jaxmbd.integrate import (
    SDIRK3,
    CommutatorFree4,
    ImplicitMidpoint,
    Newmark,
    PredictorCorrector,
    RungeKuttaMuntheKaas4,
    SemiImplicitEuler,
    VariationalMidpoint,
)
from jaxmbd.io import load, load_mjcf, save, to_mjcf, to_urdf
from jaxmbd.jacobian import jacobian, jacobian_rate_product
from jaxmbd.joint_kinds import (
    continuous,
    cylindrical,
    driven,
    fixed,
    free,
    gimbal,
    mapped,
    planar,
    prismatic,
    revolute,
    screw,
    screw_product,
    spherical,
    translational,
    universal,
)
from jaxmbd.kinematics import kinematics
from jaxmbd.manifold import difference, integrate, q_dot, random_state
from jaxmbd.memory import memory_estimate
from jaxmbd.modes import constraint_wrench, dual_basis, free_modes, velocity_constraints
from jaxmbd.operators import dense_operators, log_det_mass, minv_sqrt_product
from jaxmbd.pose import Pose
from jaxmbd.reactions import JointReaction, Reactions, reactions
from jaxmbd.record import Recording, State, Trajectory, joined
from jaxmbd.rnea import bias_force, gravity_force, inverse_dynamics
from jaxmbd.simulate import StatefulControl, simulate
from jaxmbd.system import System

__all__ = [
    "PD",
    "SDIRK3",
    "LaggedActuator",
    "Builder",
    "ComputedTorque",
    "Event",
    "EventRun",
    "ImplicitMidpoint",
    "Newmark",
    "NotFinite",
    "Pose",
    "PredictorCorrector",
    "Recording",
    "Reference",
    "Actuators",
    "CommutatorFree4",
    "Contact",
    "Impact",
    "JointReaction",
    "Reactions",
    "RungeKuttaMuntheKaas4",
    "Sampled",
    "SemiImplicitEuler",
    "Solution",
    "State",
    "StatefulControl",
    "System",
    "Trajectory",
    "VariationalMidpoint",
    "Wrench",
    "attach",
    "batched",
    "bias_force",
    "centroidal_momentum_matrix",
    "com",
    "combine",
    "constraint_wrench",
    "continuous",
    "conventions",
    "coriolis_matrix",
    "cylindrical",
    "debug",
    "dense_operators",
    "difference",
    "driven",
    "dual_basis",
    "elements",
    "energy",
    "fixed",
    "forward_dynamics",
    "free",
    "free_modes",
    "gimbal",
    "gradient_growth",
    "graft",
    "gravity_force",
    "hybrid_dynamics",
    "impact",
    "impulse_response",
    "inertia",
    "integrate",
    "inverse_dynamics",
    "jacobian",
    "jacobian_rate_product",
    "joined",
    "kinematics",
    "laws",
    "load",
    "load_mjcf",
    "lock",
    "log_det_mass",
    "mapped",
    "mass_matrix",
    "memory_estimate",
    "minv_product",
    "minv_sqrt_product",
    "models",
    "momentum",
    "planar",
    "prismatic",
    "q_dot",
    "random_state",
    "reactions",
    "revolute",
    "save",
    "scale",
    "screw",
    "screw_product",
    "simulate",
    "simulate_adaptive",
    "simulate_chunks",
    "simulate_events",
    "spherical",
    "to_mjcf",
    "to_urdf",
    "translational",
    "universal",
    "velocity_constraints",
]
