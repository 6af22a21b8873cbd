"""What monitoring systems are told of events: one table of instruments, for OpenTelemetry and Prometheus alike.

Requests to generative models have the names of OpenTelemetry's conventions (https://opentelemetry.io/docs/specs/semconv/gen-ai/),
all else begins with ``headrace``. No attribute holds anything of a row, a key or a URL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.core.errors import as_type_name
from headrace.core.events import (
    BatchCompleted,
    BatchFailed,
    BatchRetried,
    CacheUsed,
    CallEnded,
    ElementFailed,
    ElementsSkipped,
    Event,
    HostLost,
    ModelLoaded,
    ModelRefreshed,
    RefreshFailed,
    RequestsThrottled,
    UsageReported,
    WorkSampled,
)
from headrace.metrics.timeline import CpuOfHosts

Record = Callable[[float], object]
"""Takes a value of an instrument."""


@dataclass(frozen=True, eq=False)
class Instrument:
    """Something that is counted or measured. Two are never equal, so that they are quick keys of a dict."""

    kind: Literal["counter", "histogram", "gauge"]
    name: str
    unit: str
    """As UCUM has it: ``s``, ``By``, or what is counted in braces."""
    text: str
    attributes: Sequence[str] = ()
    buckets: Sequence[float] = ()


MODEL, ERROR, STAGE = "headrace.model", "error.type", "headrace.stage"
PROVIDER, OPERATION, REQUEST_MODEL = "gen_ai.provider.name", "gen_ai.operation.name", "gen_ai.request.model"
_GEN_AI = (OPERATION, PROVIDER, REQUEST_MODEL)
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_OF_OPERATIONS = tuple(0.01 * 2**n for n in range(14))
_OF_FIRST_TOKENS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_POWERS_OF_4 = tuple(float(4**n) for n in range(14))


def _counter(name: str, unit: str, text: str, *attributes: str) -> Instrument:
    return Instrument("counter", name, unit, text, attributes)


def _gauge(name: str, unit: str, text: str, *attributes: str) -> Instrument:
    return Instrument("gauge", name, unit, text, attributes)


def _seconds(name: str, text: str, *attributes: str, buckets: Sequence[float] = _SECONDS) -> Instrument:
    return Instrument("histogram", name, "s", text, attributes, buckets)


EXAMPLES = _counter("headrace.examples", "{example}", "Examples that a model answered.", MODEL)
BATCH_SIZE = Instrument(
    "histogram", "headrace.batch.size", "{example}", "Examples in a batch.", (MODEL,), _POWERS_OF_4[:9]
)
BATCH_SECONDS = _seconds("headrace.batch.duration", "A model's time for a batch.", MODEL)
BATCH_FAILURES = _counter("headrace.batch.failures", "{batch}", "Batches that failed as a whole.", MODEL, ERROR)
BATCH_RETRIES = _counter("headrace.batch.retries", "{batch}", "Batches that were tried again.", MODEL, ERROR)
ELEMENT_FAILURES = _counter(
    "headrace.element.failures", "{element}", "Elements that became dead letters.", STAGE, ERROR
)
ELEMENT_SKIPS = _counter("headrace.element.skips", "{element}", "Elements that were skipped on purpose.", STAGE)
CACHE = _counter("headrace.cache.lookups", "{example}", "Looked up in the cache.", "headrace.cache.result")
LOAD_SECONDS = _seconds("headrace.model.load.duration", "Time to load a model.", MODEL)
MODEL_BYTES = _gauge("headrace.model.memory", "By", "Memory that a model took as it loaded.", MODEL)
REFRESHES = _counter("headrace.model.refreshes", "{model}", "Newer models, with those that failed to load.", ERROR)
HOST_LOSSES = _counter("headrace.host.losses", "{host}", "Hosts that died or hung.", MODEL, "headrace.host.ending")
HOST_SECONDS = _seconds("headrace.host.duration", "Time of a batch's way to a model host and back.", MODEL)
REQUEST_SECONDS = _seconds("headrace.request.duration", "Time of a request to an endpoint.", MODEL, ERROR)
THROTTLED = _counter("headrace.throttled.time", "s", "For which endpoints refused requests.", "headrace.namespace")
COST = _counter("headrace.cost", "{currency}", "Cost of requests, at the given prices.", REQUEST_MODEL)
OPERATION_SECONDS = _seconds(
    "gen_ai.client.operation.duration", "GenAI operation duration.", *_GEN_AI, ERROR, buckets=_OF_OPERATIONS
)
TOKENS = Instrument(
    "histogram",
    "gen_ai.client.token.usage",
    "{token}",
    "Number of input and output tokens used.",
    (*_GEN_AI, "gen_ai.token.type"),
    _POWERS_OF_4,
)
FIRST_TOKEN_SECONDS = _seconds(
    "gen_ai.server.time_to_first_token", "Time to generate first token.", *_GEN_AI, buckets=_OF_FIRST_TOKENS
)
PHASE_SECONDS = _counter("headrace.phase.time", "s", "In which any thread of a process was at it.", "headrace.phase")
SAMPLED_SECONDS = _counter("headrace.sampled.time", "s", "Time over which phases were sampled.")
CPU_SECONDS = _counter("headrace.cpu.time", "s", "CPU time of processes and their model hosts.")
_PID = "process.pid"
GAUGES = {
    "memory": _gauge("headrace.memory", "By", "Resident memory, with model hosts.", _PID),
    "in_flight": _gauge("headrace.requests.active", "{request}", "Requests in flight.", _PID),
    "quota": _gauge("headrace.requests.quota", "{request}/s", "The quota that was found.", _PID),
    "gpu_busy": _gauge("headrace.gpu.busy", "{gpu}", "GPUs of the machine that are busy.", _PID),
    "gpu_memory": _gauge("headrace.gpu.memory", "By", "Memory of the machine's GPUs in use.", _PID),
}
"""By the names of ``WorkSampled``."""

Figure = tuple[tuple[Any, ...], float]
"""An instrument with the values of its attributes, and its value."""


class InstrumentedEvents:
    """An Observer that records what events say.

    Args:
        recorder: what records values, of an instrument and the values of its attributes.
    """

    def __init__(self, recorder: Callable[[Instrument, tuple[str, ...]], Record]) -> None:
        self._recorder = recorder
        self._records: dict[tuple[Any, ...], Record] = {}
        self._cpu_of_hosts = CpuOfHosts()

    def on_event(self, event: Event) -> None:
        """Records what the event says."""
        figures = _FIGURES.get(type(event))
        if isinstance(event, WorkSampled):
            event = replace(event, cpu_seconds=event.cpu_seconds + self._cpu_of_hosts.since_last(event))
        if figures is not None:
            for key, value in figures(event):
                record = self._records.get(key)
                if record is None:
                    record = self._records[key] = self._recorder(key[0], key[1:])
                record(value)


def _of_batch(event: BatchCompleted) -> tuple[Figure, ...]:
    return (
        ((EXAMPLES, event.model), event.examples),
        ((BATCH_SIZE, event.model), event.examples),
        ((BATCH_SECONDS, event.model), event.seconds),
    )


def _of_call(event: CallEnded) -> tuple[Figure, ...]:
    if event.operation:
        key: tuple[Any, ...] = (OPERATION_SECONDS, event.operation, event.provider, event.name, event.error_type)
    else:
        key = (REQUEST_SECONDS, event.model, event.error_type) if event.is_request else (HOST_SECONDS, event.model)
    return ((key, event.seconds),)


def _of_usage(event: UsageReported) -> Iterator[Figure]:
    if not event.requests:  # an earlier request has paid
        return
    request = event.operation or "generate_content", event.provider, event.model
    yield (TOKENS, *request, "input"), event.input_tokens
    yield (TOKENS, *request, "output"), event.output_tokens
    if event.cost is not None:
        yield (COST, event.model), event.cost
    if event.first_token_secs is not None:
        yield (FIRST_TOKEN_SECONDS, *request), event.first_token_secs


def _of_samples(event: WorkSampled) -> Iterator[Figure]:
    for phase, seconds in event.phases.items():
        yield (PHASE_SECONDS, phase), seconds
    yield (SAMPLED_SECONDS,), event.seconds
    yield (CPU_SECONDS,), max(0.0, event.cpu_seconds)
    for name, value in event.gauges.items():
        of_hosts = sum(resident for _, resident in event.hosts.values()) if name == "memory" else 0
        yield (GAUGES[name], str(event.process)), value + of_hosts


_FIGURES: dict[type, Callable[[Any], Any]] = {
    BatchCompleted: _of_batch,
    BatchFailed: lambda event: [((BATCH_FAILURES, event.model, as_type_name(event.error)), 1)],
    BatchRetried: lambda event: [((BATCH_RETRIES, event.model, as_type_name(event.error)), 1)],
    CacheUsed: lambda event: [((CACHE, "hit"), event.hits), ((CACHE, "miss"), event.misses)],
    CallEnded: _of_call,
    ElementFailed: lambda event: [((ELEMENT_FAILURES, event.stage.value, as_type_name(event.error)), 1)],
    ElementsSkipped: lambda event: [((ELEMENT_SKIPS, event.stage.value), event.elements)],
    HostLost: lambda event: [((HOST_LOSSES, event.model, "timeout" if event.timed_out else "death"), 1)],
    ModelLoaded: lambda event: [
        ((LOAD_SECONDS, event.model), event.seconds),
        ((MODEL_BYTES, event.model), event.bytes),
    ],
    ModelRefreshed: lambda _: [((REFRESHES, ""), 1)],
    RefreshFailed: lambda event: [((REFRESHES, as_type_name(event.error)), 1)],
    RequestsThrottled: lambda event: [((THROTTLED, event.namespace), event.seconds)],
    UsageReported: _of_usage,
    WorkSampled: _of_samples,
}
