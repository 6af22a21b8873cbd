"""Makes record batches of the rows of an output, each with the columns to keep and its prediction.

Columns have JSON's types (null, bool, int64, double, string, lists of int64 or double). A column that mixes them holds
JSON as text, and its field's metadata says so. Rows whose columns differ too often are lines of JSON as a whole, in a
batch of one column, and its schema's metadata says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from headrace.jobs.arrays import array_of, numbers_as_array, vectors_of, without_infinities
from headrace.jobs.column_types import is_utf8
from headrace.jobs.json_lines import as_line
from headrace.rows.blocks import Block, BlockRow
from headrace.rows.examples import answer_of
from headrace.rows.exploded import PREDICTION, exploded_all, exploded_array
from headrace.rows.fitting import is_vector
from headrace.rows.values import as_values

_JSON = {b"headrace": b"json"}
_LINES = {b"headrace": b"lines"}
_LINE = "line"
_FEW = 16
_TYPES = pyarrow.types
_TYPE_OF = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
CANONICAL = set(_TYPE_OF.values())
SCALARS = {*_TYPE_OF, type(None)}
"""The types of predictions that need no encoding."""
_NUMPY = {numpy.bool_, *(numpy.dtype(f"{kind}{size}").type for kind in "iu" for size in (1, 2, 4, 8))} | {
    numpy.float32,
    numpy.float64,
}

Runs = list[tuple[int, int]]
"""Places of neighbouring rows: the first one's, and their number."""


class Json(str):
    """A value's JSON text."""

    __slots__ = ()


class OutputRows(NamedTuple):
    """Rows of the output with the same columns."""

    rows: Sequence[BlockRow]
    columns: dict[str, list[Any]]
    """Values by column, ``encoded``; without the columns of the rows' record batches."""


class OutputLine(NamedTuple):
    """A row of the output as a line of JSON."""

    place: int
    text: str


Encode = Callable[[Any], Any]
"""``encoded``, or a function like it."""


def encoded(value: Any, *, bytes_too: bool = True) -> Any:
    """A plain value unchanged, a number of numpy's as Python's, and any other as ``Json``.

    Raises:
        JsonEncodeError: it cannot be written, or holds bytes that are not wanted.
    """
    kind = type(value)
    if kind in SCALARS:
        return value
    return value.tolist() if kind in _NUMPY else Json(as_line([value], bytes_too=bytes_too)[1:-2].decode())


def encoded_without_bytes(value: Any) -> Any:
    """As ``encoded``, for CSV: bytes cannot be written."""
    return encoded(value, bytes_too=False)


def columns_of_bytes(block: Block, keep: tuple[str, ...] | None) -> tuple[str, ...]:
    """The columns to output of a record batch whose values may hold bytes."""
    schema = () if block.batch is None else block.batch.schema
    return tuple(field.name for field in schema if (keep is None or field.name in keep) and _may_hold_bytes(field.type))


def _may_hold_bytes(kind: Any) -> bool:
    if _TYPES.is_dictionary(kind):
        return _may_hold_bytes(kind.value_type)
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _may_hold_bytes(kind.storage_type)
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return "binary" in str(kind) or any(map(_may_hold_bytes, inner))


def encoded_record(record: Any, keep: tuple[str, ...] | None, encode: Encode = encoded) -> dict[str, Any]:
    """The columns of a record to output, ``encoded``.

    Args:
        record: a row that no record batch holds.
        keep: the columns to output; None: all.
        encode: ``encoded``, or a function like it.

    Raises:
        JsonEncodeError: a value cannot be written.
    """
    kept = record if keep is None else {name: record.get(name) for name in keep}
    return {name: value if type(value) in SCALARS else encode(value) for name, value in kept.items()}


def in_order(some: list[OutputRows]) -> list[OutputRows]:
    """The rows sorted by place."""
    places = [row.place for rows, _ in some for row in rows]
    if all(map(int.__lt__, places, places[1:])):
        return some
    rows = [
        (row, {name: values[number] for name, values in columns.items()})
        for rows, columns in some
        for number, row in enumerate(rows)
    ]
    return rows_together(sorted(rows, key=lambda row: row[0].place))


def rows_together(rows: Iterable[tuple[BlockRow, dict[str, Any]]]) -> list[OutputRows]:
    """Rows with their values by column; neighbours with the same columns together."""
    groups = [list(group) for _, group in groupby(rows, lambda row: tuple(row[1]))]
    return [
        OutputRows([row for row, _ in group], {name: [values[name] for _, values in group] for name in group[0][1]})
        for group in groups
    ]


def batches_of_rows(some: Iterable[OutputRows], keep: tuple[str, ...] | None) -> Iterator[tuple[Runs, Any]]:
    """Rows as record batches, in order, each with the places of its rows."""
    runs = list(chain.from_iterable(map(_runs_of_blocks, _joined(some))))
    if len(runs) > 1 + sum(len(run.rows) for run in runs) // _FEW:
        yield batch_of_lines([line for run in runs for line in as_lines(run, keep)])
        return
    for run in runs:
        rows, columns = run
        if not is_utf8("".join(columns)):
            yield batch_of_lines(list(as_lines(run, keep)))
            continue
        output = _kept_of_rows(rows, keep)
        output.update((name, _of_encoded(values)) for name, values in columns.items())
        yield _runs(row.place for row in rows), _as_batch(output)


def as_lines(some: OutputRows, keep: tuple[str, ...] | None) -> Iterator[OutputLine]:
    """Rows as lines of JSON, with the columns to keep."""
    for number, row in enumerate(some.rows):
        values = {name: values[number] for name, values in some.columns.items()}
        if row.block.batch is not None:
            values = encoded_record(row.row, keep) | values
        text = ", ".join(f"{_json_of(name)}: {_json_of(value)}" for name, value in values.items())
        yield OutputLine(row.place, f"{{{text}}}")


def batch_of_lines(lines: Sequence[OutputLine]) -> tuple[Runs, Any]:
    """Lines of JSON as a record batch, with the places of their rows."""
    schema = pyarrow.schema([(_LINE, pyarrow.string())], metadata=_LINES)
    texts = array_of([line.text for line in lines], pyarrow.string())
    return _runs(line.place for line in lines), pyarrow.RecordBatch.from_arrays([texts], schema=schema)


def batch_of_block(
    block: Block,
    keep: tuple[str, ...] | None,
    predictions: Any,
    model_id: str | None,
    encode: Encode = encoded,
    *,
    explode: bool = False,
) -> Any:
    """The output record batch of a block: with an array of predictions, or a list of results.

    A value common to all rows is dictionary-encoded.
    """
    columns = _kept(block, keep, encode)
    if isinstance(predictions, list):
        columns.update(_of_results(predictions, encode, explode))
    else:
        some = exploded_array(predictions) if explode else {PREDICTION: predictions}
        columns.update((name, _of_predictions(values, encode)) for name, values in some.items())
        if model_id is not None:
            places, ids = numpy.zeros(len(block), numpy.int8), array_of([model_id], pyarrow.string())
            columns["model_id"] = pyarrow.DictionaryArray.from_arrays(numbers_as_array(places), ids), False
    return _as_batch(columns)


def batch_as_written(batch: Any) -> Any:
    """Rows of a finished output as a record batch of one that is being written."""
    return _as_batch(_kept(Block(0, 0, batch=batch), None))


def column_of_predictions(predictions: Any) -> Any:
    """An array of numbers, booleans or text as a column."""
    return _of_predictions(predictions, encoded)[0]


def is_json(field: Any) -> bool:
    """Whether the texts of a column are JSON."""
    return bool(field.metadata == _JSON)


def lines_in(table: Any) -> list[str] | None:
    """The lines of JSON that a table holds; None if it holds columns."""
    return table.column(0).to_pylist() if table.schema.metadata == _LINES else None


_Column = tuple[Any, bool]
"""An array, and whether its texts are JSON."""


def _as_batch(columns: dict[str, _Column]) -> Any:
    fields = [
        pyarrow.field(name, array.type, metadata=_JSON if has_json else None)
        for name, (array, has_json) in columns.items()
    ]
    return pyarrow.RecordBatch.from_arrays([array for array, _ in columns.values()], schema=pyarrow.schema(fields))


def _joined(some: Iterable[OutputRows]) -> Iterator[OutputRows]:
    """Joins neighbours with the same columns."""
    for names, group in groupby(some, lambda rows: tuple(rows.columns)):
        rows, columns = zip(*group, strict=True)
        joined = {name: list(chain.from_iterable(each[name] for each in columns)) for name in names}
        yield OutputRows(list(chain.from_iterable(rows)), joined)


def _runs_of_blocks(some: OutputRows) -> Iterator[OutputRows]:
    """Cuts rows into runs of one block; rows that no record batch holds stay together."""
    start = 0
    for _, group in groupby(some.rows, _block_with_batch):
        stop = start + len(list(group))
        yield OutputRows(some.rows[start:stop], {name: values[start:stop] for name, values in some.columns.items()})
        start = stop


def _block_with_batch(row: BlockRow) -> Block | None:
    return row.block if row.block.batch is not None else None


def _runs(places: Iterable[int]) -> Runs:
    runs: Runs = []
    start, stop = 0, -1
    for place in places:
        if place != stop:
            if stop > start:
                runs.append((start, stop - start))
            start = place
        stop = place + 1
    return [*runs, (start, stop - start)] if stop > start else runs


def _json_of(value: Any) -> str:
    return value if type(value) is Json else as_line(value)[:-1].decode()


def _kept_of_rows(rows: Sequence[BlockRow], keep: tuple[str, ...] | None) -> dict[str, _Column]:
    """The columns of the record batch that holds the rows, if one does."""
    block = rows[0].block
    if block.batch is None:
        return {}
    places = [row.place - block.place for row in rows]
    first, last = places[0], places[-1]
    if 4 * len(places) > len(block) and places == list(range(first, last + 1)):
        return _kept(block[first : last + 1], keep)
    # A copy, since a few rows would keep the memory of the whole block.
    return _kept(Block(0, 0, block.names, block.batch.take(array_of(places, pyarrow.int64()))), keep)


def _kept(block: Block, keep: tuple[str, ...] | None, encode: Encode = encoded) -> dict[str, _Column]:
    names = block.batch.schema.names
    missing = pyarrow.nulls(len(block)), False
    return {
        name: _of_column(block.batch.column(name), encode) if name in names else missing
        for name in (names if keep is None else keep)
    }


def _of_results(results: list[Any], encode: Encode, explode: bool) -> dict[str, _Column]:
    predictions, model_ids = zip(*map(answer_of, results), strict=True)
    some = exploded_all(predictions) if explode else {PREDICTION: predictions}
    columns = {name: _of_values(values, encode) for name, values in some.items()}
    if any(model_id is not None for model_id in model_ids):
        columns["model_id"] = _of_values(model_ids)
    return columns


def _of_predictions(predictions: Any, encode: Encode) -> _Column:
    if getattr(predictions, "ndim", 0) == 1 and predictions.dtype.kind in "biuf":
        return _of_column(numbers_as_array(predictions))
    if getattr(predictions, "ndim", 0) == 2 and predictions.size and predictions.dtype.kind in "iuf":
        lists = pyarrow.FixedSizeListArray.from_arrays(numbers_as_array(predictions.ravel()), predictions.shape[1])
        return _of_column(lists, encode)
    is_text = getattr(getattr(predictions, "dtype", None), "kind", "") == "U"
    return _of_values(predictions.tolist() if is_text else list(predictions), encode)


def _of_column(column: Any, encode: Encode = encoded) -> _Column:
    kind = column.type
    if _TYPES.is_dictionary(kind):
        return _of_column(column.dictionary_decode(), encode)
    if _TYPES.is_null(kind) or _TYPES.is_boolean(kind) or (kind in CANONICAL and not _TYPES.is_floating(kind)):
        return column, False
    if _TYPES.is_floating(kind):
        return without_infinities(column.cast(pyarrow.float64())), False
    if kind == pyarrow.large_string() or str(kind) == "string_view" or _TYPES.is_integer(kind):
        try:
            return column.cast(pyarrow.string() if not _TYPES.is_integer(kind) else pyarrow.int64()), False
        except pyarrow.ArrowInvalid:  # an integer needs more than signed 64 bits
            pass
    vectors = vectors_of(column) if is_vector(kind) else None
    return (vectors, False) if vectors is not None else _of_values(as_values(column), encode)


def _of_values(values: Iterable[Any], encode: Encode = encoded) -> _Column:
    return _of_encoded(list(map(encode, values)))


def _of_encoded(values: list[Any]) -> _Column:
    kinds = set(map(type, values))
    if Json in kinds:
        values = [json.loads(value) if type(value) is Json and value[0] not in "[{" else value for value in values]
        kinds = set(map(type, values))
    kinds.discard(type(None))
    if not kinds:
        return pyarrow.nulls(len(values)), False
    kind = _TYPE_OF.get(kinds.pop()) if len(kinds) == 1 else None
    if kind == pyarrow.float64():
        values = [value if value is None or math.isfinite(value) else None for value in values]
    try:
        if kind is not None:
            return array_of(values, kind), False
    except (pyarrow.ArrowException, OverflowError, UnicodeError):  # values that Arrow cannot hold become JSON
        pass
    texts = [None if value is None else _json_of(value) for value in values]
    return array_of(texts, pyarrow.string()), True
