"""How values of one column differ from those of another: numbers, vectors, labels."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from headrace.rows.values import as_array, is_number, is_text, is_vector

_Z = 1.96
"""Standard errors on both sides of a 95 % interval."""
_MOST_MOVES = 5
_TYPES = pyarrow.types


class Interval(NamedTuple):
    """An estimate with its 95 % confidence interval: the rows count as a random sample."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ColumnDiff:
    """How one column of the predictions changed, over the rows that both outputs have."""

    name: str
    changed: int
    mean: Interval | None = None
    """Of new - old, if both are numbers."""
    absolute: Mapping[str, float] | None = None
    """Of numbers, and of the entries of vectors: mean, median, 95th percentile and maximum of the absolute difference
    of the rows that changed."""
    cosine: tuple[float, float] | None = None
    """Of vectors: mean and least cosine similarity of old and new."""
    moves: Sequence[tuple[Any, Any, int]] = ()
    """Of other values: the most frequent changes, as old, new, rows."""


def compare(name: str, old: Any, new: Any, tolerance: float) -> tuple[Any, ColumnDiff]:
    """Which rows of two Arrow arrays differ, as a numpy array of booleans, and how.

    A null, or NaN, differs from anything else, and is equal to itself.
    """
    old, new = _of_one_type(old, new)
    a, b = _as_matrix(old), _as_matrix(new)
    if a is not None and b is not None and a.shape == b.shape:
        return _compare_numbers(name, (old, new), a, b, tolerance)
    if _TYPES.is_nested(old.type):
        old, new = _as_text(old), _as_text(new)
    differs = _differ(old, new)
    some = pyarrow.array(differs)
    moves = Counter(zip(old.filter(some).to_pylist(), new.filter(some).to_pylist(), strict=True))
    commonest = [(*move, rows) for move, rows in moves.most_common(_MOST_MOVES)]
    return differs, ColumnDiff(name, int(differs.sum()), moves=commonest)


def texts_of(values: Any) -> Iterator[str | None]:
    """Values, an Arrow array or a list, as JSON."""
    for value in values if isinstance(values, list) else values.to_pylist():
        yield None if value is None else json.dumps(value, default=str, sort_keys=True)


def _of_one_type(old: Any, new: Any) -> tuple[Any, Any]:
    known = next((side.type for side in (old, new) if not _TYPES.is_null(side.type)), pyarrow.string())
    old, new = (side.cast(known) if _TYPES.is_null(side.type) else side for side in (old, new))
    are_alike = old.type == new.type or any(is_kind(old.type) and is_kind(new.type) for is_kind in (_counts, is_vector))
    return (old, new) if are_alike else (_as_text(old), _as_text(new))


def _counts(kind: Any) -> bool:
    return is_number(kind) and not _TYPES.is_boolean(kind)


def _as_text(array: Any) -> Any:
    return array.cast(pyarrow.string()) if is_text(array.type) else pyarrow.array(texts_of(array), pyarrow.string())


def _as_matrix(column: Any) -> Any:
    """Numbers, or vectors of one length, as rows; None if they are others."""
    if _counts(column.type):
        return column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False).reshape(-1, 1)
    if not is_vector(column.type) or column.null_count:
        return None
    lengths = pyarrow.compute.unique(pyarrow.compute.list_value_length(column))
    is_matrix = len(lengths) == 1 and not column.flatten().null_count
    return as_array(column).astype(float) if is_matrix else None


def _compare_numbers(name: str, both: tuple[Any, Any], old: Any, new: Any, tolerance: float) -> tuple[Any, ColumnDiff]:
    with numpy.errstate(invalid="ignore", over="ignore"):  # of infinities
        delta = numpy.where((old == new) | (numpy.isnan(old) & numpy.isnan(new)), 0, new - old)
        sizes = numpy.abs(delta).max(axis=1, initial=0)
        differs = ~(sizes <= tolerance)
        if not tolerance and all(_TYPES.is_integer(side.type) for side in both):
            differs = _differ(*both)  # exactly
        known = ~(numpy.isnan(old) | numpy.isnan(new)).any(axis=1)
        mean = cosine = None
        if _counts(both[0].type):
            mean = _mean(delta[known]) if known.any() else None
        else:
            norms = numpy.linalg.norm(old, axis=1) * numpy.linalg.norm(new, axis=1)
            similar = (old * new).sum(axis=1)[norms > 0] / norms[norms > 0]
            cosine = (float(similar.mean()), float(similar.min())) if len(similar) else None
        return differs, ColumnDiff(name, int(differs.sum()), mean, _sizes(sizes[differs & known]), cosine)


def _differ(old: Any, new: Any) -> Any:
    differs = pyarrow.compute.not_equal(old, new).fill_null(True)
    are_null = pyarrow.compute.and_(old.is_null(), new.is_null())
    return pyarrow.compute.and_not(differs, are_null).to_numpy(zero_copy_only=False).copy()


def _mean(values: Any) -> Interval:
    mean, margin = float(values.mean()), 0.0
    if len(values) > 1:
        margin = _Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - margin, mean + margin)


def _sizes(values: Any) -> dict[str, float] | None:
    if not len(values):
        return None
    median, high = numpy.quantile(values, [0.5, 0.95])
    return {"mean": float(values.mean()), "median": float(median), "p95": float(high), "maximum": float(values.max())}


def wilson(count: int, of: int) -> Interval:
    """The share ``count / of`` with its Wilson interval; from 0 to 1 of nothing."""
    if not of:
        return Interval(0.0, 0.0, 1.0)
    share, z2 = count / of, _Z * _Z / of
    middle, margin = share + z2 / 2, _Z * math.sqrt(share * (1 - share) / of + z2 / 4 / of)
    return Interval(share, max(0.0, (middle - margin) / (1 + z2)), min(1.0, (middle + margin) / (1 + z2)))
