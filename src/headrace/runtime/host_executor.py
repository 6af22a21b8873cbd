"""Runs batches in hosts, and recovers those whose host dies or hangs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headrace.batching.size import BatchTime, Untimed
from headrace.core.events import BatchCompleted, BatchFailed, Event, Observer, UsageReported
from headrace.core.result import Caught, Failure, Outcome, Predictions, Skipped, Stage
from headrace.failures.breaker import CircuitBreaker
from headrace.failures.search import FailureSearch, InjectedFailure, LostBatch
from headrace.hosts.connection import Call
from headrace.hosts.provider import HostFailure
from headrace.ipc.progress import Activity
from headrace.ipc.serialization import with_traceback_of
from headrace.runtime.hosted_models import Answer, HostedModels
from headrace.runtime.operations import Operations, catches
from headrace.runtime.plan import ONLY
from headrace.runtime.queues import AnyBatch
from headrace.runtime.request_handler import Done, Raised, Unreadable, Work
from headrace.runtime.session import InferenceSession
from headrace.runtime.spec import SessionSpec

_STAGES = {Activity.PREPROCESSING: Stage.PREPROCESSING, Activity.POSTPROCESSING: Stage.POSTPROCESSING}
_WORDS = {
    Activity.DECODING: "reading",
    Activity.PREPROCESSING: "preprocessing",
    Activity.INFERENCE: "running inference on",
    Activity.POSTPROCESSING: "postprocessing",
    Activity.ANSWERING: "sending back the predictions for",
}


class _Task(NamedTuple):
    """A batch to be run in a host."""

    work: Work
    batch: AnyBatch
    losses: Mapping[int, int] = {}
    """How many hosts have been lost over each of its elements."""

    def pick(self, positions: Sequence[int]) -> tuple[_Task, Sequence[int]]:
        """A task with some of the elements (or rows); also the position within it of each given position's element."""
        batch, firsts = self.batch.pick(positions)
        return _Task(self.work._replace(weight=batch.weight, useful=batch.useful), batch), firsts


class HostExecutor:
    """An executor whose batches run in hosts; recovers those whose host dies or hangs. Used by one thread.

    An isolated model's preprocessing runs in the host, in the same request as inference, unless elements must be
    preprocessed before it is known which batch they belong to. With shared hosts, preprocessing and postprocessing run
    in this process: those hosts should spend their time on inference only.

    Args:
        infers: False: batches are only preprocessed; their predictions are the preprocessed elements.
        ready: waits for the model, or raises, before the first batch; without batches, at the end. So a load that fails
            is raised before any outcome of a batch, as if it had failed when the worker was opened.
    """

    def __init__(
        self,
        spec: SessionSpec,
        session: InferenceSession,
        models: HostedModels,
        observer: Observer,
        *,
        infers: bool = True,
        ready: Callable[[], None] | None = None,
    ) -> None:
        self._spec = spec
        self._plan = spec.plan
        self._session = session
        self._models = models
        self._observer = observer
        self._infers = infers
        self._ready = ready
        self._in_one_request = bool(self._plan.preprocess) and spec.isolated and not preprocesses_first(spec)
        self._operations = Operations(spec, observer)
        self._tasks: deque[tuple[_Task, Call | Raised | Unreadable]] = deque()

    def submit(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        """Sends a batch; returns the outcomes that are ready."""
        if self._ready is not None:
            self._await_model(self._ready)
        outcomes: list[Outcome] = []
        while len(self._tasks) >= self._models.in_flight:
            outcomes += self._collect()
        if self._infers:
            work = Work(name, preprocess=self._in_one_request, infer=True, weight=batch.weight, useful=batch.useful)
        else:
            work = Work(next(iter(self._plan.models)), preprocess=True)  # the request names a model and needs none
        self._tasks.append((_Task(work, batch), self._models.submit(work, batch.elements)))
        while len(self._tasks) > 1 and self._models.is_ready(self._tasks[0][1]):
            outcomes += self._collect()
        return outcomes

    def collect(self) -> Iterator[Outcome]:
        """Waits for the batches in flight; returns their outcomes."""
        if self._ready is not None:
            self._await_model(self._ready)
        while self._tasks:
            yield from self._collect()

    def _await_model(self, ready: Callable[[], None]) -> None:
        ready()
        self._ready = None

    def _collect(self) -> Iterable[Outcome]:
        task, call = self._tasks.popleft()
        head, rows = self._models.answer(task.work, task.batch.elements, call)
        return self._done(task, head, rows) if isinstance(head, Done) else list(self._recovered(task, (head, rows)))

    def _done(self, task: _Task, done: Done, rows: list[Any]) -> list[Outcome]:
        """The outcomes of a batch that was answered."""
        self._report(done.events, getattr(task.batch.tags[0], "where", None))
        for size, time in done.observations:
            self._session.models[task.work.model].sizes.observe(size, time)
        breaker = self._breaker(task.work)
        if breaker.failed_in_a_row and (rows or done.skipped):
            breaker.record(succeeded=True)
        outcomes: list[Outcome] = []
        if done.failures:
            outcomes += [self._as_own_failure(task, failure.tag, failure) for failure in done.failures]
        given = task.batch.tags
        tags = given[: len(rows)] if isinstance(done.tags, range) else [given[place] for place in done.tags]
        if self._spec.isolated:
            outcomes.append(Predictions(tags, rows))
        else:
            outcomes += self._operations.postprocess(tags, rows, task.work.model)
        return outcomes + [_as_own_skips(task, skipped) for skipped in done.skipped] if done.skipped else outcomes

    def _recovered(self, task: _Task, answer: Answer) -> Iterator[Outcome]:
        """The outcomes of a batch that failed as a whole: good elements get predictions, bad ones fail.

        Positions are those of elements, or of rows if elements are columnar.
        """
        everything = range(task.batch.total)
        first = self._judged(task, everything, task.pick(everything)[1], answer)
        losses: Counter[int] = Counter()
        """How many lost hosts each position was in."""
        is_over = not isinstance(first, Caught | LostBatch)
        if isinstance(first, LostBatch):
            losses.update(everything)
            self._observer.on_event(BatchFailed(self._label(task.work), task.batch.total, first.error))
            if first.too_large:
                self._observe(task, everything, Untimed.OUT_OF_MEMORY)
            # A remote request may be billed again, and an uncaught timeout ends the bundle anyway: no second attempt.
            is_raised = first.timed_out and not isinstance(first.error, self._spec.caught)
            is_over = is_raised or task.work.model in self._plan.remote
        succeeded = False
        for positions, one in [(everything, first)] if is_over else self._searched(task, first, losses):
            part, firsts = task.pick(positions)
            part = part._replace(losses={place: losses[one] for place, one in enumerate(firsts)})
            if isinstance(one, Caught | LostBatch):
                yield from self._give_up(part, one)
            elif isinstance(one[0], Done):
                succeeded = succeeded or bool(one[1]) or bool(one[0].skipped)
                yield from self._done(part, one[0], one[1])
            elif isinstance(one[0], Raised):
                self._report(one[0].events)
                yield from self._give_up(part, one[0].caught)
                # Not raised, so the model could not be loaded.
                self._observer.on_event(BatchFailed(self._label(part.work), part.batch.total, one[0].caught.error))
        if not succeeded:
            self._breaker(task.work).record(succeeded=False)

    def _searched(
        self, task: _Task, first: Any, losses: Counter[int]
    ) -> Iterable[tuple[Sequence[int], Answer | Caught | LostBatch]]:
        """The parts of a batch that failed, with their answers, or how they failed again."""

        def attempt(positions: Sequence[int], injected: Mapping[int, InjectedFailure]) -> Answer | Caught | LostBatch:
            part, firsts = task.pick(positions)
            injected = {place: injected[one] for place, one in enumerate(firsts) if one in injected}
            answer = self._models.ask(part.work._replace(injected_failures=injected), part.batch.elements)
            if isinstance(answer[0], HostFailure):
                losses.update(positions)
            return self._judged(task, positions, firsts, answer)

        search = FailureSearch(
            attempt,
            breaker=self._breaker(task.work),
            gives_up_single=not task.work.preprocess,
            too_large=lambda positions: self._observe(task, positions, Untimed.OVERRAN),
        )
        return search.among(range(task.batch.total), first)

    def _judged(
        self, task: _Task, positions: Sequence[int], firsts: Sequence[int], answer: Answer
    ) -> Answer | Caught | LostBatch:
        """An answer in the terms of ``FailureSearch``; reports a lost host."""
        head, _ = answer
        if isinstance(head, Unreadable):  # it is to be found what cannot be pickled
            return head.caught
        if not isinstance(head, HostFailure):
            return answer
        snapshot = head.snapshot
        position = firsts[snapshot.position] if snapshot.position >= 0 else None
        culprit = positions[0] if position is None and len(positions) == 1 else position
        noun = "row" if self._plan.batching.columnar else "element"
        whom = f"{len(positions)} {noun}s" if culprit is None else f"{noun} {culprit} (counted from 0)"
        what = f"{_WORDS[snapshot.activity]} {whom} of a batch of {task.batch.total}"
        error = self._models.lost(head, what, self._label(task.work))
        self._report([])
        stage = _STAGES.get(snapshot.activity, Stage.INFERENCE)
        too_large = head.out_of_memory and snapshot.activity is Activity.INFERENCE
        return LostBatch(error, head.timed_out, stage, position, snapshot.index, too_large)

    def _give_up(self, task: _Task, reason: Caught | LostBatch) -> Iterator[Outcome]:
        """Fails elements about which nothing is known beyond what was sent; raises an exception that is not caught."""
        caught, stage, index = Caught.of(reason.error), Stage.INFERENCE, 0
        if isinstance(reason, Caught):
            caught = reason
        elif reason.stage is Stage.PREPROCESSING:
            stage, index = reason.stage, reason.index
        if not catches(self._spec, caught.error, task.work.model):
            raise with_traceback_of(*caught)
        for position, element in enumerate(task.batch.elements):
            failure = self._operations.fail(None, stage, index, element, caught)
            yield self._failure(task, position, replace(failure, attempts=0 if task.losses.get(position) else 1))

    def _as_own_failure(self, task: _Task, position: int, failure: Failure) -> Failure:
        """The host's failure with the element's own tag and attempt count, and the element as sent if that failed."""
        first_stage = Stage.PREPROCESSING if task.work.preprocess else Stage.INFERENCE
        is_row = self._plan.batching.columnar and failure.stage is Stage.INFERENCE
        is_first = failure.index == 0 and failure.stage is first_stage and not is_row
        sent = task.batch.elements[position]
        return self._failure(task, position, replace(failure, element=sent if is_first else failure.element))

    def _failure(self, task: _Task, position: int, failure: Failure) -> Failure:
        is_own = failure.stage is not Stage.PREPROCESSING  # a preprocessing request names a model only because it must
        return self._plan.failure(
            task.batch.tags[position],
            failure.stage,
            failure.index,
            failure.element,
            failure.caught,
            model=task.work.model if is_own else ONLY,
            attempts=failure.attempts + task.losses.get(position, 0),
            source=task.batch.elements[position] if task.work.preprocess else None,
        )

    def _observe(self, task: _Task, positions: Sequence[int], time: BatchTime) -> None:
        """Reports a failed batch size to the size controller."""
        if task.work.infer:
            model, (batch, _) = self._session.models[task.work.model], task.batch.pick(positions)
            model.sizes.observe(model.size_of(batch), time)

    def _label(self, work: Work) -> str:
        return self._session.models[work.model].label if work.infer else ""

    def _breaker(self, work: Work) -> CircuitBreaker:
        return self._session.models[work.model].breaker if work.infer else self._models.breaker

    def _report(self, events: Iterable[Event], where: tuple[str, int] | None = None) -> None:
        """Reports what a host has, after what the session has; ``where`` its batch is from, it does not know."""
        if self._session.events:
            self._session.report_events(self._observer)
        for event in events:
            if isinstance(event, UsageReported):
                self._session.record_usage(event)
            elif where is not None and isinstance(event, BatchCompleted):
                self._observer.on_event(replace(event, where=where))
            else:
                self._observer.on_event(event)
        if self._session.events:
            self._session.report_events(self._observer)


def preprocesses_first(spec: SessionSpec) -> bool:
    """Whether elements go to the host twice: preprocessed they decide their batch, or may have to go to a fallback."""
    plan = spec.plan
    decide = plan.looks_at_elements and not plan.prebatched
    return bool(plan.preprocess) and spec.isolated and (decide or plan.has_fallback)


def _as_own_skips(task: _Task, skipped: Skipped) -> Skipped:
    """The same skips with the elements' own tags, and with the elements themselves unless the host sent others."""
    tags, elements = ([given[place] for place in skipped.tags] for given in (task.batch.tags, task.batch.elements))
    return replace(skipped, tags=tags, elements=skipped.elements or elements)
