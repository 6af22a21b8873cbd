"""Unbounded input on the bundle-based direct runner: windows and timestamps are kept."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import window

from headrace.beam import RunInference
from toys import Acting


def triple(batch):
    if 13 in batch:
        raise ValueError("thirteen")
    return [3 * example for example in batch]


def described(value, time=beam.DoFn.TimestampParam, where=beam.DoFn.WindowParam):
    return value, int(time), int(where.end)


def test_stream_keeps_its_windows():
    options = PipelineOptions()
    options.view_as(StandardOptions).streaming = True
    stream = (
        test_stream.TestStream()
        .advance_watermark_to(0)
        .add_elements([window.TimestampedValue(n, n) for n in (1, 2)])
        .advance_watermark_to(10)
        .add_elements([window.TimestampedValue(n, n) for n in (12, 13)])
        .advance_watermark_to_infinity()
    )
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
        events = pipeline | stream | beam.WindowInto(window.FixedWindows(10))
        good, dead = events | RunInference(Acting(triple)).with_exception_handling()
        assert_that(
            good | "Good" >> beam.Map(described), equal_to([(3, 1, 10), (6, 2, 10), (36, 12, 20)]), label="good"
        )
        failed = dead.failed_inferences | beam.Map(lambda record: record[0]) | "Dead" >> beam.Map(described)
        assert_that(failed, equal_to([([13], 13, 20)]), label="dead")
