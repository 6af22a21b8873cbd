"""Totals add up events, also from several threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest

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
    assert (totals.predictions, totals.batches, totals.mean_batch_size) == (4, 2, 2.0)
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


def test_what_fallbacks_and_the_cache_answer_is_counted_on_its_own():
    totals = Totals()
    for model, examples in (("", 10), ("fallback", 3), ("fallback-key", 2), ("key", 4)):
        totals.on_event(BatchCompleted(model, examples, 0, 0.1))
    totals.on_event(CacheUsed("", 3, 1))
    assert (totals.predictions, totals.from_fallback, totals.cached) == (19, 5, 3)


class Table:
    def __init__(self):
        self.counters, self.distributions = {}, {}

    def increment(self, namespace, name, amount):
        self.counters[namespace, name] = self.counters.get((namespace, name), 0) + amount

    def update(self, namespace, name, value):
        self.distributions.setdefault((namespace, name), []).append(value)


def counted(*events, **options):
    table = Table()
    metrics = InferenceMetrics(table.increment, table.update, "ns", **options)
    for event in events:
        metrics.on_event(event)
    return table


MILLIS, MICROS = "load_model_latency_milli_secs", "inference_batch_latency_micro_secs"
SIZE, BYTES = "inference_request_batch_size", "inference_request_batch_byte_size"
TIMES = {"time_to_first_token_milli_secs": 123, "output_tokens_per_sec": 15}
USED = {"billed_requests": 2, "input_tokens": 4, "output_tokens": 3}
TIMED = UsageReported("a", 3, 30, seconds=2.0, first_token_secs=0.1234)


@pytest.mark.parametrize(
    ("events", "counters"),
    [
        ([BatchCompleted("", 3, 24, 0.1), BatchCompleted("", 1, 8, 0.1)], {"num_inferences": 4}),
        ([BatchCompleted("k", 3, 24, 0.001)], {"num_inferences": 3, "k-_num_inferences": 3}),
        (
            [BatchCompleted("", 3, 24, 0.1, useful=7.0, padded=9.0), BatchCompleted("", 1, 8, 0.1, useful=2, padded=2)],
            {"num_inferences": 4, "useful_length": 9, "padded_length": 11},
        ),
        ([BatchFailed("", 3, ValueError()), ElementFailed(Stage.INFERENCE, KeyError())], {"failed_batches_counter": 1}),
        (
            [ElementsSkipped("", Stage.PREPROCESSING, 1), ElementsSkipped("k", Stage.INFERENCE, 3)],
            {"skipped_elements_counter": 4, "k-_skipped_elements_counter": 3},
        ),
        (
            [UsageReported("a", 3, 2), UsageReported("a", 1, 1)],
            {f"{a}{name}": n for a in ("", "a-_") for name, n in USED.items()},
        ),
        (
            [CacheUsed("", 3, 1), CacheUsed("k", 0, 2)],
            {"cache_hits": 3, "cache_misses": 3, "k-_cache_hits": 0, "k-_cache_misses": 2},
        ),
    ],
)
def test_events_are_counted_in_all_and_by_model(events, counters):
    assert counted(*events).counters == {("ns", name): value for name, value in counters.items()}


@pytest.mark.parametrize(
    ("events", "values"),
    [
        (
            [BatchCompleted("", 3, 24, 0.0015), BatchCompleted("", 1, 8, 0.001)],
            {SIZE: [3, 1], BYTES: [24, 8], MICROS: [1500, 1000]},
        ),
        ([ModelLoaded("", 0.5, 1000)], {MILLIS: [500], "model_byte_size": [1000]}),
        ([TIMED, UsageReported("a", 3, 1)], {f"{a}{name}": [n] for a in ("", "a-_") for name, n in TIMES.items()}),
    ],
)
def test_sizes_and_times_are_distributions(events, values):
    assert counted(*events).distributions == {("ns", name): value for name, value in values.items()}


def test_batch_elements_metrics_are_optional():
    table = counted(BatchCompleted("", 3, 24, 0.002), batch_elements=True)
    assert table.distributions["BatchElements", "batch_size"] == [3]
    assert table.distributions["BatchElements", "msec_per_batch"] == [2]


def test_costs_of_less_than_a_millionth_add_up():
    counters = counted(*[UsageReported("a", 1, 0, cost=0.45e-6)] * 5).counters
    assert counters["ns", "cost_micros"] == counters["ns", "a-_cost_micros"] == 2


def test_usage_is_read_from_counters():
    used = {"a": UsageReported("a", 3, 2, 4, 0.5), "b-_c": UsageReported("b-_c", 1, 0)}
    table = counted(*used.values())
    assert usage_in({name: value for (_, name), value in table.counters.items()}) == used
