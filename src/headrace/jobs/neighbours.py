"""Unreadable lines remember the rows around them, so that a corrected one is told from another row in its place."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace.rows.blocks import Block
from headrace.rows.records import BrokenLine, Record

END = "end"
"""In place of a row's digest, behind the last row of a file."""
_UNKNOWN = (0, None)


def digest(value: Any) -> int:
    """A number that tells a row, or a text, from others; the same in all processes."""
    return zlib.crc32(json.dumps(value, default=str).encode())


def noting_neighbours(pieces: Iterable[Any]) -> Iterator[Any]:
    """Pieces of a file, as for ``placed``; the unreadable lines in them get ``around``."""
    pieces = iter(pieces)
    piece, first, before = next(pieces, None), 0, _UNKNOWN
    while piece is not None:
        behind: list[Any] = []
        if isinstance(piece, list) and any(isinstance(row, BrokenLine) for row in piece):
            if isinstance(piece[-1], BrokenLine):  # the row behind it is in the next piece
                behind = [next(pieces, None)]
            piece = _with_neighbours(piece, first, before, *behind)
        yield piece
        size = piece if isinstance(piece, int) else len(piece)
        first += size
        if size:
            before = _UNKNOWN if isinstance(piece, int) else _last_readable(piece, first) or before
        piece = behind[0] if behind else next(pieces, None)


def _with_neighbours(piece: Sequence[Record], first: int, before: Any, *behind: Any) -> list[Record]:
    """The records, whose first has the number ``first``, counted from 0; ``before`` is the last readable row before."""
    after: Any = _UNKNOWN
    if behind:
        after = (first + len(piece) + 1, END if behind[0] is None else _first(behind[0]))
    around: list[list[Any]] = []
    for number, row in enumerate(piece, first + 1):
        around.append([before])
        before = before if isinstance(row, BrokenLine) else (number, row)
    for place in reversed(range(len(piece))):
        around[place].append(after)
        after = after if isinstance(piece[place], BrokenLine) else (first + 1 + place, piece[place])
    return [
        row._replace(around=_digests(some)) if isinstance(row, BrokenLine) else row
        for row, some in zip(piece, around, strict=True)
    ]


def _digests(rows: Iterable[tuple[int, Any]]) -> list[list[Any]]:
    known = ((number, row() if callable(row) else row) for number, row in rows)
    return [
        [number, row if row == END else digest(row)]
        for number, row in known
        if row is not None and not isinstance(row, BrokenLine)
    ]


def _first(piece: Any) -> Any:
    return None if isinstance(piece, int) or not len(piece) else _row(piece, 0)


def _last_readable(piece: Any, end: int) -> tuple[int, Any] | None:
    """The number and, as a function, the last readable row of a piece that ends there; a batch's last row."""
    if not isinstance(piece, list):
        return end, lambda: _row(piece, len(piece) - 1)
    places = (place for place in reversed(range(len(piece))) if not isinstance(piece[place], BrokenLine))
    place = next(places, None)
    return None if place is None else (end - len(piece) + place + 1, piece[place])


def _row(piece: Any, place: int) -> Record:
    block = Block(0, 0, records=piece) if isinstance(piece, list) else Block(0, 0, batch=piece)
    row: Record = block[place]
    return row
