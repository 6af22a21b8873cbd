"""What watches a RunInference: a transform that monitors its predictions, and a threshold of failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.trigger import AccumulationMode
from apache_beam.utils.windowed_value import WindowedValue

from headrace.batching.columnar import rows_in
from headrace.beam.outputs import COUNTS, Operation, Outputs, ParDoInto, Unchanged
from headrace.core.answer import SKIP
from headrace.core.result import Outcome, Predictions, Skipped, Stage
from headrace.runtime.plan import Plan

_ELEMENTS = "elements"
_PREDICTIONS = "predictions"


class MonitoredValue(NamedTuple):
    """A value on its way through postprocessing, with the prediction that it came from."""

    prediction: Any
    value: Any


def carry_predictions(plan: Plan) -> Plan:
    """The plan with a ``MonitoredValue`` for each postprocessed value; unchanged without postprocessing."""
    return replace(plan, postprocess=tuple(partial(_carrying, function) for function in plan.postprocess))


def _carrying(function: Callable[[Any], Any], given: Any) -> Any:
    result = function(value_of(given))
    return SKIP if result is SKIP else MonitoredValue(prediction_of(given), result)


def split_predictions(outputs: Outputs) -> tuple[Outputs, beam.PCollection]:
    """Undoes ``carry_predictions`` in the outputs of the plan.

    The second value has all predictions, also those that failed in postprocessing or were skipped there.
    """
    postprocessing = [operation for operation in outputs.failed if operation.stage is Stage.POSTPROCESSING]
    if not postprocessing:
        return outputs, outputs.values
    failed, skipped = dict(outputs.failed), dict(outputs.skipped)
    predictions = [outputs.values | "Predictions" >> beam.Map(prediction_of)]
    for operation in postprocessing:
        index, dead_letters, skips = operation.index, failed[operation], skipped[operation]
        carried = dead_letters | f"FailedPredictions{index}" >> beam.MapTuple(lambda given, _: prediction_of(given))
        predictions += [carried, skips | f"SkippedPredictions{index}" >> beam.Map(prediction_of)]
        without = beam.MapTuple(lambda given, record: (value_of(given), record))
        failed[operation] = dead_letters | f"DeadLetters{index}" >> without
        skipped[operation] = skips | f"Skipped{index}" >> beam.Map(value_of)
    values = outputs.values | "Values" >> beam.Map(value_of)
    return outputs._replace(values=values, failed=failed, skipped=skipped), predictions | beam.Flatten()


def prediction_of(given: Any) -> Any:
    """The prediction in the input or result of a postprocessing function; the first one's input is the prediction."""
    return given.prediction if type(given) is MonitoredValue else given


def value_of(given: Any) -> Any:
    """The value in the input or result of a postprocessing function, without the prediction."""
    return given.value if type(given) is MonitoredValue else given


class Tally:
    """Counts, for each window, a bundle's elements and their outcomes; used by one thread.

    All counts of a window leave as one value: a failure is never compared with a total that does not include it yet.

    The unit is elements up to inference and predictions after it, since an element that is a batch has many. Inference
    cuts ``columnar`` elements up, so from inference on their unit is rows.
    """

    def __init__(self, *, columnar: bool) -> None:
        self._columnar = columnar
        self._counts: dict[Any, tuple[WindowedValue, Counter[str]]] = {}
        """By windows; each with the tag of its first element."""
        self._tag: WindowedValue | None = None

    def count_element(self, tag: WindowedValue) -> None:
        """Counts an element that has come in."""
        self._of(tag)[_ELEMENTS] += 1

    def count_outcomes(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Counts outcomes and passes them on."""
        for outcome in outcomes:
            self._count_outcome(outcome)
            yield outcome

    def flush(self) -> Iterator[TaggedOutput]:
        """Yields the counts, by name, of each combination of windows; starts again from 0."""
        counted, self._counts, self._tag = self._counts, {}, None
        for tag, counts in counted.values():
            yield TaggedOutput(COUNTS, tag.with_value(dict(counts)))

    def _count_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, Predictions):
            stage, name, tags, values = Stage.POSTPROCESSING, _PREDICTIONS, outcome.tags, outcome.values
        elif isinstance(outcome, Skipped):
            stage, operation = outcome.stage, Operation(outcome.stage, outcome.index)
            name, tags, values = operation.skipped_tag, outcome.tags, outcome.elements
        else:
            stage, operation = outcome.stage, Operation(outcome.stage, outcome.index)
            name, tags, values = operation.failed_tag, [outcome.tag], [outcome.element]
        for tag, value in zip(tags, values, strict=True):
            self._of(tag)[name] += _size(stage, value) if self._columnar else 1

    def _of(self, tag: WindowedValue) -> Counter[str]:
        """The counts of the tag's windows; neighbours often share a tag."""
        if tag is not self._tag:
            self._tag = tag
            _, self._latest = self._counts.setdefault(tuple(tag.windows), (tag, Counter()))
        return self._latest


def _size(stage: Stage, value: Any) -> int:
    """How many rows an outcome of columnar elements counts for; a failed element without rows for 1."""
    if stage is Stage.POSTPROCESSING:
        return rows_in(prediction_of(value).example)
    try:
        return rows_in(value) if stage is Stage.INFERENCE else 1
    except (TypeError, ValueError):
        return 1


def check_threshold(outputs: Outputs, threshold: float, *, columnar: bool = False) -> None:
    """Compares, for each operation and window, how much failed with how much reached the operation.

    Whenever the window's trigger fires, for late elements, too, everything in the window so far is compared. If a
    larger share than ``threshold`` failed, the pipeline does, with a ValueError. The outputs are those of a DoFn with a
    tally; with columnar elements, of a plan with ``carry_predictions``.
    """
    given = outputs.counts.windowing
    so_far = Windowing(
        given.windowfn, given.triggerfn, AccumulationMode.ACCUMULATING, given.timestamp_combiner, given.allowed_lateness
    )
    first = Stage.INFERENCE if columnar else Stage.POSTPROCESSING
    operations = list(outputs.failed)
    unit_changes = next((n for n, operation in enumerate(operations) if operation.stage is first), len(operations))
    _ = (
        outputs.counts
        | "Accumulate" >> ParDoInto(Unchanged(), so_far)
        | "Total" >> beam.CombineGlobally(_total).without_defaults()
        | "CheckThreshold" >> beam.Map(_check, threshold, operations[:unit_changes], operations[unit_changes:])
    )


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for some in counts:
        total.update(some)
    return dict(total)


def _check(
    counts: Mapping[str, int],
    threshold: float,
    before: Sequence[Operation],
    after: Sequence[Operation],
    window: Any = beam.DoFn.WindowParam,
) -> None:
    def lost(operation: Operation) -> int:
        return counts.get(operation.failed_tag, 0) + counts.get(operation.skipped_tag, 0)

    predictions = counts.get(_PREDICTIONS, 0) + sum(map(lost, after))
    for given, operations in ((counts.get(_ELEMENTS, 0), before), (predictions, after)):
        reached = given
        for operation in operations:
            failed = counts.get(operation.failed_tag, 0)
            if failed > reached * threshold:
                raise ValueError(
                    f"The number of failing elements within the window {window!r} exceeded threshold: "
                    f"{failed} / {reached} = {failed / reached} > {threshold}"
                )
            reached -= lost(operation)
