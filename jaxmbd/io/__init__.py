"""Model files in: text that others wrote to a System. The XML reader is imported when a file is read, not before."""

from jaxmbd.io.load import load
from jaxmbd.io.urdf_records import UrdfError

__all__ = ["UrdfError", "load"]
