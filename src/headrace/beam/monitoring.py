"""A copy of what the model says, before postprocessing, for a transform that watches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import apache_beam as beam

from headrace.core.result import ErrorRecord
from headrace.runtime.plan import Plan


@dataclass(frozen=True)
class _Beside:
    """A postprocessing function whose result comes with the prediction with which all of them began."""

    function: Callable[[Any], Any]
    is_first: bool

    def __call__(self, given: Any) -> tuple[Any, Any]:
        prediction, value = (given, given) if self.is_first else given
        return prediction, self.function(value)


def with_predictions(plan: Plan) -> Plan:
    """The same, with each postprocessed value as (prediction, value); where nothing is postprocessed, as it is."""
    functions = enumerate(plan.postprocess)
    return replace(plan, postprocess=tuple(_Beside(function, index == 0) for index, function in functions))


def without_predictions(
    plan: Plan, values: beam.PCollection, letters: Sequence[beam.PCollection]
) -> tuple[beam.PCollection, Sequence[beam.PCollection], beam.PCollection]:
    """Takes apart what the same plan ``with_predictions`` gives.

    Args:
        plan: says what is postprocessed.
        values: the (prediction, value) pairs.
        letters: the dead letters of each postprocessing function, as far as exceptions are handled.

    Returns:
        The values, the dead letters, and all predictions: also those that could not be postprocessed.
    """
    if not plan.postprocess:
        return values, letters, values
    predictions = [values | "Predictions" >> beam.Map(itemgetter(0))]
    apart = []
    for index, those in enumerate(letters):
        prediction = itemgetter(0) if index == 0 else _prediction_beside
        predictions.append(those | f"Predictions{index}" >> beam.Map(prediction))
        apart.append(those if index == 0 else those | f"Letters{index}" >> beam.Map(_letter_alone))
    return values | "Values" >> beam.Map(itemgetter(1)), apart, predictions | beam.Flatten()


def _prediction_beside(letter: tuple[tuple[Any, Any], ErrorRecord]) -> Any:
    return letter[0][0]


def _letter_alone(letter: tuple[tuple[Any, Any], ErrorRecord]) -> tuple[Any, ErrorRecord]:
    (_, value), record = letter
    return value, record
