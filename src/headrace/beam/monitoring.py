"""Carries each prediction through postprocessing, for a transform that monitors the predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import apache_beam as beam

from headrace.beam.outputs import Outputs
from headrace.core.answer import SKIP
from headrace.core.result import ErrorRecord, Stage
from headrace.runtime.plan import Plan


class MonitoredValue(NamedTuple):
    """A value on its way through postprocessing, with the prediction that it came from."""

    prediction: Any
    value: Any


@dataclass(frozen=True)
class _CarryPrediction:
    """A postprocessing function that passes the prediction on with its result."""

    function: Callable[[Any], Any]

    def __call__(self, given: Any) -> Any:
        result = self.function(value_of(given))
        return SKIP if result is SKIP else MonitoredValue(prediction_of(given), result)


def carry_predictions(plan: Plan) -> Plan:
    """The plan with a ``MonitoredValue`` for each postprocessed value; unchanged without postprocessing."""
    return replace(plan, postprocess=tuple(map(_CarryPrediction, plan.postprocess)))


def split_predictions(outputs: Outputs) -> tuple[Outputs, beam.PCollection]:
    """Undoes ``carry_predictions`` in the outputs of the plan.

    Returns:
        The outputs of the original plan, and all predictions, also those that failed in postprocessing or were skipped
        there.
    """
    postprocessing = [operation for operation in outputs.failed if operation.stage is Stage.POSTPROCESSING]
    if not postprocessing:
        return outputs, outputs.values
    failed, skipped = dict(outputs.failed), dict(outputs.skipped)
    predictions = [outputs.values | "Predictions" >> beam.Map(prediction_of)]
    for operation in postprocessing:
        index, dead_letters, skips = operation.index, failed[operation], skipped[operation]
        predictions.append(dead_letters | f"FailedPredictions{index}" >> beam.MapTuple(_prediction_of_dead_letter))
        predictions.append(skips | f"SkippedPredictions{index}" >> beam.Map(prediction_of))
        failed[operation] = dead_letters | f"DeadLetters{index}" >> beam.MapTuple(_without_prediction)
        skipped[operation] = skips | f"Skipped{index}" >> beam.Map(value_of)
    values = outputs.values | "Values" >> beam.Map(value_of)
    return outputs._replace(values=values, failed=failed, skipped=skipped), predictions | beam.Flatten()


def prediction_of(given: Any) -> Any:
    """The prediction in the input or result of a postprocessing function; the first one's input is the prediction."""
    return given.prediction if type(given) is MonitoredValue else given


def value_of(given: Any) -> Any:
    """The value in the input or result of a postprocessing function, without the prediction."""
    return given.value if type(given) is MonitoredValue else given


def _prediction_of_dead_letter(element: Any, _: ErrorRecord) -> Any:
    return prediction_of(element)


def _without_prediction(element: Any, record: ErrorRecord) -> tuple[Any, ErrorRecord]:
    return value_of(element), record
