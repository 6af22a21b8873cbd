"""A random sample of the input by strata of length, in files like those of the input, for a pilot."""

from __future__ import annotations

import codecs
import math
import os
import random
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any, BinaryIO, NamedTuple

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from headrace.core.errors import ConfigurationError
from headrace.jobs.files import Source, compression_of, known_size
from headrace.jobs.opening import create_compressed, open_source, positions
from headrace.jobs.pipes import is_pipe
from headrace.jobs.reading import parquet_file, rows_of_parquet, with_keys
from headrace.jobs.splits import Splits
from headrace.jobs.storage import is_remote
from headrace.rows.values import is_text

_BYTES = 1 << 25
"""How much of the input is read."""
_FILES = 64
"""From how many files rows are taken."""
_MOST_ROWS = 100_000
_STRATA = 16
_LONGEST = 1 << 20
_ROWS_AT_ONCE = 1 << 13


class _RowsOfFile(NamedTuple):
    """Rows of a file."""

    kind: tuple[Any, ...]
    """Rows of one kind can be in one file: format, delimiter, compression, and header or schema."""
    records: Any
    """A list, or an Arrow table."""
    rows: int
    """How many the file has in all."""
    is_exact: bool


class Sample:
    """Some rows of the input, or of its first ``limit``; each beginning has as many short and long ones as all.

    Raises:
        ConfigurationError: there are no rows, or they cannot be read twice.
    """

    def __init__(self, sources: Sequence[Source], drawn: random.Random, limit: int | None = None) -> None:
        if any(is_pipe(source.path) for source in sources):
            raise ConfigurationError("a quote reads the input before the run does: name files, no pipe.")
        for path in [source.path for source in sources if source.keys and source.format != "parquet"]:
            raise ConfigurationError(
                f"{path} is text in folders that give it columns, which a quote cannot sample; name one file."
            )
        if limit is not None and limit <= _MOST_ROWS:
            self.rows, self.is_exact, found = 0, True, []
            for source in sources:
                found.append(_found(source, 1.0, limit - self.rows))
                self.rows += found[-1].rows
                if self.rows == limit:
                    break
        else:
            found = self._everywhere(sources)
        self._kinds = [
            (kind, _in_strata([one.records for one in found if one.kind == kind], drawn))
            for kind in dict.fromkeys(one.kind for one in found)
        ]
        self.size = sum(len(records) for _, records in self._kinds)
        if not self.size:
            raise ConfigurationError("there are no rows in the input: nothing can be quoted.")

    def _everywhere(self, sources: Sequence[Source]) -> list[_RowsOfFile]:
        sizes = [known_size(source) or 0 for source in sources]
        chosen = sorted(range(len(sources)), key=lambda place: sizes[place])[:: math.ceil(len(sources) / _FILES)]
        share = min(1.0, _BYTES / max(1, sum(sizes[place] for place in chosen)))
        found = [_found(sources[place], share) for place in chosen]
        self.rows = sum(one.rows for one in found)
        """How many the input has."""
        self.is_exact = all(one.is_exact for one in found)
        """Whether they were counted, not estimated from bytes."""
        if len(chosen) < len(sources):
            self.is_exact = all(one.format == "parquet" and not is_remote(one.path) for one in sources)
            of_bytes = self.rows * sum(sizes) / max(1, sum(sizes[place] for place in chosen))
            self.rows = sum(map(rows_of_parquet, sources)) if self.is_exact else round(of_bytes)
        return found

    @property
    def is_of_files(self) -> bool:
        """Whether the rows are files."""
        return any(kind[0] == "files" for kind, _ in self._kinds)

    def times_within(self, most: int) -> int:
        """How often the sample can be written into so many bytes."""
        sizes = (rows.nbytes if kind[0] == "parquet" else sum(map(len, rows)) for kind, rows in self._kinds)
        return 1 if self.is_of_files else most // max(1, sum(sizes))

    def write(self, folder: str, times: int = 1, part: slice = slice(None)) -> list[str]:
        """Writes the sample, or a part of it, so many times; returns the files' paths."""
        paths: list[str] = []
        for number, (kind, records) in enumerate(self._kinds):
            if kind[0] == "files":
                paths += [file.path for file in records[part]]
                continue
            file_format, delimiter, compression, *_ = kind
            name = "tsv" if delimiter == "\t" else file_format
            paths.append(os.path.join(folder, f"sample-{number}.{name}{compression}"))
            if file_format == "parquet":
                some = records if part == slice(None) else records.take(list(range(len(records)))[part])
                with pyarrow.parquet.ParquetWriter(paths[-1], some.schema) as writer:
                    for _ in range(times):
                        writer.write_table(some, row_group_size=kind[-1])
                continue
            with create_compressed(paths[-1]) as file:
                file.write(kind[-1])
                for _ in range(times):
                    file.writelines(records[part])
        return paths


def _found(source: Source, share: float, limit: int | None = None) -> _RowsOfFile:
    """The rows of a file, evenly from such a share of it; only so many of the first."""
    if source.files:
        files = source.files[:limit]
        return _RowsOfFile(("files",), list(files), len(files), is_exact=True)
    try:
        return _of_parquet(source, share, limit) if source.format == "parquet" else _of_text(source, share, limit)
    except Exception as error:
        raise ConfigurationError(f"cannot read {source.path} as {source.format}: {error}") from error


def _of_parquet(source: Source, share: float, limit: int | None) -> _RowsOfFile:
    with open_source(source) as file:
        parquet = parquet_file(file)
        rows, groups = parquet.metadata.num_rows, parquet.num_row_groups
        group = math.ceil(rows / max(1, groups))
        left = math.ceil(share * rows)
        some = range(0, groups, max(1, rows // max(1, left)))
        if limit is not None:
            rows = left = min(rows, limit)
        batches, schema = [], parquet.schema_arrow
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, row_groups=list(some), use_threads=False):
            batches.append(with_keys(batch[:left], source.keys))
            left -= len(batches[-1])
            if not left:
                break
    table = pyarrow.Table.from_batches(batches, None if batches else schema)
    return _RowsOfFile(("parquet", "", "", str(table.schema), group), table, rows, is_exact=True)


def _of_text(source: Source, share: float, limit: int | None) -> _RowsOfFile:
    size = known_size(source)
    compression = os.path.splitext(source.path)[1] if compression_of(source.path) else ""
    with open_source(source) as file:
        records = _records(source, file)
        header = next(records, b"") if source.format == "csv" else b""
        kind = (source.format, source.delimiter, compression, header)
        if size is None or share == 1:
            some = list(islice(records, limit))
            return _RowsOfFile(kind, some, len(some), is_exact=True)
        parts = [part for _, one in Splits([source], _STRATA) if (part := one.part) is not None]
        if not parts:  # it can only be read from its beginning
            some = list(_up_to(records, share * size))
            read = positions[source.path].file.tell() if compression else sum(map(len, some))
            return _RowsOfFile(kind, some, round(len(some) * size / max(1, read)), is_exact=False)
        some = []
        for part in parts:
            file.seek(part.start)
            some += _up_to(_records(source, file), share * (part.stop - part.start))
    return _RowsOfFile(kind, some, sum(part.rows for part in parts), is_exact=True)


def _up_to(records: Iterator[bytes], size: float) -> Iterator[bytes]:
    while size > 0 and (record := next(records, None)) is not None:
        yield record
        size -= len(record)


def _records(source: Source, file: BinaryIO) -> Iterator[bytes]:
    """The records of a text as they are, with an end of line; without blank lines."""
    before = b""
    for line in iter(file.readline, b""):
        record = before + line.removeprefix(codecs.BOM_UTF8)
        if source.format == "csv" and record.count(b'"') % 2 and len(record) < _LONGEST:
            before = record
        else:
            before = b""
            if record.strip():
                yield record if record.endswith(b"\n") else record + b"\n"


def _in_strata(found: Sequence[Any], drawn: random.Random) -> Any:
    """The sampled records, ordered so that any prefix mixes short and long ones."""
    if isinstance(found[0], pyarrow.Table):
        table = pyarrow.concat_tables(found)
        return table.take(pyarrow.array(_order(_lengths_of(table), drawn), pyarrow.int64()))
    records = [record for some in found for record in some]
    lengths = [len(record) if isinstance(record, bytes) else record.size for record in records]
    return [records[place] for place in _order(lengths, drawn)]


def _order(lengths: Sequence[float], drawn: random.Random) -> Sequence[int]:
    """Places of a sample, systematic by length: in turn one of each of the strata, at random."""
    places = sorted(range(len(lengths)), key=lambda place: (lengths[place], drawn.random()))
    count = min(len(places), _MOST_ROWS)
    start = drawn.random()
    places = [places[int((number + start) * len(places) / count)] for number in range(count)]
    strata = [places[count * one // _STRATA : count * (one + 1) // _STRATA] for one in range(_STRATA)]
    for stratum in strata:
        drawn.shuffle(stratum)
    order: list[int] = []
    for turn in zip_longest(*strata):
        some = [place for place in turn if place is not None]
        drawn.shuffle(some)
        order += some
    return order


def _lengths_of(table: Any) -> Sequence[float]:
    """The bytes of the texts of each row."""
    binary = pyarrow.types.is_binary, pyarrow.types.is_large_binary, is_text
    columns = [column for column in table.columns if any(is_kind(column.type) for is_kind in binary)]
    lengths = (pyarrow.compute.binary_length(column).fill_null(0).to_numpy() for column in columns)
    return list(sum(lengths, numpy.zeros(len(table), numpy.int64)).tolist())
