"""The loop that serves requests: nothing that runs on it ends it, and whoever waits for it learns when it has ended."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import warnings

import cloudpickle
import pytest

from headrace import EngineModelHandler, RemoteModelHandler, RetryConfig, predict
from headrace.core import event_loop as of_requests
from headrace.core.event_loop import EventLoop
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from http_endpoint import failures_among
from leap import LIMIT_SECS, leap
from toys import Acting, run
from waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("requests_end")

_PATIENCE_SECS = 60
ENDINGS = pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])


async def fail(error):
    raise error


class Gathering(RemoteModelHandler):
    """Its requests are tasks of their own; that of element 2 raises such an error."""

    def __init__(self, error):
        super().__init__(num_retries=0)
        self.error = error

    async def create_client(self):
        return None

    async def request(self, batch, model, inference_args=None):
        if batch == [2]:
            await asyncio.gather(fail(self.error()), asyncio.sleep(0))
        return batch

    def batch_elements_kwargs(self):
        return {"max_batch_size": 1}


class GatheringEngine(EngineModelHandler):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def load_model(self):
        return object()

    async def submit(self, example, model, inference_args=None):
        if example == 2:
            await asyncio.gather(fail(self.error()), asyncio.sleep(0))
        return example


@pytest.mark.parametrize("kind", [Gathering, GatheringEngine])
@ENDINGS
def test_what_would_end_the_loop_is_raised_where_its_outcome_is_awaited(kind, ending):
    with pytest.raises(ending):
        list(predict(kind(ending), [1, 2, 3]))
    assert list(predict(kind(ending), [1, 3])) == [1, 3]


def test_task_of_an_isolated_engine_that_raises_system_exit_ends_its_own_request_only(opened):
    request = InferenceRequest(isolate=True, timeout_secs=_PATIENCE_SECS)
    found = run(opened(catching(prepare(GatheringEngine(SystemExit), request), SystemExit)), [1, 2, 3])
    (failure,) = failures_among(found)
    assert (failure.element, type(failure.error)) == (2, SystemExit)
    assert sorted(one for one in found if one is not failure) == [1, 3]


@pytest.mark.parametrize("kind", [Gathering, GatheringEngine])
def test_request_that_its_client_cancels_is_a_dead_letter(kind):
    found = list(predict(kind(asyncio.CancelledError), [1, 2, 3], on_failure="yield"))
    (failure,) = failures_among(found)
    assert (failure.element, [one for one in found if one is not failure]) == (2, [1, 3])
    assert "was cancelled by what it calls" in str(failure.error)


def test_loop_that_a_request_stops_goes_on():
    class Stopping(Gathering):
        async def request(self, batch, model, inference_args=None):
            asyncio.get_running_loop().stop()
            return batch

    assert list(predict(Stopping(None), [1, 2, 3])) == [1, 2, 3]


def test_loop_that_has_ended_is_an_error_of_those_who_wait():
    class Fatal(Gathering):
        async def request(self, batch, model, inference_args=None):
            asyncio.get_running_loop()._run_once = broken
            await asyncio.sleep(_PATIENCE_SECS)

    def broken():
        raise OSError("no selector")

    with pytest.raises(RuntimeError, match="event loop of Headrace's requests has ended"):
        list(predict(Fatal(None), [1, 2, 3]))


def test_waiting_for_a_loop_that_has_ended_is_an_error():
    loop = EventLoop()
    loop.close()
    waiting = asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        loop.wait_for(waiting)
    waiting.close()


@pytest.mark.parametrize("is_async", [True, False])
def test_client_that_is_never_made_is_an_error(is_async, monkeypatch):
    async def sleep():
        await asyncio.sleep(_PATIENCE_SECS * 60)

    go_on = threading.Event()
    monkeypatch.setattr(Gathering, "create_client", lambda handler: sleep() if is_async else go_on.wait(_PATIENCE_SECS))
    monkeypatch.setattr("headrace.runtime.endpoints._LONGEST_CREATION_SECS", 0.2)
    with pytest.raises(TimeoutError, match=r"Gathering\.create_client took longer than 0\.2 s"):
        list(predict(Gathering(None), [1], on_failure="yield"))
    go_on.set()


@pytest.mark.parametrize("error", [None, SystemExit, ValueError])
def test_client_that_never_closes_keeps_no_thread(error, monkeypatch):
    class Client:
        async def aclose(self):
            closing.append(self)
            if error is not None:
                raise error
            await asyncio.sleep(_PATIENCE_SECS * 60)

    class Closing(Gathering):
        async def create_client(self):
            return Client()

    closing = []
    monkeypatch.setattr(of_requests, "_CLOSING_SECS", 0.2)
    assert list(predict(Closing(None), [1])) == [1]
    assert wait_until(lambda: not [one for one in threading.enumerate() if one.name == "headrace-requests"])
    assert len(closing) == 1


def test_model_that_is_loaded_asynchronously_may_take_its_time(monkeypatch):
    class Slow(Acting):
        async def load_model(self):
            await asyncio.sleep(0.1)

        async def run_inference(self, batch, model, inference_args=None):
            return batch

    monkeypatch.setattr("headrace.runtime.endpoints._LONGEST_CREATION_SECS", 0.0)
    assert list(predict(Slow(), [1])) == [1]


class Blocking(Gathering):
    """Requests block; elements from 3 on take too long, once the others are there, and go on until a gate opens.

    Args:
        gate: a threading.Event.
        others: the same; None: no element is 3 or more.
    """

    def __init__(self, gate, others=None):
        super().__init__(gate)
        self.others = others

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        sent.append(batch[0])
        if batch[0] >= 3:
            self.others.wait(_PATIENCE_SECS)
            leap()
            self.error.wait(_PATIENCE_SECS)
        return batch


sent = []


def request_threads():
    return sum(one.name.startswith("headrace-request-") for one in threading.enumerate())


def test_threads_of_blocking_requests_that_took_too_long_are_bounded(monkeypatch):
    gate, others = threading.Event(), threading.Event()
    monkeypatch.setattr(of_requests, "_MOST_GIVEN_UP", 5)
    found, most = [], 0
    handler, patience = Blocking(gate, others), RetryConfig(timeout_secs=0.2)
    for one in predict(handler, range(40), on_failure="yield", timeout=LIMIT_SECS, retry=patience):
        found.append(one)
        most = max(most, request_threads())
        if len(found) == 3:
            others.set()
    gate.set()
    assert found[:3] == [0, 1, 2]
    assert {type(one.error) for one in found[3:]} == {TimeoutError}
    assert "still run on their threads" in str(found[-1].error)
    assert most < 30


def test_forked_child_has_none_of_the_threads_that_its_parents_requests_keep(monkeypatch):
    gate, others = threading.Event(), threading.Event()
    others.set()
    monkeypatch.setattr(of_requests, "_MOST_GIVEN_UP", 1)
    assert failures_among(predict(Blocking(gate, others), [3], on_failure="yield", timeout=LIMIT_SECS))
    patience = RetryConfig(timeout_secs=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads
        child = os.fork()
    if not child:
        os._exit(list(predict(Blocking(gate, others), [1], on_failure="yield", retry=patience)) != [1])
    gate.set()
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture
def begun(request, monkeypatch):
    """Threads of requests that were to start; no more than so many can."""

    def fail_sometimes(thread):
        if thread.name.startswith("headrace-request-"):
            begun.append(thread)
            if len(begun) > request.param:
                raise RuntimeError("can't start new thread")
        start(thread)

    start, begun = threading.Thread.start, []
    monkeypatch.setattr(threading.Thread, "start", fail_sometimes)
    sent.clear()
    return begun


@pytest.mark.parametrize("begun", [2], indirect=True)
def test_thread_that_cannot_be_started_costs_nothing_while_there_are_others(begun):
    assert list(predict(Blocking(threading.Event()), [0, 1, 2] * 50)) == [0, 1, 2] * 50
    assert len(sent) == 150
    assert len(begun) > 2


@pytest.mark.parametrize("begun", [0], indirect=True)
def test_thread_that_can_never_be_started_is_the_requests_error(begun):
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(predict(Blocking(threading.Event()), [1]))
    assert begun
    assert not sent
