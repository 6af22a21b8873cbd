"""The one ParDo: hands a bundle's elements to the runtime and its outcomes to Beam."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam.internal import pickler
from apache_beam.typehints.decorators import IOTypeHints
from apache_beam.utils.windowed_value import WindowedValue

from headrace.beam.encodable import encodable, encodable_element
from headrace.beam.metrics import BeamSink, MetricReplay
from headrace.beam.refresh import NO_UPDATE, ModelUpdates
from headrace.beam.runner import lingers
from headrace.core.result import Outcome, Predictions, Skipped, Stage
from headrace.metrics.inference import InferenceMetrics
from headrace.runtime.bundle import AnyBundle
from headrace.runtime.heap import hold_heap, release_heap
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.plan import ONLY
from headrace.runtime.spec import ModelUpdate, SessionSpec
from headrace.runtime.switching_worker import AS_IN_SPEC, SwitchingWorker
from headrace.runtime.worker import AnyWorker

_BEAMS = beam.DoFn.WindowedValueParam


class _QuickParam(type(_BEAMS)):  # type: ignore[misc]
    """``WindowedValueParam``, compared in C: Beam compares it with several parameters for each element.

    An empty DoFn with this parameter takes 1.0 microseconds for an element, with Beam's own 1.4.
    """

    __eq__ = staticmethod(partial(operator.is_, _BEAMS))
    __hash__ = type(_BEAMS).__hash__


WINDOWED = _QuickParam(_BEAMS.param_id)

Output: TypeAlias = WindowedValue | beam.pvalue.TaggedOutput


_NOTHING: Any = object()
"""No side input."""


class Changes(NamedTuple):
    """What changes while a transform runs."""

    arguments: bool = False
    """The model's arguments, a side input."""
    waits: bool = False
    """Whether elements wait for newer models."""


class InferenceDoFn(beam.DoFn):
    """Runs a session; each outcome keeps its own element's timestamp, windows and pane.

    An element's tag is a ``WindowedValue``: its own, or that of an earlier element with the same timestamp, windows and
    pane, so that batches hold on to few objects and the garbage collector has little to look through.

    An element in several windows (sliding ones) is inferred once and comes out in all of them: ``WindowedValueParam``,
    unlike ``WindowParam``, does not make Beam call ``process`` once for each window.

    Args:
        spec: of the session.
        namespace: of the metrics; None: the handler's own.
        changes: None: one model, with the arguments of the spec, from beginning to end.
    """

    def __init__(self, spec: SessionSpec, namespace: str | None = None, changes: Changes | None = None) -> None:
        self._spec = spec
        self._namespace = namespace
        self._changes = changes
        self._worker: AnyWorker | SwitchingWorker | None = None

    def setup(self) -> None:
        """Loads the model, or joins the threads of this process that already have it.

        Where the model or its arguments change, the first element does.
        """
        hold_heap()
        try:
            self._worker = self._opened()
        except BaseException:
            release_heap()
            raise

    def start_bundle(self) -> None:
        """Begins anew; what a failed bundle left is forgotten, since the runner repeats it."""
        self._bundle: Any = self._new_bundle()
        self._micros = None
        self._current: tuple[Any, Any] = (_NOTHING, None)
        """The side inputs of the last element."""
        self._read: dict[Any, ModelUpdate] = {}
        """The latest update of each side input: reading it may be a call of the runner, and windows may alternate."""

    def process(
        self, element: Any, windowed: Any = WINDOWED, arguments: Any = None, updates: ModelUpdates | None = None
    ) -> Iterable[Output]:
        """Takes one element, with its arguments and newer models if these are side inputs; emits what is ready."""
        if self._changes is not None and (arguments is not self._current[0] or updates is not self._current[1]):
            self._follow(self._changes, arguments, updates)
        if (
            windowed.timestamp_micros != self._micros
            or (windowed.windows is not self._windows and windowed.windows != self._windows)
            or windowed.pane_info is not self._pane
        ):
            self._move_to(windowed)
        outcomes = self._bundle.add(element, self._place)
        if not outcomes:
            return ()
        return in_their_windows(chain.from_iterable(map(as_outputs, outcomes)), windowed)

    def finish_bundle(self) -> Iterable[Output]:
        """Emits the rest: a bundle never ends with its elements elsewhere."""
        return chain.from_iterable(map(as_outputs, self._bundle.finish()))

    def default_type_hints(self) -> IOTypeHints:
        """None: the annotations here speak of windowed values, not of elements."""
        return IOTypeHints.empty()

    def teardown(self) -> None:
        """Lets go of the model; a process that an engine keeps for its workers holds it until another one comes."""
        if self._worker is not None:
            self._worker.close(linger=lingers(self._spec))
            self._worker = None
            release_heap()

    def _opened(self) -> AnyWorker | SwitchingWorker:
        if self._changes is None:
            worker = open_worker(self._spec, self._namespace)
            self._new_bundle: Callable[[], AnyBundle] = partial(worker.bundle, observer_of(worker))
            return worker
        fresh = partial(pickler.loads, pickler.dumps(self._spec))
        switching = SwitchingWorker(fresh, self._namespace, waits=self._changes.waits)
        self._new_bundle = partial(switching.bundle, observer_of)
        return switching

    def _follow(self, changes: Changes, arguments: Any, updates: ModelUpdates | None) -> None:
        if updates not in self._read:
            self._read[updates] = NO_UPDATE if updates is None else updates.latest()
        self._bundle.follow(self._read[updates], arguments if changes.arguments else AS_IN_SPEC)
        self._current = arguments, updates

    def _move_to(self, windowed: WindowedValue) -> None:
        self._place = windowed.with_value(None)
        self._micros, self._windows, self._pane = windowed.timestamp_micros, windowed.windows, windowed.pane_info


def observer_of(worker: AnyWorker) -> FanOut:
    """Counts what a worker's batches do, and tells all who have subscribed."""
    plan = worker.plan
    if worker.handler_reports:
        return FanOut(MetricReplay())
    batch_elements = plan.batching.record_metrics and not plan.prebatched
    refreshed = plan.refreshed[ONLY].name if ONLY in plan.refreshed and not plan.routed else ""
    metrics = InferenceMetrics(BeamSink(), worker.namespace, batch_elements=batch_elements, refreshed=refreshed)
    return FanOut(MetricReplay(), metrics)


def dead_letter_tag(stage: Stage, index: int) -> str:
    """The output that holds the failures of one operation."""
    return f"failed_{stage.value}_{index}"


def skipped_tag(stage: Stage, index: int) -> str:
    """The output that holds what one operation was given for elements that it skipped; nobody need consume it."""
    return f"skipped_{stage.value}_{index}"


def as_outputs(outcome: Outcome) -> Iterable[Output]:
    """An outcome as Beam takes it, each value in the place of its element."""
    if isinstance(outcome, Predictions):
        return map(WindowedValue.with_value, outcome.tags, outcome.values)
    if isinstance(outcome, Skipped):
        tag = skipped_tag(outcome.stage, outcome.index)
        places = map(WindowedValue.with_value, outcome.tags, map(encodable_element, outcome.elements))
        return (beam.pvalue.TaggedOutput(tag, place) for place in places)
    tag = dead_letter_tag(outcome.stage, outcome.index)
    return (beam.pvalue.TaggedOutput(tag, outcome.tag.with_value(encodable(outcome.record))),)


class UnmultipliedWindows(tuple):  # type: ignore[type-arg]
    """Windows that stay as they are when multiplied.

    Beam multiplies the windows of whatever ``process`` emits by the number of windows of the current input, taking it
    for an output of that input alone; outputs of ours belong to other elements and have their windows already.
    """

    __slots__ = ()

    def __mul__(self, _: Any) -> UnmultipliedWindows:
        return self


def in_their_windows(outputs: Iterable[Output], windowed: WindowedValue) -> Iterable[Output]:
    """What ``process`` emits when it is given ``windowed``."""
    return outputs if len(windowed.windows) == 1 else map(_unmultiplied, outputs)


def _unmultiplied(output: Output) -> Output:
    windowed = output.value if isinstance(output, beam.pvalue.TaggedOutput) else output
    windowed.windows = UnmultipliedWindows(windowed.windows)
    return output
