"""Every element comes out once: as a prediction with its own tag, or as a failure of the operation that failed."""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    BatchingConfig,
    Failure,
    KeyedModelHandler,
    KeyModelMapping,
    ModelHandler,
    Stage,
    UnknownKeyError,
)
from headrace.batching.batcher import Batch
from headrace.core.events import BatchCompleted, BatchFailed, ElementFailed, ModelLoaded
from headrace.failures.breaker import CircuitBreaker
from headrace.runtime.observers import FanOut, subscribed
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.steps import Steps
from headrace.runtime.worker import Worker
from toys import Events, Poisoned, fixed, refuse


def run(handler, elements, *, caught=(), batching=None, seen=None, bundles=1, breaks_after=5):
    """(tag, prediction) pairs and failures of elements whose tags are their places."""
    spec = prepare(handler, InferenceRequest(batching=batching))
    worker = Worker(catching(spec, caught) if caught else spec)
    for model in worker.session.models.values():
        model.breaker = CircuitBreaker(breaks_after)
    good, bad = [], []
    try:
        for number in range(bundles):
            bundle = worker.bundle(Events() if seen is None else seen)
            outcomes = [o for n, element in enumerate(elements) for o in bundle.add(element, (number, n))]
            for outcome in [*outcomes, *bundle.finish()]:
                if isinstance(outcome, Failure):
                    bad.append(outcome)
                else:
                    good += zip(outcome.tags, outcome.values, strict=True)
    finally:
        worker.close()
    return good, bad


def places(failures):
    return [failure.tag[1] for failure in failures]


def test_batches_are_full_except_the_last():
    handler = Poisoned()
    good, _ = run(handler, range(7), batching=fixed(3))
    assert handler.batches == [[0, 1, 2], [3, 4, 5], [6]]
    assert good == [((0, n), n + 100) for n in range(7)]
    assert run(handler, []) == ([], [])


@given(
    st.lists(st.integers(-3, 20), max_size=60),
    st.integers(1, 12),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_failures_are_exactly_the_bad_elements_in_every_stage(elements, size, before, after, weighed):
    handler = Poisoned()
    expected = {}
    for place, element in enumerate(elements):
        if before and element == 3:
            expected[place] = Stage.PREPROCESSING
        elif element < 0:
            expected[place] = Stage.INFERENCE
        elif after and element == 4:
            expected[place] = Stage.POSTPROCESSING

    if before:
        handler = handler.with_preprocess_fn(refuse(3)).with_preprocess_fn(lambda x: x)
    if after:
        handler = handler.with_postprocess_fn(refuse(104)).with_postprocess_fn(lambda x: x)
    options = {"max_batch_weight": 30, "element_size_fn": abs} if weighed else {}
    batching = BatchingConfig(min_batch_size=size, max_batch_size=size, **options)
    good, bad = run(handler, elements, caught=Exception, batching=batching, breaks_after=1000)
    assert {failure.tag[1]: failure.stage for failure in bad} == expected
    assert sorted(good) == [((0, n), e + 100) for n, e in enumerate(elements) if n not in expected]


def test_uncaught_errors_are_raised_unchanged():
    with pytest.raises(ValueError, match="poison"):
        run(Poisoned(), [1, -1])
    with pytest.raises(ValueError, match="poison"):
        run(Poisoned(), [1, -1], caught=KeyError)


def test_elements_that_are_batches_pass_unchanged_and_fail_whole():
    handler = Poisoned().with_no_batching()
    good, bad = run(handler, [[1, 2], [3, -1], (4,)], caught=Exception)
    assert handler.batches == [[1, 2], [3, -1], [4]]
    assert good == [((0, 0), 101), ((0, 0), 102), ((0, 2), 104)]
    assert [(f.tag, f.element, f.whole_batch) for f in bad] == [((0, 1), [3, -1], True)]


def test_elements_that_are_batches_may_have_any_number_of_predictions():
    class Summing(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            return [sum(batch)] if batch else []

    good, _ = run(Summing().with_no_batching(), [[1, 2, 3], [], [4]])
    assert good == [((0, 0), 6), ((0, 2), 4)]


def test_unknown_key_fails_its_element():
    handler = KeyedModelHandler([KeyModelMapping(["a"], Poisoned())])
    good, bad = run(handler, [("a", 1), ("z", 2), 3], caught=Exception)
    assert good == [((0, 0), ("a", 101))]
    assert isinstance(bad[0].error, UnknownKeyError)
    assert places(bad) == [1, 2]
    with pytest.raises(UnknownKeyError):
        run(handler, [("z", 2)])


def test_model_that_fails_to_load_fails_only_its_own_elements():
    class Unloadable(Poisoned):
        def load_model(self):
            raise OSError("no disk")

    broken = Unloadable()
    handler = KeyedModelHandler([KeyModelMapping(["a"], Poisoned()), KeyModelMapping(["b"], broken)])
    good, bad = run(handler, [("a", 1), ("b", 1), ("b", 2)], caught=Exception)
    assert good == [((0, 0), ("a", 101))]
    assert places(bad) == [1, 2]
    assert broken.batches == []


def test_next_bundle_starts_without_elements_of_a_failed_one():
    handler = Poisoned()
    worker = Worker(prepare(handler, InferenceRequest(batching=fixed(3))))
    abandoned = worker.bundle(Events())
    abandoned.add(1, "old")
    fresh = worker.bundle(Events())
    fresh.add(2, "new")
    assert [list(outcome.tags) for outcome in fresh.finish()] == [["new"]]
    worker.close()


def test_events_report_loads_batches_and_failures():
    seen = Events()
    run(Poisoned(), [1, -1, 2], caught=Exception, batching=fixed(3), seen=seen)
    assert len(seen.of(ModelLoaded)) == 1
    assert sum(event.examples for event in seen.of(BatchCompleted)) == 2
    assert [event.examples for event in seen.of(BatchFailed)] == [3]
    assert [event.stage for event in seen.of(ElementFailed)] == [Stage.INFERENCE]


def test_sizes_are_learnt_across_bundles():
    handler = Poisoned()
    run(handler, range(200), bundles=4)
    assert len(handler.batches[0]) == 1
    assert max(map(len, handler.batches)) > 8


class Hungry(ModelHandler):
    """Needs memory for each example; the available memory drifts."""

    def __init__(self, limits, error=MemoryError):
        super().__init__()
        self.limits = limits
        self.error = error
        self.sizes = []

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        self.sizes.append(len(batch))
        if len(batch) > next(self.limits):
            raise self.error(f"{len(batch)} are too many")
        return list(batch)


def test_row_too_large_for_memory_fails_alone():
    handler = Hungry(itertools.repeat(0))
    with pytest.raises(MemoryError, match="1 are too many"):
        run(handler, range(4), batching=fixed(4))
    good, bad = run(Hungry(itertools.repeat(0)), range(4), caught=MemoryError, batching=fixed(4))
    assert (good, places(bad)) == ([], [0, 1, 2, 3])


def test_events_reach_own_observers_and_subscribers():
    own, subscriber = Events(), Events()
    everybody = FanOut(own)
    first, second, third = (BatchFailed("", n, ValueError()) for n in range(3))
    everybody.on_event(first)
    with subscribed(subscriber):
        everybody.on_event(second)
    everybody.on_event(third)
    assert own == [first, second, third]
    assert subscriber == [second]


def test_a_forked_child_reports_to_no_observer_of_its_parents():
    own, parents = Events(), Events()
    with subscribed(parents):
        child = os.fork()
        if not child:
            with suppress(BaseException), subscribed(own):
                FanOut().on_event(BatchFailed("", 1, ValueError()))
            os._exit(10 * len(own) + len(parents))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10


def same(value):
    return value


def explode(value):
    raise ValueError(value)


@pytest.mark.parametrize(
    ("handler", "stage", "index"),
    [
        (Poisoned().with_preprocess_fn(explode).with_preprocess_fn(same), Stage.PREPROCESSING, 1),
        (Poisoned().with_preprocess_fn(same).with_preprocess_fn(explode), Stage.PREPROCESSING, 0),
        (Poisoned().with_postprocess_fn(same).with_postprocess_fn(explode), Stage.POSTPROCESSING, 1),
    ],
    ids=["second-before", "first-before", "second-after"],
)
def test_operations_are_numbered_in_the_order_in_which_they_run(handler, stage, index):
    _, bad = run(handler, [1], caught=Exception)
    assert [(failure.stage, failure.index) for failure in bad] == [(stage, index)]


def test_failure_holds_its_operations_input():
    before = Poisoned().with_preprocess_fn(explode).with_preprocess_fn(str)
    after = Poisoned().with_postprocess_fn(str).with_postprocess_fn(explode)
    assert [run(handler, [1], caught=Exception)[1][0].element for handler in (before, after)] == ["1", "101"]


def test_system_exit_is_caught_only_on_request():
    class Exiting(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            if 2 in batch:
                raise SystemExit
            return batch

    with pytest.raises(SystemExit):
        run(Exiting(), [1, 2, 3], caught=Exception)
    good, bad = run(Exiting(), [1, 2, 3], caught=BaseException)
    assert ([value for _, value in good], places(bad)) == ([1, 3], [1])


def test_error_in_a_lazy_result_is_caught():
    class Lazy(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            for example in batch:
                if example == 2:
                    raise ValueError("late")
                yield example

    good, bad = run(Lazy(), [1, 2, 3], caught=Exception)
    assert ([value for _, value in good], places(bad)) == ([1, 3], [1])


@pytest.mark.parametrize("before", [True, False])
def test_handler_may_modify_its_list_of_examples(before):
    class Consuming(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            if not before and -1 in batch:
                batch.clear()
                raise ValueError("poison")
            while batch:
                yield batch.pop(0) + model

    good, bad = run(Consuming(), [1, 2, 3, 4], caught=Exception, batching=fixed(2))
    assert (good, bad) == ([((0, n), n + 101) for n in range(4)], [])
    if not before:
        good, bad = run(Consuming(), [1, -1, 3, -1], caught=Exception, batching=fixed(4))
        assert ([value for _, value in good], places(bad)) == ([101, 103], [1, 3])


def test_observer_that_raises_leaves_the_model_free_to_be_evicted():
    class Raising:
        def on_event(self, event):
            raise RuntimeError("no metrics")

    mappings = [KeyModelMapping([key], Poisoned()) for key in "ab"]
    worker = Worker(prepare(KeyedModelHandler(mappings, max_models_per_worker_hint=1), InferenceRequest()))
    with pytest.raises(RuntimeError, match="no metrics"):
        Steps(worker.access, Raising()).run("a", Batch([("a", 1)], [0]))
    load_other = threading.Thread(target=worker.load, args=["b"], daemon=True)
    load_other.start()
    load_other.join(60)
    assert worker.names_in_use() == {"b"}
    worker.close()


@pytest.mark.large
def test_attempts_are_the_calls_with_the_bad_element():
    class Small(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            tried.append(list(batch))
            if len(batch) > 4:
                raise MemoryError
            return super().run_inference(batch, model)

    for bad in (0, 5, 10):
        tried = []
        elements = [-1 if n == bad else n for n in range(11)]
        _, (failure,) = run(Small(), elements, caught=Exception, batching=fixed(11))
        assert failure.attempts == sum(-1 in batch for batch in tried)


def test_failures_name_their_model_and_key():
    one, other = Poisoned(), Poisoned().with_postprocess_fn(explode)
    one._model_uri = "one.bin"
    (failure,) = run(one, [-1], caught=Exception)[1]
    assert (failure.model_id, failure.key, failure.source) == ("one.bin", None, -1)
    handler = KeyedModelHandler([KeyModelMapping(["a"], one), KeyModelMapping(["b"], Poisoned())])
    (failure,) = run(handler, [("b", -1)], caught=Exception)[1]
    assert (failure.model_id, failure.key, failure.source) == ("b", "b", ("b", -1))
    (failure,) = run(other, [5], caught=Exception)[1]
    assert (failure.stage, failure.model_id, failure.attempts) == (Stage.POSTPROCESSING, None, 1)
