"""Runs batches in this process, and recovers those that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any, Protocol

from headrace.batching.batcher import Batch
from headrace.batching.size import BatchTime, Untimed
from headrace.core.answer import SKIP, SomeSkipped
from headrace.core.clock import sleep_of
from headrace.core.errors import DeviceLostError
from headrace.core.events import (
    BatchCompleted,
    BatchFailed,
    BatchRetried,
    CacheUsed,
    Event,
    Observer,
)
from headrace.core.model_cache import Slot
from headrace.core.result import Caught, Outcome, Predictions, Skipped, Stage
from headrace.failures.device import is_out_of_memory
from headrace.failures.recovery import Action, Recovery
from headrace.failures.retry import RetryBudget
from headrace.runtime.model_source import ModelProxy
from headrace.runtime.operations import ActivityListener, Operations, catches, check_device, lost_devices
from headrace.runtime.plan import Plan
from headrace.runtime.queues import AnyBatch
from headrace.runtime.session import InferenceSession, SessionModel
from headrace.runtime.spec import SessionSpec

_LONGEST_SLEEP_SECS = 0.1
"""Longest sleep between two reports to a listener; any sensible time limit is much longer."""


class ModelAccess(Protocol):
    """What the steps need from a worker."""

    spec: SessionSpec
    plan: Plan
    session: InferenceSession

    computed: float

    def borrow(self, name: Any) -> Slot:
        """The named model as a ``Loaded``, which stays in memory until it is released."""
        ...

    def run(self, name: Any, model: Any, elements: Sequence[Any]) -> tuple[list[Any], BatchCompleted, BatchTime]:
        """Calls the model once; returns predictions, an event, and the seconds for the size controller."""
        ...

    def split_keys(self, elements: Sequence[Any]) -> tuple[Sequence[Any] | None, Any]:
        """The keys, if elements have some, and the examples."""
        ...

    def completed(
        self, name: Any, elements: Sequence[Any], keys: Sequence[Any] | None, predictions: list[Any], seconds: float
    ) -> tuple[list[Any], BatchCompleted]:
        """Predictions with their keys, and the event."""
        ...


class KnownPredictions(Operations):
    """Hands out the predictions that the cache knows; used by one thread."""

    def __init__(
        self, spec: SessionSpec, session: InferenceSession, observer: Observer, watch: ActivityListener | None = None
    ) -> None:
        super().__init__(spec, observer, watch)
        self.session = session

    def look_up(self, name: Any, batch: AnyBatch) -> tuple[list[Outcome], AnyBatch | None]:
        """The outcomes of elements whose predictions are known already; and the batch of the others, if any."""
        cache = self.session.predictions
        if cache is None or not isinstance(batch, Batch):
            return [], batch
        found = cache.look_up(name, batch)
        self.report(CacheUsed(self.session.models[name].label, len(found.known), batch.total - len(found.known)))
        known = batch.pick(found.known)[0]
        return (self._hand_out(name, known, found.predictions) if found.known else []), found.rest

    def report(self, event: Event) -> None:
        """Reports an event to the observer."""
        self._observer.on_event(event)

    def _hand_out(self, name: Any, batch: AnyBatch, predictions: list[Any]) -> list[Outcome]:
        times = len(predictions) if self._plan.prebatched else 1
        tags = batch.tags * times
        if not isinstance(predictions, SomeSkipped):
            return self.postprocess(tags, predictions, name)
        kept, left = ([(value is SKIP) == is_left for value in predictions] for is_left in (False, True))
        elements = list(compress(batch.elements * times, left))
        skipped = self.skip(Skipped(Stage.INFERENCE, 0, list(compress(tags, left)), elements), name)
        return [*self.postprocess(list(compress(tags, kept)), list(compress(predictions, kept)), name), skipped]


class Steps(KnownPredictions):
    """Runs batches through inference and postprocessing, and recovers failed batches; used by one thread."""

    def __init__(self, worker: ModelAccess, observer: Observer, watch: ActivityListener | None = None) -> None:
        super().__init__(worker.spec, worker.session, observer, watch)
        self._worker = worker

    def run(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        """Runs a batch of preprocessed elements on the named model, then postprocesses the predictions."""
        if lost_devices:
            check_device(self.spec)
        outcomes: list[Outcome] = []
        if self.session.predictions is not None:
            outcomes, rest = self.look_up(name, batch)
            if rest is None:
                return outcomes
            batch = rest
        held = self.borrow(name, batch)
        if isinstance(held, list):
            return outcomes + held
        try:
            if self.session.events:
                self.report_load()
            answer = self.attempt(name, held.model.model, batch)
            if isinstance(answer, Caught):
                return outcomes + self._recovered(name, batch, held.model.model, answer)
            breaker = self.session.models[name].breaker
            if breaker.failed_in_a_row:
                breaker.record(succeeded=True)
            return outcomes + self.settle(name, batch, answer, 1)
        finally:
            held.release()

    def borrow(self, name: Any, batch: AnyBatch) -> Slot | list[Outcome]:
        """The model for a batch, to be released; or the outcomes of a batch whose model cannot be loaded."""
        try:
            if self._watch is not None:
                self._watch.loading(name)
            return self._worker.borrow(name)
        except BaseException as error:
            self.session.report_events(self._observer)
            if not catches(self.spec, error, name):
                raise
            self.report_failed_batch(name, batch.total, error)
            self.session.models[name].breaker.record(succeeded=False)
            return self.settle(name, batch, Caught.of(error), 1)

    def report_load(self) -> None:
        """Reports what happened outside bundles, such as a load, and what requests used."""
        if self.session.events:
            self.session.report_events(self._observer)

    def learn(self, model: SessionModel, batch: AnyBatch, time: BatchTime) -> None:
        """Reports to the size controller how a batch, or a part of one, went."""
        model.sizes.observe(model.size_of(batch), time)

    def attempt(self, name: Any, model: Any, batch: AnyBatch) -> list[Any] | Caught:
        """Predictions for a batch, or its exception, which keeps its traceback if it may have to be raised again."""
        try:
            if self._watch is not None:
                self._watch.operation(Stage.INFERENCE, None, 0)
            predictions, event, seconds = self._worker.run(name, model, batch.elements)
        except BaseException as error:
            if catches(self.spec, error, name):
                return Caught.of(error)
            if not isinstance(error, Exception) or isinstance(error, DeviceLostError):
                raise
            return Caught.of(error) if batch.total > 1 and is_out_of_memory(error) else Caught(error, [])
        if batch.useful:
            event = replace(event, useful=batch.useful, padded=batch.weight)
        if self.session.events:
            self.report_load()
        self._observer.on_event(event)
        self.learn(self.session.models[name], batch, seconds)
        return predictions

    def settle(self, name: Any, batch: AnyBatch, answer: list[Any] | Caught, tries: int) -> list[Outcome]:
        """The outcomes of a batch's predictions; or its failures, after ``tries`` calls."""
        if not isinstance(answer, Caught):
            if self.session.predictions is not None and isinstance(batch, Batch):
                self.session.predictions.keep(batch.cache_keys, answer)
            if self._plan.postprocess or isinstance(answer, SomeSkipped) or self._plan.prebatched:
                return self._hand_out(name, batch, answer)
            return [Predictions(batch.tags, answer)]
        fail = partial(self.fail, model=name, attempts=tries)
        pairs = zip(batch.elements, batch.tags, strict=True)
        return [fail(tag, Stage.INFERENCE, 0, element, answer) for element, tag in pairs]

    def report_failed_batch(self, name: Any, size: int, error: BaseException) -> None:
        """Reports a call that failed."""
        self._observer.on_event(BatchFailed(self.session.models[name].label, size, error))

    def wait(self, seconds: float) -> None:
        """Sleeps before a retry; announces it all the while, so that the host is not taken to hang."""
        sleep = sleep_of(self.spec.clock)
        while self._watch is not None and seconds > _LONGEST_SLEEP_SECS:
            self._watch.waiting()
            sleep(_LONGEST_SLEEP_SECS)
            seconds -= _LONGEST_SLEEP_SECS
        sleep(seconds)

    def _recovered(self, name: Any, batch: AnyBatch, model: Any, failure: Caught) -> list[Outcome]:
        """The outcomes of all elements of a batch whose call failed; raises what the session does not catch."""
        shared, spec = self.session.models[name], self.spec

        def part(positions: Sequence[int]) -> AnyBatch:
            return batch.pick(positions)[0]

        def note(positions: Sequence[int], error: BaseException, action: Action, is_searching: bool) -> None:
            if action is Action.AGAIN:  # events may outlive the traceback, which holds the model
                self.report(BatchRetried(shared.label, len(positions), Caught.of(error).error))
            elif action is Action.RAISE or not is_searching:  # a search makes attempts, not batches of their own
                self.report_failed_batch(name, len(positions), error)
                if action is Action.IN_PARTS:
                    self.learn(shared, part(positions), Untimed.OUT_OF_MEMORY)

        recovery: Recovery[list[Any]] = Recovery(
            lambda positions: self.attempt(name, model, part(positions)),
            RetryBudget(spec.retry, spec.clock.time_ns, self.wait),
            shared.breaker,
            caught=spec.caught,
            billed=name in spec.plan.remote,
            note=note,
            parts=model.parts if isinstance(model, ModelProxy) else lambda count: count,
            too_large=lambda positions: self.learn(shared, part(positions), Untimed.OVERRAN),
        )
        results = recovery.results(batch.total, failure)
        return [one for each in results for one in self.settle(name, part(each.positions), each.answer, each.tries)]
