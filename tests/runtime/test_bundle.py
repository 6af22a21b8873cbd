"""Every element comes out once: as a prediction with its own tag, or as a failure of the operation that failed."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Failure, KeyedModelHandler, KeyModelMapping, Stage, UnknownKeyError
from headrace.batching.batcher import Batch
from headrace.core.events import BatchCompleted, BatchFailed, ElementFailed, ModelLoaded
from headrace.failures.breaker import CircuitBreaker
from headrace.runtime.observers import FanOut, subscribed
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.steps import Steps
from headrace.runtime.worker import Worker
from toys import Acting, Events, Poisoned, fixed, refuse


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


BEFORE = {3: (Stage.PREPROCESSING, 1), 5: (Stage.PREPROCESSING, 0)}
AFTER = {4: (Stage.POSTPROCESSING, 0), 6: (Stage.POSTPROCESSING, 1)}


@given(st.lists(st.integers(-3, 20), max_size=60), st.integers(1, 12), st.booleans(), st.booleans(), st.booleans())
def test_failures_are_exactly_the_bad_elements_in_every_operation(elements, size, before, after, weighed):
    """Operations are numbered in the order in which they run."""
    handler, seen = Poisoned(), Events()
    fates = dict.fromkeys(range(-3, 0), (Stage.INFERENCE, 0))
    if before:
        handler = handler.with_preprocess_fn(refuse(3)).with_preprocess_fn(refuse(5))
        fates |= BEFORE
    if after:
        handler = handler.with_postprocess_fn(refuse(104)).with_postprocess_fn(refuse(106))
        fates |= AFTER
    expected = {place: fates[one] for place, one in enumerate(elements) if one in fates}
    batching = fixed(size, **({"max_batch_weight": 30, "element_size_fn": abs} if weighed else {}))
    good, bad = run(handler, elements, caught=Exception, batching=batching, seen=seen, breaks_after=1000)
    assert {failure.tag[1]: (failure.stage, failure.index) for failure in bad} == expected
    assert sorted(good) == [((0, n), e + 100) for n, e in enumerate(elements) if n not in expected]
    stages = [stage for stage, _ in expected.values()]
    assert Counter(event.stage for event in seen.of(ElementFailed)) == Counter(stages)
    inferred = len(good) + stages.count(Stage.POSTPROCESSING)
    assert sum(event.examples for event in seen.of(BatchCompleted)) == inferred
    assert bool(seen.of(BatchFailed)) == (Stage.INFERENCE in stages)


def test_elements_that_are_batches_have_any_number_of_predictions_and_fail_whole():
    class Summing(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            return [sum(super().run_inference(batch, model))] if batch else []

    handler = Summing().with_no_batching()
    good, bad = run(handler, [[1, 2], [3, -1], [], (4,)], caught=Exception)
    assert handler.batches == [[1, 2], [3, -1], [4]]
    assert good == [((0, 0), 203), ((0, 3), 104)]
    assert [(f.tag, f.element, f.whole_batch) for f in bad] == [((0, 1), [3, -1], True)]


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


def test_sizes_and_the_model_outlast_bundles():
    handler, seen = Poisoned(), Events()
    run(handler, range(200), bundles=4, seen=seen)
    assert len(handler.batches[0]) == 1
    assert max(map(len, handler.batches)) > 8
    assert len(seen.of(ModelLoaded)) == 1


def test_row_too_large_for_memory_fails_alone():
    def act(batch):
        raise MemoryError(f"{len(batch)} are too many")

    with pytest.raises(MemoryError, match="1 are too many"):
        run(Acting(act), range(4), batching=fixed(4))
    good, bad = run(Acting(act), range(4), caught=MemoryError, batching=fixed(4))
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


def explode(value):
    raise ValueError(value)


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


def test_result_may_be_lazy_and_change_the_list_of_examples():
    class Consuming(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            is_bad = -1 in batch
            while batch:
                yield batch.pop(0) + model
            if is_bad:
                raise ValueError("late")

    good, bad = run(Consuming(), [1, -1, 3, -1], caught=Exception, batching=fixed(4))
    assert (good, places(bad)) == ([((0, 0), 101), ((0, 2), 103)], [1, 3])


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
