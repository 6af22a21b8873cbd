"""One bundle: preprocesses and queues elements, hands batches to an executor, returns an outcome for each element.

What a model cannot do goes to its fallback, whose outcomes count as the model's::

    add -> Bundle -> BypassExecutor -> executor of the model        AnyBundle of the fallback
              |            (its breaker is open: failures at once)       ^           |
              '--- FallbackBundle: failures of inference ----------------'           '--> outcomes

With a second fallback, there is another FallbackBundle of that one's bundle and of the first FallbackBundle; and so on.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from headrace.batching.batcher import Batch, Batcher
from headrace.core.errors import BudgetError, FallbackError
from headrace.core.events import ElementFailed, Event, Observer
from headrace.core.phases import during
from headrace.core.result import Caught, Failure, Outcome, Predictions, Skipped, Stage
from headrace.ipc.serialization import with_traceback_of
from headrace.runtime.operations import Operations, is_any_of
from headrace.runtime.plan import ONLY, Plan
from headrace.runtime.queues import AnyBatch, queues_for
from headrace.runtime.session import InferenceSession
from headrace.runtime.spec import SessionSpec

_NOT_TRIED = RuntimeError("not tried, since nothing but failures has come from the model lately")
_AND_THEN = "\nThe fallback failed, too:\n\n"


class Executor(Protocol):
    """Runs the batches of one bundle: on this thread, on another one, or in a host. Only the bundle's thread calls it.

    The bundle does not ask how many batches are in flight, or in which order they end: the executor may have one or a
    thousand. Both methods raise exceptions that the session does not catch.
    """

    def submit(self, name: Any, batch: AnyBatch) -> Sequence[Outcome]:
        """Runs or starts a batch of the named model; returns the outcomes, of any batch, that are ready.

        Waits for earlier batches if too many are in flight.
        """
        ...

    def collect(self) -> Iterable[Outcome]:
        """Waits for the batches in flight; returns their outcomes."""
        ...


class AnyBundle(Protocol):
    """Accepts a bundle's elements; used by one thread."""

    @property
    def spent(self) -> bool:
        """Whether the budget is spent: what is added from now on is left out, and ``finish`` raises BudgetError."""
        ...

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """Accepts an element and returns the outcomes that are ready; ``tag`` comes back with its own outcome."""
        ...

    def finish(self) -> Iterator[Outcome]:
        """Runs everything that still waits; afterwards every element has its outcome.

        Raises:
            BudgetError: at the end, if an element was left out because the budget is spent.
        """
        ...


class Bundle:
    """Accepts a bundle's elements one by one and returns outcomes as they become ready; used by one thread.

    ::

        add(element) -> Operations.preprocess -> Queues -> batch -> Executor -> outcomes
    """

    def __init__(self, spec: SessionSpec, session: InferenceSession, executor: Executor, observer: Observer) -> None:
        self._caught = spec.caught
        self._session = session
        self._executor = executor
        self._observer = observer
        self._operations = Operations(spec, observer)
        self._preprocesses = bool(spec.plan.preprocess) and not spec.preprocesses_in_hosts
        self._queues = queues_for(spec.plan, session.queue_sizes, session.resident)
        self._usage = session.usage if session.usage is not None and session.usage.may_be_over else None
        self.spent = False
        self._direct = None if self._preprocesses else self._queues.direct

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """Accepts an element and returns the outcomes that are ready; ``tag`` comes back with its own outcome."""
        if self._direct is None:
            return self._add(element, tag)
        batch = self._direct.add(element, tag)
        if not batch:
            return ()
        return self._executor.submit(ONLY, batch) if self._usage is None else self._submit(ONLY, batch)

    @during(None)  # who writes outcomes waits here for those that are computed elsewhere
    def finish(self) -> Iterator[Outcome]:
        """Runs everything that still waits; afterwards every element has its outcome."""
        for name, batch in self._queues.flush():
            yield from self._submit(name, batch)
        yield from self._executor.collect()
        if self._session.events:
            self._session.report_events(self._observer)
        if self.spent and self._usage is not None and self._usage.error is not None:
            raise self._usage.error

    def _add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        if self.spent:
            return ()
        if self._preprocesses:
            element, outcome = self._operations.preprocess(element, tag)
            if outcome is not None:
                return [outcome]
        try:
            batches = self._queues.add(element, tag)
        except self._caught as error:
            return [self._operations.fail(tag, Stage.INFERENCE, 0, element, Caught.of(error))]
        # Not a generator: a StopIteration raised by user code would end it silently, and elements would be lost.
        return [outcome for name, batch in batches for outcome in self._submit(name, batch)] if batches else ()

    def _submit(self, name: Any, batch: AnyBatch) -> Sequence[Outcome]:
        """Submits a batch, or leaves it out, if the budget is spent."""
        if self._usage is not None and (self.spent or self._usage.error is not None):
            self.spent = True
            return ()
        return self._executor.submit(name, batch)


def raise_uncaught(failure: Failure, spec: SessionSpec, error: BaseException) -> Failure:
    """The failure, unless the session has a fallback, and so catches more than the user does.

    Raises:
        BaseException: the failure's own error, if the user does not catch ``error``.
    """
    if spec.caught_by_user is not None and not is_any_of(error, spec.caught_by_user):
        raise with_traceback_of(*failure.caught)
    return failure


class PreprocessFirst:
    """Has elements preprocessed in batches before a bundle queues them; used by one thread."""

    def __init__(self, spec: SessionSpec, preprocessor: Executor, batcher: Batcher, bundle: AnyBundle) -> None:
        self._spec = spec
        self._preprocessor = preprocessor
        self._batcher = batcher
        self._bundle = bundle

    @property
    def spent(self) -> bool:
        """As ``Bundle.spent``."""
        return self._bundle.spent

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """As ``Bundle.add``."""
        batch = self._batcher.add(element, tag)
        return list(self._hand_on(self._preprocessor.submit(ONLY, batch))) if batch else ()

    def finish(self) -> Iterator[Outcome]:
        """As ``Bundle.finish``."""
        if len(self._batcher):
            yield from self._hand_on(self._preprocessor.submit(ONLY, self._batcher.flush()))
        yield from self._hand_on(self._preprocessor.collect())
        yield from self._bundle.finish()

    def _hand_on(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        for outcome in outcomes:
            if not isinstance(outcome, Predictions):
                yield raise_uncaught(outcome, self._spec, outcome.error) if isinstance(outcome, Failure) else outcome
                continue
            for element, tag in zip(outcome.values, outcome.tags, strict=True):
                yield from self._bundle.add(element, tag)


class FallbackBundle:
    """A bundle of a model with a fallback; used by one thread.

    Failures of inference become elements of the fallback's bundle, with the failure as their tag; so if that fails,
    too, both errors are at hand. The fallback's own functions are part of its inference, seen from outside.

    Args:
        observer: if another fallback takes failures of inference, receives those of postprocessing; else None.
    """

    def __init__(
        self, first: AnyBundle, fallback: AnyBundle, spec: SessionSpec, plan: Plan, observer: Observer | None = None
    ) -> None:
        self._first = first
        self._fallback = fallback
        self._spec = spec
        self._own = len(plan.postprocess) - len(spec.plan.postprocess)
        """How many of the fallback's postprocessing functions are its own, and not the model's, too."""
        self._name = plan.label(ONLY) if plan.routed else plan.answerer(ONLY)
        self._has_rows = spec.plan.batching.columnar
        """Whether elements are columnar, of which the fallback may fail some rows only."""
        self._observer = observer

    @property
    def spent(self) -> bool:
        """As ``Bundle.spent``."""
        return self._first.spent or self._fallback.spent

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """As ``Bundle.add``."""
        outcomes = self._first.add(element, tag)
        return [one for outcome in outcomes for one in self._settled(outcome)] if outcomes else ()

    def finish(self) -> Iterator[Outcome]:
        """As ``Bundle.finish``."""
        spent: BudgetError | None = None
        try:
            for outcome in self._first.finish():
                yield from self._settled(outcome)
        except BudgetError as error:  # what either of the two was asked for comes first: it is paid for
            spent = error
        for outcome in self._fallback.finish():
            yield self._answered(outcome)
        if spent is not None:
            raise spent

    def _settled(self, outcome: Outcome) -> Iterable[Outcome]:
        """The outcome, unless its element goes to the fallback; then those of the fallback that are ready."""
        if not isinstance(outcome, Failure):
            return [outcome]
        if outcome.stage is not Stage.INFERENCE:
            return [raise_uncaught(outcome, self._spec, outcome.error)]
        # Not map(), which a StopIteration raised by user code would end silently.
        return [self._answered(one) for one in self._fallback.add(outcome.element, outcome)]

    def _answered(self, outcome: Outcome) -> Outcome:
        """An outcome of the fallback, as one of the transform."""
        if isinstance(outcome, Predictions):
            return Predictions([failure.tag for failure in outcome.tags], outcome.values, self._name)
        stage, index = Stage.INFERENCE, 0
        if outcome.stage is Stage.POSTPROCESSING and outcome.index >= self._own:
            stage, index = outcome.stage, outcome.index - self._own
        if isinstance(outcome, Skipped):
            is_inside = stage is Stage.INFERENCE
            elements = [failure.element for failure in outcome.tags] if is_inside else outcome.elements
            return Skipped(stage, index, [failure.tag for failure in outcome.tags], elements)
        first: Failure = outcome.tag
        if stage is Stage.POSTPROCESSING:
            failure = replace(outcome, tag=first.tag, index=index)
            if self._observer is not None:
                self._observer.on_event(ElementFailed(stage, outcome.error))
        else:
            failure = replace(
                first,
                element=outcome.element if self._has_rows else first.element,
                caught=_both(first.caught, outcome.caught),
                attempts=first.attempts + outcome.attempts,
            )
            if self._observer is not None:
                return failure  # its element goes to the next fallback
        return raise_uncaught(failure, self._spec, outcome.error)


class BypassExecutor:
    """An executor that passes batches on to another one, but for most of those whose model's circuit breaker is open.

    Those fail at once, so that the fallback takes them; from time to time one is tried, to see whether the model works
    again. Endpoints do the same for requests. What is in the cache needs no model: all elements that a job's first run
    has left out may be bad.
    """

    def __init__(self, executor: Executor, spec: SessionSpec, session: InferenceSession) -> None:
        self.collect = executor.collect
        self._executor = executor
        self._plan = spec.plan
        self._concurrent = spec.plan.concurrent
        self._clock = spec.clock
        self._session = session

    def submit(self, name: Any, batch: AnyBatch) -> Sequence[Outcome]:
        """As ``Executor.submit``."""
        model = self._session.models[name]
        if name in self._concurrent or not model.breaker.is_open:
            return self._executor.submit(name, batch)
        if not model.breaker.begins_try(self._now()):
            return self._passed_on(name, batch)
        try:
            outcomes = [*self._executor.submit(name, batch)]
            with suppress(BudgetError):  # raised again at the bundle's end; these outcomes are paid for
                outcomes.extend(self._executor.collect())
            return outcomes
        finally:
            model.breaker.end_try(self._now())

    def _passed_on(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        outcomes: list[Outcome] = []
        if self._session.predictions is not None and isinstance(batch, Batch):
            known, _, rest = self._session.predictions.look_up(name, batch)
            if known:
                outcomes += self._executor.submit(name, batch.pick(known)[0])
            if rest is None:
                return outcomes
            batch = rest
        caught, pairs = Caught(_NOT_TRIED, []), zip(batch.elements, batch.tags, strict=True)
        failure = self._plan.failure
        return outcomes + [failure(tag, Stage.INFERENCE, 0, one, caught, model=name, attempts=0) for one, tag in pairs]

    def _now(self) -> float:
        return self._clock.time_ns() / 1e9


class WithoutFailures:
    """An observer that forwards events, but for failures of inference: the element may still get a prediction.

    Args:
        of_any_stage: whether those of all other operations are left out, too.
    """

    def __init__(self, observer: Observer, *, of_any_stage: bool = False) -> None:
        self._observer = observer
        self._of_any_stage = of_any_stage

    def on_event(self, event: Event) -> None:
        """Forwards the event."""
        if not isinstance(event, ElementFailed) or not (self._of_any_stage or event.stage is Stage.INFERENCE):
            self._observer.on_event(event)


def _both(first: Caught, fallback: Caught) -> Caught:
    """The error of an element that both failed, with both tracebacks."""
    error = FallbackError(first.error, fallback.error)
    lines = [*first.lines, _AND_THEN, *fallback.lines, "\n", *traceback.format_exception_only(error)]
    return Caught(error, lines)
