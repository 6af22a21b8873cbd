"""The scripts of ``engines``, which import each other as those of one folder do."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "engines"


@pytest.fixture
def engine_module(monkeypatch):
    """Imports one of them; afterwards its name is free again."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)
