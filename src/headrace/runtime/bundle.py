"""One bundle in this process: preprocesses and queues elements, runs batches, returns an outcome for each element."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from headrace.core.events import Observer
from headrace.core.result import Caught, Failure, Outcome, Skipped, Stage
from headrace.runtime.background import BackgroundBatch, BackgroundExecutor
from headrace.runtime.cross_bundle import BundleSlot
from headrace.runtime.plan import ONLY
from headrace.runtime.queues import AnyBatch, Queues
from headrace.runtime.steps import ModelAccess, Steps


class AnyBundle(Protocol):
    """Accepts a bundle's elements; the model may be here or in a host."""

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """Accepts an element and returns the outcomes that are ready; ``tag`` comes back with its own outcome."""
        ...

    def finish(self) -> Iterator[Outcome]:
        """Runs everything that still waits; afterwards every element has its outcome."""
        ...


class TimedModels(ModelAccess, Protocol):
    """What a bundle needs from a worker."""

    computed: float
    """Seconds spent in models so far."""


class Bundle:
    """Accepts a bundle's elements one by one and returns outcomes as they become ready; used by one thread.

    Outcomes are in the order in which batches formed and elements failed, whichever thread ran a batch.

    Args:
        worker: provides the models.
        observer: receives the events.
        slot: batches what is left at the end together with other bundles.
        background: runs batches while elements are collected, if that is faster.
    """

    def __init__(
        self,
        worker: TimedModels,
        observer: Observer,
        slot: BundleSlot | None = None,
        background: BackgroundExecutor | None = None,
    ) -> None:
        self._caught = worker.spec.caught
        self._clock = worker.spec.clock
        self._worker = worker
        self._steps = Steps(worker, observer)
        self._slot = slot
        self._queues = Queues(worker.plan, worker.session.queue_sizes, worker.session.resident)
        self._direct = None if worker.plan.preprocess else self._queues.direct
        self._background = background
        self._run = self._steps.run if background is None else self._run_overlapping
        self._pending: deque[BackgroundBatch | Failure | Skipped] = deque()
        """Batches in flight, and outcomes that must come after them."""
        self._moment = self._clock.time_ns()
        """When the last batch ended, or else when the bundle began."""

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """Accepts an element and returns the outcomes that are ready; ``tag`` comes back with its own outcome.

        Raises:
            Exception: an operation failed with an exception that the session does not catch.
        """
        if self._direct is None:
            return self._add(element, tag)
        batch = self._direct.add(element, tag)
        return self._run(ONLY, batch) if batch else ()

    def finish(self) -> Iterator[Outcome]:
        """Runs everything that still waits; afterwards every element has its outcome."""
        if self._slot is None:
            for name, batch in self._queues.flush():
                yield from self._run(name, batch)
        yield from self._collect(0)
        if self._slot is not None:
            yield from self._slot.finish(self._queues.flush(), self._steps.run)
        self._steps.tell_news()

    def _add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        element, outcome = self._steps.preprocess(element, tag)
        if outcome is not None:
            return self._emit_in_order(outcome)
        try:
            batches = self._queues.add(element, tag)
        except self._caught as error:
            return self._emit_in_order(self._steps.fail(tag, Stage.INFERENCE, 0, element, Caught.of(error)))
        # Not a generator: a StopIteration raised by user code would end it silently, and elements would be lost.
        return [outcome for name, batch in batches for outcome in self._run(name, batch)] if batches else ()

    def _emit_in_order(self, outcome: Failure | Skipped) -> list[Outcome]:
        if not self._pending:
            return [outcome]
        self._pending.append(outcome)
        return self._collect(BackgroundExecutor.in_flight)

    def _run_overlapping(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        """Runs a batch on the background thread if that is faster, and returns the outcomes that are ready."""
        assert self._background is not None
        if not self._background.policy.next_in_background():
            return [*self._collect(0), *self._run_here(name, batch, self._background)]
        outcomes = self._collect(BackgroundExecutor.in_flight - 1)
        self._pending.append(self._background.submit(name, batch))
        return outcomes + self._collect(BackgroundExecutor.in_flight)

    def _run_here(self, name: Any, batch: AnyBatch, background: BackgroundExecutor) -> list[Outcome]:
        computed = self._worker.computed
        outcomes = self._steps.run(name, batch)
        background.policy.record_inline(batch.total, self._worker.computed - computed, self._seconds())
        return outcomes

    def _collect(self, submitted: int) -> list[Outcome]:
        """Outcomes that are ready; waits until at most ``submitted`` batches are in flight."""
        outcomes: list[Outcome] = []
        while self._pending:
            first = self._pending[0]
            if isinstance(first, Failure | Skipped):
                outcomes.append(first)
            # Stop at the first unfinished batch, so that outcomes keep their order.
            elif self._background is not None and (first.is_done or self._background.submitted > submitted):
                outcomes += self._background.collect(first, self._steps)
                self._background.policy.record_background(first.size, self._seconds())
            else:
                break
            self._pending.popleft()
        return outcomes

    def _seconds(self) -> float:
        """Seconds since the previous call."""
        before, self._moment = self._moment, self._clock.time_ns()
        return (self._moment - before) / 1e9
