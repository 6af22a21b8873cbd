"""Writes the predictions of row blocks: record batches, rendered as JSON lines or Parquet.

Columns have JSON's types (null, bool, int64, double, string). A column that mixes them holds JSON as text, and its
field's metadata says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from json.encoder import encode_basestring
from typing import Any, BinaryIO

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from headrace.jobs.blocks import Block
from headrace.jobs.json_lines import as_line
from headrace.jobs.parquet import MIXED, NOTHING, ColumnTypes, Kind, Number, Scalar, as_array, kind_of, schema_of
from headrace.jobs.prefetch import prefetch
from headrace.jobs.rows import fields_of
from headrace.jobs.values import as_values

_JSON = {b"headrace": b"json"}
_ROWS = 1 << 16
_BYTES = 1 << 24
_LINES = 1 << 13
_ESCAPED = r'["\\\x00-\x1f]'
_SMALL, _LARGE = 1e-4, 1e10
_TYPES = pyarrow.types
_TYPE_OF = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
_CANONICAL = set(_TYPE_OF.values())
_PLAIN = {*_TYPE_OF, type(None)}


def write_parquet(file: BinaryIO, tables: Callable[[], Iterable[Any]], check: Callable[[], None]) -> None:
    """Writes tables to one Parquet file. Row groups depend only on the rows, not on how the tables are cut.

    Args:
        file: to write.
        tables: returns the tables; called twice, the first time for little more than the column types.
        check: called repeatedly; an exception from it stops the work.
    """
    columns, rows, size = ColumnTypes(), 0, 0
    for table in tables():
        check()
        rows, size = rows + table.num_rows, size + _size(table)
        for name, kind in _kinds_of(table):
            columns.widen(name, kind)
    types = columns.types
    schema = schema_of(types)
    texts = [
        name
        for name, kind in zip(schema.names, schema.types, strict=True)
        if not (_TYPES.is_floating(kind) or _TYPES.is_integer(kind))
    ]
    with pyarrow.parquet.ParquetWriter(pyarrow.PythonFile(file, mode="w"), schema, use_dictionary=texts) as writer:
        alike = (
            pyarrow.Table.from_arrays([_as_type(table, *column) for column in types.items()], schema=schema)
            for table in tables()
        )
        size_of_group = max(1, min(_ROWS, _BYTES * rows // max(1, size)))
        with closing(prefetch(_regrouped(alike, size_of_group))) as groups:  # closing also ends its thread
            for group in groups:
                check()
                writer.write_table(group)


def lines_of(tables: Iterable[Any]) -> Iterator[bytes]:
    """The rows of tables as JSON lines, in pieces of some thousand."""
    for table in tables:
        for start in range(0, table.num_rows, _LINES):
            yield _lines(table.slice(start, _LINES))


def _size(table: Any) -> int:
    """Roughly the bytes of a table's values; additive, however the rows are cut into tables."""
    texts = [column for column in table.columns if _TYPES.is_string(column.type)]
    lengths = (pyarrow.compute.sum(pyarrow.compute.binary_length(column)).as_py() or 0 for column in texts)
    return int(sum(lengths)) + 8 * int(table.num_rows * table.num_columns)


def _regrouped(tables: Iterable[Any], rows: int) -> Iterator[Any]:
    """Cuts tables of one schema into tables of ``rows`` rows each; the last may be shorter."""
    waiting: list[Any] = []
    missing = rows
    for table in tables:
        start = 0
        while table.num_rows - start >= missing:
            yield pyarrow.concat_tables([*waiting, table.slice(start, missing)]).combine_chunks()
            start, waiting, missing = start + missing, [], rows
        if start < table.num_rows:
            waiting.append(table.slice(start))
            missing -= table.num_rows - start
    if waiting:
        yield pyarrow.concat_tables(waiting).combine_chunks()


def output_batch(block: Block, keep: tuple[str, ...] | None, predictions: Any, model_id: str | None) -> Any:
    """The output record batch of a block. A value common to all rows is dictionary-encoded."""
    columns = _kept(block, keep)
    if isinstance(predictions, list):
        columns.update(_of_results(predictions))
    else:
        columns["prediction"] = _of_predictions(predictions)
        if model_id is not None:
            places = pyarrow.repeat(pyarrow.scalar(0, pyarrow.int8()), len(block))
            columns["model_id"] = pyarrow.DictionaryArray.from_arrays(places, [model_id]), False
    fields = [
        pyarrow.field(name, array.type, metadata=_JSON if is_json else None)
        for name, (array, is_json) in columns.items()
    ]
    return pyarrow.RecordBatch.from_arrays([array for array, _ in columns.values()], schema=pyarrow.schema(fields))


_Column = tuple[Any, bool]
"""An array, and whether its texts are JSON."""


def _kept(block: Block, keep: tuple[str, ...] | None) -> dict[str, _Column]:
    if block.batch is None:
        row: Any = block.row
        kept = row if keep is None else {name: row.get(name) for name in keep}
        return {name: _of_values([value]) for name, value in kept.items()}
    names = block.batch.schema.names
    missing = pyarrow.nulls(len(block)), False
    return {
        name: _of_column(block.batch.column(name), finite=name in block.names) if name in names else missing
        for name in (names if keep is None else keep)
    }


def _of_results(results: list[Any]) -> dict[str, _Column]:
    fields = [fields_of(result) for result in results]
    names = dict.fromkeys(name for each in fields for name in each)
    return {name: _of_values([each.get(name) for each in fields]) for name in names}


def _of_predictions(predictions: Any) -> _Column:
    if predictions.ndim == 1 and predictions.dtype.kind in "biuf":
        return _of_column(pyarrow.array(predictions))
    return _of_values(list(predictions))


def _of_column(column: Any, *, finite: bool = False) -> _Column:
    kind = column.type
    if _TYPES.is_dictionary(kind):
        return _of_column(column.dictionary_decode())
    if _TYPES.is_null(kind) or _TYPES.is_boolean(kind) or (kind in _CANONICAL and not _TYPES.is_floating(kind)):
        return column, False
    if _TYPES.is_floating(kind):
        column = column.cast(pyarrow.float64())
        return (column if finite else _without_infinities(column)), False
    if kind == pyarrow.large_string() or kind == pyarrow.string_view() or _TYPES.is_integer(kind):
        try:
            return column.cast(pyarrow.string() if not _TYPES.is_integer(kind) else pyarrow.int64()), False
        except pyarrow.ArrowInvalid:  # an integer needs more than signed 64 bits
            pass
    return _of_values(as_values(column))


def _without_infinities(column: Any) -> Any:
    """The column with null in place of NaN and infinity."""
    finite = pyarrow.compute.is_finite(column)
    return column if pyarrow.compute.all(finite).as_py() else pyarrow.compute.if_else(finite, column, None)


def _of_values(values: list[Any]) -> _Column:
    if not set(map(type, values)) <= _PLAIN:
        values = json.loads(as_line(values))
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pyarrow.nulls(len(values)), False
    kind = _TYPE_OF.get(kinds.pop()) if len(kinds) == 1 else None
    if kind == pyarrow.float64():
        values = [value if value is None or math.isfinite(value) else None for value in values]
    try:
        if kind is not None:
            return pyarrow.array(values, kind), False
    except (pyarrow.ArrowException, OverflowError, UnicodeError):  # values that Arrow cannot hold become JSON
        pass
    texts = [None if value is None else as_line(value)[:-1].decode() for value in values]
    return pyarrow.array(texts, pyarrow.string()), True


def _is_json(field: Any) -> bool:
    return bool(field.metadata == _JSON)


def _kinds_of(table: Any) -> Iterator[tuple[str, Kind]]:
    for field, column in zip(table.schema, table.columns, strict=True):
        yield field.name, kind_of(_parsed(column)) if _is_json(field) else _kind_of_column(column)


def _kind_of_column(column: Any) -> Kind:
    if column.null_count == len(column):
        return NOTHING
    if _TYPES.is_integer(column.type):
        ends = pyarrow.compute.min_max(column)
        return Number(ends["min"].as_py(), ends["max"].as_py())
    if _TYPES.is_floating(column.type):
        return Number(has_floats=True)
    return Scalar(column.type) if column.type in _CANONICAL else MIXED


def _parsed(column: Any) -> list[Any]:
    return [None if text is None else json.loads(text) for text in column.to_pylist()]


def _as_type(table: Any, name: str, kind: Any) -> Any:
    """A table's column, cast to the type that fits all tables."""
    place = table.schema.get_field_index(name)
    if place < 0 or table.column(place).null_count == table.num_rows:
        return pyarrow.nulls(table.num_rows, kind)
    field, column = table.schema.field(place), table.column(place)
    if _is_json(field):
        return as_array(_parsed(column), kind)
    if field.type == kind:
        return column
    if _TYPES.is_floating(kind) and _TYPES.is_integer(field.type):
        return column.cast(kind, safe=False)
    return as_array(column.to_pylist(), kind)


def _lines(table: Any) -> bytes:
    pieces: list[Any] = []
    for field, column in zip(table.schema, table.combine_chunks().columns, strict=True):
        name = json.dumps(field.name, ensure_ascii=False)
        pieces += [f"{', ' if pieces else '{'}{name}: ", _texts(column.combine_chunks(), is_json=_is_json(field))]
    lines = pyarrow.compute.binary_join_element_wise(*pieces, "}\n", "")
    return b"".join(chunk.encode() for chunk in lines.to_pylist())


def _texts(column: Any, *, is_json: bool) -> Any:
    """The JSON text of each value. Vectorized: converting text columns value by value is slow."""
    kind = column.type
    if _TYPES.is_null(kind):
        return pyarrow.repeat("null", len(column))
    if _TYPES.is_string(kind) and not is_json:
        texts = _quoted(column)
    elif _TYPES.is_floating(kind):
        texts = _of_floats(column)
    else:
        texts = column.cast(pyarrow.string())
    return texts.fill_null("null") if texts.null_count else texts


def _quoted(column: Any) -> Any:
    if pyarrow.compute.any(pyarrow.compute.match_substring_regex(column, _ESCAPED)).as_py():
        texts = [text if text is None else encode_basestring(text) for text in column.to_pylist()]
        return pyarrow.array(texts, pyarrow.string())
    return pyarrow.compute.binary_join_element_wise('"', column, '"', "")


def _of_floats(column: Any) -> Any:
    """Floats as Python's ``repr`` writes them; Arrow's text differs for whole, very small and very large numbers."""
    compute = pyarrow.compute
    texts = column.cast(pyarrow.string())
    whole = compute.invert(compute.match_substring(texts, "."))
    if compute.any(whole).as_py():
        texts = compute.if_else(whole, compute.binary_join_element_wise(texts, ".0", ""), texts)
    sizes = compute.abs(column)
    differs = compute.or_(compute.less(sizes, _SMALL), compute.greater_equal(sizes, _LARGE)).fill_null(False)
    if not compute.any(differs).as_py():
        return texts
    others = map(repr, column.filter(differs).to_pylist())
    return compute.replace_with_mask(texts, differs, pyarrow.array(others, pyarrow.string()))
