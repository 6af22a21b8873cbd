"""Beam's AnomalyDetection with handlers of Headrace's."""

from __future__ import annotations

import importlib
import warnings
from types import SimpleNamespace

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from headrace import KeyedModelHandler
from headrace.testing import DoublingHandler

pytestmark = pytest.mark.since_beam("2.66", reason="Beam has no offline detectors before")
MODULES = ("detectors.offline", "transforms", "specifiable")


class Doubling(DoublingHandler):
    """Gets a spec, which Headrace's own class shall not have."""


def to_keyed_number(pair):
    key, row = pair
    return key, row.x


@pytest.fixture
def anomaly():
    """What the tests use of Beam's modules."""
    modules = map(importlib.import_module, (f"apache_beam.ml.anomaly.{name}" for name in MODULES))
    return SimpleNamespace(**{name: thing for module in modules for name, thing in vars(module).items()})


@pytest.fixture
def _with_specs(anomaly):
    """The handlers' classes have specs."""
    classes = [anomaly.specifiable(cls) for cls in (Doubling, KeyedModelHandler)]
    yield
    for cls in classes:
        cls.unspecifiable()


def detector(anomaly):
    handler = KeyedModelHandler(Doubling()).with_preprocess_fn(to_keyed_number)
    return anomaly.OfflineDetector(handler.with_postprocess_fn(anomaly.OfflineDetector.score_prediction_adapter))


def assert_detects(anomaly, detector):
    with beam.Pipeline(runner=FnApiRunner()) as pipeline, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        rows = pipeline | beam.Create([beam.Row(x=1.0), beam.Row(x=4.0)])
        scores = rows | anomaly.AnomalyDetection(detector) | beam.Map(lambda one: one.predictions[0].score)
        assert_that(scores, equal_to([2.0, 8.0]))


def test_detector_runs_a_handler_of_ours_without_a_warning(anomaly):
    assert_detects(anomaly, detector(anomaly))


@pytest.mark.usefixtures("_with_specs")
def test_spec_keeps_preprocessing_and_postprocessing(anomaly):
    spec = detector(anomaly).to_spec()
    assert "to_keyed_number" in str(spec)
    assert "score_prediction_adapter" in str(spec)
    assert_detects(anomaly, anomaly.Specifiable.from_spec(spec))
    assert anomaly.Specifiable.from_spec(spec).to_spec() == spec
