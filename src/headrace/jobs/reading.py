"""Reads files into blocks of rows, and infers columns and their types from the beginning of the input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain, groupby, islice
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy
import pyarrow
import pyarrow.parquet

from headrace.core.errors import ConfigurationError
from headrace.jobs import pipes
from headrace.jobs.csv_blocks import read_csv_blocks
from headrace.jobs.csv_records import TEXT, CsvRecords, Quoted, types_of_sample, value_types
from headrace.jobs.files import Key, Part, Source
from headrace.jobs.json_lines import read_json_blocks
from headrace.jobs.opening import Position, open_source, open_text, positions
from headrace.jobs.storage import is_remote
from headrace.rows import files
from headrace.rows.blocks import (
    NUMBER_BITS,
    Block,
    BrokenLine,
    Record,
    Row,
    place_at,
    types_of_schema,
    types_of_values,
)
from headrace.rows.columns import Fit
from headrace.rows.values import array_of

SAMPLED_ROWS = 1000
"""How many rows to inspect to infer types for all."""
_SAMPLED_BYTES = 1 << 23
_FILES_AT_ONCE = 250
_CHUNK_BYTES = 1 << 20
_WHOLE = Part(0, sys.maxsize, is_last=True)
_ROWS = 1 << 16
_BYTES = 1 << 24
_SPARK = b"org.apache.spark.version"
"""Marks files of Spark. Their INT96 times are read as microseconds: as nanoseconds, years after 2262 would overflow."""


class RowRanges:
    """An immutable set of places of rows in the input; 16 bytes for each range of neighbours, which may overlap."""

    def __init__(self, starts: Any = (), stops: Any = ()) -> None:
        starts, stops = (numpy.asarray(ends, dtype=numpy.int64) for ends in (starts, stops))
        order = numpy.argsort(starts, kind="stable")
        starts, stops = starts[order], numpy.maximum.accumulate(stops[order])
        first = numpy.ones(len(starts), dtype=bool)
        first[1:] = starts[1:] > stops[:-1]
        last = numpy.roll(first, -1)
        self.starts, self.stops = starts[first], stops[last]

    def __len__(self) -> int:
        return int((self.stops - self.starts).sum())

    def __contains__(self, place: int) -> bool:
        return bool(self.have(place))

    def have(self, places: Any) -> Any:
        """For each of some places whether it is in the set."""
        before = numpy.searchsorted(self.starts, places, "right")
        return numpy.append(0, self.stops)[before] > places

    def rank(self, places: Any) -> Any:
        """How many places of the set come before each of some places."""
        sizes = self.stops - self.starts
        starts, sizes, ranks = (numpy.append(0, ends) for ends in (self.starts, sizes, numpy.cumsum(sizes) - sizes))
        found = numpy.searchsorted(self.starts, places, "right")
        return ranks[found] + numpy.minimum(places - starts[found], sizes[found])

    def __or__(self, other: RowRanges) -> RowRanges:
        return RowRanges(numpy.concatenate([self.starts, other.starts]), numpy.concatenate([self.stops, other.stops]))

    def missing(self, source: int, start: int = 0, stop: int = sys.maxsize) -> Iterator[tuple[int, int]]:
        """Ranges of row numbers of a source, between ``start`` and ``stop``, that are not in the set."""
        base = place_at(source, 0)
        end = base + min(stop, 1 << NUMBER_BITS)
        first, last = numpy.searchsorted(self.stops, base + start, "right"), numpy.searchsorted(self.starts, end)
        for there, gone in zip(self.starts[first:last].tolist(), self.stops[first:last].tolist(), strict=True):
            if start < there - base:
                yield start, there - base
            start = max(start, gone - base)
        if start < stop:
            yield start, stop

    def gaps(self) -> list[int]:
        """Starts of ranges that do not begin their source: rows before them are missing."""
        within = self.starts & ((1 << NUMBER_BITS) - 1) != 0
        return [int(place) for place in self.starts[within]]


NO_ROWS = RowRanges()


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
        return {**self.stated, **value_types(self.csv)}


def infer_schema(sources: Sequence[Source]) -> InputSchema:
    """Inspects the beginning of the input.

    Raises:
        ConfigurationError: it cannot be read; the message names the file and the reason. EmptyPipeError if a pipe had
            to be read and was empty.
    """
    if any(source.files for source in sources):
        return InputSchema(files.COLUMNS, {}, files.TYPES, (files.CONTENT,))
    columns, stated, sample = tuple[str, ...](), dict[str, str](), list[Row]()
    for source in sources:
        is_csv, is_at_hand = source.format == "csv", not (is_remote(source.path) or pipes.is_pipe(source.path))
        try:
            wanted = SAMPLED_ROWS - len(sample) if is_csv and (is_at_hand or not sample) else 0
            is_checked = is_at_hand and source.format == "parquet"
            if wanted or is_checked or not columns or not (is_csv or stated):
                names, types, rows = _head_of(source, wanted)
                columns, stated, sample = columns or names, stated or types, sample + rows
            elif is_at_hand:  # files of another kind are refused before the run
                with open_text(source):
                    pass
        except pipes.EmptyPipeError:
            raise
        except Exception as error:
            raise ConfigurationError(f"cannot read {pipes.as_name(source.path)} as {source.format}: {error}") from error
    keys = {key.name: key.type for source in sources for key in source.keys if key.name not in columns}
    has_semicolons = any(source.delimiter == ";" for source in sources)  # as where the comma is the decimal sign
    return InputSchema((*columns, *keys), types_of_sample(sample, commas=has_semicolons), {**keys, **stated})


def fits_columns(sources: Sequence[Source], types: Mapping[str, str], stated: Mapping[str, Any], fit: Fit) -> bool:
    """Whether a model can take the columns that it sees of files; of CSV with these types, of others as ``stated``.

    Dead letters and files are rows as they are; the rows of a pipe must not wait for others.
    """
    if not fit.names or not sources or any(one.letters or one.files or pipes.is_pipe(one.path) for one in sources):
        return False
    of_csv = {**dict.fromkeys(fit.names, TEXT), **value_types(types)}
    return all(fit.has_types(of_csv if one.format == "csv" else stated) for one in sources)


def _head_of(source: Source, rows_of_csv: int) -> tuple[tuple[str, ...], dict[str, str], list[Row]]:
    """The columns of a file, the types that it states (of a pipe none), and the first rows of CSV, as text."""
    if source.format == "parquet":
        with open_source(source) as file:
            schema = parquet_file(file).schema_arrow
        return tuple(schema.names), types_of_schema(schema), []
    if source.format == "csv":
        header, rows_of_text = _head_of_csv(source, rows_of_csv)
        return tuple(header), {}, rows_of_text
    rows = _rows_of(placed(read_json_blocks(source), source._replace(keys=()), 0))
    first = next(rows, {})
    if isinstance(first, BrokenLine):
        raise ValueError(f"line {first.number}: {first.error}")
    types: dict[str, str] = {}
    if not pipes.is_pipe(source.path):
        with suppress(Exception):  # the run says what is wrong behind the first line
            types = types_of_values(_sample_of(chain([first], rows)))
    return tuple(first), types, []


def _head_of_csv(source: Source, most: int) -> tuple[list[str], list[Row]]:
    """Fields in quotes are ``Quoted``, unless all are, as some programs write files."""
    with open_text(source) as lines:
        records = CsvRecords(lines, source.delimiter, source.path)
        header = records.header()
        names_are_quoted = all(islice(records.in_quotes(), len(header)))
        rows = _sample_of(records.sample(header), most) if most else []
    fields = (field for row in rows for field in row.values() if field is not None)
    if names_are_quoted and all(isinstance(field, Quoted) for field in fields):
        rows = [{name: field and str(field) for name, field in row.items()} for row in rows]
    return header, rows


def _sample_of(rows: Iterator[Record], most: int = SAMPLED_ROWS) -> list[Row]:
    """The first rows: fewer of long ones, such as vectors."""
    first = next(rows, None)
    some = chain([first], islice(rows, max(0, _SAMPLED_BYTES // len(repr(first)) - 1)))
    return [row for row in islice(some, most) if isinstance(row, dict)]


def read_blocks(
    source: Source,
    index: int = 0,
    types: Mapping[str, str] = MappingProxyType({}),
    done: RowRanges = NO_ROWS,
    names: tuple[str, ...] = (),
) -> Iterator[Block]:
    """The blocks of a file, in order; holds a few megabytes of a text file in memory, or of a Parquet row group.

    CSV's columns have these types, or text. Places that are ``done`` are left out; ``names`` are the columns that the
    model sees, if it sees columns.
    """
    first, rows, *_ = source.part or _WHOLE

    def is_done(start: int, stop: int) -> bool:
        return not any(done.missing(index, max(start, first), min(stop, first + rows)))

    return placed(_pieces_of(source, types, is_done), source, index, done, names)


def placed(
    pieces: Iterable[Any], source: Source, index: int, done: RowRanges = NO_ROWS, names: tuple[str, ...] = ()
) -> Iterator[Block]:
    """Record batches and lists of records, one after the other, as blocks; a number stands for rows that are done."""
    part = source.part or _WHOLE
    last = part.row + part.rows
    row = 0 if source.format == "parquet" else part.row  # of a part of text there are only its own pieces
    for piece in pieces:
        some = None if isinstance(piece, int) else with_keys(piece, source.keys)
        first, row = row, row + (piece if some is None else len(some))
        missing = [] if some is None else list(done.missing(index, max(first, part.row), min(row, last)))
        positions.setdefault(source.path, Position()).rows = row
        batch, records = (None, some) if isinstance(some, list) else (some, [])
        block = Block(index, first, names, batch, records, path=source.path)
        for start, stop in missing:
            yield block[start - first : stop - first]
    if source.part is not None and source.format in ("csv", "jsonl") and row != last:
        raise ValueError(f"the file has changed during the run: {row - part.row:,} rows are where {part.rows:,} were")


def with_keys(piece: Any, keys: tuple[Key, ...]) -> Any:
    """Rows with the columns of the folders of their file, unless they have such a column."""
    if isinstance(piece, list):
        of_folders = {name: value for name, value, _ in keys}
        return [_row_with(row, of_folders) for row in piece] if keys else piece
    for name, value, kind in keys:
        if name not in piece.schema.names:
            (one,) = array_of([value], pyarrow.int64() if kind == "int" else pyarrow.string())
            piece = piece.append_column(name, pyarrow.repeat(one, piece.num_rows))
    return piece


def _row_with(row: Record, of_folders: Row) -> Record:
    if isinstance(row, BrokenLine):
        return row._replace(read_as=row.read_as and {**row.read_as, "keys": of_folders})
    return {**row, **{name: value for name, value in of_folders.items() if name not in row}}


def read_rows(source: Source, types: Mapping[str, str] = MappingProxyType({})) -> Iterator[Record]:
    """The rows of a file, one by one."""
    return _rows_of(read_blocks(source, types=types))


def _rows_of(blocks: Iterable[Block]) -> Iterator[Record]:
    return (row for block in blocks for row, _ in block.each())


def _pieces_of(source: Source, types: Mapping[str, str], is_done: Callable[[int, int], bool]) -> Iterator[Any]:
    if source.files:
        return _list_files(source)
    pipes.take(source.path)
    if source.format == "csv":
        return read_csv_blocks(source, types)
    return read_json_blocks(source) if source.format == "jsonl" else read_parquet(source, is_done)


def _list_files(source: Source) -> Iterator[Any]:
    position = positions[source.path] = Position(read=len(source.files))
    for start in range(0, len(source.files), _FILES_AT_ONCE):
        some = source.files[start : start + _FILES_AT_ONCE]
        position.done += len(some)
        yield [files.record_of_file(*file) for file in some]


def read_parquet(source: Source, is_done: Callable[[int, int], bool]) -> Iterator[Any]:
    """Record batches; a number stands for that many rows of row groups that are done, from one number up to another."""
    with open_source(source) as file:
        parquet = parquet_file(file)
        position = positions[source.path] = Position(read=parquet.metadata.num_rows)
        groups = [parquet.metadata.row_group(index) for index in range(parquet.num_row_groups)]
        ends = [0, *accumulate(group.num_rows for group in groups)]
        row_bytes = sum(group.total_byte_size for group in groups) / max(1, ends[-1])
        size = max(1, min(_ROWS, int(_BYTES / max(1.0, row_bytes))))
        for are_done, some in groupby(range(len(groups)), lambda index: is_done(ends[index], ends[index + 1])):
            indexes = list(some)
            if are_done:
                rows = ends[indexes[-1] + 1] - ends[indexes[0]]
                position.done += rows
                yield rows
                continue
            for batch in parquet.iter_batches(size, row_groups=indexes, use_threads=False):
                position.done += len(batch)
                yield batch


def rows_of_parquet(source: Source) -> int:
    """How many rows a Parquet file has."""
    with open_source(source) as file:
        return int(parquet_file(file).metadata.num_rows)


def parquet_file(file: BinaryIO) -> Any:
    """Opens a Parquet file to read row groups in pieces: pre-buffered ones would stay in memory until the end.

    Raises:
        ValueError: two columns have the same name; a row would lose one of them.
    """
    options: dict[str, Any] = {"buffer_size": _CHUNK_BYTES, "pre_buffer": False}
    parquet = pyarrow.parquet.ParquetFile(file, **options)
    if _SPARK in (parquet.metadata.metadata or {}):
        parquet = pyarrow.parquet.ParquetFile(
            file, metadata=parquet.metadata, coerce_int96_timestamp_unit="us", **options
        )
    names = parquet.schema_arrow.names
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"two columns have the name {twice[0]!r}, and a row can have one; rename one of them, in Python with "
            "pyarrow.Table.rename_columns."
        )
    return parquet
