"""Batches on a second thread: the handler's own metrics, timestamps and windows are the same."""

from __future__ import annotations

import threading

import apache_beam as beam
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import SlidingWindows, TimestampedValue

from headrace import BatchingConfig, ModelHandler
from headrace.beam import RunInference
from headrace.runtime import background
from toys import Always


class Counting(ModelHandler):
    """Counts its calls and their sizes; fails for 5."""

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        assert threading.current_thread().name.startswith("headrace-model")
        Metrics.counter("own", "calls").inc()
        Metrics.distribution("own", "sizes").update(len(batch))
        if 5 in batch:
            raise ValueError("5")
        return [example * 10 for example in batch]


def with_window(value, windowed=beam.DoFn.WindowParam, timestamp=beam.DoFn.TimestampParam):
    return value, float(windowed.start), float(timestamp)


def test_metrics_timestamps_and_windows_are_the_same_on_a_second_thread(monkeypatch):
    monkeypatch.setattr(background, "AdaptiveOverlap", Always)
    pipeline = beam.Pipeline(FnApiRunner())
    rows = pipeline | beam.Create([TimestampedValue(n, n) for n in range(20)]) | beam.WindowInto(SlidingWindows(10, 5))
    handler = Counting().with_postprocess_fn(lambda value: value + 1)
    good, failed = rows | RunInference(handler, batching=BatchingConfig(4, 4)).with_exception_handling()
    expected = [
        (n * 10 + 1, start, n) for n in range(20) if n != 5 for start in range(-5, 20, 5) if start <= n < start + 10
    ]
    assert_that(good | beam.Map(with_window), equal_to(expected))
    assert_that(failed.failed_inferences | beam.Map(lambda dead_letter: dead_letter[0]), equal_to([[5], [5]]), "failed")
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace("own"))
    (calls,) = (metric.committed for metric in found["counters"])
    (sizes,) = (metric.committed for metric in found["distributions"])
    assert sizes.count == calls
    assert (sizes.min, sizes.max) == (1, 4)
    assert sizes.sum > 20
