"""The request handler of a model host: runs one batch at a time through the same steps as an in-process run.

A request's head is a ``Work``, or an ``EngineRequest``; a response's a ``Done``, a ``Raised`` or an ``Unreadable``. A
host that has lost its device, so that no later call can succeed, responds with a ``HostFailure`` and exits. So does one
whose engine has lost it, or answers nothing; but it waits to be killed by the client.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from headrace.batching.batcher import Batch
from headrace.batching.columnar import as_columns
from headrace.batching.size import BatchTime
from headrace.core.errors import DeviceLostError
from headrace.core.events import BatchCompleted, ElementFailed, Event
from headrace.core.result import Caught, Failure, Outcome, Predictions, Skipped, Stage
from headrace.core.transferable import transferable
from headrace.failures.device import device_loss, one_line
from headrace.failures.search import InjectedFailure
from headrace.hosts.environment import ThreadBudget
from headrace.hosts.host import Later, RequestHandler, Response
from headrace.hosts.provider import HostFailure
from headrace.ipc.codec import encode, sent_as_plain_values
from headrace.ipc.progress import Activity, Progress
from headrace.ipc.serialization import exception_reducers
from headrace.runtime.model_source import Loaded, ModelSource
from headrace.runtime.observers import EngineMetrics
from headrace.runtime.operations import OperationMarks
from headrace.runtime.queues import AnyBatch
from headrace.runtime.session import InferenceSession, SessionModel, close_session, open_session
from headrace.runtime.spec import SessionSpec
from headrace.runtime.steps import ModelAccess, Steps
from headrace.runtime.worker import Worker

_LOGGER = logging.getLogger(__name__)
_PLAIN = {str, int, float, bool, type(None)}
_FIELDS = attrgetter("model", "examples", "bytes", "seconds", "useful", "padded")

WaitContext: TypeAlias = Callable[[], AbstractContextManager[None]]
"""A context for waiting on another process that has its own time limit."""
Source: TypeAlias = Callable[[SessionSpec, InferenceSession, WaitContext], ModelSource]


@sent_as_plain_values
class Work(NamedTuple):
    """What to do with a request's rows: elements, identified by their positions."""

    model: Any
    preprocess: bool = False
    infer: bool = False
    """Also postprocess. With neither flag set, only load the model."""
    weight: float = 0
    useful: float = 0
    """``weight`` and ``useful`` are those of the ``Batch``: with padding, and without."""
    injected_failures: Mapping[int, InjectedFailure] = {}
    """By position: elements to fail instead of running an operation that killed a host."""

    def plain(self) -> tuple[Any, ...] | None:
        """The fields, if they are plain values."""
        fields = self[:-1]
        return None if self.injected_failures or not _PLAIN.issuperset(map(type, fields)) else fields

    @classmethod
    def of_plain(cls, plain: tuple[Any, ...]) -> Work:
        """The same work."""
        return cls(*plain)


@sent_as_plain_values
class Done(NamedTuple):
    """The result of each element. The response's rows are predictions, or preprocessed elements."""

    tags: Sequence[int]
    """The position of each row's element."""
    failures: list[Failure]
    """Tagged with positions, as ``skipped`` is."""
    events: list[Event]
    observations: list[tuple[float, BatchTime]]
    """Batch sizes, and the times to report to the ``SizeController``."""
    skipped: Sequence[Skipped] = ()
    """Includes elements only for skips in postprocessing; the client has the others."""

    def plain(self) -> tuple[Any, ...] | None:
        """The fields of the response of a batch that succeeded: positions, a batch's only event, and its time."""
        if self.failures or self.skipped or not len(self.events) == len(self.observations) == 1:
            return None
        (event,), (observation,) = self.events, self.observations
        fields = _FIELDS(event) if type(event) is BatchCompleted else (event,)
        if not _PLAIN.issuperset(map(type, (*fields, *observation))):
            return None
        has_all_in_order = self.tags == [*range(len(self.tags))]
        return len(self.tags) if has_all_in_order else self.tags, fields, observation

    @classmethod
    def of_plain(cls, plain: tuple[Any, ...]) -> Done:
        """The same response."""
        tags, event, observation = plain
        tags = range(tags) if isinstance(tags, int) else tags
        return cls(tags, [], [BatchCompleted(*event)], [observation])


class Raised(NamedTuple):
    """An exception that the session does not catch, or one raised while the model was loading."""

    caught: Caught
    events: list[Event]


class Unreadable(NamedTuple):
    """The request or the response could not be pickled or unpickled."""

    caught: Caught


class EngineRequest(NamedTuple):
    """To an engine in a host, which answers requests side by side: submit the rows."""

    inference_args: dict[str, Any] | None


class BatchRequestHandler(RequestHandler):
    """Holds the models and runs batches; pickled to the host.

    Args:
        spec: of the session.
        source: makes the source of models that this host does not load itself, from the spec, the session, and a
            context to wait in.
    """

    def __init__(self, spec: SessionSpec, source: Source | None = None) -> None:
        self._spec = replace(spec.for_host(), shared=spec.shared if source else frozenset())
        self._source = source
        self._worker: Worker | None = None
        self._inherited: dict[Any, Loaded] = {}
        self._progress: Progress | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Runs in the fork server, so that slow lookups happen once for all hosts."""
        self.__dict__.update(state)
        self._recorders = EngineMetrics()
        self._recorders.load_imported()

    def answer(self, head: Any, rows: list[Any], progress: Progress) -> Response | Later:
        """Does what ``head`` asks for with the rows, marking each step in ``progress``."""
        events = _Events()
        self._progress = progress
        with self._recorders.recording() as records:
            answer = self._answer(head, rows, progress, events)
        events.extend(records)
        return answer

    def _answer(self, head: Work, rows: list[Any], progress: Progress, events: _Events) -> Response:
        try:
            progress.mark(Activity.LOADING)
            worker = self._opened(progress)
            steps = _HostSteps(worker.access, events, OperationMarks(progress, head.injected_failures))
            try:
                outcomes = _run(worker, steps, head, rows)
            finally:
                worker.session.report_events(events)
        except DeviceLostError as error:
            return _device_lost(error, progress)
        except Exception as error:
            return raised(Caught.of(error), events)
        return _done(head, outcomes, events, steps.observations)

    def unreadable(self, error: Exception) -> Response:
        """The response to a request that cannot be unpickled."""
        if self._progress is not None and device_loss(error):  # an array may be read onto it
            return _device_lost(error, self._progress)
        caught = Caught.of(error)
        return Response(Unreadable(caught), reducers=exception_reducers([caught.error]))

    def unsendable(self, answer: Response, error: Exception) -> Response:
        """The same response with failures in place of rows, and texts in place of elements, that cannot be pickled."""
        if not isinstance(answer.head, Done) or device_loss(error):
            return self.unreadable(error)
        events = answer.head.events
        failures = [replace(failure, element=_as_sent(failure.element)) for failure in answer.head.failures]
        rows: list[Any] = []
        tags: list[int] = []
        for tag, row in zip(answer.head.tags, answer.rows, strict=True):
            problem = why_unsendable(row)
            if problem is None:
                rows.append(row)
                tags.append(tag)
            elif not isinstance(problem.error, self._spec.caught):
                return raised(problem, events)
            else:
                events.append(ElementFailed(Stage.INFERENCE, problem.error))
                failures.append(self._spec.plan.failure(tag, Stage.INFERENCE, 0, _as_sent(self._input(row)), problem))
        skipped = [replace(one, elements=list(map(_as_sent, one.elements))) for one in answer.head.skipped]
        head = answer.head._replace(tags=tags, failures=failures, skipped=skipped)
        reducers = exception_reducers([failure.error for failure in failures], events)
        return Response(head, rows, tags, reducers, answer.echoes)

    def _input(self, row: Any) -> Any:
        """What a prediction is about: the owner knows the element that it sent, but not which of its rows."""
        return getattr(row, "example", row) if self._spec.plan.batching.columnar else row

    def exports(self, work: Work) -> Loaded | None:
        """The model that this work loaded, for ``attach`` in other hosts; None if loading failed."""
        return None if self._worker is None else self._worker.session.loaded_model(work.model)

    def attach(self, work: Work, value: Loaded) -> None:
        """Takes a model that another process exported, in place of loading it."""
        self._inherited[work.model] = value

    def close(self) -> None:
        """Releases the models so that their finalizers run."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
            self._inherited.clear()
            gc.collect()

    def _opened(self, progress: Progress) -> Worker:
        if self._worker is None:
            session = open_session(self._spec)
            try:
                source, session.thread_budget = self._source, ThreadBudget.inherited
                if source is not None:
                    session.shared(lambda: source(self._spec, session, progress.elsewhere))
                for name, loaded in self._inherited.items():
                    session.adopt(name, loaded)
                self._worker = Worker(self._spec)
            finally:
                close_session(session)
        return self._worker


class _Events(list[Event]):
    """An observer that keeps the events."""

    def on_event(self, event: Event) -> None:
        self.append(event)


class _HostSteps(Steps):
    """Steps whose measurements are for the owner's size controllers."""

    def __init__(self, access: ModelAccess, events: _Events, marks: OperationMarks) -> None:
        super().__init__(access, events, marks)
        self.observations: list[tuple[float, BatchTime]] = []

    def learn(self, model: SessionModel, batch: AnyBatch, time: BatchTime) -> None:
        self.observations.append((model.size_of(batch), time))


def _run(worker: Worker, steps: Steps, work: Work, rows: list[Any]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    good = Batch(rows, [*range(len(rows))], work.weight, work.useful)
    if work.preprocess or work.injected_failures:
        good = Batch([], [], work.weight, work.useful)
        outcomes += _preprocess(steps, work, rows, good)
    if not work.infer:
        if not work.preprocess:
            worker.load(work.model)
        outcomes.append(Predictions(good.tags, good.elements))
    elif good.elements:
        outcomes += steps.run(work.model, as_columns(good) if worker.plan.batching.columnar else good)
    return outcomes


def _preprocess(steps: Steps, work: Work, rows: list[Any], good: Batch) -> Iterator[Outcome]:
    """Preprocesses rows if so wanted; adds those that inference may run on to ``good``, and yields what else comes."""
    for position, row in enumerate(rows):
        element, outcome = steps.preprocess(row, position) if work.preprocess else (row, None)
        injected_failure = work.injected_failures.get(position)
        if outcome is None and injected_failure is not None and injected_failure.stage is Stage.INFERENCE:
            outcome = steps.fail(position, Stage.INFERENCE, 0, element, Caught.of(injected_failure.error))
        if outcome is not None:
            yield outcome
        else:
            good.elements.append(element)
            good.tags.append(position)


def _done(
    work: Work, outcomes: Iterable[Outcome], events: list[Event], observations: list[tuple[float, BatchTime]]
) -> Response:
    skipped: list[Skipped] = []
    failures: list[Failure] = []
    tags: list[int] = []
    rows: list[Any] = []
    injected = {id(one.error) for one in work.injected_failures.values()}
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            failure = replace(outcome, source=None)  # the client has the source
            if id(failure.error) in injected:  # a traceback would only show our code, and the client counts attempts
                failure = replace(failure, caught=Caught.of(failure.error), attempts=0)
            failures.append(failure)
        elif isinstance(outcome, Skipped):
            is_known = outcome.stage is not Stage.POSTPROCESSING
            skipped.append(replace(outcome, elements=[]) if is_known else outcome)
        else:
            tags.extend(outcome.tags)
            rows.extend(outcome.values)
    done = Done(tags, failures, events, observations, skipped)
    reducers = exception_reducers([failure.error for failure in failures], events)
    return Response(done, rows, tags, reducers, echoes=not work.preprocess)  # which may modify elements in place


def raised(caught: Caught, events: list[Event]) -> Response:
    """The response that an exception is."""
    return Response(Raised(caught, events), reducers=exception_reducers([caught.error], events))


def _device_lost(error: Exception, progress: Progress) -> Response:
    error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    _LOGGER.error("The device is lost, and this host ends.", exc_info=error)
    return Response(device_failure(device_loss(error) or error, progress), is_last=True)


def device_failure(culprit: BaseException, progress: Progress) -> HostFailure:
    """What a host says of itself that has lost its device."""
    return HostFailure(progress.read(), False, f"lost its device ({one_line(culprit)})", device_lost=True)


def _as_sent(value: Any) -> Any:
    return transferable(value, lambda part: why_unsendable(part) is None)


def why_unsendable(value: Any) -> Caught | None:
    """Why a prediction or preprocessed element cannot be sent to the client; None if it can."""
    try:
        encode(None, [value])
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return Caught.of(TypeError(f"a {type(value).__qualname__} cannot leave the model's process: {reason}"))
    return None
