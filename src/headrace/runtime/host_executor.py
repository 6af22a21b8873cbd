"""Runs batches in hosts, and recovers those whose host dies or hangs."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from headrace.batching.size import BatchTime, Untimed
from headrace.core.errors import HostDiedError
from headrace.core.events import BatchCompleted, BatchFailed, Event, HostLost, Observer, UsageReported
from headrace.core.result import Caught, Failure, Outcome, Predictions, Skipped, Stage
from headrace.failures.breaker import HOSTS, TIMEOUTS, CircuitBreaker
from headrace.failures.search import FailureSearch, InjectedFailure, LostBatch
from headrace.hosts.connection import Call
from headrace.hosts.provider import HostFailure
from headrace.ipc.progress import Activity
from headrace.ipc.serialization import with_traceback_of
from headrace.runtime.hosted_models import Answer, HostedModels
from headrace.runtime.messages import Done, Raised, Unreadable, Work
from headrace.runtime.operations import Operations, catches
from headrace.runtime.plan import ONLY
from headrace.runtime.queues import AnyBatch
from headrace.runtime.session import InferenceSession
from headrace.runtime.spec import SessionSpec

_LOGGER = logging.getLogger(__name__)
_STAGES = {Activity.PREPROCESSING: Stage.PREPROCESSING, Activity.POSTPROCESSING: Stage.POSTPROCESSING}
_WORDS = {
    Activity.DECODING: "reading",
    Activity.PREPROCESSING: "preprocessing",
    Activity.INFERENCE: "running inference on",
    Activity.POSTPROCESSING: "postprocessing",
    Activity.ANSWERING: "sending back the predictions for",
}


class _Task(NamedTuple):
    """A batch in flight."""

    work: Work
    batch: AnyBatch
    call: Call | Raised | Unreadable
    losses: int = 0
    """How many hosts were lost while they ran the whole of this batch."""

    def pick(self, positions: Sequence[int]) -> tuple[_Task, Sequence[int]]:
        """A task with some of the elements (or rows); also the position within it of each given position's element."""
        batch, firsts = self.batch.pick(positions)
        return self._replace(batch=batch), firsts


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
        self._caught = spec.caught
        self._timeout_secs = spec.timeout_secs
        self._session = session
        self._models = models
        self._observer = observer
        self._infers = infers
        self._ready = ready
        self._in_one_request = bool(self._plan.preprocess) and spec.isolated and not preprocesses_first(spec)
        self._operations = Operations(spec, observer)
        self._tasks: deque[_Task] = deque()

    def submit(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        """Sends a batch; returns the outcomes that are ready."""
        if self._ready is not None:
            self._await_model(self._ready)
        if not self._infers:
            any_model = next(iter(self._plan.models))  # the request names one and needs none
            return self._send(Work(any_model, preprocess=True), batch)
        outcomes = self._await_slot() if len(self._tasks) >= self._models.in_flight else []  # the sizes learn from them
        is_limited = self._session.models[name].sizes.max_size() < math.inf
        for part in self._split_too_large(name, batch) if is_limited else (batch,):
            work = Work(name, preprocess=self._in_one_request, infer=True, weight=part.weight, useful=part.useful)
            outcomes += self._send(work, part)
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

    def _split_too_large(self, name: Any, batch: AnyBatch) -> Iterable[AnyBatch]:
        """Cuts a batch that was formed before it was learnt that one of this size is too large."""
        model = self._session.models[name]
        size, most = model.size_of(batch), model.sizes.max_size()
        if size <= most:
            return [batch]
        count = min(batch.total, math.ceil(size / most))
        bounds = [batch.total * n // count for n in range(count + 1)]
        return (batch.part(*bound) for bound in pairwise(bounds))

    def _send(self, work: Work, batch: AnyBatch) -> list[Outcome]:
        outcomes = self._await_slot() if len(self._tasks) >= self._models.in_flight else []
        self._tasks.append(_Task(work, batch, self._models.submit(work, batch.elements)))
        # Of a single request, sent just now, the response cannot be there yet.
        while len(self._tasks) > 1 or (self._tasks and not isinstance(self._tasks[0].call, Call)):
            if not self._models.is_ready(self._tasks[0].call):
                break
            outcomes += self._collect()
        return outcomes

    def _await_slot(self) -> list[Outcome]:
        """Collects responses until one more batch may be in flight."""
        outcomes: list[Outcome] = []
        while len(self._tasks) >= self._models.in_flight:
            outcomes += self._collect()
        return outcomes

    def _collect(self) -> list[Outcome]:
        task = self._tasks.popleft()
        head, rows = self._models.answer(task.work, task.batch.elements, task.call)
        return self._done(task, head, rows) if isinstance(head, Done) else [*self._without_answer(task, head)]

    def _outcomes(self, task: _Task, answer: Answer) -> Iterable[Outcome]:
        """Turns a response into outcomes; sends elements again if it leaves them open."""
        head, rows = answer
        return self._done(task, head, rows) if isinstance(head, Done) else self._without_answer(task, head)

    def _without_answer(self, task: _Task, head: Raised | Unreadable | HostFailure) -> Iterator[Outcome]:
        if isinstance(head, HostFailure):
            yield from self._recover_lost(task, head)
        elif isinstance(head, Unreadable) and task.batch.total > 1:
            # Something in it cannot be pickled: halve it until the element that is at fault stands alone.
            middle = task.batch.total // 2
            for positions in (range(middle), range(middle, task.batch.total)):
                half, _ = task.pick(positions)
                yield from self._outcomes(half, self._ask(half))
        else:
            if isinstance(head, Raised):
                self._raised(task, head)
            yield from self._give_up(task, Stage.INFERENCE, head.caught)

    def _done(self, task: _Task, done: Done, rows: list[Any]) -> list[Outcome]:
        self._report(done.events, getattr(task.batch.tags[0], "where", None))
        for size, time in done.observations:
            self._session.models[task.work.model].sizes.observe(size, time)
            self._models.note_call(task.work.model, time)
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

    def _raised(self, task: _Task, raised: Raised) -> None:
        self._report(raised.events)
        if raised.loading:
            self._observer.on_event(BatchFailed(self._label(task.work), task.batch.total, raised.caught.error))
            self._breaker(task.work).record(succeeded=False)

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
            attempts=failure.attempts + task.losses,
            source=task.batch.elements[position] if task.work.preprocess else None,
        )

    def _recover_lost(self, task: _Task, host_failure: HostFailure) -> Iterator[Outcome]:
        """Recovers a batch whose host was lost: good elements get predictions, bad ones fail.

        Positions are those of elements, or of rows if elements are columnar.
        """
        breaker, everything = self._breaker(task.work), range(task.batch.total)
        first = self._lost(task, everything, task.pick(everything)[1], host_failure)
        if first.too_large:
            self._observe(task, everything, Untimed.OUT_OF_MEMORY)
        self._observer.on_event(BatchFailed(self._label(task.work), task.batch.total, first.error))
        # A remote request may be billed again, and an uncaught timeout ends the bundle anyway: no second attempt.
        if task.work.model in self._plan.remote or (first.timed_out and not isinstance(first.error, self._caught)):
            breaker.record(succeeded=False)
            yield from self._give_up_lost(task._replace(losses=task.losses + 1), first)
            return
        losses = Counter(everything)  # how many lost hosts each position was in
        succeeded = False
        for positions, answer in self._searched(task, first, losses):
            if isinstance(answer, LostBatch):
                for _, alike in groupby(positions, losses.__getitem__):
                    yield from self._give_up_lost(_after(task, list(alike), losses), answer)
            else:
                succeeded = succeeded or bool(answer[1]) or bool(getattr(answer[0], "skipped", ()))
                yield from self._outcomes(_after(task, positions, losses), answer)
        if not succeeded:
            breaker.record(succeeded=False)

    def _searched(self, task: _Task, first: LostBatch, losses: Counter[int]) -> Iterator[tuple[Sequence[int], Any]]:
        """The parts of a batch whose host was lost, with their answers, or how they were lost again."""

        def attempt(positions: Sequence[int], injected: Mapping[int, InjectedFailure]) -> Answer | LostBatch:
            part, firsts = task.pick(positions)
            answer = self._ask(part, {place: injected[one] for place, one in enumerate(firsts) if one in injected})
            if not isinstance(answer[0], HostFailure):
                return answer
            losses.update(positions)
            return self._lost(task, positions, firsts, answer[0])

        breaker, everything = self._breaker(task.work), range(task.batch.total)
        search = FailureSearch(
            attempt,
            gives_up_single=not task.work.preprocess,
            parts=partial(self._models.parts_after_timeout, task.work.model),
            too_large=lambda positions: self._observe(task, positions, Untimed.OVERRAN),
        )
        if not breaker.is_open:
            return search.among(everything, first)
        # All batches before this one failed: a full search would cost hosts for nothing.
        probes = breaker.probes(len(everything), TIMEOUTS if first.timed_out else HOSTS)
        return search.probing(probes, everything, first, lambda _: breaker.is_open)

    def _observe(self, task: _Task, positions: Sequence[int], time: BatchTime) -> None:
        """Reports a failed batch size to the size controller."""
        if task.work.infer:
            model, (batch, _) = self._session.models[task.work.model], task.batch.pick(positions)
            model.sizes.observe(model.size_of(batch), time)

    def _label(self, work: Work) -> str:
        return self._session.models[work.model].label if work.infer else ""

    def _breaker(self, work: Work) -> CircuitBreaker:
        return self._session.models[work.model].breaker if work.infer else self._models.breaker

    def _ask(self, task: _Task, injected_failures: Mapping[int, InjectedFailure] | None = None) -> Answer:
        work = task.work._replace(
            injected_failures=injected_failures or {}, weight=task.batch.weight, useful=task.batch.useful
        )
        return self._models.ask(work, task.batch.elements)

    def _lost(
        self, task: _Task, positions: Sequence[int], firsts: Sequence[int], host_failure: HostFailure
    ) -> LostBatch:
        """Describes a lost host in the terms of ``FailureSearch``."""
        snapshot = host_failure.snapshot
        position = firsts[snapshot.position] if snapshot.position >= 0 else None
        culprit = positions[0] if position is None and len(positions) == 1 else position
        noun = "row" if self._plan.batching.columnar else "element"
        whom = f"{len(positions)} {noun}s" if culprit is None else f"{noun} {culprit} (counted from 0)"
        what = f"{_WORDS[snapshot.activity]} {whom} of a batch of {task.batch.total}"
        _LOGGER.warning("%s: the host %s while it was %s.", self._plan.name, host_failure.exit_text, what)
        self._observer.on_event(HostLost(self._label(task.work), host_failure.timed_out, host_failure.exit_text))
        error = (
            TimeoutError(f"{what} took longer than {self._timeout_secs:g} s.")
            if host_failure.timed_out
            else HostDiedError(f"the host {host_failure.exit_text} while it was {what}.")
        )
        stage = _STAGES.get(snapshot.activity, Stage.INFERENCE)
        too_large = host_failure.out_of_memory and snapshot.activity is Activity.INFERENCE
        return LostBatch(error, host_failure.timed_out, stage, position, snapshot.index, too_large)

    def _give_up_lost(self, task: _Task, lost: LostBatch) -> Iterator[Outcome]:
        return self._give_up(task, lost.stage, Caught.of(lost.error), lost.index)

    def _give_up(self, task: _Task, stage: Stage, caught: Caught, index: int = 0) -> Iterator[Outcome]:
        """Fails elements about which nothing is known beyond what was sent; raises an exception that is not caught."""
        if not catches(self._spec, caught.error, task.work.model):
            raise with_traceback_of(*caught)
        stage = stage if stage is Stage.PREPROCESSING else Stage.INFERENCE
        for position, element in enumerate(task.batch.elements):
            failure = self._operations.fail(None, stage, index, element, caught)
            yield self._failure(task, position, replace(failure, attempts=0 if task.losses else 1))

    def _report(self, events: Iterable[Event], where: tuple[str, int] | None = None) -> None:
        """Reports what a host has, after loads before; ``where`` its batch is from, it does not know."""
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


def _after(task: _Task, positions: Sequence[int], losses: Counter[int]) -> _Task:
    """A task of elements that were lost equally often."""
    return task.pick(positions)[0]._replace(losses=task.losses + losses[positions[0]])


def preprocesses_first(spec: SessionSpec) -> bool:
    """Whether elements go to the host twice: preprocessed they decide their batch, or may have to go to a fallback."""
    plan = spec.plan
    decide = plan.looks_at_elements and not plan.prebatched
    return bool(plan.preprocess) and spec.isolated and (decide or plan.has_fallback)


def _as_own_skips(task: _Task, skipped: Skipped) -> Skipped:
    """The same skips with the elements' own tags, and with the elements themselves unless the host sent others."""
    tags, elements = ([given[place] for place in skipped.tags] for given in (task.batch.tags, task.batch.elements))
    return replace(skipped, tags=tags, elements=skipped.elements or elements)
