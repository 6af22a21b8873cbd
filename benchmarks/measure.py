"""Runs the same pipeline around several transforms in turn, and times each run."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.metrics import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from outputs import Outputs, OutputsDifferError

HEADRACE, BEAM, NO_OP = "Headrace", "Beam", "no-op"

Transform = Callable[..., beam.PTransform]
"""Makes a new transform for each run; Headrace's takes further arguments of ``RunInference``."""


@dataclass(frozen=True)
class Case:
    """One comparison: rows, and the two transforms that take turns on them."""

    name: str
    rows: int
    source: Transform
    """Makes the rows, from the root of a pipeline."""
    sides: Mapping[str, Transform]
    """Two transforms by name; ratios are the first one's time divided by the second's."""
    tolerance: float = 0.0
    """Largest difference, absolute and relative, between two predictions that count as equal; 0: exactly equal."""
    workers: int = 1
    """Threads of the runner; each has one bundle at a time."""


@dataclass(frozen=True)
class Run:
    """One run of a pipeline, from its submission to its end, including the loading of the model."""

    seconds: float
    cpu_seconds: float
    """Of all threads of this process and of the processes that it started; other processes on the machine disturb it
    less than the wall time."""
    bundle_seconds: float
    """From the start of the first bundle to the end of the last: excludes submission, and the loading of a model in
    this process."""
    steady_seconds: float
    """From the first row that comes out to the end of the last bundle: excludes the first batch, and the wait for a
    model in another process."""
    batches: int
    """The number of batches that the model got; 0 without a model."""


@dataclass(frozen=True)
class Comparison:
    """All runs of a case; run i of one side was next to run i of the other."""

    case: Case
    runs: dict[str, list[Run]]

    def seconds(self, side: str) -> list[float]:
        """Wall time of each run."""
        return [run.seconds for run in self.runs[side]]

    def cpu_seconds(self, side: str) -> list[float]:
        """CPU time of each run."""
        return [run.cpu_seconds for run in self.runs[side]]

    def bundle_seconds(self, side: str) -> list[float]:
        """Wall time of the bundles of each run."""
        return [run.bundle_seconds for run in self.runs[side]]

    @property
    def ratio_of_medians(self) -> float:
        """The first side's median time divided by the second's: below 1 the first is faster."""
        return self._ratio_of_medians(self.seconds)

    @property
    def median_of_ratios(self) -> float:
        """The median of the ratios of neighbouring runs, which cancels a slow drift of the machine."""
        return self._median_of_ratios(self.seconds)

    @property
    def ratio_of_cpu_medians(self) -> float:
        """As ``ratio_of_medians``, of CPU time."""
        return self._ratio_of_medians(self.cpu_seconds)

    @property
    def ratio_of_bundle_medians(self) -> float:
        """As ``ratio_of_medians``, of the bundles' time."""
        return self._ratio_of_medians(self.bundle_seconds)

    @property
    def median_of_bundle_ratios(self) -> float:
        """As ``median_of_ratios``, of the bundles' time."""
        return self._median_of_ratios(self.bundle_seconds)

    def start_up_seconds(self, side: str) -> float:
        """The median time of a run before and after its bundles."""
        return statistics.median(run.seconds - run.bundle_seconds for run in self.runs[side])

    def microseconds_a_row(self, side: str) -> float:
        """The bundles' median time per row, beyond that with a transform that does nothing."""
        extra = statistics.median(self.bundle_seconds(side)) - statistics.median(self.bundle_seconds(NO_OP))
        return extra / self.case.rows * 1e6

    def _ratio_of_medians(self, times: Callable[[str], list[float]]) -> float:
        first, second = (statistics.median(times(side)) for side in self.case.sides)
        return first / second

    def _median_of_ratios(self, times: Callable[[str], list[float]]) -> float:
        firsts, seconds = map(times, self.case.sides)
        return statistics.median(first / second for first, second in zip(firsts, seconds, strict=True))


def compare(case: Case, repeats: int, tell: Callable[[str], None]) -> Comparison:
    """Runs both sides in turn, ``repeats`` times each, after one run of each whose outputs are compared.

    The order alternates: a run depends on the memory that the previous run has left behind, so each side must follow
    the other as often as itself. For the same reason the no-op runs come last, on their own.

    Raises:
        OutputsDifferError: the two sides predict differently, or rows are lost.
    """
    check_equal(case)
    runs: dict[str, list[Run]] = {side: [] for side in case.sides}
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
    first, second = (Outputs(_run(case, transform)) for transform in case.sides.values())
    first.check_same(second, tolerance=case.tolerance)


def _in_turn(case: Case, repeat: int) -> list[tuple[str, Transform]]:
    sides = list(case.sides.items())
    return sides if repeat % 2 == 0 else sides[::-1]


class _Keep(beam.DoFn):
    """Keeps a pipeline's output; the runner works in this process."""

    kept: list[Any] = []  # noqa: RUF012 - shared by all copies on purpose

    def process(self, element: Any) -> None:
        _Keep.kept.append(element)


class _Count(beam.DoFn):
    """Counts a pipeline's output; keeping it would burden the garbage collector, and so the measurement.

    Fused with the transform, it sees when a bundle begins, before its first row and after every ``setup``, and when it
    ends, after the transform's own ``finish_bundle``.
    """

    counts: list[int] = []  # noqa: RUF012 - shared by all copies on purpose
    began: list[float] = []  # noqa: RUF012 - shared by all copies on purpose
    first_rows: list[float] = []  # noqa: RUF012 - the same
    ended: list[float] = []  # noqa: RUF012 - the same

    @classmethod
    def reset(cls) -> None:
        cls.counts, cls.began, cls.first_rows, cls.ended = [], [], [], []

    def start_bundle(self) -> None:
        self._count = 0
        _Count.began.append(time.perf_counter())

    def process(self, _: Any) -> None:
        if not self._count:
            _Count.first_rows.append(time.perf_counter())
        self._count += 1

    def finish_bundle(self) -> None:
        _Count.counts.append(self._count)
        _Count.ended.append(time.perf_counter())


def _time(case: Case, transform: Transform) -> Run:
    _Count.reset()
    gc.collect()
    pipeline = _pipeline(case, transform, _Count())
    wall, cpu = time.perf_counter(), _cpu_seconds()
    result = pipeline.run()
    result.wait_until_finish()
    seconds, cpu_seconds = time.perf_counter() - wall, _cpu_seconds() - cpu
    _check_count(case, sum(_Count.counts))
    bundles, steady = (max(_Count.ended) - min(since) for since in (_Count.began, _Count.first_rows))
    return Run(seconds, cpu_seconds, bundles, steady, _count_batches(result))


def _cpu_seconds() -> float:
    """Of this process, and of the children that it has waited for, with theirs."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _run(case: Case, transform: Transform) -> list[Any]:
    _Keep.kept = []
    _pipeline(case, transform, _Keep()).run().wait_until_finish()
    _check_count(case, len(_Keep.kept))
    return _Keep.kept


def _count_batches(result: Any) -> int:
    found = result.metrics().query(MetricsFilter().with_name("inference_request_batch_size"))["distributions"]
    return sum(one.committed.count for one in found)


def _pipeline(case: Case, transform: Transform, sink: beam.DoFn) -> beam.Pipeline:
    mode = "in_memory" if case.workers == 1 else "multi_threading"
    options = PipelineOptions(direct_num_workers=case.workers, direct_running_mode=mode)
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=options)
    _ = pipeline | "Rows" >> case.source() | "Transform" >> transform() | "Sink" >> beam.ParDo(sink)
    return pipeline


def _check_count(case: Case, count: int) -> None:
    if count != case.rows:
        raise OutputsDifferError(f"{case.name}: {case.rows} rows went in, {count} came out")


def _itself(row: Any) -> Any:
    return row
