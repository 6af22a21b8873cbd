"""Reads rows from files, and infers columns and number types from the beginning of the input."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from headrace.core.errors import ConfigurationError
from headrace.jobs import pipes
from headrace.jobs.csv_rows import CsvRecords, csv_lines, number, read_csv
from headrace.jobs.files import Source, open_source
from headrace.jobs.parquet_rows import parquet_file, read_parquet
from headrace.jobs.rows import BrokenLine, Row
from headrace.jobs.storage import is_remote
from headrace.jobs.text import lines, not_utf8, open_text

SAMPLED_ROWS = 1000
"""How many rows to inspect to infer types for all."""
_DEEPEST = 200
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
_LEADING_ZERO = re.compile(r"\s*[+-]?0\d")


class InputSchema(NamedTuple):
    """What the beginning of the input tells about all of it."""

    columns: tuple[str, ...]
    """From the header, the schema or the first row; empty if there are no rows."""
    numbers: dict[str, type]
    """The number columns of CSV files: int or float."""


def infer_schema(sources: Iterable[Source]) -> InputSchema:
    """Inspects the beginning of the input.

    Raises:
        ConfigurationError: it cannot be read; the message names the file and the reason. EmptyPipeError if a pipe had
            to be read and was empty.
    """
    columns: tuple[str, ...] = ()
    numbers: dict[str, type] | None = None
    for source in sources:
        try:
            columns = columns or _columns_of(source)
            if source.format == "csv" and numbers is None:
                numbers = _number_columns(source)
            if not is_remote(source.path) and not pipes.is_pipe(source.path):
                _refuse_unfit(source)
        except pipes.EmptyPipeError:
            raise
        except Exception as error:
            raise ConfigurationError(f"cannot read {pipes.as_name(source.path)} as {source.format}: {error}") from error
    return InputSchema(columns, numbers or {})


def _refuse_unfit(source: Source) -> None:
    """Opens a file so that files of the wrong kind are refused before the run."""
    if source.format == "parquet":
        _columns_of(source)
        return
    with open_text(source):
        pass


def read_rows(source: Source, numbers: Mapping[str, type]) -> Iterator[Row | BrokenLine]:
    """The rows of a file, one by one; holds about a megabyte of a text file in memory, or a Parquet row group.

    Args:
        source: the file.
        numbers: the types of a CSV file's number columns. There an empty field is None, and a field that is no number
            remains text.
    """
    pipes.take(source.path)
    if source.format == "csv":
        return read_csv(source, numbers)
    return _read_jsonl(source) if source.format == "jsonl" else read_parquet(source)


def _columns_of(source: Source) -> tuple[str, ...]:
    if source.format == "parquet":
        with open_source(source) as file:
            return tuple(parquet_file(file).schema_arrow.names)
    if source.format == "csv":
        with open_text(source) as file:
            return tuple(CsvRecords(csv_lines(file), source.delimiter, source.path).header())
    for row in _read_jsonl(source):
        if isinstance(row, BrokenLine):
            raise ValueError(f"line {row.number}: {row.error}")
        return tuple(row)
    return ()


def _number_columns(source: Source) -> dict[str, type] | None:
    """The columns in which most of the first fields are numbers; a leading zero (a postcode) makes a column text.

    None if there are no rows to judge by.
    """
    sample = [row for row in islice(read_csv(source, {}), SAMPLED_ROWS) if isinstance(row, dict)]
    kinds: dict[str, type] = {}
    for name in sample[0] if sample else ():
        fields = [row[name] for row in sample if row[name].strip()]
        numbers = [field for field in fields if isinstance(number(int, field), int | float)]
        if len(numbers) * 2 > len(fields) and not any(map(_LEADING_ZERO.match, numbers)):
            kinds[name] = int if all(map(_INTEGER.fullmatch, numbers)) else float
    return kinds if sample else None


def _read_jsonl(source: Source) -> Iterator[Row | BrokenLine]:
    with open_text(source) as file:
        for number, line in enumerate(lines(file), 1):
            if line.isspace() or not line:
                continue
            try:
                row = _parsed(line.decode())
                if type(row) is not dict:
                    raise TypeError(f"a row must be a JSON object, not {type(row).__name__}")
                if line.count(b"[") + line.count(b"{") > _DEEPEST and _is_deep(row):
                    raise ValueError(f"the row has values within values, more than {_DEEPEST} deep")
            except UnicodeDecodeError as error:
                text = line.decode("utf-8", "backslashreplace")
                yield BrokenLine(text, source.path, number, not_utf8(error, source))
            except (ValueError, TypeError, RecursionError) as error:
                yield BrokenLine(line.decode(), source.path, number, error)
            else:
                yield row


def _is_deep(row: Row) -> bool:
    """Whether values are nested so deeply that pickling or writing them may overflow the stack."""
    level: list[Any] = [row]
    for _ in range(_DEEPEST):
        values = (value for one in level for value in (one.values() if isinstance(one, dict) else one))
        level = [value for value in values if isinstance(value, dict | list)]
    return bool(level)


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises for duplicate names: JSON's reader would silently drop the first value."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the object has {next(name for name in names if names.count(name) > 1)!r} twice")
    return fields


_parsed = json.JSONDecoder(object_pairs_hook=_unique_fields).decode
