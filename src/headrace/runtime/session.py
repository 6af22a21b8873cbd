"""One transform's models in one process, shared by its threads, with what was learnt about them."""

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
from headrace.core.model_cache import ModelCache
from headrace.core.registry import Registry
from headrace.failures.breaker import CircuitBreaker
from headrace.failures.device import device_loss
from headrace.failures.load_policy import LoadPolicy
from headrace.failures.retry import RetryBudget
from headrace.models.memory import resident_bytes, trim_memory
from headrace.models.memory_budget import MemoryBudget
from headrace.runtime.cross_bundle import CrossBundleBatching
from headrace.runtime.model_files import bytes_of_model_files
from headrace.runtime.spec import SessionSpec

if TYPE_CHECKING:
    from headrace.hosts.thread_budget import ThreadBudget

_LOGGER = logging.getLogger(__name__)

Path = tuple[str, ...]
"""A chain of attribute names."""

_DEEPEST = 3


class Loaded(NamedTuple):
    """A model, and what loading it changed in its handler: other threads' handlers need the same changes."""

    model: Any
    transform: str
    """The transform whose handler loaded it: the changes mean nothing to another transform's handler."""
    changes: dict[Path, dict[str, Any]]
    """Attributes that loading set, on the handler and on handlers within it."""
    lease: Any = None
    """Keeps the model in the machine's shared memory for as long as this object lives."""


class ModelSource(ABC):
    """Provides a session's models in place of loading them in this process.

    Attributes:
        thread_budget: limits this process's threads to their share of the cores; None: no limit.
    """

    thread_budget: ThreadBudget | None = None

    @abstractmethod
    def load(self, name: Any, fresh_secs: float = 0.0) -> Loaded | None:
        """The named model; None: this process has to load it.

        Args:
            name: of the model.
            fresh_secs: how long ago a failed load for another process may be for its error to be raised again here.

        Raises:
            Exception: the model cannot be loaded.
        """

    @abstractmethod
    def close(self) -> None:
        """Releases everything at the end of the session."""


class LoadedModels(ModelSource):
    """Models that are in this process already: inherited from its fork server, or mapped.

    Args:
        models: by name; emptied at the end of the session.
        thread_budget: limits the threads of this process; None: no limit.
    """

    def __init__(self, models: dict[Any, Loaded], thread_budget: ThreadBudget | None = None) -> None:
        self._models = models
        self.thread_budget = thread_budget

    def load(self, name: Any, fresh_secs: float = 0.0) -> Loaded | None:
        """The named model, if it is one of them."""
        return self._models.get(name)

    def close(self) -> None:
        """Releases the models."""
        self._models.clear()


class ModelProxy(ABC):
    """Stands in for a model in another process; called in place of the handler."""

    @abstractmethod
    def run(self, examples: Sequence[Any]) -> Iterable[Any]:
        """Predictions for examples without their keys.

        Raises:
            Exception: what the handler raised there, or what happened to the process.
        """

    @abstractmethod
    def parts(self, count: int) -> int:
        """Into how many parts to cut a batch of ``count`` elements that timed out."""


class SizeControllers(dict[Any, SizeController]):
    """What this process has learnt about a transform's batch sizes, by model name."""


_CACHES: Registry[str, ModelCache] = Registry()
"""The process's model caches, by identifier."""
_sizes: WeakValueDictionary[str, SizeControllers] = WeakValueDictionary()
"""By transform."""
_sizes_lock = threading.Lock()


def sizes_of(spec: SessionSpec) -> SizeControllers:
    """The size controllers of the spec's transform; shared, and kept for as long as any caller keeps them."""
    with _sizes_lock:
        sizes = _sizes.setdefault(spec.transform, SizeControllers())
        for name in spec.plan.models:
            if name not in sizes:
                sizes[name] = size_controller(spec.plan.batching_of(name), spec.timeout_secs)
        return sizes


class InferenceSession:
    """One transform in this process, shared by its threads; thread-safe.

    Args:
        spec: what to run.
    """

    def __init__(self, spec: SessionSpec) -> None:
        plan = spec.plan
        if not spec.isolated:
            plan.handler.set_environment_vars()
        self.spec = spec
        self.sizes: dict[Any, SizeController] = sizes_of(spec)
        as_they_come = dict.fromkeys(plan.models, FixedSize(sys.maxsize))
        self.queue_sizes: Mapping[Any, SizeController] = as_they_come if spec.gathered else self.sizes
        """Target batch sizes; unlimited for gathered elements, which wait for a full batch or the end of a bundle."""
        self.resident = ResidentModels(plan.model_limit)
        """Which models are in memory."""
        shares = plan.may_wait and not spec.gathered
        self.cross_bundle = (
            CrossBundleBatching(plan.batching, self.sizes, spec.clock, own=plan.own_batching) if shares else None
        )
        """Batching across concurrent bundles; None if bundles do not wait for each other."""
        self.breakers = {name: CircuitBreaker() for name in plan.models}
        self._loads = {name: LoadPolicy(spec.clock.time_ns) for name in plan.models}
        room = MemoryBudget() if plan.routed and not spec.shared else None  # the manager admits shared models
        self._names = [plan.cache_key(name) for name in plan.models]
        with _CACHES.lock:
            self._cache = _CACHES.open(spec.cache_name, lambda: ModelCache(plan.model_limit, room))
            self._cache.claim(self._names)
        self._queued_events: deque[Event] = deque()
        self._lock = threading.Lock()
        self._shared: Any = None

    def model(self, name: Any, handler: Any) -> AbstractContextManager[Loaded]:
        """A context that keeps the named model in memory; ``handler`` loads it if needed."""
        cache_key = self.spec.plan.cache_key(name)
        return self._cache.use(cache_key, lambda: self._load(name, handler), lambda: bytes_of_model_files(handler))

    def keep_thread_budget(self) -> None:
        """Call this before a thread computes: limits the process's threads to their share of the cores."""
        budget = self._shared.thread_budget if isinstance(self._shared, ModelSource) else None
        if budget is not None:
            budget.keep()

    def loaded_model(self, name: Any) -> Loaded | None:
        """The named model if it is in memory."""
        loaded: Loaded | None = self._cache.get(self.spec.plan.cache_key(name))
        return loaded

    def shared(self, make: Callable[[], Any]) -> Any:
        """The session's model source or hosts; the first caller's ``make`` creates it."""
        with self._lock:
            if self._shared is None:
                self._shared = make()
            return self._shared

    def queue_events(self, events: Iterable[Event]) -> None:
        """Queues events that happened outside a bundle, for the next caller of ``queued_events``."""
        self._queued_events.extend(events)

    def queued_events(self) -> Iterator[Event]:
        """Events that happened outside a bundle or in another thread, each once."""
        while self._queued_events:
            try:
                yield self._queued_events.popleft()
            except IndexError:  # another thread was faster
                return

    def close(self) -> None:
        """Releases the models."""
        with _CACHES.lock:
            _CACHES.close(self.spec.cache_name)
            self._cache.disclaim(self._names)
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def _load(self, name: Any, handler: Any) -> Loaded:
        """Loads the model, unless a recent failure is to be raised again."""
        record, clock = self._loads[name], self.spec.clock
        if (standing := record.current_error()) is not None:
            raise standing
        started = clock.time_ns()
        try:
            loaded = self._load_from_source(name, record.fresh_secs) or self._load_here(name, handler)
        except self.spec.caught as error:  # an uncaught error ends the bundle, whose retry may load at once
            record.raised(error, (clock.time_ns() - started) / 1e9)
            raise
        record.loaded()
        return loaded

    def _load_from_source(self, name: Any, fresh_secs: float) -> Loaded | None:
        """Loads from the model source, if there is one; evicts idle models of this process if memory is short."""
        while isinstance(self._shared, ModelSource):
            try:
                return self._shared.load(name, fresh_secs)
            except ModelMemoryError:
                if not self._cache.drop_idle():
                    raise
                trim_memory()  # a model in a reference cycle is freed only by the garbage collector
        return None

    def _load_here(self, name: Any, handler: Any) -> Loaded:
        attributes = {path: dict(vars(one)) for path, one in handlers_within(handler)}
        if self._cache.is_short:
            self.resident.limit_to(len(self._cache))
        before, started = resident_bytes(), self.spec.clock.time_ns()
        model = self._loaded(handler)
        seconds = (self.spec.clock.time_ns() - started) / 1e9
        growth = max(0, resident_bytes() - before)
        self._queued_events.append(ModelLoaded(self.spec.plan.label(name), seconds, growth))
        changes = {path: _set_since(attributes.get(path, {}), vars(one)) for path, one in handlers_within(handler)}
        return Loaded(model, self.spec.transform, changes)

    def _loaded(self, handler: Any) -> Any:
        """Calls ``load_model``; retries transient failures."""
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
    """The handler and, recursively, the handlers in its attributes, each with its attribute path."""
    yield path, handler
    for name, value in list(vars(handler).items()):
        if _is_handler(value) and hasattr(value, "__dict__") and len(path) < _DEEPEST:
            yield from handlers_within(value, (*path, name))


def _is_handler(value: Any) -> bool:
    """Whether it may be a handler; classes are not (XGBoost's model classes have a ``load_model`` method)."""
    return hasattr(value, "load_model") and not isinstance(value, type)


def _set_since(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    missing = object()
    changed = {name: value for name, value in now.items() if before.get(name, missing) is not value}
    return {name: value for name, value in changed.items() if not _is_handler(value)}


class _Sessions:
    """The process's sessions, by transform; during a refresh, one for each version in use.

    A session closed to linger stays until another transform opens one: some engines close and reopen workers between
    bundles, and that must not reload the model.
    """

    def __init__(self) -> None:
        self._open: Registry[str, InferenceSession] = Registry()
        self._lingering: InferenceSession | None = None

    def open(self, spec: SessionSpec) -> InferenceSession:
        return self._open.open(spec.identity, lambda: self._resume(spec) or InferenceSession(spec))

    def close(self, session: InferenceSession, *, linger: bool) -> None:
        with self._open.lock:
            if self._open.close(session.spec.identity) is None:
                return
            if linger:
                self._end_lingering()
                self._lingering = session
            else:
                session.close()

    def _resume(self, spec: SessionSpec) -> InferenceSession | None:
        session = self._lingering
        # A new transform ends the lingering one; another version of the same transform leaves it alone.
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
    """The process's session for a spec; close it once for each call."""
    return _SESSIONS.open(spec)


def close_session(session: InferenceSession, *, linger: bool = False) -> None:
    """Ends one use of a session; the last one releases it.

    Args:
        session: from ``open_session``.
        linger: whether the models may stay until another transform opens a session.
    """
    _SESSIONS.close(session, linger=linger)
