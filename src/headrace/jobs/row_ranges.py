"""Where rows stand in the input, and sets of such places: of 100 million rows a few ranges."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy

_NUMBER_BITS = 40


def place_at(source: int, number: int) -> int:
    """A place as one integer, by which places are in the order of the input.

    Args:
        source: index of the source among those of the job.
        number: of the row within the source, counted from 0; lines that cannot be read count, too.
    """
    return source << _NUMBER_BITS | number


class RowRanges:
    """A set of places; immutable, and 16 bytes for each range of neighbours.

    Args:
        starts: of ranges, in any order, which may overlap; 64-bit integers.
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

    def __or__(self, other: RowRanges) -> RowRanges:
        return RowRanges(numpy.concatenate([self.starts, other.starts]), numpy.concatenate([self.stops, other.stops]))

    def missing(self, source: int, start: int = 0, stop: int = sys.maxsize) -> Iterator[tuple[int, int]]:
        """The ranges of row numbers of a source, within one from ``start`` to ``stop``, that are not in the set."""
        base = place_at(source, 0)
        end = base + min(stop, 1 << _NUMBER_BITS)
        first, last = numpy.searchsorted(self.stops, base + start, "right"), numpy.searchsorted(self.starts, end)
        for there, gone in zip(self.starts[first:last].tolist(), self.stops[first:last].tolist(), strict=True):
            if start < there - base:
                yield start, there - base
            start = max(start, gone - base)
        if start < stop:
            yield start, stop

    def gaps(self) -> list[int]:
        """Places before which some of their source are missing: where a range neither begins nor goes on a source."""
        within = self.starts & ((1 << _NUMBER_BITS) - 1) != 0
        return [int(place) for place in self.starts[within]]

    def save(self, path: str) -> None:
        """Writes them to a file."""
        with open(path, "wb") as file:
            numpy.save(file, numpy.stack([self.starts, self.stops]))

    @classmethod
    def load(cls, path: str) -> RowRanges:
        """Those of a file that ``save`` wrote."""
        return cls(*numpy.load(path))
