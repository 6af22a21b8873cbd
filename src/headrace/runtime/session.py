"""One transform's models in one process, shared by the process's threads, with what has been learnt about them."""

from __future__ import annotations

import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from headrace.batching.resident_models import ResidentModels
from headrace.batching.size import FixedSize, SizeController, size_controller
from headrace.core.clock import sleep_of
from headrace.core.errors import ModelMemoryError
from headrace.core.events import Event, ModelLoaded
from headrace.failures.breaker import CircuitBreaker
from headrace.failures.device import device_loss
from headrace.failures.load_backoff import LoadBackoff
from headrace.failures.retry import RetryBudget
from headrace.models.cache import ModelCache, close_cache, open_cache
from headrace.models.memory import resident_bytes
from headrace.models.memory_budget import MemoryBudget
from headrace.runtime.cross_bundle import CrossBundleBatching
from headrace.runtime.model_files import bytes_of_model_files
from headrace.runtime.spec import SessionSpec

if TYPE_CHECKING:
    from headrace.hosts.thread_budget import ThreadBudget

_LOGGER = logging.getLogger(__name__)

Path = tuple[str, ...]
"""Names of attributes, one within the other."""

_DEEPEST = 3


class Loaded(NamedTuple):
    """A model, and what loading it changed in its handler: the handlers of other threads need the same changes."""

    model: Any
    transform: str
    """Whose handler loaded it; another transform's handler may be quite another one."""
    changes: dict[Path, dict[str, Any]]
    """Attributes that were set, of the handler and of handlers within it."""
    lease: Any = None
    """What has the machine keep the model, for as long as this is not forgotten."""


class ModelSource(ABC):
    """Where a session's models come from, if this process need not load them itself.

    Attributes:
        thread_budget: what keeps this process's threads within its share of the cores, where there is need for it.
    """

    thread_budget: ThreadBudget | None = None

    @abstractmethod
    def load(self, name: Any, fresh_secs: float = 0.0) -> Loaded | None:
        """The model of that name; None: this process loads it itself.

        Args:
            name: of the model.
            fresh_secs: if it could not be loaded for another process, and that is no longer ago, then not for this one.

        Raises:
            Exception: it cannot be loaded.
        """

    @abstractmethod
    def close(self) -> None:
        """The session has ended."""


class ModelProxy(ABC):
    """Stands for a model that lives in another process; called in the handler's place."""

    @abstractmethod
    def run(self, examples: Sequence[Any]) -> Iterable[Any]:
        """Predictions for examples without their keys.

        Raises:
            Exception: what the handler raises there, or what became of the process.
        """

    @abstractmethod
    def parts(self, count: int) -> int:
        """Into how many parts a batch of so many elements is cut that took too long; see ``parts_after_timeout``."""


class Sizes(dict[Any, SizeController]):
    """What this process has learnt about the sizes of a transform's batches, by the names of the models."""


_sizes: WeakValueDictionary[str, Sizes] = WeakValueDictionary()
"""By transform."""
_sizes_lock = threading.Lock()


def sizes_of(spec: SessionSpec) -> Sizes:
    """Those of the spec's transform, shared by all who ask while one of them keeps them; they hold no model."""
    with _sizes_lock:
        sizes = _sizes.setdefault(spec.transform, Sizes())
        for name in spec.plan.models:
            if name not in sizes:
                sizes[name] = size_controller(spec.plan.batching_of(name), spec.timeout_secs)
        return sizes


class InferenceSession:
    """Shared by the threads that run one transform in this process; safe to use from all of them.

    Args:
        spec: says what is to be run.
    """

    def __init__(self, spec: SessionSpec) -> None:
        plan = spec.plan
        if not spec.isolated:
            plan.handler.set_environment_vars()
        self.spec = spec
        self.sizes: dict[Any, SizeController] = sizes_of(spec)
        as_they_come = dict.fromkeys(plan.models, FixedSize(sys.maxsize))
        self.queue_sizes: Mapping[Any, SizeController] = as_they_come if spec.gathered else self.sizes
        """When a batch leaves its queue."""
        self.resident = ResidentModels(plan.model_limit)
        """Which models are in memory."""
        shares = plan.may_wait and not spec.gathered
        self.cross_bundle = (
            CrossBundleBatching(plan.batching, self.sizes, spec.clock, own=plan.own_batching) if shares else None
        )
        """What bundles that are open side by side have in common, if they wait for each other."""
        self.breakers = {name: CircuitBreaker() for name in plan.models}
        self._loads = {name: LoadBackoff(spec.clock.time_ns) for name in plan.models}
        room = MemoryBudget() if plan.routed and not spec.shared else None  # shared ones are the manager's to admit
        self._names = [plan.stored(name) for name in plan.models]
        self._store: ModelCache = open_cache(spec.store, plan.model_limit, self._names, room)
        self._news: deque[Event] = deque()
        self._lock = threading.Lock()
        self._shared: Any = None

    def model(self, name: Any, handler: Any) -> AbstractContextManager[Loaded]:
        """The model of that name, held in memory while the context is open; ``handler`` loads it if need be."""
        stored = self.spec.plan.stored(name)
        return self._store.use(stored, lambda: self._load(name, handler), lambda: bytes_of_model_files(handler))

    def keep_thread_budget(self) -> None:
        """To be called before a thread of this process computes: keeps it within its share of the cores."""
        budget = self._shared.thread_budget if isinstance(self._shared, ModelSource) else None
        if budget is not None:
            budget.keep()

    def held(self, name: Any) -> Loaded | None:
        """The model of that name, if it is here."""
        loaded: Loaded | None = self._store.get(self.spec.plan.stored(name))
        return loaded

    def shared(self, make: Callable[[], Any]) -> Any:
        """What the session's workers share beside models of this process; the first one makes it."""
        with self._lock:
            if self._shared is None:
                self._shared = make()
            return self._shared

    def tell(self, events: Iterable[Event]) -> None:
        """Keeps events, which happened outside any bundle, for whoever asks for news."""
        self._news.extend(events)

    def news(self) -> Iterator[Event]:
        """What happened outside any bundle or in another thread, each event once."""
        while self._news:
            try:
                yield self._news.popleft()
            except IndexError:  # another thread was faster
                return

    def close(self) -> None:
        """Lets go of the models."""
        close_cache(self.spec.store, self._names)
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def _load(self, name: Any, handler: Any) -> Loaded:
        """Loads it, unless that has just failed with an error that batches are to get."""
        record, clock = self._loads[name], self.spec.clock
        if (standing := record.standing_error()) is not None:
            raise standing
        started = clock.time_ns()
        try:
            loaded = self._load_from_source(name, record.fresh_secs) or self._load_here(name, handler)
        except self.spec.caught as error:  # what is not caught ends the bundle, which may well be repeated at once
            record.raised(error, (clock.time_ns() - started) / 1e9)
            raise
        record.loaded()
        return loaded

    def _load_from_source(self, name: Any, fresh_secs: float) -> Loaded | None:
        """Where there is one, and the model does not load here; models that this process could do without make room."""
        while isinstance(self._shared, ModelSource):
            try:
                return self._shared.load(name, fresh_secs)
            except ModelMemoryError:
                if not self._store.drop_idle():
                    raise
        return None

    def _load_here(self, name: Any, handler: Any) -> Loaded:
        attributes = {path: dict(vars(one)) for path, one in handlers_within(handler)}
        if self._store.is_short:
            self.resident.limit_to(len(self._store))
        before, started = resident_bytes(), self.spec.clock.time_ns()
        model = self._loaded(handler)
        seconds = (self.spec.clock.time_ns() - started) / 1e9
        growth = max(0, resident_bytes() - before)
        self._news.append(ModelLoaded(self.spec.plan.label(name), seconds, growth))
        changes = {path: _set_since(attributes.get(path, {}), vars(one)) for path, one in handlers_within(handler)}
        return Loaded(model, self.spec.transform, changes)

    def _loaded(self, handler: Any) -> Any:
        """The model; what fails for a passing reason is tried again."""
        clock = self.spec.clock
        budget = RetryBudget(self.spec.retry, clock.time_ns, sleep_of(clock))
        failed = 0
        while True:
            try:
                return handler.load_model()
            except Exception as error:
                failed += 1
                if device_loss(error) or not budget.allows_retry(error, failed):
                    raise
                _LOGGER.warning("%s: loading failed and is tried again.", self.spec.plan.name, exc_info=True)


def handlers_within(handler: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """A handler, and the handlers that it keeps in its attributes, each with the way to it."""
    yield path, handler
    for name, value in list(vars(handler).items()):
        if _is_handler(value) and hasattr(value, "__dict__") and len(path) < _DEEPEST:
            yield from handlers_within(value, (*path, name))


def _is_handler(value: Any) -> bool:
    """Whether it may be one; a class with ``load_model`` is none (XGBoost's models have that method)."""
    return hasattr(value, "load_model") and not isinstance(value, type)


def _set_since(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    missing = object()
    changed = {name: value for name, value in now.items() if before.get(name, missing) is not value}
    return {name: value for name, value in changed.items() if not _is_handler(value)}


class _Sessions:
    """The process's sessions, one for each transform, and while a model is refreshed one for each version of it.

    One that is closed to linger stays until a session of another transform is opened: an engine closes and reopens
    workers between bundles, and a model must not be loaded again for that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[InferenceSession, int]] = {}
        self._lingering: InferenceSession | None = None

    def open(self, spec: SessionSpec) -> InferenceSession:
        with self._lock:
            found = self._open.get(spec.identity)
            session, users = found or (self._resume(spec) or InferenceSession(spec), 0)
            self._open[spec.identity] = (session, users + 1)
            return session

    def close(self, session: InferenceSession, *, linger: bool) -> None:
        with self._lock:
            _, users = self._open.pop(session.spec.identity)
            if users > 1:
                self._open[session.spec.identity] = (session, users - 1)
            elif linger:
                self._end_lingering()
                self._lingering = session
            else:
                session.close()

    def _resume(self, spec: SessionSpec) -> InferenceSession | None:
        session = self._lingering
        if session is None or session.spec.transform != spec.transform:
            self._end_lingering()
            return None
        if session.spec.identity != spec.identity:
            return None
        self._lingering = None
        return session

    def _end_lingering(self) -> None:
        if self._lingering is not None:
            self._lingering.close()
            self._lingering = None


_SESSIONS = _Sessions()


def open_session(spec: SessionSpec) -> InferenceSession:
    """The process's session for a transform; to be closed as often as opened."""
    return _SESSIONS.open(spec)


def close_session(session: InferenceSession, *, linger: bool = False) -> None:
    """Ends one use of a session.

    Args:
        session: from ``open_session``.
        linger: whether the models may stay until another transform's session is opened.
    """
    _SESSIONS.close(session, linger=linger)
