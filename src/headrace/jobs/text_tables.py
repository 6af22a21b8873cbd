"""Renders the record batches of an output as JSON lines or CSV, a column at a time: a tenth of Python's own time."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from json.encoder import encode_basestring
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.csv

from headrace.jobs.json_lines import utf8
from headrace.jobs.output_batches import lines_in, rows_in_lines
from headrace.rows.values import NAN, array_of, numbers_as_array, numbers_of, text_scalar

_LINES, _BYTES = 1 << 15, 1 << 24
"""The most of a piece."""
_LINE_END = 10
_THREADS = 2
_FEW = 20
"""How many times as many rows there are as need texts of their own, where Arrow has those of the others."""
_PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)
"""Names of columns that need no quotes in CSV."""
_SPACE, _QUOTE_MARK, _BACKSLASH = b' "\\'
"""JSON escapes the last two, and what comes before the first."""
_LARGE = 1e10
"""From where on Arrow writes floats with an exponent."""
_NO_LENGTH = array_of([0], pyarrow.int64()).cast(pyarrow.int32())
_NO_TEXT = pyarrow.nulls(1, pyarrow.string())[0]
_NOTHING, _QUOTE, _NULL, _WHOLE = map(text_scalar, ("", '"', "null", ".0"))
_COMMA, _OPENS, _CLOSES, _END, _NEWLINE = map(text_scalar, (", ", "[", "]", "}\n", "\n"))
_DECIMAL = pyarrow.decimal128(20, 1)
_TYPES = pyarrow.types


def lines_of(tables: Iterable[Any]) -> Iterator[bytes]:
    """The rows of tables as JSON lines, in pieces of some thousand."""
    return _on_threads(_json_lines, tables)


def _json_lines(table: Any) -> bytes:
    lines = lines_in(table)
    if lines is not None:
        return "".join(f"{line}\n" for line in lines).encode()
    pieces: list[Any] = []
    for title, column in zip(table.schema.names, table.columns, strict=True):
        name = json.dumps(title, ensure_ascii=False)
        pieces += [text_scalar(f"{', ' if pieces else '{'}{name}: "), _json_texts(column.combine_chunks())]
    return _content_of(_together(*pieces, _END))


def csv_of(tables: Callable[[], Iterable[Any]], delimiter: str, names: Iterable[str] | None = None) -> Iterator[bytes]:
    """The rows of tables as CSV, in pieces of some thousand.

    Texts, and the JSON of lists and objects, are in quotes; a null is empty. Names of columns are in quotes only where
    they need them: so a reader knows that quotes are chosen. Columns are those of ``names``, or that any row has.
    """
    columns = [*(columns_of(tables()) if names is None else names)]
    if columns:
        header = map(utf8, columns)
        yield f"{delimiter.join(n if _PLAIN_NAME.fullmatch(n) else _csv_cell(n) for n in header)}\n".encode()
    yield from _on_threads(partial(_csv_rows, columns, delimiter), tables())


def _on_threads(rendered: Callable[[Any], bytes], tables: Iterable[Any]) -> Iterator[bytes]:
    """The texts of pieces of tables, in order; some pieces ahead, since Arrow's functions leave Python to others."""
    coming: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(_THREADS, "headrace-renders") as threads:
        for table in tables:
            rows = max(1, min(_LINES, table.num_rows * _BYTES // max(1, table.nbytes)))
            for start in range(0, table.num_rows, rows):
                coming.append(threads.submit(rendered, table.slice(start, rows)))
                if len(coming) > 2 * _THREADS:
                    yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def columns_of(tables: Iterable[Any]) -> dict[str, None]:
    """The columns that any row of tables has, in order."""
    names = (
        table.schema.names if (rows := rows_in_lines(table)) is None else chain.from_iterable(rows) for table in tables
    )
    return dict.fromkeys(chain.from_iterable(names))


def _csv_rows(names: Sequence[str], delimiter: str, table: Any) -> bytes:
    text = None if len(names) == 1 or lines_in(table) is not None else _as_arrow_writes(names, delimiter, table)
    return _content_of(_csv_lines(names, delimiter, table)) if text is None else text


def _csv_lines(names: Sequence[str], delimiter: str, table: Any) -> Any:
    null = text_scalar("" if len(names) > 1 else '""')  # an empty line is no row
    fields = _csv_texts(table, names, null)
    return _together(pyarrow.compute.binary_join_element_wise(*fields, text_scalar(delimiter)), _NEWLINE)


def _as_arrow_writes(names: Sequence[str], delimiter: str, table: Any) -> bytes | None:
    """Rows as Arrow's writer has them, twice as fast as joining texts, but for some; None if there are many of these.

    Arrow writes whole floats without their point. A column that holds no others goes through as decimals.
    """
    columns, unlike = [], numpy.zeros(table.num_rows, bool)
    for name in names:
        place = table.schema.get_field_index(name)
        column = pyarrow.nulls(table.num_rows) if place < 0 else table.column(place)
        if _TYPES.is_list(column.type):
            return None
        if _TYPES.is_floating(column.type):
            numbers, whole = _numbers(column.combine_chunks())
            if not whole.all() or numpy.signbit(numbers[numbers == 0]).any():
                unlike |= whole
            else:
                column = column.cast(pyarrow.int64()).cast(_DECIMAL)
        columns.append(column)
    places = numpy.flatnonzero(unlike)
    if len(places) * _FEW > table.num_rows:
        return None
    alike = pyarrow.Table.from_arrays(columns, names=list(map(str, range(len(columns)))))
    out = pyarrow.BufferOutputStream()
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter=delimiter, batch_size=_LINES)
    pyarrow.csv.write_csv(alike, out, options)
    text = memoryview(out.getvalue())
    if not len(places):
        return bytes(text)
    ends = numpy.flatnonzero(numpy.frombuffer(text, numpy.uint8) == _LINE_END) + 1
    if len(ends) != table.num_rows:  # a text has several lines
        return None
    lines = _csv_lines(names, delimiter, table.take(numbers_as_array(places))).to_pylist()
    starts = numpy.append(0, ends)
    parts, start = [], 0
    for line, begin, end in zip(lines, starts[places].tolist(), ends[places].tolist(), strict=True):
        parts += [text[start:begin], line.encode()]
        start = end
    return b"".join([*parts, text[start:]])


def _csv_texts(table: Any, names: Sequence[str], null: Any) -> Iterator[Any]:
    rows = rows_in_lines(table)
    known = {} if rows else dict(zip(table.schema.names, table.columns, strict=True))
    for name in names:
        if rows is not None:
            cells = [None if row.get(name) is None else _csv_cell(row[name]) for row in rows]
            texts = array_of(cells, pyarrow.string())
        elif name in known:
            texts = _csv_column(known[name].combine_chunks())
        else:
            texts = pyarrow.repeat(null, table.num_rows)
        yield texts.fill_null(null) if texts.null_count else texts


def _csv_column(column: Any) -> Any:
    if _TYPES.is_list(column.type):
        return _together(_QUOTE, _texts(column), _QUOTE)
    if not _TYPES.is_string(column.type):
        return _texts(column)
    if b'"' in _content_of(column):
        column = pyarrow.compute.replace_substring(column, '"', '""')
    return _together(_QUOTE, column, _QUOTE)


def _csv_cell(value: Any) -> str:
    text = utf8(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return '"' + text.replace('"', '""') + '"' if isinstance(value, str | list | dict) else text


def _together(*texts: Any) -> Any:
    """Texts of arrays and scalars one behind the other; null where one of them is."""
    return pyarrow.compute.binary_join_element_wise(*texts, _NOTHING)


def _content_of(texts: Any) -> bytes:
    _, offsets, content = texts.buffers()
    ends = numpy.frombuffer(offsets, numpy.int32)
    return bytes(memoryview(content)[ends[texts.offset] : ends[texts.offset + len(texts)]]) if content else b""


def _json_texts(column: Any) -> Any:
    texts = _quoted(column) if _TYPES.is_string(column.type) else _texts(column)
    return texts.fill_null(_NULL) if texts.null_count else texts


def _texts(column: Any) -> Any:
    """A column as JSON has it, but for texts; null where there is nothing."""
    if _TYPES.is_list(column.type):
        return _texts_of_lists(column)
    texts = column.cast(pyarrow.string())
    if not _TYPES.is_floating(column.type):
        return texts
    _, whole = _numbers(column)
    return pyarrow.compute.if_else(numbers_as_array(whole), _together(texts, _WHOLE), texts) if whole.any() else texts


def _numbers(column: Any) -> tuple[Any, Any]:
    """Floats as an array, NaN for nulls, and which of them Arrow writes as it does integers."""
    numbers = numbers_of(column.fill_null(NAN))
    return numbers, (numpy.rint(numbers) == numbers) & (numpy.abs(numbers) < _LARGE)


def _quoted(column: Any) -> Any:
    characters = numpy.frombuffer(_content_of(column), numpy.uint8)
    if ((characters < _SPACE) | (characters == _QUOTE_MARK) | (characters == _BACKSLASH)).any():
        texts = [text if text is None else encode_basestring(text) for text in column.to_pylist()]
        return array_of(texts, pyarrow.string())
    return _together(_QUOTE, column, _QUOTE)


def _texts_of_lists(column: Any) -> Any:
    """Lists of numbers as JSON; null where there is none."""
    lengths = pyarrow.compute.list_value_length(column).fill_null(_NO_LENGTH[0])
    offsets = pyarrow.concat_arrays([_NO_LENGTH, pyarrow.compute.cumulative_sum(lengths)])
    numbers = pyarrow.ListArray.from_arrays(offsets, _json_texts(pyarrow.compute.list_flatten(column)))
    texts = _together(_OPENS, pyarrow.compute.binary_join(numbers, _COMMA), _CLOSES)
    return pyarrow.compute.if_else(column.is_valid(), texts, _NO_TEXT) if column.null_count else texts
