"""Reads the rows of part files in the order of the input, in whatever order and by however many bundles they came."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from glob import escape
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.ipc

from headrace.jobs import storage
from headrace.jobs.job import Report
from headrace.jobs.output_batches import lines_in
from headrace.jobs.parquet_tables import RowGroup
from headrace.jobs.parts import KINDS
from headrace.jobs.reading import RowRanges
from headrace.rows.blocks import place_at
from headrace.rows.values import numbers_as_array, numbers_of

_CHUNKS_AT_ONCE = 4
_DISTINCT_MESSAGES = 100
_MESSAGE_CHARACTERS = 300


class _StoredChunk(NamedTuple):
    """A chunk of a part."""

    path: str
    offset: int
    rows: RowRanges
    """The places of its rows."""
    in_order: bool
    """Whether they are stored in that order, each once."""
    group: RowGroup | None
    """The row group that has them; None: the chunk has."""


class StoredRows:
    """The rows of one kind in some parts, from the place ``low`` up to ``high``; ``load`` reads a chunk."""

    def __init__(
        self,
        chunks: Iterable[_StoredChunk],
        low: int = 0,
        high: int = sys.maxsize,
        load: Callable[..., Any] | None = None,
    ) -> None:
        self._chunks = sorted(chunks, key=lambda chunk: int(chunk.rows.starts[0]))
        self._low, self._high = low, high
        self._load = load or lru_cache(_CHUNKS_AT_ONCE)(_load)  # many small sources may be in one chunk
        ends = [(one.rows.starts, one.rows.stops) for one in self._chunks]
        starts, stops = numpy.concatenate([numpy.empty((2, 0), numpy.int64), *ends], axis=1)
        counts = (starts >= low) & (starts < high)  # a range is of one source
        self.places = RowRanges(starts[counts], stops[counts])
        """Where they are in the input."""

    def of(self, source: int) -> StoredRows:
        """Those of one source."""
        low, high = place_at(source, 0), place_at(source + 1, 0)
        near = [one for one in self._chunks if one.rows.starts[0] < high and one.rows.stops[-1] > low]
        return StoredRows(near, low, high, self._load)

    def whole_file(self) -> str | None:
        """The Parquet file that has all of them, and nothing else, in order; None if there is none."""
        groups = [one.group for one in self._chunks if one.group is not None]
        ends = [end for one in self._chunks for end in (one.rows.starts[0], one.rows.stops[-1])]
        are_in_order = ends == sorted(ends) and all(one.in_order for one in self._chunks)
        if not groups or len(groups) < len(self._chunks) or not are_in_order:
            return None
        path = groups[0].path
        return path if groups == [RowGroup(path, number) for number in range(len(groups))] else None

    def pieces(self, without: RowRanges | None = None) -> Iterator[tuple[Any, Any]]:
        """The rows in input order, but for some places, as tables with their places, each row once."""
        held: list[tuple[Any, Any]] = []
        for chunk in self._chunks:
            yield from _taken(held, int(chunk.rows.starts[0]))
            places, table = self._load(chunk)
            first, last = numpy.searchsorted(places, [self._low, self._high])
            places, table = places[first:last], table.slice(first, last - first)
            if without is not None:
                outside = ~without.have(places)
                places, table = places[outside], table.filter(numbers_as_array(outside))
            held.append((places, table))
        yield from _taken(held, sys.maxsize)

    def tables(self) -> Iterator[Any]:
        """The rows in input order, each once."""
        return (table for _, table in self.pieces())


class StoredOutput(NamedTuple):
    """The rows of all kinds; one that has several, since a runner repeated its bundle, is what comes first here."""

    good: StoredRows
    bad: StoredRows
    skipped: StoredRows

    @classmethod
    def find(cls, folder: str) -> StoredOutput:
        """Those of the parts in a folder."""
        paths = [file.path for file in storage.match(storage.join(escape(folder), "*"))]
        parts = [[path for path in paths if path.endswith(f".{kind}")] for kind in KINDS]
        return cls(*(StoredRows(chain.from_iterable(map(_chunks_of, some))) for some in parts))

    def of(self, source: int | None) -> StoredOutput:
        """Those of one source; None: of all."""
        return self if source is None else StoredOutput(*(rows.of(source) for rows in self))

    @property
    def places(self) -> RowRanges:
        """The places of all rows."""
        return self.good.places | self.bad.places | self.skipped.places

    @property
    def letters(self) -> int:
        """How many dead letters there are."""
        return len(self.good.places | self.bad.places) - len(self.good.places)

    def pieces_of_letters(self) -> Iterator[tuple[Any, Any]]:
        """The dead letters as tables of lines, with their places."""
        return self.bad.pieces(self.good.places if self.letters < len(self.bad.places) else None)

    def counted(self, check: Callable[[], None]) -> Report:
        """Counts the rows; ``check`` is called repeatedly, and may raise.

        Of messages, beyond a limit, the rarest are dropped, and counted from 0 if they come back.
        """
        letters: Counter[tuple[str, str]] = Counter()
        messages: Counter[str] = Counter()
        for _, table in self.pieces_of_letters():
            check()
            for letter in map(json.loads, lines_in(table) or ()):
                stage, error_type = letter["stage"], letter["error_type"]
                letters[stage, error_type] += 1
                message = _short(letter.get("message", ""))
                messages[f"{stage} {error_type}: {message}" if message else f"{stage} {error_type}"] += 1
                if len(messages) > 2 * _DISTINCT_MESSAGES:
                    messages = Counter(dict(messages.most_common(_DISTINCT_MESSAGES)))
        skipped = len(self.places) - len(self.good.places) - self.letters
        most_frequent = dict(messages.most_common(_DISTINCT_MESSAGES))
        return Report(len(self.good.places), dict(letters), messages=most_frequent, skipped=skipped)


def _short(message: str) -> str:
    words = " ".join(message[: 2 * _MESSAGE_CHARACTERS].split())
    return words if len(words) <= _MESSAGE_CHARACTERS else words[: _MESSAGE_CHARACTERS - 3] + "..."


def _taken(held: list[tuple[Any, Any]], stop: int) -> Iterator[tuple[Any, Any]]:
    """Takes the rows before a place out of sorted tables; gives them in order, those of one place once."""
    heads = []
    for number, (places, table) in enumerate(held):
        end = int(numpy.searchsorted(places, stop))
        heads.append((places[:end], table.slice(0, end)))
        held[number] = places[end:], table.slice(end)
    held[:] = [rest for rest in held if len(rest[0])]
    heads = [head for head in heads if len(head[0])]
    if not heads:
        return
    places = numpy.concatenate([places for places, _ in heads])
    order = numpy.argsort(places, kind="stable")
    order = order[numpy.diff(places[order], prepend=-1) != 0]
    sizes = [len(places) for places, _ in heads]
    of_head = numpy.repeat(numpy.arange(len(heads)), sizes)[order]
    begins = numpy.cumsum(sizes) - sizes
    cuts = numpy.flatnonzero((numpy.diff(order) != 1) | (numpy.diff(of_head) != 0)) + 1
    for start, end in pairwise([0, *cuts.tolist(), len(order)]):
        number = of_head[start]
        begin = int(order[start] - begins[number])
        yield places[order[start:end]], heads[number][1].slice(begin, end - start)


def _chunks_of(path: str) -> list[_StoredChunk]:
    """The chunks of a part, as far as they are whole."""
    found = []
    with _opened(path) as file, suppress(pyarrow.ArrowInvalid, EOFError, StopIteration):
        try:
            while True:
                offset, reader = file.tell(), pyarrow.ipc.open_stream(file)
                places = numbers_of(reader.read_next_batch().column(0))
                in_order = bool((numpy.diff(places) > 0).all())
                rows = RowRanges(places, places + 1)
                found.append(_StoredChunk(path, offset, rows, in_order, RowGroup.of(reader.schema)))
                reader.read_all()  # goes to the end of the stream
        except OSError:
            if storage.is_remote(path) and file.read(1):  # it is not that a message breaks off
                raise
    return found


def _load(chunk: _StoredChunk) -> tuple[Any, Any]:
    """The rows of a chunk, sorted, with their places."""
    with _opened(chunk.path) as file:
        file.seek(chunk.offset)
        table = pyarrow.Table.from_batches([pyarrow.ipc.open_stream(file).read_next_batch()])
    places = numbers_of(table.column(0).combine_chunks())
    table = table.remove_column(0) if chunk.group is None else chunk.group.read()
    if chunk.in_order:
        return places, table
    order = numpy.argsort(places, kind="stable")
    return places[order], table.take(order)


def _opened(path: str) -> Any:
    return storage.open_file(path) if storage.is_remote(path) else pyarrow.memory_map(path)
