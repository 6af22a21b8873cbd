"""``BeamCompatContract``: what a handler of a framework shares with Beam's, beside what every handler promises."""

from __future__ import annotations

import atexit
import importlib
import inspect
import shutil
import sys
import tempfile
import unittest
from collections import ChainMap
from pathlib import Path

import apache_beam
import numpy
import pyarrow
import pytest

from headrace import ModelHandler
from headrace.testing import HandlerContract, nearly_equal
from pipelines import through_pipeline
from toys import infer, inferences


class BeamCompatContract(HandlerContract):
    """The handler's results and arguments are those of ``beams``, a fixture or a method: Beam's, made like it."""

    required: tuple[str, ...] = ("model_uri",)
    """The arguments that have no default."""
    beams_model_id = True
    """Whether Beam's results name their model."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "beams" in vars(cls):
            cls.beams = pytest.fixture(cls.beams)

    @pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # Beam's handlers leave it open
    def test_results_are_beams(self, handler, beams, examples):
        ours, theirs = infer(handler, examples), infer(beams, examples)
        assert nearly_equal(inferences(ours), inferences(theirs))
        assert [type(one) for one in inferences(ours)] == [type(one) for one in inferences(theirs)]
        assert all(result.example is example for result, example in zip(ours, examples, strict=True))
        named = theirs if self.beams_model_id else ours
        assert {one.model_id for one in ours} == {one.model_id for one in named} == {handler._model_uri}

    def test_arguments_are_beams(self, handler, beams):
        assert_accepts(type(handler), type(beams), *self.required)

    def test_pipeline_predicts_the_same(self, handler, examples):
        found, expected = through_pipeline(handler, examples), infer(handler, examples)
        assert nearly_equal(inferences(found), inferences(expected))
        assert {one.model_id for one in found} == {one.model_id for one in expected}

    def test_model_path_may_change(self, handler):
        handler.update_model_path(None)
        assert handler.load_model()
        handler.update_model_path("./nothing.there")
        with pytest.raises(Exception, match=r"nothing\.there"):
            handler.load_model()


KINDS = {
    "dict": lambda frame: {name: frame[name].to_numpy() for name in frame},
    "frame": lambda frame: frame,
    "record batch": pyarrow.RecordBatch.from_pandas,
    "table": pyarrow.Table.from_pandas,
    "array": lambda frame: frame.to_numpy(),
}


class ColumnsContract:
    """Columns are predicted as their rows are: those of ``frame``, an attribute, which has numbers only."""

    frame = None
    kinds = tuple(KINDS)
    """In which forms they may come."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_columns_predict_as_rows(self, handler, kind):
        if kind not in self.kinds:
            pytest.skip("the handler does not take them")
        model = handler.load_model()
        rows = [handler.example_from_row(row) for row in self.frame.to_dict("records")]
        expected = [numpy.asarray(one) for one in inferences(handler.run_inference(rows, model))]
        found = handler.run_columns(KINDS[kind](self.frame), model)
        assert numpy.allclose(numpy.asarray(found.inference), expected, atol=1e-6)
        assert found.model_id == handler._model_uri

    def test_columns_without_numbers_fail(self, handler):
        with pytest.raises((TypeError, ValueError)):
            handler.run_columns({name: ["x", "y"] for name in self.frame}, handler.load_model())


def assert_accepts(ours, theirs, *required):
    """Asserts that a handler class takes every argument of Beam's, in the same places and with the same defaults.

    What the class does not name itself it hands to its bases; a default function may be None here.
    """
    mine, beams = (inspect.signature(cls).parameters for cls in (ours, theirs))
    common = ChainMap(
        *[dict(inspect.signature(base).parameters) for base in ours.__mro__ if issubclass(base, ModelHandler)]
    )
    for place, (name, parameter) in enumerate(beams.items()):
        found = mine.get(name) or common[name]
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            assert list(mine)[place] == name
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            assert (name in required) is (found.default is inspect.Parameter.empty)
        if not callable(parameter.default):
            assert _plain(found.default) == _plain(parameter.default)


def _plain(default):
    if isinstance(default, list | tuple):
        return list(default)
    return getattr(default, "name", default)


def beams_suites(module, moved):
    """The test cases of Beam's module of tests, which import what ``moved`` says; a file, as workers import it, too."""
    source = Path(apache_beam.__file__).with_name("ml").joinpath("inference", f"{module}_test.py").read_text()
    for theirs, ours in moved.items():
        assert theirs in source
        source = source.replace(theirs, ours)
    folder = Path(tempfile.mkdtemp(prefix="beams_suites"))
    atexit.register(shutil.rmtree, folder)
    (folder / f"beams_{module}_test.py").write_text(source)
    sys.path.append(str(folder))
    found = vars(importlib.import_module(f"beams_{module}_test"))
    suites = {name: one for name, one in found.items() if isinstance(one, type) and issubclass(one, unittest.TestCase)}
    assert suites
    return {f"{name}Of{module.title().replace('_', '')}": one for name, one in suites.items()}
