"""Experiments: one script a question, its evidence in results/. What they share is where the evidence comes from."""

from __future__ import annotations

import os
import platform
import time
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def provenance(*packages: str) -> dict[str, Any]:
    """Date, machine, device and versions, for the json of an experiment."""
    import jax

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = {"python": platform.python_version(), "jaxmbd": project["version"]}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "device": f"{jax.devices()[0].platform}: {jax.devices()[0].device_kind}",
        "versions": versions,
    }


def _cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
