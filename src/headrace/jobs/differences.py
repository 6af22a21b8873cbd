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

from headrace.rows.values import as_array, is_vector

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
    with numpy.errstate(invalid="ignore", over="ignore"):  # of infinities
        if _is_number(old):
            return _compare_numbers(name, old, new, tolerance)
        if _is_vectors(old) and _is_vectors(new):
            a, b = _as_matrix(old), _as_matrix(new)
            if a is not None and b is not None and a.shape == b.shape:
                return _compare_vectors(name, a, b, tolerance)
    if _TYPES.is_nested(old.type):
        old, new = _as_text(old), _as_text(new)
    differs = _filled(pyarrow.compute.not_equal(old, new)) | _null_in_one(old, new)
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
    are_alike = old.type == new.type or any(is_kind(old) and is_kind(new) for is_kind in (_is_number, _is_vectors))
    return (old, new) if are_alike else (_as_text(old), _as_text(new))


def _is_number(array: Any) -> bool:
    return bool(_TYPES.is_integer(array.type) or _TYPES.is_floating(array.type))


def _as_text(array: Any) -> Any:
    is_text = _TYPES.is_string(array.type) or _TYPES.is_large_string(array.type)
    return array.cast(pyarrow.string()) if is_text else pyarrow.array(texts_of(array), pyarrow.string())


def _is_vectors(array: Any) -> bool:
    return is_vector(array.type) and array.null_count == 0


def _compare_numbers(name: str, old: Any, new: Any, tolerance: float) -> tuple[Any, ColumnDiff]:
    a, b = (side.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False) for side in (old, new))
    delta = b - a
    known = ~(numpy.isnan(a) | numpy.isnan(b))
    delta[a == b] = 0  # infinities
    exact = _TYPES.is_integer(old.type) and _TYPES.is_integer(new.type) and not tolerance
    differs = _filled(pyarrow.compute.not_equal(old, new)) if exact else known & ~(numpy.abs(delta) <= tolerance)
    differs |= numpy.isnan(a) ^ numpy.isnan(b)
    some = delta[known]
    mean = _mean(some) if len(some) else None
    return differs, ColumnDiff(name, int(differs.sum()), mean, _sizes(numpy.abs(delta[differs & known])))


def _as_matrix(vectors: Any) -> Any:
    """Vectors of one length as rows; None if they are not."""
    lengths = pyarrow.compute.unique(pyarrow.compute.list_value_length(vectors))
    is_matrix = len(lengths) == 1 and not vectors.flatten().null_count
    return as_array(vectors).astype(float) if is_matrix else None


def _compare_vectors(name: str, old: Any, new: Any, tolerance: float) -> tuple[Any, ColumnDiff]:
    largest = numpy.nan_to_num(numpy.abs(new - old), nan=numpy.inf).max(axis=1, initial=0)
    largest[(old == new).all(axis=1)] = 0
    differs = largest > tolerance
    norms = numpy.linalg.norm(old, axis=1) * numpy.linalg.norm(new, axis=1)
    similar = (old * new).sum(axis=1)[norms > 0] / norms[norms > 0]
    cosine = (float(similar.mean()), float(similar.min())) if len(similar) else None
    return differs, ColumnDiff(name, int(differs.sum()), None, _sizes(largest[differs]), cosine)


def _filled(comparison: Any) -> Any:
    return comparison.fill_null(False).to_numpy(zero_copy_only=False).copy()


def _null_in_one(old: Any, new: Any) -> Any:
    return old.is_null().to_numpy(zero_copy_only=False) ^ new.is_null().to_numpy(zero_copy_only=False)


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
