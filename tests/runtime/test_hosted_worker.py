"""Models in a host behave as in process: loaded once, shared, reported, released."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import BatchingConfig, Failure, KeyedModelHandler, KeyModelMapping, ModelHandler
from headrace.core.errors import HostDiedError
from headrace.core.events import BatchCompleted, BatchFailed, HostLost, ModelLoaded
from headrace.runtime.open_worker import open_worker
from headrace.runtime.placement import HostedWorker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.testing import (
    BrokenLoadHandler,
    FaultyLoadHandler,
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


def test_error_shows_its_traceback_in_the_host(opened):
    worker = opened(hosted(Acting(each(refuse(3)))))
    with pytest.raises(KeyError) as caught:
        run(worker, [3])
    lines = str(caught.value.__cause__).splitlines()
    ours = [line for line in lines if line.startswith("  ... ") and line.endswith(" of headrace")]
    assert len(ours) == 1
    assert "toys.py" in "".join(lines[lines.index(*ours) :])
    assert "headrace/" not in "".join(lines)


class OddError(Exception):
    """Does not unpickle by itself: its args are not its constructor's."""

    def __init__(self, example, reason):
        super().__init__(f"{example} is {reason}")


class Raising(Where):
    def run_inference(self, batch, model, inference_args=None):
        if 13 in batch:
            raise OddError(13, "unlucky")
        return super().run_inference(batch, model, inference_args)


def test_exception_that_does_not_unpickle_fails_its_element_alone(opened):
    found = run(opened(hosted(Raising(), Exception)), range(12, 16))
    [failure] = [one for one in found if isinstance(one, Failure)]
    assert (len(found), failure.element, repr(failure.error)) == (4, 13, "OddError('13 is unlucky')")
    assert "run_inference" in "".join(failure.caught.lines)


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


def test_host_that_is_killed_while_it_loads_costs_nothing(opened, tmp_path):
    def die_once():
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(3)

    [found] = run(opened(hosted(FaultyLoadHandler(die_once), Exception)), [1])
    assert not isinstance(found, Failure)


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


class Patient(ModelHandler):
    """Answers a batch once a file exists."""

    def __init__(self, file, **options):
        super().__init__(**options)
        self.file = file

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        while not self.file.exists():
            time.sleep(0.002)
        return batch


@pytest.mark.large
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("isolate", [False, True])
def test_elements_are_accepted_while_batches_run_in_a_host(tmp_path, isolate):
    file, most = tmp_path / "go", 4  # two for each host

    def go(element):
        if element == most:
            file.touch()
        return element

    handler = Patient(file, model_copies=2)
    handler = handler if isolate else handler.with_preprocess_fn(go)  # which an isolated model's host does
    worker = open_worker(prepare(handler, InferenceRequest(batching=BatchingConfig(1, 1), isolate=isolate)))
    worker.ready()
    try:
        bundle, outcomes = worker.bundle(Events()), []
        for element in range(20):
            go(element)  # as whatever comes before in the pipeline does
            outcomes += bundle.add(element, element)
            assert len(bundle._executor._tasks) <= most
            assert outcomes == [] or element >= most
        outcomes += bundle.finish()
        assert [value for outcome in outcomes for value in outcome.values] == list(range(20))
    finally:
        worker.close()
