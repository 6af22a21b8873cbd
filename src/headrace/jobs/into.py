"""An output with the rows that it lacks: predictions of its dead letters, put into their places."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy
import pyarrow

from headrace.core.errors import ConfigurationError
from headrace.jobs import storage
from headrace.jobs.csv_records import CsvRecords
from headrace.jobs.files import Source, delimiter_of, location, stamp
from headrace.jobs.letters import completed, is_of_cause, line_of_letter, others, position_in
from headrace.jobs.opening import create_compressed, open_source, open_text
from headrace.jobs.output_batches import batch_of_lines, json_value, rows_in_lines
from headrace.jobs.parquet_tables import write_parquet
from headrace.jobs.publishing import Move
from headrace.jobs.reading import NO_ROWS, RowRanges, parquet_file, read_parquet, read_rows, rows_of_parquet
from headrace.jobs.resume import ResumableOutput
from headrace.jobs.stored_rows import StoredOutput
from headrace.jobs.text_tables import columns_of, csv_of, lines_of
from headrace.rows.blocks import Block, Record
from headrace.rows.values import as_values

_TYPES = pyarrow.types
_DURATION = re.compile(r"(-?)P(\d+)DT(\d+)H(\d+)M(\d+)(?:\.(\d{6}))?S")
_LETTERS_AT_ONCE = 1000
_CURE = "name a new file with --output in place of --into"


class LetterOrder:
    """The places of dead letters are their ranks: the first of all has 0, whatever file it is in.

    Only those with the text ``cause`` are retried; None: all are.

    Raises:
        ConfigurationError: not all of them are dead letters of one output, once each; or none is of the cause.
    """

    def __init__(self, sources: Sequence[Source], cause: str | None = None) -> None:
        counts, found, are_of_cause = [], list[tuple[int, int, int]](), list[bool]()
        for source in sources:
            for number, letter in enumerate(read_rows(source), 1):
                found.append(_place_of(letter, source.path, number))
                are_of_cause.append(is_of_cause(letter, cause))
            counts.append(len(found))
        places, befores, totals = numpy.array(found, numpy.int64).reshape(-1, 3).T
        if len(set(totals.tolist())) > 1:
            raise ConfigurationError(f"the dead letters are not all of one output, or of one run of it; {_CURE}.")
        order = numpy.lexsort([places, befores])
        twice = order[1:][places[order][1:] == places[order][:-1]]
        if len(twice):
            raise ConfigurationError(
                f"a row is among the dead letters twice (letter {int(twice[0]) + 1:,} of all); leave one of them out."
            )
        ranks = numpy.empty(len(order), numpy.int64)
        ranks[order] = numpy.arange(len(order))
        self._sources, self._ranks = sources, numpy.split(ranks, counts[:-1])
        self.others = others(ranks, are_of_cause, cause)
        """The ranks of those that are not retried."""
        self.befores = befores[order]
        """How many rows of the output come before each row, by rank."""
        self.total = int(totals[0]) if len(totals) else None
        """How many rows the output has; None: there are no letters."""

    def placed(
        self, pieces: Iterable[Sequence[Record]], source: Source, index: int, done: RowRanges
    ) -> Iterator[Block]:
        """The rows of a file of dead letters as blocks, without those at the places that are done."""
        ranks = iter(self._ranks[index].tolist())
        for piece in pieces:
            for record, rank in zip(piece, ranks, strict=False):
                if rank not in done:
                    yield Block(0, rank, records=[record], path=source.path)

    def pieces_of_others(self) -> Iterator[tuple[Any, Any]]:
        """The letters that are not retried as tables of lines, with their ranks."""
        for source, ranks in zip(self._sources, self._ranks, strict=True):
            ranked = zip(ranks.tolist(), read_rows(source), strict=True)
            rest = ((rank, letter) for rank, letter in ranked if isinstance(letter, dict) and rank in self.others)
            while some := list(islice(rest, _LETTERS_AT_ONCE)):
                lines = [line_of_letter(letter, rank) for rank, letter in some]
                yield numpy.array([rank for rank, _ in some]), pyarrow.Table.from_batches([batch_of_lines(lines)])


class CompletedOutput(ResumableOutput):
    """An earlier output that is replaced by one with more rows; without a ``job``, a run that fails keeps none.

    Raises:
        ConfigurationError: it is not there, or not the one that the dead letters are of.
    """

    def __init__(self, path: str, dead_letters: str | None, job: Mapping[str, Any] | None, order: LetterOrder) -> None:
        self._refuse_remote("--into", path, dead_letters)
        if not storage.exists(path):
            raise ConfigurationError(f"--into: there is no {path}; name a new file with --output instead.")
        more = {} if job is None else {**job, "--into": [path, stamp(path)]}
        super().__init__(path, dead_letters, more, kind="retry", keeps=job is not None)
        self._order = order
        self._old = Source(self.path, self.format, delimiter_of(self.path))
        rows = _count(self._old)
        if order.total is not None and rows != order.total:
            raise ConfigurationError(
                f"--into: {path} has {rows:,} rows, and the dead letters are of an output of {order.total:,} rows: it "
                "has changed since, perhaps by an earlier retry of them; name a new file with --output instead."
            )

    def _replaced(self, inputs: set[str]) -> set[str]:
        if location(self.dead_letters) not in inputs and storage.exists(self.dead_letters):
            raise ConfigurationError(
                f"{self.dead_letters} is there and would be lost, since it is not among the dead letters to retry; "
                "retry it, too, or name another file with --dead-letters."
            )
        return {location(self.dead_letters)}

    def _has_letters(self, rows: StoredOutput) -> bool:
        return super()._has_letters(rows) or (self.accepted and len(self._order.others) > 0)

    def _letters(self, rows: StoredOutput) -> Iterable[Any]:
        new = rows.good.places if self.accepted else NO_ROWS
        befores, total = self._order.befores, len(new) + (self._order.total or 0)
        pieces = chain(rows.pieces_of_letters(), self._order.pieces_of_others() if self.accepted else ())
        return completed(pieces, lambda ranks: befores[ranks] + new.rank(ranks), total)

    def _joined(self, stored: StoredOutput, check: Callable[[], None]) -> list[Move]:
        """The output comes first: killed behind that, a retry leaves letters that are not of it, and no row is lost."""
        return sorted(super()._joined(stored, check), key=lambda move: move.destination != self.path)

    def _write_predictions(self, path: str, rows: StoredOutput, check: Callable[[], None]) -> str:
        new, done = rows.good.tables, rows.good.places
        befores = self._order.befores[done.have(numpy.arange(len(self._order.befores)))].tolist()
        if self.format == "parquet":
            with open_source(self._old) as old_file:
                typed = partial(_in_columns_of, parquet_file(old_file).schema_arrow)

            def merged() -> Iterator[Any]:
                old = (pyarrow.Table.from_batches([batch]) for batch in read_parquet(self._old, lambda *_: False))
                return self._merged(old, map(typed, new()), befores)

            with storage.create(path) as file:
                write_parquet(file, merged, check)
            return path
        old = _old_lines(self._old)
        with create_compressed(path) as file:
            if self.format == "csv":
                header, added, more = _csv_lines(self._old, new)
                file.write(header)
                old = ([line.rstrip(b"\r\n") + more + b"\n" for line in lines] for lines in old) if more else old
            else:
                added = map(_lines, lines_of(new()))
            for lines in self._merged(old, added, befores):
                check()
                file.write(b"".join(lines))
        return path

    def _merged(self, old: Iterable[Any], new: Iterable[Any], befores: list[int]) -> Iterator[Any]:
        """Pieces of the old rows, with the new ones behind as many of them as ``befores`` says."""
        old_rows, new_rows, done = _RowPieces(old), _RowPieces(new), 0
        for before, count in Counter(befores).items():
            yield from old_rows.take(before - done)
            yield from new_rows.take(count)
            done = before
        for piece in old_rows.rest():
            yield piece
            done += len(piece)
        if self._order.total not in (None, done):
            raise RuntimeError(f"{self.path} has changed during the run")


class _RowPieces:
    """Pieces of rows, from which any number of rows can be taken."""

    def __init__(self, pieces: Iterable[Any]) -> None:
        self._coming = iter(pieces)
        self._piece: Any = ()

    def take(self, count: int) -> Iterator[Any]:
        while count:
            if not len(self._piece):
                self._piece = next(self._coming)
            some, self._piece = self._piece[:count], self._piece[count:]
            count -= len(some)
            yield some

    def rest(self) -> Iterator[Any]:
        return chain([self._piece] if len(self._piece) else [], self._coming)


def _place_of(letter: Any, path: str, number: int) -> tuple[int, int, int]:
    try:
        position = position_in(letter) or {}
        return position["place"], position["before"], position["of"]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigurationError(
            f"{path}: dead letter {number:,} does not say where its row belongs in an output (an earlier version wrote "
            f"it, or its run wrote no output); {_CURE}."
        ) from None


def _count(source: Source) -> int:
    try:
        return rows_of_parquet(source) if source.format == "parquet" else sum(map(len, _old_lines(source)))
    except Exception as error:
        raise ConfigurationError(f"--into: cannot read {source.path} as {source.format}: {error}") from error


def _old_lines(source: Source) -> Iterator[list[bytes]]:
    with open_text(source) as lines:
        pieces: Iterator[list[bytes]] = map(_lines, lines.pieces())
        if source.format == "csv":
            pieces = _csv_records(pieces)
            yield next(pieces, [])[1:]  # without the header
        yield from pieces


def _lines(text: bytes) -> list[bytes]:
    return [line + b"\n" for line in text.split(b"\n")[:-1]]


def _csv_records(pieces: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Records of lines: one ends with a line behind which no quote is open."""
    begun, is_open = b"", False
    for lines in pieces:
        records = []
        for line in lines:
            begun += line
            is_open ^= line.count(b'"') % 2 == 1
            if not is_open:
                records.append(begun)
                begun = b""
        if records:
            yield records


def _csv_lines(old: Source, new: Callable[[], Iterable[Any]]) -> tuple[bytes, Iterator[list[bytes]], bytes]:
    """A header for old and new rows, the records of the new ones, and the end of the old ones, which lack columns."""
    with open_text(old) as lines:
        known = CsvRecords(lines, old.delimiter, old.path).header()
    columns = [*dict.fromkeys([*known, *columns_of(new())])]
    chunks = csv_of(new, old.delimiter, columns)
    return next(chunks, b""), _csv_records(map(_lines, chunks)), old.delimiter.encode() * (len(columns) - len(known))


def _in_columns_of(schema: Any, table: Any) -> Any:
    """A table with lines of JSON, whose values are in columns of a schema where these hold them exactly."""
    rows = rows_in_lines(table)
    if rows is None:
        return table
    columns = {}
    for field in schema:
        column = _held_exactly([row.get(field.name) for row in rows], field.type)
        if column is not None:
            columns[field.name] = column
            rows = [{name: value for name, value in row.items() if name != field.name} for row in rows]
    return pyarrow.Table.from_batches([batch_of_lines(list(map(json.dumps, rows)), columns)])


def _held_exactly(values: list[Any], kind: Any) -> Any:
    """JSON's values as an array of a type; None if they are not the same values there."""
    with suppress(pyarrow.ArrowException, ArithmeticError, AttributeError, TypeError, ValueError):
        array = pyarrow.array([_of_json(value, kind) for value in values], kind)
        return array if list(map(json_value, as_values(array))) == values else None
    return None


def _of_json(value: Any, kind: Any) -> Any:
    """Converts a JSON value to one that Arrow accepts for the type."""
    kind = kind.value_type if _TYPES.is_dictionary(kind) else kind
    if value is None:
        return None
    if _TYPES.is_struct(kind):
        return {field.name: _of_json(value.get(field.name), field.type) for field in kind}
    if _TYPES.is_map(kind):
        return [(_of_json(key, kind.key_type), _of_json(one, kind.item_type)) for key, one in value]
    if kind.num_fields:
        return [_of_json(one, kind.value_type) for one in value]
    parse = next((parse for is_kind, parse in _PARSERS if is_kind(kind)), None)
    return value if parse is None else parse(value, kind)


def _time(text: str, kind: Any) -> Any:
    """A date, a time of day, or both."""
    unit = "ns" if getattr(kind, "unit", None) == "ns" else "us"
    moment = pyarrow.array([f"1970-01-01T{text}" if _TYPES.is_time(kind) else text])
    return moment.cast(pyarrow.timestamp(unit, getattr(kind, "tz", None))).cast(kind)[0].value


def _duration(text: str, kind: Any) -> Any:
    found = _DURATION.fullmatch(text)
    if found is None:  # nanoseconds
        return pyarrow.scalar(int(text), pyarrow.duration("ns")).cast(kind)
    sign, *numbers = found.groups("0")
    days, hours, minutes, seconds, microseconds = map(int, numbers)
    length = timedelta(days, seconds, microseconds, minutes=minutes, hours=hours)
    return -length if sign == "-" else length


_PARSERS: list[tuple[Callable[[Any], bool], Callable[[str, Any], Any]]] = [
    (_TYPES.is_duration, _duration),
    (_TYPES.is_temporal, _time),
    (_TYPES.is_decimal, lambda text, _: Decimal(text)),
    (lambda kind: "binary" in str(kind), lambda text, _: b64decode(text)),
]
"""How JSON's texts of some types are read."""
