"""A pipeline from Beam's documentation, moved over by changing only its imports."""

from __future__ import annotations

import ast
import pickle
import re
import sys
import types
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.examples.inference import sklearn_mnist_classification as original
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier

import headrace.beam
import headrace.handlers


def moved_over(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The example as a module that imports Headrace instead."""
    source = Path(original.__file__).read_text()
    changed = re.sub(r"from apache_beam\.ml\.inference\.base import", "from headrace.beam import", source)
    changed = re.sub(r"from apache_beam\.ml\.inference\.", "from headrace.handlers.", changed)
    assert changed.count("headrace") == 5
    module = types.ModuleType("moved_over")
    module.__file__ = original.__file__
    monkeypatch.setitem(sys.modules, "moved_over", module)  # where older versions of Beam look for its classes
    exec(compile(changed, "moved_over.py", "exec"), vars(module))
    return module


@pytest.fixture
def digits(tmp_path):
    """A folder with the example's input, a label and its pixels on each line, and its model."""
    images, labels = load_digits(return_X_y=True)
    lines = [",".join(map(str, [label, *pixels])) for label, pixels in zip(labels, images.astype(int), strict=True)]
    (tmp_path / "digits.csv").write_text("\n".join(lines[1000:1300]))
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(RidgeClassifier().fit(images[:1000], labels[:1000])))
    return tmp_path


def run(module, folder, name):
    arguments = [f"--input={folder}/digits.csv", f"--model_path={folder}/model.pkl", f"--output={folder}/{name}"]
    module.run(arguments, save_main_session=False, test_pipeline=beam.Pipeline(runner=FnApiRunner()))
    return sorted((folder / name).read_text().splitlines())


def names_that_examples_import():
    """Of Beam's modules for frameworks, by module."""
    found = set()
    for path in sorted(Path(original.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("apache_beam.ml.inference."):
                found |= {(node.module.rpartition(".")[2], alias.name) for alias in node.names}
    return found


def test_every_name_that_an_example_imports_is_where_it_is_moved_to():
    folder = Path(headrace.handlers.__file__).parent
    modules = {path.stem: ast.parse(path.read_text()) for path in folder.glob("*_inference.py")}
    defined = {name: {*names_defined_in(tree)} for name, tree in modules.items()}
    defined |= {"base": set(headrace.beam.__all__), "utils": set(headrace.beam.__all__)}
    wanted = {(module, name) for module, name in names_that_examples_import() if module in defined}
    assert ("base", "RunInference") in wanted
    assert len(wanted) > 20
    assert {(module, name) for module, name in wanted if name not in defined[module]} == set()


def names_defined_in(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def test_example_gives_the_same_output_after_the_move(digits, monkeypatch):
    ours, theirs = run(moved_over(monkeypatch), digits, "ours"), run(original, digits, "theirs")
    assert ours == theirs
    pairs = [line.split(",") for line in ours]
    assert len(pairs) == 300
    assert sum(label == prediction for label, prediction in pairs) > 240
