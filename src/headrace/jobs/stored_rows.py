"""Reads the rows of part files in the order of the input, in whatever order and by however many bundles they came."""

from __future__ import annotations

import glob
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.ipc

from headrace.jobs import storage
from headrace.jobs.direct import RowGroup, group_of
from headrace.jobs.output_batches import lines_in
from headrace.jobs.parts import KINDS, RUNS
from headrace.jobs.row_ranges import RowRanges
from headrace.rows.blocks import place_at

_STREAMS_AT_ONCE = 4
_DISTINCT_MESSAGES = 100
_MESSAGE_CHARACTERS = 300


class _Stream(NamedTuple):
    """A stream of record batches in a part."""

    path: str
    offset: int
    starts: Any
    """Places of the first rows of its runs, in their order."""
    sizes: Any
    """How many rows each run has."""
    group: RowGroup | None = None
    """The row group that has them; None: the stream has."""


class StoredRows:
    """The rows of one kind in some parts.

    Args:
        streams: of the parts.
        low: the lowest place that counts.
        high: the place behind the last that counts.
        load: reads a stream.
    """

    def __init__(
        self, streams: Iterable[_Stream], low: int = 0, high: int = sys.maxsize, load: Callable[..., Any] | None = None
    ) -> None:
        self._streams = sorted(streams, key=lambda stream: int(stream.starts.min()))
        self._firsts = numpy.array([stream.starts.min() for stream in self._streams], numpy.int64)
        self._lasts = numpy.array([stream.starts.max() for stream in self._streams], numpy.int64)
        self._low, self._high = low, high
        self._load = load or lru_cache(_STREAMS_AT_ONCE)(_load)  # many small sources may be in one stream

    @classmethod
    def of_parts(cls, paths: Iterable[str]) -> StoredRows:
        """Those in part files."""
        return cls(chain.from_iterable(map(_streams_of, paths)))

    @classmethod
    def find(cls, folder: str, *, predictions: bool | None) -> StoredRows:
        """Those in the parts of a local folder."""
        return cls.of_parts(sorted(glob.glob(f"{glob.escape(folder)}/*.{KINDS[predictions]}")))

    def of(self, source: int) -> StoredRows:
        """Those of one source."""
        low, high = place_at(source, 0), place_at(source + 1, 0)
        near = numpy.flatnonzero((self._firsts < high) & (self._lasts >= low)).tolist()
        return StoredRows([self._streams[number] for number in near], low, high, self._load)

    @property
    def places(self) -> RowRanges:
        """Their places in the input."""
        starts, stops = self._runs()
        counts = (starts >= self._low) & (starts < self._high)  # a run is of one source
        return RowRanges(starts[counts], stops[counts])

    def whole_file(self) -> str | None:
        """The Parquet file that has all of them, and nothing else, in order; None if there is none."""
        groups = [one.group for one in self._streams]
        starts, stops = self._runs()
        if not groups or groups[0] is None or not (starts[1:] >= stops[:-1]).all():
            return None
        path = groups[0].path
        return path if groups == [RowGroup(path, number, True) for number in range(len(groups))] else None

    def tables(self, without: RowRanges | None = None) -> Iterator[Any]:
        """The rows as tables, in input order, each once and without those at some places; holds what overlaps."""
        held: list[tuple[Any, Any]] = []
        for stream, begin in zip(self._streams, self._firsts.tolist(), strict=True):
            yield from _taken(held, begin)
            places, table = self._load(stream.path, stream.offset)
            first, last = numpy.searchsorted(places, [self._low, self._high])
            places, table = places[first:last], table.slice(first, last - first)
            if without is not None and (outside := ~without.have(places)).any():
                places, table = places[outside], table.filter(pyarrow.array(outside))
            elif without is not None:
                continue
            held.append((places, table))
        yield from _taken(held, sys.maxsize)

    def _runs(self) -> tuple[Any, Any]:
        """Where the runs of all streams start and stop, in the order in which they are stored."""
        starts, sizes = (
            numpy.concatenate([numpy.empty(0, numpy.int64), *column])
            for column in ([one.starts for one in self._streams], [one.sizes for one in self._streams])
        )
        return starts, starts + sizes


class Messages:
    """Counts of dead letters by stage, error type and message.

    Beyond a limit the rarest messages are dropped, and counted from 0 if they come back. Counts are thus lower bounds;
    those of frequent messages are hardly affected.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, what: str, message: str) -> None:
        """Counts a message, cut to 300 characters; ``what`` is the stage and error type."""
        words = " ".join(message[: 2 * _MESSAGE_CHARACTERS].split())
        short = words if len(words) <= _MESSAGE_CHARACTERS else words[: _MESSAGE_CHARACTERS - 3] + "..."
        self._counts[f"{what}: {short}" if short else what] += 1
        if len(self._counts) > 2 * _DISTINCT_MESSAGES:
            self._counts = Counter(self.most_frequent())

    def most_frequent(self, number: int = _DISTINCT_MESSAGES) -> dict[str, int]:
        """The ``number`` most frequent messages with their counts, most frequent first."""
        return dict(self._counts.most_common(number))


class Counts(NamedTuple):
    """How many rows of each kind there are."""

    predictions: int
    dead_letters: dict[tuple[str, str], int]
    """By stage and error type."""
    messages: dict[str, int]
    """The most frequent ones of dead letters."""
    skipped: int

    @property
    def rows(self) -> int:
        """All."""
        return self.predictions + sum(self.dead_letters.values()) + self.skipped


class StoredOutput(NamedTuple):
    """The rows of all kinds; one that has several, since a runner repeated its bundle, is what comes first here."""

    good: StoredRows
    bad: StoredRows
    skipped: StoredRows

    @classmethod
    def of_parts(cls, paths: Sequence[str]) -> StoredOutput:
        """Those in part files."""
        return cls(*(StoredRows.of_parts(one for one in paths if one.endswith(f".{kind}")) for kind in KINDS.values()))

    @classmethod
    def find(cls, folder: str) -> StoredOutput:
        """Those in a local folder."""
        return cls.of_parts(sorted(glob.glob(f"{glob.escape(folder)}/*")))

    def of(self, source: int) -> StoredOutput:
        """Those of one source."""
        return StoredOutput(*(rows.of(source) for rows in self))

    @property
    def places(self) -> RowRanges:
        """The places of all rows."""
        return self.good.places | self.bad.places | self.skipped.places

    def counted(self, check: Callable[[], None]) -> Counts:
        """Counts the rows; ``check`` is called repeatedly, and may raise."""
        both = self.good.places | self.bad.places
        letters: Counter[tuple[str, str]] = Counter()
        messages = Messages()
        for table in self.tables(predictions=False):
            check()
            for letter in map(json.loads, lines_in(table) or ()):
                stage, error_type = letter["stage"], letter["error_type"]
                letters[stage, error_type] += 1
                messages.add(f"{stage} {error_type}", letter.get("message", ""))
        skipped = len(self.places) - len(both)
        return Counts(len(self.good.places), dict(letters), messages.most_frequent(), skipped)

    @property
    def letters(self) -> int:
        """How many dead letters there are."""
        good = self.good.places
        return len(good | self.bad.places) - len(good)

    def tables(self, *, predictions: bool) -> Iterator[Any]:
        """The rows of one kind."""
        if predictions:
            return self.good.tables()
        return self.bad.tables(self.good.places if self.letters < len(self.bad.places) else None)


def _taken(held: list[tuple[Any, Any]], stop: int) -> Iterator[Any]:
    """Takes the rows before a place out of sorted tables; gives them in order, those of one place once."""
    ends = [int(numpy.searchsorted(places, stop)) for places, _ in held]
    heads = [(places[:end], table.slice(0, end)) for (places, table), end in zip(held, ends, strict=True) if end]
    held[:] = [
        (places[end:], table.slice(end))
        for (places, table), end in zip(held, ends, strict=True)
        if end < len(places)
    ]  # fmt: skip
    if not heads:
        return
    sizes = [len(places) for places, _ in heads]
    places = numpy.concatenate([places for places, _ in heads])
    order = numpy.argsort(places, kind="stable")
    order = order[numpy.diff(places[order], prepend=-1) != 0]
    of_table = numpy.repeat(numpy.arange(len(heads)), sizes)[order]
    begins = numpy.cumsum(sizes) - sizes
    cuts = numpy.flatnonzero((numpy.diff(order) != 1) | (numpy.diff(of_table) != 0)) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(order)], strict=True):
        number = of_table[start]
        yield heads[number][1].slice(int(order[start] - begins[number]), end - start)


def _streams_of(path: str) -> Iterator[_Stream]:
    with _opened(path) as file:
        while True:
            offset = file.tell()
            try:
                stream = pyarrow.ipc.open_stream(file)
            except (pyarrow.ArrowInvalid, EOFError):  # no further stream
                return
            starts, sizes = _runs_of(stream.iter_batches_with_custom_metadata()).T
            yield _Stream(path, offset, starts, sizes, group_of(stream.schema))


def _load(path: str, offset: int) -> tuple[Any, Any]:
    """The rows of a stream, sorted, with their places; dictionaries decoded."""
    with _opened(path) as file:
        file.seek(offset)
        stream = pyarrow.ipc.open_stream(file)
        batches = list(stream.iter_batches_with_custom_metadata())
    starts, sizes = _runs_of(batches).T
    places = numpy.repeat(starts - (numpy.cumsum(sizes) - sizes), sizes) + numpy.arange(sizes.sum())
    group = group_of(stream.schema)
    table = pyarrow.Table.from_batches([one.batch for one in batches], stream.schema) if group is None else group.read()
    for number, field in enumerate(table.schema):
        if pyarrow.types.is_dictionary(field.type):
            plain = field.type.value_type
            table = table.set_column(number, field.with_type(plain), table.column(number).cast(plain))
    if (numpy.diff(places) > 0).all():
        return places, table
    order = numpy.argsort(places, kind="stable")
    return places[order], table.take(order)


def _runs_of(batches: Iterable[Any]) -> Any:
    """Places and numbers of rows of the runs of batches."""
    runs = chain.from_iterable(json.loads(one.custom_metadata[RUNS]) for one in batches)
    return numpy.array(list(runs), numpy.int64).reshape(-1, 2)


def _opened(path: str) -> Any:
    return storage.open_file(path) if storage.is_remote(path) else pyarrow.memory_map(path)
