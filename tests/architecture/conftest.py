"""What the tests of the architecture look at: the project's own files, parsed once."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from architecture.measures import modules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def pyproject() -> Mapping[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def sources() -> Mapping[str, ast.Module]:
    """Each module of ``src/headrace``, parsed, under its dotted name."""
    return {name: ast.parse(path.read_text()) for name, path in modules().items()}
