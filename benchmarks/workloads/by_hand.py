"""The loop that one would write around an asynchronous client, beside Headrace: programs of the folder elsewhere."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from goals import of, ratios
from measure import HEADRACE

BY_HAND = "by hand"
SEMAPHORES = (8, 32, 128)

ABOUT = f"""\
The loop by hand has a semaphore of {", ".join(map(str, SEMAPHORES))}, of which the best counts"""

Run = dict[str, Any]


def case(what: str, side: str) -> str:
    """The name of what a side does."""
    return f"{what}, {side}"


def asked(program: str, *words: object, at_once: int | None = None) -> list[str]:
    """What a program prints that asks an endpoint: with Headrace, or by hand with so many requests at once."""
    command = [sys.executable, "-m", f"elsewhere.{program}", *map(str, words)]
    command += [] if at_once is None else [str(at_once)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    return done.stdout.split()


def best(run: Callable[[int], Run], figure: str, *, quick: bool = False) -> Run:
    """The run by hand whose semaphore gives the most."""
    return max(map(run, SEMAPHORES[1:2] if quick else SEMAPHORES), key=itemgetter(figure))


def in_turn(
    what: str, run: Callable[[int | None], Run], figure: str, repeats: int, *, quick: bool
) -> Iterator[tuple[str, list[Run]]]:
    """The runs of both sides, which take turns, each with its name."""
    runs: dict[str, list[Run]] = {HEADRACE: [], BY_HAND: []}
    for _ in range(repeats):
        runs[HEADRACE].append(run(None))
        runs[BY_HAND].append(best(run, figure, quick=quick))
    return ((case(what, side), some) for side, some in runs.items())


def beside_hand(what: str, figure: str) -> Any:
    """Headrace's figures, divided by those of the loop by hand."""
    ours, by_hand = (of(case(what, side), figure) for side in (HEADRACE, BY_HAND))
    return lambda results: ratios(ours(results), by_hand(results))


def middle(runs: list[Run], figure: str) -> float:
    """The median of a figure."""
    return statistics.median(run[figure] for run in runs)
