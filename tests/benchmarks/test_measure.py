"""Runs are counted, checked and put into ratios the right way round."""

import time
from dataclasses import replace

import apache_beam as beam
import pytest

from headrace import PredictionResult


@pytest.fixture
def measure(benchmark_module):
    return benchmark_module("measure")


@pytest.fixture
def make_case(measure):
    """A case without a model: each side is a function from a number to its results."""

    def make(ours, theirs, names=("Headrace", "Beam")):
        sides = (lambda: beam.FlatMap(ours)), (lambda: beam.FlatMap(theirs))
        return measure.Case(
            name="numbers", rows=10, source=lambda: beam.Create(range(10)), sides=dict(zip(names, sides, strict=True))
        )

    return make


def doubled(number):
    return [PredictionResult(number, number * 2)]


def tripled(number):
    return [PredictionResult(number, number * 3)]


def test_differing_predictions_stop_the_benchmark(measure, make_case):
    with pytest.raises(measure.OutputsDifferError, match="9 of 10 predictions differ"):
        measure.compare(make_case(tripled, doubled), 1, print)


def test_lost_rows_stop_the_benchmark(measure, make_case):
    lossy = make_case(lambda number: doubled(number) if number else [], doubled)
    with pytest.raises(measure.OutputsDifferError, match="10 rows went in, 9 came out"):
        measure.compare(lossy, 1, print)


def test_ratios_divide_the_first_sides_time_by_the_seconds(measure, make_case):
    def runs(*seconds, start_up):
        return [measure.Run(one, 2 * one, one - start_up, one, 1) for one in seconds]

    comparison = measure.Comparison(
        make_case(doubled, doubled, names=("hosted", "in-process")),
        {
            "hosted": runs(1.0, 1.0, 4.0, start_up=0.75),
            "in-process": runs(2.0, 4.0, 4.0, start_up=1.5),
            "no-op": runs(0.5, 0.5, 0.5, start_up=0.375),
        },
    )

    assert comparison.ratio_of_medians == comparison.ratio_of_cpu_medians == 0.25
    assert comparison.median_of_ratios == 0.5
    assert comparison.ratio_of_bundle_medians == 0.1
    assert comparison.median_of_bundle_ratios == 0.5
    assert comparison.start_up_seconds("hosted") == 0.75
    assert comparison.microseconds_a_row("hosted") == pytest.approx(0.0125e6)


class Clocked(beam.DoFn):
    """Doubles, and records when each method was last called."""

    moments = None

    def setup(self):
        Clocked.moments = {"setup": time.perf_counter()}

    def process(self, number):
        Clocked.moments.setdefault("first row", time.perf_counter())
        return doubled(number)

    def finish_bundle(self):
        Clocked.moments["finish"] = time.perf_counter()

    def teardown(self):
        Clocked.moments["teardown"] = time.perf_counter()


@pytest.mark.large
def test_both_sides_run_as_often_as_asked_and_start_up_is_no_time_of_bundles(measure, make_case):
    told, case = [], make_case(doubled, doubled)
    clocked = replace(case, sides={**case.sides, "Beam": lambda: beam.ParDo(Clocked())})
    comparison = measure.compare(clocked, 3, told.append)

    assert {side: len(runs) for side, runs in comparison.runs.items()} == {"Headrace": 3, "Beam": 3, "no-op": 3}
    assert [line.split()[2] for line in told] == ["Headrace", "Beam", "Beam", "Headrace", "Headrace", "Beam"]
    for runs in comparison.runs.values():
        assert all(run.seconds > run.bundle_seconds > run.steady_seconds > 0 and run.cpu_seconds > 0 for run in runs)
    moments, last = Clocked.moments, comparison.runs["Beam"][-1]
    assert moments["finish"] - moments["first row"] <= last.bundle_seconds <= moments["teardown"] - moments["setup"]
    assert last.steady_seconds <= moments["teardown"] - moments["first row"]
