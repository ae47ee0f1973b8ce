"""The tables of docs/simulation.md are those of the committed evidence."""

import json
from pathlib import Path

from experiments import RESULTS, long_run

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "simulation.md").read_text(encoding="utf-8")


def test_table_is_the_evidence():
    evidence = json.loads((RESULTS / "long_run.json").read_text(encoding="utf-8"))
    assert long_run.markdown(evidence) in PAGE
    for run in evidence["runs"]:
        assert f"{run['rise']:.1e}" in PAGE and f"{run['spread']:.1e}" in PAGE, run["stepper"]
