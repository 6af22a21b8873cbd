"""The way of a bundle's elements: preprocess, batch, infer, postprocess; each comes out in an outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

from headrace.batching.batcher import Batch, Batcher
from headrace.core.events import BatchFailed, ElementFailed, Observer
from headrace.core.result import Failure, Outcome, Predictions, Stage
from headrace.failures.bisect import bisect
from headrace.runtime.plan import ONLY
from headrace.runtime.session import InferenceSession


class Bundle:
    """Takes a bundle's elements one by one and gives outcomes as they are ready; used by one thread.

    Args:
        session: where the models are.
        observer: is told what happens.
    """

    def __init__(self, session: InferenceSession, observer: Observer) -> None:
        self._session = session
        self._plan = session.plan
        self._caught = session.spec.caught
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
                return [self._fail(Failure(tag, Stage.PREPROCESSING, index, element, error))]
        try:
            name = self._plan.handler.cohort(element[0]) if self._plan.routed else ONLY
            weight = self._size_of(element) if self._size_of else 1
        except self._caught as error:
            return [self._fail(Failure(tag, Stage.INFERENCE, 0, element, error))]
        if self._plan.prebatched:
            return self._run(name, Batch([element], [tag]))
        batches = self._batcher(name).add_weighed(element, tag, weight)
        return list(chain.from_iterable(self._run(name, batch) for batch in batches))

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
                model = stack.enter_context(self._session.model(name))
            except self._caught as error:
                return self._give_up(name, batch, error)
            finally:
                self._tell_news()
            return self._infer(name, batch, lambda part: self._attempt(name, model, part))

    def _infer(self, name: Any, batch: Batch, attempt: Callable[[Batch], list[Any] | Exception]) -> list[Outcome]:
        """One try of a batch, and where that fails the search for its bad elements."""
        breaker = self._session.breakers[name]
        result = attempt(batch)
        if not isinstance(result, Exception):
            breaker.record(succeeded=True)
            return self._deliver(batch, result)
        if breaker.is_open or self._plan.remote:
            return self._give_up(name, batch, result)
        self._tell_failed(name, batch, result)
        search = bisect(0, len(batch.elements), lambda start, stop: attempt(batch.part(start, stop)), result)
        parts = [(batch.part(start, stop), answer) for start, stop, answer in search]
        breaker.record(succeeded=any(not isinstance(answer, Exception) for _, answer in parts))
        return list(chain.from_iterable(self._settle(part, answer) for part, answer in parts))

    def _attempt(self, name: Any, model: Any, batch: Batch) -> list[Any] | Exception:
        """Predictions for a batch, or the exception that its elements caused; raises what is not caught."""
        try:
            predictions, event = self._session.run(name, model, self._examples(batch))
        except self._caught as error:
            return error
        except Exception as error:
            self._tell_failed(name, batch, error)
            raise
        self._observer.on_event(event)
        self._session.sizes[name].observe(self._size(batch), event.seconds)
        return predictions

    def _examples(self, batch: Batch) -> Any:
        if self._plan.prebatched:
            return batch.elements[0]
        if self._plan.keyed:
            _, examples = zip(*batch.elements, strict=True)
            return list(examples)
        return batch.elements

    def _size(self, batch: Batch) -> float:
        if self._size_of is not None and self._plan.batching.sizes_are_weights:
            return sum(map(self._size_of, batch.elements))
        return len(batch.elements)

    def _settle(self, batch: Batch, answer: list[Any] | Exception) -> list[Outcome]:
        if not isinstance(answer, Exception):
            return self._deliver(batch, answer)
        whole = self._plan.prebatched
        return [
            self._fail(Failure(tag, Stage.INFERENCE, 0, element, answer, whole))
            for element, tag in zip(batch.elements, batch.tags, strict=True)
        ]

    def _give_up(self, name: Any, batch: Batch, error: Exception) -> list[Outcome]:
        self._tell_failed(name, batch, error)
        self._session.breakers[name].record(succeeded=False)
        return self._settle(batch, error)

    def _deliver(self, batch: Batch, predictions: list[Any]) -> list[Outcome]:
        tags = batch.tags * len(predictions) if self._plan.prebatched else batch.tags
        if self._plan.keyed:
            keys = [element[0] for element in batch.elements]
            predictions = list(zip(keys, predictions, strict=True))
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
                    outcomes.append(self._fail(Failure(tag, Stage.POSTPROCESSING, index, value, error)))
                    break
            else:
                good.tags.append(tag)
                good.values.append(value)
        return outcomes

    def _fail(self, failure: Failure) -> Failure:
        self._observer.on_event(ElementFailed(failure.stage, failure.error))
        return failure

    def _tell_failed(self, name: Any, batch: Batch, error: Exception) -> None:
        self._observer.on_event(BatchFailed(self._session.label(name), len(batch.elements), error))

    def _tell_news(self) -> None:
        for event in self._session.news():
            self._observer.on_event(event)
