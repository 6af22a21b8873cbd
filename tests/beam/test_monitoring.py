"""A monitoring transform gets every prediction, whether postprocessing succeeds, fails or skips it."""

from __future__ import annotations

import apache_beam as beam
import pytest

from headrace import SKIP
from headrace.beam import RunInference
from headrace.testing import DoublingHandler
from pipelines import by_second
from toys import Acting, each

MONITORED: list = []


class Monitor(beam.PTransform):
    def expand(self, pcoll):
        return pcoll | beam.Map(note)


def note(value, timestamp=beam.DoFn.TimestampParam):
    MONITORED.append((value, float(timestamp)))


@pytest.fixture(autouse=True)
def _nothing_monitored():
    MONITORED.clear()


def test_monitoring_gets_predictions_whatever_becomes_of_them(run):
    """Monitoring changes neither their dead letters nor what is skipped."""
    handler = Acting(each(lambda n: 2 * n)).with_preprocess_fn(abs)
    handler = handler.with_postprocess_fn(lambda n: SKIP if n > 7 else n // (n - 4))
    handler = handler.with_postprocess_fn(lambda n: 9 // (n - 3))
    infer = RunInference(handler).with_monitoring_transform(Monitor())
    elements = by_second(run, "Elements", [(n, abs(n)) for n in (1, 2, -3, 4)])
    good, dead, skipped = elements | infer.with_exception_handling().with_skipped_elements()
    one, two = dead.failed_postprocessing
    values, skipped, first, second = run.values(good=good, skipped=skipped, one=one, two=two)
    assert values == [-3]
    assert skipped == [8]
    assert [(element, error[0]) for element, error in first] == [(4, ZeroDivisionError)]
    assert [(element, error[0]) for element, error in second] == [(3, ZeroDivisionError)]
    assert sorted(MONITORED) == [(2, 1.0), (4, 2.0), (6, 3.0), (8, 4.0)]


@pytest.mark.large
def test_monitoring_gets_predictions_that_are_skipped_in_a_host(run):
    def skip_small(result):  # local, so that a host need not import it
        return SKIP if result.inference < 3 else result.inference

    handler = DoublingHandler().with_postprocess_fn(skip_small)
    handler = handler.with_postprocess_fn(lambda number: SKIP if number > 7 else number)
    infer = RunInference(handler, monitoring_transform=Monitor(), isolate=True).with_skipped_elements()
    values, skipped = run.create([1, 2, 3, 4]) | infer
    values, skipped = run.values(good=values, skipped=skipped)
    assert sorted(values) == [4, 6]
    assert sorted(skipped, key=str) == [8, (1, 2, None)]
    assert sorted(value.inference for value, _ in MONITORED) == [2, 4, 6, 8]
