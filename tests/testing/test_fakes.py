"""The working fakes pass the contract, take the time they promise, and count their loads."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from headrace import PredictionResult, predict
from headrace.beam import RunInference
from headrace.testing import DoublingHandler, FakeClock, HandlerContract, LoadCountingHandler, SlowHandler


class TestDoublingHandler(HandlerContract):
    handler = DoublingHandler(min_batch_size=1, max_batch_size=8)
    bad_example = None

    def examples(self):
        return [1, 2.5, "a", [3]]


def test_doubling_gives_results_with_their_examples():
    assert list(predict(DoublingHandler(), [1, "a"])) == [PredictionResult(1, 2), PredictionResult("a", "aa")]


def test_a_slow_batch_costs_a_fixed_time_and_some_for_each_example():
    clock = FakeClock()
    handler = SlowHandler(clock, fixed=2.0, each=0.5)
    start = clock.time_ns()
    handler.run_inference([1, 2, 3], handler.load_model())
    assert clock.time_ns() - start == 3_500_000_000


def test_loads_are_counted_by_token_across_copies_and_threads():
    handler = LoadCountingHandler("shared by these two")
    other = LoadCountingHandler("shared by these two")
    apart = LoadCountingHandler()
    copies = [pickle.loads(pickle.dumps(handler)) for _ in range(20)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda copied: copied.load_model(), copies))
    assert (handler.loads, other.loads, apart.loads) == (20, 20, 0)


def test_clock_moves_only_when_advanced():
    clock = FakeClock()
    start = clock.time_ns()
    assert clock.time_ns() == start
    clock.advance(1.5)
    assert clock.time_ns() - start == 1_500_000_000


def test_clock_does_not_run_backwards():
    with pytest.raises(ValueError, match=r"advance\(-1\)"):
        FakeClock().advance(-1)


def test_a_pipeline_measures_a_slow_batch_on_the_fake_clock():
    clock = FakeClock()
    handler = SlowHandler(clock, fixed=2.0, each=0.5, min_batch_size=4, max_batch_size=4)
    pipeline = beam.Pipeline(runner=FnApiRunner())
    doubled = pipeline | beam.Create([[1, 2, 3, 4]]) | beam.FlatMap(list) | RunInference(handler, clock=clock)
    assert_that(doubled | beam.Map(lambda result: result.inference), equal_to([2, 4, 6, 8]))
    result = pipeline.run()
    latency = beam.metrics.MetricsFilter().with_name("inference_batch_latency_micro_secs")
    (found,) = result.metrics().query(latency)["distributions"]
    assert (found.committed.count, found.committed.sum) == (1, 4_000_000)
