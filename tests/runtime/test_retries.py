"""Transient failures are retried, wherever the model lives; with a fake clock no test waits."""

from __future__ import annotations

import time
from contextlib import closing

import numpy
import pytest

from headrace import ModelHandler, RetryConfig
from headrace.core.events import BatchFailed, BatchRetried, ElementFailed, ModelLoaded
from headrace.core.result import Failure
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.testing import FakeClock
from toys import Events, fixed

pytestmark = pytest.mark.usefixtures("module_travels")


PLACES = {
    "here": {},
    "isolated": {"isolate": True},
    "mapped": {"placement": "machine"},
    "mapped-and-isolated": {"placement": "machine", "isolate": True},
}


@pytest.fixture
def where(request):
    """Arguments that place the model; on the machine, with a runtime directory of the test's own."""
    if "placement" in request.param:
        request.getfixturevalue("runtime")
    return request.param


class Unsteady(ModelHandler):
    """Doubles; so many calls, and so many loads, fail first, counted over all processes; a poison fails for good."""

    def __init__(self, folder, calls=0, loads=0, poison=None, error=ConnectionResetError):
        super().__init__()
        self.folder, self.calls, self.loads, self.poison, self.error = folder, calls, loads, poison, error

    def load_model(self):
        self.fail("loads", self.loads)
        return numpy.full(1000, 2)

    def run_inference(self, batch, model, inference_args=None):
        self.fail("calls", self.calls)
        if self.poison in batch:
            raise ValueError("poison")
        return [example * int(model[0]) for example in batch]

    def fail(self, what, times):
        path = self.folder / what
        with path.open("a") as file:
            file.write("x")
        if path.stat().st_size <= times:
            raise self.error(what)


def counted(folder, what):
    return (folder / what).stat().st_size


def outcomes(handler, elements, *, caught=(), retry=None, size=4, events=None, clock=None, **where):
    """Predictions and failures, in the order of the elements."""
    spec = prepare(handler, InferenceRequest(clock=clock or FakeClock(), batching=fixed(size), retry=retry, **where))
    with closing(open_worker(catching(spec, caught) if caught else spec)) as worker:
        bundle = worker.bundle(Events() if events is None else events)
        found = [out for place, element in enumerate(elements) for out in bundle.add(element, place)]
        found += bundle.finish()
    by_place = {}
    for outcome in found:
        is_bad = isinstance(outcome, Failure)
        by_place.update({outcome.tag: outcome} if is_bad else zip(outcome.tags, outcome.values, strict=True))
    return [by_place[place] for place in sorted(by_place)]


HERE_AND_ISOLATED = pytest.mark.parametrize("where", [{}, {"isolate": True}], ids=["here", "isolated"])


@pytest.mark.large
@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES, indirect=True)
def test_lost_connection_fails_no_element_and_no_load(tmp_path, where):
    events = Events()
    assert outcomes(Unsteady(tmp_path, calls=2, loads=2), range(5), events=events, **where) == [0, 2, 4, 6, 8]
    assert (counted(tmp_path, "calls"), counted(tmp_path, "loads")) == (4, 3)
    assert [event.examples for event in events.of(BatchRetried)] == [4, 4]
    assert events.of(BatchFailed) == events.of(ElementFailed) == []
    assert len(events.of(ModelLoaded)) == 1


@HERE_AND_ISOLATED
def test_exhausted_retries_leave_an_ordinary_error(tmp_path, where):
    with pytest.raises(ConnectionResetError, match="calls"):
        outcomes(Unsteady(tmp_path, calls=3), range(4), **where)
    assert counted(tmp_path, "calls") == 3


def test_attempts_of_dead_letters_include_retries(tmp_path):
    failures = outcomes(Unsteady(tmp_path, calls=99), range(2), caught=Exception)
    assert [failure.attempts for failure in failures] == [6, 6]  # of both, and of each alone
    assert counted(tmp_path, "calls") == 9


def test_search_for_bad_elements_survives_transient_errors(tmp_path):
    found = outcomes(Unsteady(tmp_path, calls=2, poison=3), range(8), caught=Exception, size=8)
    assert [out for out in found if not isinstance(out, Failure)] == [0, 2, 4, 8, 10, 12, 14]
    assert counted(tmp_path, "calls") == 2 + 1 + 5  # the first half is bad, and then two second ones


def test_retry_config_decides(tmp_path):
    handler = Unsteady(tmp_path, calls=4, error=KeyError)
    retry = RetryConfig(attempts=5, retryable=lambda error: isinstance(error, KeyError))
    assert outcomes(handler, range(4), retry=retry) == [0, 2, 4, 6]
    (tmp_path / "calls").unlink()
    with pytest.raises(ConnectionResetError):
        outcomes(Unsteady(tmp_path, calls=1), range(4), retry=RetryConfig(attempts=1))
    retry = RetryConfig(retryable=lambda error: False)
    with pytest.raises(ConnectionResetError):
        outcomes(Unsteady(tmp_path, loads=9999), range(4), caught=Exception, retry=retry)


class Real(FakeClock):
    """Really sleeps, at least a little for any pause."""

    def sleep(self, seconds):
        time.sleep(max(seconds, 0.2))


@pytest.mark.large
def test_waiting_for_a_retry_is_not_taken_for_hanging(tmp_path):
    """Together the pauses are most likely longer than the time limit of an operation."""
    handler = Unsteady(tmp_path, calls=2)
    assert outcomes(handler, range(4), timeout_secs=1.5, clock=Real()) == [0, 2, 4, 6]


@HERE_AND_ISOLATED
def test_rows_get_the_transient_error_of_their_load(tmp_path, where):
    found = outcomes(Unsteady(tmp_path, loads=99), range(8), caught=Exception, **where)
    assert {type(failure.error) for failure in found} == {ConnectionResetError}
    assert len(found) == 8
    with pytest.raises(ConnectionResetError):
        outcomes(Unsteady(tmp_path, loads=9999), range(8), **where)


@HERE_AND_ISOLATED
def test_retryable_that_raises_fails_only_the_row(tmp_path, where):
    def broken(error):
        raise RuntimeError("broken")

    handler, retry = Unsteady(tmp_path, poison=2), RetryConfig(retryable=broken)
    found = outcomes(handler, range(4), caught=Exception, retry=retry, **where)
    assert [type(out.error) if isinstance(out, Failure) else out for out in found] == [0, 2, ValueError, 6]
