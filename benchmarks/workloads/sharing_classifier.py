"""A small image classifier in one process, in two with a copy each, and in two that share it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from elsewhere.classifier import SIDE, make_network
from elsewhere.sharing import Plan
from measure import BEAM, HEADRACE

from workloads.sharing import PRIVATE, PROCEDURE, SHARED, both_sides, ratio_goals, row, start_goals, take_turns

TITLE = "Sharing a small image classifier"

ABOUT = f"""\
A network of MobileNetV2's shape (3.5 million parameters, 14 MB) over images of 3 x {SIDE} x {SIDE}, in batches of 32.
*Private*: two processes, a copy each; *shared*: two processes, `large_model=True`.

{PROCEDURE}"""

ONE = "one process"

GOALS = [
    *start_goals("Small classifier", wall=1.05),
    *ratio_goals("Small classifier: rows/s, shared / private", (SHARED, PRIVATE), "rate", at_least=0.98),
]

_DOCUMENT = {
    "no_use_multiple_sdk_containers": (ONE, (4.451, 4.503, 4.520), 4.491),
    "(several SDK containers)": (PRIVATE, (4.303, 3.997, 3.856), 4.052),
    "use_sibling_sdk_workers": (PRIVATE, (4.137, 3.564, 4.019), 3.907),
    "use_sibling_sdk_workers, multi_process_shared": (SHARED, (4.863, 4.883, 4.500), 4.749),
}
"""Configurations without a GPU, all with use_runner_v2: the variant here that has as many processes and copies, and the
vCPU hours of the document's three runs and their mean."""

_IMAGES = 100_000
"""That the document's figures are for."""


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each variant."""
    weights = folder / "weights.pt"
    torch.save(make_network().state_dict(), weights)
    settings = {"weights": str(weights)}
    rows = 256 if quick else 4096
    alone = Plan("", "elsewhere.classifier:ClassifierHandler", "", rows, batch=32, processes=1, settings=settings)
    private = replace(alone, processes=2)
    shared = replace(private, options={"large_model": True})
    variants = both_sides({ONE: alone, PRIVATE: private, SHARED: shared})
    for name, runs in take_turns(variants, folder, repeats, tolerance=1e-3).items():
        yield {**row(name, runs), "images": rows}


def remarks(facts: Sequence[Mapping[str, Any]]) -> str:
    """The document's table with what was measured here; empty if not all of it was."""
    hours = {fact["variant"]: _hours(fact) for fact in facts}
    if len(hours) < 2 * len({ONE, PRIVATE, SHARED}):
        return ""
    head = ["configuration (document)", *(f"run {n} (document)" for n in (1, 2, 3)), "mean (document)"]
    head += ["/ siblings (document)", "here", *(f"{side} {what}" for side in (HEADRACE, BEAM) for what in _COLUMNS)]
    siblings = _DOCUMENT["use_sibling_sdk_workers"][2]
    lines = [head, ["---"] * len(head)]
    for name, (variant, figures, mean) in _DOCUMENT.items():
        line = [name, *(f"{figure:.3f}" for figure in (*figures, mean)), f"{mean / siblings:.3f}", variant]
        for side in (HEADRACE, BEAM):
            own, private = hours[f"{side}, {variant}"], hours[f"{side}, {PRIVATE}"]
            line += [f"{own:.3f}", f"{own / private:.3f}"]
        lines.append(line)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{_COMPARISON}\n\n{table}"


_COLUMNS = ("vCPU hours", "/ private")

_CORES = 2
"""Processes at most, each with one thread."""

_COMPARISON = f"""\
The document's table ("Small Tensorflow model", vCPU hours for {_IMAGES:,} images, on other machines, with an engine,
another network and larger images) and beside it what was measured here: {_CORES} cores, busy or not, for as long as so
many images take at the median rate, without the processes' start. Only the columns of ratios should be set against each
other. The document's lines with a GPU are left out, since nothing here runs on one."""


def _hours(fact: Mapping[str, Any]) -> float:
    return _CORES * _IMAGES / statistics.median(run["rate"] for run in fact["runs"]) / 3600
