"""Reads dead letters of an earlier run as the input of a new one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.jobs.csv_records import CsvRecords
from headrace.jobs.files import Source, absolute, match, stamp
from headrace.jobs.json_lines import records_of
from headrace.jobs.letters import decoded, digest, position_in, without_reading
from headrace.jobs.pipes import as_path, is_pipe
from headrace.jobs.reading import SAMPLED_ROWS, read_blocks, read_rows
from headrace.jobs.row_ranges import RowRanges
from headrace.rows.blocks import BrokenLine, Record, Row, TriedRow
from headrace.rows.files import is_of_file, row_of_file

_LINE = BrokenLine("", "", 0, ValueError()).row.keys()


def match_dead_letters(patterns: Sequence[str]) -> tuple[Source, ...]:
    """The dead letter files that paths and globs name, without duplicates; the files of one glob are sorted.

    Raises:
        ConfigurationError: a pattern matches nothing, or names a pipe.
    """
    _refuse_pipes(absolute(as_path(pattern)) for pattern in patterns)  # before a pipe's missing extension is reported
    sources = match(patterns)
    _refuse_pipes(source.path for source in sources)
    return tuple(source._replace(letters=True) for source in sources)


def dead_letter_columns(sources: Iterable[Source], types: Mapping[str, str]) -> tuple[str, ...]:
    """All columns of the first rows; several rows are read, since one may have failed for lack of a column.

    Raises:
        ConfigurationError: a file cannot be read, or its first line is not a dead letter.
    """
    columns: dict[str, None] = {}
    for source in sources:
        try:
            for number, letter in enumerate(islice(read_rows(source, {}), SAMPLED_ROWS)):
                row = _row_of(letter, source.path, number + 1, types)
                if not isinstance(row, BrokenLine):
                    columns.update(dict.fromkeys(row))
                elif number == 0 and not _is_letter(letter):
                    raise ValueError(
                        "its first line is no dead letter; headrace retry takes the dead letters of an earlier run, "
                        "and headrace run takes rows"
                    ) from row.error
        except Exception as error:
            raise ConfigurationError(f"cannot read {source.path} as dead letters: {error}") from error
    return tuple(columns)


def columns_of_lines(sources: Iterable[Source]) -> tuple[str, ...]:
    """The columns of the unreadable lines of CSV files."""
    columns: dict[str, None] = {}
    for letter in chain.from_iterable(read_rows(source, {}) for source in sources):
        with suppress(KeyError, TypeError, ValueError):  # no such line
            position = position_in(letter) if isinstance(letter, dict) else None
            columns.update(dict.fromkeys((position or {})["reading"]["columns"]))
    return tuple(columns)


def are_of_files(sources: Iterable[Source]) -> bool:
    """Whether one of the first dead letters is of a file that is a row."""
    letters = chain.from_iterable(islice(read_rows(source, {}), SAMPLED_ROWS) for source in sources)
    with suppress(KeyError, TypeError, ValueError):  # no such position
        return any(isinstance(letter, dict) and is_of_file(position_in(letter)) for letter in letters)
    return False


def read_dead_letters(source: Source, types: Mapping[str, str]) -> Iterator[list[Record]]:
    """The rows of dead letters, as they were first read, in lists.

    Lines that could not be read then remain broken, unless they fit the ``types`` that columns are given now, or have
    been corrected in the letter.
    """
    for block in read_blocks(source, 0, {}, RowRanges()):
        numbered = enumerate(block.rows(), block.first + 1)
        yield [_row_of(letter, source.path, number, types) for number, letter in numbered]


def _refuse_pipes(paths: Iterable[str]) -> None:
    for path in paths:
        if is_pipe(path):
            raise ConfigurationError(f"{path} is a pipe; write the dead letters that come through it to a file.")


def _is_letter(letter: Record) -> bool:
    return isinstance(letter, dict) and {"row", "stage", "message"} <= letter.keys()


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
        if letter["stage"] != "reading" or row.keys() != _LINE:
            row = _file_as_it_is(row, position) if is_of_file(position) else row
            return TriedRow(row, attempts, without_reading(position))
        line, file, place = (row[name] for name in _LINE)
        broken = BrokenLine(line, file, place, ValueError(letter["message"]), attempts, position=position)
        found = _reread(broken, types)
        if isinstance(found, BrokenLine):
            return found
        keys = (position or {}).get("reading", {}).get("keys", {})  # of folders' names
        return TriedRow({**found, **keys}, attempts, without_reading(position))
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
