"""Runs the same pipeline around several transforms in turn and takes the time of each."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.metrics import MetricsFilter
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from outputs import Outputs, OutputsDifferError

HEADRACE, BEAM, NO_OP = "Headrace", "Beam", "no-op"

Transform = Callable[[], beam.PTransform]


@dataclass(frozen=True)
class Case:
    """One comparison: rows, and the two transforms that they go through in turn."""

    name: str
    rows: int
    source: Transform
    """Makes the rows, from the root of a pipeline."""
    headrace: Transform
    beam: Transform
    tolerance: float = 0.0
    """Largest difference, absolute and relative, between two predictions that count as equal; 0: exactly equal."""


@dataclass(frozen=True)
class Run:
    """One run of a pipeline, from its submission to its end, the loading of the model included."""

    seconds: float
    cpu_seconds: float
    """Of all threads of this process; a busy neighbour disturbs it less than the wall clock."""
    batches: int
    """How many batches the model was given; 0 where there is no model."""


@dataclass(frozen=True)
class Comparison:
    """All runs of a case; run i of Headrace stood next to run i of Beam."""

    case: Case
    runs: dict[str, list[Run]]

    def seconds(self, side: str) -> list[float]:
        """Wall time of each run."""
        return [run.seconds for run in self.runs[side]]

    def cpu_seconds(self, side: str) -> list[float]:
        """CPU time of each run."""
        return [run.cpu_seconds for run in self.runs[side]]

    @property
    def ratio_of_medians(self) -> float:
        """Headrace's median time in units of Beam's: below 1 Headrace is faster."""
        return statistics.median(self.seconds(HEADRACE)) / statistics.median(self.seconds(BEAM))

    @property
    def ratio_of_cpu_medians(self) -> float:
        """The same for CPU time."""
        return statistics.median(self.cpu_seconds(HEADRACE)) / statistics.median(self.cpu_seconds(BEAM))

    @property
    def median_of_ratios(self) -> float:
        """The median of the ratios of neighbouring runs, from which a slow drift of the machine cancels out."""
        pairs = zip(self.seconds(HEADRACE), self.seconds(BEAM), strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    def microseconds_a_row(self, side: str) -> float:
        """Median time beyond what the engine takes for a transform that does nothing, for each row."""
        extra = statistics.median(self.seconds(side)) - statistics.median(self.seconds(NO_OP))
        return extra / self.case.rows * 1e6


def compare(case: Case, repeats: int, tell: Callable[[str], None]) -> Comparison:
    """Runs Headrace and Beam in turn, ``repeats`` times each, after one run of each whose outputs are compared.

    Which of the two goes first alternates: a run depends on what memory the run before it has left behind, so each
    side must follow the other as often as itself. The no-op runs come last, by themselves, for the same reason.

    Raises:
        OutputsDifferError: the two sides predict differently, or rows are lost.
    """
    check_equal(case)
    runs: dict[str, list[Run]] = {HEADRACE: [], BEAM: []}
    for repeat in range(repeats):
        for side, transform in _in_turn(case, repeat):
            runs[side].append(_time(case, transform))
            tell(f"{case.name}: {repeat + 1}/{repeats} {side} {runs[side][-1].seconds:.2f} s")
    runs[NO_OP] = [_time(case, lambda: beam.Map(_itself)) for _ in range(repeats)]
    return Comparison(case, runs)


def check_equal(case: Case) -> None:
    """Runs both sides and compares every prediction.

    Raises:
        OutputsDifferError: they differ.
    """
    ours, theirs = (Outputs(_run(case, transform)) for transform in (case.headrace, case.beam))
    ours.check_same(theirs, tolerance=case.tolerance)


def _in_turn(case: Case, repeat: int) -> list[tuple[str, Transform]]:
    sides = [(HEADRACE, case.headrace), (BEAM, case.beam)]
    return sides if repeat % 2 == 0 else sides[::-1]


class _Keep(beam.DoFn):
    """Keeps what a pipeline puts out; the runner works in this process."""

    kept: list[Any] = []  # noqa: RUF012 - shared by all copies, which is the point

    def process(self, element: Any) -> None:
        _Keep.kept.append(element)


class _Count(beam.DoFn):
    """Counts what a pipeline puts out; keeping it would burden the garbage collector, and so the measurement."""

    count = 0

    def process(self, _: Any) -> None:
        _Count.count += 1


def _time(case: Case, transform: Transform) -> Run:
    _Count.count = 0
    gc.collect()
    pipeline = _pipeline(case, transform, _Count())
    wall, cpu = time.perf_counter(), time.process_time()
    result = pipeline.run()
    result.wait_until_finish()
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    _check_count(case, _Count.count)
    return Run(seconds, cpu_seconds, _count_batches(result))


def _run(case: Case, transform: Transform) -> list[Any]:
    _Keep.kept = []
    _pipeline(case, transform, _Keep()).run().wait_until_finish()
    _check_count(case, len(_Keep.kept))
    return _Keep.kept


def _count_batches(result: Any) -> int:
    found = result.metrics().query(MetricsFilter().with_name("inference_request_batch_size"))["distributions"]
    return sum(one.committed.count for one in found)


def _pipeline(case: Case, transform: Transform, sink: beam.DoFn) -> beam.Pipeline:
    pipeline = beam.Pipeline(runner=FnApiRunner())
    _ = pipeline | "Rows" >> case.source() | "Transform" >> transform() | "Sink" >> beam.ParDo(sink)
    return pipeline


def _check_count(case: Case, count: int) -> None:
    if count != case.rows:
        raise OutputsDifferError(f"{case.name}: {case.rows} rows went in, {count} came out")


def _itself(row: Any) -> Any:
    return row
