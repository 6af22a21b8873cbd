"""Dead letters: lines of JSON, with the place of their row in its input, and in the output that lacks it."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy
import pyarrow

from headrace.core.errors import as_type_name
from headrace.core.result import Caught, DeadLetter
from headrace.failures.device import device_loss
from headrace.jobs.json_lines import JsonEncodeError, as_line
from headrace.jobs.output_batches import OutputLine, batch_of_lines, lines_in
from headrace.jobs.row_ranges import RowRanges
from headrace.rows.blocks import BlockRow, BrokenLine, Row

_SAME_TRACEBACKS = 3
_DISTINCT_TRACEBACKS = 1000
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


class LetterLines:
    """Makes the lines of one part: a traceback that many letters of a source have is in the first of them only."""

    def __init__(self) -> None:
        self._tracebacks: Counter[int] = Counter()

    def line_of(self, place: BlockRow, letter: DeadLetter) -> OutputLine:
        """A letter's line."""
        row = place.row
        is_broken = isinstance(row, BrokenLine)
        line = {
            "row": row.row if isinstance(row, BrokenLine) else row,
            "stage": "reading" if is_broken else letter.stage,
            "operation": letter.index,
            "error_type": letter.error_type,
            "message": letter.message,
            "traceback": self._unless_known(place.block.source, letter),
            "attempts": getattr(row, "attempts", 0) + letter.attempts,
            "model_id": letter.model_id,
            "position": position_of(place),
        }
        return OutputLine(place.place, as_line(line)[:-1].decode())

    def _unless_known(self, source: int, letter: DeadLetter) -> str | None:
        """The traceback; None if it is that of several letters before, but for the message, which the letter has."""
        if len(self._tracebacks) > _DISTINCT_TRACEBACKS:
            self._tracebacks.clear()
        key = hash((source, letter.traceback.replace(letter.message, "")))
        self._tracebacks[key] += 1
        return letter.traceback if self._tracebacks[key] <= _SAME_TRACEBACKS else None


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
