"""Fails the pipeline when too many elements fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import apache_beam as beam

from headrace.batching.columnar import rows_in
from headrace.beam.monitoring import prediction_in
from headrace.beam.outputs import Outputs
from headrace.core.result import Stage


class _Counted(NamedTuple):
    """A PCollection, and as how many each of its elements counts; None: as one."""

    pcoll: beam.PCollection
    size: Callable[[Any], int] | None = None


_Operation = tuple[_Counted, _Counted]
"""What failed in it, and what it skipped."""


class _Chain(NamedTuple):
    """Operations, one after the other, that are counted in one unit."""

    came: Sequence[_Counted]
    """What reached the first one."""
    operations: Sequence[_Operation]


def check_threshold(elements: beam.PCollection, outputs: Outputs, threshold: float, *, columnar: bool = False) -> None:
    """Compares, for each operation in its order, how much failed in it with how much reached it, window by window.

    Both have one unit: elements up to inference, and predictions behind it, of which an element that is a batch has
    many. Of columnar elements, which are cut up for inference, it is rows from inference on.

    Args:
        elements: the input.
        outputs: what has become of them, also of what was skipped; of columnar elements by a plan ``with_predictions``.
        threshold: the largest share that may fail.
        columnar: whether elements are.

    Raises:
        ValueError: within the pipeline, when more than that share failed.
    """
    for part, (came, operations) in enumerate((_in_rows if columnar else _one_by_one)(elements, outputs)):
        lost: list[_Counted] = []
        total: Any = _sum(f"CountTotal-{part}", came, as_view=True) if operations else 0
        for index, (failed, skipped) in enumerate(operations):
            name = f"{part}-{index}"
            bad = _sum(f"CountBad-{name}", [failed])
            earlier: Any = _sum(f"CountEarlier-{name}", lost, as_view=True) if lost else 0
            _ = bad | f"CheckThreshold-{name}" >> beam.Map(_check, threshold, total, earlier)
            lost += [failed, skipped]


def _one_by_one(elements: beam.PCollection, outputs: Outputs) -> Iterator[_Chain]:
    yield _Chain(
        [_Counted(elements)], [*_operations(outputs, Stage.PREPROCESSING), *_operations(outputs, Stage.INFERENCE)]
    )
    after = _operations(outputs, Stage.POSTPROCESSING)
    yield _Chain([_Counted(outputs.values), *chain.from_iterable(after)], after)


def _in_rows(elements: beam.PCollection, outputs: Outputs) -> Iterator[_Chain]:
    yield _Chain([_Counted(elements)], _operations(outputs, Stage.PREPROCESSING))
    after = [
        (_Counted(failed.pcoll, partial(_rows_of_letter, index)), _Counted(skipped.pcoll, partial(_rows, index)))
        for index, (failed, skipped) in enumerate(_operations(outputs, Stage.POSTPROCESSING))
    ]
    predictions = [_Counted(outputs.values, partial(_rows, len(after))), *chain.from_iterable(after)]
    ((letters, skipped),) = _operations(outputs, Stage.INFERENCE)
    failed = _Counted(letters.pcoll, _rows_of_inference)
    yield _Chain([failed, *predictions], [(failed, skipped)])
    yield _Chain(predictions, after)


def _operations(outputs: Outputs, stage: Stage) -> list[_Operation]:
    pairs = zip(outputs.failed[stage], outputs.skipped[stage], strict=True)
    return [(_Counted(failed), _Counted(skipped)) for failed, skipped in pairs]


def _rows(index: int, given: Any) -> int:
    """Of what the postprocessing function of that index is given."""
    return rows_in(prediction_in(given, index).example)


def _rows_of_letter(index: int, letter: Any) -> int:
    return _rows(index, letter[0])


def _rows_of_inference(letter: Any) -> int:
    return rows_in(letter[0])


def _sum(label: str, counted: Sequence[_Counted], *, as_view: bool = False) -> Any:
    """How many they are, window by window; as a side input also where there are none."""
    by_size = counted[0].size is not None
    pcolls = [
        one.pcoll if one.size is None else one.pcoll | f"{label}-Rows-{place}" >> beam.Map(one.size)
        for place, one in enumerate(counted)
    ]
    numbers = pcolls[0] if len(pcolls) == 1 else pcolls | f"{label}-All" >> beam.Flatten()
    combine = beam.CombineGlobally(sum if by_size else beam.combiners.CountCombineFn())
    return numbers | label >> (combine.as_singleton_view() if as_view else combine.without_defaults())


def _check(bad: int, threshold: float, total: int, lost: int, window: Any = beam.DoFn.WindowParam) -> None:
    reached = total - lost
    if bad > reached * threshold:
        raise ValueError(
            f"The number of failing elements within the window {window!r} exceeded threshold: "
            f"{bad} / {reached} = {bad / reached} > {threshold}"
        )
