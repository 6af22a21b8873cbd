"""Hands on the outcomes of rows that were sorted by length, or sent side by side, in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from headrace.core.result import Outcome, Predictions, Skipped
from headrace.rows.blocks import BlockRow


class InputOrder:
    """Holds outcomes until those of all earlier rows are there: about as many as are sorted together.

    Args:
        write: takes outcomes whose tags are ``BlockRow``s, in order.
    """

    def __init__(self, write: Callable[[Iterable[Outcome]], None]) -> None:
        self._write = write
        self._due: deque[int] = deque()
        """Places of the rows without outcome, or with one that waits, in order."""
        self._early: dict[int, tuple[BlockRow, Any, str | None] | Outcome] = {}
        """By place: a row with its prediction and the fallback that made it, or another outcome of that row alone."""

    def expect(self, row: BlockRow) -> None:
        """Notes a row that is about to be added to the bundle."""
        self._due.append(row.place)

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Takes outcomes in any order, and writes all that are due."""
        for outcome in outcomes:
            if isinstance(outcome, Predictions):
                pairs = zip(outcome.tags, outcome.values, strict=True)
                self._early.update((row.place, (row, value, outcome.fallback)) for row, value in pairs)
            elif isinstance(outcome, Skipped):
                self._early.update((row.place, replace(outcome, tags=[row])) for row in outcome.tags)
            else:
                self._early[outcome.tag.place] = outcome
        due = []
        while self._due and self._due[0] in self._early:
            due.append(self._early.pop(self._due.popleft()))
        if due:
            self._write(_together(due))


def _together(due: Iterable[Any]) -> Iterator[Outcome]:
    """Outcomes in order, neighbouring predictions together."""
    for fallback, neighbours in groupby(due, lambda one: one[2:] if type(one) is tuple else None):
        if fallback is not None:
            rows, values, _ = zip(*neighbours, strict=True)
            yield Predictions(list(rows), list(values), *fallback)
        else:
            yield from neighbours
