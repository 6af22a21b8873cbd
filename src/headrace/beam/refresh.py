"""Newer models, told of by a side input."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.internal import pickler
from apache_beam.pvalue import AsSideInput

from headrace.beam.dofn import WINDOWED, InferenceDoFn, Output, observer_of
from headrace.beam.heap import hold_heap, release_heap
from headrace.beam.surroundings import lingers
from headrace.runtime.refresh import RefreshedBundle, RefreshingWorker, open_refreshing_worker
from headrace.runtime.refresh_policy import News
from headrace.runtime.session import SessionSpec

NOTHING = News(0, None)
"""What is told before anything is."""


class AsLatest(AsSideInput):
    """A side input of ``News``: the latest of those that its window has, where Beam's ``AsSingleton`` wants only one.

    Where a window's panes follow one another, some runners show all of them, some only the last.
    """

    @staticmethod
    def _from_runtime_iterable(it: Iterable[News], options: Any) -> News:  # noqa: ARG004 - Beam gives them
        latest = NOTHING
        for one in it:
            if latest is NOTHING or one[0] >= latest.moment:
                latest = News(*one)
        return latest


def as_news(pcoll: beam.PCollection) -> AsLatest:
    """A PCollection of what tells of newer models, as a side input."""
    return AsLatest(pcoll | "ToldWhen" >> beam.Map(_with_moment))


def _with_moment(value: Any, timestamp: Any = beam.DoFn.TimestampParam) -> tuple[int, Any]:
    return timestamp.micros, value


class RefreshingDoFn(InferenceDoFn):
    """Adds newer models to the DoFn that it is mixed into."""

    _waits = False

    def setup(self) -> None:
        """Joins the threads of this process that run the same; the first element has the model loaded."""
        hold_heap()
        fresh = partial(pickler.loads, pickler.dumps(self._spec))
        try:
            self._models: RefreshingWorker = open_refreshing_worker(fresh, self._namespace, waits=self._waits)
        except BaseException:
            release_heap()
            raise

    def start_bundle(self) -> None:
        """See ``InferenceDoFn``."""
        super().start_bundle()
        self._latest: News | None = None

    def process(  # type: ignore[override] # Beam tells parameters by their defaults, not by their places
        self, element: Any, latest: News = NOTHING, windowed: Any = WINDOWED
    ) -> Iterable[Output]:
        """Takes one element, and what its side input says of newer models; emits what it completes."""
        if latest is not self._latest:
            self._latest = latest
            self._bundle.see(latest)
        return super().process(element, windowed)

    def teardown(self) -> None:
        """See ``InferenceDoFn``."""
        if hasattr(self, "_models"):
            self._models.close(linger=lingers(self._spec))
            del self._models
            release_heap()

    def _new_bundle(self) -> RefreshedBundle:
        return self._models.bundle(observer_of)


class RefreshingInferenceDoFn(RefreshingDoFn):
    """``InferenceDoFn`` with models that are refreshed.

    Args:
        spec: of the session.
        namespace: of the metrics.
        waits: whether elements wait for newer models.
    """

    def __init__(self, spec: SessionSpec, namespace: str | None = None, *, waits: bool = False) -> None:
        super().__init__(spec, namespace)
        self._waits = waits
