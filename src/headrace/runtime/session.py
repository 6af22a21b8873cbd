"""One transform's models in one process, shared by the process's threads."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from headrace.batching.size import size_controller
from headrace.core.clock import Clock
from headrace.core.errors import PredictionCountError
from headrace.core.events import BatchCompleted, Event, ModelLoaded
from headrace.failures.breaker import CircuitBreaker
from headrace.hosting.memory import FrozenHeap, process_bytes
from headrace.hosting.process import ModelStore, close_store, open_store
from headrace.runtime.plan import ONLY, Plan

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionSpec:
    """All that a worker needs to know; pickled to it."""

    plan: Plan
    transform: str
    """Unique to the transform: its bundles in one process share a session."""
    model_identifier: str
    """Transforms with the same identifier share models."""
    clock: Clock
    inference_args: dict[str, Any] | None = None
    caught: type[Exception] | tuple[type[Exception], ...] = ()
    """Which exceptions become failures; others are raised."""


class InferenceSession:
    """The models of one transform, with what has been learnt about them; safe to use from several threads."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self.plan = spec.plan
        self.plan.handler.set_environment_vars()
        self.sizes = {name: size_controller(self.plan.batching) for name in self.plan.models}
        self.breakers = {name: CircuitBreaker() for name in self.plan.models}
        self._store: ModelStore = open_store(spec.model_identifier, self.plan.model_limit)
        self._news: deque[Event] = deque()
        self._uncounted_bytes = False

    def load(self) -> None:
        """Loads the model now, where there is only one; models by key load when they are needed."""
        if not self.plan.routed:
            with self.model(ONLY):
                pass

    def model(self, name: Any) -> AbstractContextManager[Any]:
        """The model of that name, held in memory while the context is open."""
        return self._store.use(name, lambda: self._load(name))

    def run(self, name: Any, model: Any, examples: Sequence[Any]) -> tuple[list[Any], BatchCompleted]:
        """One call of the model.

        Raises:
            PredictionCountError: too few or too many predictions (never where elements are batches themselves).
            Exception: whatever the handler raises, in its call or in its lazy result.
        """
        handler = self.plan.models[name]
        started = self.spec.clock.time_ns()
        answer = handler.run_inference(examples, model, self.spec.inference_args)
        if answer is None:
            raise PredictionCountError(handler, len(examples), None)
        predictions = list(answer)
        seconds = (self.spec.clock.time_ns() - started) / 1e9
        if len(predictions) != len(examples) and not self.plan.prebatched:
            raise PredictionCountError(handler, len(examples), len(predictions))
        return predictions, BatchCompleted(self.label(name), len(predictions), self._bytes(handler, examples), seconds)

    def label(self, name: Any) -> str:
        """A model's name in metrics: empty where there is only one."""
        return str(name) if self.plan.routed else ""

    def news(self) -> Iterator[Event]:
        """What happened outside any bundle or in another thread, each event once."""
        while self._news:
            try:
                yield self._news.popleft()
            except IndexError:  # another thread was faster
                return

    def close(self) -> None:
        """Lets go of the models."""
        close_store(self.spec.model_identifier)

    def _load(self, name: Any) -> Any:
        before, started = process_bytes(), self.spec.clock.time_ns()
        model = self.plan.models[name].load_model()
        seconds = (self.spec.clock.time_ns() - started) / 1e9
        growth = max(0, process_bytes() - before)
        self._news.append(ModelLoaded(self.label(name), seconds, growth))
        return model

    def _bytes(self, handler: Any, examples: Sequence[Any]) -> int:
        """What the handler counts; a metric that cannot be had must not fail a batch."""
        try:
            return int(handler.get_num_bytes(examples))
        except Exception:
            if not self._uncounted_bytes:
                self._uncounted_bytes = True
                _LOGGER.warning(
                    "%s.get_num_bytes failed; bytes are not counted.", type(handler).__qualname__, exc_info=True
                )
            return 0


class _Sessions:
    """The process's sessions, one for each transform, each kept while somebody has it open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[InferenceSession, int]] = {}
        self._heap = FrozenHeap()

    def open(self, spec: SessionSpec) -> InferenceSession:
        with self._lock:
            if not self._open:
                self._heap.hold()  # before any model loads: models come and go
            session, users = self._open.get(spec.transform) or (InferenceSession(spec), 0)
            self._open[spec.transform] = (session, users + 1)
        try:
            session.load()
        except BaseException:
            self.close(session)
            raise
        return session

    def close(self, session: InferenceSession) -> None:
        with self._lock:
            _, users = self._open.pop(session.spec.transform)
            if users > 1:
                self._open[session.spec.transform] = (session, users - 1)
            else:
                session.close()
            if not self._open:
                self._heap.release()


_SESSIONS = _Sessions()


def open_session(spec: SessionSpec) -> InferenceSession:
    """The process's session for a transform, its model loaded; to be closed as often as opened."""
    return _SESSIONS.open(spec)


def close_session(session: InferenceSession) -> None:
    """Ends one use of a session."""
    _SESSIONS.close(session)
