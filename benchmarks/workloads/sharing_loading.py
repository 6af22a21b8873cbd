"""A model whose loading takes long, in two processes: loaded by each, and once for both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from elsewhere.sharing import Plan

from workloads.sharing import PRIVATE, PROCEDURE, SHARED, both_sides, row, start_goals, take_turns

TITLE = "Sharing a model that takes 10 s to load"

ABOUT = f"""\
Layers of 200 MB, whose weights are drawn from a random generator so often that loading takes one core for about 10 s,
as compilers and converters of models do; in batches of 16 rows. *Private*: two processes load a copy each, both at
once; *shared*: `large_model=True`.

{PROCEDURE}"""

GOALS = start_goals("Loading of 10 s", wall=1.0)


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each variant."""
    settings = {"layers": 1, "draws": 1} if quick else {"layers": 12, "draws": 50}
    rows = 64 if quick else 8192
    private = Plan("", "elsewhere.slow_loading:SlowLoadingHandler", "", rows, 16, 2, settings)
    variants = both_sides({PRIVATE: private, SHARED: replace(private, options={"large_model": True})})
    for name, runs in take_turns(variants, folder, repeats, tolerance=1e-3).items():
        yield row(name, runs)
