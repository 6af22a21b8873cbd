"""Runs batches in this process, and recovers those that fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any

from headrace.batching.batcher import Batch, footprint
from headrace.batching.columnar import rows_in, run_columns
from headrace.batching.size import BatchTime, Untimed
from headrace.core.answer import SKIP, SomeSkipped, mark_skips, predictions_of, with_model_id, wrong_count
from headrace.core.clock import sleep_of
from headrace.core.errors import DeviceLostError
from headrace.core.events import BatchCompleted, BatchFailed, BatchRetried, CacheUsed, Event, Observer
from headrace.core.keyed import NO_PAIRS, not_pairs, with_keys
from headrace.core.model_cache import Slot
from headrace.core.phases import Phase, during
from headrace.core.request_context import RequestState, current_request
from headrace.core.result import Caught, Outcome, Predictions, Skipped, Stage
from headrace.failures.device import is_out_of_memory
from headrace.failures.recovery import Recovery
from headrace.failures.retry import RetryBudget
from headrace.runtime.model_source import Loaded, ModelProxy, Path
from headrace.runtime.operations import OperationMarks, Operations, catches, check_device, lost_devices
from headrace.runtime.queues import AnyBatch
from headrace.runtime.session import InferenceSession, SessionModel
from headrace.runtime.spec import SessionSpec

_LOGGER = logging.getLogger(__name__)


class ModelAccess:
    """One thread's calls of its models: its own copies of the handlers, over the models that all threads share.

    Attributes:
        computed: the seconds of all calls.
        loads: how often it borrowed a model that had been loaded since, by this thread or another one.
    """

    def __init__(self, spec: SessionSpec, session: InferenceSession) -> None:
        self.spec = spec
        self.plan = spec.plan
        self.session = session
        self.computed = 0.0
        self.loads = 0
        self._copied: dict[Any, dict[Path, dict[str, Any]]] = {}
        self._borrowers: dict[Any, Callable[[], Slot]] = {}
        self._bytes_are_counted = True
        self._usage_sinks = (session.record_usage,)
        self._is_one_of_several = spec.plan.is_one_of_several

    def borrow(self, name: Any) -> Slot:
        """The named model as a ``Loaded``, which stays in memory until it is released."""
        borrow = self._borrowers.get(name)
        if borrow is None:
            borrow = self._borrowers[name] = self.session.borrower(name, self.plan.models[name])
        held = borrow()
        loaded: Loaded = held.model
        if self._copied.get(name) is not loaded.changes:
            self.loads += 1
            try:
                loaded.copy_changes(self.plan.models[name], self.spec.transform)
            except BaseException:
                held.release()
                raise
            self._copied[name] = loaded.changes
        return held

    @during(Phase.MODEL)
    def run(
        self, name: Any, model: Any, elements: Sequence[Any], where: tuple[str, int] | None = None
    ) -> tuple[list[Any], BatchCompleted, float]:
        """Calls the model once, with elements that are from ``where``.

        Returns:
            The predictions, paired with their keys if elements have keys (a ``SomeSkipped`` if some are ``SKIP``, which
            stay unpaired); the event; and the seconds to report to the size controller.

        Raises:
            PredictionCountError: the handler returned no list of predictions, or too few or too many (not checked if
                elements are batches).
        """
        if self.session.thread_budget is not None:
            self.session.thread_budget.keep()
        handler, clock, learning_clock = self.plan.models[name], self.spec.clock, self.plan.batching.clock
        is_plain = not (self.plan.keyed or self.plan.prebatched)
        keys, examples = (None, list(elements)) if is_plain else self.split_keys(elements)
        began = learning_clock() if learning_clock else 0.0
        started = clock.time_ns()
        token = current_request.set(RequestState(self._usage_sinks))
        try:
            if isinstance(model, ModelProxy):
                answer: Any = model.run(examples)
            elif self.plan.batching.columnar:
                answer = run_columns(handler, model, examples, self.spec.inference_args)
            else:
                answer = handler.run_inference(examples, model, self.spec.inference_args)
            if type(answer) is not list:
                answer = predictions_of(answer, handler, None if self.plan.prebatched else len(elements))
            predictions: list[Any] = answer
        finally:
            current_request.reset(token)
        seconds = (clock.time_ns() - started) / 1e9
        self.computed += seconds
        learnt = learning_clock() - began if learning_clock else seconds
        if len(predictions) != len(elements) and not self.plan.prebatched:
            raise wrong_count(handler, len(elements), len(predictions))
        predictions, event = self.completed(name, elements, keys, predictions, seconds, where=where)
        return predictions, event, learnt

    def completed(
        self,
        name: Any,
        elements: Sequence[Any],
        keys: Sequence[Any] | None,
        predictions: list[Any],
        seconds: float,
        *,
        where: tuple[str, int] | None,
    ) -> tuple[list[Any], BatchCompleted]:
        """The predictions of a call, with keys if elements have some, skips marked; and the event."""
        if self._is_one_of_several:
            predictions = with_model_id(predictions, self.plan.answerer(name))
        predictions = mark_skips(predictions)
        if keys is not None:
            predictions = with_keys(keys, predictions)
        batch = elements[0] if self.plan.prebatched else elements
        count = len(batch) if hasattr(batch, "__len__") else len(predictions)
        if self.plan.batching.columnar:
            count = sum(map(rows_in, elements))
        label = self.session.models[name].label
        return predictions, BatchCompleted(label, count, self._bytes(batch), seconds, where=where)

    def split_keys(self, elements: Sequence[Any]) -> tuple[Sequence[Any] | None, Any]:
        """The keys, if any, and a new list of examples, which the handler may modify."""
        if self.plan.prebatched:
            return None, elements[0]
        if not self.plan.keyed:
            return None, list(elements)
        try:
            keys, examples = zip(*elements, strict=True)
        except (TypeError, ValueError):
            raise not_pairs(elements) from None
        if not NO_PAIRS.isdisjoint(map(type, elements)):
            raise not_pairs(elements)
        return keys, list(examples)

    def _bytes(self, batch: Any) -> int:
        """The handler's count of bytes; if it raises, 0: a metric must not fail a batch."""
        if self.plan.batching.columnar:
            return int(footprint(batch))
        try:
            return int(self.plan.handler.get_num_bytes(batch))
        except Exception:
            if self._bytes_are_counted:
                self._bytes_are_counted = False
                name = type(self.plan.handler).__qualname__
                _LOGGER.warning("%s.get_num_bytes failed; bytes are not counted.", name, exc_info=True)
            return 0


class Steps(Operations):
    """Runs batches through inference and postprocessing, and recovers failed batches; used by one thread."""

    def __init__(self, access: ModelAccess, observer: Observer, marks: OperationMarks | None = None) -> None:
        super().__init__(access.spec, observer, marks)
        self.session = access.session
        self._access = access

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
                self.session.report_events(self._observer)
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
            if self._marks is not None:
                self._marks.loading()
            return self._access.borrow(name)
        except BaseException as error:
            self.session.report_events(self._observer)
            if not catches(self.spec, error, name):
                raise
            self.report_failed_batch(name, batch.total, error)
            self.session.models[name].breaker.record(succeeded=False)
            return self.settle(name, batch, Caught.of(error), 1)

    def learn(self, model: SessionModel, batch: AnyBatch, time: BatchTime) -> None:
        """Reports to the size controller how a batch, or a part of one, went."""
        model.sizes.observe(model.size_of(batch), time)

    def attempt(self, name: Any, model: Any, batch: AnyBatch) -> list[Any] | Caught:
        """Predictions for a batch, or its exception, which keeps its traceback if it may have to be raised again."""
        try:
            if self._marks is not None:
                self._marks.operation(Stage.INFERENCE, None, 0)
            where = getattr(batch.tags[0], "where", None) if batch.tags else None
            predictions, event, seconds = self._access.run(name, model, batch.elements, where)
        except BaseException as error:
            is_caught = catches(self.spec, error, name)
            is_too_large = batch.total > 1 and is_out_of_memory(error)
            if is_too_large:
                self.learn(self.session.models[name], batch, Untimed.OUT_OF_MEMORY)
            if is_caught or is_too_large:
                return Caught.of(error)
            if not isinstance(error, Exception) or isinstance(error, DeviceLostError):
                raise
            return Caught(error, [])
        if batch.useful:
            event = replace(event, useful=batch.useful, padded=batch.weight)
        if self.session.events:
            self.session.report_events(self._observer)
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
        """Sleeps before a retry."""
        with nullcontext() if self._marks is None else self._marks.waiting():
            sleep_of(self.spec.clock)(seconds)

    def _recovered(self, name: Any, batch: AnyBatch, model: Any, failure: Caught) -> list[Outcome]:
        """The outcomes of all elements of a batch whose call failed; raises what the session does not catch."""
        shared, spec = self.session.models[name], self.spec

        def part(positions: Sequence[int]) -> AnyBatch:
            return batch.pick(positions)[0]

        def report_retry(positions: Sequence[int], error: BaseException) -> None:
            # Events may outlive the traceback, which holds the model.
            self.report(BatchRetried(shared.label, len(positions), Caught.of(error).error))

        recovery: Recovery[list[Any]] = Recovery(
            lambda positions: self.attempt(name, model, part(positions)),
            RetryBudget(spec.retry, spec.clock.time_ns, self.wait),
            shared.breaker,
            caught=spec.caught,
            billed=name in spec.plan.remote,
            on_retry=report_retry,
            on_failure=lambda positions, error: self.report_failed_batch(name, len(positions), error),
            too_large=lambda positions: self.learn(shared, part(positions), Untimed.OVERRAN),
        )
        results = recovery.results(batch.total, failure)
        return [one for each in results for one in self.settle(name, part(each.positions), each.answer, each.tries)]
