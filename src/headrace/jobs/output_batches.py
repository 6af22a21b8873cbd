"""Makes record batches of the rows of an output, each with the columns to keep and its prediction.

Typed outputs keep their columns as they are. Others do if JSON has types for them (null, bool, int64, double, string,
lists of int64 or double); times and decimals are text. What has no such type is in lines of JSON: in the batch's last
column, which its schema's metadata says; of a typed output only the predictions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from headrace.jobs.json_lines import as_line
from headrace.rows.blocks import Block
from headrace.rows.examples import PREDICTION, answer_of, exploded, exploded_all
from headrace.rows.values import (
    array_of,
    as_values,
    is_vector,
    numbers_as_array,
    texts_of_times,
    vectors_of,
    without_infinities,
)

_LINES = {b"headrace": b"lines"}
_LINE = "line"
_TYPES = pyarrow.types
_TYPE_OF = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
CANONICAL = set(_TYPE_OF.values())
_VIEWS = {"string_view": pyarrow.large_string(), "binary_view": pyarrow.large_binary()}


def json_value(value: Any) -> Any:
    """A value as JSON has it.

    Raises:
        JsonEncodeError: it cannot be written.
    """
    is_plain = value is None or (type(value) in _TYPE_OF and (type(value) is not float or math.isfinite(value)))
    return value if is_plain else json.loads(as_line([value]))[0]


def kept_columns(batch: Any, keep: tuple[str, ...] | None, *, typed: bool = False) -> dict[str, Any]:
    """The columns to keep of a record batch, or all; None in place of one without a type in JSON, unless ``typed``."""
    names = batch.schema.names
    missing = pyarrow.nulls(batch.num_rows)
    columns = {name: batch.column(name) if name in names else missing for name in (names if keep is None else keep)}
    return {name: (_of_typed_output if typed else _as_json_type)(column) for name, column in columns.items()}


def batch_of_lines(lines: list[str], columns: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Lines of JSON as a record batch, behind columns that are not in them."""
    fields = [*((name, column.type) for name, column in columns.items()), (_LINE, pyarrow.string())]
    schema = pyarrow.schema(fields, metadata=_LINES)
    return pyarrow.RecordBatch.from_arrays([*columns.values(), array_of(lines, pyarrow.string())], schema=schema)


def batch_of_block(columns: dict[str, Any], predictions: Any, model_id: str | None, *, explode: bool = False) -> Any:
    """The output record batch of a block's columns, with an array of predictions or a list of results.

    Returns:
        None if it holds values that JSON has no types for, or its rows differ in columns: they have to be lines.
    """
    model_ids = [model_id]
    if isinstance(predictions, list):
        answers, own = zip(*map(answer_of, predictions), strict=True)
        model_ids = [model_id if one is None else one for one in own]
        predictions = answers
    some = exploded_all(predictions) if explode else {PREDICTION: predictions}
    if explode and isinstance(predictions, tuple) and any(tuple(exploded(one)) != tuple(some) for one in predictions):
        return None
    found = {**columns, **{name: column_of_predictions(values) for name, values in some.items()}}
    if (kinds := set(map(type, model_ids))) != {type(None)}:
        found["model_id"] = _texts(model_ids, len(predictions)) if kinds == {str} else None
    return _as_batch(found)


def _texts(texts: list[Any], rows: int) -> Any:
    """A column of texts, a single one repeated for all rows; None if UTF-8 cannot encode them."""
    column = column_of_predictions(texts if len(set(texts)) > 1 else texts[:1])
    return pyarrow.repeat(column[0], rows) if column is not None and len(column) < rows else column


def batch_as_written(batch: Any) -> Any:
    """Rows of a finished output as a record batch of one that is being written."""
    if (written := _as_batch(kept_columns(batch, None))) is not None:
        return written
    return batch_of_lines([as_line(row)[:-1].decode() for row in Block(0, 0, batch=batch).rows()])


def column_of_predictions(predictions: Any) -> Any:
    """Predictions as a column; None if they are not all JSON's scalars of one type, or vectors."""
    kind, dimensions = (getattr(getattr(predictions, "dtype", None), "kind", ""), getattr(predictions, "ndim", 0))
    if dimensions == 1 and kind in "biuf":
        return _as_json_type(numbers_as_array(predictions))
    if dimensions == 2 and kind in "iuf" and predictions.size:
        width = predictions.shape[1]
        return _as_json_type(pyarrow.FixedSizeListArray.from_arrays(numbers_as_array(predictions.ravel()), width))
    values = list(map(_plain, predictions))
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pyarrow.nulls(len(values))
    if len(kinds) > 1 or not kinds <= _TYPE_OF.keys():
        return None
    if kinds == {float}:
        values = [value if value is None or math.isfinite(value) else None for value in values]
    try:
        return array_of(values, _TYPE_OF[kinds.pop()])
    except (pyarrow.ArrowException, OverflowError, UnicodeError):
        return None


def _plain(value: Any) -> Any:
    """A scalar of numpy's as Python's; but for a time, whose nanoseconds would be a number."""
    return value.item() if isinstance(value, numpy.generic) and value.dtype.kind not in "mM" else value


def lines_in(table: Any) -> list[str] | None:
    """The lines of JSON that a table holds in its last column; None if it has none."""
    return table.column(-1).to_pylist() if table.schema.metadata == _LINES else None


def rows_in_lines(table: Any) -> list[dict[str, Any]] | None:
    """The rows of lines of JSON in a table; None if it has none."""
    lines = lines_in(table)
    return None if lines is None else list(map(json.loads, lines))


def _as_batch(columns: dict[str, Any]) -> Any:
    if any(column is None for column in columns.values()):
        return None
    return pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _of_typed_output(column: Any) -> Any:
    """A column as a typed output has it: without what it shares with other rows, which each piece would hold, too."""
    kind = column.type
    if _TYPES.is_fixed_size_list(kind):  # from Parquet, Arrow reads no nulls among them, and a file may lack the column
        return column.cast(pyarrow.list_(kind.value_type))
    if str(kind) in _VIEWS:
        return column.cast(_VIEWS[str(kind)]).cast(kind)
    if not _TYPES.is_dictionary(kind):
        return column
    if not kind.ordered:
        return column.dictionary_decode().dictionary_encode()
    codes = column.indices.cast(pyarrow.int32())  # there may be more categories in other rows
    return pyarrow.DictionaryArray.from_arrays(codes, column.dictionary, ordered=True)


def _as_json_type(column: Any) -> Any:
    if _TYPES.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if _TYPES.is_floating(kind):
        return without_infinities(column.cast(pyarrow.float64()))
    if _TYPES.is_null(kind) or kind in CANONICAL:
        return column
    if is_vector(kind):
        return vectors_of(column)
    is_text = kind == pyarrow.large_string() or str(kind) == "string_view"
    with suppress(pyarrow.ArrowInvalid):  # an integer needs more than signed 64 bits
        if is_text or _TYPES.is_integer(kind):
            return column.cast(pyarrow.string() if is_text else pyarrow.int64())
    if _TYPES.is_temporal(kind) or _TYPES.is_decimal(kind):
        with suppress(OverflowError):  # Python has no such date
            texts = texts_of_times(column)
            return array_of(list(map(json_value, as_values(column))), pyarrow.string()) if texts is None else texts
    return None
