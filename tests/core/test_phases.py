"""Functions are marked once; a stack tells the innermost phase."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from headrace.core.phases import Phase, during, phase_of


@during(Phase.READING)
def rows() -> Iterator[Phase | None]:
    while True:
        yield phase_of(sys._getframe())


@during(Phase.WRITING)
def written(source: Iterator[Phase | None]) -> list[Phase | None]:
    return [next(source), phase_of(sys._getframe())]


def test_the_innermost_marked_function_decides() -> None:
    assert written(rows()) == [Phase.READING, Phase.WRITING]
    assert phase_of(sys._getframe()) is None
