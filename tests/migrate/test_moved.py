"""A pipeline as people write them has the same output after the move; and every example that Beam publishes moves."""

import ast
import gc
import importlib.util
import sys
import types
from pathlib import Path

import joblib
import pandas
import pytest
from sklearn.linear_model import LinearRegression

from headrace.migrate.names import module_for, names_in
from headrace.migrate.source import migrate_source
from pipelines import Run

pytestmark = pytest.mark.filterwarnings("ignore")  # Beam's handlers leave files open, and use what is deprecated

SOURCE = Path(__file__).with_name("moved") / "pipeline.py"


@pytest.fixture
def folder(tmp_path):
    """What the source loads: a model of sums of named columns, and a factor."""
    rows = pandas.DataFrame({"x": [0, 0, 1, 1], "y": [0, 1, 0, 1]}, dtype="float32")
    joblib.dump(LinearRegression().fit(rows, rows.sum(axis=1)), tmp_path / "frames.joblib")
    (tmp_path / "factor.txt").write_text("2")
    return tmp_path


def outputs(text, folder, name):
    """What the source's PCollection contains; the source is a module that pickles find."""
    module = types.ModuleType(name)
    module.__file__ = str(SOURCE)
    sys.modules[name] = module
    try:
        exec(compile(text, str(SOURCE), "exec"), vars(module))
        run = Run()
        return sorted(run.values(out=module.build(run.pipeline, folder)))
    finally:
        del sys.modules[name]
        gc.collect()  # files that handlers left open are warned about here, where warnings are ignored


def test_output_is_the_same_after_the_move(folder):
    text = SOURCE.read_text()
    moved = migrate_source(text)
    assert [one.message for one in moved.findings if one.needs_person] == []
    assert "apache_beam.ml" not in moved.text
    before, after = outputs(text, folder, "moved_before"), outputs(moved.text, folder, "moved_after")
    assert before == after == ["1.0 2.5", "2.0 4.5", "3.0 6.5", "{'x': 1, 'y': 2} 3.0", "{'x': 3, 'y': 4} 7.0"]


FOLDER = Path(importlib.util.find_spec("apache_beam").origin).parent / "examples"
USERS = [path for path in sorted(FOLDER.rglob("*.py")) if "ml.inference" in path.read_text()]


def imports(text):
    """Modules and the names that a text imports from them."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module]
    return [(node.module, alias.name) for node in found for alias in node.names]


@pytest.mark.large
def test_beams_examples_are_found():
    assert len(USERS) > 30


@pytest.mark.large
@pytest.mark.parametrize("path", USERS, ids=lambda path: path.stem)
def test_each_of_beams_examples_moves(path):
    moved = migrate_source(path.read_text())
    by_hand = [one.message for one in moved.findings if one.needs_person]
    assert by_hand == []
    for module, name in imports(moved.text):
        if module in ("headrace", "headrace.handlers"):
            assert name == "beam" or module_for(name)
        elif module.startswith("headrace."):
            assert name in names_in(module)
        elif module.startswith("apache_beam.ml.inference"):
            assert module_for(module.rpartition(".")[2]) is None, "it has a counterpart"
