"""Results of a handler with sources lead back to the elements as they came."""

from __future__ import annotations

import pytest

from headrace import (
    SKIP,
    BatchingConfig,
    ConfigurationError,
    Failure,
    KeyedModelHandler,
    PredictionResult,
    predict,
    with_sources,
)
from toys import Acting


def words(row):
    return row["text"].split()


def counted(batch):
    return [PredictionResult(example, len(example), "counter") for example in batch]


ROWS = [{"id": 1, "text": "a b"}, {"id": 2, "text": "c"}]


@pytest.mark.parametrize("isolate", [False, True])
def test_example_of_a_result_is_the_element(isolate, module_travels):
    results = list(predict(with_sources(Acting(counted).with_preprocess_fn(words)), ROWS, isolate=isolate))
    assert results == [PredictionResult(ROWS[0], 2, "counter"), PredictionResult(ROWS[1], 1, "counter")]
    assert isolate or results[0].example is ROWS[0]


def test_functions_run_in_their_order_on_what_they_did_before():
    handler = Acting(counted).with_preprocess_fn(list).with_preprocess_fn(lambda row: row["text"])
    handler = handler.with_postprocess_fn(lambda result: (result.example, result.inference))
    handler = handler.with_postprocess_fn(lambda pair: pair[1] * 10)
    assert list(predict(with_sources(handler), ROWS)) == [PredictionResult(ROWS[0], 30), PredictionResult(ROWS[1], 10)]


def test_elements_may_be_skipped_before_and_after():
    handler = Acting(counted).with_preprocess_fn(lambda row: SKIP if row["id"] == 1 else words(row))
    assert [result.example for result in predict(with_sources(handler), ROWS)] == [ROWS[1]]
    handler = Acting(counted).with_preprocess_fn(words)
    handler = handler.with_postprocess_fn(lambda result: SKIP if result.inference == 1 else result)
    assert [result.example for result in predict(with_sources(handler), ROWS)] == [ROWS[0]]


def test_failures_name_the_operation_that_failed():
    handler = with_sources(Acting(counted).with_preprocess_fn(len).with_preprocess_fn(lambda row: row["text"]))
    good, bad = predict(handler, [{"text": "a"}, {}], on_failure="yield")
    assert isinstance(good, Failure)  # len makes an int, which has no len
    assert (good.stage.value, bad.stage.value, bad.index, bad.element) == ("inference", "preprocessing", 0, {})


def test_batching_options_measure_examples():
    def sizes(batch):
        return [len(batch)] * len(batch)

    handler = Acting(sizes, element_size_fn=len, min_batch_size=4, max_batch_size=4).with_preprocess_fn(words)
    rows = [{"text": "a b c"}, {"text": "a"}, {"text": "b c"}]
    assert [result.inference for result in predict(with_sources(handler), rows)] == [2, 2, 1]
    assert BatchingConfig(**with_sources(Acting(length_fn=len)).batch_elements_kwargs()).length_fn(("key", "abc")) == 3


@pytest.mark.parametrize("handler", [KeyedModelHandler(Acting()), Acting().with_no_batching()])
def test_handlers_of_pairs_and_of_batches_are_refused(handler):
    with pytest.raises(ConfigurationError, match="with_sources is for a handler of single examples"):
        with_sources(handler)
