"""What answers requests in a model host: the same steps as in an unhosted run, on one batch at a time."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from headrace.batching.batcher import Batch
from headrace.batching.columnar import as_columns
from headrace.core.errors import DeviceLostError
from headrace.core.events import ElementFailed, Event
from headrace.core.result import Caught, Failure, Outcome, Predictions, Skipped, Stage
from headrace.core.transferable import transferable
from headrace.failures.device import device_loss, in_a_line
from headrace.failures.isolate_fatal import InjectedFailure
from headrace.hosts.host import Response
from headrace.hosts.thread_budget import inherited_budget
from headrace.ipc.codec import encode
from headrace.ipc.exceptions import stand_ins
from headrace.ipc.progress import Activity, ActivitySnapshot, Progress
from headrace.runtime.engine_metrics import EngineMetrics
from headrace.runtime.session import Loaded, ModelSource, close_session, open_session
from headrace.runtime.spec import SessionSpec
from headrace.runtime.steps import Steps
from headrace.runtime.worker import Worker

_LOGGER = logging.getLogger(__name__)

_DOING = {
    Stage.PREPROCESSING: Activity.PREPROCESSING,
    Stage.INFERENCE: Activity.INFERENCE,
    Stage.POSTPROCESSING: Activity.POSTPROCESSING,
}


Elsewhere: TypeAlias = Callable[[], AbstractContextManager[None]]
"""A context for what another process does meanwhile, which has a time limit of its own."""
Source: TypeAlias = Callable[[SessionSpec, Callable[[Iterable[Event]], None], Elsewhere], ModelSource]


class Work(NamedTuple):
    """What is to be done with a request's rows: elements, in the order of their positions."""

    model: Any
    preprocess: bool = False
    infer: bool = False
    """And postprocess. Without either, the model is loaded."""
    weight: float = 0
    useful: float = 0
    """See ``Batch``, as for the weight."""
    injected_failures: Mapping[int, InjectedFailure] = {}
    """Which elements, by position, are fatal to what."""


class Done(NamedTuple):
    """What has become of the elements. The answer's rows are predictions, or preprocessed elements."""

    tags: list[int]
    """The position of each row's element."""
    failures: list[Failure]
    """Their tags are positions, as are those of what was skipped."""
    events: list[Event]
    observations: list[tuple[float, float | None]]
    """Batch sizes, and the seconds that the choice of the next size should reckon with; see ``SizeController``."""
    skipped: Sequence[Skipped] = ()
    """With elements only where the owner does not have them: of postprocessing."""


class Raised(NamedTuple):
    """An exception that is not caught, or one in the model's loading before any element was looked at."""

    caught: Caught
    events: list[Event]
    loading: bool = False


class DeviceLost(NamedTuple):
    """No call on the host's device can succeed any more, so that it ends with this answer."""

    ending: str
    """In words that follow "the host"."""
    snapshot: ActivitySnapshot
    """What it was doing."""


class Unreadable(NamedTuple):
    """The request, or the answer to it, could not be pickled or unpickled."""

    caught: Caught


class HostExecutor:
    """Has the models, and runs batches through them; pickled to the host.

    Args:
        spec: of the session.
        source: where models come from that are not to be loaded there, given what they are, who is told of them, and
            what to wait in.
    """

    def __init__(self, spec: SessionSpec, source: Source | None = None) -> None:
        self._spec = replace(spec.within(), shared=spec.shared if source else frozenset())
        self._source = source
        self._worker: Worker | None = None
        self._inherited: dict[Any, Loaded] = {}
        self._progress: Progress | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In the fork server: what takes time is done once for all hosts."""
        self.__dict__.update(state)
        self._recorders = EngineMetrics()
        self._recorders.look()

    def answer(self, head: Work, rows: list[Any], progress: Progress) -> Response:
        """See ``headrace.hosts.host.RequestHandler``."""
        events = _Events()
        self._progress = progress
        with self._recorders.recording() as records:
            answer = self._answer(head, rows, progress, events)
        events.extend(records)
        return answer

    def _answer(self, head: Work, rows: list[Any], progress: Progress, events: _Events) -> Response:
        try:
            progress.mark(Activity.LOADING)
            worker = self._opened()
        except DeviceLostError as error:
            return _device_lost(error, progress)
        except Exception as error:
            return _raised(Caught.of(error), events, loading=True)
        observations: list[tuple[float, float | None]] = []
        worker.session.sizes = dict.fromkeys(worker.plan.models, _Observations(observations))
        steps = Steps(worker, events, _Watch(progress, head.injected_failures))
        try:
            outcomes = _run(steps, head, rows)
        except DeviceLostError as error:
            return _device_lost(error, progress)
        except Exception as error:
            return _raised(Caught.of(error), events)
        finally:
            steps.tell_news()
        answer = _done(_without_traceback(outcomes, head.injected_failures), events, observations)
        return answer._replace(echoes=not head.preprocess)  # which may have changed the elements themselves

    def unreadable(self, error: Exception) -> Response:
        """See ``headrace.hosts.host.RequestHandler``."""
        caught = Caught.of(error)
        return Response(Unreadable(caught), reducers=stand_ins([caught.error]))

    def unsendable(self, answer: Response, error: Exception) -> Response:
        """The same with a failure in place of each row that cannot be pickled, and a text in place of an element."""
        if self._progress is not None and device_loss(error):
            return _device_lost(error, self._progress)
        if not isinstance(answer.head, Done):
            return self.unreadable(error)
        failures, events = [_sendable(failure) for failure in answer.head.failures], answer.head.events
        rows: list[Any] = []
        tags: list[int] = []
        for tag, row in zip(answer.head.tags, answer.rows, strict=True):
            problem = _problem(row)
            if problem is None:
                rows.append(row)
                tags.append(tag)
            elif not isinstance(problem.error, self._spec.caught):
                return _raised(problem, events)
            else:
                events.append(ElementFailed(Stage.INFERENCE, problem.error))
                failures.append(self._spec.plan.failure(tag, Stage.INFERENCE, 0, _as_sent(row), problem))
        skipped = [replace(one, elements=list(map(_as_sent, one.elements))) for one in answer.head.skipped]
        head = answer.head._replace(tags=tags, failures=failures, skipped=skipped)
        reducers = _stand_ins(events, [failure.error for failure in failures])
        return Response(head, rows, tags, reducers, answer.echoes)

    def exports(self, work: Work) -> Loaded | None:
        """See ``headrace.hosts.host.RequestHandler``."""
        return None if self._worker is None else self._worker.session.held(work.model)

    def attach(self, work: Work, value: Loaded) -> None:
        """See ``headrace.hosts.host.RequestHandler``."""
        self._inherited[work.model] = value

    def close(self) -> None:
        """Lets go of the models, so that their finalizers run."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
            gc.collect()

    def _elsewhere(self) -> AbstractContextManager[None]:
        return nullcontext() if self._progress is None else self._progress.elsewhere()

    def _opened(self) -> Worker:
        if self._worker is None:
            session = open_session(self._spec)
            try:
                source = self._source
                if source is not None:
                    session.shared(lambda: source(self._spec, session.tell, self._elsewhere))
                elif self._inherited:
                    session.shared(lambda: _Preloaded(self._inherited))
                self._worker = Worker(self._spec)
            finally:
                close_session(session)
        return self._worker


class _Preloaded(ModelSource):
    """Models that this process has had from birth."""

    def __init__(self, models: dict[Any, Loaded]) -> None:
        self._models = models
        self.thread_budget = inherited_budget()

    def load(self, name: Any, fresh_secs: float = 0.0) -> Loaded | None:
        return self._models.get(name)

    def close(self) -> None:
        self._models.clear()


class _Events(list[Event]):
    """An observer that remembers."""

    def on_event(self, event: Event) -> None:
        self.append(event)


class _Observations:
    """In place of a size controller: remembers what it should learn."""

    def __init__(self, observations: list[tuple[float, float | None]]) -> None:
        self._observations = observations

    def target(self) -> int:
        raise NotImplementedError("batches are formed by the owner")

    def most(self) -> float:
        raise NotImplementedError("batches are formed by the owner")

    def overhead(self) -> float:
        raise NotImplementedError("batches are formed by the owner")

    def observe(self, size: float, seconds: float | None) -> None:
        self._observations.append((size, seconds))


class _Watch:
    """Shows the owner what happens, and carries out sentences."""

    def __init__(self, progress: Progress, injected_failures: Mapping[int, InjectedFailure]) -> None:
        self._progress = progress
        self._injected_failures = injected_failures

    def loading(self, name: Any) -> None:
        self._progress.mark(Activity.LOADING)

    def operation(self, stage: Stage, tag: Any, index: int) -> None:
        injected_failure = self._injected_failures.get(tag)
        if injected_failure is not None and (injected_failure.stage, injected_failure.index) == (stage, index):
            raise injected_failure.error
        self._progress.mark(_DOING[stage], -1 if tag is None else tag, index)

    def waiting(self) -> None:
        self._progress.mark(Activity.WAITING)


def _run(steps: Steps, work: Work, rows: list[Any]) -> list[Outcome]:
    good = Batch([], [], work.weight, work.useful)
    outcomes: list[Outcome] = []
    for position, row in enumerate(rows):
        element, outcome = steps.preprocess(row, position) if work.preprocess else (row, None)
        injected_failure = work.injected_failures.get(position)
        if outcome is None and injected_failure is not None and injected_failure.stage is Stage.INFERENCE:
            outcome = steps.fail(position, Stage.INFERENCE, 0, element, Caught.of(injected_failure.error))
        if outcome is not None:
            outcomes.append(outcome)
        else:
            good.elements.append(element)
            good.tags.append(position)
    if not work.infer:
        if not work.preprocess:
            steps.load(work.model)
        outcomes.append(Predictions(good.tags, good.elements))
    elif good.elements:
        outcomes += steps.run(work.model, as_columns(good) if steps.is_columnar else good)
    return outcomes


def _without_traceback(
    outcomes: Iterable[Outcome], injected_failures: Mapping[int, InjectedFailure]
) -> Iterator[Outcome]:
    """Where a sentence was carried out is our code: it explains nothing."""
    errors = {id(injected_failure.error) for injected_failure in injected_failures.values()}
    for outcome in outcomes:
        if isinstance(outcome, Failure) and id(outcome.error) in errors:
            yield replace(outcome, caught=Caught.of(outcome.error), attempts=0)  # the owner knows those before
        else:
            yield outcome


def _done(outcomes: Iterable[Outcome], events: list[Event], observations: list[tuple[float, float | None]]) -> Response:
    skipped: list[Skipped] = []
    done = Done([], [], events, observations, skipped)
    rows: list[Any] = []
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            done.failures.append(replace(outcome, source=None))  # which the owner has
        elif isinstance(outcome, Skipped):
            is_known = outcome.stage is not Stage.POSTPROCESSING
            skipped.append(replace(outcome, elements=[]) if is_known else outcome)
        else:
            done.tags.extend(outcome.tags)
            rows.extend(outcome.values)
    return Response(done, rows, done.tags, _stand_ins(events, [failure.error for failure in done.failures]))


def _raised(caught: Caught, events: list[Event], *, loading: bool = False) -> Response:
    return Response(Raised(caught, events, loading), reducers=_stand_ins(events, [caught.error]))


def _device_lost(error: Exception, progress: Progress) -> Response:
    error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    _LOGGER.error("The device is lost, and this host ends.", exc_info=error)
    culprit = device_loss(error) or error
    return Response(DeviceLost(f"lost its device ({in_a_line(culprit)})", progress.read()), is_last=True)


def _stand_ins(events: list[Event], errors: list[BaseException]) -> dict[type, Any]:
    return stand_ins([*errors, *(event.error for event in events if hasattr(event, "error"))])


def _sendable(failure: Failure) -> Failure:
    return replace(failure, element=_as_sent(failure.element))


def _as_sent(value: Any) -> Any:
    return transferable(value, lambda part: _problem(part) is None)


def _problem(value: Any) -> Caught | None:
    """Why a prediction, or a preprocessed element, cannot be sent to the owner, if it cannot."""
    try:
        encode(None, [value])
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return Caught.of(TypeError(f"a {type(value).__qualname__} cannot leave the model's process: {reason}"))
    return None
