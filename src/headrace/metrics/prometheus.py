"""Shows the instruments to Prometheus by its official client: on a port, or in a text file for node_exporter."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from headrace.core.errors import ConfigurationError, extra_required
from headrace.metrics.instruments import Instrument, InstrumentedEvents, Record

with extra_required("prometheus"):
    import prometheus_client
    from prometheus_client.multiprocess import MultiProcessCollector

_LOGGER = logging.getLogger(__name__)
_KINDS: dict[str, Any] = {
    "counter": (prometheus_client.Counter, "inc"),
    "histogram": (prometheus_client.Histogram, "observe"),
    "gauge": (prometheus_client.Gauge, "set"),
}
"""The client's classes, and their methods that take a value."""
_UNITS = {"s": "_seconds", "By": "_bytes", "{request}/s": "_per_second"}
"""What OpenTelemetry's units become in names; others are left out."""
_EXISTING = "registry"
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The client's variable: the folder where several processes count together."""

_OURS = prometheus_client.CollectorRegistry()
prometheus_client.REGISTRY.register(_OURS)  # a program that shows it shows ours


@contextmanager
def shown(where: str) -> Iterator[InstrumentedEvents]:
    """An observer of events, whose figures Prometheus gets.

    Args:
        where: ``PORT`` or ``HOST:PORT``, where they are served until the process ends; a path that ends in ``.prom``,
            written when the context ends; or ``registry``: the program shows the client's default registry itself.

    Raises:
        ConfigurationError: it is none of these, or the folder of several processes is none.
        OSError: the port is taken, or there is no such folder.
    """
    folder = os.environ.get(_FOLDER)
    if folder is not None and not os.path.isdir(folder):
        raise ConfigurationError(f"{_FOLDER} names no folder: {folder!r}. Make it, and leave it empty.")
    host, _, port = where.rpartition(":")
    is_file = where.endswith(".prom")
    if port.isdigit():
        _serve(host or "0.0.0.0", int(port))  # noqa: S104 - Prometheus is on another machine, as a rule
    elif is_file:
        os.listdir(os.path.dirname(os.path.abspath(where)))
    elif where != _EXISTING:
        raise ConfigurationError(
            f"Prometheus gets figures at PORT or HOST:PORT, in FILE.prom, or in the {_EXISTING!r} of its client, which "
            f"the program shows itself; {where!r} is none of these."
        )
    try:
        yield InstrumentedEvents(_recorder)
    finally:
        try:
            if is_file:
                prometheus_client.write_to_textfile(where, _all())
        except OSError as error:  # the rows are not to blame
            _LOGGER.warning("Prometheus gets no figures in %s: %s.", where, error.strerror or error)


@cache
def _serve(host: str, port: int) -> Any:
    """Serves the figures of this process, or those of all that share the client's folder for several processes."""
    registry = _all() if _is_for_several() else prometheus_client.REGISTRY
    return prometheus_client.start_http_server(port, host, registry)


def _all() -> Any:
    if not _is_for_several():
        return _OURS
    registry = prometheus_client.CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def _is_for_several() -> bool:
    return _FOLDER in os.environ


@cache
def _metric(instrument: Instrument) -> Any:
    """The client's metric, under the name that an OpenTelemetry collector would give the instrument."""
    name = instrument.name.replace(".", "_") + _UNITS.get(instrument.unit, "")
    labels = [one.replace(".", "_") for one in instrument.attributes]
    options: dict[str, Any] = {"buckets": instrument.buckets} if instrument.kind == "histogram" else {}
    kind, _ = _KINDS[instrument.kind]
    return kind(name, instrument.text, labels, registry=_OURS, **options)


def _recorder(instrument: Instrument, values: tuple[str, ...]) -> Record:
    metric, (_, method) = _metric(instrument), _KINDS[instrument.kind]
    record: Record = getattr(metric.labels(*values) if values else metric, method)
    return record
