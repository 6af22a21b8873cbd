"""Beam's type checks while a pipeline runs, and its strict ones while it is made."""

# Beam takes annotations for type hints, but not annotations that are strings: no import of those from __future__.
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import DirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

import headrace
from headrace import ModelHandler
from headrace.beam import DeadLetterRows, KeyedModelHandler, RunInference

AT_RUN_TIME, OFF = {"runtime_type_check": True}, {"pipeline_type_check": False}
SLOW = pytest.mark.large


class Reciprocal(ModelHandler[float, float, Any]):
    def load_model(self):
        return lambda number: 1 / number

    def run_inference(self, batch, model, inference_args=None):
        return map(model, batch)


def parsed(pair: tuple[str, str]) -> tuple[str, float]:
    key, text = pair
    return headrace.SKIP if text == "skip" else (key, float(text))


def described(pair: tuple[str, float]) -> str:
    key, number = pair
    if number < 0:
        raise ValueError("negative")
    return f"{key} {number}"


def element_of(record: tuple[Any, tuple[type, str, list[str]]]) -> str:
    return repr(record[0])


@pytest.mark.parametrize(
    ("options", "runner"),
    [
        (AT_RUN_TIME, FnApiRunner),
        pytest.param(AT_RUN_TIME, DirectRunner, marks=SLOW),
        pytest.param(OFF, FnApiRunner, marks=SLOW),
        pytest.param(OFF, DirectRunner, marks=SLOW),
        pytest.param({**OFF, **AT_RUN_TIME}, FnApiRunner, marks=SLOW),
    ],
)
def test_predictions_dead_letters_and_skips_pass(options, runner):
    handler = KeyedModelHandler(Reciprocal()).with_preprocess_fn(parsed).with_postprocess_fn(described)
    with beam.Pipeline(runner=runner(), options=PipelineOptions(**options)) as pipeline:
        pairs = pipeline | beam.Create([("a", "2"), ("b", "x"), ("c", "0"), ("d", "-2"), ("e", "skip")])
        values, dead, _ = pairs | RunInference(handler).with_exception_handling(threshold=0.9).with_skipped_elements()
        assert_that(values, equal_to(["a 0.5"]), "values")
        for label, (record,), element in [
            ("before", dead.failed_preprocessing, "('b', 'x')"),
            ("in", [dead.failed_inferences], "[('c', 0.0)]"),
            ("after", dead.failed_postprocessing, "('d', -0.5)"),
        ]:
            elements = record | f"Element {label}" >> beam.Reshuffle() | f"Take {label}" >> beam.Map(element_of)
            assert_that(elements, equal_to([element]), label)
        rows = dead | DeadLetterRows() | beam.Map(lambda row: row.stage)
        assert_that(rows, equal_to(["preprocessing", "inference", "postprocessing"]), "rows")


@pytest.mark.large
def test_monitored_predictions_pass():
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(**AT_RUN_TIME)) as pipeline:
        pairs = pipeline | beam.Create([("a", "2")])
        handler = KeyedModelHandler(Reciprocal()).with_preprocess_fn(parsed).with_postprocess_fn(described)
        values = pairs | RunInference(handler, monitoring_transform=beam.Map(described))
        assert_that(values, equal_to(["a 0.5"]))
