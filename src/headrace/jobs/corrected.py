"""Unreadable lines of dead letters that were corrected since: in the letter, or else in the file."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from headrace.core.errors import as_type_name
from headrace.jobs.csv_records import CsvRecords
from headrace.jobs.files import Source
from headrace.jobs.json_blocks import records_of
from headrace.jobs.neighbours import END, digest
from headrace.jobs.pipes import is_pipe
from headrace.jobs.reading import read_rows
from headrace.rows.records import BrokenLine, Record


class CorrectedLines:
    """Reads the files of unreadable lines once more, and keeps the rows at their places.

    Args:
        positions: of the lines whose text in the dead letter is as it was read.
        types: of columns of CSV files, in place of those that they had.
    """

    def __init__(self, positions: Iterable[dict[str, Any]], types: Mapping[str, str]) -> None:
        self._types = types
        wanted: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for position in positions:
            wanted[position["file"]].append(position)
        self._files = {path: _reread(path, some) for path, some in wanted.items() if not is_pipe(path)}

    def of(self, broken: BrokenLine) -> Record:
        """The row that a line is now; still a broken one if it cannot be read, or may be another row."""
        position = broken.position
        if position is None or "reading" not in position:  # of an earlier version, or no line of text
            return broken
        columns = position["reading"].get("columns", {})
        if changes := {name: kind for name, kind in self._types.items() if name in columns}:
            return _parsed(broken, {**position["reading"], "columns": {**columns, **changes}})
        if digest(broken.line) != position["reading"]["line"]:
            return _parsed(broken, position["reading"])
        rows = self._files.get(position["file"], {position["row"]: broken})  # a pipe
        if isinstance(rows, dict):
            return _in_file(broken, position, rows)
        said = f"{broken.file} cannot be read again: {as_type_name(rows)}: {rows}"
        return broken._replace(error=ValueError(f"{broken.error}; {said}"))


def _in_file(broken: BrokenLine, position: Mapping[str, Any], rows: Mapping[int, Record]) -> Record:
    """The row that is now where a line was."""
    found = rows.get(position["row"])
    if isinstance(found, BrokenLine):
        is_same = found.line == broken.line
        return broken if is_same else found._replace(attempts=broken.attempts, position=broken.position)
    around = position["reading"]["around"] or []
    if found is None or any(_said(rows.get(number)) != known for number, known in around):
        return broken._replace(
            error=ValueError(
                f"{broken.error}; row {position['row']} of {broken.file} may be another one now, since rows next "
                "to it have changed, too: correct the line in the dead letter"
            )
        )
    return found


def _said(row: Record | None) -> Any:
    return END if row is None else digest(row) if isinstance(row, dict) else None


def _reread(path: str, positions: list[dict[str, Any]]) -> dict[int, Record] | Exception:
    """The rows at and next to positions in a file, by number; or why it cannot be read."""
    reading = positions[0]["reading"]
    wanted = {position["row"] for position in positions}
    wanted |= {number for position in positions for number, _ in position["reading"]["around"] or []}
    source = Source(path, reading["format"], reading.get("delimiter", ","))
    try:
        rows = islice(enumerate(read_rows(source, reading.get("columns", {})), 1), max(wanted))
        return {number: row for number, row in rows if number in wanted}
    except Exception as error:
        return error


def _parsed(broken: BrokenLine, reading: Mapping[str, Any]) -> Record:
    """The row that a corrected text is."""
    lines = broken.line.encode("utf-8", "surrogatepass")
    if reading["format"] == "csv":
        records = CsvRecords(io.BytesIO(lines + b"\n"), reading["delimiter"], broken.file, before=broken.number - 1)
        rows = list(records.rows(list(reading["columns"]), reading["columns"]))
    else:
        rows = records_of(Source(broken.file, "jsonl"), [lines], broken.number)
    if len(rows) != 1:
        return broken._replace(error=ValueError(f"the corrected line is {len(rows)} rows; a dead letter is one row"))
    (row,) = rows
    if isinstance(row, BrokenLine):
        return row._replace(attempts=broken.attempts, position=broken.position, read_as=None)
    return row
