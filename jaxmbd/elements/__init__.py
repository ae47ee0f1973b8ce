"""Force elements: springs, bushings, tyres, contacts, fields, actuators, and the protocol for a user's own."""

from jaxmbd.elements.acting import with_rotors
from jaxmbd.elements.actuators import Actuator, JointLaw
from jaxmbd.elements.applied import ConstantWrench, WrenchLaw
from jaxmbd.elements.bushing import Bushing
from jaxmbd.elements.contact import Contact, Tyre
from jaxmbd.elements.fields import CentralGravity, Field
from jaxmbd.elements.ground import Ground, HeightField, Plane
from jaxmbd.elements.loads import Loads, energy, evaluate
from jaxmbd.elements.protocol import (
    BodyElement,
    BodyState,
    ForceElement,
    FrameState,
    JointElement,
    JointState,
    parameter,
    sides,
)
from jaxmbd.elements.rotors import Rotor
from jaxmbd.elements.springs import Spring, TorsionSpring
from jaxmbd.spatial import Force, Mat3, Sym3, Vec3

__all__ = [
    "Actuator",
    "BodyElement",
    "BodyState",
    "Bushing",
    "CentralGravity",
    "ConstantWrench",
    "Contact",
    "Field",
    "Force",
    "ForceElement",
    "FrameState",
    "Ground",
    "HeightField",
    "JointElement",
    "JointLaw",
    "JointState",
    "Loads",
    "Mat3",
    "Plane",
    "Rotor",
    "Spring",
    "Sym3",
    "TorsionSpring",
    "Tyre",
    "Vec3",
    "WrenchLaw",
    "energy",
    "evaluate",
    "parameter",
    "sides",
    "with_rotors",
]
