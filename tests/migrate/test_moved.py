"""Pipelines as people write them run before and after the move, with equal output.

``moved`` has sources that stand for public pipelines: what they import and call, in other words. Each builds a
PCollection; all run in two pipelines, one as they are, with Beam's transform, and one moved over.
"""

from __future__ import annotations

import ast
import gc
import importlib
import sys
import types
from pathlib import Path

import apache_beam as beam
import joblib
import pandas
import pytest
from sklearn.linear_model import LinearRegression

from headrace.migrate.source import migrate_source
from pipelines import Run

pytestmark = pytest.mark.filterwarnings("ignore")  # Beam's handlers leave files open, and use what is deprecated

SOURCES = sorted(Path(__file__).with_name("moved").glob("*.py"))


class Part(beam.PTransform):
    """What a source builds, under a label of its own."""

    def __init__(self, module, folder):
        super().__init__()
        self.module = module
        self.folder = folder

    def expand(self, root):
        return self.module.build(root, self.folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the sources load: a model of sums of named columns, and a factor."""
    path = tmp_path_factory.mktemp("models")
    rows = pandas.DataFrame({"x": [0, 0, 1, 1], "y": [0, 1, 0, 1]}, dtype="float32")
    joblib.dump(LinearRegression().fit(rows, rows.sum(axis=1)), path / "frames.joblib")
    (path / "factor.txt").write_text("2")
    return path


def loaded(path, text, suffix):
    """A source as a module that pickles find."""
    module = types.ModuleType(f"moved_{path.stem}_{suffix}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(text, str(path), "exec"), vars(module))
    return module


def outputs(paths, folder, change, suffix):
    """What each source's PCollection contains, by the name of its file."""
    run = Run()
    names = [path.stem for path in paths]
    modules = [loaded(path, change(path.read_text()), suffix) for path in paths]
    try:
        parts = {name: run.pipeline | name >> Part(module, folder) for name, module in zip(names, modules, strict=True)}
        values = run.values(**parts)
    finally:
        for module in modules:
            del sys.modules[module.__name__]
        gc.collect()  # files that handlers left open are warned about here, where warnings are ignored
    return dict(zip(names, values, strict=True))


def moved(text):
    return migrate_source(text).text


@pytest.fixture(scope="module")
def before(folder):
    return outputs(SOURCES, folder, str, "before")


@pytest.fixture(scope="module")
def after(folder):
    return outputs(SOURCES, folder, moved, "after")


def in_order(values):
    return sorted(values, key=repr)


@pytest.mark.parametrize("name", [path.stem for path in SOURCES])
def test_output_is_the_same_after_the_move(before, after, name):
    assert len(before[name]) > 0
    assert in_order(after[name]) == in_order(before[name])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_source_moves_completely_and_its_imports_resolve_and_are_used(path):
    result = migrate_source(path.read_text())
    assert [one.message for one in result.findings if one.needs_person and not one.if_beam_stays] == []
    assert "apache_beam.ml" not in result.text
    tree = ast.parse(result.text)
    text = ast.unparse(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("headrace"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name)
                assert text.count(alias.asname or alias.name) > 1
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
