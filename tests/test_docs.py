"""The documentation: the site is built without a warning, its programs run, its pictures are drawn by their script."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxmbd as mb

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {page: "\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))) for page in PAGES}
PROGRAMS = {page: program for page, program in PROGRAMS.items() if program}


def run(*command, **options):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # what the pages tell of is this folder
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    folder = tmp_path_factory.mktemp("site")
    run("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder), cwd=ROOT)
    return folder


def test_site_is_built_without_warnings(site):
    for page in PAGES:
        assert (site / page.relative_to(DOCS)).with_suffix(".html").is_file()


def test_reference_has_every_public_name(site):
    html = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    anchors = {anchor.rpartition(".")[2] for anchor in re.findall(r'id="(jaxmbd\.[\w.]+)"', html)}
    modules = {name for name in mb.__all__ if isinstance(getattr(mb, name), type(mb))}
    missing = set(mb.__all__) - anchors - modules
    assert not missing, f"give {sorted(missing)} a line in docs/api/index.md, below 'Functions that share ...'"
    for module in modules:
        assert (site / "api" / f"{module}.html").is_file(), f"docs/api/{module}.md is missing"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}"


def test_every_how_to_is_in_the_navigation():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert PROGRAMS
    assert not [page for page in PAGES if page.relative_to(DOCS).as_posix() not in settings]


@pytest.mark.slow
@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_programs_of_a_page_run(page, tmp_path):
    """All Python of a page, in order, in one namespace, in float32."""
    (tmp_path / "page.py").write_text(PROGRAMS[page], encoding="utf-8")
    run("page.py", cwd=tmp_path)


@pytest.mark.slow
def test_pictures_are_drawn_by_their_script(tmp_path):
    run(str(DOCS / "pictures.py"), str(tmp_path))
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (DOCS / "images").glob("conventions_*.svg")}
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert all(f"images/{name}" in shown for name in drawn)
