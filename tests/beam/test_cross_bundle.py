"""Bounded input: open bundles of a process's threads fill their last batches together."""

from __future__ import annotations

import threading

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import window

from headrace.beam import RunInference
from toys import Acting

BOTH = threading.Barrier(2)


def sizes(**options):
    """A handler that answers each example with the size of its batch."""

    def with_size(batch):  # a local function is pickled by value
        if 13 in batch:
            raise ValueError("thirteen")
        return [(example, len(batch)) for example in batch]

    return Acting(with_size, **options)


def both_are_open(element):
    """Returns when each of the two threads has an element."""
    BOTH.wait(30)
    return element


def with_place(value, timestamp=beam.DoFn.TimestampParam, where=beam.DoFn.WindowParam):
    return value, float(timestamp), float(where.start)


def two_bundles(pipeline, *elements):
    """Two elements in two windows, each in a bundle of its own."""
    stamped = pipeline | beam.Create(elements) | beam.Map(lambda n: window.TimestampedValue(n, n))
    return stamped | beam.WindowInto(window.FixedWindows(10)) | beam.Reshuffle()


def pipeline():
    options = PipelineOptions(direct_num_workers=2, direct_running_mode="multi_threading")
    return beam.Pipeline(runner=FnApiRunner(), options=options)


@pytest.mark.parametrize("isolate", [False, True])
def test_bundles_share_a_batch(isolate):
    handler = sizes(min_batch_size=2, max_batch_size=2, max_batch_duration_secs=60)
    with pipeline() as p:
        opened = two_bundles(p, 1, 11) | "Open" >> beam.Map(both_are_open)
        out = opened | RunInference(handler, isolate=isolate) | "See" >> beam.Map(with_place)
        assert_that(out, equal_to([((1, 2), 1.0, 0.0), ((11, 2), 11.0, 10.0)]))


def test_dead_letter_stays_in_its_bundle():
    handler = sizes(min_batch_size=2, max_batch_size=2, max_batch_duration_secs=60)
    with pipeline() as p:
        opened = two_bundles(p, 1, 13) | "Open" >> beam.Map(both_are_open)
        good, dead = opened | RunInference(handler).with_exception_handling()
        assert_that(good | "See" >> beam.Map(with_place), equal_to([((1, 1), 1.0, 0.0)]), "good")
        dead_letters = dead.failed_inferences | beam.Map(lambda record: record[0]) | "Where" >> beam.Map(with_place)
        assert_that(dead_letters, equal_to([([13], 13.0, 10.0)]), "dead")


def test_bundle_that_is_alone_does_not_wait():
    handler = sizes(min_batch_size=2, max_batch_size=2, max_batch_duration_secs=10_000)
    with beam.Pipeline(runner=FnApiRunner()) as p:
        assert_that(p | beam.Create([1]) | RunInference(handler), equal_to([(1, 1)]))


@pytest.mark.parametrize("isolate", [False, True])
def test_bundles_are_sorted_together(isolate):
    handler = sizes(max_batch_duration_secs=60, batch_length_fn=abs, min_batch_size=2, max_batch_size=2)
    with pipeline() as p:
        opened = two_bundles(p, 1, 11) | "Open" >> beam.Map(both_are_open)
        out = opened | RunInference(handler, isolate=isolate) | "See" >> beam.Map(with_place)
        assert_that(out, equal_to([((1, 2), 1.0, 0.0), ((11, 2), 11.0, 10.0)]))
