"""Hands events to OpenTelemetry: to the providers that the program has set, or that the standard variables ask for.

Spans are made of a batch, its model's load, its host and its requests once it is over, from what events say.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigurationError, as_type_name, extra_required
from headrace.core.events import BatchCompleted, BatchFailed, CallEnded, Event, ModelLoaded, Observer
from headrace.metrics.instruments import (
    ERROR,
    MODEL,
    OPERATION,
    PROVIDER,
    REQUEST_MODEL,
    Instrument,
    InstrumentedEvents,
    Record,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_SCOPE = "headrace"
_SIGNALS = ("METRICS", "TRACES")
_METHODS = {"counter": "add", "histogram": "record", "gauge": "set"}
_MOST_PER_SEC = 10
"""Traces of a process, unless a sampler is named: far more cost what they tell nobody."""
_MOST_CHILDREN = 128
_NANOS = 1e9


def is_wanted() -> bool:
    """Whether the program has set a provider, or a variable asks for one. Imports nothing."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = (os.environ.get(f"OTEL_{signal}_EXPORTER", "none").strip().lower() for signal in _SIGNALS)
    return any(map(_has_endpoint, _SIGNALS)) or any(one not in ("", "none") for one in exporters) or any(_providers())


def observers() -> list[Observer]:
    """What records events with the providers, which are set for the process if the program has set none.

    Raises:
        MissingExtraError: the SDK is not installed.
        ConfigurationError: the variables name an exporter that is not.
    """
    if not any(_providers()):
        _set_providers()
    meters, tracers = _providers()
    found: list[Observer] = []
    if meters is not None:
        found.append(InstrumentedEvents(partial(_recorder, meters.get_meter(_SCOPE))))
    if tracers is not None:
        found.append(BatchSpans(tracers.get_tracer(_SCOPE)))
    return found


def _has_endpoint(signal: str) -> bool:
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(os.environ.get(name, "").strip() for name in names)


def _providers() -> tuple[Any, Any]:
    """The providers of meters and of tracers; None for one that nobody has set."""
    metrics, trace = sys.modules.get("opentelemetry.metrics"), sys.modules.get("opentelemetry.trace")
    return _real(metrics and metrics.get_meter_provider()), _real(trace and trace.get_tracer_provider())


def _real(provider: Any) -> Any:
    """A provider, unless it is the API's own, which does nothing."""
    name = type(provider).__name__
    return None if provider is None or "Proxy" in name or "NoOp" in name else provider


def _set_providers() -> None:
    """Has the SDK set providers as the variables say, whose defaults are those of OpenTelemetry's specification."""
    with extra_required("otel"):
        from opentelemetry.sdk import _configuration  # noqa: PLC0415 - what opentelemetry-instrument runs, too

    os.environ.setdefault("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    for signal in filter(_has_endpoint, _SIGNALS):
        os.environ.setdefault(f"OTEL_{signal}_EXPORTER", "otlp")
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = {"service.instance.id": str(uuid.uuid4())} if "service.instance.id" not in given else {}
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name" not in given:
        resource["service.name"] = _SCOPE
    try:
        configurator: Any = _configuration._OTelSDKConfigurator
        configurator().configure(resource_attributes=resource)
    except Exception as error:  # such as an exporter that is not installed
        raise ConfigurationError(f"OpenTelemetry cannot be set up as the variables OTEL_... say: {error}") from error


def _recorder(meter: Any, instrument: Instrument, values: tuple[str, ...]) -> Record:
    more: dict[str, Any] = {}
    if instrument.kind == "histogram":
        more["explicit_bucket_boundaries_advisory"] = instrument.buckets
    # The SDK returns the same instrument for the same name.
    create = getattr(meter, f"create_{instrument.kind}")
    made = create(instrument.name, unit=instrument.unit, description=instrument.text, **more)
    attributes = {name: value for name, value in zip(instrument.attributes, values, strict=True) if value}
    return partial(getattr(made, _METHODS[instrument.kind]), attributes=attributes)


class BatchSpans:
    """An Observer: makes a batch's spans once it is over, on the thread that reports what belongs to it before.

    Args:
        tracer: of a provider, whose sampler decides; without one named in ``OTEL_TRACES_SAMPLER``, up to ten batches a
            second have spans.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._gap_secs = 0.0 if os.environ.get("OTEL_TRACES_SAMPLER") else 1 / _MOST_PER_SEC
        self._next = 0.0
        self._of_thread = threading.local()

    def on_event(self, event: Event) -> None:
        """Keeps what belongs to a batch until it is over."""
        children = vars(self._of_thread).setdefault("children", deque(maxlen=_MOST_CHILDREN))
        if isinstance(event, ModelLoaded | CallEnded):
            children.append(event)
        elif isinstance(event, BatchCompleted | BatchFailed):
            now = time.monotonic()
            if now >= self._next:
                self._next = now + self._gap_secs
                self._batch(event, [*children])
            children.clear()

    def _batch(self, event: BatchCompleted | BatchFailed, children: list[ModelLoaded | CallEnded]) -> None:
        from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415 - of an extra

        seconds = event.seconds if isinstance(event, BatchCompleted) else 0.0
        calls = [one for one in children if isinstance(one, CallEnded)]
        began = min(event.ended - int(seconds * _NANOS), *map(_began, calls), event.ended)
        span = self._tracer.start_span("headrace.batch", start_time=began, attributes=_of_batch(event))
        if span.is_recording():
            context = set_span_in_context(span)
            for child in children:
                kind = SpanKind.CLIENT if isinstance(child, CallEnded) else SpanKind.INTERNAL
                one = self._tracer.start_span(_name(child), context, kind, _of_child(child), start_time=_began(child))
                _end(one, getattr(child, "error_type", ""), child.ended)
        error = as_type_name(event.error) if isinstance(event, BatchFailed) else ""
        _end(span, error, max([event.ended, *(one.ended for one in calls)]))


def _began(event: ModelLoaded | CallEnded) -> int:
    return event.ended - int(event.seconds * _NANOS)


def _end(span: Span, error: str, ended: int) -> None:
    if error:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - of an extra

        span.set_attribute(ERROR, error)
        span.set_status(Status(StatusCode.ERROR))
    span.end(ended)


def _name(child: ModelLoaded | CallEnded) -> str:
    if isinstance(child, ModelLoaded):
        return "headrace.load"
    if child.operation:
        return f"{child.operation} {child.name}".rstrip()
    return "headrace.request" if child.is_request else "headrace.host"


def _of_batch(event: BatchCompleted | BatchFailed) -> dict[str, Any]:
    found: dict[str, Any] = {"headrace.batch.examples": event.examples}
    if event.model:
        found[MODEL] = event.model
    if isinstance(event, BatchCompleted):
        found["headrace.batch.bytes"] = event.bytes
        if event.where is not None:
            found["headrace.file"], found["headrace.row"] = event.where
    return found


def _of_child(child: ModelLoaded | CallEnded) -> dict[str, Any]:
    if isinstance(child, ModelLoaded):
        return {"headrace.model.bytes": child.bytes}
    if not child.operation:
        return {}
    tokens = {
        f"gen_ai.usage.{kind}_tokens": count
        for kind, count in zip(("input", "output"), child.tokens, strict=True)
        if count
    }
    return {OPERATION: child.operation, PROVIDER: child.provider, REQUEST_MODEL: child.name, **tokens}
