"""With its model in a host, a pipeline has the same values, timestamps, windows, dead letters and metrics."""

from __future__ import annotations

import os
import signal

import apache_beam as beam
import pytest
from apache_beam.transforms import window

from headrace import PlacementConfig
from headrace.beam import ModelHandler, RunInference
from pipelines import by_second
from toys import Acting

pytestmark = pytest.mark.usefixtures("module_travels")

MB = 1 << 20


class Adder(ModelHandler):
    """Adds a number from a large model; some examples raise, kill the process or hang."""

    def __init__(self, amount=1, **options):
        super().__init__(**options)
        self.amount = amount

    def load_model(self):
        return self.amount, bytearray(os.urandom(MB)) * 64

    def run_inference(self, batch, model, inference_args=None):
        if 13 in batch:
            raise ValueError("thirteen")
        if 99 in batch:
            signal.raise_signal(signal.SIGKILL)
        if 98 in batch:
            signal.pause()
        return [example + model[0] + (inference_args or {}).get("plus", 0) for example in batch]

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


@pytest.mark.parametrize(
    ("arguments", "handling"),
    [
        ({"placement": PlacementConfig(isolate=True)}, None),
        ({}, {"timeout": 60}),
        ({}, {"use_subprocess": True}),
    ],
)
def test_options_that_isolate(run, processes, arguments, handling):
    transform = RunInference(Where(max_batch_size=2), **arguments)
    out = run.create(range(9)) | (transform if handling is None else transform.with_exception_handling(**handling))
    found = run.values(good=out if handling is None else out[0])
    [host] = {host for _, *hosts in found for host in hosts}
    assert host != os.getpid()
    assert processes() == []


def refuse_to_load():
    raise OSError("no such model")


@pytest.mark.parametrize(("isolate", "elements"), [(False, [1]), (True, [])])
def test_model_that_does_not_load_fails_the_pipeline_with_and_without_elements(run, processes, isolate, elements):
    with pytest.raises(OSError, match="no such model"):
        run.infer(elements, Acting(load=refuse_to_load), isolate=isolate)
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


@pytest.mark.parametrize("isolate", [False, True])
def test_threads_share_a_model_or_its_host_and_count_together(make_run, isolate):
    run = make_run(direct_num_workers=2, direct_running_mode="multi_threading")
    found = run.infer(run.create(range(200)) | beam.Reshuffle(), Where(max_batch_size=5), isolate=isolate)
    assert [host == os.getpid() for host in {host for *_, host in found}] == [not isolate]
    assert sorted(n for n, *_ in found) == list(range(200))
    assert run.metrics()["RunInference", "num_inferences"] == 200
    assert run.metrics()["RunInference", "load_model_latency_milli_secs"].count == 1
