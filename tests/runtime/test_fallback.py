"""Elements that a model cannot do go to its fallback: none is lost, and each says who answered."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from headrace import (
    SKIP,
    FallbackError,
    KeyedModelHandler,
    KeyModelMapping,
    MaybeKeyedModelHandler,
    PredictionCountError,
    PredictionResult,
    RetryConfig,
    Stage,
    predict,
)
from headrace.core.result import Failure, Skipped
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.testing import DoublingHandler, FakeClock, LoadCountingHandler
from toys import Acting, Events, Poisoned, each, fixed, refuse, run

pytestmark = pytest.mark.usefixtures("module_travels")


def tenfold(example):
    return 10 * example


def results(handler_adds):
    return lambda batch: [PredictionResult(example, example + handler_adds) for example in batch]


def killed_by(example):
    """What becomes of a batch: the process ends over this example."""

    def act(batch):
        if example in batch:
            os.kill(os.getpid(), signal.SIGKILL)
        return [one + 100 for one in batch]

    return act


def outcomes_of(handler, fallback, elements, caught=Exception, **options):
    """What a bundle reports and returns."""
    events = Events()
    worker = open_worker(catching(prepare(handler, InferenceRequest(fallback=fallback, **options)), caught))
    try:
        return events, run(worker, elements, events)
    finally:
        worker.close()


@pytest.mark.parametrize("place", [{}, {"isolate": True}])
@pytest.mark.parametrize("preprocessed", [False, True])
def test_fallback_answers_for_elements_that_failed_and_only_those(place, preprocessed):
    handler, fallback = Poisoned(max_batch_size=4), Acting(each(tenfold), max_batch_size=2)
    elements = [1, -1, 2, 3, -2, 4]
    if preprocessed:
        handler, elements = handler.with_preprocess_fn(int), list(map(str, elements))
    found = list(predict(handler.with_postprocess_fn(str), elements, fallback=fallback, **place))
    assert found == ["101", "-10", "102", "103", "-20", "104"]


def test_fallback_answers_for_elements_that_kill_the_model():
    found = list(predict(Acting(killed_by(2), max_batch_size=4), [1, 2, 3], fallback=Acting(), isolate=True))
    assert found == [101, 2, 103]


def test_fallback_of_predictions_that_raise_raises_both_errors_where_nothing_is_caught():
    with pytest.raises(FallbackError, match=r"^ValueError: poison; the fallback failed, too: KeyError: -1$"):
        list(predict(Poisoned(), [1, -1, -2], fallback=Acting(each(refuse(-1)))))
    assert list(predict(Poisoned(), [1, -2], fallback=Acting())) == [101, -2]


@pytest.mark.parametrize("place", [{}, {"isolate": True}])
def test_failures_before_and_after_inference_are_no_business_of_the_fallback(place):
    handler = Poisoned(max_batch_size=2).with_preprocess_fn(refuse(7)).with_postprocess_fn(refuse(105))
    elements = [7, 5, -1, 1]
    _, outcomes = outcomes_of(handler, Acting(), elements, **place)
    failures = {one.stage: one.element for one in outcomes if isinstance(one, Failure)}
    assert failures == {Stage.PREPROCESSING: 7, Stage.POSTPROCESSING: 105}
    assert sorted(one for one in outcomes if not isinstance(one, Failure)) == [-1, 101]
    for element in (7, 5):
        with pytest.raises(KeyError):
            outcomes_of(handler, Acting(), [element], caught=(), **place)


@pytest.mark.parametrize("place", [{}, {"isolate": True}])
def test_functions_of_the_fallback_are_its_own_and_part_of_inference(place):
    fallback = Acting(each(tenfold), max_batch_size=2).with_preprocess_fn(refuse(-4)).with_preprocess_fn(abs)
    fallback = fallback.with_preprocess_fn(lambda x: SKIP if x == -6 else x).with_postprocess_fn(refuse(70))
    fallback = fallback.with_postprocess_fn(lambda x: SKIP if x == 80 else x)
    handler = Poisoned().with_preprocess_fn(int).with_postprocess_fn(refuse(90)).with_postprocess_fn(str)
    elements = ["1", "-2", "-6", "-7", "-8", "-9"]
    _, outcomes = outcomes_of(handler, fallback, elements, **place)
    assert sorted(one for one in outcomes if isinstance(one, str)) == ["101", "20"]
    skips = [(one.stage, one.index, one.tags, one.elements) for one in outcomes if isinstance(one, Skipped)]
    assert sorted(skips, key=str) == [(Stage.INFERENCE, 0, [2], [-6]), (Stage.INFERENCE, 0, [4], [-8])]
    failures = {one.tag: (one.stage, one.index, one.element) for one in outcomes if isinstance(one, Failure)}
    assert failures == {3: (Stage.INFERENCE, 0, -7), 5: (Stage.POSTPROCESSING, 0, 90)}


KEYED = [("a", 1), ("b", -1), ("a", -2), ("c", 3)]


def test_fallback_without_keys_serves_all_keys():
    fallback = Acting(each(tenfold)).with_preprocess_fn(abs).with_postprocess_fn(str)
    found = list(predict(KeyedModelHandler(Poisoned()), KEYED, fallback=fallback))
    assert found == [("a", 101), ("b", "10"), ("a", "20"), ("c", 103)]


def test_fallback_may_have_models_by_key():
    fallback = KeyedModelHandler([KeyModelMapping(["a"], Acting()), KeyModelMapping(["b"], Acting(each(tenfold)))])
    found = list(predict(KeyedModelHandler(Poisoned()), KEYED, fallback=fallback, batching=fixed(1)))
    assert found == [("a", 101), ("b", -10), ("a", -2), ("c", 103)]
    _, outcomes = outcomes_of(KeyedModelHandler(Poisoned()), fallback, [("c", -3)])
    assert "no KeyModelMapping" in str(outcomes[0].error)
    assert outcomes[0].key == "c"


def test_fallback_serves_keys_without_a_model():
    handler = KeyedModelHandler([KeyModelMapping(["a"], Poisoned())])
    assert sorted(predict(handler, KEYED, fallback=Acting())) == [("a", -2), ("a", 101), ("b", -1), ("c", 3)]


def test_fallback_of_elements_that_may_have_keys():
    handler = MaybeKeyedModelHandler(Poisoned())
    assert list(predict(handler, [-1, ("a", -2), 3], fallback=Acting())) == [-1, ("a", -2), 103]


def test_fallback_takes_batches_where_elements_are_batches():
    failing = Poisoned().with_no_batching().with_preprocess_fn(list)
    for place in ({}, {"isolate": True}):
        _, outcomes = outcomes_of(failing, Acting(each(tenfold)).with_no_batching(), [(1, 2), (3, -4)], **place)
        assert sorted(outcomes) == [-40, 30, 101, 102]
    _, (failure,) = outcomes_of(failing, Acting(each(refuse(-1))).with_no_batching(), [[1, -1]])
    assert failure.record[0] == [1, -1]


def test_fallback_has_batches_of_its_own_size():
    sizes = []

    def act(batch):
        sizes.append(len(batch))
        return batch

    fallback = Acting(act, min_batch_size=3, max_batch_size=3)
    assert list(predict(Poisoned(max_batch_size=2), range(-7, 0), fallback=fallback)) == [*range(-7, 0)]
    assert sizes == [3, 3, 1]


def test_answers_say_who_gave_them():
    handler, fallback = Acting(lambda batch: results(1)([*map(refuse(2), batch)])), Acting(results(5))
    first, second = predict(handler, [1, 2], fallback=fallback)
    assert (first, second) == (PredictionResult(1, 2, "Acting"), PredictionResult(2, 7, "fallback"))
    fallback.model_path = "small.bin"
    keyed = predict(KeyedModelHandler(handler), [("a", 2)], fallback=fallback)
    assert next(keyed) == ("a", PredictionResult(2, 7, "small.bin"))
    named = fallback.with_postprocess_fn(lambda result: result._replace(model_id="mine"))
    assert next(predict(handler, [2], fallback=named)).model_id == "mine"


def test_wrong_number_of_predictions_is_left_to_the_fallback():
    assert list(predict(Acting(lambda batch: batch[1:]), [1, 2], fallback=Acting())) == [1, 2]
    with pytest.raises(FallbackError, match="PredictionCountError"):
        list(predict(Acting(lambda batch: batch[1:]), [1, 2], fallback=Acting(lambda batch: batch[1:])))
    with pytest.raises(PredictionCountError):
        list(predict(Acting(lambda batch: batch[1:]), [1, 2]))


def unloadable(error):
    def load():
        raise error

    return Acting(load=load)


def test_model_that_cannot_be_loaded_for_now_is_replaced_and_one_that_never_can_is_an_error():
    once = RetryConfig(attempts=1)
    assert list(predict(unloadable(ConnectionError("down")), [1], fallback=Acting(), retry=once)) == [1]
    with pytest.raises(FileNotFoundError):
        list(predict(unloadable(FileNotFoundError("no such model")), [1], fallback=Acting()))
    with pytest.raises(FileNotFoundError):
        list(predict(Acting(), [1], fallback=unloadable(FileNotFoundError("no such model"))))


class Failing:
    """What becomes of a batch, and how many there were: an error for as long as the model is broken.

    Args:
        clock: is advanced by each call.
        seconds: that a call takes.
    """

    def __init__(self, clock, seconds=0.0):
        self.clock = clock
        self.seconds = seconds
        self.calls = 0
        self.is_broken = True

    def __call__(self, batch):
        self.calls += 1
        self.clock.advance(self.seconds)
        if self.is_broken:
            raise ValueError("broken")
        return [one + 100 for one in batch]


def test_model_that_does_nothing_but_fail_is_only_tried_now_and_then():
    clock = FakeClock()
    act = Failing(clock)
    spec = catching(prepare(Acting(act), InferenceRequest(batching=fixed(1), fallback=Acting(), clock=clock)), ())
    worker = open_worker(spec)
    try:
        assert run(worker, range(5)) == [*range(5)]
        assert act.calls == 5
        assert run(worker, range(100)) == [*range(100)]
        assert act.calls == 6
        clock.advance(1.0)
        assert run(worker, range(100)) == [*range(100)]
        assert act.calls == 7
        act.is_broken = False
        assert run(worker, range(100)) == [*range(100)]
        clock.advance(1.0)
        assert sorted(run(worker, range(100))) == [*range(100, 200)]
    finally:
        worker.close()


def test_dead_letter_of_an_element_that_was_not_tried_says_so():
    handler, fallback, clock = Acting(Failing(FakeClock())), Acting(each(refuse(9)), max_batch_size=1), FakeClock()
    _, outcomes = outcomes_of(handler, fallback, range(10), batching=fixed(1), clock=clock)
    (failure,) = [one for one in outcomes if isinstance(one, Failure)]
    assert failure.attempts == 1
    assert "not tried" in str(failure.error)


class Picky(LoadCountingHandler):
    """Refuses some examples."""

    def run_inference(self, batch, model, inference_args=None):
        if any(example < 0 for example in batch):
            raise ValueError("negative")
        return [model(example) for example in batch]


def loaded_by(*handlers):
    return [handler.loads for handler in handlers]


def test_both_models_linger_until_another_transform_opens():
    first, fallback = Picky(), LoadCountingHandler()
    spec = prepare(first, InferenceRequest(fallback=fallback))
    for _ in range(3):
        worker = open_worker(spec)
        run(worker, [1, -1])
        worker.close(linger=True)
    assert loaded_by(first, fallback) == [1, 1]
    open_worker(prepare(DoublingHandler(), InferenceRequest())).close()
    open_worker(spec).close()
    assert loaded_by(first, fallback) == [2, 2]


def test_other_version_of_a_model_shares_the_fallback(opened):
    first, fallback = Picky(), LoadCountingHandler()
    spec = prepare(first, InferenceRequest(fallback=fallback))
    opened(spec)
    opened(replace(spec, branch="other arguments"))
    opened(replace(spec, plan=replace(spec.plan, refreshed={})))
    assert loaded_by(first, fallback) == [1, 1]


@pytest.mark.parametrize("place", [{}, {"isolate": True}])
def test_worker_whose_fallback_cannot_be_loaded_leaves_nothing(place, opened):
    def load():
        raise FileNotFoundError("no such model")

    spec = prepare(Acting(), InferenceRequest(fallback=Acting(load=load), **place))
    with pytest.raises(FileNotFoundError):
        run(opened(spec), [1])
