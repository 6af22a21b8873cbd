"""Where the row of a dead letter is in its input, and where its prediction belongs in the output."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy
import pyarrow

from headrace.jobs.output_batches import OutputLine, batch_of_lines, lines_in
from headrace.jobs.row_ranges import RowRanges
from headrace.rows.blocks import BlockRow
from headrace.rows.records import BrokenLine, Row

_PLACE = re.compile(r', "place": (\d+)\}\}$')
"""The end of a dead letter that is not complete."""


class OutputPlaces:
    """Where rows are in an output, and where those would be that it lacks.

    Args:
        there: places of the rows that it has.
    """

    def __init__(self, there: RowRanges) -> None:
        self._starts, self._sizes = there.starts, there.stops - there.starts
        self._firsts = numpy.cumsum(self._sizes) - self._sizes
        self.total = len(there)
        """How many rows the output has."""

    def before(self, places: Any) -> Any:
        """How many rows of the output come before the row at each place."""
        if not self.total:
            return numpy.zeros(len(places), numpy.int64)
        runs = numpy.searchsorted(self._starts, places, "right") - 1
        within = numpy.minimum(places - self._starts[runs], self._sizes[runs])
        return numpy.where(runs < 0, 0, self._firsts[runs] + within)


def completed(tables: Iterable[Any], places: OutputPlaces) -> Iterator[Any]:
    """Dead letters, as lines of JSON, with their places in the output: behind how many rows ``of`` how many."""
    for table in tables:
        lines = lines_in(table) or []
        found = [_PLACE.search(line) for line in lines]
        at = numpy.array([int(one[1]) if one else 0 for one in found], numpy.int64)
        texts = [
            f'{line[:-2]}, "before": {before}, "of": {places.total}}}}}' if one else line
            for line, one, before in zip(lines, found, places.before(at).tolist(), strict=True)
        ]
        yield pyarrow.Table.from_batches([batch_of_lines([OutputLine(0, text) for text in texts])[1]])


def position_of(place: BlockRow) -> dict[str, Any]:
    """The position of a row; ``completed`` adds to it once all rows of the output are known.

    Of an unreadable line it also holds how it is read, and what tells later whether it was corrected.
    """
    row = place.row
    known = getattr(row, "position", None)
    position = known or {"file": place.block.path, "row": place.place - place.block.place + place.block.first + 1}
    if isinstance(row, BrokenLine) and row.read_as is not None:
        position = {**position, "reading": {**row.read_as, "line": digest(row.line)}}
    return {name: value for name, value in position.items() if name not in _OF_OUTPUT} | {"place": place.place}


_OF_OUTPUT = ("place", "before", "of")


def position_in(letter: Mapping[str, Any]) -> dict[str, Any] | None:
    """The position of a dead letter; older ones have none."""
    return None if letter.get("position") is None else decoded(letter["position"], "position")


def digest(line: str) -> int:
    """A number that tells a line from others; the same in all processes."""
    return zlib.crc32(json.dumps(line).encode())


def without_reading(position: dict[str, Any] | None) -> dict[str, Any] | None:
    """The position of a row that can be read."""
    return position and {name: value for name, value in position.items() if name != "reading"}


def decoded(value: Any, name: str = "row") -> Row:
    """An object of a dead letter; Parquet stores it as text."""
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise TypeError(f"its {name} must be an object, not {type(found).__name__}")
    return found
