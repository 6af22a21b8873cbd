"""The benchmarks' modules, which import each other like scripts in one folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
_NAMES = ("elsewhere", "goals", "machine", "measure", "outputs", "processes", "report", "run", "workloads")


@pytest.fixture
def benchmark_module(monkeypatch):
    """Imports a module of the benchmarks; afterwards its name is free again."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name in [name for name in sys.modules if name.split(".")[0] in _NAMES]:
        del sys.modules[name]
