"""Two copies of a model that holds the interpreter's lock, for one worker process with one thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from elsewhere.sharing import Plan
from goals import interval

from workloads.sharing import PROCEDURE, both_sides, ratio_goals, row, take_turns

TITLE = "Two copies of a model in plain Python, one worker"

ABOUT = f"""\
The model computes in Python, about a millisecond a row, and holds the interpreter's lock meanwhile; batches of 32. The
one worker process has one thread. *Copies* is `model_copies`. Beam's copies are all in the worker process; it asks them
in turn and waits for each.

{PROCEDURE}

For this page, *all rows/s* is what counts: from the first batch's begin to the last one's end."""

ONE, TWO = "one copy", "two copies"

GOALS = ratio_goals("model_copies: rows/s of two copies / one", (TWO, ONE), "whole_rate", at_least=1.8)


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each variant."""
    settings = {"steps": 10_000}
    rows = 320 if quick else 6400
    one = Plan("", "elsewhere.counter:CounterHandler", "", rows, 32, 1, settings, {"model_copies": 1})
    variants = both_sides({ONE: one, TWO: replace(one, options={"model_copies": 2})})
    for name, runs in take_turns(variants, folder, repeats).items():
        yield {**row(name, runs), "all rows/s": str(interval([run.whole_rate for run in runs.timed]))}
