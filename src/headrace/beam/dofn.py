"""The ParDo: passes a bundle's elements to the runtime, and the runtime's outcomes to Beam."""

from __future__ import annotations

import operator
import sys
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import apache_beam as beam
from apache_beam.internal import pickler
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner, SwitchingDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.prism_runner import PrismRunner
from apache_beam.typehints.decorators import IOTypeHints
from apache_beam.utils.windowed_value import WindowedValue

from headrace.beam.monitoring import Tally
from headrace.beam.outputs import Output, keep_windows, outputs_of
from headrace.beam.recorder import observer_of
from headrace.beam.refresh import latest_update
from headrace.core.result import Outcome
from headrace.models.memory import hold_heap, release_heap
from headrace.runtime.bundle import AnyBundle
from headrace.runtime.exporting import exporting
from headrace.runtime.open_worker import open_worker
from headrace.runtime.spec import ModelUpdate, SessionSpec
from headrace.runtime.switching_worker import AS_IN_SPEC, SwitchingWorker
from headrace.runtime.worker import AnyWorker

_LINGER_SECS = 60.0
_DIRECT_RUNNERS = (SwitchingDirectRunner, BundleBasedDirectRunner, FnApiRunner, PrismRunner)
"""They keep their worker processes until the pipeline ends, or have none."""

_identities: WeakKeyDictionary[beam.Pipeline, str] = WeakKeyDictionary()

_BEAMS = beam.DoFn.WindowedValueParam


class _FastWindowedValueParam(type(_BEAMS)):  # type: ignore[misc]
    """``WindowedValueParam`` with an equality in C: Beam compares it with several parameters for each element.

    An empty DoFn with this parameter takes 1.0 microseconds per element, with Beam's own 1.4.
    """

    __eq__ = staticmethod(partial(operator.is_, _BEAMS))
    __hash__ = type(_BEAMS).__hash__


WINDOWED = _FastWindowedValueParam(_BEAMS.param_id)

_NOTHING: Any = object()
"""Differs from every side input."""


class Switching(NamedTuple):
    """How models or their arguments change while a transform runs."""

    has_arguments: bool = False
    """Whether the arguments of the model's call are a side input."""
    waits: bool = False
    """Whether elements wait for a newer model to load."""


class SessionDoFn(beam.DoFn):
    """Opens a worker of a session for each of Beam's threads; a subclass feeds its bundles.

    Without a ``namespace`` metrics have the handler's own.
    """

    def __init__(self, spec: SessionSpec, namespace: str | None = None) -> None:
        self._spec = spec
        self._namespace = namespace
        self._worker: AnyWorker | SwitchingWorker | None = None

    def setup(self) -> None:
        """Loads the model, unless another thread of this process has; one in a host is loaded in the background."""
        with ExitStack() as stack:
            hold_heap()
            stack.callback(release_heap)
            stack.enter_context(exporting())
            self._worker = self._open_worker()
            self._held = stack.pop_all()

    def teardown(self) -> None:
        """Releases the model; a worker process of an engine keeps it until it opens another transform's."""
        if self._worker is not None:
            self._worker.close(linger=_lingers(self._spec))
            self._worker = None
            self._held.close()

    def _open_worker(self) -> AnyWorker | SwitchingWorker:
        worker = open_worker(self._spec, self._namespace)
        self._new_bundle: Callable[[], AnyBundle] = partial(worker.bundle, observer_of(worker))
        return worker


class InferenceDoFn(SessionDoFn):
    """Runs a session; each output keeps its own element's timestamp, windows and pane.

    An element's tag is a ``WindowedValue`` without a value. Neighbours with the same timestamp, windows and pane share
    one, so that a batch keeps few objects alive and the garbage collector has little to visit.

    An element in several windows (sliding ones) is inferred once and comes out in all of them: unlike ``WindowParam``,
    ``WindowedValueParam`` does not make Beam call ``process`` once per window.

    ``switching`` says how models or arguments change; with ``counts`` it emits counts for a threshold.
    """

    def __init__(
        self,
        spec: SessionSpec,
        namespace: str | None = None,
        switching: Switching | None = None,
        *,
        counts: bool = False,
    ) -> None:
        super().__init__(spec, namespace)
        self._switching = switching
        self._counts = counts

    def start_bundle(self) -> None:
        """Starts a new bundle; drops what a failed one left, since the runner repeats it."""
        self._bundle: Any = self._new_bundle()
        self._tally = Tally(columnar=self._spec.plan.batching.columnar) if self._counts else None
        self._micros = None
        self._side_inputs: tuple[Any, Any] = (_NOTHING, None)
        """Of the previous element."""
        self._updates: dict[int, tuple[Any, ModelUpdate]] = {}
        """By its id, each side input with its latest update: reading it may call the runner, and windows alternate."""

    def process(
        self,
        element: Any,
        windowed: Any = WINDOWED,
        arguments: Any = None,
        updates: Iterable[tuple[int, Any]] | None = None,
    ) -> Iterable[Output]:
        """Takes an element; emits the outcomes that are ready. Raises BudgetError at once if the budget is spent.

        ``arguments`` of the model's call and ``updates``, newer models with their timestamps in microseconds, are side
        inputs of the element's window.
        """
        if self._switching is not None and (
            arguments is not self._side_inputs[0] or updates is not self._side_inputs[1]
        ):
            self._follow(self._switching, arguments, updates)
        if (
            windowed.timestamp_micros != self._micros
            or (windowed.windows is not self._windows and windowed.windows != self._windows)
            or windowed.pane_info is not self._pane
        ):
            self._set_tag(windowed)
        if self._tally is not None:
            self._tally.count_element(self._tag)
        outcomes = self._bundle.add(element, self._tag)
        if outcomes:
            return keep_windows(self._outputs(outcomes), windowed)
        return self._outputs(self._bundle.finish()) if self._bundle.spent else ()

    def finish_bundle(self) -> Iterable[Output]:
        """Emits the remaining outcomes: no element outlives its bundle here."""
        outputs = self._outputs(self._bundle.finish())
        return outputs if self._tally is None else chain(outputs, self._tally.flush())

    def default_type_hints(self) -> IOTypeHints:
        """None: the annotations here are about windowed values, not about elements.

        With a hint, ``--runtime_type_check`` would iterate over the outputs, which are iterators, and leave none.
        """
        return IOTypeHints.empty()

    def _outputs(self, outcomes: Iterable[Outcome]) -> Iterable[Output]:
        counted = outcomes if self._tally is None else self._tally.count_outcomes(outcomes)
        return chain.from_iterable(map(outputs_of, counted))

    def _open_worker(self) -> AnyWorker | SwitchingWorker:
        """As in the base class; where models or arguments change, the first element loads the model."""
        if self._switching is None:
            return super()._open_worker()
        fresh = partial(pickler.loads, pickler.dumps(self._spec))
        switching = SwitchingWorker(fresh, self._namespace, waits=self._switching.waits)
        self._new_bundle = partial(switching.bundle, observer_of)
        return switching

    def _set_tag(self, windowed: WindowedValue) -> None:
        self._tag = windowed.with_value(None)
        self._micros, self._windows, self._pane = windowed.timestamp_micros, windowed.windows, windowed.pane_info

    def _follow(self, switching: Switching, arguments: Any, updates: Iterable[tuple[int, Any]] | None) -> None:
        if id(updates) not in self._updates:
            self._updates[id(updates)] = updates, latest_update(updates or ())
        _, update = self._updates[id(updates)]
        self._bundle.follow(update, arguments if switching.has_arguments else AS_IN_SPEC)
        self._side_inputs = arguments, updates


def bound_to(pipeline: beam.Pipeline, spec: SessionSpec) -> SessionSpec:
    """The spec of a transform of ``pipeline``.

    On engines whose worker processes come and go, the machine keeps an unused model for the next ones: for 60 seconds,
    unless the user has set ``linger_secs``.
    """
    identity = _identities.setdefault(pipeline, uuid.uuid4().hex)
    linger_secs = spec.linger_secs
    if linger_secs is None:
        linger_secs = 0.0 if isinstance(pipeline.runner, _DIRECT_RUNNERS) else _LINGER_SECS
    return replace(spec, pipeline=identity, linger_secs=linger_secs)


def _lingers(spec: SessionSpec) -> bool:
    """Whether a closed session's models stay in this process until another transform's session opens.

    They do in an engine's worker process, which outlives its workers. In the user's own process they do not: the next
    run may need a new model. Shared models linger on the machine instead.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    is_sdk_worker = main is not None and main.name == "apache_beam.runners.worker.sdk_worker_main"
    return is_sdk_worker and not spec.shared
