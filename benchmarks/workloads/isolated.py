"""What it costs to have the model in a process of its own: against having it in the worker's, and by Beam's means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
from goals import Figures, Goal, ratio_of_sides
from measure import BEAM, HEADRACE, Case, Transform

from workloads import tiny, transformer

TITLE = "The cost of isolation"

_CASES = {
    "tiny": (tiny, ("adaptive batches", "batches of 1,000")),
    "transformer": (transformer, ("batches of 64",)),
}


def _throughput(case: str) -> Figures:
    """Hosted, by that in process, from the first prediction on."""
    return lambda results: [1 / ratio for ratio in ratio_of_sides(case, "steady_seconds")(results)]


GOALS = [
    Goal(f"Steady throughput, {case}: hosted / in process", _throughput(case), at_least=limit)
    for case, limit in (("transformer, batches of 64", 0.98), ("tiny, batches of 1,000", 0.9))
]


def cases(folder: Path, *, quick: bool) -> Iterator[Case]:
    """Cases of other workloads: Headrace with and without a host; where Beam's way is safe, Headrace's host and that.

    Beam's subprocess is a fork of this process, in which PyTorch has computed with several threads: a fork in which
    PyTorch computes may hang then.
    """
    for workload, (module, names) in _CASES.items():
        for case in module.cases(folder, quick=quick):
            if case.name in names:
                yield _in_a_host_or_not(workload, case)
            if (module, case.name) == (tiny, "batches of 1,000"):
                yield _in_a_host_or_beams_subprocess(workload, case)


def _in_a_host_or_not(workload: str, case: Case) -> Case:
    in_process = case.sides[HEADRACE]
    sides = {"hosted": partial(in_process, isolate=True), "in-process": in_process}
    return replace(case, name=f"{workload}, {case.name}", sides=sides)


def _in_a_host_or_beams_subprocess(workload: str, case: Case) -> Case:
    sides = {"hosted": _outlasting(case.sides[HEADRACE]), "Beam's subprocess": _outlasting(case.sides[BEAM])}
    return replace(case, name=f"{workload}, {case.name}, with dead letters", sides=sides)


def _outlasting(transform: Transform) -> Transform:
    return lambda: _Predictions(transform().with_exception_handling(use_subprocess=True))


class _Predictions(beam.PTransform):
    """A RunInference that handles exceptions, without its dead letters."""

    def __init__(self, transform: beam.PTransform) -> None:
        super().__init__()
        self._transform = transform

    def expand(self, rows: beam.PCollection) -> Any:
        predictions, _ = rows | self._transform
        return predictions
