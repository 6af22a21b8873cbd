"""Cuts columnar elements into batches and joins them, without touching single rows.

A columnar element holds many rows: an array or a tensor with a leading axis, a mapping of names to such, an Arrow
record batch, a data frame; or an object with ``__len__`` and slicing, for a handler with a method ``runs_elements``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

from headrace.batching.batcher import Batch, footprint
from headrace.batching.size import SizeController
from headrace.core.answer import SomeSkipped, mark_skips, no_columns, no_skips, wrong_count
from headrace.core.config import BatchingConfig
from headrace.core.result import PredictionResult

_SLACK = 1 / 4
"""The share of its size by which a batch of rows may differ, to end with an element."""


def rows_in(columns: Any) -> int:
    """The number of rows of a columnar element.

    Raises:
        ValueError: its columns differ in length.
        TypeError: it is not a columnar element.
    """
    if isinstance(columns, Mapping):
        lengths = {name: rows_in(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the columns of an element must be of one length; these are of {lengths}.")
        return next(iter(lengths.values()))
    if isinstance(columns, str | bytes) or not (hasattr(columns, "__len__") and hasattr(columns, "__getitem__")):
        raise TypeError(f"a columnar element is an array, a dict of arrays or a record batch, not {columns!r:.80}.")
    return int(columns.num_rows) if hasattr(columns, "num_rows") else len(columns)


def slice_rows(columns: Any, start: int, stop: int) -> Any:
    """Rows from ``start`` up to ``stop``; a view if the type of the columns supports views."""
    if isinstance(columns, Mapping):
        return {name: slice_rows(column, start, stop) for name, column in columns.items()}
    if hasattr(columns, "num_rows") or _package(columns) == "pyarrow":
        return columns.slice(start, stop - start)
    return columns.iloc[start:stop] if hasattr(columns, "iloc") else columns[start:stop]


def concatenate(pieces: Sequence[Any]) -> Any:
    """Concatenates the rows of several elements of one type.

    Raises:
        ValueError, TypeError: they differ in type, columns or shape.
    """
    first = pieces[0]
    if len(pieces) == 1:
        return first
    if len(set(map(type, pieces))) > 1:
        raise TypeError(
            f"elements of one batch must be of one type, not {sorted({type(one).__name__ for one in pieces})}."
        )
    if isinstance(first, Mapping):
        if any(one.keys() != first.keys() for one in pieces):
            raise ValueError(f"elements of one batch must have the same columns as the first: {list(first)}.")
        return {name: concatenate([one[name] for one in pieces]) for name in first}
    if hasattr(first, "iloc") and any(list(one.columns) != list(first.columns) for one in pieces):
        raise ValueError(f"frames of one batch must have the same columns as the first: {list(first.columns)}.")
    package = _package(first)
    if package == "pyarrow":
        return _join_arrow(pieces)
    if package in _JOINERS:
        return getattr(sys.modules[package], _JOINERS[package])(list(pieces))
    return [row for piece in pieces for row in piece]


_JOINERS = {"numpy": "concatenate", "torch": "cat", "pandas": "concat"}


def _package(columns: Any) -> str:
    return type(columns).__module__.partition(".")[0]


def _join_arrow(pieces: Sequence[Any]) -> Any:
    pyarrow = sys.modules["pyarrow"]
    if isinstance(pieces[0], pyarrow.RecordBatch):
        return pyarrow.Table.from_batches(pieces).combine_chunks().to_batches()[0]
    return pyarrow.concat_tables(pieces) if isinstance(pieces[0], pyarrow.Table) else pyarrow.concat_arrays(pieces)


def without_views(columns: Any) -> Any:
    """Copies tensors that are views of larger ones, since pickling a view would include all of the larger one."""
    if isinstance(columns, Mapping):
        return {name: without_views(column) for name, column in columns.items()}
    if _package(columns) == "torch" and columns.untyped_storage().nbytes() > columns.nbytes:
        return columns.clone()
    return columns


class ColumnarBatch(NamedTuple):
    """Pieces of columnar elements, each with its element's tag. Sizes and positions count rows."""

    elements: list[Any]
    tags: list[Any]
    rows: list[int]
    weight: float = 0
    useful: float = 0
    """Always 0, as is ``weight``; only ``Batch`` uses them."""

    @property
    def total(self) -> int:
        """The number of rows."""
        return sum(self.rows)

    def part(self, start: int, stop: int) -> ColumnarBatch:
        """The rows from ``start`` up to ``stop``."""
        part = ColumnarBatch([], [], [])
        begin = 0
        for element, tag, rows in zip(self.elements, self.tags, self.rows, strict=True):
            first, last = max(start - begin, 0), min(stop - begin, rows)
            if first < last:
                part.elements.append(element if last - first == rows else slice_rows(element, first, last))
                part.tags.append(tag)
                part.rows.append(last - first)
            begin += rows
        return part

    def pick(self, positions: Sequence[int]) -> tuple[ColumnarBatch, list[int]]:
        """The rows at these positions, in that order, runs of neighbours as one piece; and each piece's first row."""
        picked, firsts = ColumnarBatch([], [], []), []
        for _, run in groupby(enumerate(positions), lambda pair: pair[1] - pair[0]):
            rows = [row for _, row in run]
            part = self.part(rows[0], rows[-1] + 1)
            for mine, more in zip(picked[:3], part[:3], strict=True):
                mine.extend(more)
            firsts += [rows[0] + before for before in accumulate(part.rows[:-1], initial=0)]
        return picked, firsts


def as_columns(batch: Batch) -> ColumnarBatch:
    """Converts a batch of columnar elements, so that it counts rows."""
    return ColumnarBatch(batch.elements, batch.tags, list(map(rows_in, batch.elements)))


class RowBatcher:
    """Cuts a stream of columnar elements into batches of rows, in order.

    Cutting elements costs a copy of their rows when the pieces are joined. So batches end where elements do, if that
    keeps their sizes near the target, unless all have the same size. A batch also leaves for its bytes if it has
    ``min_batch_size`` rows; elements are not cut for that.

    Args:
        config: its sizes count rows.
        sizes: asked for each batch, at its first element.
    """

    def __init__(self, config: BatchingConfig, sizes: SizeController) -> None:
        self._config = config
        self._sizes = sizes
        self._begin()

    def __len__(self) -> int:
        return self._waiting

    def add(self, element: Any, tag: Any, rows: int) -> Iterator[ColumnarBatch]:
        """Adds an element with ``rows`` rows; yields the batches that leave. Run each one before taking the next."""
        config = self._config
        start, row_bytes = 0, footprint(element) / max(1, rows)
        while start < rows:
            if not self._waiting:
                self._aim()
            stop = start + self._room_for(rows - start)
            if start < stop:
                self._batch.elements.append(element if stop - start == rows else slice_rows(element, start, stop))
                self._batch.tags.append(tag)
                self._batch.rows.append(stop - start)
                self._waiting += stop - start
                self._bytes += row_bytes * (stop - start)
            is_large = self._bytes >= config.lookahead_bytes and self._waiting >= config.min_batch_size
            if start == stop or is_large or self._waiting >= self._target:
                yield self.flush()
            start = stop

    def flush(self) -> ColumnarBatch:
        """Returns what has been collected, possibly nothing, as a batch."""
        batch = self._batch
        self._begin()
        return batch

    def _begin(self) -> None:
        self._batch = ColumnarBatch([], [], [])
        self._waiting = 0
        self._bytes = 0.0
        self._target = self._least = self._most = 0

    def _aim(self) -> None:
        """Sets the size of the next batch, and the least and the most for which elements stay whole."""
        config = self._config
        self._target = max(1, min(self._sizes.target(), config.max_batch_size))
        slack = 0 if config.fixed_size else int(self._target * _SLACK)
        self._least = max(self._target - slack, min(config.min_batch_size, self._target))
        self._most = max(self._target, int(min(self._target + slack, config.max_batch_size, self._sizes.max_size())))

    def _room_for(self, rows: int) -> int:
        """How many of an element's remaining ``rows`` join the batch; 0: it leaves without them."""
        if self._waiting + rows <= self._most:
            return rows
        if self._waiting:
            return 0 if self._waiting >= self._least else self._target - self._waiting
        even = math.ceil(rows / math.ceil(rows / self._most))
        return even if even >= self._least else self._target


def split(columns: Any, rows: Sequence[int]) -> list[Any]:
    """Cuts columns into pieces with these numbers of rows."""
    bounds = pairwise(accumulate(rows, initial=0))
    return [columns] if len(rows) == 1 else [slice_rows(columns, *bound) for bound in bounds]


def run_columns(
    handler: Any, model: Any, pieces: Sequence[Any], inference_args: dict[str, Any] | None
) -> list[PredictionResult]:
    """One prediction for each columnar piece, from one call of the model with all rows.

    A handler with an attribute ``runs_elements``, which takes itself, the pieces, the model and its arguments, joins
    the pieces there.
    """
    rows = [rows_in(piece) for piece in pieces]
    if run := getattr(handler, "runs_elements", None):
        answer = run(handler, pieces, model, inference_args)
    else:
        answer = handler.run_columns(concatenate(pieces), model, inference_args)
    predictions, model_id = (answer.inference, answer.model_id) if hasattr(answer, "inference") else (answer, None)
    caller = f"{type(handler).__qualname__}.run_columns"
    try:
        found = None if isinstance(predictions, tuple) else rows_in(predictions)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise no_columns(caller, sum(rows), predictions)
    if found != sum(rows):
        raise wrong_count(caller, sum(rows), found)
    if _has_skips(predictions):
        raise no_skips(caller)
    pairs = zip(map(without_views, pieces), map(without_views, split(predictions, rows)), strict=True)
    return [PredictionResult(*pair, model_id) for pair in pairs]


def _has_skips(predictions: Any) -> bool:
    """Whether an array or a list, or one of a dict of those, contains ``SKIP``."""
    if isinstance(predictions, Mapping):
        return any(map(_has_skips, predictions.values()))
    of_objects = isinstance(predictions, list) or getattr(getattr(predictions, "dtype", None), "hasobject", False)
    return of_objects and isinstance(mark_skips(list(predictions)), SomeSkipped)
