"""A pipeline from Beam's documentation, moved over by changing only its imports."""

from __future__ import annotations

import pickle
import re
import sys
import types
from pathlib import Path

import apache_beam as beam
from apache_beam.examples.inference import sklearn_mnist_classification as original
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier


def moved_over(monkeypatch):
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


def test_example_gives_the_same_output_after_the_move(tmp_path, monkeypatch):
    images, labels = load_digits(return_X_y=True)
    lines = [",".join(map(str, [label, *pixels])) for label, pixels in zip(labels, images.astype(int), strict=True)]
    (tmp_path / "digits.csv").write_text("\n".join(lines[1000:1300]))
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(RidgeClassifier().fit(images[:1000], labels[:1000])))

    def output(module, name):
        files = {"input": "digits.csv", "model_path": "model.pkl", "output": name}
        arguments = [f"--{option}={tmp_path}/{file}" for option, file in files.items()]
        module.run(arguments, save_main_session=False, test_pipeline=beam.Pipeline(runner=FnApiRunner()))
        return sorted((tmp_path / name).read_text().splitlines())

    ours = output(moved_over(monkeypatch), "ours")
    assert ours == output(original, "theirs")
    pairs = [line.split(",") for line in ours]
    assert len(pairs) == 300
    assert sum(label == prediction for label, prediction in pairs) > 240
