"""Handlers of Headrace's in transforms of Beam's that apply Beam's own RunInference."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.ml.inference import base
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from headrace import KeyedModelHandler, KeyModelMapping, KeyModelPathMapping, PredictionResult, UnsupportedError
from headrace.core import beam_compat
from headrace.testing import DoublingHandler
from toys import Poisoned

MAPPINGS = [KeyModelMapping(["a", "b"], DoublingHandler()), KeyModelMapping(["c"], Poisoned())]


@pytest.fixture(autouse=True)
def _is_meant(monkeypatch):
    monkeypatch.setattr(beam_compat, "_warned", True)


def test_keyed_handler_of_several_models_runs_in_beams_transform():
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        pairs = pipeline | beam.Create([("a", 1), ("c", 2), ("b", 3)])
        predictions = pairs | base.RunInference(KeyedModelHandler(MAPPINGS, max_models_per_worker_hint=1))
        expected = [("a", PredictionResult(1, 2)), ("b", PredictionResult(3, 6)), ("c", 102)]
        assert_that(predictions, equal_to(expected))


def test_error_of_a_keyed_model_comes_through_beams_transform():
    with pytest.raises(Exception, match="poison"), beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([("c", -1)]) | base.RunInference(KeyedModelHandler(MAPPINGS))


def test_keyed_handler_refuses_newer_models_from_beams_transform():
    handler = KeyedModelHandler(MAPPINGS)
    assert handler.update_model_paths(handler.load_model(), None) is None
    with pytest.raises(UnsupportedError, match=r"run it with headrace\.beam\.RunInference"):
        handler.update_model_paths(handler.load_model(), [KeyModelPathMapping(["a"], "path")])
