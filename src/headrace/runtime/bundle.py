"""The way of a bundle's elements: preprocess, batch, infer, postprocess; each comes out in an outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

from headrace.batching.batcher import Batch, Batcher
from headrace.core.events import BatchFailed, ElementFailed, Observer
from headrace.core.result import Caught, Failure, Outcome, Predictions, Stage
from headrace.failures.bisect import bisect
from headrace.runtime.plan import ONLY
from headrace.runtime.worker import Worker


class Bundle:
    """Takes a bundle's elements one by one and gives outcomes as they are ready; used by one thread.

    Args:
        worker: has the models.
        observer: is told what happens.
    """

    def __init__(self, worker: Worker, observer: Observer) -> None:
        self._worker = worker
        self._session = worker.session
        self._plan = worker.plan
        self._caught = worker.spec.caught
        self._observer = observer
        self._batchers: dict[Any, Batcher] = {}
        self._size_of = self._plan.batching.element_size_fn
        self._direct: Batcher | None = None
        if not (self._plan.preprocess or self._plan.routed or self._plan.prebatched or self._size_of):
            self._direct = self._batcher(ONLY)

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """Takes an element; ``tag`` comes back with its outcome. Returns what became ready.

        Raises:
            Exception: an operation failed, and the session does not catch this exception.
        """
        if self._direct is None:
            return self._add(element, tag)
        batch = self._direct.add(element, tag)
        return self._run(ONLY, batch) if batch else ()

    def finish(self) -> Iterator[Outcome]:
        """Runs what is left; afterwards every element has its outcome."""
        for name, batcher in self._batchers.items():
            if len(batcher):
                yield from self._run(name, batcher.flush())
        self._tell_news()

    def _add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        for index, operation in enumerate(self._plan.preprocess):
            try:
                element = operation(element)
            except self._caught as error:
                return [self._fail(tag, Stage.PREPROCESSING, index, element, Caught.of(error))]
        if self._plan.prebatched:
            return self._run(ONLY, Batch([element], [tag]))
        try:
            name = self._plan.handler.cohort(element[0]) if self._plan.routed else ONLY
            weight = self._weigh(element)
        except self._caught as error:
            return [self._fail(tag, Stage.INFERENCE, 0, element, Caught.of(error))]
        batches = self._batcher(name).add_weighed(element, tag, weight)
        return list(chain.from_iterable(self._run(name, batch) for batch in batches))

    def _weigh(self, element: Any) -> float:
        if self._size_of is None:
            return 1
        weight: float = self._size_of(element)
        if not 0 <= weight < math.inf:  # nor a NaN, which is neither above a limit nor below it
            raise ValueError(f"element_size_fn must return a finite number of at least 0, not {weight!r}.")
        return weight

    def _batcher(self, name: Any) -> Batcher:
        batcher = self._batchers.get(name)
        if batcher is None:
            config = self._plan.batching
            batcher = self._batchers[name] = Batcher(
                self._session.sizes[name].target,
                config.max_batch_size,
                config.max_batch_size if config.sizes_are_weights else config.max_batch_weight,
                target_is_weight=config.sizes_are_weights,
            )
        return batcher

    def _run(self, name: Any, batch: Batch) -> list[Outcome]:
        with ExitStack() as stack:
            try:
                model = stack.enter_context(self._worker.model(name))
            except self._caught as error:
                return self._give_up(name, batch, Caught.of(error))
            finally:
                self._tell_news()
            try:
                return self._infer(name, batch, partial(self._attempt, name, model))
            finally:
                del model  # before the store may drop it: a limit on models is one on memory

    def _infer(self, name: Any, batch: Batch, attempt: Callable[[Batch], list[Any] | Caught]) -> list[Outcome]:
        """One try of a batch, and where that fails the search for its bad elements."""
        breaker = self._session.breakers[name]
        answer = attempt(batch)
        if not isinstance(answer, Caught):
            breaker.record(succeeded=True)
            return self._deliver(batch, answer)
        if breaker.is_open or self._plan.remote:
            return self._give_up(name, batch, answer)
        self._tell_failed(name, batch, answer.error)
        search = bisect(0, len(batch.elements), lambda start, stop: attempt(batch.part(start, stop)), answer)
        parts = [(batch.part(start, stop), found) for start, stop, found in search]
        breaker.record(succeeded=any(not isinstance(found, Caught) for _, found in parts))
        return list(chain.from_iterable(self._settle(part, found) for part, found in parts))

    def _attempt(self, name: Any, model: Any, batch: Batch) -> list[Any] | Caught:
        """Predictions for a batch, or the exception that its elements caused; raises what is not caught."""
        try:
            predictions, event, seconds = self._worker.run(name, model, batch.elements)
        except self._caught as error:
            return Caught.of(error)
        except Exception as error:
            self._tell_failed(name, batch, error)
            raise
        self._observer.on_event(event)
        size = batch.weight if self._plan.batching.sizes_are_weights else len(batch.elements)
        self._session.sizes[name].observe(size, seconds)
        return predictions

    def _settle(self, batch: Batch, answer: list[Any] | Caught) -> list[Outcome]:
        if not isinstance(answer, Caught):
            return self._deliver(batch, answer)
        pairs = zip(batch.elements, batch.tags, strict=True)
        return [self._fail(tag, Stage.INFERENCE, 0, element, answer) for element, tag in pairs]

    def _give_up(self, name: Any, batch: Batch, caught: Caught) -> list[Outcome]:
        self._tell_failed(name, batch, caught.error)
        self._session.breakers[name].record(succeeded=False)
        return self._settle(batch, caught)

    def _deliver(self, batch: Batch, predictions: list[Any]) -> list[Outcome]:
        tags = batch.tags * len(predictions) if self._plan.prebatched else batch.tags
        return self._postprocess(tags, predictions) if self._plan.postprocess else [Predictions(tags, predictions)]

    def _postprocess(self, tags: list[Any], values: list[Any]) -> list[Outcome]:
        good = Predictions([], [])
        outcomes: list[Outcome] = [good]
        for tag, given in zip(tags, values, strict=True):
            value = given
            for index, operation in enumerate(self._plan.postprocess):
                try:
                    value = operation(value)
                except self._caught as error:
                    outcomes.append(self._fail(tag, Stage.POSTPROCESSING, index, value, Caught.of(error)))
                    break
            else:
                good.tags.append(tag)
                good.values.append(value)
        return outcomes

    def _fail(self, tag: Any, stage: Stage, index: int, element: Any, caught: Caught) -> Failure:
        self._observer.on_event(ElementFailed(stage, caught.error))
        whole = stage is Stage.INFERENCE and self._plan.prebatched
        return Failure(tag, stage, index, element, caught, whole)

    def _tell_failed(self, name: Any, batch: Batch, error: BaseException) -> None:
        self._observer.on_event(BatchFailed(self._plan.label(name), len(batch.elements), error))

    def _tell_news(self) -> None:
        for event in self._session.news():
            self._observer.on_event(event)
