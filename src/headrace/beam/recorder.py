"""Records what a handler counts with Beam's metrics in a model host, where no bundle is; its owner replays it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from apache_beam.metrics import cells
from apache_beam.metrics.execution import MetricsContainer, MetricsEnvironment
from apache_beam.runners.worker import statesampler
from apache_beam.utils.counters import CounterFactory

from headrace.core.events import HandlerMetric

_HISTOGRAMS: Any = getattr(cells, "HistogramCellFactory", ())
"""What makes a histogram's cell; before Beam 2.70 no runner reports any."""


class BeamRecorder:
    """Makes Beam's metrics count on a thread that runs no bundle; the runtime finds this by name."""

    def __init__(self) -> None:
        self._thread = _Thread()

    @contextmanager
    def recording(self, *, process_wide: bool = True) -> Iterator[list[HandlerMetric]]:
        """While the context is open, this thread's updates are kept as a bundle would keep them.

        The list is filled when the context is left, by an exception too. With ``process_wide``, metrics that count for
        the whole process are taken out of Beam's container and are then empty, whichever thread updated them: nobody
        else reads them in a model host.
        """
        records: list[HandlerMetric] = []
        container = self._thread.container
        outer, container.metrics = container.metrics, {}
        tracker = statesampler.get_current_tracker()
        statesampler.set_current_tracker(self._thread.sampler)
        try:
            yield records
        finally:
            statesampler.set_current_tracker(tracker)
            records += _taken_out_of(container.metrics, process_wide=False)
            if process_wide:
                records += _taken_out_of(MetricsEnvironment.process_wide_container().metrics, process_wide=True)
            container.metrics = outer


class _Thread(threading.local):
    """One thread's container, and what leads Beam to it; made once a thread, since that takes 20 microseconds."""

    def __init__(self) -> None:
        self.container = _Container("handler")
        self.sampler = statesampler.StateSampler("headrace", CounterFactory())  # samples nothing until it is started
        state = self.sampler.scoped_state("handler", "process", metrics_container=self.container)
        state.__enter__()  # for good: whether it applies depends on whose sampler is the thread's


class _Paths(cells.BoundedTrieCell):
    """Keeps every path: Beam's cell cuts branches off, and those cannot be added to another one."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: dict[tuple[str, ...], None] = {}
        """In the order in which they came, which decides on what is cut off."""

    def update(self, value: Iterable[str]) -> None:
        """Adds a path."""
        self.paths[tuple(value)] = None


class _Values(cells.MetricCell):
    """Keeps every value: Beam's cell, which refuses what it cannot count, has only how many were in each bucket."""

    def __init__(self, factory: Any) -> None:
        super().__init__()
        self.bucket_type = factory._bucket_type
        self.values: list[float] = []
        self._cell = factory()

    def update(self, value: float) -> None:
        """Adds a value."""
        self._cell.update(value)
        self.values.append(value)


class _Container(MetricsContainer):
    """A bundle's container, but for the cells that forget."""

    def get_metric_cell(self, metric_key: Any) -> Any:
        """The cell of that metric, made at its first update."""
        cell = self.metrics.get(metric_key)
        if cell is None:
            cell = self.metrics[metric_key] = _new_cell(metric_key.cell_type)
        return cell


def _new_cell(made_by: Any) -> Any:
    if made_by is cells.BoundedTrieCell:
        return _Paths()
    return _Values(made_by) if isinstance(made_by, _HISTOGRAMS) else made_by()


def _distribution(cell: Any) -> tuple[int, int, int, int] | None:
    data = cell.get_cumulative()
    return (data.count, data.sum, data.min, data.max) if data.count else None


def _gauge(cell: Any) -> int | None:
    data = cell.get_cumulative()
    return data.value if data.timestamp else None


_READINGS: dict[type, tuple[Any, Callable[[Any], Any]]] = {
    cells.CounterCell: ("counter", lambda cell: cell.get_cumulative()),
    cells.DistributionCell: ("distribution", _distribution),
    cells.GaugeCell: ("gauge", _gauge),
    cells.StringSetCell: ("string_set", lambda cell: tuple(cell.get_cumulative().string_set)),
    _Paths: ("bounded_trie", lambda cell: tuple(cell.paths)),
    _Values: ("histogram", lambda cell: (cell.bucket_type, tuple(cell.values))),
}
"""A cell's kind, and what it came to; None: its first update was refused."""


def _taken_out_of(metrics: dict[Any, Any], *, process_wide: bool) -> Iterator[HandlerMetric]:
    for key in [key for key, cell in list(metrics.items()) if type(cell) in _READINGS]:
        cell = metrics.pop(key)  # before it is read, so that another thread's next update makes a new one
        kind, reading = _READINGS[type(cell)]
        value, name = reading(cell), key.metric_name
        if value is not None:
            labels = tuple(name.labels.items())
            yield HandlerMetric(kind, name.namespace, name.name, value, process_wide, name.urn, labels)
