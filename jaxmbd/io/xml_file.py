"""An XML file to elements, in safety: the file is untrusted.

Document types, entities and network access are refused, size and depth are bounded, and no file that it names is ever
opened.
"""

import os
import pathlib
import re
from collections.abc import Callable

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  (a compiled module without type stubs)

from jaxmbd.io.urdf_records import Defect

MAX_BYTES = 50_000_000
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_DOCTYPE = "a document type (<!DOCTYPE ...>) is refused because it can define entities; delete it"


def parse_xml(
    path: str | os.PathLike[str], refuse: Callable[[tuple[Defect, ...]], ValueError], expected: str
) -> etree._Element:
    """The root element of a file.

    Args:
        refuse: makes the error to raise out of defects.
        expected: what the root element should be, for a file that is empty or too large: "a <robot> element".
    """
    path = pathlib.Path(path)

    def whole(text: str) -> ValueError:
        return refuse((Defect(1, "file", text, None),))

    size = path.stat().st_size
    if size > MAX_BYTES:
        raise whole(f"{size} bytes, at most {MAX_BYTES} are read; expected {expected}")
    data = path.read_bytes()
    if b"<!DOCTYPE" in _COMMENT.sub(b"", data):
        raise whole(_DOCTYPE)
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
    if broken:
        raise refuse(tuple(Defect(e.line, "XML", f"{e.message}; the file is not well formed", None) for e in broken))
    if root is None:
        raise whole(f"is empty, expected {expected}")
    if root.getroottree().docinfo.doctype:
        raise whole(_DOCTYPE)
    return root


def tag(element: etree._Element) -> str:
    """The tag as written: a file may sit in a default name space, foreign elements keep their prefix."""
    local = element.tag.rpartition("}")[2]
    return f"{element.prefix}:{local}" if element.prefix else local
