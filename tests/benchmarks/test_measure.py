"""Runs are counted, checked and put into ratios the right way round."""

import apache_beam as beam
import pytest

from headrace import PredictionResult


@pytest.fixture
def measure(benchmark_module):
    return benchmark_module("measure")


@pytest.fixture
def make_case(measure):
    """A case without a model: each side is a function from a number to its results."""

    def make(ours, theirs):
        return measure.Case(
            name="numbers",
            rows=10,
            source=lambda: beam.Create(range(10)),
            headrace=lambda: beam.FlatMap(ours),
            beam=lambda: beam.FlatMap(theirs),
        )

    return make


def doubled(number):
    return [PredictionResult(number, number * 2)]


def tripled(number):
    return [PredictionResult(number, number * 3)]


def test_both_sides_run_as_often_as_asked(measure, make_case):
    told = []
    comparison = measure.compare(make_case(doubled, doubled), 3, told.append)

    assert {side: len(runs) for side, runs in comparison.runs.items()} == {"Headrace": 3, "Beam": 3, "no-op": 3}
    assert [line.split()[2] for line in told] == ["Headrace", "Beam", "Beam", "Headrace", "Headrace", "Beam"]
    assert all(run.seconds > 0 and run.cpu_seconds > 0 for runs in comparison.runs.values() for run in runs)


def test_other_predictions_stop_the_benchmark(measure, make_case):
    with pytest.raises(measure.OutputsDifferError, match="9 of 10 predictions differ"):
        measure.compare(make_case(tripled, doubled), 1, print)


def test_lost_rows_stop_the_benchmark(measure, make_case):
    lossy = make_case(lambda number: doubled(number) if number else [], doubled)
    with pytest.raises(measure.OutputsDifferError, match="10 rows went in, 9 came out"):
        measure.compare(lossy, 1, print)


def test_ratios_are_headraces_time_in_units_of_beams(measure, make_case):
    def runs(*seconds):
        return [measure.Run(one, 2 * one, 1) for one in seconds]

    comparison = measure.Comparison(
        make_case(doubled, doubled),
        {"Headrace": runs(1.0, 1.0, 4.0), "Beam": runs(2.0, 4.0, 4.0), "no-op": runs(0.5, 0.5, 0.5)},
    )

    assert comparison.ratio_of_medians == comparison.ratio_of_cpu_medians == 0.25
    assert comparison.median_of_ratios == 0.5
    assert comparison.microseconds_a_row("Headrace") == pytest.approx(0.05e6)
