"""The layout holds: imports go down, oracles are independent, importing has no side effect, files stay small."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import jaxmbd

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jaxmbd"

# Each module or subpackage imports from its own row (without cycles) and from the rows above it.
ROWS = [
    {"rotation", "spatial", "values", "tangents", "entries", "batching", "batch_last", "cpu", "watch", "actuation"}
    | {"stateful", "rows"},
    {"pose", "laws"},
    {"modes"},
    {"joints", "joint_kinds", "locked", "closures", "rolling", "guides", "inertia", "tree"},
    {"topology", "paths"},
    {"system"},
    {"parts", "pairs", "regular", "spanning", "declared", "packing", "curves", "border"},
    {"builder"},
    {"editing"},
    {"kinematics", "newton_euler", "manifold", "drives", "conventions"},
    {"rnea", "crba", "aba", "factor", "jacobian", "energy", "operators", "forces", "couplings", "actuators", "limits"},
    {"constraints", "derivatives", "impulses", "impacts", "reactions", "integrate", "elements"}
    | {"flexible", "points", "formalisms", "transmitted", "welds", "dual_parts"},
    {"mechanism", "simulate", "record", "chunks", "adaptive", "events", "memory", "growth", "diagnosis"},
    {"io"},
    {"sensitivity", "fitting", "design", "control"},
    {"models", "machines", "linkages"},
    {"view", "cli", "__main__"},
]
ROW = {name: number for number, row in enumerate(ROWS) for name in row}

# What the independent routes must not share with the recursive algorithms.
SWEEPS = {"tree", "kinematics", "newton_euler", "rnea", "crba", "aba", "factor", "jacobian", "operators"}
FORBIDDEN = {
    "points": SWEEPS,
    "formalisms": SWEEPS,
    "integrate": set(ROW) - {"rotation", "spatial", "values", "integrate"},  # steppers know no mechanism
}


def unit_of(path: Path) -> str:
    """The row entry a file belongs to: its module, or the subpackage directly under jaxmbd."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path, names: set[str]) -> list[tuple[str, int]]:
    """(row entry, line) of everything a file of the package imports from the package, also inside functions."""
    package = ["jaxmbd", *path.relative_to(PACKAGE).parts[:-1]]
    found = []

    def add(dotted: list[str], line: int):
        if dotted[:1] == ["jaxmbd"]:
            found.append((dotted[1] if len(dotted) > 1 and dotted[1] in names else "__init__", line))

    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name.split("."), node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            for alias in node.names:
                add([*base, alias.name], node.lineno)
    return found


FILES = sorted(PACKAGE.rglob("*.py"))
UNITS = {unit_of(path) for path in FILES} - {"__init__"}


def test_every_module_has_a_row():
    assert UNITS <= set(ROW), f"give {sorted(UNITS - set(ROW))} a place in ROWS (and in docs, if it is a new idea)"


def test_imports_go_down():
    wrong = []
    for path in FILES:
        own = unit_of(path)
        if own == "__init__":
            continue
        for target, line in imports_of(path, UNITS):
            if target == "__init__":
                # `import jaxmbd as mb` pulls in everything, so only what lies below everything may do it
                allowed = ROW.get(own, 0) >= ROW["models"]
            else:
                allowed = ROW.get(target, 0) <= ROW.get(own, 0) and target not in FORBIDDEN.get(own, ())
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_no_import_cycles():
    graph = {unit: set() for unit in UNITS}
    for path in FILES:
        own = unit_of(path)
        if own != "__init__":
            graph[own] |= {target for target, _ in imports_of(path, UNITS)} - {own, "__init__"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("modules import each other: " + " -> ".join(error.args[1]))


def test_the_import_reader_sees_all_forms(tmp_path, monkeypatch):
    """The two tests above are as good as `imports_of`: feed it every way of importing."""
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "jaxmbd")
    path = tmp_path / "jaxmbd" / "points" / "a.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import jaxmbd.tree\nfrom jaxmbd.rnea import x\nfrom ..aba import y\nfrom .. import crba\nfrom . import b\n"
        "from jaxmbd import energy, load\nimport numpy\ndef f():\n    from ..tree import z\n"
    )
    names = {"tree", "rnea", "aba", "crba", "points", "energy"}
    expected = ["tree", "rnea", "aba", "crba", "points", "energy", "__init__", "tree"]
    assert [target for target, _ in imports_of(path, names)] == expected


IMPORT_CHECK = """
import os, sys
import jax
from jax._src import xla_bridge
settings, environment, recursion = dict(jax.config.values), dict(os.environ), sys.getrecursionlimit()
import jaxmbd
changed = [k for k, v in settings.items() if jax.config.values[k] != v]
assert not changed, f"import jaxmbd changed jax settings: {changed}"
assert dict(os.environ) == environment, "import jaxmbd changed the environment"
assert sys.getrecursionlimit() == recursion, "import jaxmbd changed the recursion limit"
assert not xla_bridge.backends_are_initialized(), "import jaxmbd started a device"
heavy = {"matplotlib", "diffrax", "optimistix", "optax", "mujoco", "lxml", "tyro", "tqdm", "viser", "scipy.optimize"}
found = sorted(heavy & set(sys.modules))
assert not found, f"import jaxmbd imports {found}; import them inside the functions that need them"
"""


def test_importing_does_nothing_else():
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", IMPORT_CHECK], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "" and run.stderr == ""


def test_public_names_exist_once():
    names = jaxmbd.__all__
    assert len(names) == len(set(names))
    objects = {}
    for name in names:
        objects.setdefault(id(getattr(jaxmbd, name)), []).append(name)
    aliases = [same for same in objects.values() if len(same) > 1]
    assert not aliases, f"one name for one thing: {aliases}"


def test_public_names_have_one_import_path():
    """`jaxmbd.NAME`: no subpackage offers a name that it does not define itself, and no stray name leaks at the top."""
    again = [
        f"{path.relative_to(ROOT)}:{node.lineno} {alias.name}"
        for path in PACKAGE.glob("*/**/__init__.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and not node.level
        for alias in node.names
        if alias.name in jaxmbd.__all__ and not node.module.startswith(f"jaxmbd.{unit_of(path)}.")
    ]
    assert not again, again
    visible = {name for name in vars(jaxmbd) if not name.startswith("_")}
    stray = visible - set(jaxmbd.__all__) - UNITS
    assert not stray, f"{sorted(stray)} can be imported from jaxmbd but are not in __all__"


def test_modules_stay_small():
    lengths = {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    long = {str(path): lines for path, lines in lengths.items() if lines > 400}
    assert not long, f"over 400 lines, so probably two ideas in one module: {long}"
