"""Renders the record batches of an output as JSON lines, CSV or Parquet."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, BinaryIO

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from headrace.jobs.arrays import (
    LARGE,
    array_of,
    content_of,
    joined,
    json_texts,
    text_scalar,
    texts_of_floats,
    texts_of_lists,
)
from headrace.jobs.column_types import (
    MIXED,
    NOTHING,
    Array,
    ColumnTypes,
    Kind,
    Number,
    Scalar,
    as_array,
    kind_of,
    schema_of,
    utf8,
)
from headrace.jobs.flow import prefetch
from headrace.jobs.output_batches import CANONICAL, lines_in
from headrace.rows.fitting import NAN, is_vector, numbers_of

GROUP_ROWS, GROUP_BYTES = 1 << 16, 1 << 24
"""The limits of a row group."""
_LINES = 1 << 13
_PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)
"""Names of columns that need no quotes in CSV."""
_DECIMAL = pyarrow.decimal128(20, 1)
_NOTHING, _QUOTE, _END, _NEWLINE = map(text_scalar, ("", '"', "}\n", "\n"))
_TYPES = pyarrow.types


def write_parquet(
    file: BinaryIO,
    tables: Callable[[], Iterable[Any]],
    check: Callable[[], None],
    types: dict[str, Any] | None = None,
) -> None:
    """Writes tables to one Parquet file. Row groups depend only on the rows, not on how the tables are cut.

    Args:
        file: to write.
        tables: returns the tables; called twice, the first time for little more than the column types.
        check: called repeatedly; an exception from it stops the work.
        types: Arrow's types by column name; None: each column gets one that represents all of its values.
    """
    columns, rows, size = ColumnTypes(), 0, 0
    for table in tables():
        check()
        rows, size = rows + table.num_rows, size + _size(table)
        for name, kind in () if types else _kinds_of(table):
            columns.widen(name, kind)
    types = types or columns.types
    schema = schema_of(types)
    with open_parquet(pyarrow.PythonFile(file, mode="w"), schema) as writer:
        alike = (_as_types(table, types, schema) for table in tables())
        size_of_group = max(1, min(GROUP_ROWS, GROUP_BYTES * rows // max(1, size)))
        with closing(prefetch(_regrouped(alike, size_of_group))) as groups:  # closing also ends its thread
            for group in groups:
                check()
                writer.write_table(group)


def open_parquet(where: Any, schema: Any) -> Any:
    """A writer of a Parquet file, given its path or a file of Arrow's. Numbers seldom gain from dictionaries."""
    plain = map(_is_number, schema.types)
    texts = [name for name, is_plain in zip(schema.names, plain, strict=True) if not is_plain]
    return pyarrow.parquet.ParquetWriter(where, schema, use_dictionary=texts)


def _is_number(kind: Any) -> bool:
    return bool(_TYPES.is_floating(kind) or _TYPES.is_integer(kind))


def lines_of(tables: Iterable[Any]) -> Iterator[bytes]:
    """The rows of tables as JSON lines, in pieces of some thousand."""
    for table in tables:
        for start in range(0, table.num_rows, _LINES):
            some = table.slice(start, _LINES)
            lines = lines_in(some)
            yield _rendered(some) if lines is None else "".join(f"{line}\n" for line in lines).encode()


def csv_of(tables: Callable[[], Iterable[Any]], delimiter: str, names: Iterable[str] | None = None) -> Iterator[bytes]:
    """The rows of tables as CSV, in pieces of some thousand.

    Texts, and the JSON of lists and objects, are in quotes; a null is empty. Names of columns are in quotes only where
    they need them: so a reader knows that quotes are chosen.

    Args:
        tables: returns the tables; called twice unless ``names`` are known.
        delimiter: between the fields.
        names: of all columns; None: those that any row has.
    """
    columns = [*(columns_of(tables()) if names is None else names)]
    if columns:
        header = schema_of(dict.fromkeys(columns, pyarrow.null())).names
        yield f"{delimiter.join(n if _PLAIN_NAME.fullmatch(n) else _csv_cell(n) for n in header)}\n".encode()
    null = text_scalar("" if len(columns) > 1 else '""')  # an empty line is no row
    for table in tables():
        if (text := _as_arrow_writes(table, columns, delimiter)) is not None:
            yield text
            continue
        for start in range(0, table.num_rows, _LINES):
            fields = _csv_texts(table.slice(start, _LINES), columns, null)
            lines = pyarrow.compute.binary_join_element_wise(*fields, text_scalar(delimiter))
            yield content_of(pyarrow.compute.binary_join_element_wise(lines, _NEWLINE, _NOTHING))


def _as_arrow_writes(table: Any, names: Sequence[str], delimiter: str) -> bytes | None:
    """Rows as Arrow's writer has them, twice as fast as joining texts; None if that is not what a reader needs."""
    if len(names) == 1 or lines_in(table) is not None:
        return None
    known = dict(zip(table.schema.names, table.columns, strict=True))
    columns = [_with_points(known[name]) if name in known else pyarrow.nulls(table.num_rows) for name in names]
    if any(column is None for column in columns):
        return None
    out = pyarrow.BufferOutputStream()
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter=delimiter, batch_size=_LINES)
    pyarrow.csv.write_csv(pyarrow.Table.from_arrays(columns, names=list(map(str, range(len(columns))))), out, options)
    return bytes(out.getvalue())


def _with_points(column: Any) -> Any:
    """The column, as decimals if it holds whole floats, which keep their point; None if it holds others, or lists."""
    if not _TYPES.is_floating(column.type):
        return None if _TYPES.is_list(column.type) else column
    numbers = numbers_of(column.combine_chunks().fill_null(NAN))
    whole = numpy.rint(numbers) == numbers
    if not whole.any():
        return column
    is_known = whole.all() and numpy.abs(numbers).max() < LARGE and not numpy.signbit(numbers[numbers == 0]).any()
    return column.cast(pyarrow.int64()).cast(_DECIMAL) if is_known else None


def columns_of(tables: Iterable[Any]) -> dict[str, None]:
    """The columns that any row of tables has, in order."""
    return dict.fromkeys(chain.from_iterable(map(_names_of, tables)))


def _names_of(table: Any) -> Iterable[str]:
    rows = _rows_of(table)
    return table.schema.names if rows is None else chain.from_iterable(rows)


def _csv_texts(table: Any, names: Sequence[str], null: Any) -> Iterator[Any]:
    """The fields of each column."""
    rows = _rows_of(table)
    known = {} if rows else dict(zip(table.schema.names, table.columns, strict=True))
    for name in names:
        if rows is not None:
            texts = _csv_cells(row.get(name) for row in rows)
        elif name in known:
            texts = _csv_column(known[name])
        else:
            texts = pyarrow.repeat(null, table.num_rows)
        yield texts.fill_null(null) if texts.null_count else texts


def _csv_column(column: Any) -> Any:
    column = column.combine_chunks()
    if _TYPES.is_list(column.type):
        return pyarrow.compute.binary_join_element_wise(_QUOTE, texts_of_lists(column), _QUOTE, _NOTHING)
    if not _TYPES.is_string(column.type):
        return texts_of_floats(column, small=0) if _TYPES.is_floating(column.type) else column.cast(pyarrow.string())
    if b'"' in content_of(column):
        column = pyarrow.compute.replace_substring(column, '"', '""')
    return pyarrow.compute.binary_join_element_wise(_QUOTE, column, _QUOTE, _NOTHING)


def _csv_cells(values: Iterable[Any]) -> Any:
    return array_of([None if value is None else _csv_cell(value) for value in values], pyarrow.string())


def _csv_cell(value: Any) -> str:
    text = utf8(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return '"' + text.replace('"', '""') + '"' if isinstance(value, str | list | dict) else text


def _size(table: Any) -> int:
    """Roughly the bytes of a table's values; additive, however the rows are cut into tables."""
    texts = [column for column in table.columns if _TYPES.is_string(column.type)]
    lengths = (pyarrow.compute.sum(pyarrow.compute.binary_length(column)).as_py() or 0 for column in texts)
    numbers = sum(len(_numbers_in(column)) for column in table.columns if _TYPES.is_list(column.type))
    return int(sum(lengths)) + 8 * int(table.num_rows * table.num_columns + numbers)


def _numbers_in(lists: Any) -> Any:
    """The numbers of a column of lists, one behind the other."""
    return pyarrow.compute.list_flatten(lists)


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


def _kinds_of(table: Any) -> Iterator[tuple[str, Kind]]:
    if (rows := _rows_of(table)) is not None:
        for name in dict.fromkeys(chain.from_iterable(rows)):
            yield name, kind_of([row.get(name) for row in rows])
        return
    yield from zip(table.schema.names, map(_kind_of_column, table.columns), strict=True)


def _kind_of_column(column: Any) -> Kind:
    if column.null_count == len(column):
        return NOTHING
    if _TYPES.is_list(column.type):
        return Array(_kind_of_column(_numbers_in(column)))
    if _TYPES.is_integer(column.type):
        ends = pyarrow.compute.min_max(column)
        return Number(ends["min"].as_py(), ends["max"].as_py())
    if _TYPES.is_floating(column.type):
        return Number(has_floats=True)
    return Scalar(column.type) if column.type in CANONICAL else MIXED


def _rows_of(table: Any) -> list[dict[str, Any]] | None:
    lines = lines_in(table)
    return None if lines is None else list(map(json.loads, lines))


def _as_types(table: Any, types: dict[str, Any], schema: Any) -> Any:
    """A table with columns of these types, which fit all tables; missing columns are null."""
    if (rows := _rows_of(table)) is not None:
        columns = [as_array([row.get(name) for row in rows], kind) for name, kind in types.items()]
    else:
        columns = [_as_type(table, *column) for column in types.items()]
    return pyarrow.Table.from_arrays(columns, schema=schema)


def _as_type(table: Any, name: str, kind: Any) -> Any:
    place = table.schema.get_field_index(name)
    if place < 0 or table.column(place).null_count == table.num_rows:
        return pyarrow.nulls(table.num_rows, kind)
    column = table.column(place)
    if column.type == kind:
        return column
    if (_TYPES.is_floating(kind) and _TYPES.is_integer(column.type)) or (is_vector(kind) and is_vector(column.type)):
        return column.cast(kind, safe=False)
    return as_array(column.to_pylist(), kind)


def _rendered(table: Any) -> bytes:
    pieces: list[Any] = []
    for title, column in zip(table.schema.names, table.combine_chunks().columns, strict=True):
        name = json.dumps(title, ensure_ascii=False)
        texts = json_texts(column.combine_chunks())
        pieces += [text_scalar(f"{', ' if pieces else '{'}{name}: "), texts]
    return joined(pieces, _END)
