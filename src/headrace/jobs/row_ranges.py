"""Places of rows in the input, and compact sets of places: a few ranges for 100 million rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy

from headrace.rows.blocks import NUMBER_BITS, place_at


class RowRanges:
    """An immutable set of places; 16 bytes for each range of neighbours.

    Args:
        starts: of the ranges, in any order; 64-bit integers. Ranges may overlap.
        stops: of the same ranges, exclusive.
    """

    def __init__(self, starts: Any = (), stops: Any = ()) -> None:
        starts, stops = (numpy.asarray(ends, dtype=numpy.int64) for ends in (starts, stops))
        order = numpy.argsort(starts, kind="stable")
        starts, stops = starts[order], numpy.maximum.accumulate(stops[order])
        first = numpy.ones(len(starts), dtype=bool)
        first[1:] = starts[1:] > stops[:-1]
        last = numpy.roll(first, -1)
        self.starts, self.stops = starts[first], stops[last]

    def __len__(self) -> int:
        return int((self.stops - self.starts).sum())

    def __contains__(self, place: int) -> bool:
        before = int(numpy.searchsorted(self.starts, place, "right"))
        return before > 0 and place < int(self.stops[before - 1])

    def have(self, places: Any) -> Any:
        """For each of some places whether it is in the set."""
        before = numpy.searchsorted(self.starts, places, "right")
        return numpy.append(0, self.stops)[before] > places

    def rank(self, places: Any) -> Any:
        """How many places of the set come before each of some places."""
        sizes = self.stops - self.starts
        starts, sizes, ranks = (numpy.append(0, ends) for ends in (self.starts, sizes, numpy.cumsum(sizes) - sizes))
        found = numpy.searchsorted(self.starts, places, "right")
        return ranks[found] + numpy.minimum(places - starts[found], sizes[found])

    def __or__(self, other: RowRanges) -> RowRanges:
        return RowRanges(numpy.concatenate([self.starts, other.starts]), numpy.concatenate([self.stops, other.stops]))

    def missing(self, source: int, start: int = 0, stop: int = sys.maxsize) -> Iterator[tuple[int, int]]:
        """Ranges of row numbers of a source, between ``start`` and ``stop``, that are not in the set."""
        base = place_at(source, 0)
        end = base + min(stop, 1 << NUMBER_BITS)
        first, last = numpy.searchsorted(self.stops, base + start, "right"), numpy.searchsorted(self.starts, end)
        for there, gone in zip(self.starts[first:last].tolist(), self.stops[first:last].tolist(), strict=True):
            if start < there - base:
                yield start, there - base
            start = max(start, gone - base)
        if start < stop:
            yield start, stop

    def gaps(self) -> list[int]:
        """Starts of ranges that do not begin their source: rows before them are missing."""
        within = self.starts & ((1 << NUMBER_BITS) - 1) != 0
        return [int(place) for place in self.starts[within]]


NO_ROWS = RowRanges()
