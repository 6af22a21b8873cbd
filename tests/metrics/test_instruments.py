"""What events say, as values of instruments."""

import dataclasses
import typing

from headrace.core import events
from headrace.core.events import (
    BatchCompleted,
    BatchFailed,
    CacheUsed,
    CallEnded,
    ElementFailed,
    HandlerMetric,
    HostLost,
    UsageReported,
    WorkSampled,
)
from headrace.core.result import Stage
from headrace.metrics import instruments
from headrace.metrics.instruments import Instrument, InstrumentedEvents


def recorded(*given):
    """The values of each instrument, by its name and those of its attributes that are not empty."""
    found = {}

    def recorder(instrument, values):
        assert len(values) == len(instrument.attributes)
        shown = {name: value for name, value in zip(instrument.attributes, values, strict=True) if value}
        return found.setdefault((instrument.name, *shown.values()), []).append

    observer = InstrumentedEvents(recorder)
    for event in given:
        observer.on_event(event)
    return found


def test_batches_are_counted_and_measured():
    assert recorded(
        BatchCompleted("", 3, 30, 0.5), BatchCompleted("", 1, 10, 0.25), BatchCompleted("m", 2, 0, 1.0)
    ) == {
        ("headrace.examples",): [3, 1],
        ("headrace.examples", "m"): [2],
        ("headrace.batch.size",): [3, 1],
        ("headrace.batch.size", "m"): [2],
        ("headrace.batch.duration",): [0.5, 0.25],
        ("headrace.batch.duration", "m"): [1.0],
    }


def test_failures_have_their_error_and_not_its_message():
    error = ValueError("the text of a row")
    assert recorded(BatchFailed("m", 8, error), ElementFailed(Stage.INFERENCE, error), HostLost("", True, "hung")) == {
        ("headrace.batch.failures", "m", "ValueError"): [1],
        ("headrace.element.failures", "inference", "ValueError"): [1],
        ("headrace.host.losses", "timeout"): [1],
    }


def test_requests_to_generative_models_have_the_names_of_the_conventions():
    call = CallEnded("", 0.5, operation="chat", provider="openai", name="gpt")
    used = UsageReported("gpt", 70, 30, cost=0.01, operation="chat", provider="openai")
    paid_earlier = UsageReported("gpt", 0, 0, requests=0)
    assert recorded(call, used, paid_earlier) == {
        ("gen_ai.client.operation.duration", "chat", "openai", "gpt"): [0.5],
        ("gen_ai.client.token.usage", "chat", "openai", "gpt", "input"): [70],
        ("gen_ai.client.token.usage", "chat", "openai", "gpt", "output"): [30],
        ("headrace.cost", "gpt"): [0.01],
    }


def test_other_calls_have_our_names():
    assert recorded(CallEnded("m", 0.5, error_type="TimeoutError"), CallEnded("m", 0.1, is_request=False)) == {
        ("headrace.request.duration", "m", "TimeoutError"): [0.5],
        ("headrace.host.duration", "m"): [0.1],
    }


def test_samples_become_times_and_gauges_of_their_process():
    gauges = {"memory": 1e9, "in_flight": 3, "quota": 50.0, "gpu_busy": 0.5, "gpu_memory": 2e9}
    found = recorded(WorkSampled(7, 0.5, {"model": 0.4}, -0.01, gauges), CacheUsed("", 2, 1))
    assert found["headrace.phase.time", "model"] == [0.4]
    assert found["headrace.cpu.time",] == [0.0], "a counter does not go back"
    assert found["headrace.requests.active", "7"] == [3]
    assert found["headrace.cache.lookups", "hit"] == [2]
    assert set(gauges) == set(instruments.GAUGES)


def test_a_host_of_several_processes_computes_once():
    samples = [WorkSampled(pid, 1.0, {}, 0.5, {"memory": 10}, {9: (secs, 5)}) for secs in (3.0, 4.0) for pid in (7, 8)]
    found = recorded(*samples)
    assert sum(found["headrace.cpu.time",]) == 4 * 0.5 + 1.0
    assert found["headrace.memory", "8"] == [15, 15]


def test_every_event_is_shown_but_those_of_handlers():
    kinds = set(typing.get_args(events.Event))
    assert kinds - set(instruments._FIGURES) == {HandlerMetric}


def test_names_are_those_that_prometheus_can_have_too():
    found = [one for one in vars(instruments).values() if isinstance(one, Instrument)]
    found += instruments.GAUGES.values()
    assert len({one.name for one in found}) == len(found) > 20
    for one in found:
        assert dataclasses.asdict(one)["unit"] in ("s", "By") or one.unit.startswith("{"), one.name
        assert bool(one.buckets) == (one.kind == "histogram"), one.name


def test_prometheus_has_the_names_that_a_collector_makes():
    from headrace.metrics import prometheus

    shown = [instruments.HOST_SECONDS, *(instruments.GAUGES[name] for name in ("memory", "quota", "in_flight"))]
    assert [described.name for one in shown for described in prometheus._metric(one).describe()] == [
        "headrace_host_duration_seconds",
        "headrace_memory_bytes",
        "headrace_requests_quota_per_second",
        "headrace_requests_active",
    ]
