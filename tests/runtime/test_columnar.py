"""Columnar elements have the predictions and failures that their rows would have one by one."""

from __future__ import annotations

import os
from functools import partial

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    BatchingConfig,
    ConfigurationError,
    Failure,
    KeyedModelHandler,
    ModelHandler,
    PredictionCountError,
    PredictionResult,
    Stage,
    predict,
)
from headrace.core.errors import HostDiedError
from headrace.metrics.totals import Totals
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.worker import Worker
from toys import Acting, fixed

pytestmark = pytest.mark.usefixtures("module_travels")


class Doubling(ModelHandler):
    """Doubles a column; raises for negative numbers, and for more rows than memory can hold."""

    def __init__(self, memory=10**9, answer=lambda column: column * 2, **options):
        super().__init__(**options)
        self.memory = memory
        self.answer = answer
        self.calls = []

    def load_model(self):
        return 2

    def run_columns(self, columns, model, inference_args=None):
        self.calls.append(len(columns))
        if len(columns) > self.memory:
            raise MemoryError(f"{len(columns)} rows are too many")
        if (columns < 0).any():
            raise ValueError(f"{columns.min()} is negative")
        return self.answer(columns)


in_rows = partial(fixed, columnar=True)


def rows_of(outcomes):
    """(what went in, what came out) for each row; an exception's text for one that failed."""
    rows = []
    for one in outcomes:
        if isinstance(one, Failure):
            assert one.stage is Stage.INFERENCE
            assert one.record[0] is one.element  # it is no batch of one element, but rows
            rows += [(row, str(one.error)) for row in one.element.tolist()]
        else:
            rows += zip(one.example.tolist(), one.inference.tolist(), strict=True)
    return rows


CUTS = st.lists(st.integers(0, 60), max_size=6)


@pytest.mark.large
@settings(max_examples=40)  # each want of memory has the garbage collected
@given(st.lists(st.integers(-2, 30), min_size=1, max_size=60), CUTS, st.integers(1, 25), st.integers(1, 30))
def test_rows_are_predicted_or_fail_alone(rows, cuts, size, memory):
    elements = numpy.split(numpy.array(rows), sorted(cuts))
    outcomes = list(predict(Doubling(memory), elements, on_failure="yield", batching=in_rows(size)))
    expected = [(row, 2 * row if row >= 0 else f"{row} is negative") for row in rows]
    found = rows_of(outcomes)
    if all(row >= 0 for row in rows):
        assert found == expected
    failed = [row for row, result in found if isinstance(result, str)]
    if sum(row < 0 for row in rows) < 5:  # not a circuit breaker's affair
        assert sorted(found, key=str) == sorted(expected, key=str)
        assert len(failed) == sum(row < 0 for row in rows)


@pytest.mark.parametrize("isolate", [False, True])
def test_outcomes_in_a_host_are_the_same_as_in_process(isolate):
    elements = [numpy.arange(start, start + 50) for start in range(0, 500, 50)]
    elements[3][7] = -1
    outcomes = list(predict(Doubling(), elements, on_failure="yield", batching=in_rows(64), isolate=isolate))
    expected = [(row, 2 * row) for row in range(500) if row != 157]
    assert sorted(row for row in rows_of(outcomes) if row[0] >= 0) == expected
    [failure] = [one for one in outcomes if isinstance(one, Failure)]
    assert failure.element.tolist() == [-1]


@pytest.mark.large
def test_rows_that_kill_their_hosts_fail_alone():
    def answer(column):
        return os._exit(3) if (column == 1000).any() else column

    places = [0, 63, 64, 499]
    elements = [numpy.arange(start, start + 50) for start in range(0, 500, 50)]
    for place in places:
        elements[place // 50][place % 50] = 1000
    handler = Doubling(answer=answer)
    outcomes = list(predict(handler, elements, on_failure="yield", batching=in_rows(64), isolate=True))
    good = sorted(row for one in outcomes if not isinstance(one, Failure) for row in one.example.tolist())
    failures = [one for one in outcomes if isinstance(one, Failure)]
    assert good == [row for row in range(500) if row not in places]
    assert [failure.element.tolist() for failure in failures] == [[1000]] * len(places)
    assert {type(failure.error) for failure in failures} == {HostDiedError}
    assert all(failure.attempts > 6 for failure in failures)
    assert "row " in str(failures[0].error)


def test_batches_consist_of_rows_and_keep_their_elements_tags():
    spec = catching(prepare(Doubling(), InferenceRequest(batching=in_rows(4))), Exception)
    worker, totals = Worker(spec), Totals()
    try:
        bundle = worker.bundle(totals)
        outcomes = [*bundle.add(numpy.arange(3), "a"), *bundle.add(numpy.arange(3, 10), "b"), *bundle.finish()]
    finally:
        worker.close()
    assert spec.plan.handler.calls == [4, 4, 2]
    pairs = [pair for one in outcomes for pair in zip(one.tags, one.values, strict=True)]
    pieces = [(tag, value.example.tolist()) for tag, value in pairs]
    assert pieces == [("a", [0, 1, 2]), ("b", [3]), ("b", [4, 5, 6, 7]), ("b", [8, 9])]
    assert (totals.predictions, totals.batches) == (10, 3)


def test_answer_may_name_the_model_and_have_several_columns():
    handler = Doubling(answer=lambda rows: PredictionResult(None, {"one": rows, "two": 2 * rows}, "model 7"))
    first, second = predict(handler, [numpy.arange(2), numpy.arange(3)], batching=in_rows(5))
    assert {name: column.tolist() for name, column in first.inference.items()} == {"one": [0, 1], "two": [0, 2]}
    assert {name: column.tolist() for name, column in second.inference.items()} == {"one": [0, 1, 2], "two": [0, 2, 4]}
    assert (first.model_id, second.example.tolist()) == ("model 7", [0, 1, 2])


WRONG = {
    "too few": lambda rows: rows[1:],
    "too many": lambda rows: [*rows, 1],
    "none": lambda rows: None,
    "text": lambda rows: "abc"[: len(rows)],
    "one for all": lambda rows: rows[None],
    "without dimension": lambda rows: rows.sum(),
    "of different lengths": lambda rows: {"a": rows, "b": rows[1:]},
    "tuple of outputs": lambda rows: (rows, rows, rows),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_wrong_number_of_predictions_for_rows_fails(answer):
    handler = Doubling(answer=answer)
    with pytest.raises(PredictionCountError, match=r"Doubling\.run_columns was given 3 examples and returned"):
        list(predict(handler, [numpy.arange(3)], batching=in_rows(5)))
    elements = [numpy.arange(2), numpy.arange(1)]
    outcomes = list(predict(handler, elements, on_failure="yield", batching=in_rows(3)))
    assert [(type(one.error), len(one.element), one.attempts) for one in outcomes] == [
        (PredictionCountError, 2, 1),
        (PredictionCountError, 1, 1),
    ]


def test_element_that_is_not_columnar_fails_alone():
    outcomes = list(predict(Doubling(), [numpy.arange(2), 5, numpy.arange(1)], on_failure="yield", batching=in_rows(3)))
    [failure] = [one for one in outcomes if isinstance(one, Failure)]
    assert (failure.element, type(failure.error)) == (5, TypeError)
    assert sum(len(one.inference) for one in outcomes if one is not failure) == 3


@pytest.mark.parametrize(
    ("handler", "complaint"),
    [
        (Acting(), r"Acting does not take columnar elements: give it a method run_columns"),
        (KeyedModelHandler(Doubling()), "does not go together with keys"),
        (Doubling().with_no_batching(), r"does not go together with with_no_batching\(\)"),
    ],
)
def test_invalid_columnar_options_are_refused_at_once(handler, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        predict(handler, [], batching=BatchingConfig(columnar=True))
