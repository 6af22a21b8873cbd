"""The way of a bundle's elements: preprocess, batch, infer, postprocess; each comes out as an outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

from headrace.batching.batcher import Batcher
from headrace.core.events import BatchFailed, ElementFailed, Observer
from headrace.core.result import Failure, Outcome, Prediction, Stage
from headrace.failures.bisect import bisect
from headrace.runtime.session import InferenceSession


Item = tuple[Any, Any]
"""(tag, element): an element on its way, preprocessed and not yet inferred. A plain tuple: there is one for each row."""


class Bundle:
    """Takes a bundle's elements one by one and gives outcomes as they are ready; used by one thread.

    Without preprocessing, postprocessing and failures, outcomes come in the order of the elements.

    Args:
        session: where the models are.
        observer: is told what happens.
    """

    def __init__(self, session: InferenceSession, observer: Observer) -> None:
        self._session = session
        self._plan = session.plan
        self._caught = session.spec.caught
        self._observer = observer
        self._batchers: dict[Any, Batcher[Item]] = {}
        self._size_of = self._plan.batching.element_size_fn
        self._direct: Batcher[Item] | None = None
        if not (self._plan.preprocess or self._plan.routed or self._plan.prebatched or self._size_of):
            self._direct = self._batcher(None)

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """Takes an element; ``tag`` comes back with its outcome. Returns what became ready.

        Raises:
            Exception: an operation failed, and the session does not catch this exception.
        """
        if self._direct is not None:
            batch = self._direct.add((tag, element))
            return self._run(None, batch) if batch else ()
        return self._add(element, tag)

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
        item = (tag, element)
        try:
            name = self._plan.handler.cohort(element[0]) if self._plan.routed else None
            weight = self._size_of(element) if self._size_of else 1
        except self._caught as error:
            return [self._fail(Failure(tag, Stage.INFERENCE, 0, element, error))]
        if self._plan.prebatched:
            return self._run(name, [item])
        batches = self._batcher(name).add_weighed(item, weight)
        return list(chain.from_iterable(self._run(name, batch) for batch in batches))

    def _batcher(self, name: Any) -> Batcher[Item]:
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

    def _run(self, name: Any, items: list[Item]) -> list[Outcome]:
        with ExitStack() as stack:
            try:
                model = stack.enter_context(self._session.model(name))
            except self._caught as error:
                return self._give_up(name, items, error)
            finally:
                self._tell_news()
            return self._infer(name, items, lambda part: self._attempt(name, model, part))

    def _infer(self, name: Any, items: list[Item], attempt: Callable[[Sequence[Item]], Any]) -> list[Outcome]:
        """One try of a batch, and where that fails the search for its bad elements."""
        breaker = self._session.breakers[name]
        result = attempt(items)
        if not isinstance(result, Exception):
            breaker.record(succeeded=True)
            return self._deliver(items, result)
        if breaker.is_open or self._plan.remote:
            return self._give_up(name, items, result)
        self._tell_failed(name, items, result)
        parts = list(bisect(items, attempt, result))
        breaker.record(succeeded=any(not isinstance(outcome, Exception) for _, outcome in parts))
        return list(chain.from_iterable(self._settle(part, outcome) for part, outcome in parts))

    def _attempt(self, name: Any, model: Any, items: Sequence[Item]) -> list[Any] | Exception:
        """Predictions for the items, or the exception that one of them (or all) caused; raises what is not caught."""
        try:
            predictions, event = self._session.run(name, model, self._examples(items))
        except self._caught as error:
            return error
        except Exception as error:
            self._tell_failed(name, items, error)
            raise
        self._observer.on_event(event)
        self._session.sizes[name].observe(self._size(items), event.seconds)
        return predictions

    def _examples(self, items: Sequence[Item]) -> Any:
        if self._plan.prebatched:
            return items[0][1]
        if self._plan.keyed:
            return [element[1] for _, element in items]
        return [element for _, element in items]

    def _size(self, items: Sequence[Item]) -> float:
        if self._size_of is not None and self._plan.batching.sizes_are_weights:
            return sum(self._size_of(element) for _, element in items)
        return len(items)

    def _settle(self, items: Sequence[Item], outcome: list[Any] | Exception) -> list[Outcome]:
        if isinstance(outcome, Exception):
            whole = self._plan.prebatched
            return [self._fail(Failure(tag, Stage.INFERENCE, 0, element, outcome, whole)) for tag, element in items]
        return self._deliver(items, outcome)

    def _give_up(self, name: Any, items: Sequence[Item], error: Exception) -> list[Outcome]:
        self._tell_failed(name, items, error)
        self._session.breakers[name].record(succeeded=False)
        return self._settle(items, error)

    def _deliver(self, items: Sequence[Item], predictions: list[Any]) -> list[Outcome]:
        if self._plan.prebatched:
            return [self._postprocess(items[0][0], prediction) for prediction in predictions]
        tags = [tag for tag, _ in items]
        if self._plan.keyed:
            predictions = [(element[0], value) for (_, element), value in zip(items, predictions, strict=True)]
        return list(map(self._postprocess if self._plan.postprocess else Prediction, tags, predictions))

    def _postprocess(self, tag: Any, value: Any) -> Outcome:
        for index, operation in enumerate(self._plan.postprocess):
            try:
                value = operation(value)
            except self._caught as error:
                return self._fail(Failure(tag, Stage.POSTPROCESSING, index, value, error))
        return Prediction(tag, value)

    def _fail(self, failure: Failure) -> Failure:
        self._observer.on_event(ElementFailed(failure.stage, failure.error))
        return failure

    def _tell_failed(self, name: Any, items: Sequence[Item], error: Exception) -> None:
        self._observer.on_event(BatchFailed(self._session.label(name), len(items), error))

    def _tell_news(self) -> None:
        for event in self._session.news():
            self._observer.on_event(event)
