"""A URDF file to XML elements. Xacro sources are refused with the command that expands them."""

import os
import pathlib
import re

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  (a compiled module without type stubs)

from jaxmbd.io.urdf_records import Defect, UrdfError
from jaxmbd.io.xml_file import parse_xml, tag


def parse(path: str | os.PathLike[str]) -> etree._Element:
    """The root element of a URDF file, or `UrdfError` for a file that is not one or that must not be trusted."""
    path = pathlib.Path(path)
    expand = f"run `xacro {path.name} -o robot.urdf` and load that file"

    def refuse(line: int, where: str, text: str) -> UrdfError:
        return UrdfError(path.name, (Defect(line, where, text, None),))

    if path.suffix == ".xacro":
        raise refuse(1, "file", f"a xacro source must be expanded first: {expand}")
    root = parse_xml(path, lambda defects: UrdfError(path.name, defects), "a <robot> element")
    for element in root.iter(etree.Element):
        if _is_xacro(element):
            raise refuse(element.sourceline, f"<{tag(element)}>", f"xacro must be expanded first: {expand}")
    if tag(root) != "robot":
        raise refuse(root.sourceline, f"<{tag(root)}>", "the root of a URDF file is <robot>; is this another format?")
    return root


def _is_xacro(element: etree._Element) -> bool:
    # A prefix that was never declared stays part of the name; a declared one has become the name space.
    return any(re.match(r"xacro:|\{[^}]*/xacro\}", name) for name in (element.tag, *element.attrib))
