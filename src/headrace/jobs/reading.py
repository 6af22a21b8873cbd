"""Reads files into blocks of rows, and infers columns and number types from the beginning of the input."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from headrace.core.errors import ConfigurationError
from headrace.jobs import pipes
from headrace.jobs.blocks import Block
from headrace.jobs.csv_blocks import read_csv_blocks
from headrace.jobs.csv_records import CsvRecords, csv_lines, number, read_csv
from headrace.jobs.files import Source, open_source
from headrace.jobs.input_share import InputShare
from headrace.jobs.json_blocks import read_json_blocks, read_json_records
from headrace.jobs.parquet_blocks import parquet_file, read_parquet
from headrace.jobs.row_ranges import RowRanges
from headrace.jobs.storage import is_remote
from headrace.jobs.text import open_text
from headrace.rows.records import BrokenLine, Record

SAMPLED_ROWS = 1000
"""How many rows to inspect to infer types for all."""
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
_LEADING_ZERO = re.compile(r"\s*[+-]?0\d")


class InputSchema(NamedTuple):
    """What the beginning of the input tells about all of it."""

    columns: tuple[str, ...]
    """From the header, the schema or the first row; empty if there are no rows."""
    numbers: dict[str, type]
    """The number columns of CSV files: int or float."""

    def numbers_without(self, text: Collection[str]) -> dict[str, type]:
        """The number columns, but for those that are to stay text."""
        return {name: kind for name, kind in self.numbers.items() if name not in text}


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


def read_blocks(
    source: Source,
    index: int,
    numbers: Mapping[str, type],
    done: RowRanges,
    names: tuple[str, ...] = (),
    *,
    share: InputShare | None = None,
) -> Iterator[Block]:
    """The blocks of a file, in order; holds about a megabyte of a text file in memory, or a Parquet row group.

    Args:
        source: the file.
        index: of the source, counted from 0.
        numbers: the types of a CSV file's number columns. There an empty field is None, and a field that is no number
            remains text.
        done: places of rows to leave out.
        names: the columns that the model sees, if it sees columns.
        share: follows how much of the input is read.
    """

    def is_done(start: int, stop: int) -> bool:
        return not any(done.missing(index, start, stop))

    return placed(_pieces_of(source, numbers, is_done), source, index, done, names, share=share)


def placed(
    pieces: Iterable[Any],
    source: Source,
    index: int,
    done: RowRanges,
    names: tuple[str, ...] = (),
    *,
    share: InputShare | None = None,
) -> Iterator[Block]:
    """Record batches and lists of records, one after the other, as blocks; a number stands for rows that are done."""
    first = 0
    for piece in pieces:
        if isinstance(piece, int):
            first += piece
            if share is not None:
                share.add(source.path, 0)
            continue
        if isinstance(piece, list):
            block = Block(index, first, names, records=piece, path=source.path)
        else:
            block = Block(index, first, names, piece, path=source.path)
        first += len(block)
        missing = list(done.missing(index, block.first, first))
        if share is not None:
            share.add(source.path, sum(stop - start for start, stop in missing))
        for start, stop in missing:
            yield block[start - block.first : stop - block.first]


def read_rows(source: Source, numbers: Mapping[str, type]) -> Iterator[Record]:
    """The rows of a file, one by one."""
    return (row for block in read_blocks(source, 0, numbers, RowRanges()) for row, _ in block.each())


def _pieces_of(source: Source, numbers: Mapping[str, type], is_done: Callable[[int, int], bool]) -> Iterator[Any]:
    pipes.take(source.path)
    if source.format == "csv":
        return read_csv_blocks(source, numbers)
    return read_json_blocks(source) if source.format == "jsonl" else read_parquet(source, is_done)


def _columns_of(source: Source) -> tuple[str, ...]:
    if source.format == "parquet":
        with open_source(source) as file:
            return tuple(parquet_file(file).schema_arrow.names)
    if source.format == "csv":
        with open_text(source) as file:
            return tuple(CsvRecords(csv_lines(file), source.delimiter, source.path).header())
    for row in read_json_records(source):
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
