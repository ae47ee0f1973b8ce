"""A URDF file to XML elements, in safety: the file is untrusted.

Document types, entities and network access are refused, size and depth are bounded, and no file that it names is ever
opened. Xacro sources are refused with the command that expands them.
"""

import os
import pathlib
import re

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  (a compiled module without type stubs)

from jaxmbd.io.urdf_records import Defect, UrdfError

MAX_BYTES = 50_000_000
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)


def parse(path: str | os.PathLike[str]) -> etree._Element:
    """The root element of a URDF file, or `UrdfError` for a file that is not one or that must not be trusted."""
    path = pathlib.Path(path)
    expand = f"run `xacro {path.name} -o robot.urdf` and load that file"

    def refuse(line: int, where: str, text: str) -> UrdfError:
        return UrdfError(path.name, (Defect(line, where, text, None),))

    if path.suffix == ".xacro":
        raise refuse(1, "file", f"a xacro source must be expanded first: {expand}")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise refuse(1, "file", f"{size} bytes, at most {MAX_BYTES} are read; is it really a URDF file?")
    data = path.read_bytes()
    if b"<!DOCTYPE" in _COMMENT.sub(b"", data):
        raise refuse(1, "file", "a document type (<!DOCTYPE ...>) is refused because it can define entities; delete it")
    parser = etree.XMLParser(
        recover=True,  # so that undeclared prefixes, common in old files, pass; every other error is refused below
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    root = etree.fromstring(data, parser) if data.strip() else None
    # libxml2 stops at a depth of 256 and at text nodes of 10 MB when huge_tree is off; both are in this list then.
    broken = [e for e in parser.error_log if e.level > etree.ErrorLevels.WARNING and e.domain_name != "NAMESPACE"]
    if broken or root is None:
        entries = [Defect(e.line, "XML", f"{e.message}; the file is not well formed", None) for e in broken]
        raise UrdfError(path.name, tuple(entries) or (Defect(1, "file", "is empty, expected a <robot> element", None),))
    if root.getroottree().docinfo.doctype:
        raise refuse(1, "file", "a document type (<!DOCTYPE ...>) is refused because it can define entities; delete it")
    for element in root.iter(etree.Element):
        if _is_xacro(element):
            raise refuse(element.sourceline, f"<{tag(element)}>", f"xacro must be expanded first: {expand}")
    if tag(root) != "robot":
        raise refuse(root.sourceline, f"<{tag(root)}>", "the root of a URDF file is <robot>; is this another format?")
    return root


def tag(element: etree._Element) -> str:
    """The tag as written: a URDF file may sit in a default name space, foreign elements keep their prefix."""
    local = element.tag.rpartition("}")[2]
    return f"{element.prefix}:{local}" if element.prefix else local


def _is_xacro(element: etree._Element) -> bool:
    # A prefix that was never declared stays part of the name; a declared one has become the name space.
    return any(re.match(r"xacro:|\{[^}]*/xacro\}", name) for name in (element.tag, *element.attrib))
