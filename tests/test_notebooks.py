"""Every notebook is a lecture that runs: its script and its .ipynb agree, and both end without an error."""

import os
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.py"))
CODE_CELLS = 12

by_script = pytest.mark.parametrize("script", SCRIPTS, ids=[s.stem for s in SCRIPTS])


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks_and_all_are_paired():
    assert SCRIPTS
    assert {s.stem for s in SCRIPTS} == {n.stem for n in NOTEBOOKS.glob("*.ipynb")}


@by_script
def test_the_notebook_is_its_script_executed(script):
    cells = [(c.cell_type, c.source) for c in jupytext.read(script).cells]
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    assert [(c.cell_type, c.source) for c in notebook.cells] == cells, f"jupytext --sync {script.name}, then run it"
    code = code_of(notebook)
    assert len(code) <= CODE_CELLS
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1)), "run all its cells in order"
    outputs = [output for c in code for output in c.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    assert [o for o in outputs if "image/png" in o.get("data", {})], "a lecture shows a figure"


@by_script
def test_what_is_printed_is_asserted(script):
    for cell in code_of(jupytext.read(script)):
        if "print(" in cell.source:
            assert "assert " in cell.source, cell.source


@pytest.mark.slow
@by_script
def test_the_notebook_runs(script, monkeypatch):
    monkeypatch.setenv("JAXMBD_SMALL", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOKS.parent), os.environ.get("PYTHONPATH", "")]))
    notebook = jupytext.read(script)
    kernel = nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": NOTEBOOKS}}
    )
    kernel.execute()  # raises at the first cell that fails
