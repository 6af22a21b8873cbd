"""Every element comes out once: as a prediction in its own place, or as a failure of the operation that failed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    BatchingConfig,
    Failure,
    KeyedModelHandler,
    KeyModelMapping,
    ModelHandler,
    PredictionCountError,
    Stage,
    UnknownKeyError,
)
from headrace.core.events import BatchCompleted, BatchFailed, ElementFailed, ModelLoaded
from headrace.failures.breaker import CircuitBreaker
from headrace.runtime.bundle import Bundle
from headrace.runtime.prepare import Request, catching, prepare
from headrace.runtime.worker import Worker


class Poisoned(ModelHandler):
    """Adds the model to each example; fails for a batch with a negative example in it. Records its batches."""

    def __init__(self, model=100, **options):
        super().__init__(**options)
        self.model = model
        self.batches = []

    def load_model(self):
        return self.model

    def run_inference(self, batch, model, inference_args=None):
        self.batches.append(list(batch))
        if any(example < 0 for example in batch):
            raise ValueError("poison")
        return (example + model for example in batch)


class Watch(list):
    on_event = list.append

    def of(self, kind):
        return [event for event in self if isinstance(event, kind)]


def run(handler, elements, *, caught=(), batching=None, watch=None, bundles=1, breaks_after=5):
    """(tag, prediction) pairs and failures of elements whose tags are their places."""
    spec = prepare(handler, Request(batching=batching))
    worker = Worker(catching(spec, caught) if caught else spec)
    worker.session.breakers = {name: CircuitBreaker(breaks_after) for name in worker.session.breakers}
    good, bad = [], []
    try:
        for number in range(bundles):
            bundle = Bundle(worker, Watch() if watch is None else watch)
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


def fixed(size):
    return BatchingConfig(min_batch_size=size, max_batch_size=size)


def test_batches_are_full_but_the_last():
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
def test_failures_are_exactly_the_bad_elements_at_every_stage(elements, size, before, after, weighed):
    handler = Poisoned()
    expected = {}
    for place, element in enumerate(elements):
        if before and element == 3:
            expected[place] = Stage.PREPROCESSING
        elif element < 0:
            expected[place] = Stage.INFERENCE
        elif after and element == 4:
            expected[place] = Stage.POSTPROCESSING

    def refuse(value):
        def operation(given):
            if given == value:
                raise KeyError(given)
            return given

        return operation

    if before:
        handler = handler.with_preprocess_fn(refuse(3)).with_preprocess_fn(lambda x: x)
    if after:
        handler = handler.with_postprocess_fn(refuse(104)).with_postprocess_fn(lambda x: x)
    options = {"max_batch_weight": 30, "element_size_fn": abs} if weighed else {}
    batching = BatchingConfig(min_batch_size=size, max_batch_size=size, **options)
    good, bad = run(handler, elements, caught=Exception, batching=batching, breaks_after=1000)
    assert {failure.tag[1]: failure.stage for failure in bad} == expected
    assert sorted(good) == [((0, n), e + 100) for n, e in enumerate(elements) if n not in expected]


def test_operations_are_numbered_in_the_order_in_which_they_run():
    def fail(_):
        raise ValueError

    def same(value):
        return value

    for handler, stage, index in (
        (Poisoned().with_preprocess_fn(fail).with_preprocess_fn(same), Stage.PREPROCESSING, 1),
        (Poisoned().with_preprocess_fn(same).with_preprocess_fn(fail), Stage.PREPROCESSING, 0),
        (Poisoned().with_postprocess_fn(same).with_postprocess_fn(fail), Stage.POSTPROCESSING, 1),
    ):
        _, (failure,) = run(handler, [1], caught=Exception)
        assert (failure.stage, failure.index) == (stage, index)


def test_a_failure_holds_what_its_operation_was_given():
    def explode(value):
        raise ValueError(value)

    before = Poisoned().with_preprocess_fn(explode).with_preprocess_fn(str)
    after = Poisoned().with_postprocess_fn(str).with_postprocess_fn(explode)
    assert [run(handler, [1], caught=Exception)[1][0].element for handler in (before, after)] == ["1", "101"]


def test_one_poison_element_in_a_batch_costs_two_calls_a_level():
    handler = Poisoned()
    elements = [*range(31), -1]
    good, bad = run(handler, elements, caught=Exception, batching=fixed(32))
    assert places(bad) == [31]
    assert len(good) == 31
    assert len(handler.batches) == 1 + 2 * 5


def test_one_percent_poison_in_ten_thousand_rows():
    handler = Poisoned()
    elements = [-1 if n % 100 == 17 else n for n in range(10_000)]
    good, bad = run(handler, elements, caught=Exception, batching=fixed(100))
    assert places(bad) == list(range(17, 10_000, 100))
    assert len(good) == 9_900
    assert len(handler.batches) <= 100 + 100 * 2 * 7


def test_uncaught_errors_are_raised_as_they_are():
    with pytest.raises(ValueError, match="poison"):
        run(Poisoned(), [1, -1])
    with pytest.raises(ValueError, match="poison"):
        run(Poisoned(), [1, -1], caught=KeyError)


def test_only_the_asked_for_classes_are_caught():
    good, bad = run(Poisoned(), [1, -1], caught=(KeyError, ValueError), batching=fixed(2))
    assert (good, places(bad)) == ([((0, 0), 101)], [1])


def test_an_error_in_a_lazy_result_is_caught_too():
    class Lazy(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            for example in batch:
                if example == 2:
                    raise ValueError("late")
                yield example

    good, bad = run(Lazy(), [1, 2, 3], caught=Exception, batching=fixed(3))
    assert (good, places(bad)) == ([((0, 0), 1), ((0, 2), 3)], [1])


def test_memory_running_out_halves_the_batch():
    class Small(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            if len(batch) > 4:
                raise MemoryError
            return super().run_inference(batch, model)

    good, bad = run(Small(), range(30), caught=Exception, batching=fixed(30))
    assert (len(good), bad) == (30, [])


@pytest.mark.parametrize("answer", [[], [1], [1, 2, 3], None])
def test_a_wrong_number_of_predictions_never_loses_an_element(answer):
    class Wrong(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            return answer if len(batch) == 2 else [5]

    with pytest.raises(PredictionCountError):
        run(Wrong(), [1, 2], batching=fixed(2))
    good, bad = run(Wrong(), [1, 2], caught=Exception, batching=fixed(2))
    assert (good, bad) == ([((0, 0), 5), ((0, 1), 5)], [])


def test_the_breaker_ends_the_search_when_everything_fails_and_a_success_resumes_it():
    handler = Poisoned()
    searched, given_up, succeeds, searched_again = [-1] * 4 * 5, [-1] * 4 * 2, [1, 2, 3, 4], [1, 2, 3, -1]
    elements = searched + given_up + succeeds + searched_again
    good, bad = run(handler, elements, caught=Exception, batching=fixed(4))
    assert len(handler.batches) == 5 * (1 + 2 + 4) + 2 + 1 + (1 + 2 + 2)
    assert len(bad) == 29
    assert len(good) == 7


def test_the_breaker_gives_up_a_batch_with_good_elements_while_it_is_open():
    good, bad = run(Poisoned(), [-1] * 10 + [1, -1], caught=Exception, batching=fixed(2))
    assert (good, len(bad)) == ([], 12)


def test_batches_as_elements_are_given_as_they_are_and_fail_as_a_whole():
    handler = Poisoned().with_no_batching()
    good, bad = run(handler, [[1, 2], [3, -1], (4,)], caught=Exception)
    assert handler.batches == [[1, 2], [3, -1], [4]]
    assert good == [((0, 0), 101), ((0, 0), 102), ((0, 2), 104)]
    assert [(f.tag, f.element, f.whole_batch) for f in bad] == [((0, 1), [3, -1], True)]


def test_batches_as_elements_may_have_any_number_of_predictions():
    class Summing(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            return [sum(batch)] if batch else []

    good, _ = run(Summing().with_no_batching(), [[1, 2, 3], [], [4]])
    assert good == [((0, 0), 6), ((0, 2), 4)]


def test_keys_stay_with_their_predictions():
    handler = KeyedModelHandler(Poisoned())
    good, bad = run(handler, [("a", 1), ("b", -1), ("c", 3)], caught=Exception, batching=fixed(3))
    assert good == [((0, 0), ("a", 101)), ((0, 2), ("c", 103))]
    assert [failure.element for failure in bad] == [("b", -1)]


def test_processing_around_a_keyed_handler_sees_the_pairs():
    handler = KeyedModelHandler(Poisoned()).with_preprocess_fn(lambda x: (x % 2, x)).with_postprocess_fn(list)
    assert run(handler, [1, 2])[0] == [((0, 0), [1, 101]), ((0, 1), [0, 102])]


def test_elements_of_one_model_go_to_it_together():
    ten, twenty = Poisoned(10), Poisoned(20)
    handler = KeyedModelHandler([KeyModelMapping(["a", "b"], ten), KeyModelMapping(["c"], twenty)])
    elements = [("a", 1), ("c", 1), ("b", 2), ("c", 2), ("c", 3)]
    good, _ = run(handler, elements, batching=fixed(2))
    assert ten.batches == [[1, 2]]
    assert twenty.batches == [[1, 2], [3]]
    assert sorted(good) == [
        ((0, 0), ("a", 11)),
        ((0, 1), ("c", 21)),
        ((0, 2), ("b", 12)),
        ((0, 3), ("c", 22)),
        ((0, 4), ("c", 23)),
    ]


def test_an_unknown_key_is_that_elements_failure():
    handler = KeyedModelHandler([KeyModelMapping(["a"], Poisoned())])
    good, bad = run(handler, [("a", 1), ("z", 2), 3], caught=Exception)
    assert good == [((0, 0), ("a", 101))]
    assert isinstance(bad[0].error, UnknownKeyError)
    assert places(bad) == [1, 2]
    with pytest.raises(UnknownKeyError):
        run(handler, [("z", 2)])


def test_a_model_that_does_not_load_fails_its_own_elements_only():
    class Unloadable(Poisoned):
        def load_model(self):
            raise OSError("no disk")

    broken = Unloadable()
    handler = KeyedModelHandler([KeyModelMapping(["a"], Poisoned()), KeyModelMapping(["b"], broken)])
    good, bad = run(handler, [("a", 1), ("b", 1), ("b", 2)], caught=Exception)
    assert good == [((0, 0), ("a", 101))]
    assert places(bad) == [1, 2]
    assert broken.batches == []


def test_weights_bound_a_batch():
    handler = Poisoned()
    batching = BatchingConfig(max_batch_size=10, min_batch_size=10, max_batch_weight=6, element_size_fn=abs)
    run(handler, [1, 2, 3, 4, 9, 1, 1], batching=batching)
    assert handler.batches == [[1, 2, 3], [4], [9], [1, 1]]


def test_a_size_function_that_raises_is_its_elements_failure():
    batching = BatchingConfig(element_size_fn=len)
    _, bad = run(Poisoned(), [1], caught=Exception, batching=batching)
    assert isinstance(bad[0].error, TypeError)


def test_what_a_failed_bundle_left_is_not_in_the_next_one():
    handler = Poisoned()
    worker = Worker(prepare(handler, Request(batching=fixed(3))))
    abandoned = Bundle(worker, Watch())
    abandoned.add(1, "old")
    fresh = Bundle(worker, Watch())
    fresh.add(2, "new")
    assert [list(outcome.tags) for outcome in fresh.finish()] == [["new"]]
    worker.close()


def test_events():
    watch = Watch()
    run(Poisoned(), [1, -1, 2], caught=Exception, batching=fixed(3), watch=watch)
    assert len(watch.of(ModelLoaded)) == 1
    assert sum(event.examples for event in watch.of(BatchCompleted)) == 2
    assert [event.examples for event in watch.of(BatchFailed)] == [3]
    assert [event.stage for event in watch.of(ElementFailed)] == [Stage.INFERENCE]


def test_sizes_are_learnt_across_bundles():
    handler = Poisoned()
    run(handler, range(200), bundles=4)
    assert len(handler.batches[0]) == 1
    assert max(map(len, handler.batches)) > 8


@pytest.mark.parametrize("before", [True, False])
def test_a_handler_may_do_what_it_likes_with_its_list(before):
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
        assert (good, places(bad)) == ([((0, 0), 101), ((0, 2), 103)], [1, 3])


def test_a_handler_that_drops_examples_from_its_list_is_told_so():
    class Dropping(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            batch[:] = batch[1:]
            return list(batch)

    with pytest.raises(PredictionCountError, match="given 3 examples and returned 2"):
        run(Dropping(), [1, 2, 3], batching=fixed(3))


def test_a_pair_that_is_none_is_its_elements_failure():
    good, bad = run(KeyedModelHandler(Poisoned()), [(1, 2), {"a": 1, "b": 2}, (3, 4), 5], caught=Exception)
    assert [place for (_, place), _ in good] == [0, 2]
    assert places(bad) == [1, 3]


@pytest.mark.parametrize("weight", [None, float("nan"), float("inf"), -1, "heavy"])
def test_a_weight_that_is_no_weight_is_its_elements_failure(weight):
    batching = BatchingConfig(element_size_fn=lambda n: weight if n == 5 else 1, max_batch_weight=2)
    handler = Poisoned()
    good, bad = run(handler, [1, 5, 2, 3], caught=Exception, batching=batching)
    assert ([value for _, value in good], places(bad)) == ([101, 102, 103], [1])
    assert max(map(len, handler.batches)) <= 2


def test_weights_are_asked_for_once():
    asked = []
    batching = BatchingConfig(element_size_fn=lambda n: asked.append(n) or 1)
    run(Poisoned(), [1, 2, 3], batching=batching)
    assert asked == [1, 2, 3]


def test_an_exit_is_caught_only_if_asked_for():
    class Exiting(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            if 2 in batch:
                raise SystemExit
            return batch

    with pytest.raises(SystemExit):
        run(Exiting(), [1, 2, 3], caught=Exception)
    good, bad = run(Exiting(), [1, 2, 3], caught=BaseException, batching=fixed(3))
    assert ([value for _, value in good], places(bad)) == ([1, 3], [1])
