"""Dead letters: lines of JSON, with the place of their row in its input, and in the output that lacks it.

Written by one run, they are the input of another.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import numpy
import pyarrow

from headrace.core.errors import ConfigurationError, as_type_name
from headrace.core.result import Caught, DeadLetter
from headrace.failures.device import device_loss
from headrace.jobs.csv_records import CsvRecords
from headrace.jobs.files import Source, absolute, match, stamp
from headrace.jobs.json_lines import JsonEncodeError, as_line, records_of
from headrace.jobs.output_batches import batch_of_lines, lines_in
from headrace.jobs.pipes import as_path, is_pipe
from headrace.jobs.reading import SAMPLED_ROWS, InputSchema, RowRanges, read_blocks, read_rows
from headrace.rows.blocks import BlockRow, BrokenLine, Record, Row, TriedRow, place_at
from headrace.rows.files import CONTENT, is_of_file, row_of_file

_SAME_TRACEBACKS = 3
_DISTINCT_TRACEBACKS = 1000
_PLACE = re.compile(r'(, "place": \d+)\}\}$')
"""The end of a dead letter that does not say where in the output its row belongs."""
_OF_OUTPUT = ("place", "before", "of")
_LINE = BrokenLine("", "", 0, ValueError()).row.keys()


def completed(pieces: Iterable[tuple[Any, Any]], before: Callable[[Any], Any], total: int) -> Iterator[Any]:
    """Tables of dead letters that say where in the output of ``total`` rows their own belong.

    ``before`` tells how many rows of the output come before the row at each of some places in the input.
    """
    for places, table in pieces:
        texts = [
            _PLACE.sub(rf'\1, "before": {count}, "of": {total}}}}}', line)
            for line, count in zip(lines_in(table) or [], before(places).tolist(), strict=True)
        ]
        yield pyarrow.Table.from_batches([batch_of_lines(texts)])


def position_of(place: BlockRow) -> dict[str, Any]:
    """The position of a row; ``completed`` adds to it once all rows of the output are known.

    Of an unreadable line it also holds how it is read, and what tells later whether it was corrected.
    """
    row = place.row
    known = getattr(row, "position", None)
    position = known or {"file": place.block.path, "row": place.place - place.block.place + place.block.first + 1}
    if isinstance(row, BrokenLine) and row.read_as is not None:
        position = {**position, "reading": {**row.read_as, "line": digest(row.line)}}
    return _without(position, *_OF_OUTPUT) | {"place": place.place}


def position_in(letter: Mapping[str, Any]) -> dict[str, Any] | None:
    """The position of a dead letter; older ones have none."""
    return None if letter.get("position") is None else decoded(letter["position"], "position")


def digest(line: str) -> int:
    """A number that tells a line from others; the same in all processes."""
    return zlib.crc32(json.dumps(line).encode())


def line_of_letter(letter: Mapping[str, Any], place: int) -> str:
    """The line of a dead letter that stays one, at a place of another run's input."""
    position = _without(position_in(letter) or {}, *_OF_OUTPUT) | {"place": place}
    line = _without(letter, "position") | {"row": decoded(letter["row"]), "position": position}
    return as_line(line)[:-1].decode()


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def decoded(value: Any, name: str = "row") -> Row:
    """An object of a dead letter; Parquet stores it as text."""
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise TypeError(f"its {name} must be an object, not {type(found).__name__}")
    return found


Tracebacks = Counter[int]
"""How many letters of a part have each traceback."""


def line_of(place: BlockRow, letter: DeadLetter, tracebacks: Tracebacks) -> str:
    """A letter's line; a traceback that many letters of a source have is in the first of them only."""
    if len(tracebacks) > _DISTINCT_TRACEBACKS:
        tracebacks.clear()
    key = hash((place.block.source, letter.traceback.replace(letter.message, "")))  # the letter has the message
    tracebacks[key] += 1
    row = place.row
    line = {
        "row": row.row if isinstance(row, BrokenLine) else row,
        "stage": "reading" if isinstance(row, BrokenLine) else letter.stage,
        "operation": letter.index,
        "error_type": letter.error_type,
        "message": letter.message,
        "traceback": letter.traceback if tracebacks[key] <= _SAME_TRACEBACKS else None,
        "attempts": getattr(row, "attempts", 0) + letter.attempts,
        "model_id": letter.model_id,
        "position": position_of(place),
    }
    return as_line(line)[:-1].decode()


def unwritten(error: JsonEncodeError, model_id: str | None) -> DeadLetter:
    """The dead letter of a prediction that cannot be written.

    Raises:
        Exception: the cause is a lost device rather than the prediction.
    """
    cause = error.__cause__ or error
    if device_loss(cause) is not None:
        raise cause
    return DeadLetter(
        stage="writing",
        index=0,
        key=None,
        element=None,
        error_type=as_type_name(cause),
        message=f"it cannot be written: {cause}",
        traceback="".join(Caught.of(cause).lines),
        attempts=1,
        model_id=model_id,
    )


def match_dead_letters(patterns: Sequence[str]) -> tuple[Source, ...]:
    """The dead letter files that paths and globs name, without duplicates; the files of one glob are sorted.

    Raises:
        ConfigurationError: a pattern matches nothing, or names a pipe.
    """
    for path in [absolute(as_path(pattern)) for pattern in patterns]:
        if is_pipe(path):
            raise ConfigurationError(f"{path} is a pipe; write the dead letters that come through it to a file.")
    return tuple(source._replace(letters=True) for source in match(patterns))


def is_of_cause(letter: Any, cause: str | None) -> bool:
    """Whether what the summary says of a dead letter, ``STAGE TYPE: MESSAGE``, has a text in it; None: any has."""
    if cause is None or not isinstance(letter, dict):
        return True
    said = f"{letter.get('stage')} {letter.get('error_type')}: {letter.get('message')}"
    return " ".join(cause.split()) in " ".join(said.split())


def others(places: Any, are_of_cause: Sequence[bool], cause: str | None) -> RowRanges:
    """Of an array of dead letters' places, those of letters that have another cause.

    Raises:
        ConfigurationError: all have.
    """
    if are_of_cause and not any(are_of_cause):
        raise ConfigurationError(f"--cause: of no dead letter {cause!r} is in its STAGE TYPE: MESSAGE.")
    rest = places[~numpy.array(are_of_cause, bool)]
    return RowRanges(rest, rest + 1)


def others_in(sources: Sequence[Source], cause: str) -> RowRanges:
    """As ``others``, of the letters in files."""
    pairs = [
        (place_at(index, number), is_of_cause(letter, cause))
        for index, source in enumerate(sources)
        for number, letter in enumerate(read_rows(source))
    ]
    return others(numpy.array([place for place, _ in pairs], numpy.int64), [is_of for _, is_of in pairs], cause)


def schema_of_letters(sources: Iterable[Source], types: Mapping[str, str]) -> InputSchema:
    """All columns of the first rows; several rows are read, since one may have failed for lack of a column.

    Raises:
        ConfigurationError: a file cannot be read, or its first line is not a dead letter.
    """
    columns: dict[str, None] = {}
    content: tuple[str, ...] = ()
    for source in sources:
        try:
            for number, letter in enumerate(islice(read_rows(source), SAMPLED_ROWS)):
                row = _row_of(letter, source.path, number + 1, types)
                if not isinstance(row, BrokenLine):
                    columns.update(dict.fromkeys(row))
                    content = (CONTENT,) if is_of_file(getattr(row, "position", None)) else content
                elif number == 0 and not (isinstance(letter, dict) and {"row", "stage", "message"} <= letter.keys()):
                    raise ValueError(
                        "its first line is no dead letter; headrace retry takes the dead letters of an earlier run, "
                        "and headrace run takes rows"
                    ) from row.error
        except Exception as error:
            raise ConfigurationError(f"cannot read {source.path} as dead letters: {error}") from error
    return InputSchema(tuple(columns), types, {}, content)


def columns_of_lines(sources: Iterable[Source]) -> tuple[str, ...]:
    """The columns of the unreadable lines of CSV files."""
    columns: dict[str, None] = {}
    for letter in chain.from_iterable(map(read_rows, sources)):
        with suppress(KeyError, TypeError, ValueError):  # no such line
            position = position_in(letter) if isinstance(letter, dict) else None
            columns.update(dict.fromkeys((position or {})["reading"]["columns"]))
    return tuple(columns)


def read_dead_letters(source: Source, types: Mapping[str, str]) -> Iterator[list[Record]]:
    """The rows of dead letters, as they were first read, in lists.

    Lines that could not be read then remain broken, unless they fit the ``types`` that columns are given now, or have
    been corrected in the letter.
    """
    for block in read_blocks(source):
        numbered = enumerate(block.rows(), block.first + 1)
        yield [_row_of(letter, source.path, number, types) for number, letter in numbered]


def _file_as_it_is(row: Row, position: Any) -> Row:
    """The row of a file that may have been corrected since; of one that is gone as it was."""
    with suppress(OSError):
        return row_of_file(position["file"], *stamp(position["file"]))
    return row


def _row_of(letter: Record, path: str, number: int, types: Mapping[str, str]) -> Record:
    if isinstance(letter, BrokenLine):
        return letter
    try:
        row = decoded(letter["row"])
        attempts = int(letter.get("attempts") or 1)  # letters written without a count
        position = position_in(letter)
        readable = position and _without(position, "reading")
        if letter["stage"] != "reading" or row.keys() != _LINE:
            row = _file_as_it_is(row, position) if is_of_file(position) else row
            return TriedRow(row, attempts, readable)
        line, file, place = (row[name] for name in _LINE)
        broken = BrokenLine(line, file, place, ValueError(letter["message"]), attempts, position=position)
        found = _reread(broken, types)
        if isinstance(found, BrokenLine):
            return found
        keys = (position or {}).get("reading", {}).get("keys", {})  # of folders' names
        return TriedRow({**found, **keys}, attempts, readable)
    except (KeyError, TypeError, ValueError) as error:
        wrong = ValueError(f"no dead letter: {type(error).__name__}: {error}")
        return BrokenLine(json.dumps(letter, default=str), path, number, wrong)


def _reread(broken: BrokenLine, types: Mapping[str, str]) -> Record:
    """The row that a corrected line is, or one whose columns have other types now; else the broken line."""
    reading = (broken.position or {}).get("reading")
    if reading is None:  # of an earlier version, or no line of text
        return broken
    columns = reading.get("columns", {})
    changes = {name: kind for name, kind in types.items() if name in columns}
    if not changes and digest(broken.line) == reading["line"]:
        return broken
    line = broken.line.encode("utf-8", "surrogatepass")
    if reading["format"] == "csv":
        records = CsvRecords(iter([line + b"\n"]), reading["delimiter"], broken.file, before=broken.number - 1)
        rows = list(records.rows(list(columns), {**columns, **changes}))
    else:
        rows = records_of(Source(broken.file, "jsonl"), [line], broken.number)
    if len(rows) != 1:
        return broken._replace(error=ValueError(f"the corrected line is {len(rows)} rows; a dead letter is one row"))
    (row,) = rows
    if isinstance(row, BrokenLine):
        return row._replace(attempts=broken.attempts, position=broken.position, read_as=None)
    return row
