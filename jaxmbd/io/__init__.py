"""Model files: text that others wrote to a System, and back. Readers of a format are imported when a file is read."""

from jaxmbd.io.export_mjcf import to_mjcf
from jaxmbd.io.export_urdf import to_urdf
from jaxmbd.io.load import load
from jaxmbd.io.mjcf import load_mjcf
from jaxmbd.io.mjcf_records import Keyframe, MjcfError, MjcfFile
from jaxmbd.io.system_file import save
from jaxmbd.io.urdf_records import UrdfError

__all__ = ["Keyframe", "MjcfError", "MjcfFile", "UrdfError", "load", "load_mjcf", "save", "to_mjcf", "to_urdf"]
