"""Pickles and files of joblib are read without running any of their code, and nothing of them is imported."""

from __future__ import annotations

import collections
import io
import os
import pickle
import subprocess
import sys

import joblib
import numpy
import pytest

from headrace.core.inert_pickle import Inert, PickledModel


class Estimator:
    def __init__(self):
        self.weights = numpy.arange(12.0).reshape(3, 4)
        self.flags = numpy.array([True, False])
        self.words = numpy.array(["ä", "bcd"])
        self.days = numpy.array(["2024-02-29"], "datetime64[D]")
        self.records = numpy.zeros(5, [("left", "i8"), ("gain", "f4")])
        self.none = numpy.zeros((0, 3))
        self.column_order = numpy.asfortranarray(numpy.ones((2, 3)))
        self.parts = collections.OrderedDict(a=[1, 2], b={"c": (3,)})
        self.names = numpy.array(["age", "Größe"], dtype=object)
        self.count = 2


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def pickled(model, **options):
    return io.BytesIO(pickle.dumps(model, **options))


def with_joblib(model, path, **options):
    joblib.dump(model, path, **options)
    return io.BytesIO(path.read_bytes())


def state_of(model):
    assert isinstance(model.content, Inert)
    assert model.content.kind.endswith("Estimator")
    return model.content.attribute("names").state[-1], model.content.attribute("count")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_any_protocol_keeps_its_state(protocol):
    model = PickledModel(pickled(Estimator(), protocol=protocol))
    assert state_of(model) == (["age", "Größe"], 2)
    assert not model.needs_joblib


@pytest.mark.parametrize("compress", [0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3), ("lzma", 3)])
def test_arrays_of_joblib_are_passed_over(tmp_path, compress):
    model = PickledModel(with_joblib(Estimator(), tmp_path / "model", compress=compress))
    assert state_of(model) == (["age", "Größe"], 2)
    assert model.needs_joblib


def test_nothing_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    harmful = [Harmful(), numpy.ones(3)]
    for file in (pickled(harmful), with_joblib(harmful, tmp_path / "model")):
        assert PickledModel(file).content[0].kind.endswith(".system")
    assert not os.path.exists("harmed")


def test_nothing_is_imported(tmp_path):
    joblib.dump(Estimator(), tmp_path / "model")
    code = (
        "import sys; from headrace.core.inert_pickle import PickledModel\n"
        f"print(PickledModel(open({str(tmp_path / 'model')!r}, 'rb')).content.kind)\n"
        "print('numpy' in sys.modules, 'joblib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[1] == "False False"


def test_a_damaged_pickle_is_an_error():
    whole = pickle.dumps(Estimator())
    for end in range(0, len(whole), 7):
        with pytest.raises(Exception, match=r"."):
            PickledModel(io.BytesIO(whole[:end]))
