"""Newer models, told of by a side input."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.internal import pickler
from apache_beam.pvalue import AsSideInput

from headrace.beam.dofn import WINDOWED, InferenceDoFn, Output, observer_of
from headrace.beam.runner import lingers
from headrace.runtime.heap import hold_heap, release_heap
from headrace.runtime.refreshing_worker import RefreshedBundle, RefreshingWorker, open_refreshing_worker
from headrace.runtime.spec import ModelUpdate, SessionSpec


class ModelUpdates:
    """What a side input says of newer models, whenever it is asked.

    Beam's workers make the view of a side input once, where it is in the global window: one that held what was said
    then would never say anything else.

    Args:
        pairs: a moment and a value each; in each bundle they may be others.
    """

    def __init__(self, pairs: Iterable[tuple[int, Any]] = ()) -> None:
        self._pairs = pairs

    def latest(self) -> ModelUpdate:
        """The latest now. Where panes follow one another, some runners show all of them, some only the last."""
        latest = ModelUpdate(0, None)
        for moment, value in self._pairs:
            if latest.value is None or moment >= latest.moment:
                latest = ModelUpdate(moment, value)
        return latest


NOTHING = ModelUpdates()
"""Where nobody tells of anything."""


class AsModelUpdates(AsSideInput):
    """A side input as ``Told``: of any number of values, where Beam's ``AsSingleton`` wants one in each window."""

    @staticmethod
    def _from_runtime_iterable(it: Iterable[tuple[int, Any]], options: Any) -> ModelUpdates:  # noqa: ARG004 - Beam gives them
        return ModelUpdates(it)


def as_model_updates(pcoll: beam.PCollection) -> AsModelUpdates:
    """A PCollection of what tells of newer models, as a side input."""
    return AsModelUpdates(pcoll | "ToldWhen" >> beam.Map(_with_moment))


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
        self._told: ModelUpdates | None = None
        self._heard: dict[ModelUpdates, ModelUpdate] = {}

    def process(self, element: Any, windowed: Any = WINDOWED, told: ModelUpdates = NOTHING) -> Iterable[Output]:
        """Takes one element, and what its side input says of newer models, if it has one; emits what it completes."""
        if told is not self._told:
            self._told = told
            if told not in self._heard:  # reading it may be a call of the runner, and windows may alternate
                self._heard[told] = told.latest()
            self._bundle.see(self._heard[told])
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
