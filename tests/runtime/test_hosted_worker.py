"""Models in a host behave as in process: loaded once, shared, reported, released."""

from __future__ import annotations

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from headrace import Failure, KeyedModelHandler, KeyModelMapping
from headrace.core.errors import HostDiedError
from headrace.core.events import BatchCompleted, BatchFailed, HostLost, ModelLoaded
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.testing import FaultyLoadHandler
from toy_hosts import has_ended
from toys import Acting, Events, each, fixed, refuse, run
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("module_travels")

MB = 1 << 20


def hosted(handler, exceptions=(), **request):
    return catching(prepare(handler, InferenceRequest(isolate=True, **request)), exceptions)


def test_threads_that_open_at_once_load_once_and_the_host_ends_with_its_last_worker():
    spec, together, events = hosted(Acting(each(lambda _: os.getpid()))), threading.Barrier(4), Events()

    def work(_):
        together.wait()
        return open_worker(spec)

    with ThreadPoolExecutor(4) as pool:
        workers = list(pool.map(work, range(4)))
    hosts = set()
    for worker in workers:
        hosts.update(run(worker, [1], events))
        worker.close()
    [host] = hosts
    assert len(events.of(ModelLoaded)) == 1
    assert wait_until(lambda: has_ended(host))


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


def test_hosts_that_die_while_loading_are_reported_and_the_first_one_costs_nothing(opened, tmp_path):
    def die(always):
        if always or not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(3)

    [found] = run(opened(hosted(FaultyLoadHandler(partial(die, always=False)), Exception)), [1])
    assert not isinstance(found, Failure)
    worker, events = opened(hosted(FaultyLoadHandler(partial(die, always=True)), Exception)), Events()
    [failure] = run(worker, [1], events)
    assert isinstance(failure.error, HostDiedError)
    assert {(event.model, event.timed_out) for event in events.of(HostLost)} == {("", False)}
    [failed] = events.of(BatchFailed)
    assert failed.error is failure.error


def test_attempts_of_a_dead_letter_are_those_with_its_element(opened, tmp_path):
    """Also of those that fail together, of which some were tried alone before."""
    log = tmp_path / "log"

    def die_of(batch):
        with log.open("a") as file:
            print(*batch, file=file)
        os._exit(3)

    failures = run(opened(hosted(Acting(die_of), Exception, batching=fixed(64))), range(64))
    tries = Counter(map(int, log.read_text().split()))
    assert {failure.element: failure.attempts for failure in failures} == tries
    assert len(set(tries.values())) > 1


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


@pytest.mark.large
@pytest.mark.parametrize("isolate", [False, True])
def test_elements_are_accepted_while_batches_run_in_a_host(tmp_path, isolate, home):
    gate, most = tmp_path / "open", 4  # two for each host

    def act(batch):
        assert wait_until(gate.exists)
        return batch

    worker = home.open(home.spec(Acting(act, model_copies=2), isolate=isolate))
    bundle, outcomes = worker.bundle(Events()), []
    for element in range(20):
        if element == most:
            gate.touch()
        outcomes += bundle.add(element, element)
        assert len(bundle._executor._tasks) <= most
        assert outcomes == [] or element >= most
    outcomes += bundle.finish()
    assert [value for outcome in outcomes for value in outcome.values] == list(range(20))
