"""Hands events to OpenTelemetry: to the providers that the program has set, or that the standard variables ask for."""

from __future__ import annotations

import os
import sys
import uuid
from functools import partial
from typing import Any

from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.events import Observer
from headrace.metrics.instruments import Instrument, InstrumentedEvents, Record

_SCOPE = "headrace"
_SIGNALS = ("METRICS", "TRACES")
_METHODS = {"counter": "add", "histogram": "record", "gauge": "set"}


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
        from headrace.metrics.spans import BatchSpans  # noqa: PLC0415 - an extra

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
