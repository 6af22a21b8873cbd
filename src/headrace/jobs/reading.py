"""Reads files into blocks of rows, and infers columns and their types from the beginning of the input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

import pyarrow

from headrace.core.errors import ConfigurationError
from headrace.jobs import pipes
from headrace.jobs.arrays import array_of
from headrace.jobs.csv_blocks import read_csv_blocks
from headrace.jobs.csv_records import CsvRecords, csv_lines
from headrace.jobs.csv_types import Quoted, types_of_sample
from headrace.jobs.files import Part, Source, open_source
from headrace.jobs.input_share import InputShare
from headrace.jobs.json_blocks import read_json_blocks, read_json_records
from headrace.jobs.neighbours import noting_neighbours
from headrace.jobs.parquet_blocks import parquet_file, read_parquet
from headrace.jobs.partitions import Key
from headrace.jobs.position import Position, positions
from headrace.jobs.row_ranges import RowRanges
from headrace.jobs.storage import is_remote
from headrace.jobs.text import open_text
from headrace.rows import files
from headrace.rows.blocks import Block
from headrace.rows.records import BrokenLine, Record, Row
from headrace.rows.types import types_of_schema, types_of_values

SAMPLED_ROWS = 1000
"""How many rows to inspect to infer types for all."""
_SAMPLED_BYTES = 1 << 23
_FILES_AT_ONCE = 250


class InputSchema(NamedTuple):
    """What the beginning of the input tells about all of it."""

    columns: tuple[str, ...]
    """From the header, the schema or the first row; empty if there are no rows."""
    csv: Mapping[str, str]
    """The types of the columns of CSV files, which state none; empty if no CSV file has rows."""
    stated: Mapping[str, str]
    """The types that Parquet files and JSON lines state."""
    content: tuple[str, ...] = ()
    """The column of the contents, if the rows are files: read only on request."""

    @property
    def types(self) -> dict[str, str]:
        """The columns' types."""
        return {**self.stated, **self.csv}


def infer_schema(sources: Sequence[Source]) -> InputSchema:
    """Inspects the beginning of the input.

    Raises:
        ConfigurationError: it cannot be read; the message names the file and the reason. EmptyPipeError if a pipe had
            to be read and was empty.
    """
    if any(source.files for source in sources):
        return InputSchema(files.COLUMNS, {}, files.TYPES, (files.CONTENT,))
    columns: tuple[str, ...] = ()
    sample: list[Row] = []
    stated: dict[str, str] = {}
    for source in sources:
        is_at_hand = not is_remote(source.path) and not pipes.is_pipe(source.path)
        try:
            columns = columns or _columns_of(source)
            if source.format != "csv":
                stated = stated or _stated_types(source)
            elif not sample or (is_at_hand and len(sample) < SAMPLED_ROWS):
                sample += _sample_of_csv(source, SAMPLED_ROWS - len(sample))
            if is_at_hand:
                _refuse_unfit(source)
        except pipes.EmptyPipeError:
            raise
        except Exception as error:
            raise ConfigurationError(f"cannot read {pipes.as_name(source.path)} as {source.format}: {error}") from error
    keys = {key.name: key.type for source in sources for key in source.keys if key.name not in columns}
    return InputSchema((*columns, *keys), types_of_sample(sample), {**keys, **stated})


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
    types: Mapping[str, str],
    done: RowRanges,
    names: tuple[str, ...] = (),
    *,
    share: InputShare | None = None,
) -> Iterator[Block]:
    """The blocks of a file, in order; holds about a megabyte of a text file in memory, or a Parquet row group.

    Args:
        source: the file.
        index: of the source, counted from 0.
        types: of a CSV file's columns, but for those of text.
        done: places of rows to leave out.
        names: the columns that the model sees, if it sees columns.
        share: follows how much of the input is read.
    """
    first, last = (source.part.row, sum(source.part[:2])) if source.part is not None else (0, sys.maxsize)

    def is_done(start: int, stop: int) -> bool:
        return not any(done.missing(index, max(start, first), min(stop, last)))

    pieces = _pieces_of(source, types, is_done)
    if source.part is not None:
        pieces = (_rows_of_group if source.format == "parquet" else _rows_of_text)(pieces, source.part)
    pieces = pieces if pipes.is_pipe(source.path) else noting_neighbours(pieces)
    pieces = _with_keys(pieces, source.keys) if source.keys else pieces
    return placed(pieces, source, index, done, names, share=share)


def _rows_of_text(pieces: Iterable[Any], part: Part) -> Iterator[Any]:
    """The pieces of a part; numbers stand for the rows around it."""
    yield part.row
    rows = 0
    for piece in pieces:
        rows += len(piece)
        yield piece
    if rows != part.rows:
        raise ValueError(f"the file has changed during the run: {rows:,} rows are where {part.rows:,} were")
    if not part.is_last:
        yield 0


def _rows_of_group(pieces: Iterable[Any], part: Part) -> Iterator[Any]:
    """As ``_rows_of_text``, of pieces that begin with the file and go on behind the part."""
    before, left = part.row, part.rows
    for piece in pieces:
        size = piece if isinstance(piece, int) else len(piece)
        skipped = min(before, size)
        some = min(size - skipped, left)
        yield skipped
        yield some if isinstance(piece, int) else piece.slice(skipped, some)
        before, left = before - skipped, left - some
        if not left:
            return


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


def _with_keys(pieces: Iterable[Any], keys: tuple[Key, ...]) -> Iterator[Any]:
    """The pieces of a file, as for ``placed``, with the columns of its folders, unless the file has such a column."""
    for piece in pieces:
        if isinstance(piece, int):
            yield piece
        else:
            yield [_row_with(row, keys) for row in piece] if isinstance(piece, list) else _batch_with(piece, keys)


def _row_with(row: Record, keys: tuple[Key, ...]) -> Record:
    of_folders = {name: value for name, value, _ in keys}
    if isinstance(row, BrokenLine):
        return row._replace(read_as=row.read_as and {**row.read_as, "keys": of_folders})
    return {**row, **{name: value for name, value in of_folders.items() if name not in row}}


def _batch_with(batch: Any, keys: tuple[Key, ...]) -> Any:
    fields, columns = list(batch.schema), list(batch.columns)
    for name, value, kind in keys:
        if name not in batch.schema.names:
            values = array_of([value], pyarrow.int64() if kind == "int" else pyarrow.string())
            fields.append(pyarrow.field(name, values.type))
            columns.append(pyarrow.repeat(values[0], batch.num_rows))
    return pyarrow.RecordBatch.from_arrays(columns, schema=pyarrow.schema(fields, metadata=batch.schema.metadata))


def read_rows(source: Source, types: Mapping[str, str]) -> Iterator[Record]:
    """The rows of a file, one by one."""
    return (row for block in read_blocks(source, 0, types, RowRanges()) for row, _ in block.each())


def _pieces_of(source: Source, types: Mapping[str, str], is_done: Callable[[int, int], bool]) -> Iterator[Any]:
    if source.files:
        return _list_files(source)
    pipes.take(source.path)
    if source.format == "csv":
        return read_csv_blocks(source, types)
    return read_json_blocks(source) if source.format == "jsonl" else read_parquet(source, is_done)


def _list_files(source: Source) -> Iterator[Any]:
    """A row for each file."""
    position = positions[source.path] = Position(rows=len(source.files))
    for start in range(0, len(source.files), _FILES_AT_ONCE):
        some = source.files[start : start + _FILES_AT_ONCE]
        position.rows_done += len(some)
        yield [files.record_of_file(*file) for file in some]


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


def _sample_of_csv(source: Source, most: int) -> list[Row]:
    """The first rows as text; fields in quotes are ``Quoted``, unless all are, as some programs write files."""
    with open_text(source) as file:
        records = CsvRecords(csv_lines(file), source.delimiter, source.path)
        header = records.header()
        names_are_quoted = all(islice(records.in_quotes(), len(header)))
        rows = _sample_of(records.sample(header), most)
    fields = (field for row in rows for field in row.values() if field is not None)
    if names_are_quoted and all(isinstance(field, Quoted) for field in fields):
        return [{name: field and str(field) for name, field in row.items()} for row in rows]
    return rows


def _sample_of(rows: Iterator[Record], most: int = SAMPLED_ROWS) -> list[Row]:
    """The first rows: fewer of long ones, such as vectors."""
    first = next(rows, None)
    some = chain([first], islice(rows, max(0, _SAMPLED_BYTES // len(repr(first)) - 1)))
    return [row for row in islice(some, most) if isinstance(row, dict)]


def _stated_types(source: Source) -> dict[str, str]:
    """The types of the columns of a Parquet file, or of the values in the first JSON lines; of a pipe none."""
    if source.format == "parquet":
        with open_source(source) as file:
            return types_of_schema(parquet_file(file).schema_arrow)
    if pipes.is_pipe(source.path):
        return {}
    with suppress(Exception):  # the run says what is wrong behind the first line
        return types_of_values(_sample_of(read_json_records(source)))
    return {}
