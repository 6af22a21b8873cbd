"""Models in a host behave as in process: loaded once, shared, reported, released."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy
import pytest

from headrace import Failure, KeyedModelHandler, KeyModelMapping, ModelHandler
from headrace.core.errors import HostDiedError
from headrace.core.events import BatchCompleted, BatchFailed, ElementFailed, HostLost, ModelLoaded
from headrace.core.result import Stage
from headrace.runtime.placement import HostedWorker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.testing import (
    BrokenLoadHandler,
    FaultyLoadHandler,
    PoisonHandler,
)
from toy_hosts import has_ended
from toys import Acting, Events, each, fixed, refuse, run

pytestmark = pytest.mark.usefixtures("module_travels")

MB = 1 << 20


class Where(ModelHandler):
    """Predicts the process that it runs in, beside the batch."""

    def load_model(self):
        self.made = "by load_model"
        return os.getpid()

    def run_inference(self, batch, model, inference_args=None):
        assert (self.made, model) == ("by load_model", os.getpid())
        return [(model, list(batch)) for _ in batch]


def hosted(handler, exceptions=(), **request):
    return catching(prepare(handler, InferenceRequest(isolate=True, **request)), exceptions)


def test_threads_share_a_host(opened):
    spec, together = hosted(Where()), threading.Barrier(4)
    workers = [opened(pickle.loads(cloudpickle.dumps(spec))) for _ in range(4)]

    def work(worker):
        together.wait()
        return [host for _ in range(20) for host, _ in run(worker, range(3))]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, workers))
    assert [len(hosts) for hosts in found] == [60] * 4
    assert len(set(itertools.chain.from_iterable(found))) == 1


def test_threads_that_open_at_once_load_once(opened):
    spec, together, events = hosted(Where()), threading.Barrier(4), Events()

    def work(_):
        together.wait()
        return opened(spec)

    with ThreadPoolExecutor(4) as pool:
        workers = list(pool.map(work, range(4)))
    assert len({run(worker, [1], events)[0][0] for worker in workers}) == 1
    assert len(events.of(ModelLoaded)) == 1


def test_host_ends_with_its_last_worker(opened):
    spec = hosted(Where())
    first, second = HostedWorker(spec), opened(spec)
    [(host, _)] = run(first, [1])
    first.close()
    assert run(second, [1])[0][0] == host
    assert not has_ended(host)


def test_events_of_a_run(opened):
    memory = Acting(each(len), lambda: bytearray(os.urandom(MB) * 64))
    events, worker = Events(), opened(hosted(memory, batching=fixed(3)))
    run(worker, ["a"] * 8, events)
    assert [(event.model, event.examples, event.bytes > 10) for event in events.of(BatchCompleted)] == [
        ("", 3, True),
        ("", 3, True),
        ("", 2, True),
    ]
    [loaded] = events.of(ModelLoaded)
    assert (loaded.model, loaded.bytes) == ("", pytest.approx(64 * MB, rel=0.25))
    assert 0 < loaded.seconds < 60
    run(worker, ["a"], events)
    assert len(events) == 5


def test_events_of_failures(opened):
    worker, events = opened(hosted(PoisonHandler(3), ValueError, batching=fixed(4))), Events()
    run(worker, [1, 2, 3, 4], events)
    assert [(event.model, event.examples, repr(event.error)) for event in events.of(BatchFailed)] == [
        ("", 4, "ValueError('poisonous examples: [3]')")
    ]
    assert [event.stage for event in events.of(ElementFailed)] == [Stage.INFERENCE]
    assert sum(event.examples for event in events.of(BatchCompleted)) == 3


def test_error_shows_its_traceback_in_the_host(opened):
    worker = opened(hosted(Acting(each(refuse(3)))))
    with pytest.raises(KeyError) as caught:
        run(worker, [3])
    lines = str(caught.value.__cause__).splitlines()
    ours = [line for line in lines if line.startswith("  ... ") and line.endswith(" of headrace")]
    assert len(ours) == 1
    assert "toys.py" in "".join(lines[lines.index(*ours) :])
    assert "headrace/" not in "".join(lines)


def test_model_that_fails_to_load_is_an_error_of_the_first_bundle(opened):
    with pytest.raises(OSError, match="the model cannot be loaded") as caught:
        run(opened(hosted(BrokenLoadHandler(), Exception)), [])
    assert str(caught.value.__cause__).rstrip().endswith("of headrace\nOSError: the model cannot be loaded")


def test_hosts_that_die_while_loading_are_reported(opened):
    worker, events = opened(hosted(FaultyLoadHandler(lambda: os._exit(3)), Exception)), Events()
    [failure] = run(worker, [1], events)
    assert isinstance(failure.error, HostDiedError)
    assert {(event.model, event.timed_out) for event in events.of(HostLost)} == {("", False)}
    [failed] = events.of(BatchFailed)
    assert failed.error is failure.error


def test_model_that_fails_to_load_does_not_affect_other_models(opened):
    """Not even if elements must be preprocessed before their model is known."""

    def end():
        os._exit(3)

    models = [KeyModelMapping(["bad"], Acting(each(str), end)), KeyModelMapping(["good"], Acting(each(str)))]
    handler = KeyedModelHandler(models).with_preprocess_fn(lambda pair: (pair[0], pair[1] + 1))
    worker, events = opened(hosted(handler, HostDiedError, batching=fixed(1))), Events()
    elements = [("bad", 0), *(("good", n) for n in range(20)), ("bad", 1)]
    outcomes = run(worker, elements, events)
    assert [one for one in outcomes if not isinstance(one, Failure)] == [("good", str(n + 1)) for n in range(20)]
    assert [failure.element for failure in outcomes if isinstance(failure, Failure)] == [("bad", 1), ("bad", 2)]
    assert {event.model for event in events.of(HostLost)} == {"bad"}


@pytest.mark.parametrize("limit", [{}, {"element_size_fn": len, "max_batch_weight": 5}])
def test_batches_are_the_same_as_in_process(opened, limit):
    def whole(batch):
        return [tuple(map(tuple, batch))] * len(batch)

    handler = Acting(whole).with_preprocess_fn(lambda n: [n] * (n % 3))
    elements, batching = list(range(700)), fixed(9, **limit)
    here = run(opened(prepare(handler, InferenceRequest(batching=batching))), elements)
    assert run(opened(hosted(handler, batching=batching)), elements) == here


class Mute:
    """Neither pickles nor has a repr."""

    def __reduce__(self):
        raise TypeError("mute")

    def __repr__(self):
        raise RuntimeError("mute")


def test_dead_letter_that_cannot_leave_the_host_describes_its_element(opened):
    keyed = KeyedModelHandler(Acting(refuse(None))).with_preprocess_fn(lambda pair: (pair[0], Mute()))
    [failure] = run(opened(hosted(keyed, Exception)), [("k", 1)])
    assert failure.element == ("k", "<Mute>")
    assert failure.source == ("k", 1)


def test_arrays_from_a_host_are_writable(opened):
    worker = opened(hosted(Acting(each(lambda array: array * 2)), batching=fixed(4)))
    first = run(worker, [numpy.full(5000, n) for n in range(4)])
    for array in first:
        numpy.add(array, 1, out=array)
    run(worker, [numpy.full(5000, 99)] * 8)
    assert [set(array.tolist()) for array in first] == [{1}, {3}, {5}, {7}]
