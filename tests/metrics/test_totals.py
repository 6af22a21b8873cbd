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
from headrace.metrics.totals import InferenceMetrics, Totals, usage_in


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


class Table:
    def __init__(self):
        self.counters, self.distributions = {}, {}

    def increment(self, namespace, name, amount):
        self.counters[namespace, name] = self.counters.get((namespace, name), 0) + amount

    def update(self, namespace, name, value):
        self.distributions.setdefault((namespace, name), []).append(value)


def counted(*events, **options):
    table = Table()
    metrics = InferenceMetrics(table, "ns", **options)
    for event in events:
        metrics.on_event(event)
    return table


def test_batches_are_counted_and_timed():
    table = counted(BatchCompleted("", 3, 24, 0.0015), BatchCompleted("", 1, 8, 0.001))
    assert table.counters == {("ns", "num_inferences"): 4}
    assert table.distributions == {
        ("ns", "inference_request_batch_size"): [3, 1],
        ("ns", "inference_request_batch_byte_size"): [24, 8],
        ("ns", "inference_batch_latency_micro_secs"): [1500, 1000],
    }


def test_padding_is_counted_if_lengths_are_known():
    table = counted(
        BatchCompleted("", 3, 24, 0.1, useful=7.0, padded=9.0), BatchCompleted("", 1, 8, 0.1, useful=2, padded=2)
    )
    assert table.counters == {("ns", "num_inferences"): 4, ("ns", "useful_length"): 9, ("ns", "padded_length"): 11}


def test_loads_and_failures_are_counted():
    table = counted(
        ModelLoaded("", 0.5, 1000), BatchFailed("", 3, ValueError()), ElementFailed(Stage.INFERENCE, ValueError())
    )
    assert table.counters == {("ns", "failed_batches_counter"): 1}
    assert table.distributions == {
        ("ns", "load_model_latency_milli_secs"): [500],
        ("ns", "model_byte_size"): [1000],
    }


def test_skipped_elements_are_counted():
    events = ElementsSkipped("", Stage.PREPROCESSING, 1), ElementsSkipped("k", Stage.INFERENCE, 3)
    assert counted(*events).counters == {
        ("ns", "skipped_elements_counter"): 4,
        ("ns", "k-_skipped_elements_counter"): 3,
    }


def test_named_models_are_counted_twice():
    table = counted(BatchCompleted("k", 3, 24, 0.001))
    assert table.counters == {("ns", "num_inferences"): 3, ("ns", "k-_num_inferences"): 3}


def test_batch_elements_metrics_are_optional():
    table = counted(BatchCompleted("", 3, 24, 0.002), batch_elements=True)
    assert table.distributions["BatchElements", "batch_size"] == [3]
    assert table.distributions["BatchElements", "msec_per_batch"] == [2]


def test_usage_is_counted_in_total_and_by_model():
    table = counted(UsageReported("a", 3, 2), UsageReported("b", 1, 0), UsageReported("a", 1, 1))
    assert table.counters == {
        ("ns", "billed_requests"): 3,
        ("ns", "input_tokens"): 5,
        ("ns", "output_tokens"): 3,
        ("ns", "a-_billed_requests"): 2,
        ("ns", "a-_input_tokens"): 4,
        ("ns", "a-_output_tokens"): 3,
        ("ns", "b-_billed_requests"): 1,
        ("ns", "b-_input_tokens"): 1,
        ("ns", "b-_output_tokens"): 0,
    }


def test_times_of_generation_are_distributions():
    table = counted(UsageReported("a", 3, 30, seconds=2.0, first_token_secs=0.1234), UsageReported("a", 3, 1))
    assert table.distributions == {
        ("ns", "time_to_first_token_milli_secs"): [123],
        ("ns", "a-_time_to_first_token_milli_secs"): [123],
        ("ns", "output_tokens_per_sec"): [15],
        ("ns", "a-_output_tokens_per_sec"): [15],
    }


def test_costs_of_less_than_a_millionth_add_up():
    table = counted(*[UsageReported("a", 1, 0, cost=0.45e-6)] * 5)
    assert table.counters["ns", "cost_micros"] == 2
    assert table.counters["ns", "a-_cost_micros"] == 2


def test_cache_is_counted():
    assert counted(CacheUsed("", 3, 1), CacheUsed("k", 0, 2)).counters == {
        ("ns", "cache_hits"): 3,
        ("ns", "cache_misses"): 3,
        ("ns", "k-_cache_hits"): 0,
        ("ns", "k-_cache_misses"): 2,
    }


def test_usage_is_read_from_counters():
    used = {"a": UsageReported("a", 3, 2, 4, 0.5), "b-_c": UsageReported("b-_c", 1, 0)}
    table = counted(*used.values())
    assert usage_in({name: value for (_, name), value in table.counters.items()}) == used
