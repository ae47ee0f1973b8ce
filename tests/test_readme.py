"""Everything that the README shows is run: its Python, its commands, its links."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jaxmbd import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, block in BLOCKS if language == "bash" for line in block.splitlines() if line.strip()]
SET_UPS = [line for line in COMMANDS if line.startswith("python3 -m venv .venv && ")]
PROGRAMS = [line for line in COMMANDS if line.startswith("jaxmbd ")]
SMALL = {"--batch": "3", "--duration": "0.02"}


def small(command: list[str]) -> list[str]:
    """The same command with a small batch and a short time."""
    return [SMALL.get(before, word) for before, word in zip(["", *command], command, strict=False)]


def run(command, folder, **environment):
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"MPLBACKEND": "Agg"} | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def test_every_block_is_run_by_a_test():
    assert {language for language, _ in BLOCKS} == {"python", "bash"}
    assert len(SET_UPS) == 2
    assert sorted(SET_UPS + PROGRAMS) == sorted(COMMANDS)


@pytest.mark.slow
def test_python(tmp_path):
    """All Python blocks, in order, in one namespace."""
    code = "\n".join(block for language, block in BLOCKS if language == "python")
    (tmp_path / "readme.py").write_text(code, encoding="utf-8")
    run([sys.executable, "readme.py"], tmp_path)


@pytest.mark.slow
@pytest.mark.external
def test_python_of_the_page_on_files(tmp_path):
    """docs/files.md: its Python blocks in one namespace, with the file that it writes; its links."""
    page = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    said = run([sys.executable, "page.py"], tmp_path).stdout
    assert "model 'pendulum', 2 bodies, joints: 1 slide, 1 hinge" in said
    for name in re.findall(r"`(tests/\w+\.py)`", page):
        assert (ROOT / name).is_file()


@pytest.mark.slow
def test_python_of_the_page_on_mixed_problems(tmp_path):
    """docs/mixed.md: its Python blocks in one namespace."""
    page = (ROOT / "docs" / "mixed.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    run([sys.executable, "page.py"], tmp_path)


# the first is the main job; it stands for the others in quick runs
@pytest.mark.parametrize("line", [PROGRAMS[0], *(pytest.param(line, marks=pytest.mark.slow) for line in PROGRAMS[1:])])
def test_command(line, tmp_path):
    for robot in re.findall(r"\S+\.urdf", line):
        (tmp_path / robot).write_bytes(cli.SHIPPED_ROBOT.read_bytes())
    words = small(shlex.split(line)[1:])
    for option in ("--out", "--plot"):
        if option in words:
            (tmp_path / words[words.index(option) + 1]).parent.mkdir(parents=True, exist_ok=True)
    if "--start" in words:
        earlier = ["simulate", "--batch", "2", "--duration", "0.02", "--out", words[words.index("--start") + 1]]
        run([sys.executable, "-m", "jaxmbd", *earlier], tmp_path)
    run([sys.executable, "-m", "jaxmbd", *words], tmp_path)
    for option in ("--out", "--plot"):
        if option in words:
            assert (tmp_path / words[words.index(option) + 1]).stat().st_size > 0


@pytest.mark.slow
def test_main_job_from_the_installed_package(tmp_path):
    """The first command: what `pip install .` installs, without this folder in reach, does the main job."""
    (line,) = [line for line in SET_UPS if "jaxmbd simulate" in line]
    make, install, main_job = line.split(" && ")
    assert make == "python3 -m venv .venv"
    assert install == ".venv/bin/pip install ."
    site = tmp_path / "site"
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(site)]
    run([sys.executable, "-m", "pip", "install", str(ROOT), *flags], tmp_path)
    words = small(shlex.split(main_job))
    assert words[0] == ".venv/bin/jaxmbd"
    started = f"import sys, jaxmbd.cli as cli; assert cli.__file__.startswith({str(site)!r}); sys.exit(cli.main())"
    run([sys.executable, "-c", started, *words[1:]], tmp_path, PYTHONPATH=str(site))
    assert {"run.npz", "run.png"} <= {path.name for path in tmp_path.iterdir()}


def test_ci_runs_both_commands_word_for_word():
    """.ci/run takes them from the README by these patterns, and runs what it finds."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for variable, word in (("main_job", "jaxmbd simulate"), ("tests", "pytest")):
        pattern = re.search(rf"^{variable}=\$\(grep -E '(.*)' README\.md\)$", script, re.MULTILINE)[1]
        (found,) = re.findall(f"{pattern}.*", README, re.MULTILINE)
        assert found in SET_UPS and word in found
        assert f'eval "${variable}"' in script
    (tests,) = [line for line in SET_UPS if "pytest" in line]
    assert tests.split(" && ")[-1] == ".venv/bin/pytest -n 2"


def test_links_lead_somewhere():
    links = [
        link for link in re.findall(r"\]\(([^)\s]+)\)", README) if not link.startswith(("http://", "https://", "#"))
    ]
    assert links
    missing = [link for link in links if not (ROOT / link.split("#")[0]).exists()]
    assert not missing
