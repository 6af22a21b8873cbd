"""Two copies of a model that holds the interpreter's lock, for one worker process with one thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elsewhere.sharing import Plan
from measure import BEAM, HEADRACE

from workloads.sharing import PROCEDURE, both_sides, interval, judge, ratios, row, runs_of, take_turns

TITLE = "Two copies of a model in plain Python, one worker"

ABOUT = f"""\
The model computes in Python, about a millisecond a row, and holds the interpreter's lock meanwhile; batches of 32. The
one worker process has one thread. *Copies* is `model_copies`. Beam's copies are all in the worker process; it asks them
in turn and waits for each.

{PROCEDURE}

For this page, *all rows/s* is what counts: from the first batch's begin to the last one's end."""

ONE, TWO = "one copy", "two copies"

GOAL = 1.8
"""Least throughput of two copies, in units of one copy's."""


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each variant."""
    settings = {"steps": 10_000}
    rows = 320 if quick else 6400
    one = Plan("", "elsewhere.counter:CounterHandler", "", rows, 32, 1, settings, {"model_copies": 1})
    variants = list(both_sides({ONE: one, TWO: replace(one, options={"model_copies": 2})}))
    for name, runs in take_turns(variants, folder, repeats).items():
        yield {**row(name, runs), "all rows/s": str(interval([run.whole_rate for run in runs]))}


def remarks(facts: Sequence[Mapping[str, Any]]) -> str:
    """Whether the goal is reached."""
    runs = runs_of(facts)
    found = {side: ratios(runs, f"{side}, {TWO}", f"{side}, {ONE}", lambda run: run.whole_rate) for side in _SIDES}
    return "\n".join(
        judge(f"{side}, all rows/s of two copies / one", ratio, GOAL, at_least=True) for side, ratio in found.items()
    )


_SIDES = (HEADRACE, BEAM)
