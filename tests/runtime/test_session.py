"""A session loads once, measures right, and lets go."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace import KeyedModelHandler, KeyModelMapping, ModelHandler, PredictionCountError
from headrace.core.events import ModelLoaded
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import Request, prepare
from headrace.runtime.session import close_session, open_session
from headrace.testing import FakeClock


class Counting(ModelHandler):
    """Counts its loads in a list that is given; any object may be the model."""

    def __init__(self, loads, model=(1, {"a": [2]}), clock=None, **options):
        super().__init__(**options)
        self.loads = loads
        self.model = model
        self.clock = clock

    def load_model(self):
        self.loads.append(threading.get_ident())
        if self.clock:
            self.clock.advance(1.5)
        return self.model

    def run_inference(self, batch, model, inference_args=None):
        if self.clock:
            self.clock.advance(0.25)
        return [(example, inference_args) for example in batch]

    def get_num_bytes(self, batch):
        return 7 * len(batch)


def opened(handler, **request):
    return open_session(prepare(handler, Request(**request)))


def test_nothing_loads_before_a_session_opens():
    loads = []
    spec = prepare(Counting(loads), Request())
    assert loads == []
    session = open_session(spec)
    assert len(loads) == 1
    close_session(session)


@pytest.mark.parametrize("model", [(1, 2), {"a": 1}, [1, 2], None, "text", 0])
def test_any_object_is_a_model(model):
    session = opened(Counting([], model))
    with session.model(ONLY) as held:
        assert held == model
    close_session(session)


def test_threads_share_a_session_and_its_model():
    loads, together = [], threading.Barrier(6)
    spec = prepare(Counting(loads), Request())

    def work(_):
        together.wait()
        return open_session(spec)

    with ThreadPoolExecutor(6) as threads:
        sessions = list(threads.map(work, range(6)))
    assert len({id(session) for session in sessions}) == 1
    assert len(loads) == 1
    for session in sessions:
        close_session(session)


def test_transforms_with_one_identifier_share_the_model():
    loads = []
    sessions = [opened(Counting(loads), model_identifier="shared") for _ in range(2)]
    assert len(loads) == 1
    for session in sessions:
        close_session(session)


def test_transforms_without_identifier_do_not():
    loads = []
    sessions = [opened(Counting(loads)) for _ in range(2)]
    assert len(loads) == 2
    for session in sessions:
        close_session(session)


def test_a_session_reopened_at_once_finds_its_model_again():
    loads = []
    spec = prepare(Counting(loads), Request())
    for _ in range(3):
        close_session(open_session(spec))
    assert len(loads) == 1


def test_a_failed_load_leaves_nothing_open():
    class Failing(Counting):
        def load_model(self):
            super().load_model()
            raise OSError("no disk")

    loads = []
    spec = prepare(Failing(loads), Request())
    for _ in range(2):
        with pytest.raises(OSError, match="no disk"):
            open_session(spec)
    assert len(loads) == 2


def test_environment_is_set_before_the_load(monkeypatch):
    monkeypatch.setenv("HEADRACE_TEST_VARIABLE", "before")

    class Reading(Counting):
        def load_model(self):
            return os.environ["HEADRACE_TEST_VARIABLE"]

    session = opened(Reading([], env_vars={"HEADRACE_TEST_VARIABLE": "after"}))
    with session.model(ONLY) as model:
        assert model == "after"
    close_session(session)


def test_loads_and_batches_are_measured_with_the_given_clock():
    clock = FakeClock()
    session = opened(Counting([], clock=clock), clock=clock)
    (loaded,) = session.news()
    assert isinstance(loaded, ModelLoaded)
    assert (loaded.model, loaded.seconds) == ("", 1.5)
    with session.model(ONLY) as model:
        _, batch = session.run(ONLY, model, [1, 2])
    assert (batch.examples, batch.bytes, batch.seconds) == (2, 14, 0.25)
    assert list(session.news()) == []
    close_session(session)


def test_the_size_of_a_model_is_what_the_process_grew_by():
    class Large(Counting):
        def load_model(self):
            return bytearray(b"x") * (48 << 20)

    session = opened(Large([]))
    (loaded,) = session.news()
    assert loaded.bytes == pytest.approx(48 << 20, rel=0.15)
    close_session(session)


def test_lazy_results_are_consumed_within_the_measurement():
    clock = FakeClock()

    class Lazy(Counting):
        def run_inference(self, batch, model, inference_args=None):
            for example in batch:
                clock.advance(1)
                yield example

    session = opened(Lazy([]), clock=clock)
    with session.model(ONLY) as model:
        assert session.run(ONLY, model, [1, 2, 3])[1].seconds == 3
    close_session(session)


@pytest.mark.parametrize(("answer", "got"), [([], "0"), ([1], "1"), ([1, 2, 3], "3"), (None, "None")])
def test_a_wrong_number_of_predictions_names_the_handler_and_both_counts(answer, got):
    class Wrong(Counting):
        def run_inference(self, batch, model, inference_args=None):
            return answer

    session = opened(Wrong([]))
    with (
        session.model(ONLY) as model,
        pytest.raises(PredictionCountError, match=f"Wrong.run_inference was given 2 examples and returned {got}"),
    ):
        session.run(ONLY, model, [1, 2])
    close_session(session)


def test_bytes_that_cannot_be_counted_do_not_fail_a_batch(caplog):
    class Uncountable(Counting):
        def get_num_bytes(self, batch):
            raise TypeError("no size")

    session = opened(Uncountable([]))
    with session.model(ONLY) as model:
        for _ in range(2):
            assert session.run(ONLY, model, [1])[1].bytes == 0
    assert caplog.text.count("bytes are not counted") == 1
    close_session(session)


def test_models_by_key_load_when_needed_and_never_more_than_the_limit():
    loads = {key: [] for key in "abc"}
    mappings = [KeyModelMapping([key], Counting(loads[key])) for key in "abc"]
    session = opened(KeyedModelHandler(mappings, max_models_per_worker_hint=2))
    assert not any(loads.values())
    for key in "abacab":
        with session.model(key):
            assert len(session._store) <= 2
    assert {key: len(times) for key, times in loads.items()} == {"a": 1, "b": 2, "c": 1}
    close_session(session)


def test_the_heap_is_frozen_while_any_session_is_open_and_models_are_not_in_it():
    class Cyclic(Counting):
        def load_model(self):
            model = []
            model.append(model)
            return model

    one, two = opened(Cyclic([])), opened(Cyclic([]))
    assert gc.get_freeze_count() > 0
    close_session(one)
    assert gc.get_freeze_count() > 0
    with two.model(ONLY) as model:
        assert any(model is tracked for tracked in gc.get_objects())
    close_session(two)
    assert gc.get_freeze_count() == 0
