"""The same runtime over any iterable."""

from __future__ import annotations

import itertools

import apache_beam.ml.inference.base as incumbent
import pytest

from headrace import (
    BatchingConfig,
    ConfigurationError,
    Failure,
    KeyedModelHandler,
    KeyModelMapping,
    ModelHandler,
    RetryConfig,
    UnsupportedError,
    predict,
)


class Doubler(ModelHandler):
    def __init__(self, **options):
        super().__init__(**options)
        self.batches = []

    def load_model(self):
        return 2

    def run_inference(self, batch, model, inference_args=None):
        self.batches.append(list(batch))
        if "bad" in batch:
            raise ValueError("bad")
        return [example * model + (inference_args or {}).get("plus", 0) for example in batch]


def fixed(size):
    return BatchingConfig(min_batch_size=size, max_batch_size=size)


def test_predictions_in_order():
    assert list(predict(Doubler(), range(10))) == [2 * n for n in range(10)]


def test_arguments_reach_the_model():
    assert list(predict(Doubler(), [1, 2], inference_args={"plus": 5})) == [7, 9]


def test_only_what_the_next_batch_needs_is_read():
    source = iter(itertools.count())
    predictions = predict(Doubler(), source, batching=fixed(3))
    assert next(source) == 0
    assert next(predictions) == 2
    assert next(source) == 4


def test_mistakes_are_errors_at_once():
    with pytest.raises(ConfigurationError, match="on_failure"):
        predict(Doubler(), [], on_failure="ignore")
    with pytest.raises(UnsupportedError, match="retry"):
        predict(Doubler(), [], retry=RetryConfig())
    with pytest.raises(UnsupportedError, match="placement"):
        predict(Doubler(), [], placement="machine")


def test_failures_raise():
    with pytest.raises(ValueError, match="bad"):
        list(predict(Doubler(), [1, "bad"]))


def test_failures_come_in_their_elements_place():
    results = list(predict(Doubler(), [1, "bad", 3], on_failure="yield", batching=fixed(3)))
    assert (results[0], results[2]) == (2, 6)
    assert isinstance(results[1], Failure)
    assert (results[1].element, repr(results[1].error)) == ("bad", "ValueError('bad')")


def test_a_preprocessing_failure_waits_for_its_turn():
    handler = Doubler().with_preprocess_fn(int)
    results = list(predict(handler, ["1", "2", "x", "4", "5"], on_failure="yield", batching=fixed(2)))
    assert [r if isinstance(r, int) else "failure" for r in results] == [2, 4, "failure", 8, 10]


def test_models_by_key_keep_the_order_unless_told_otherwise():
    handler = KeyedModelHandler([KeyModelMapping(["a"], Doubler()), KeyModelMapping(["b"], Doubler())])
    elements = [("a", 1), ("b", 2), ("b", 3), ("a", 4)]
    expected = [("a", 2), ("b", 4), ("b", 6), ("a", 8)]
    assert list(predict(handler, elements, batching=fixed(2))) == expected
    as_finished = list(predict(handler, elements, batching=fixed(2), ordered=False))
    assert as_finished == [("b", 4), ("b", 6), ("a", 2), ("a", 8)]


def test_an_element_whose_batch_never_fills_does_not_hold_up_the_rest_for_ever():
    handler = KeyedModelHandler([KeyModelMapping(["a"], Doubler()), KeyModelMapping(["b"], Doubler())])
    read = []

    def source():
        yield ("a", 1)
        for n in range(100_000):
            read.append(n)
            yield ("b", n)

    predictions = predict(handler, source(), batching=fixed(1000))
    assert next(predictions) == ("a", 2)
    assert len(read) < 20_000
    predictions.close()


def test_batches_as_elements():
    handler = Doubler().with_no_batching()
    assert list(predict(handler, [[1, 2], [3]])) == [2, 4, 6]
    results = list(predict(handler, [[1, "bad"], [3]], on_failure="yield"))
    assert results[0].element == [1, "bad"]
    assert results[1:] == [6]


def test_a_handler_written_for_beam():
    class Theirs(incumbent.ModelHandler):
        def load_model(self):
            return {"any": "object"}

        def run_inference(self, batch, model, inference_args=None):
            return [(example, model["any"]) for example in batch]

    assert list(predict(Theirs().with_postprocess_fn(str), [1])) == ["(1, 'object')"]


def test_closing_early_lets_the_model_go():
    released = []

    class Model:
        def __del__(self):
            released.append(self)

    class Handler(Doubler):
        def load_model(self):
            return Model()

        def run_inference(self, batch, model, inference_args=None):
            return batch

    predictions = predict(Handler(), itertools.count())
    next(predictions)
    predictions.close()
    list(predict(Doubler(), [1]))
    assert len(released) == 1
