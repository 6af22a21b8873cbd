"""Fails the pipeline if too large a share of the elements fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Any, NamedTuple

import apache_beam as beam

from headrace.batching.columnar import rows_in
from headrace.beam.monitoring import prediction_of
from headrace.beam.outputs import Operation, Outputs
from headrace.core.result import Stage

_ELEMENTS = "elements"
_PREDICTIONS = "predictions"


class _Group(NamedTuple):
    """Operations that are counted in one unit, in the order in which they run."""

    reached: Sequence[str]
    """The counts that add up to what reached the first of them."""
    operations: Sequence[Operation]


def check_threshold(elements: beam.PCollection, outputs: Outputs, threshold: float, *, columnar: bool = False) -> None:
    """Compares, for each operation and window, how much failed with how much reached the operation.

    Both are counted in one unit: elements up to inference, predictions after it, since an element that is a batch has
    many. Inference cuts columnar elements up, so that from inference on their unit is rows.

    Args:
        elements: the input.
        outputs: of the transform; with columnar elements, of a plan with ``carry_predictions``.
        threshold: the largest share that may fail.
        columnar: whether elements are columnar.

    Raises:
        ValueError: within the pipeline, if a larger share failed.
    """
    first = Stage.INFERENCE if columnar else Stage.POSTPROCESSING
    after = list(dropwhile(lambda operation: operation.stage is not first, outputs.failed))
    before = [operation for operation in outputs.failed if operation not in after]
    lost = [tag for operation in after for tag in (operation.failed_tag, operation.skipped_tag)]
    groups = [_Group([_ELEMENTS], before), _Group([_PREDICTIONS, *lost], after)]
    # Counted one by one before the Flatten, for which Beam's own runner keeps all its input in memory.
    counts = (
        _count(elements, _ELEMENTS),
        _count(outputs.values, _PREDICTIONS, _rows_of_prediction if columnar else None),
        *_counts_of_operations(outputs, in_rows=after if columnar else []),
    )
    _ = (
        counts
        | "AllCounts" >> beam.Flatten()
        | "Counts" >> beam.CombineGlobally(beam.combiners.ToDictCombineFn()).without_defaults()
        | "CheckThreshold" >> beam.Map(_check, groups, threshold)
    )


def _counts_of_operations(outputs: Outputs, in_rows: Sequence[Operation]) -> Iterator[beam.PCollection]:
    for operation, dead_letters in outputs.failed.items():
        rows = rows_in if operation.stage is Stage.INFERENCE else _rows_of_prediction
        size = rows if operation in in_rows else None
        failed = dead_letters if size is None else dead_letters | f"Elements-{operation.failed_tag}" >> beam.Keys()
        yield _count(failed, operation.failed_tag, size)
        yield _count(outputs.skipped[operation], operation.skipped_tag, size)


def _count(pcoll: beam.PCollection, name: str, size: Callable[[Any], int] | None = None) -> beam.PCollection:
    """The name and the number of elements, or the sum of their sizes, of each window that has any."""
    sizes = pcoll if size is None else pcoll | f"Sizes-{name}" >> beam.Map(size)
    combine = beam.CombineGlobally(beam.combiners.CountCombineFn() if size is None else sum)
    counts = sizes | f"Count-{name}" >> combine.without_defaults()
    return counts | f"Name-{name}" >> beam.Map(lambda count: (name, count))


def _rows_of_prediction(given: Any) -> int:
    return rows_in(prediction_of(given).example)


def _check(
    counts: Mapping[str, int], groups: Sequence[_Group], threshold: float, window: Any = beam.DoFn.WindowParam
) -> None:
    for group in groups:
        reached = sum(counts.get(name, 0) for name in group.reached)
        for operation in group.operations:
            failed = counts.get(operation.failed_tag, 0)
            if failed > reached * threshold:
                raise ValueError(
                    f"The number of failing elements within the window {window!r} exceeded threshold: "
                    f"{failed} / {reached} = {failed / reached} > {threshold}"
                )
            reached -= failed + counts.get(operation.skipped_tag, 0)
