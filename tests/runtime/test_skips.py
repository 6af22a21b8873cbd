"""Skipped elements: no output, no failure, but counted, wherever the model runs."""

from __future__ import annotations

import threading
from contextlib import closing

import numpy
import pytest

from headrace import (
    SKIP,
    BatchingConfig,
    Failure,
    KeyedModelHandler,
    KeyModelMapping,
    MaybeKeyedModelHandler,
    ModelHandler,
    PredictionCountError,
    PredictionResult,
    predict,
)
from headrace.core.result import Predictions, Skipped
from headrace.metrics.totals import Totals
from headrace.runtime.observers import subscribed
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare

pytestmark = pytest.mark.usefixtures("module_travels")


class Choosy(ModelHandler):
    """Doubles; skips multiples of 3 in one way, and of 7 in the other; cannot do 11. Records what it has seen."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = []

    def load_model(self):
        return 2

    def run_inference(self, batch, model, inference_args=None):
        self.seen += batch
        if 11 in batch:
            raise ValueError("eleven")
        return [SKIP if n % 3 == 0 else PredictionResult(n, SKIP if n % 7 == 0 else model * n) for n in batch]


def skip_multiples_of_5(n):
    return SKIP if n % 5 == 0 else n


def skip_above_50(result):
    return SKIP if result.inference > 50 else result.inference


def counted(handler, elements, **options):
    """The outcomes, and the number of skipped elements."""
    totals = Totals()
    with subscribed(totals):
        found = list(predict(handler, elements, on_failure="yield", **options))
    return found, totals


NUMBERS = range(1, 41)
DOUBLES = [2 * n for n in NUMBERS if n % 3 and n % 7 and n % 5 and n <= 25 and n != 11]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_rows_in_are_predictions_and_failures_and_skips(size, ordered):
    handler = Choosy().with_preprocess_fn(skip_multiples_of_5).with_postprocess_fn(skip_above_50)
    found, totals = counted(handler, NUMBERS, batching=BatchingConfig(size, size), ordered=ordered)
    failures = [one for one in found if isinstance(one, Failure)]
    assert [failure.element for failure in failures] == [11]
    assert sorted(one for one in found if one not in failures) == DOUBLES
    assert len(found) + totals.skipped == len(NUMBERS)
    if ordered:
        assert found.index(failures[0]) == DOUBLES.index(2 * 13)


@pytest.mark.parametrize("by_key", [False, True])
def test_skips_of_keyed_elements(by_key):
    models = [KeyModelMapping(["even"], Choosy()), KeyModelMapping(["odd"], Choosy())] if by_key else Choosy()
    pairs = [("odd" if n % 2 else "even", n) for n in NUMBERS if n != 11]
    handler = KeyedModelHandler(models).with_postprocess_fn(lambda pair: (pair[0], pair[1].inference))
    found, totals = counted(handler, pairs, batching=BatchingConfig(5, 5))
    assert sorted(found) == sorted((key, 2 * n) for key, n in pairs if n % 3 and n % 7)
    assert len(found) + totals.skipped == len(pairs)


class Mine(KeyedModelHandler):
    """Splits keys itself, so the runtime leaves them to it."""

    def run_inference(self, batch, model, inference_args=None):
        return super().run_inference(batch, model, inference_args)


KEYED = {
    "one": lambda: Mine(Choosy()),
    "two": lambda: Mine([KeyModelMapping(["a"], Choosy()), KeyModelMapping(["b"], Choosy())]),
    "maybe": lambda: MaybeKeyedModelHandler(Choosy()),
}


@pytest.mark.parametrize("make", KEYED.values(), ids=KEYED)
def test_skips_in_handlers_that_split_keys_themselves(make):
    found, totals = counted(make(), [("a", 1), ("b", 3), ("a", 7), ("b", 2)], batching=BatchingConfig(4, 4))
    assert [(key, one.inference) for key, one in found] == [("a", 2), ("b", 4)]
    assert totals.skipped == 2


class Columns(Choosy):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def run_columns(self, columns, model, inference_args=None):
        return self.answer(columns)


def test_columnar_elements_are_skipped_as_wholes():
    handler = Columns(lambda rows: 2 * rows).with_preprocess_fn(lambda rows: SKIP if rows[0] < 0 else rows)
    handler = handler.with_postprocess_fn(lambda one: SKIP if len(one.inference) == 1 else one.inference.tolist())
    elements = [numpy.array(rows) for rows in ([1, 2], [-1, 2], [7], [3, 4, 5])]
    found, totals = counted(handler, elements, batching=BatchingConfig(3, 10, columnar=True))
    assert found == [[2, 4], [6, 8, 10]]
    assert totals.skipped == 2


ANSWERS = {
    "list": lambda rows: [SKIP, *rows[1:]],
    "results": lambda rows: [PredictionResult(row, SKIP) for row in rows],
    "objects": lambda rows: numpy.array([SKIP, *rows[1:]], dtype=object),
    "dict": lambda rows: {"a": rows, "b": [SKIP, *rows[1:]]},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_rows_of_columnar_elements_cannot_be_skipped(answer):
    batching = BatchingConfig(3, 10, columnar=True)
    with pytest.raises(
        PredictionCountError, match=r"Columns.run_columns returned headrace.SKIP for a row, and .* columnar"
    ):
        list(predict(Columns(answer), [numpy.arange(3)], batching=batching))


@pytest.mark.parametrize("isolate", [False, True])
def test_skipped_outcomes_hold_each_operations_input(isolate):
    handler = Choosy().with_preprocess_fn(skip_multiples_of_5).with_postprocess_fn(skip_above_50)
    outcomes = outcomes_of(handler, [5, 3, 28, 1, 29], isolate=isolate)
    skipped = [one for one in outcomes if isinstance(one, Skipped)]
    assert sorted((one.stage.value, one.index, one.tags, one.elements) for one in skipped) == [
        ("inference", 0, [1, 2], [3, 28]),
        ("postprocessing", 0, [4], [PredictionResult(29, 58)]),
        ("preprocessing", 0, [0], [5]),
    ]
    assert [one for one in outcomes if isinstance(one, Predictions)] == [Predictions([3], [2])]


def with_a_lock(result):
    return threading.Lock() if result.inference == 58 else result


def skip_locks(value):
    return value if isinstance(value, PredictionResult) else SKIP


def test_input_that_cannot_be_encoded_is_described():
    handler = Choosy().with_postprocess_fn(with_a_lock).with_postprocess_fn(skip_locks)
    (skipped,) = (one for one in outcomes_of(handler, [1, 29], isolate=True) if isinstance(one, Skipped))
    (lock,) = skipped.elements
    assert lock.startswith("<unlocked _thread.lock")


def outcomes_of(handler, elements, **request):
    batching = BatchingConfig(len(elements), len(elements))
    spec = catching(prepare(handler, InferenceRequest(batching=batching, **request)), Exception)
    with closing(open_worker(spec)) as worker:
        bundle = worker.bundle(Totals())
        return [*(one for tag, it in enumerate(elements) for one in bundle.add(it, tag)), *bundle.finish()]


def test_batch_skipped_entirely_closes_the_breaker():
    class Late(Choosy):
        def run_inference(self, batch, model, inference_args=None):
            if min(batch) < 0:
                raise ValueError("negative")
            return super().run_inference(batch, model)

    for isolate in (False, True):
        elements = [*[-1, -1] * 5, 3, 6, 1, -1]
        found, _ = counted(Late(), elements, batching=BatchingConfig(2, 2), isolate=isolate)
        assert [one.inference for one in found if not isinstance(one, Failure)] == [2]
