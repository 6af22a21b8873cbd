"""A copy of what the model says, before postprocessing, for a transform that watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import apache_beam as beam

from headrace.beam.outputs import Outputs
from headrace.core.answer import SKIP
from headrace.core.result import ErrorRecord, Stage
from headrace.runtime.plan import Plan


@dataclass(frozen=True)
class _Beside:
    """A postprocessing function whose result comes with the prediction with which all of them began."""

    function: Callable[[Any], Any]
    is_first: bool

    def __call__(self, given: Any) -> Any:
        prediction, value = (given, given) if self.is_first else given
        result = self.function(value)
        return SKIP if result is SKIP else (prediction, result)


def with_predictions(plan: Plan) -> Plan:
    """The same, with each postprocessed value as (prediction, value); where nothing is postprocessed, as it is."""
    functions = enumerate(plan.postprocess)
    return replace(plan, postprocess=tuple(_Beside(function, index == 0) for index, function in functions))


def without_predictions(plan: Plan, outputs: Outputs) -> tuple[Outputs, beam.PCollection]:
    """Takes apart what the same plan ``with_predictions`` gives.

    Returns:
        The outputs as they are without it, and all predictions: also those that a postprocessing function could not do,
        or has skipped.
    """
    if not plan.postprocess:
        return outputs, outputs.values
    predictions = [outputs.values | "Predictions" >> beam.Map(itemgetter(0))]
    failed, skipped = [], []
    after = Stage.POSTPROCESSING
    for index, (letters, skips) in enumerate(zip(outputs.failed[after], outputs.skipped[after], strict=True)):
        predictions.append(letters | f"FailedPredictions{index}" >> beam.Map(_prediction_of_letter, index))
        predictions.append(skips | f"SkippedPredictions{index}" >> beam.Map(prediction_in, index))
        failed.append(letters if index == 0 else letters | f"Letters{index}" >> beam.Map(_letter_alone))
        skipped.append(skips if index == 0 else skips | f"Skipped{index}" >> beam.Map(itemgetter(1)))
    alone = Outputs(
        outputs.values | "Values" >> beam.Map(itemgetter(1)),
        {**outputs.failed, after: failed},
        {**outputs.skipped, after: skipped},
    )
    return alone, predictions | beam.Flatten()


def prediction_in(given: Any, index: int) -> Any:
    """The prediction in what the postprocessing function of that index was given; behind the last one, has given."""
    return given if index == 0 else given[0]


def _prediction_of_letter(letter: tuple[Any, ErrorRecord], index: int) -> Any:
    return prediction_in(letter[0], index)


def _letter_alone(letter: tuple[tuple[Any, Any], ErrorRecord]) -> tuple[Any, ErrorRecord]:
    (_, value), record = letter
    return value, record
