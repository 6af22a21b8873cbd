"""One thread's own copy of the handlers, beside the models that all threads share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.batching.columnar import joined, owned, rows_in, split
from headrace.batching.footprint import footprint
from headrace.core.answer import (
    SomeSkipped,
    no_columns,
    no_skips,
    predictions_of,
    with_skips_told,
    wrong_count,
)
from headrace.core.events import BatchCompleted, Observer
from headrace.core.keyed import NO_PAIRS, not_pairs, with_keys
from headrace.core.result import PredictionResult
from headrace.failures.retry import may_pass
from headrace.runtime.background import BackgroundExecutor
from headrace.runtime.bundle import AnyBundle, Bundle
from headrace.runtime.cross_bundle import BundleSlot
from headrace.runtime.devices import check_device, on_device
from headrace.runtime.plan import ONLY, Plan
from headrace.runtime.session import (
    InferenceSession,
    Loaded,
    ModelProxy,
    Path,
    close_session,
    handlers_within,
    open_session,
)
from headrace.runtime.spec import SessionSpec

_LOGGER = logging.getLogger(__name__)


class AnyWorker(ABC):
    """One thread's part in a session; opening it makes the models ready that the bundles will need at once.

    Args:
        spec: this thread's own copy, its handlers included.
        metrics_namespace: None: the handler's own.
    """

    def __init__(self, spec: SessionSpec, metrics_namespace: str | None = None) -> None:
        self.spec = spec
        self.plan: Plan = spec.plan
        self.namespace: str = metrics_namespace or self.plan.handler.get_metrics_namespace()
        self.handler_reports: bool = self.plan.handler.override_metrics(self.namespace)
        """Whether the handler reports metrics itself."""
        self.session: InferenceSession = open_session(spec)
        self._slot: BundleSlot | None = None
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def close(self, *, linger: bool = False) -> None:
        """Lets go of the models; with ``linger``, when another transform comes."""
        self._leave()
        close_session(self.session, linger=linger)

    @abstractmethod
    def load(self, name: Any) -> None:
        """Has the model of that name loaded.

        Raises:
            Exception: it cannot be.
        """

    @abstractmethod
    def names_in_use(self) -> set[Any]:
        """The names of the models that have been loaded, and not been forgotten."""

    @abstractmethod
    def bundle(self, observer: Observer) -> AnyBundle:
        """A new bundle; it tells ``observer`` what happens.

        Raises:
            DeviceLostError: this process has lost the device of its models.
        """

    def _join(self) -> BundleSlot | None:
        """For a new bundle: what it has to do with those of other threads, if anything. The last one is given up."""
        self._leave()
        self._slot = self.session.cross_bundle.join() if self.session.cross_bundle else None
        return self._slot

    def _leave(self) -> None:
        if self._slot is not None:
            self._slot.leave()

    @abstractmethod
    def _begin(self) -> None:
        """Makes the models ready."""


class Worker(AnyWorker):
    """Calls models for one thread; handlers may keep what they like on themselves, as they may with Beam.

    Opening one loads the model, where there is only one, or joins the threads that already have it; models by key load
    when they are needed. Where the only one cannot be loaded for a passing reason that is caught, the batches will get
    that until it can.
    """

    def bundle(self, observer: Observer) -> Bundle:
        """A new bundle, which runs here and tells ``observer`` what happens."""
        check_device(self.spec)
        self._background.clear()
        return Bundle(self, observer, self._join(), self._background if self.plan.batching.overlap else None)

    def load(self, name: Any) -> None:
        """See ``AnyWorker``."""
        with on_device(self.spec, name), self.model(name):
            pass

    def names_in_use(self) -> set[Any]:
        """See ``AnyWorker``."""
        return {name for name in self.plan.models if self.session.held(name) is not None}

    def close(self, *, linger: bool = False) -> None:
        """Ends the second thread and lets go of the models."""
        self._background.close()
        super().close(linger=linger)

    def _begin(self) -> None:
        self._adapted: dict[Any, dict[Path, dict[str, Any]]] = {}
        self._bytes_are_counted = True
        self._background = BackgroundExecutor(self)
        self.computed = 0.0
        """Seconds within models so far."""
        if self.plan.routed:
            return
        try:
            self.load(ONLY)
        except self.spec.caught as error:
            if not may_pass(error, self.spec.retry):
                raise  # it is the pipeline that is wrong, not its elements

    @contextmanager
    def model(self, name: Any) -> Iterator[Any]:
        """The model of that name, held in memory while the context is open."""
        handler = self.plan.models[name]
        with self.session.model(name, handler) as loaded:
            if self._adapted.get(name) is not loaded.changes:
                self._adapt(handler, loaded)
                self._adapted[name] = loaded.changes
            holder = [loaded.model]
            del loaded  # so that, once the store lets go of the model, only the caller may still hold it
            yield holder.pop()

    def _adapt(self, handler: Any, loaded: Loaded) -> None:
        """Gives a handler of this thread what loading has set on the handler that loaded."""
        if loaded.transform == self.spec.transform:
            for path, one in handlers_within(handler):
                one.__dict__.update(loaded.changes.get(path, {}))

    def run(self, name: Any, model: Any, elements: Sequence[Any]) -> tuple[list[Any], BatchCompleted, float]:
        """One call of the model.

        Returns:
            Predictions, with their keys where elements have keys (those that are ``SKIP`` without, in a
            ``SomeSkipped``); what happened; and how many seconds the choice of
            the batch size should reckon with.

        Raises:
            PredictionCountError: the answer is no list of predictions; or there are too few or too many (which nobody
                can tell where elements are batches themselves).
            Exception: whatever the handler raises, in its call or in its lazy result.
        """
        self.session.keep_thread_budget()
        handler, clock, learning_clock = self.plan.models[name], self.spec.clock, self.plan.batching.clock
        keys, examples = self._taken_apart(elements)
        began = learning_clock() if learning_clock else 0.0
        started = clock.time_ns()
        answer = self._call(handler, model, examples)
        predictions = predictions_of(answer, handler, None if self.plan.prebatched else len(elements))
        seconds = (clock.time_ns() - started) / 1e9
        self.computed += seconds
        learnt = learning_clock() - began if learning_clock else seconds
        if len(predictions) != len(elements) and not self.plan.prebatched:
            raise wrong_count(handler, len(elements), len(predictions))
        predictions = with_skips_told(predictions)
        if keys is not None:
            predictions = with_keys(keys, predictions)
        batch = elements[0] if self.plan.prebatched else elements
        count = len(batch) if hasattr(batch, "__len__") else len(predictions)
        if self.plan.batching.columnar:
            count = sum(map(rows_in, elements))
        return predictions, BatchCompleted(self.plan.label(name), count, self._bytes(batch), seconds), learnt

    def _call(self, handler: Any, model: Any, examples: Any) -> Any:
        if isinstance(model, ModelProxy):
            return model.run(examples)
        if self.plan.batching.columnar:
            return _columns_answered(handler, model, examples, self.spec.inference_args)
        return handler.run_inference(examples, model, self.spec.inference_args)

    def _taken_apart(self, elements: Sequence[Any]) -> tuple[Sequence[Any] | None, Any]:
        """Keys, if there are any, and a list of examples of its own, with which the handler may do what it likes."""
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
        """What the handler counts; a metric that cannot be had must not fail a batch."""
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


def _columns_answered(
    handler: Any, model: Any, pieces: Sequence[Any], inference_args: dict[str, Any] | None
) -> list[PredictionResult]:
    """The prediction of each piece of columnar elements, from one call of the model for all rows."""
    rows = [rows_in(piece) for piece in pieces]
    answer = handler.run_columns(joined(pieces), model, inference_args)
    predictions, model_id = (answer.inference, answer.model_id) if hasattr(answer, "inference") else (answer, None)
    who = f"{type(handler).__qualname__}.run_columns"
    try:
        found = None if isinstance(predictions, tuple) else rows_in(predictions)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise no_columns(who, sum(rows), predictions)
    if found != sum(rows):
        raise wrong_count(who, sum(rows), found)
    if _has_skips(predictions):
        raise no_skips(who)
    pairs = zip(map(owned, pieces), map(owned, split(predictions, rows)), strict=True)
    return [PredictionResult(*pair, model_id) for pair in pairs]


def _has_skips(predictions: Any) -> bool:
    """Whether an array, a list, or one of a dict of those, has ``SKIP`` in it."""
    if isinstance(predictions, Mapping):
        return any(map(_has_skips, predictions.values()))
    of_objects = isinstance(predictions, list) or getattr(getattr(predictions, "dtype", None), "hasobject", False)
    return of_objects and isinstance(with_skips_told(list(predictions)), SomeSkipped)
