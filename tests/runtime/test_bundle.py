"""Every element comes out once: as a prediction with its own tag, or as a failure of the operation that failed."""

from __future__ import annotations

import itertools
import os
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
from headrace.core.events import BatchCompleted, BatchFailed, ElementFailed, ModelLoaded
from headrace.failures.breaker import CircuitBreaker
from headrace.runtime.observers import FanOut, subscribed
from headrace.runtime.prepare import InferenceRequest, catching, prepare
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
