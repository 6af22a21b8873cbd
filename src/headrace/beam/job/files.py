"""Rows from files and back: matching, reading, and parts that become the output only when all of them are there."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from headrace.beam.job.rows import BrokenLine, Row
from headrace.core.errors import ConfigurationError

_CHUNK_BYTES = 1 << 20
SAMPLED_ROWS = 1000
"""Of so many first rows all are looked at, to tell what the others are like."""
_PARQUET_ROWS = 1024
_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_DECOMPRESS = {CompressionTypes.GZIP: gzip.open, CompressionTypes.BZIP2: bz2.open, CompressionTypes.LZMA: lzma.open}
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
_LEADING_ZERO = re.compile(r"\s*[+-]?0\d")


class Source(NamedTuple):
    """A file of rows."""

    path: str
    format: str
    """``jsonl``, ``csv`` or ``parquet``."""
    delimiter: str = ","
    """Between the fields of a CSV file."""
    letters: bool = False
    """Whether its rows are dead letters, and the rows in those are meant."""


class Head(NamedTuple):
    """What the beginning of the input says about all of it."""

    columns: tuple[str, ...]
    """Of the header, the schema or the first row; empty where there are no rows."""
    numbers: dict[str, type]
    """Which columns of CSV files hold numbers: int or float."""


def match(patterns: Sequence[str], file_format: str | None = None, delimiter: str | None = None) -> tuple[Source, ...]:
    """The files that paths and globs name, each once; those of one glob sorted.

    Args:
        patterns: local, or of any filesystem that Beam knows; ``*`` stays within a folder, ``**`` does not.
        file_format: of all files; by default each one's extension tells.
        delimiter: of CSV files; by default a comma, or a tab where the extension is ``.tsv``.

    Raises:
        ConfigurationError: a pattern matches nothing, or the format of a file is not known.
    """
    paths = dict.fromkeys(path for pattern in patterns for path in _matching(pattern))
    return tuple(
        Source(path, file_format or _format_of(path), delimiter or ("\t" if ".tsv" in _extensions(path) else ","))
        for path in paths
    )


def absolute(path: str) -> str:
    """A local path made absolute, since workers may run elsewhere; a URI as it is."""
    path = path.removeprefix("file://")
    return path if "://" in path else os.path.abspath(path)


def stamp(path: str) -> tuple[int, float]:
    """What changes when a file does: its size in bytes, and when it was changed, in seconds.

    Raises:
        OSError: there is no such file.
    """
    if "://" not in path:
        status = os.stat(path)
        return status.st_size, status.st_mtime
    found = FileSystems.match([path])[0].metadata_list
    if not found:
        raise FileNotFoundError(path)
    return found[0].size_in_bytes, found[0].last_updated_in_seconds


def output_format(path: str, option: str = "--output") -> str:
    """``jsonl`` or ``parquet``, by the extension of the ``path`` that the option names.

    Raises:
        ConfigurationError: it is neither.
    """
    extension, *compression = _extensions(path) or [""]
    kind = _FORMATS.get(extension)
    if kind not in ("jsonl", "parquet") or (kind == "parquet" and compression):
        raise ConfigurationError(f"{option} must end in .jsonl (or .jsonl.gz) or .parquet, not {path!r}.")
    return kind


def dead_letters_path(output: str) -> str:
    """Where the dead letters of an output go: beside it."""
    folder, name = FileSystems.split(output)
    stem = name[: len(name) - len("".join(_extensions(name)))]
    return str(FileSystems.join(folder, f"{stem}.dead-letters.jsonl"))


def peek(sources: Iterable[Source]) -> Head:
    """Looks at the beginning of the input.

    Raises:
        ConfigurationError: it cannot be read; the message says which file and why.
    """
    columns: tuple[str, ...] = ()
    numbers: dict[str, type] | None = None
    for source in sources:
        try:
            columns = columns or _columns_of(source)
            if source.format == "csv" and numbers is None:
                numbers = _number_columns(source)
        except Exception as error:
            raise ConfigurationError(f"cannot read {source.path} as {source.format}: {error}") from error
        if columns and numbers is not None:
            break
    return Head(columns, numbers or {})


def read_rows(source: Source, numbers: Mapping[str, type]) -> Iterator[Row | BrokenLine]:
    """The rows of a file, one by one; memory holds about a megabyte of a text file, one row group of a Parquet file.

    Args:
        source: the file.
        numbers: which columns of a CSV file are numbers. An empty field of theirs is None, and one that is no number
            stays the text that it is.
    """
    if source.format == "csv":
        return _read_csv(source, numbers)
    return _read_jsonl(source) if source.format == "jsonl" else _read_parquet(source)


def lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines without their ends; not the file's own iteration, which not every filesystem's files have."""
    rest = b""
    while chunk := file.read(_CHUNK_BYTES):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        yield from lines
    if rest:
        yield rest


def _matching(pattern: str) -> list[str]:
    path = absolute(pattern)
    if os.path.isdir(path):
        raise ConfigurationError(f"{pattern} is a folder; name its files, for example '{pattern.rstrip('/')}/*.jsonl'.")
    if os.path.exists(path):  # also a file whose name looks like a glob
        return [path]
    try:
        found = sorted(metadata.path for metadata in FileSystems.match([path])[0].metadata_list)
    except (BeamIOError, ValueError) as error:
        raise ConfigurationError(f"cannot look for {pattern}: {error}") from error
    if not found:
        is_glob = any(character in pattern for character in "*?[")
        raise ConfigurationError(f"no file matches {pattern!r}." if is_glob else f"there is no file {pattern!r}.")
    return found


def _extensions(path: str) -> list[str]:
    """The extensions that mean something: of the format, and of the compression."""
    stem, last = os.path.splitext(path)
    if CompressionTypes.detect_compression_type(path) == CompressionTypes.UNCOMPRESSED:
        return [last.lower()] if last else []
    return [os.path.splitext(stem)[1].lower(), last.lower()]


def _format_of(path: str) -> str:
    for extension in _extensions(path)[:1]:
        if extension in _FORMATS:
            return _FORMATS[extension]
    raise ConfigurationError(f"the extension of {path!r} tells no format; add --format jsonl, csv or parquet.")


def _columns_of(source: Source) -> tuple[str, ...]:
    if source.format == "parquet":
        with open_source(source) as file:
            return tuple(parquet_file(file).schema_arrow.names)
    if source.format == "csv":
        with open_source(source) as file:
            return tuple(csv_reader(source, file, [""])[1] or ())
    for row in _read_jsonl(source):
        if isinstance(row, BrokenLine):
            raise ValueError(f"line {row.number}: {row.error}")
        return tuple(row)
    return ()


def _number_columns(source: Source) -> dict[str, type] | None:
    """The columns of whose first fields most are numbers; but a leading zero (a postcode) makes a column text.

    None where there are no rows to tell.
    """
    sample = [row for row in islice(_read_csv(source, {}), SAMPLED_ROWS) if isinstance(row, dict)]
    kinds: dict[str, type] = {}
    for name in sample[0] if sample else ():
        fields = [row[name] for row in sample if row[name].strip()]
        numbers = [field for field in fields if isinstance(_number(int, field), int | float)]
        if len(numbers) * 2 > len(fields) and not any(map(_LEADING_ZERO.match, numbers)):
            kinds[name] = int if all(map(_INTEGER.fullmatch, numbers)) else float
    return kinds if sample else None


def _number(kind: type, field: str) -> int | float | str | None:
    """A field of a column of numbers."""
    if "_" not in field:  # which Python takes for part of a number
        for attempt in (kind, float):
            try:
                number: int | float = attempt(field)
            except ValueError:
                continue
            return number
    return field if field.strip() else None


@contextmanager
def open_source(source: Source) -> Iterator[BinaryIO]:
    """The file, uncompressed. Beam takes a compressed file that breaks off for one that ends there; Python does not."""
    compression = CompressionTypes.detect_compression_type(source.path)
    decompress: Any = _DECOMPRESS.get(compression)
    if decompress is None:
        with FileSystems.open(source.path) as file:
            yield file
        return
    raw = FileSystems.open(source.path, compression_type=CompressionTypes.UNCOMPRESSED)
    with raw, decompress(raw) as uncompressed:
        yield uncompressed


def _read_jsonl(source: Source) -> Iterator[Row | BrokenLine]:
    with open_source(source) as file:
        for number, line in enumerate(lines(file), 1):
            if line.isspace() or not line:
                continue
            try:
                row = json.loads(line)
                if type(row) is not dict:
                    raise TypeError(f"a row must be a JSON object, not {type(row).__name__}")
            except (ValueError, TypeError, RecursionError) as error:
                yield BrokenLine(line.decode("utf-8", "backslashreplace"), source.path, number, error)
            else:
                yield row


def _read_csv(source: Source, numbers: Mapping[str, type]) -> Iterator[Row | BrokenLine]:
    last_line = [""]
    with open_source(source) as file:
        reader, header = csv_reader(source, file, last_line)
        yield from csv_rows(source, reader, header, numbers, last_line)


def csv_rows(
    source: Source, reader: Any, header: list[str], numbers: Mapping[str, type], last_line: list[str]
) -> Iterator[Row | BrokenLine]:
    """The rows of what a reader reads; ``last_line`` has the last line that it has read."""
    kinds = [numbers.get(name, str) for name in header]
    for fields in _records(reader):
        if len(fields) == len(header):
            yield dict(zip(header, _values(kinds, fields, last_line[0]), strict=True))
        elif fields:
            yield _broken(fields, len(header), last_line[0], source.path, reader.line_num)


def _values(kinds: list[type], fields: list[str], line: str) -> list[Any]:
    if "_" not in line:
        try:
            return [kind(field) for kind, field in zip(kinds, fields, strict=True)]
        except ValueError:
            pass
    return [field if kind is str else _number(kind, field) for kind, field in zip(kinds, fields, strict=True)]


def _broken(fields: list[Any], expected: int, line: str, path: str, number: int) -> BrokenLine:
    error = fields[0]
    if not isinstance(error, csv.Error):
        error = ValueError(f"the line has {len(fields)} fields, the header {expected}")
    return BrokenLine(line.rstrip("\r\n"), path, number, error)


def csv_reader(source: Source, file: BinaryIO, last_line: list[str]) -> tuple[Any, list[str]]:
    """A reader that stands behind the header, and the header (none: an empty file)."""
    reader = csv.reader(_csv_lines(file, last_line), delimiter=source.delimiter)
    return reader, csv_header(reader)


def csv_header(reader: Any) -> list[str]:
    """The names of the columns, that come first; none of an empty file.

    Raises:
        ValueError: a name is there twice.
    """
    header: list[str] = next(reader, [])
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ValueError(f"the header has {', '.join(map(repr, twice))} twice")
    return header


def _csv_lines(file: BinaryIO, last_line: list[str]) -> Iterator[str]:
    """Lines as text; bytes that are not UTF-8 stay visible, so that one of them spoils its field, not the file."""
    for number, line in enumerate(lines(file)):
        text = line.decode("utf-8" if number else "utf-8-sig", "backslashreplace") + "\n"
        last_line[0] = text
        yield text


def _records(reader: Any) -> Iterator[list[Any]]:
    """The reader's records; an exception alone in place of each that it cannot read."""
    while True:
        try:
            yield from reader
            return
        except csv.Error as error:
            yield [error]


def _read_parquet(source: Source) -> Iterator[Row | BrokenLine]:
    with open_source(source) as file:
        for batch in parquet_file(file).iter_batches(batch_size=_PARQUET_ROWS, use_threads=False):
            yield from batch.to_pylist()


def parquet_file(file: BinaryIO) -> Any:
    """An open file as Parquet, of which a row group is read bit by bit: buffered before, they stay until the end."""
    import pyarrow.parquet  # noqa: PLC0415 - only where there is a Parquet file

    return pyarrow.parquet.ParquetFile(file, buffer_size=_CHUNK_BYTES, pre_buffer=False)
