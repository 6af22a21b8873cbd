"""Sessions open and close beside those of other transforms; what they raise again has no past."""

from __future__ import annotations

import threading

import pytest

from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.testing import FakeClock
from toy_engine import die, outcomes_of
from toys import Acting, run

_PATIENCE_SECS = 60


def test_session_that_closes_slowly_holds_up_no_other_transform():
    class Model:
        def __del__(self):
            closing.set()
            go_on.wait(_PATIENCE_SECS)

    closing, go_on = threading.Event(), threading.Event()
    slow = open_worker(prepare(Acting(list, Model), InferenceRequest()))
    thread = threading.Thread(target=slow.close)
    thread.start()
    assert closing.wait(_PATIENCE_SECS)
    opened = []

    def open_another():
        worker = open_worker(prepare(Acting(list), InferenceRequest()))
        opened.append(run(worker, [1]))
        worker.close()

    other = threading.Thread(target=open_another)
    other.start()
    other.join(_PATIENCE_SECS / 2)
    try:
        assert opened == [[1]]
    finally:
        go_on.set()
        thread.join()
        other.join()


def test_session_of_the_same_transform_waits_until_the_model_before_it_is_gone():
    class Model:
        def __del__(self):
            closing.set()
            go_on.wait(_PATIENCE_SECS)
            events.append("gone")

    def load():
        events.append("loaded")
        return Model()

    closing, go_on, events = threading.Event(), threading.Event(), []
    spec = prepare(Acting(list, load), InferenceRequest())
    threads = [threading.Thread(target=open_worker(spec).close)]
    threads[0].start()
    assert closing.wait(_PATIENCE_SECS)
    threads.append(threading.Thread(target=lambda: open_worker(spec).close()))
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(_PATIENCE_SECS)
    assert events == ["loaded", "gone", "loaded", "gone"]


def test_load_that_failed_is_raised_again_as_an_error_of_its_own():
    def load():
        raise ConnectionError("not yet")

    spec = catching(prepare(Acting(list, load), InferenceRequest(clock=FakeClock())), Exception)
    worker = open_worker(spec)
    errors = [worker.session.models[None].loads.current_error() for _ in range(2)]
    worker.close()
    assert [str(error) for error in errors] == ["not yet"] * 2
    assert errors[0] is not errors[1]
    for _ in range(100):
        with pytest.raises(ConnectionError):
            raise errors[0]
    assert errors[1].__traceback__ is None


@pytest.mark.usefixtures("census", "requests_end")
def test_engine_that_cannot_be_loaded_again_fails_each_request_with_an_error_of_its_own(tmp_path):
    def load():
        if (tmp_path / "loaded").exists():
            raise LookupError("gone")
        (tmp_path / "loaded").touch()

    async def act(example, engine):
        die()

    errors = [failure.error for failure in outcomes_of(act, range(5), load)]
    assert {str(error) for error in errors} == {"gone"}
    assert len({id(error) for error in errors}) == 5
