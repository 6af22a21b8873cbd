"""Every example that Beam publishes moves over."""

import ast
import importlib.util
from pathlib import Path

import pytest

from headrace.migrate.names import module_for, names_in
from headrace.migrate.source import migrate_source

pytestmark = pytest.mark.large
FOLDER = Path(importlib.util.find_spec("apache_beam").origin).parent / "examples"
USERS = [path for path in sorted(FOLDER.rglob("*.py")) if "ml.inference" in path.read_text()]


def imports(text):
    """Modules and the names that a text imports from them."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module]
    return [(node.module, alias.name) for node in found for alias in node.names]


def test_examples_are_found():
    assert len(USERS) > 30


@pytest.mark.parametrize("path", USERS, ids=lambda path: path.stem)
def test_example_moves(path):
    moved = migrate_source(path.read_text())
    by_hand = [one.message for one in moved.findings if one.needs_person and not one.if_beam_stays]
    assert by_hand == []
    for module, name in imports(moved.text):
        if module in ("headrace", "headrace.handlers"):
            assert name == "beam" or module_for(name)
        elif module.startswith("headrace."):
            assert name in names_in(module)
        elif module.startswith("apache_beam.ml.inference"):
            assert module_for(module.rpartition(".")[2]) is None, "it has a counterpart"
