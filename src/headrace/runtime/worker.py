"""One thread's worker: its own copy of the handlers, over the models that all threads share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from headrace.batching.batcher import footprint
from headrace.batching.columnar import rows_in, run_columns
from headrace.core.answer import (
    mark_skips,
    predictions_of,
    signed,
    wrong_count,
)
from headrace.core.events import BatchCompleted, Observer
from headrace.core.keyed import NO_PAIRS, not_pairs, with_keys
from headrace.core.model_cache import Slot
from headrace.core.request_context import RequestState, current_request
from headrace.failures.retry import is_retryable
from headrace.runtime.background import BackgroundExecutor, BackgroundThread
from headrace.runtime.bundle import AnyBundle, Bundle, Executor, InlineExecutor
from headrace.runtime.fallback import BypassExecutor, FallbackBundle, WithoutFailures
from headrace.runtime.model_source import Loaded, ModelProxy, Path
from headrace.runtime.operations import catches, check_device
from headrace.runtime.plan import ONLY, Plan
from headrace.runtime.request_executor import RequestExecutor, RoutedExecutor
from headrace.runtime.session import InferenceSession, close_session, open_session
from headrace.runtime.spec import SessionSpec
from headrace.runtime.steps import Steps

_LOGGER = logging.getLogger(__name__)


class AnyWorker(ABC):
    """One thread's part of a session. Opening it prepares the models that its bundles need at once."""

    def __init__(self, spec: SessionSpec, metrics_namespace: str | None = None) -> None:
        self.spec = spec
        self.plan: Plan = spec.plan
        self.namespace: str = metrics_namespace or self.plan.handler.get_metrics_namespace()
        self.handler_reports: bool = self.plan.handler.override_metrics(self.namespace)
        self.session: InferenceSession = open_session(spec)
        self.fallbacks: list[AnyWorker] = []
        """Have the models for elements that this one's cannot do, in order; closed together with this one."""
        try:
            self._load_first()
        except BaseException:
            self.close()
            raise

    def close(self, *, linger: bool = False) -> None:
        """Releases the models; with ``linger``, only once another transform opens a session."""
        close_session(self.session, linger=linger)
        for fallback in self.fallbacks:
            fallback.close(linger=linger and not fallback.spec.shared)

    @abstractmethod
    def ready(self) -> None:
        """Waits until the only model, if there is one, is loaded; bundles do that before their first batch."""

    @abstractmethod
    def load(self, name: Any) -> None:
        """Loads the named model."""

    @abstractmethod
    def names_in_use(self) -> set[Any]:
        """The names of models that were loaded and not evicted."""

    @abstractmethod
    def bundle(self, observer: Observer) -> AnyBundle:
        """A new bundle; ``observer`` receives its events.

        Raises:
            DeviceLostError: this process has lost the device of its models.
        """

    def _bundle(self, observer: Observer, make_executor: Callable[[Observer], Executor]) -> AnyBundle:
        """A bundle of preprocessed elements; what its models cannot do goes to the fallbacks, if there are any."""
        if not self.plan.has_fallback:
            return Bundle(self.spec, self.session, make_executor(observer), observer)
        failures_left_out = WithoutFailures(observer)
        executor = BypassExecutor(make_executor(failures_left_out), self.spec, self.session, failures_left_out)
        bundle: AnyBundle = Bundle(self.spec, self.session, executor, failures_left_out)
        for fallback in self.fallbacks:
            if not fallback.plan.has_fallback:
                bundle = FallbackBundle(bundle, fallback.bundle(observer), self.spec, fallback.plan)
            else:  # its own functions are part of inference
                other = fallback.bundle(WithoutFailures(observer, of_any_stage=True))
                bundle = FallbackBundle(bundle, other, self.spec, fallback.plan, observer)
        return bundle

    @abstractmethod
    def _load_first(self) -> None:
        """Prepares the models."""

    def _load_only(self, load: Callable[[Any], object]) -> None:
        """Loads the only model, if there is one. A transient error that the session catches fails batches instead."""
        try:
            if not self.plan.routed:
                load(ONLY)
        except self.spec.caught as error:
            if not is_retryable(error, self.spec.retry):
                raise  # the pipeline is wrong, not its elements


class Worker(AnyWorker):
    """Calls models for one thread; handlers may keep state on themselves, as in Beam.

    Opening it loads the only model, unless another thread already has; keyed models load on demand. If the only model
    cannot be loaded for a transient reason that the session catches, batches fail with it until it can.
    """

    _requests: RequestExecutor | None = None
    _background: BackgroundThread

    def bundle(self, observer: Observer) -> AnyBundle:
        """A new bundle that runs in this process; ``observer`` receives its events."""
        check_device(self.spec)
        self._background.clear()
        return self._bundle(observer, self._executor)

    def _executor(self, observer: Observer) -> Executor:
        concurrent = self.plan.concurrent
        self._abandon_requests()
        self._requests = RequestExecutor(self, observer, self._throttled_secs) if concurrent else None
        if self._requests is not None and len(concurrent) == len(self.plan.models):
            return self._requests
        overlaps = self.plan.batching.overlap
        executor: Executor = (
            BackgroundExecutor(self, self._background, observer) if overlaps else InlineExecutor(Steps(self, observer))
        )
        return executor if self._requests is None else RoutedExecutor(self._requests, concurrent, executor)

    def ready(self) -> None:
        """Returns at once: opening it has loaded the model."""

    def load(self, name: Any) -> None:
        """Loads the named model if it is not in memory."""
        check_device(self.spec)
        try:
            self.borrow(name).release()
        except Exception as error:
            catches(self.spec, error, name)
            raise

    def names_in_use(self) -> set[Any]:
        """The names of the models in memory."""
        return {name for name in self.plan.models if self.session.loaded_model(name) is not None}

    def close(self, *, linger: bool = False) -> None:
        """Stops the background thread, cancels requests and releases the models."""
        self._background.close()
        self._abandon_requests()
        super().close(linger=linger)

    def _abandon_requests(self) -> None:
        if self._requests is not None:
            self._requests.abandon()

    def _load_first(self) -> None:
        self._copied: dict[Any, dict[Path, dict[str, Any]]] = {}
        self._borrowers: dict[Any, Callable[[], Slot]] = {}
        self._bytes_are_counted = True
        self._signs = self.plan.is_one_of_several
        self._usage_sinks = (self.session.record_usage,)
        self._background = BackgroundThread(self)
        self._throttled_secs: dict[str, float] = {}
        self.computed = 0.0
        self._load_only(self.load)

    def borrow(self, name: Any) -> Slot:
        """The named model as a ``Loaded``, which stays in memory until it is released."""
        borrow = self._borrowers.get(name)
        if borrow is None:
            borrow = self._borrowers[name] = self.session.borrower(name, self.plan.models[name])
        held = borrow()
        loaded: Loaded = held.model
        if self._copied.get(name) is not loaded.changes:
            try:
                loaded.copy_changes(self.plan.models[name], self.spec.transform)
            except BaseException:
                held.release()
                raise
            self._copied[name] = loaded.changes
        return held

    def run(self, name: Any, model: Any, elements: Sequence[Any]) -> tuple[list[Any], BatchCompleted, float]:
        """Calls the model once.

        Returns:
            The predictions, paired with their keys if elements have keys (a ``SomeSkipped`` if some are ``SKIP``, which
            stay unpaired); the event; and the seconds to report to the size controller.

        Raises:
            PredictionCountError: the handler returned no list of predictions, or too few or too many (not checked if
                elements are batches).
        """
        source = self.session.source
        if source is not None and source.thread_budget is not None:
            source.thread_budget.keep()
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
        predictions, event = self.completed(name, elements, keys, predictions, seconds)
        return predictions, event, learnt

    def completed(
        self, name: Any, elements: Sequence[Any], keys: Sequence[Any] | None, predictions: list[Any], seconds: float
    ) -> tuple[list[Any], BatchCompleted]:
        """The predictions of a call, with keys if elements have some, skips marked; and the event."""
        if self._signs:
            predictions = signed(predictions, self.plan.answerer(name))
        predictions = mark_skips(predictions)
        if keys is not None:
            predictions = with_keys(keys, predictions)
        batch = elements[0] if self.plan.prebatched else elements
        count = len(batch) if hasattr(batch, "__len__") else len(predictions)
        if self.plan.batching.columnar:
            count = sum(map(rows_in, elements))
        return predictions, BatchCompleted(self.session.models[name].label, count, self._bytes(batch), seconds)

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
