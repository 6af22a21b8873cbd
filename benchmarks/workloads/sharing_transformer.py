"""A T5-large-sized model in two processes: a copy each, shared, and none at all."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from elsewhere.sharing import Plan
from goals import Figures, Results, find, of
from measure import HEADRACE

from workloads.sharing import (
    MB,
    PRIVATE,
    PROCEDURE,
    SHARED,
    Variant,
    beside_beam,
    both_sides,
    row,
    start_goals,
    take_turns,
)

TITLE = "Sharing a model of 3 GB"

ABOUT = f"""\
A T5 model of the size of t5-large with random weights, from a folder in `transformers`' format (safetensors); one pass
through encoder and decoder for each row of 16 tokens, in batches of 4, which uses all weights. *Private*: a copy in
each of two processes; *shared*: `large_model=True`; *no model*: the same imports and rows. In *shared, one by one* the
second process asks for the model when the first one has begun its first batch; its start is from then, its imports
done, to the begin of its own first batch.

{PROCEDURE}"""

NONE, ONE_BY_ONE = "no model", "shared, one by one"
_PROCESSES = 2


def _memory(results: Results, side: str, field: str) -> Iterator[tuple[float, float]]:
    """Bytes of each shared run, without what the processes take without a model; and of one copy."""
    without = statistics.median(run["pss"] for run in find(results, NONE, "watched"))
    for run in find(results, f"{side}, {SHARED}", "watched"):
        yield run[field] - without, results["facts"][0]["model_bytes"]


def _beside_one_copy(side: str) -> Figures:
    return lambda results: [(size - copy) / MB / _PROCESSES for size, copy in _memory(results, side, "pss")]


def _copies(side: str) -> Figures:
    return lambda results: [size / copy for size, copy in _memory(results, side, "peak_pss")]


def _second_start(side: str) -> Figures:
    return of(f"{side}, {ONE_BY_ONE}", "last_start")


GOALS = [
    *start_goals("T5 of 3 GB", wall=1.03),
    *beside_beam("T5 of 3 GB: second process's start", _second_start, unit=" s", at_most=0.15),
    *beside_beam("T5 of 3 GB: PSS of each process beside one copy", _beside_one_copy, unit=" MB", at_most=50),
    *beside_beam("T5 of 3 GB: greatest PSS beside that without a model, in copies", _copies, at_most=1.15),
]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each variant."""
    model = make_model(Path(os.environ.get("HEADRACE_BENCHMARK_MODELS", folder)), "tiny" if quick else "large")
    nbytes = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    handler, settings = "elsewhere.answerer:AnswererHandler", {"model": str(model)}
    one_by_one = Plan("", handler, "", 64, 4, _PROCESSES, settings, {"large_model": True}, one_after_another=True)
    shared = replace(one_by_one, rows=64 if quick else 96, one_after_another=False)
    none = replace(shared, side=HEADRACE, handler="elsewhere.answerer:AbsentAnswererHandler", options={})
    several = {PRIVATE: replace(shared, options={}), SHARED: shared}
    runs = take_turns(both_sides(several), folder, repeats, 1e-3, watched=2)
    runs |= take_turns(both_sides({ONE_BY_ONE: one_by_one}), folder / "by one", min(repeats, 3), 1e-3, watched=0)
    runs |= take_turns([Variant(NONE, none)], folder / "none", 1)
    for name, found in runs.items():
        yield {**row(name, found), "model_bytes": nbytes}


def make_model(folder: Path, size: str) -> Path:
    """In a folder of its own in this one, unless it is there already."""
    model = folder / f"t5-{size}"
    if not model.exists():
        part = model.with_suffix(".part")
        _save(part, size)
        part.rename(model)
    return model


def _save(folder: Path, size: str) -> None:
    """In a process of its own, which gives the memory back."""
    command = [sys.executable, "-m", "elsewhere.answerer", folder, size]
    environment = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    subprocess.run(command, cwd=Path(__file__).parents[1], env=environment, check=True, capture_output=True)
