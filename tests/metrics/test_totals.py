"""Totals add up events, also from several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from headrace.core.events import (
    BatchCompleted,
    BatchFailed,
    CacheUsed,
    ElementFailed,
    ElementsSkipped,
    ModelLoaded,
    UsageReported,
)
from headrace.core.result import Stage
from headrace.metrics.totals import Totals


def test_totals_add_up_events():
    totals = Totals()
    for event in (
        ModelLoaded("", 0.5, 100),
        BatchCompleted("", 3, 24, 0.25),
        BatchCompleted("", 1, 8, 0.25),
        BatchFailed("", 2, ValueError()),
        ElementFailed(Stage.INFERENCE, ValueError()),
        ElementFailed(Stage.PREPROCESSING, KeyError()),
        ElementsSkipped("", Stage.INFERENCE, 2),
        ElementsSkipped("", Stage.PREPROCESSING, 1),
    ):
        totals.on_event(event)
    assert (totals.predictions, totals.batches, totals.mean_batch_size, totals.model_seconds) == (4, 2, 2.0, 0.5)
    assert (totals.loads, totals.load_seconds, totals.model_bytes) == (1, 0.5, 100)
    assert (totals.failed_batches, totals.failed, totals.skipped) == (1, 2, 3)
    assert totals.failures == {("inference", "ValueError"): 1, ("preprocessing", "KeyError"): 1}


def test_mean_batch_size_is_zero_before_the_first_batch():
    assert Totals().mean_batch_size == 0.0


def test_totals_are_exact_across_threads():
    totals = Totals()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: totals.on_event(BatchCompleted("", 1, 1, 0.0)), range(2000)))
    assert totals.predictions == 2000


def test_usage_adds_up_by_model():
    totals = Totals()
    for event in UsageReported("a", 3, 2, cost=0.5), UsageReported("b", 1, 0), UsageReported("a", 1, 1, cost=0.25):
        totals.on_event(event)
    assert totals.usage == {"a": UsageReported("a", 4, 3, 2, 0.75), "b": UsageReported("b", 1, 0)}


def test_what_a_fallback_answers_is_counted_on_its_own():
    totals = Totals()
    for model, examples in (("", 10), ("fallback", 3), ("fallback-key", 2), ("key", 4)):
        totals.on_event(BatchCompleted(model, examples, 0, 0.1))
    assert (totals.predictions, totals.from_fallback) == (19, 5)


def test_predictions_from_a_cache_add_up():
    totals = Totals()
    for event in CacheUsed("", 3, 1), CacheUsed("", 2, 0):
        totals.on_event(event)
    assert (totals.cached, totals.predictions) == (5, 0)
