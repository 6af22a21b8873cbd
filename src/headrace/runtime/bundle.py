"""The way of a bundle's elements in this process: preprocessed, queued, run; each comes out in an outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, starmap
from typing import Any, Protocol

from headrace.core.events import Observer
from headrace.core.result import Caught, Outcome, Stage
from headrace.runtime.plan import ONLY
from headrace.runtime.queues import Queues
from headrace.runtime.sharing import Member
from headrace.runtime.steps import Models, Steps


class AnyBundle(Protocol):
    """What takes a bundle's elements, here or in a host."""

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """Takes an element; ``tag`` comes back with its outcome. Returns what became ready."""
        ...

    def finish(self) -> Iterator[Outcome]:
        """Runs what is left; afterwards every element has its outcome."""
        ...


class Bundle:
    """Takes a bundle's elements one by one and gives outcomes as they are ready; used by one thread.

    Args:
        worker: has the models.
        observer: is told what happens.
        member: shares what is left over with other bundles.
    """

    def __init__(self, worker: Models, observer: Observer, member: Member | None = None) -> None:
        self._caught = worker.spec.caught
        self._steps = Steps(worker, observer)
        self._member = member
        self._queues = Queues(worker.plan, worker.session.queue_sizes)
        self._direct = None if worker.plan.preprocess else self._queues.direct

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """Takes an element; ``tag`` comes back with its outcome. Returns what became ready.

        Raises:
            Exception: an operation failed, and the session does not catch this exception.
        """
        if self._direct is None:
            return self._add(element, tag)
        batch = self._direct.add(element, tag)
        return self._steps.run(ONLY, batch) if batch else ()

    def finish(self) -> Iterator[Outcome]:
        """Runs what is left; afterwards every element has its outcome."""
        if self._member is None:
            yield from chain.from_iterable(starmap(self._steps.run, self._queues.flush()))
        else:
            yield from self._member.finish(self._queues.flush(), self._steps.run)
        self._steps.tell_news()

    def _add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        element, failure = self._steps.preprocess(element, tag)
        if failure is not None:
            return [failure]
        try:
            batches = self._queues.add(element, tag)
        except self._caught as error:
            return [self._steps.fail(tag, Stage.INFERENCE, 0, element, Caught.of(error))]
        return list(chain.from_iterable(starmap(self._steps.run, batches))) if batches else ()
