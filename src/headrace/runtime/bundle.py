"""One bundle: preprocesses and queues elements, hands batches to an executor, returns an outcome for each element."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from headrace.batching.batcher import Batcher
from headrace.core.events import Observer
from headrace.core.phases import during
from headrace.core.result import Caught, Failure, Outcome, Predictions, Stage
from headrace.ipc.exceptions import with_traceback_of
from headrace.runtime.operations import Operations, is_any_of
from headrace.runtime.plan import ONLY
from headrace.runtime.queues import AnyBatch, queues_for
from headrace.runtime.session import InferenceSession
from headrace.runtime.spec import SessionSpec


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
