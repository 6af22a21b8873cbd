"""A thread's way to whichever models of a transform serve now; see ``VersionedModels``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.core.events import Observer
from headrace.core.result import Outcome
from headrace.runtime.bundle import AnyBundle
from headrace.runtime.refresh import VersionedModels
from headrace.runtime.refresh_policy import RefreshPolicy
from headrace.runtime.spec import ModelUpdate, SessionSpec
from headrace.runtime.versions import Version
from headrace.runtime.worker import AnyWorker

Observe = Callable[[AnyWorker], Observer]


class RefreshingWorker:
    """One thread's worker for whichever models serve; to be closed by its thread.

    Args:
        models: of the process.
    """

    def __init__(self, models: VersionedModels) -> None:
        self.models = models
        self.version: Version | None = None
        self._worker: AnyWorker | None = None
        self._lock = threading.Lock()
        self._is_busy = False
        models.join(self)

    @property
    def is_behind(self) -> bool:
        """Whether newer models serve than this thread's."""
        return self.version is not self.models.serving

    def bundle(self, observe: Observe) -> RefreshedBundle:
        """A new bundle.

        Args:
            observe: says who is told what happens to a worker's batches.
        """
        return RefreshedBundle(self, observe)

    def move(self) -> AnyWorker:
        """A worker for the version that serves; the last one is let go of."""
        with self._lock:
            self._is_busy = True
        version = self.models.serving
        assert version is not None
        if self._worker is None or self.version is not version:
            worker = self.models.open(version)
            self._drop()
            self._worker, self.version = worker, version
            self.models.left()
        return self._worker

    def rest(self) -> None:
        """The bundle is done, or a part of it."""
        with self._lock:
            self._is_busy = False
        if self.gives_up_older():
            self.models.left()

    def gives_up_older(self) -> bool:
        """Lets go of an older version if nothing runs; returns whether none is held. For other threads."""
        with self._lock:
            if not self.is_behind:
                return True
            if self._is_busy:  # it may be about to open the older one
                return False
            self._drop()
            return True

    def close(self, *, linger: bool = False) -> None:
        """Leaves."""
        with self._lock:
            self._drop(linger=linger and not self.is_behind)
        self.models.leave(self)
        _close_models(self.models, linger=linger)

    def _drop(self, *, linger: bool = False) -> None:
        worker, self._worker, self.version = self._worker, None, None
        if worker is not None:
            worker.close(linger=linger)


class RefreshedBundle:
    """A bundle's elements, each run by the models that serve when it comes; used by one thread.

    What has come before newer models serve is run by the older ones, and comes out first.

    Args:
        worker: of the thread.
        observe: says who is told what happens to a worker's batches.
    """

    def __init__(self, worker: RefreshingWorker, observe: Observe) -> None:
        self._worker = worker
        self._models = worker.models
        self._observe = observe
        self._bundle: AnyBundle | None = None

    def see(self, update: ModelUpdate) -> None:
        """What the engine tells of newer models; to be called before the first element.

        Raises:
            Exception: the very first model cannot be loaded.
        """
        self._models.see(update)

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """See ``AnyBundle``."""
        bundle = self._bundle
        if bundle is not None and self._worker.version is self._models.serving:
            return bundle.add(element, tag)
        outcomes = [] if bundle is None else list(bundle.finish())
        worker = self._worker.move()
        self._bundle = bundle = worker.bundle(self._observe(worker))
        return [*outcomes, *bundle.add(element, tag)]

    def finish(self) -> Iterator[Outcome]:
        """See ``AnyBundle``."""
        if self._bundle is not None:
            yield from self._bundle.finish()
        self._bundle = None
        self._worker.rest()


_lock = threading.Lock()
_open: dict[str, tuple[VersionedModels, int]] = {}
"""Those of the process, by transform, each with how often it is open."""
_remembered: dict[str, RefreshPolicy] = {}
"""What is known of the stream that was closed last: some engines close and reopen workers between bundles."""


def open_refreshing_worker(
    fresh: Callable[[], SessionSpec], namespace: str | None = None, *, waits: bool = False
) -> RefreshingWorker:
    """A worker for this thread, over models that are refreshed; see ``VersionedModels``. Its first bundle loads.

    Those that wait for newer models have ``VersionedModels`` of their own, since other threads may be told of others at
    the same time; where they are told of the same, they share the session and so the model.
    """
    if waits:
        return RefreshingWorker(VersionedModels(fresh, namespace, waits=True))
    identity = fresh().identity
    with _lock:
        models, users = _open.get(identity, (None, 0))
        if models is None:
            models = VersionedModels(fresh, namespace, policy=_remembered.pop(identity, None))
        _open[identity] = (models, users + 1)
    return RefreshingWorker(models)


def _close_models(models: VersionedModels, *, linger: bool) -> None:
    if models.waits:
        models.close(linger=linger)
        return
    identity = models.spec.identity
    with _lock:
        _, users = _open.pop(identity)
        if users > 1:
            _open[identity] = (models, users - 1)
            return
    models.close(linger=linger)
    with _lock:
        _remembered.clear()
        if identity not in _open:
            _remembered[identity] = models.handed_on()
