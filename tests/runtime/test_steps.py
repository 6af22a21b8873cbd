"""What operations do to an element, and how their failures are handled."""

from __future__ import annotations

import threading

import pytest

from headrace import Failure, KeyedModelHandler, KeyModelMapping, Stage
from headrace.batching.batcher import Batch
from headrace.failures.breaker import CircuitBreaker
from headrace.runtime.plan import ONLY
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.steps import Steps
from headrace.runtime.worker import Worker
from toys import Events, Poisoned

BEFORE, MODEL, AFTER = Stage.PREPROCESSING, Stage.INFERENCE, Stage.POSTPROCESSING


def run(handler, *batches, name=ONLY, caught=(), seen=None):
    """(tag, prediction) pairs and failures of batches; each element's tag is its place among all."""
    spec = prepare(handler, InferenceRequest())
    worker = Worker(catching(spec, caught) if caught else spec)
    for model in worker.session.models.values():
        model.breaker = CircuitBreaker(5)
    try:
        steps = Steps(worker.access, Events() if seen is None else seen)
        return _sorted_out(_outcomes(steps, name, batches))
    finally:
        worker.close()


def _outcomes(steps, name, batches):
    place = 0
    for elements in batches:
        batch = Batch([], [])
        for place, element in enumerate(elements, place):
            value, failure = steps.preprocess(element, place)
            if failure is None:
                batch.elements.append(value)
                batch.tags.append(place)
            else:
                yield failure
        place += 1
        yield from steps.run(name, batch)


def _sorted_out(outcomes):
    good, bad = [], []
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            bad.append(outcome)
        else:
            good += zip(outcome.tags, outcome.values, strict=True)
    return good, bad


def places(failures):
    return [failure.tag for failure in failures]


def same(value):
    return value


def explode(value):
    raise ValueError(value)


@pytest.mark.parametrize(
    ("handler", "stage", "index"),
    [
        (Poisoned().with_preprocess_fn(explode).with_preprocess_fn(same), BEFORE, 1),
        (Poisoned().with_preprocess_fn(same).with_preprocess_fn(explode), BEFORE, 0),
        (Poisoned().with_postprocess_fn(same).with_postprocess_fn(explode), AFTER, 1),
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
    assert (good, places(bad)) == ([(0, 1), (2, 3)], [1])


@pytest.mark.parametrize("before", [True, False])
def test_handler_may_modify_its_list_of_examples(before):
    class Consuming(Poisoned):
        def run_inference(self, batch, model, inference_args=None):
            if not before and -1 in batch:
                batch.clear()
                raise ValueError("poison")
            while batch:
                yield batch.pop(0) + model

    assert run(Consuming(), [1, 2], [3, 4], caught=Exception) == ([(n, n + 101) for n in range(4)], [])
    if not before:
        good, bad = run(Consuming(), [1, -1, 3, -1], caught=Exception)
        assert (good, places(bad)) == ([(0, 101), (2, 103)], [1, 3])


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
        _, (failure,) = run(Small(), elements, caught=Exception)
        assert failure.attempts == sum(-1 in batch for batch in tried)


def test_failures_name_their_model_and_key():
    one, other = Poisoned(), Poisoned().with_postprocess_fn(explode)
    one._model_uri = "one.bin"
    (failure,) = run(one, [-1], caught=Exception)[1]
    assert (failure.model_id, failure.key, failure.source) == ("one.bin", None, -1)
    handler = KeyedModelHandler([KeyModelMapping(["a"], one), KeyModelMapping(["b"], Poisoned())])
    (failure,) = run(handler, [("b", -1)], name="b", caught=Exception)[1]
    assert (failure.model_id, failure.key, failure.source) == ("b", "b", ("b", -1))
    (failure,) = run(other, [5], caught=Exception)[1]
    assert (failure.stage, failure.model_id, failure.attempts) == (AFTER, None, 1)
