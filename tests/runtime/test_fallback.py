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
    PredictionResult,
    RetryConfig,
    Stage,
    predict,
)
from headrace.core.result import Skipped
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, prepare
from headrace.testing import DoublingHandler, FakeClock, LoadCountingHandler
from http_endpoint import events_and_outcomes, failures_among
from toys import Acting, Poisoned, each, fixed, refuse, run
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("module_travels")


def tenfold(example):
    return 10 * example


def results(handler_adds):
    return lambda batch: [PredictionResult(example, example + handler_adds) for example in batch]


@pytest.mark.parametrize(("place", "preprocessed"), [({}, False), ({}, True), ({"isolate": True}, True)])
def test_fallback_answers_for_elements_that_failed_and_only_those(place, preprocessed):
    handler, fallback = Poisoned(max_batch_size=4), Acting(each(tenfold), max_batch_size=2)
    elements = [1, -1, 2, 3, -2, 4]
    if preprocessed:
        handler, elements = handler.with_preprocess_fn(int), list(map(str, elements))
    found = list(predict(handler.with_postprocess_fn(str), elements, fallback=fallback, **place))
    assert found == ["101", "-10", "102", "103", "-20", "104"]


def test_fallback_answers_for_elements_that_kill_the_model():
    def act(batch):
        if 2 in batch:
            os.kill(os.getpid(), signal.SIGKILL)
        return [one + 100 for one in batch]

    assert list(predict(Acting(act, max_batch_size=4), [1, 2, 3], fallback=Acting(), isolate=True)) == [101, 2, 103]


@pytest.mark.parametrize("place", [{}, {"isolate": True}])
def test_functions_of_the_fallback_are_its_own_and_failures_in_those_of_the_handler_no_business_of_it(place):
    fallback = Acting(each(tenfold), max_batch_size=2).with_preprocess_fn(refuse(-4)).with_preprocess_fn(abs)
    fallback = fallback.with_preprocess_fn(lambda x: SKIP if x == -6 else x).with_postprocess_fn(refuse(70))
    fallback = fallback.with_postprocess_fn(lambda x: SKIP if x == 80 else x)
    handler = Poisoned().with_preprocess_fn(int).with_preprocess_fn(refuse("5"))
    handler = handler.with_postprocess_fn(refuse(90)).with_postprocess_fn(refuse(103)).with_postprocess_fn(str)
    elements = ["1", "-2", "-6", "-7", "-8", "-9", "5", "3"]
    _, outcomes = events_and_outcomes(handler, elements, fallback=fallback, **place)
    assert sorted(one for one in outcomes if isinstance(one, str)) == ["101", "20"]
    skips = [(one.stage, one.index, one.tags, one.elements) for one in outcomes if isinstance(one, Skipped)]
    assert sorted(skips, key=str) == [(Stage.INFERENCE, 0, [2], [-6]), (Stage.INFERENCE, 0, [4], [-8])]
    failures = {one.tag: (one.stage, one.index, one.element) for one in failures_among(outcomes)}
    assert failures == {
        3: (Stage.INFERENCE, 0, -7),
        5: (Stage.POSTPROCESSING, 0, 90),
        6: (Stage.PREPROCESSING, 0, "5"),
        7: (Stage.POSTPROCESSING, 1, 103),
    }
    for element in () if place else ("5", "3"):
        with pytest.raises(KeyError):
            list(predict(handler, [element], fallback=fallback))


KEYED = [("a", 1), ("b", -1), ("a", -2), ("c", 3)]


def test_fallback_without_keys_serves_all_keys():
    fallback = Acting(each(tenfold)).with_preprocess_fn(abs).with_postprocess_fn(str)
    found = list(predict(KeyedModelHandler(Poisoned()), KEYED, fallback=fallback))
    assert found == [("a", 101), ("b", "10"), ("a", "20"), ("c", 103)]


def test_fallback_may_have_models_by_key():
    fallback = KeyedModelHandler([KeyModelMapping(["a"], Acting()), KeyModelMapping(["b"], Acting(each(tenfold)))])
    found = list(predict(KeyedModelHandler(Poisoned()), KEYED, fallback=fallback, batching=fixed(1)))
    assert found == [("a", 101), ("b", -10), ("a", -2), ("c", 103)]
    (failure,) = predict(KeyedModelHandler(Poisoned()), [("c", -3)], fallback=fallback, on_failure="yield")
    assert "no KeyModelMapping" in str(failure.error)
    assert failure.key == "c"


def test_fallback_serves_keys_without_a_model():
    handler = KeyedModelHandler([KeyModelMapping(["a"], Poisoned())])
    assert sorted(predict(handler, KEYED, fallback=Acting())) == [("a", -2), ("a", 101), ("b", -1), ("c", 3)]


def test_fallback_of_elements_that_may_have_keys():
    handler = MaybeKeyedModelHandler(Poisoned())
    assert list(predict(handler, [-1, ("a", -2), 3], fallback=Acting())) == [-1, ("a", -2), 103]


def test_fallback_takes_batches_where_elements_are_batches():
    failing = Poisoned().with_no_batching().with_preprocess_fn(list)
    for place in ({}, {"isolate": True}):
        found = predict(failing, [(1, 2), (3, -4)], fallback=Acting(each(tenfold)).with_no_batching(), **place)
        assert sorted(found) == [-40, 30, 101, 102]
    fallback = Acting(each(refuse(-1))).with_no_batching()
    (failure,) = predict(failing, [[1, -1]], fallback=fallback, on_failure="yield")
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


def unloadable(error):
    def load():
        raise error

    return Acting(load=load)


def test_model_that_cannot_be_loaded_for_now_is_replaced_and_one_that_never_can_is_an_error():
    once = RetryConfig(attempts=1)
    assert list(predict(unloadable(ConnectionError("down")), [1], fallback=Acting(), retry=once)) == [1]
    with pytest.raises(FileNotFoundError):
        list(predict(unloadable(FileNotFoundError("no such model")), [1], fallback=Acting()))


@pytest.mark.parametrize("place", [{}, {"isolate": True}])
def test_fallback_that_can_never_be_loaded_is_an_error_that_leaves_nothing(place, marked):
    with pytest.raises(FileNotFoundError):
        list(predict(Acting(), [1], fallback=unloadable(FileNotFoundError("no such model")), **place))
    assert wait_until(lambda: not marked())


class Failing:
    """What becomes of a batch, and how many there were: an error for as long as the model is broken."""

    def __init__(self):
        self.calls = 0
        self.is_broken = True

    def __call__(self, batch):
        self.calls += 1
        if self.is_broken:
            raise ValueError("broken")
        return [one + 100 for one in batch]


def test_model_that_does_nothing_but_fail_is_only_tried_now_and_then(opened):
    clock, act = FakeClock(), Failing()
    worker = opened(prepare(Acting(act), InferenceRequest(batching=fixed(1), fallback=Acting(), clock=clock)))
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


def test_dead_letter_of_an_element_that_was_not_tried_says_so():
    fallback = Acting(each(refuse(9)), max_batch_size=1)
    _, outcomes = events_and_outcomes(
        Acting(Failing()), range(10), fallback=fallback, batching=fixed(1), clock=FakeClock()
    )
    (failure,) = failures_among(outcomes)
    assert failure.attempts == 1
    assert "not tried" in str(failure.error)


class Picky(LoadCountingHandler):
    """Refuses some examples."""

    def run_inference(self, batch, model, inference_args=None):
        if any(example < 0 for example in batch):
            raise ValueError("negative")
        return [model(example) for example in batch]


def test_both_models_linger_until_another_transform_opens():
    first, fallback = Picky(), LoadCountingHandler()
    spec = prepare(first, InferenceRequest(fallback=fallback))
    for _ in range(3):
        worker = open_worker(spec)
        run(worker, [1, -1])
        worker.close(linger=True)
    assert [first.loads, fallback.loads] == [1, 1]
    open_worker(prepare(DoublingHandler(), InferenceRequest())).close()
    open_worker(spec).close()
    assert [first.loads, fallback.loads] == [2, 2]


def test_other_version_of_a_model_shares_the_fallback(opened):
    first, fallback = Picky(), LoadCountingHandler()
    spec = prepare(first, InferenceRequest(fallback=fallback))
    opened(spec)
    opened(replace(spec, branch="other arguments"))
    opened(replace(spec, plan=replace(spec.plan, refreshed={})))
    assert [first.loads, fallback.loads] == [1, 1]
