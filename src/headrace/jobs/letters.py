"""Dead letters as lines of JSON."""

from __future__ import annotations

from collections import Counter

from headrace.core.errors import as_type_name
from headrace.core.result import Caught, DeadLetter
from headrace.failures.device import device_loss
from headrace.jobs.json_lines import JsonEncodeError, as_line
from headrace.jobs.output_batches import OutputLine
from headrace.jobs.positions import position_of
from headrace.rows.blocks import BlockRow
from headrace.rows.records import BrokenLine

_SAME_TRACEBACKS = 3
_DISTINCT_TRACEBACKS = 1000


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
