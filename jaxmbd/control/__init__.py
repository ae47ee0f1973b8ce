"""Controls to hand to `simulate`: functions of (t, q, v) whose numbers are leaves."""

from jaxmbd.control.feedback import PD, ComputedTorque, Reference, Sampled

__all__ = ["PD", "ComputedTorque", "Reference", "Sampled"]
