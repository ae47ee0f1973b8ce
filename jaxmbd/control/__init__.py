"""Controls to hand to `simulate`: functions of (t, q, v) whose numbers are leaves, and actuators around them."""

from jaxmbd.control.actuator import LaggedActuator
from jaxmbd.control.feedback import PD, ComputedTorque, Reference, Sampled

__all__ = ["PD", "LaggedActuator", "ComputedTorque", "Reference", "Sampled"]
