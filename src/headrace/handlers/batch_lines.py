"""Reads what a batch leaves behind: a JSON object on each line. A line that is damaged costs its own request only."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.handlers.batch_store import Line

__all__ = ["BatchLines", "read_lines"]

_UNREADABLE = 0
"""In the place of a status: the provider has answered, and is paid for it, but the line cannot be read."""
_OK = 200
_ID = re.compile(rb'"custom_id"\s*:\s*"([^"\\]+)"')
_SHOWN = 200
"""Bytes of a damaged line."""

_LOGGER = logging.getLogger(__name__)


def read_lines(content: bytes, line_of: Callable[[Any], Line]) -> list[Line]:
    """The lines of a file; of a damaged one an unreadable Line for each id in it, or one without an id.

    Args:
        content: of the file.
        line_of: reads the value of a line; may raise what comes of values of a wrong type.
    """
    return [line for raw in content.split(b"\n") if raw.strip() for line in _read(raw, line_of)]


def _read(raw: bytes, line_of: Callable[[Any], Line]) -> Sequence[Line]:
    try:
        line = line_of(json.loads(raw))
        if isinstance(line.id, str) and line.id:
            return [line._replace(body=line.body.encode(errors="replace").decode())]  # SQLite takes no lone surrogates
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        pass
    ids = [one.decode(errors="replace") for one in _ID.findall(raw)]
    return [Line(one, _UNREADABLE, raw[:_SHOWN].decode(errors="replace")) for one in ids or [""]]


class BatchLines:
    """What the files of a batch say of its requests, over as many readings as are needed.

    Args:
        ids: of the requests of the batch.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = frozenset(ids)
        self._lines: dict[str, Line] = {}
        self._nameless = 0
        self._foreign: list[str] = []

    def add(self, lines: Sequence[Line]) -> None:
        """Takes what one reading found; of several lines for a request an answer counts, else the first."""
        ours = [line for line in lines if line.id in self._ids]
        others = [line for line in lines if line.id not in self._ids]
        self._nameless = sum(line.status == _UNREADABLE for line in others)
        self._foreign = [line.id for line in others if line.status != _UNREADABLE]
        for line in ours:
            self._lines[line.id] = min(self._lines.get(line.id, line), line, key=_rank)

    @property
    def lacking(self) -> int:
        """How many requests have no line that can be read."""
        return len(self._ids) - sum(line.status != _UNREADABLE for line in self._lines.values())

    def settled(self, remote: str) -> list[Line]:
        """What holds when the files of batch ``remote`` are not read again; a request without a line is missing.

        An unreadable answer was paid for, so it is an answer, which its handler cannot use. If there are as many
        damaged lines without an id as missing requests, those are theirs.
        """
        missing = self._ids - self._lines.keys()
        found = list(self._lines.values())
        if len(missing) <= self._nameless:
            found += [Line(one, _UNREADABLE, "a line without a custom_id") for one in missing]
        if self._foreign:
            known = f"{len(self._foreign):,} lines of other requests, such as {self._foreign[0]!r:.80}"
            _LOGGER.warning("the results of batch %s have %s; they are ignored", remote, known)
        return [line if line.status != _UNREADABLE else _as_answer(line, remote) for line in found]


def _rank(line: Line) -> int:
    order = (_OK, _UNREADABLE)
    return order.index(line.status) if line.status in order else len(order)


def _as_answer(line: Line, remote: str) -> Line:
    said = f"the results of batch {remote} have a damaged line for it: {line.body}"
    return Line(line.id, _OK, json.dumps(said))
