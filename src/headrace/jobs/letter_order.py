"""In which order the rows of dead letters belong into the output that lacks them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy

from headrace.core.errors import ConfigurationError
from headrace.jobs.files import Source
from headrace.jobs.input_share import InputShare
from headrace.jobs.positions import position_in
from headrace.jobs.reading import read_rows
from headrace.jobs.row_ranges import RowRanges
from headrace.rows.blocks import Block
from headrace.rows.records import Record

_CURE = "name a new file with --output in place of --into"


class LetterOrder:
    """The places of dead letters are their ranks: the first of all has 0, whatever file it is in.

    Args:
        sources: files of dead letters.

    Raises:
        ConfigurationError: not all of them are dead letters of one output, once each.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        counts, found = [], array("q")
        for source in sources:
            before = len(found)
            for number, letter in enumerate(read_rows(source, {}), 1):
                found.extend(_place_of(letter, source.path, number))
            counts.append((len(found) - before) // 3)
        places, befores, totals = numpy.array(found, numpy.int64).reshape(-1, 3).T
        if len(set(totals.tolist())) > 1:
            raise ConfigurationError(f"the dead letters are not all of one output, or of one run of it; {_CURE}.")
        order = numpy.lexsort([places, befores])
        twice = order[1:][places[order][1:] == places[order][:-1]]
        if len(twice):
            raise ConfigurationError(
                f"a row is among the dead letters twice (letter {int(twice[0]) + 1:,} of all); leave one of them out."
            )
        ranks = numpy.empty(len(order), numpy.int64)
        ranks[order] = numpy.arange(len(order))
        self._ranks = numpy.split(ranks, numpy.cumsum(counts)[:-1])
        self.befores = befores[order]
        """How many rows of the output come before each row, by rank."""
        self.total = int(totals[0]) if len(totals) else None
        """How many rows the output has; None: there are no letters."""

    def placed(
        self, pieces: Iterable[Sequence[Record]], source: Source, index: int, done: RowRanges, share: InputShare | None
    ) -> Iterator[Block]:
        """The rows of a file of dead letters as blocks, without those at the places that are done."""
        ranks = iter(self._ranks[index].tolist())
        for piece in pieces:
            for record, rank in zip(piece, ranks, strict=False):
                if share is not None:
                    share.add(source.path, rank not in done)
                if rank not in done:
                    yield Block(0, rank, records=[record], path=source.path)


def _place_of(letter: Any, path: str, number: int) -> tuple[int, int, int]:
    try:
        position = position_in(letter) or {}
        return position["place"], position["before"], position["of"]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigurationError(
            f"{path}: dead letter {number:,} does not say where its row belongs in an output (an earlier version wrote "
            f"it, or its run wrote no output); {_CURE}."
        ) from None
