"""Predicts for rows in data frames: many rows at once, each with the values and dtypes that it would have alone.

Numbers have 64 bits. A missing value is what pandas reads from a file: NaN among numbers and text, NaT among times.
Where it would change the dtype of a column (an integer among integers, a boolean), its rows make a frame of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from headrace.core.conversion import predict_by_kind
from headrace.core.errors import extra_required

with extra_required("sklearn"):
    import numpy
    import pandas

__all__ = ["as_row", "bytes_of", "frame_of_rows", "predict_examples"]

PredictFn = Callable[[pandas.DataFrame], Any]
"""A model's call: an array or a list with a prediction for each row of a frame."""

_TEXT: Any = "str" if int(pandas.__version__.partition(".")[0]) > 2 else object
_MOMENT = "datetime64[us]"
_MEASURED = 8
"""Of how many examples of a batch the bytes are counted, which takes a millisecond for each."""
_DTYPES: dict[Any, Any] = {int: "int64", bool: "bool", str: _TEXT, type(None): object, "unsigned": "uint64"}
_MISSING: dict[Any, Any] = {"float": float, "int": float, "str": str, "datetime": _MOMENT}
"""What a missing value is, by the type that its column is known to have."""


def predict_examples(examples: Sequence[Any], predict: PredictFn) -> Any:
    """The predictions for examples.

    Args:
        examples: data frames; or rows, as mappings, named tuples or Beam's; or a single Arrow record batch.
        predict: the model's call.
    """
    if hasattr(examples[0], "num_rows"):
        return _predict_batch(examples[0], predict)
    rows = list(map(as_row, examples))
    known = [row for row in rows if row is not None]
    if len(known) == len(rows):
        return _predict_rows(known, predict)
    if known:
        pairs = zip(rows, examples, strict=True)
        examples = [example if row is None else frame_of_rows([row]) for row, example in pairs]
    if _are_alike(examples):
        return predict(pandas.concat(examples) if len(examples) > 1 else examples[0])
    return predict_by_kind(examples, _kind_of_frame, lambda alike: predict(pandas.concat(alike)))


def as_row(example: Any) -> Mapping[str, Any] | None:
    """A mapping, a named tuple or a row of Beam's as a mapping; None if it is none."""
    if isinstance(example, pandas.DataFrame | Mapping):
        return None if isinstance(example, pandas.DataFrame) else example
    make = getattr(example, "_asdict", None) or getattr(example, "as_dict", None)
    row: Mapping[str, Any] | None = make() if callable(make) else None
    return row


def _are_alike(frames: Sequence[pandas.DataFrame]) -> bool:
    """Whether frames have the same columns and dtypes, in a fraction of the time that concatenating them takes."""
    first, dtypes = frames[0], _dtypes(frames[0])
    return all(one.columns.equals(first.columns) and _dtypes(one) == dtypes for one in frames)


def _kind_of_frame(frame: pandas.DataFrame) -> tuple[Any, ...]:
    """What frames must share to be concatenated: otherwise pandas fills, reorders and converts columns."""
    return (*frame.columns, *_dtypes(frame))


def _dtypes(frame: pandas.DataFrame) -> list[Any]:
    manager: Any = getattr(frame, "_mgr", None)  # frame.dtypes makes a Series, which takes twenty times as long
    dtypes: list[Any] = (manager.get_dtypes() if hasattr(manager, "get_dtypes") else frame.dtypes).tolist()
    return dtypes


def _predict_rows(rows: Sequence[Mapping[str, Any]], predict: PredictFn) -> Any:
    """The predictions for rows; those with the same columns and the same kinds of values share a call.

    Args:
        rows: one whose attribute ``types`` says what its columns hold (``"float"``, ``"str"``, ...) has missing values
            of that type.
        predict: the model's call.
    """
    return predict_by_kind(rows, _kinds, lambda some: predict(frame_of_rows(some)))


def _predict_batch(batch: Any, predict: PredictFn) -> Any:
    """The predictions for the rows of an Arrow record batch, as ``_predict_rows`` makes them.

    Args:
        batch: of numbers, booleans, text, days and times.
        predict: the model's call.
    """
    missing = [column.is_null() for column in batch.columns if column.null_count and _changes_with_nulls(column)]
    if not missing:
        return predict(_frame_of_batch(batch))
    patterns = numpy.stack([column.to_numpy(zero_copy_only=False) for column in missing], axis=1)
    _, numbers = numpy.unique(patterns, axis=0, return_inverse=True)
    groups = [numpy.flatnonzero(numbers == number) for number in range(numbers.max() + 1)]
    answers = [predict(_frame_of_batch(batch.take(places))) for places in groups]
    return _in_order(groups, answers) if len(groups) > 1 else answers[0]


def bytes_of(examples: Sequence[Any]) -> int:
    """Bytes of frames, their indexes and strings included; of many examples estimated from some of them."""
    some = examples[:: max(1, len(examples) // _MEASURED)]
    return sum(map(_bytes_of, some)) * len(examples) // max(1, len(some))


def _bytes_of(example: Any) -> int:
    row = as_row(example)
    frame = example if row is None else frame_of_rows([row])
    return int(frame.memory_usage(deep=True).sum())


def _kinds(row: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    types = getattr(row, "types", {})
    return tuple([(name, _kind(value, types.get(name))) for name, value in row.items()])


def _kind(value: Any, declared: Any) -> Any:
    """What values must share to make one column."""
    kind = type(value)
    if declared == "float" and kind is int:
        return float
    if value is None:
        return _MISSING.get(declared, kind)
    if kind is int and not -(2**63) <= value < 2**63:
        return "unsigned" if 0 <= value < 2**64 else object
    if isinstance(value, datetime):
        return _MOMENT if value.tzinfo is None else (kind, value.tzinfo)
    return kind


def frame_of_rows(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Rows of the same columns and kinds of values as a frame."""
    return pandas.DataFrame({name: _column([row[name] for row in rows], kind) for name, kind in _kinds(rows[0])})


def _column(values: list[Any], kind: Any) -> pandas.Series:
    if kind is float:
        return pandas.Series([math.nan if value is None else value for value in values], dtype="float64")
    if kind == _MOMENT:
        return pandas.Series(values, dtype=_MOMENT)
    found = pandas.Series(values, dtype=_DTYPES.get(kind))
    return found.dt.as_unit("us") if isinstance(found.dtype, pandas.DatetimeTZDtype) else found


def _changes_with_nulls(column: Any) -> bool:
    """Whether pandas has another dtype for a column of this type if values are missing; all numbers have 64 bits."""
    return str(column.type) in ("int64", "bool")


def _frame_of_batch(batch: Any) -> pandas.DataFrame:
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return pandas.DataFrame({name: _series(column) for name, column in columns}, copy=False)


def _series(column: Any) -> pandas.Series:
    found: pandas.Series = column.to_pandas()
    is_text = str(column.type) in ("string", "large_string")
    return found.astype(_TEXT) if is_text and found.dtype == object else found  # of an older pyarrow


def _in_order(groups: Sequence[Any], answers: Sequence[Any]) -> Any:
    """The answers for all rows, in order: an array if all are of one dtype."""
    places = numpy.concatenate(groups)
    if all(isinstance(answer, numpy.ndarray) for answer in answers) and len({one.dtype for one in answers}) == 1:
        together: Any = numpy.concatenate(answers)
        return together[numpy.argsort(places)] if len(together) == len(places) else together
    found = [row for answer in answers for row in answer]
    if len(found) != len(places):
        return found  # whose number is then found to be wrong
    return [row for _, row in sorted(zip(places, found, strict=True), key=lambda pair: pair[0])]
