"""One transform's models in one process, shared by its threads, with what was learnt about them."""

from __future__ import annotations

import logging
import math
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from headrace.batching.batcher import Batch
from headrace.batching.columnar import ColumnarBatch
from headrace.batching.size import SizeController, size_controller
from headrace.core.clock import sleep_of
from headrace.core.errors import ModelMemoryError
from headrace.core.events import Event, ModelLoaded, Observer, UsageReported
from headrace.core.model_cache import ModelCache, ResidentModels, Slot
from headrace.core.phases import Phase, during
from headrace.core.registry import Registry
from headrace.core.request_context import RowCost
from headrace.failures.breaker import CircuitBreaker, LoadPolicy
from headrace.failures.device import device_loss
from headrace.failures.retry import RetryBudget
from headrace.hosts.system import why_no_hosts
from headrace.models.admission import PATIENCE_SECS, MemoryBudget
from headrace.models.memory import resident_bytes, trim_memory
from headrace.runtime.endpoints import Endpoints
from headrace.runtime.model_source import (
    Loaded,
    ModelSource,
    attributes_of,
    bytes_of_model_files,
    changes_since,
    restore,
)
from headrace.runtime.prediction_cache import PredictionCache
from headrace.runtime.spec import SessionSpec
from headrace.runtime.usage_meter import meter_of

if TYPE_CHECKING:
    from headrace.hosts.environment import ThreadBudget

_LOGGER = logging.getLogger(__name__)


def _room_for(spec: SessionSpec) -> MemoryBudget:
    """The room for models of this process alone; it waits for others within half of the time limit of a load."""
    patience = min(PATIENCE_SECS, (spec.timeout_secs or math.inf) / 2)
    if why_no_hosts() is not None:
        return MemoryBudget(patience=patience)
    from headrace.machine.shared_file import Shortage  # noqa: PLC0415 - the system has what this module needs

    return MemoryBudget(patience=patience, neighbours=Shortage())


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


class SessionModel:
    """What a session's threads share about one of its models, besides the model itself.

    Attributes:
        label: the model's name in metrics.
        cache_key: its name in the model cache.
        sizes: determines the sizes of its batches.
        breaker: whether its batches fail in a row.
        loads: whether it may be loaded now.
    """

    def __init__(self, spec: SessionSpec, name: Any, sizes: SizeController) -> None:
        self.label = spec.plan.label(name)
        self.cache_key = spec.plan.cache_key(name)
        self.sizes = sizes
        size = "weight" if spec.plan.batching_of(name).learns_from_weights else "total"
        self.size_of: Callable[[Batch | ColumnarBatch], float] = attrgetter(size)
        """A batch's size as ``sizes`` learns it: its weight, or the number of its elements or rows."""
        self.breaker = CircuitBreaker()
        self.loads = LoadPolicy(spec.clock.time_ns)


class InferenceSession:
    """One transform in this process, shared by its threads; thread-safe."""

    def __init__(self, spec: SessionSpec) -> None:
        plan = spec.plan
        if not spec.isolated:
            plan.handler.set_environment_vars()
        self.spec = spec
        self._sizes = sizes_of(spec)
        self.models = {name: SessionModel(spec, name, self._sizes[name]) for name in plan.models}
        as_they_come = dict.fromkeys(plan.models, SizeController(sys.maxsize))
        self.queue_sizes: Mapping[Any, SizeController] = as_they_come if spec.gathered else self._sizes
        """Target batch sizes; unlimited for gathered elements, which wait for a full batch or the end of a bundle."""
        self.resident = ResidentModels(plan.model_limit)
        room = _room_for(spec) if plan.routed and not spec.shared else None  # the manager admits shared models
        self._names = [model.cache_key for model in self.models.values()]
        self._cache = _CACHES.open(spec.cache_name, lambda: ModelCache(plan.model_limit, room))
        self._cache.claim(self._names)
        self.events: deque[Event] = deque()
        """What happened outside a bundle or in another thread, and what was used; ``report_events`` empties it."""
        self._lock = threading.Lock()
        self._shared: Any = None
        self.endpoints = Endpoints(spec) if plan.concurrent else None
        self.predictions = None if spec.cache is None else PredictionCache(spec, spec.cache)
        self.usage = meter_of(spec)
        self.source: ModelSource | None = None
        """Provides the models in place of loading them here."""
        self.thread_budget: ThreadBudget | None = None
        """Limits this process's threads to their share of the cores; None: no limit."""

    def borrower(self, name: Any, handler: Any) -> Callable[[], Slot]:
        """Returns the named model as a ``Loaded``, which stays in memory until it is released; loads it if needed."""
        load, estimate = partial(self._load, name, handler), partial(bytes_of_model_files, handler)
        return partial(self._cache.use, self.models[name].cache_key, load, estimate)

    def loaded_model(self, name: Any) -> Loaded | None:
        """The named model if it is in memory."""
        loaded: Loaded | None = self._cache.get(self.models[name].cache_key)
        return loaded

    def adopt(self, name: Any, loaded: Loaded) -> None:
        """Takes a model that is in this process already, in place of loading it."""
        self._cache.use(self.models[name].cache_key, lambda: loaded).release()

    def shared(self, make: Callable[[], Any]) -> Any:
        """The session's model source or hosts; the first caller's ``make`` creates it."""
        with self._lock:
            if self._shared is None:
                self._shared = make()
                self.source = self._shared if isinstance(self._shared, ModelSource) else None
            return self._shared

    def record_usage(
        self,
        used: UsageReported,
        where: tuple[str, int] | None = None,
        gen_ai: tuple[str, str] = ("", ""),
        row_cost: RowCost | None = None,
    ) -> None:
        """Counts what a request used, for a row; the next bundle that reports events reports it."""
        if where is not None or gen_ai[0]:
            used = replace(used, where=where, operation=gen_ai[0], provider=gen_ai[1])
        if self.usage is not None:
            used = self.usage.priced(used)
        if row_cost is not None:
            row_cost.add(used.cost or 0.0)
        self.events.append(used)

    def report_events(self, observer: Observer) -> None:
        """Reports each of ``events`` once, to whichever bundle's observer asks first."""
        while self.events:
            try:
                event = self.events.popleft()
            except IndexError:  # another thread was faster
                return
            observer.on_event(event)

    def close(self) -> None:
        """Releases the models."""
        self._cache.disclaim(self._names)  # first: who opens the cache meanwhile waits for the models to be gone
        _CACHES.close(self.spec.cache_name)
        if self.endpoints is not None:
            self.endpoints.close()
        if self.predictions is not None:
            self.predictions.close()
        shared, self._shared, self.source = self._shared, None, None
        if shared is not None:
            shared.close()
        if self.thread_budget is not None:
            self.thread_budget.release()

    def _load(self, name: Any, handler: Any) -> Loaded:
        """Loads the model, unless a recent failure is to be raised again."""
        record, clock = self.models[name].loads, self.spec.clock
        if (standing := record.current_error()) is not None:
            raise standing
        started = clock.time_ns()
        try:
            loaded = self._load_from_source(name, handler)
            if loaded is None:
                loaded, event = self._load_here(name, handler)
                self.events.append(event)
        except self.spec.caught as error:  # an uncaught error ends the bundle, whose retry may load at once
            record.raised(error, (clock.time_ns() - started) / 1e9)
            raise
        record.loaded()
        return loaded

    def _load_from_source(self, name: Any, handler: Any) -> Loaded | None:
        """Loads from the model source, if there is one; evicts idle models of this process if memory is short."""
        while self.source is not None:
            try:
                return self.source.load(name, lambda: self.load_for_all(name, handler))
            except ModelMemoryError:
                if not self._cache.drop_idle():
                    raise
                trim_memory()  # a model in a reference cycle is freed only by the garbage collector
        return None

    def load_for_all(self, name: Any, handler: Any) -> tuple[Loaded, ModelLoaded]:
        """Has the handler load a model that processes share, in this one; returns the event to report, too.

        What loading set on the handler is taken back. It comes with the mapped model, if that is used, and a model that
        is loaded again sets it again.
        """
        before = attributes_of(handler)
        result = self._load_here(name, handler)
        restore(handler, before)
        return result

    def _load_here(self, name: Any, handler: Any) -> tuple[Loaded, ModelLoaded]:
        """Has the handler load the model in this process; returns the event to report, too."""
        before = attributes_of(handler)
        if self._cache.is_short:
            self.resident.limit_to(len(self._cache))
        resident, started = resident_bytes(), self.spec.clock.time_ns()
        model = self._loaded(handler)
        seconds = (self.spec.clock.time_ns() - started) / 1e9
        growth = 0 if name in self.spec.plan.remote else max(0, resident_bytes() - resident)
        event = ModelLoaded(self.models[name].label, seconds, growth)
        return Loaded(model, self.spec.transform, changes_since(before, handler)), event

    @during(Phase.LOADING)
    def _loaded(self, handler: Any) -> Any:
        """Calls ``load_model``, whose model may refuse columns of another kind; retries transient failures."""
        clock, types = self.spec.clock, self.spec.plan.column_types
        refuse = getattr(handler, "refuse_types", None)
        budget = RetryBudget(self.spec.retry, clock.time_ns, sleep_of(clock))
        failed = 0
        while True:
            try:
                model = handler.load_model() if self.endpoints is None else self.endpoints.loaded(handler)
                if types and refuse is not None:
                    refuse(model, types)
                return model
            except Exception as error:
                failed += 1
                if device_loss(error) or not budget.allows_retry(error, failed):
                    raise
                # As text: a record with the traceback would keep its frames, and with them the lease of a shared model.
                text = traceback.format_exc().rstrip()
                _LOGGER.warning("%s: loading failed and is tried again.\n%s", self.spec.plan.name, text)


class _Sessions:
    """The process's sessions, by transform; during a refresh, one for each version in use.

    A session closed to linger stays until another transform opens one: some engines close and reopen workers between
    bundles, and that must not reload the model. The sessions of a transform and its fallbacks open and close one after
    another, beside those of other transforms.
    """

    def __init__(self) -> None:
        self._open: Registry[str, InferenceSession] = Registry()
        self._turns: Registry[str, threading.RLock] = Registry()
        self._lingering: dict[str, InferenceSession] = {}
        """By the name in the spec: that of one transform, and that of its fallback."""

    def open(self, spec: SessionSpec) -> InferenceSession:
        """The process's session for a spec; close it once for each call."""
        self._end_others(spec)  # another version of the same transform leaves the lingering one alone
        with self._turn(spec):
            return self._open.open(spec.identity, lambda: self._resume(spec) or InferenceSession(spec))

    def close(self, session: InferenceSession, *, linger: bool = False) -> None:
        """Ends one use of a session; the last one releases it, or lets it linger until another transform opens one."""
        with self._turn(session.spec):
            with self._open.lock:
                if self._open.close(session.spec.identity) is None:
                    return
                ending: InferenceSession | None = session
                if linger:
                    ending = self._lingering.pop(session.spec.transform, None)
                    self._lingering[session.spec.transform] = session
            if ending is not None:
                ending.close()
        if linger:
            self._end_others(session.spec)

    @contextmanager
    def _turn(self, spec: SessionSpec) -> Iterator[None]:
        try:
            with self._turns.open(spec.own_transform, threading.RLock):
                yield
        finally:
            self._turns.close(spec.own_transform)

    def _resume(self, spec: SessionSpec) -> InferenceSession | None:
        session = self._lingering.get(spec.transform)
        if session is None or session.spec.identity != spec.identity:
            return None
        return self._lingering.pop(spec.transform)

    def _end_others(self, spec: SessionSpec) -> None:
        """Ends the lingering sessions of other transforms; not within a turn, since each has one of its own."""
        with self._open.lock:
            others = [name for name, one in self._lingering.items() if one.spec.own_transform != spec.own_transform]
            ending = [self._lingering.pop(name) for name in others]
        for session in ending:
            with self._turn(session.spec):
                session.close()


_SESSIONS = _Sessions()
open_session = _SESSIONS.open
close_session = _SESSIONS.close
