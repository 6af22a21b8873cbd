"""Fails the pipeline if too large a share of the elements fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import dropwhile
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from headrace.batching.columnar import rows_in
from headrace.beam.monitoring import prediction_of
from headrace.beam.outputs import Operation, Outputs
from headrace.core.result import Stage


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
    lost_after = [tag for operation in after for tag in (operation.failed_tag, operation.skipped_tag)]
    counts = _Counts(elements, outputs, in_rows=after if columnar else [])
    for group in (_Group(["elements"], before), _Group(["predictions", *lost_after], after)):
        lost: list[str] = []
        for operation in group.operations:
            name = operation.failed_tag
            reached, earlier = counts.total(f"Reached-{name}", group.reached), counts.total(f"Lost-{name}", lost)
            _ = counts.of(name) | f"CheckThreshold-{name}" >> beam.Map(_check, threshold, reached, earlier)
            lost += [name, operation.skipped_tag]


class _Counts:
    """How many elements, or rows of them, a PCollection has in each window; each is counted once, when it is needed."""

    def __init__(self, elements: beam.PCollection, outputs: Outputs, in_rows: Sequence[Operation]) -> None:
        self._sources = dict(_sources(elements, outputs, in_rows))
        self._counts: dict[str, beam.PCollection] = {}

    def of(self, name: str) -> beam.PCollection:
        """The count in each window that has any."""
        if name not in self._counts:
            pcoll, size = self._sources[name]
            sizes = pcoll if size is None else pcoll | f"Sizes-{name}" >> beam.Map(size)
            combine = beam.CombineGlobally(beam.combiners.CountCombineFn() if size is None else sum)
            self._counts[name] = sizes | f"Count-{name}" >> combine.without_defaults()
        return self._counts[name]

    def total(self, label: str, names: Sequence[str]) -> Any:
        """The sum of several counts, as a side input."""
        if len(names) < 2:
            return AsSingleton(self.of(names[0]), default_value=0) if names else 0
        # Counted one by one before the Flatten, for which Beam's own runner keeps all its input in memory.
        counts = tuple(map(self.of, names)) | f"Counts-{label}" >> beam.Flatten()
        return counts | f"Total-{label}" >> beam.CombineGlobally(sum).as_singleton_view()


def _sources(
    elements: beam.PCollection, outputs: Outputs, in_rows: Sequence[Operation]
) -> Iterator[tuple[str, tuple[beam.PCollection, Callable[[Any], int] | None]]]:
    """What is counted, by name, and the size of each of its elements; None: 1."""
    yield "elements", (elements, None)
    yield "predictions", (outputs.values, _rows_of_prediction if in_rows else None)
    for operation, dead_letters in outputs.failed.items():
        rows = rows_in if operation.stage is Stage.INFERENCE else _rows_of_prediction
        size = rows if operation in in_rows else None
        failed = dead_letters if size is None else dead_letters | f"Elements-{operation.failed_tag}" >> beam.Keys()
        yield operation.failed_tag, (failed, size)
        yield operation.skipped_tag, (outputs.skipped[operation], size)


def _rows_of_prediction(given: Any) -> int:
    return rows_in(prediction_of(given).example)


def _check(failed: int, threshold: float, total: int, lost: int, window: Any = beam.DoFn.WindowParam) -> None:
    reached = total - lost
    if failed > reached * threshold:
        raise ValueError(
            f"The number of failing elements within the window {window!r} exceeded threshold: "
            f"{failed} / {reached} = {failed / reached} > {threshold}"
        )
