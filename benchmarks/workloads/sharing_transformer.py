"""A T5-large-sized model in two processes: a copy each, shared, and none at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elsewhere.sharing import Plan
from measure import BEAM, HEADRACE

from workloads.sharing import MB, PROCEDURE, Variant, both_sides, interval, judge, ratios, row, runs_of, take_turns

TITLE = "Sharing a model of 3 GB"

ABOUT = f"""\
A T5 model of the size of t5-large with random weights, from a folder in `transformers`' format (safetensors); one pass
through encoder and decoder for each row of 16 tokens, in batches of 4, which uses all weights. The second process asks
for the model when the first one has begun its first batch. *Second process ms* is from then, its imports done, to the
begin of its own first batch. *Shared* is `large_model=True`; *no model* has the same imports and rows.

{PROCEDURE}"""

NONE, PRIVATE, SHARED = "no model", "a copy each", "shared"

_START_GOAL_MS = 150.0
_EXTRA_GOAL_MB = 50.0
"""For each process, beside one copy of the model."""
_PROCESSES = 2


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each variant."""
    model = folder / "model"
    _save(model, "tiny" if quick else "large")
    nbytes = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    handler, settings = "elsewhere.answerer:AnswererHandler", {"model": str(model)}
    private = Plan("", handler, "", 64 if quick else 96, 4, _PROCESSES, settings, one_after_another=True)
    shared = replace(private, options={"large_model": True})
    none = replace(private, side=HEADRACE, handler="elsewhere.answerer:AbsentAnswererHandler")
    variants = [*both_sides({PRIVATE: private, SHARED: shared})]
    runs = take_turns(variants, folder, repeats, tolerance=1e-3)
    runs |= take_turns([Variant(NONE, none)], folder / "none", 1)
    for name, found in runs.items():
        starts = interval([run.last_start * 1e3 for run in found])
        yield {**row(name, found), "second process ms": str(starts), "model_bytes": nbytes}


def _save(folder: Path, size: str) -> None:
    """In a process of its own, which gives the memory back."""
    command = [sys.executable, "-m", "elsewhere.answerer", folder, size]
    environment = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    subprocess.run(command, cwd=Path(__file__).parents[1], env=environment, check=True, capture_output=True)


def remarks(facts: Sequence[Mapping[str, Any]]) -> str:
    """Whether the goals are reached."""
    runs, copy = runs_of(facts), facts[0]["model_bytes"]
    without = runs[NONE][0].pss
    lines = [f"One copy is {copy / MB:,.0f} MB; without a model the processes take {without / MB:,.0f} MB."]
    for side in (HEADRACE, BEAM):
        shared, private = f"{side}, {SHARED}", f"{side}, {PRIVATE}"
        starts = interval([run.last_start * 1e3 for run in runs[shared]])
        extra = interval([(run.pss - without - copy) / MB / _PROCESSES for run in runs[shared]])
        lines += [
            judge(f"{side}, the second process's start", starts, _START_GOAL_MS, unit=" ms"),
            judge(f"{side}, memory beside one copy, for each process", extra, _EXTRA_GOAL_MB, unit=" MB"),
            f"- {side}, rows/s shared / private: {ratios(runs, shared, private, lambda run: run.rate)}",
            f"- {side}, CPU s shared / private: {ratios(runs, shared, private, lambda run: run.cpu_seconds)}",
        ]
    return "\n".join([lines[0], "", *lines[1:]])
