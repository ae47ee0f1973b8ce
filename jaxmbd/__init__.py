"""jaxmbd: multibody dynamics in JAX, batched and differentiable in every physical number."""

from jaxmbd import conventions, elements, inertia, laws, linkages, models
from jaxmbd.actuators import Actuators
from jaxmbd.adaptive import Solution, simulate_adaptive
from jaxmbd.batching import batched
from jaxmbd.builder import Builder
from jaxmbd.chunks import simulate_chunks
from jaxmbd.closures import distance, gear, holonomic, nonholonomic
from jaxmbd.constraints.assembly import assemble, inverse_kinematics
from jaxmbd.constraints.drift import Baumgarte, Projection, project
from jaxmbd.constraints.dynamics import closure_wrenches, forward_dynamics, hybrid_dynamics
from jaxmbd.constraints.mobility import branch, mobility
from jaxmbd.constraints.reduced import actuator_forces, eigenmodes, linearize, static_equilibrium
from jaxmbd.control import PD, ComputedTorque, Reference, Sampled
from jaxmbd.cpu import low_latency, prepare_cpu
from jaxmbd.crba import mass_matrix
from jaxmbd.derivatives import forward_dynamics_derivatives, inverse_dynamics_derivatives
from jaxmbd.diagnosis import NotFinite, debug
from jaxmbd.editing import attach, combine, graft, lock, scale
from jaxmbd.energy import centroidal_momentum_matrix, com, coriolis_matrix, energy, momentum
from jaxmbd.events import Event, EventRun, simulate_events
from jaxmbd.factor import minv_product
from jaxmbd.forces import Wrench
from jaxmbd.growth import gradient_growth
from jaxmbd.guides import point_on_curve
from jaxmbd.impacts import Contact, Impact, impact
from jaxmbd.impulses import closure_impulses, impulse_reactions, impulse_response
from jaxmbd.integrate import (
    SDIRK3,
    CommutatorFree4,
    GeneralizedAlpha,
    ImplicitMidpoint,
    Newmark,
    PredictorCorrector,
    RadauIIA,
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
from jaxmbd.rolling import knife_edge, rolling_ball, rolling_disc
from jaxmbd.simulate import simulate
from jaxmbd.stateful import StatefulControl
from jaxmbd.system import System

__all__ = [
    "Actuators",
    "Baumgarte",
    "Builder",
    "CommutatorFree4",
    "ComputedTorque",
    "Contact",
    "Event",
    "EventRun",
    "GeneralizedAlpha",
    "Impact",
    "ImplicitMidpoint",
    "JointReaction",
    "Newmark",
    "NotFinite",
    "PD",
    "Pose",
    "PredictorCorrector",
    "Projection",
    "RadauIIA",
    "Reactions",
    "Recording",
    "Reference",
    "RungeKuttaMuntheKaas4",
    "SDIRK3",
    "Sampled",
    "SemiImplicitEuler",
    "Solution",
    "State",
    "StatefulControl",
    "System",
    "Trajectory",
    "VariationalMidpoint",
    "Wrench",
    "actuator_forces",
    "assemble",
    "attach",
    "batched",
    "bias_force",
    "branch",
    "centroidal_momentum_matrix",
    "closure_impulses",
    "closure_wrenches",
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
    "distance",
    "driven",
    "dual_basis",
    "eigenmodes",
    "elements",
    "energy",
    "fixed",
    "forward_dynamics",
    "forward_dynamics_derivatives",
    "free",
    "free_modes",
    "gear",
    "gimbal",
    "gradient_growth",
    "graft",
    "gravity_force",
    "holonomic",
    "hybrid_dynamics",
    "impact",
    "impulse_reactions",
    "impulse_response",
    "inertia",
    "integrate",
    "inverse_dynamics",
    "inverse_dynamics_derivatives",
    "inverse_kinematics",
    "jacobian",
    "jacobian_rate_product",
    "joined",
    "kinematics",
    "knife_edge",
    "laws",
    "linearize",
    "linkages",
    "load",
    "load_mjcf",
    "lock",
    "log_det_mass",
    "low_latency",
    "mapped",
    "mass_matrix",
    "memory_estimate",
    "minv_product",
    "minv_sqrt_product",
    "mobility",
    "models",
    "momentum",
    "nonholonomic",
    "planar",
    "point_on_curve",
    "prismatic",
    "prepare_cpu",
    "project",
    "q_dot",
    "random_state",
    "reactions",
    "revolute",
    "rolling_ball",
    "rolling_disc",
    "save",
    "scale",
    "screw",
    "screw_product",
    "simulate",
    "simulate_adaptive",
    "simulate_chunks",
    "simulate_events",
    "spherical",
    "static_equilibrium",
    "to_mjcf",
    "to_urdf",
    "translational",
    "universal",
    "velocity_constraints",
]
