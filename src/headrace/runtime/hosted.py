"""Models in a host: batches go there and their outcomes come back, whatever becomes of the host."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from headrace.batching.batcher import Batch, Batcher
from headrace.core.errors import HostDiedError, HostError
from headrace.core.events import BatchFailed, ElementFailed, Event, HostLost, Observer
from headrace.core.result import Caught, Failure, Outcome, Predictions, Stage
from headrace.failures.breaker import CircuitBreaker
from headrace.failures.loads import LoadRecord
from headrace.failures.outlast import Lost, Sentence, outlast
from headrace.hosting.client import ModelHost
from headrace.hosting.exceptions import with_traceback_of
from headrace.hosting.life import Call, Loss
from headrace.hosting.portable import pickled
from headrace.hosting.progress import Doing
from headrace.runtime.plan import ONLY
from headrace.runtime.queues import Queues
from headrace.runtime.servant import Done, InferenceServant, Raised, Unreadable, Work
from headrace.runtime.session import InferenceSession, SessionSpec
from headrace.runtime.worker import AnyWorker

_LOGGER = logging.getLogger(__name__)
_IN_FLIGHT = 2
"""How many batches of a bundle may be on their way: one that the host computes, one that waits for it."""
_PREPROCESSED_TOGETHER = 256
"""How many elements are preprocessed by one request, at most, where that comes before batching."""

_STAGES = {Doing.PREPROCESSING: Stage.PREPROCESSING, Doing.POSTPROCESSING: Stage.POSTPROCESSING}
_WORDS = {
    Doing.DECODING: "reading",
    Doing.PREPROCESSING: "preprocessing",
    Doing.INFERENCE: "running inference on",
    Doing.POSTPROCESSING: "postprocessing",
    Doing.ANSWERING: "sending back the predictions for",
}


Answer: TypeAlias = tuple[Done | Raised | Unreadable | Loss, list[Any]]
"""What has become of some work, and the predictions or preprocessed elements."""


class HostedWorker(AnyWorker):
    """One thread's way to the models in its process's host; opening it loads the model where there is only one."""

    def bundle(self, observer: Observer) -> HostedBundle:
        """A new bundle, whose batches run in the host; it tells ``observer`` what happens there."""
        return HostedBundle(self.spec, self.session, self._models, observer)

    def _begin(self) -> None:
        """Loads the model.

        Raises:
            HostStartError: no host can be had.
            Exception: the model cannot be loaded; where loading hangs or kills its host and such errors are caught,
                the batches will get them.
        """
        self._models = self.session.shared(lambda: HostedModels(self.spec, self.session.tell))
        if not self.plan.routed:
            answer, _ = self._models.ask(Work(ONLY), [])
            if isinstance(answer, Done):
                self.session.tell(answer.events)
            elif not isinstance(answer, Loss):  # a host that was lost before or after it loaded tells nothing
                error, lines = answer.caught
                if not (isinstance(error, HostDiedError | TimeoutError) and isinstance(error, self.spec.caught)):
                    raise with_traceback_of(error, lines)


class HostedModels:
    """The models of a session, in a host; thread-safe.

    Args:
        spec: of the session.
        tell: is told of hosts that were lost while they loaded a model.
    """

    def __init__(self, spec: SessionSpec, tell: Callable[[Iterable[Event]], None]) -> None:
        self._plan = spec.plan
        self._tell = tell
        self._name = spec.plan.name
        self._timeout_secs = spec.timeout_secs
        self._host = ModelHost(pickled(InferenceServant(spec), self._name), self._name, spec.timeout_secs)
        self._loads = {name: LoadRecord(spec.clock.time_ns) for name in spec.plan.models}
        self._opening = LoadRecord(spec.clock.time_ns)
        self.breaker = CircuitBreaker()
        """Of preprocessing that comes before batching."""

    def submit(self, work: Work, rows: list[Any]) -> Call | Raised | Unreadable:
        """Sends work to the host; what cannot be sent, or need not, has its answer at once."""
        standing = self._record(work).standing_error()
        if standing is not None:
            return Raised(Caught(standing, []), [], loading=True)
        try:
            return self._host.submit(work, rows)
        except (HostError, OSError, MemoryError):  # the machine's fault, not the rows'
            raise
        except Exception as error:
            return Unreadable(Caught.of(error))

    def is_ready(self, call: Call | Raised | Unreadable) -> bool:
        """Whether ``answer`` would not wait."""
        return not isinstance(call, Call) or self._host.is_ready(call)

    def answer(self, work: Work, rows: list[Any], call: Call | Raised | Unreadable) -> Answer:
        """What has become of the work."""
        record = self._record(work)
        while isinstance(call, Call):
            try:
                result = self._host.result(call)
            except HostError:
                raise
            except Exception as problem:  # the answer cannot be unpickled
                return Unreadable(Caught.of(problem)), []
            if isinstance(result, Loss) and result.moment.doing is Doing.LOADING:
                error = self._load_error(work, result)
                again = record.failed(error, result.moment.seconds, timed_out=result.timed_out)
                call = self._host.submit(work, rows) if again else Raised(Caught(error, []), [], loading=True)
                continue
            if isinstance(result, Loss):
                return result, []
            record.loaded()
            return result.head, result.rows
        return call, []

    def ask(self, work: Work, rows: list[Any]) -> Answer:
        """Sends work and waits for what becomes of it."""
        return self.answer(work, rows, self.submit(work, rows))

    def close(self) -> None:
        """Ends the host."""
        self._host.close()

    def _record(self, work: Work) -> LoadRecord:
        """Of the model, if the work needs one: what is preprocessed before its key is known does not."""
        return self._loads[work.model] if work.infer or not self._plan.routed else self._opening

    def _load_error(self, work: Work, loss: Loss) -> Exception:
        self._tell([HostLost(self._plan.label(work.model), loss.timed_out, loss.ending)])
        _LOGGER.warning("%s: the host %s while it was loading the model.", self._name, loss.ending)
        if loss.timed_out:
            return TimeoutError(f"loading the model of {self._name} took longer than {self._timeout_secs:g} s.")
        return HostDiedError(f"the host {loss.ending} while it was loading the model of {self._name}.")


class _Task(NamedTuple):
    """A batch on its way."""

    work: Work
    batch: Batch
    call: Call | Raised | Unreadable


class HostedBundle:
    """Takes a bundle's elements one by one and gives outcomes as they are ready; used by one thread.

    Preprocessing runs in the host together with the rest, unless elements must be preprocessed before it is known
    which batch they go to.

    Args:
        spec: of the session.
        session: has what was learnt about the models.
        models: where batches go.
        observer: is told what happens.
    """

    def __init__(self, spec: SessionSpec, session: InferenceSession, models: HostedModels, observer: Observer) -> None:
        self._plan = spec.plan
        self._caught = spec.caught
        self._timeout_secs = spec.timeout_secs
        self._session = session
        self._models = models
        self._observer = observer
        self._queues = Queues(self._plan, session.sizes)
        in_two_steps = bool(self._plan.preprocess) and self._queues.direct is None and not self._plan.prebatched
        self._together = bool(self._plan.preprocess) and not in_two_steps
        together = min(_PREPROCESSED_TOGETHER, self._plan.batching.max_batch_size)  # no further ahead than it pays
        self._before = Batcher(lambda: together, together) if in_two_steps else None
        self._preprocessed: deque[tuple[Any, Any]] = deque()
        """Elements, with their tags, that are yet to be queued: in the order in which they came."""
        self._tasks: deque[_Task] = deque()

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """Takes an element; ``tag`` comes back with its outcome. Returns what became ready.

        Raises:
            Exception: an operation failed, and the session does not catch this exception.
        """
        if self._before is None:
            return self._queue(element, tag)
        batch = self._before.add(element, tag)
        return list(self._preprocess(batch)) if batch else ()

    def finish(self) -> Iterator[Outcome]:
        """Sends what is left and waits for everything; afterwards every element has its outcome."""
        if self._before is not None and len(self._before):
            yield from self._preprocess(self._before.flush())
        while self._tasks or self._preprocessed:
            yield from self._collect_all()
            yield from self._queue_preprocessed()
        for name, batch in self._queues.flush():
            yield from self._infer(name, batch)
        yield from self._collect_all()
        self._tell(self._session.news())

    @property
    def _first_model(self) -> Any:
        """Preprocessing needs no model, but a request names one."""
        return next(iter(self._plan.models))

    def _preprocess(self, batch: Batch) -> Iterator[Outcome]:
        yield from self._send(Work(self._first_model, preprocess=True), batch)
        yield from self._queue_preprocessed()

    def _queue_preprocessed(self) -> Iterator[Outcome]:
        """Collecting answers meanwhile may append to what is waiting."""
        while self._preprocessed:
            yield from self._queue(*self._preprocessed.popleft())

    def _queue(self, element: Any, tag: Any) -> Sequence[Outcome]:
        try:
            batches = self._queues.add(element, tag)
        except self._caught as error:
            return [self._fail(tag, Stage.INFERENCE, 0, element, Caught.of(error))]
        return list(chain.from_iterable(self._infer(name, batch) for name, batch in batches))

    def _infer(self, name: Any, batch: Batch) -> list[Outcome]:
        return self._send(Work(name, preprocess=self._together, infer=True, weight=batch.weight), batch)

    def _send(self, work: Work, batch: Batch) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while len(self._tasks) >= _IN_FLIGHT:
            outcomes += self._collect()
        self._tasks.append(_Task(work, batch, self._models.submit(work, batch.elements)))
        while self._tasks and self._models.is_ready(self._tasks[0].call):
            outcomes += self._collect()
        return outcomes

    def _collect_all(self) -> Iterator[Outcome]:
        while self._tasks:
            yield from self._collect()

    def _collect(self) -> list[Outcome]:
        task = self._tasks.popleft()
        answer = self._models.answer(task.work, task.batch.elements, task.call)
        return list(self._outcomes(task, range(len(task.batch.elements)), answer))

    def _outcomes(self, task: _Task, part: Sequence[int], answer: Answer) -> Iterator[Outcome]:
        """What an answer about part of a task's elements means; asks again where it leaves some of them open."""
        head, rows = answer
        if isinstance(head, Done):
            yield from self._done(task, part, head, rows)
        elif isinstance(head, Loss):
            yield from self._outlast(task, part, head)
        elif isinstance(head, Unreadable) and len(part) > 1:
            middle = len(part) // 2
            for half in (part[:middle], part[middle:]):
                yield from self._outcomes(task, half, self._try(task, half, {}))
        else:
            if isinstance(head, Raised):
                self._raised(task, part, head)
            yield from self._give_up(task, part, Stage.INFERENCE, head.caught)

    def _done(self, task: _Task, part: Sequence[int], done: Done, rows: list[Any]) -> Iterator[Outcome]:
        self._tell(done.events)
        for size, seconds in done.observations:
            self._session.sizes[task.work.model].observe(size, seconds)
        if rows:
            self._breaker(task.work).record(succeeded=True)
        yield from (self._at_home(task, part[failure.tag], failure) for failure in done.failures)
        tags = [task.batch.tags[part[position]] for position in done.tags]
        if task.work.infer:
            yield Predictions(tags, rows)
        else:
            self._preprocessed.extend(zip(rows, tags, strict=True))

    def _raised(self, task: _Task, part: Sequence[int], raised: Raised) -> None:
        self._tell(raised.events)
        if raised.loading:
            self._observer.on_event(BatchFailed(self._label(task.work), len(part), raised.caught.error))
            self._breaker(task.work).record(succeeded=False)

    def _at_home(self, task: _Task, position: int, failure: Failure) -> Failure:
        """A failure with its element's own tag, and the element itself where that is what failed."""
        is_first = failure.index == 0 and failure.stage is (
            Stage.PREPROCESSING if task.work.preprocess else Stage.INFERENCE
        )
        element = task.batch.elements[position] if is_first else failure.element
        return replace(failure, tag=task.batch.tags[position], element=element)

    def _outlast(self, task: _Task, part: Sequence[int], loss: Loss) -> Iterator[Outcome]:
        """Has the good elements answered, and the bad ones fail, of a batch whose host was lost."""
        breaker = self._breaker(task.work)
        lost = self._lost(task, part, loss)
        self._observer.on_event(BatchFailed(self._label(task.work), len(part), lost.error))
        if breaker.is_open or self._plan.remote or (loss.timed_out and not isinstance(lost.error, self._caught)):
            breaker.record(succeeded=False)
            yield from self._give_up(task, part, lost.stage, Caught.of(lost.error), lost.index)
            return

        def attempt(positions: Sequence[int], sentences: Mapping[int, Sentence]) -> Answer | Lost:
            answer = self._try(task, positions, sentences)
            return self._lost(task, positions, answer[0]) if isinstance(answer[0], Loss) else answer

        succeeded = False
        for positions, answer in outlast(part, lost, attempt, settles_alone=not task.work.preprocess):
            if isinstance(answer, Lost):
                yield from self._give_up(task, positions, answer.stage, Caught.of(answer.error), answer.index)
            else:
                succeeded = succeeded or bool(answer[1])
                yield from self._outcomes(task, positions, answer)
        if not succeeded:
            breaker.record(succeeded=False)

    def _label(self, work: Work) -> str:
        return self._plan.label(work.model) if work.infer else ""

    def _breaker(self, work: Work) -> CircuitBreaker:
        return self._session.breakers[work.model] if work.infer else self._models.breaker

    def _try(self, task: _Task, part: Sequence[int], sentences: Mapping[int, Sentence]) -> Answer:
        here = {place: sentences[position] for place, position in enumerate(part) if position in sentences}
        return self._models.ask(task.work._replace(sentences=here), [task.batch.elements[place] for place in part])

    def _lost(self, task: _Task, part: Sequence[int], loss: Loss) -> Lost:
        """A loss as the policy knows it."""
        moment = loss.moment
        position = part[moment.position] if moment.position >= 0 else None
        culprit = part[0] if position is None and len(part) == 1 else position
        count = len(task.batch.elements)
        whom = f"{len(part)} elements" if culprit is None else f"element {culprit} (counted from 0)"
        what = f"{_WORDS[moment.doing]} {whom} of a batch of {count}"
        _LOGGER.warning("%s: the host %s while it was %s.", self._plan.name, loss.ending, what)
        self._observer.on_event(HostLost(self._label(task.work), loss.timed_out, loss.ending))
        error = (
            TimeoutError(f"{what} took longer than {self._timeout_secs:g} s.")
            if loss.timed_out
            else HostDiedError(f"the host {loss.ending} while it was {what}.")
        )
        return Lost(error, loss.timed_out, _STAGES.get(moment.doing, Stage.INFERENCE), position, moment.index)

    def _give_up(
        self, task: _Task, part: Sequence[int], stage: Stage, caught: Caught, index: int = 0
    ) -> Iterator[Outcome]:
        """Failures for elements of which nothing more is known than what was sent; raises what is not caught."""
        if not isinstance(caught.error, self._caught):
            raise with_traceback_of(*caught)
        stage = stage if stage is Stage.PREPROCESSING else Stage.INFERENCE
        for position in part:
            yield self._fail(task.batch.tags[position], stage, index, task.batch.elements[position], caught)

    def _fail(self, tag: Any, stage: Stage, index: int, element: Any, caught: Caught) -> Failure:
        self._observer.on_event(ElementFailed(stage, caught.error))
        return Failure(tag, stage, index, element, caught, stage is Stage.INFERENCE and self._plan.prebatched)

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events:
            self._observer.on_event(event)
