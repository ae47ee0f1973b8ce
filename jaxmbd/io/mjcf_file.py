"""An MJCF file to a compiled `mujoco.MjModel`, in safety: the file is untrusted.

The XML is looked through first, included files too: no document types, no depth, no expansion without bound, and no
file outside the model's folder unless `strict=False` allows it. Then MuJoCo's own compiler does the reading. Meshes,
textures and height fields are opened only where a body's inertia is that of a mesh.
"""

from __future__ import annotations

import math
import pathlib
import re
import warnings
from typing import Any

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  (a compiled module without type stubs)

from jaxmbd.io.mjcf_engine import Model, engine
from jaxmbd.io.mjcf_records import MjcfError
from jaxmbd.io.urdf_records import Defect
from jaxmbd.io.xml_file import parse_xml, tag

MAX_COPIES = 100_000  # bodies that nested <replicate>, <composite> or <flexcomp> may ask for
_NESTED = ("include", "model")  # elements whose file is MJCF again
_REPEATING = ("replicate", "composite", "flexcomp")


def compile_file(path: pathlib.Path, strict: bool, notes: list[str]) -> Model:
    """The model that MuJoCo's compiler makes of a file, without what only pictures and contacts need.

    Raises:
        ImportError: the package `mujoco` is not installed.
        MjcfError: the file is not well formed, must not be trusted, or MuJoCo refuses it; with lines.
    """
    folder = path.resolve().parent
    defects = _look_through(path, folder, strict)
    if defects:
        raise MjcfError(path.name, tuple(defects))
    mujoco = engine(f"'{path.name}'")
    opened: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            spec = mujoco.MjSpec.from_file(str(path))
            opened = _without_pictures(spec, mujoco.mjtGeom)
            if strict:
                defects = _outside(spec, folder)
                if defects:
                    raise MjcfError(path.name, tuple(defects))
            model = spec.compile()
    except MjcfError:
        raise
    except (ValueError, mujoco.FatalError) as error:
        raise MjcfError(path.name, (_compiler_defect(str(error), opened),)) from error
    notes += [f"MuJoCo's compiler says: {warning.message}" for warning in caught]
    if opened:
        notes.append(f"meshes opened, because bodies take their inertia from them: {', '.join(opened)}")
    return model


def _look_through(path: pathlib.Path, folder: pathlib.Path, strict: bool) -> list[Defect]:
    """Defects of a file and of all that it includes, before MuJoCo sees any of it."""
    defects: list[Defect] = []
    seen: set[pathlib.Path] = set()
    waiting = [(path, "mujoco")]
    while waiting:
        file, expected = waiting.pop()
        if file.resolve() in seen:
            continue
        seen.add(file.resolve())
        prefix = "" if file == path else f"{file.name}: "
        root = parse_xml(file, lambda found, name=file.name: MjcfError(name, found), f"a <{expected}> element")
        if tag(root) == "robot" and file == path:
            text = "the root of an MJCF file is <mujoco>; this is a URDF file, rename it to .urdf"
            defects.append(Defect(root.sourceline, "<robot>", text, None))
            continue
        if tag(root) != "mujoco" and file == path:
            text = "the root of an MJCF file is <mujoco>; is this another format, or a part that others include?"
            defects.append(Defect(root.sourceline, f"<{tag(root)}>", text, None))
            continue
        for element in root.iter(etree.Element):
            where = f"{prefix}<{tag(element)}>"
            copies = math.prod(map(_copies, [element, *element.iterancestors()])) if _copies(element) > 1 else 1
            if copies > MAX_COPIES:
                text = f"asks for {copies} copies, at most {MAX_COPIES} are made"
                defects.append(Defect(element.sourceline, where, text, None))
            name = element.get("file")
            if name and tag(element) == "flexcomp" and strict and not (folder / name).resolve().is_relative_to(folder):
                defects.append(Defect(element.sourceline, where, _leaving(name, folder), None))
            if not name or tag(element) not in _NESTED:
                continue
            found = next((p for p in (folder / name, file.parent / name) if p.is_file()), None)
            if found is None:
                defects.append(Defect(element.sourceline, where, f"file '{name}' does not exist in {folder}", None))
            elif strict and not found.resolve().is_relative_to(folder):
                defects.append(Defect(element.sourceline, where, _leaving(name, folder), None))
            else:
                waiting.append((found, "mujoco" if tag(element) == "model" else "mujocoinclude"))
    return defects


def _copies(element: etree._Element) -> int:
    if tag(element) not in _REPEATING:
        return 1
    numbers = [int(n) for n in element.get("count", "1").split() if re.fullmatch(r"\d{1,18}", n)]
    return max(math.prod(numbers), 1)


def _leaving(name: str, folder: pathlib.Path) -> str:
    return f"file '{name}' lies outside the model's folder {folder}; move it there, or load with strict=False"


def _without_pictures(spec: Any, geom_types: Any) -> list[str]:
    """Take from a specification all that has no inertia but a file; returns the meshes that stay."""
    kept = set()
    for geom in spec.geoms:
        if not geom.meshname and not geom.hfieldname:
            continue
        if geom.meshname and _gives_inertia(geom, spec):
            kept.add(geom.meshname)
            continue
        geom.type, geom.size, geom.mass = geom_types.mjGEOM_SPHERE, [1e-3, 0.0, 0.0], 0.0
        geom.meshname = geom.hfieldname = ""
    for site in spec.sites:
        if getattr(site, "meshname", ""):
            site.type, site.meshname = geom_types.mjGEOM_SPHERE, ""
    for element in (*spec.geoms, *spec.sites):
        element.material = ""
    for tendon in spec.tendons:
        tendon.material = ""
    for flex in spec.flexes:
        flex.material = ""
    unused = [mesh for mesh in spec.meshes if mesh.name not in kept]
    for element in (*unused, *spec.skins, *spec.hfields, *spec.materials, *spec.textures):
        if hasattr(spec, "delete"):
            spec.delete(element)
        else:  # MuJoCo before 3.3.1
            element.delete()
    return sorted(kept)


def _gives_inertia(geom: Any, spec: Any) -> bool:
    """Whether a body's mass and inertia come from this geom (MuJoCo's rule for `inertiafromgeom`)."""
    body = geom.parent
    compiler = getattr(geom, "compiler", spec.compiler)
    low, high = compiler.inertiagrouprange
    if body.name == "world" or not low <= geom.group <= high or compiler.inertiafromgeom == 0:
        return False
    if compiler.inertiafromgeom == 2 and body.explicitinertial:
        return False
    return geom.mass > 0 if not math.isnan(geom.mass) else geom.density > 0


def _outside(spec: Any, folder: pathlib.Path) -> list[Defect]:
    """Defects of meshes that would be opened outside the model's folder."""
    defects = []
    for mesh in spec.meshes:
        own = getattr(getattr(mesh, "compiler", None), "meshdir", "")  # with the mesh since meshes can be attached
        place = folder / (own or spec.meshdir or "") / (mesh.file or "")
        if mesh.file and not place.resolve().is_relative_to(folder):
            defects.append(Defect(_line(mesh.info), f"<mesh> '{mesh.name}'", _leaving(mesh.file, folder), None))
    return defects


def _compiler_defect(message: str, opened: list[str]) -> Defect:
    """MuJoCo's message as one line with the file line that it names."""
    text = re.sub(r"\s*\n\s*", "; ", message.strip())
    if opened and "file" in text:
        listed = ", ".join(f"'{name}'" for name in opened)
        text += f"; the inertia of a body comes from mesh {listed}: give the body an <inertial>, or the file"
    return Defect(_line(text), "MuJoCo's compiler", text, None)


def _line(text: str | None) -> int:
    found = re.search(r"line (?:number=)?(\d+)", text or "", re.IGNORECASE)
    return int(found.group(1)) if found else 1
