"""In a host, or on a second thread, a model has the same values, timestamps, windows, dead letters and metrics."""

from __future__ import annotations

import os
import signal
import threading

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics
from apache_beam.transforms import window

from headrace import BatchingConfig, ConfigurationError, predict
from headrace.beam import ModelHandler, RunInference
from headrace.runtime import local_executor
from pipelines import by_second
from toys import Acting, Always, with_attributes

pytestmark = pytest.mark.usefixtures("module_travels")

MB = 1 << 20


class Adder(ModelHandler):
    """Adds a number from a large model; some examples raise, kill the process or hang."""

    def load_model(self):
        return 1, bytearray(os.urandom(MB)) * 64

    def run_inference(self, batch, model, inference_args=None):
        if 13 in batch:
            raise ValueError("thirteen")
        if 99 in batch:
            signal.raise_signal(signal.SIGKILL)
        if 98 in batch:
            signal.pause()
        return [example + model[0] for example in batch]

    def get_num_bytes(self, batch):
        return 8 * len(batch)


class Where(ModelHandler):
    def load_model(self):
        return os.getpid()

    def run_inference(self, batch, model, inference_args=None):
        return [(example, model, os.getpid()) for example in batch]


def figures(run):
    """The metrics; of times, only the counts."""
    found = run.metrics()
    times = [key for key in found if "secs" in key[1] or "msec" in key[1]]
    assert len(times) >= 3
    counts = {(*key, "count"): found.pop(key).count for key in times}
    size = found.pop(("RunInference", "model_byte_size"))
    assert size.max == pytest.approx(64 * MB, rel=0.25)  # this process allocates other memory meanwhile
    return {**found, **counts, "loads": size.count}


def stages(run, isolate):
    """Outputs and metrics for elements in sliding windows that fail in every stage."""
    handler = Adder(min_batch_size=4, max_batch_size=4).with_preprocess_fn(int)
    handler = handler.with_postprocess_fn(lambda n: n // (n - 9)).with_postprocess_fn(str)
    words = [str(n) for n in range(12)] + ["x", "13", "14"]
    elements = by_second(run, "Words", [(word, n) for n, word in enumerate(words)], window.SlidingWindows(10, 5))
    good, dead = elements | RunInference(handler, isolate=isolate).with_exception_handling()
    (before,), (after, _) = dead.failed_preprocessing, dead.failed_postprocessing
    found = run.collect(good=good, before=before, inference=dead.failed_inferences, after=after)
    outputs = [found[0], *([((record[0], record[1][:2]), *place) for record, *place in one] for one in found[1:])]
    return [sorted(map(repr, one)) for one in outputs], figures(run)


def test_outputs_and_metrics_are_the_same_in_a_host(make_run):
    here, there = (stages(make_run(), isolate) for isolate in (False, True))
    assert there == here
    assert [len(one) for one in there[0]] == [24, 2, 2, 2]
    assert there[1]["RunInference", "num_inferences"] == 13


def refuse_to_load():
    raise OSError("no such model")


def test_model_that_does_not_load_fails_a_pipeline_without_elements(run, processes):
    with pytest.raises(OSError, match="no such model"):
        run.infer([], Acting(load=refuse_to_load), isolate=True)
    assert processes() == []


@pytest.mark.large
def test_lost_hosts_are_counted(run):
    handler = Adder(min_batch_size=3, max_batch_size=3)
    values, dead_letters = run.caught([1, 98, 2, 3, 99, 4], handler, {"timeout": 1})
    assert sorted(values) == [2, 3, 4, 5]
    assert {(element, error.__name__) for [element], (error, _, _) in dead_letters} == {
        (98, "TimeoutError"),
        (99, "HostDiedError"),
    }
    found = run.metrics()
    assert found["RunInference", "model_host_timeouts"] == 2
    assert found["RunInference", "model_host_deaths"] >= 3
    assert found["RunInference", "num_inferences"] == 4


BUILT = {
    "isolated": lambda handler: RunInference(handler, isolate=True),
    "timed": lambda handler: RunInference(handler).with_exception_handling(timeout=1),
    "in Beam's words": lambda handler: RunInference(handler).with_exception_handling(use_subprocess=True),
    "without a pipeline": lambda handler: predict(handler, [1], timeout=1),
}


@pytest.mark.parametrize("build", BUILT.values(), ids=BUILT)
def test_handler_that_does_not_pickle_is_refused_before_anything_runs(build):
    with pytest.raises(ConfigurationError, match=r"Adder\.rows, of type generator, does not pickle.*load_model"):
        build(with_attributes(Adder(), rows=(row for row in ())))


@pytest.mark.parametrize("isolate", [False, True])
def test_threads_share_a_model_or_its_host_and_count_together(make_run, processes, isolate):
    run = make_run(direct_num_workers=2, direct_running_mode="multi_threading")
    infer = RunInference(Where(max_batch_size=5)).with_exception_handling(use_subprocess=isolate)
    good, _ = run.create(range(200)) | beam.Reshuffle() | infer
    found = run.values(good=good)
    assert [host == os.getpid() for host in {host for *_, host in found}] == [not isolate]
    assert processes() == []
    assert sorted(n for n, *_ in found) == list(range(200))
    assert run.metrics()["RunInference", "num_inferences"] == 200
    assert run.metrics()["RunInference", "load_model_latency_milli_secs"].count == 1


def count(batch):
    """Counts calls and their sizes; fails for 5."""
    assert threading.current_thread().name.startswith("headrace-model")
    Metrics.counter("own", "calls").inc()
    Metrics.distribution("own", "sizes").update(len(batch))
    if 5 in batch:
        raise ValueError("5")
    return [example * 10 for example in batch]


def test_metrics_timestamps_and_windows_are_the_same_on_a_second_thread(run, monkeypatch):
    monkeypatch.setattr(local_executor, "AdaptiveOverlap", Always)
    rows = by_second(run, "Rows", [(n, n) for n in range(20)], window.SlidingWindows(10, 5))
    handler = Acting(count).with_postprocess_fn(lambda value: value + 1)
    good, failed = rows | RunInference(handler, batching=BatchingConfig(4, 4)).with_exception_handling()
    found, dead = run.collect(good=good, dead=failed.failed_inferences)
    starts = range(-5, 20, 5)
    expected = [(n * 10 + 1, n, (s, s + 10)) for n in range(20) if n != 5 for s in starts if s <= n < s + 10]
    assert sorted(found) == expected
    assert [record[0] for record, *_ in dead] == [[5], [5]]
    sizes = run.metrics()["own", "sizes"]
    assert sizes.count == run.metrics()["own", "calls"]
    assert (sizes.min, sizes.max) == (1, 4)
    assert sizes.sum > 20
