"""One thread's worker for models that are refreshed: follows the version that currently serves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.core.events import Observer
from headrace.core.registry import Registry
from headrace.core.result import Outcome
from headrace.runtime.bundle import AnyBundle
from headrace.runtime.refresh import VersionedModels
from headrace.runtime.refresh_policy import RefreshPolicy
from headrace.runtime.spec import ModelUpdate, SessionSpec
from headrace.runtime.versions import Version
from headrace.runtime.worker import AnyWorker

Observe = Callable[[AnyWorker], Observer]


class RefreshingWorker:
    """Runs one thread's bundles on the serving version; its thread has to close it.

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
        """Whether a newer version serves than this thread's."""
        return self.version is not self.models.serving

    def bundle(self, observe: Observe) -> RefreshedBundle:
        """A new bundle.

        Args:
            observe: makes the observer for a worker's batches.
        """
        return RefreshedBundle(self, observe)

    def move(self) -> AnyWorker:
        """A worker for the serving version; releases the worker of the previous one."""
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
        """Marks the thread idle, after its bundle or when it ran out of elements."""
        with self._lock:
            self._is_busy = False
        if self.release_older():
            self.models.left()

    def release_older(self) -> bool:
        """Releases an older version unless a bundle is using it; returns whether none is held. For other threads."""
        with self._lock:
            if not self.is_behind:
                return True
            if self._is_busy:  # the thread may be about to open the older version
                return False
            self._drop()
            return True

    def close(self, *, linger: bool = False) -> None:
        """Releases the worker and unregisters the thread."""
        with self._lock:
            self._drop(linger=linger and not self.is_behind)
        self.models.leave(self)
        _close_models(self.models, linger=linger)

    def _drop(self, *, linger: bool = False) -> None:
        worker, self._worker, self.version = self._worker, None, None
        if worker is not None:
            worker.close(linger=linger)


class RefreshedBundle:
    """A bundle that runs each element on the version that serves when it arrives; used by one thread.

    At a switch, elements that arrived before it run on the older version, and their outcomes come first.

    Args:
        worker: of the thread.
        observe: makes the observer for a worker's batches.
    """

    def __init__(self, worker: RefreshingWorker, observe: Observe) -> None:
        self._worker = worker
        self._models = worker.models
        self._observe = observe
        self._bundle: AnyBundle | None = None

    def see(self, update: ModelUpdate) -> None:
        """Handles the engine's update; call it before the bundle's first element.

        Raises:
            Exception: the initial model cannot be loaded.
        """
        self._models.see(update)

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """Accepts an element; finishes the inner bundle first if a newer version serves."""
        bundle = self._bundle
        if bundle is not None and self._worker.version is self._models.serving:
            return bundle.add(element, tag)
        outcomes = [] if bundle is None else list(bundle.finish())
        worker = self._worker.move()
        self._bundle = bundle = worker.bundle(self._observe(worker))
        return [*outcomes, *bundle.add(element, tag)]

    def finish(self) -> Iterator[Outcome]:
        """Runs everything that still waits, and marks the thread idle."""
        if self._bundle is not None:
            yield from self._bundle.finish()
        self._bundle = None
        self._worker.rest()


_open: Registry[str, VersionedModels] = Registry()
"""The process's ``VersionedModels``, by transform."""
_remembered: dict[str, RefreshPolicy] = {}
"""The state of the transform closed last: some engines close and reopen workers between bundles."""


def open_refreshing_worker(
    fresh: Callable[[], SessionSpec], namespace: str | None = None, *, waits: bool = False
) -> RefreshingWorker:
    """Opens this thread's worker over refreshed models; its first bundle loads them.

    Workers that wait for updates each have their own ``VersionedModels``, since threads may see different updates at
    the same time. Workers with the same version still share its session and model.
    """
    if waits:
        return RefreshingWorker(VersionedModels(fresh, namespace, waits=True))
    identity = fresh().identity
    models = _open.open(identity, lambda: VersionedModels(fresh, namespace, policy=_remembered.pop(identity, None)))
    return RefreshingWorker(models)


def _close_models(models: VersionedModels, *, linger: bool) -> None:
    if models.waits:
        models.close(linger=linger)
        return
    identity = models.spec.identity
    if _open.close(identity) is None:
        return
    models.close(linger=linger)
    with _open.lock:
        _remembered.clear()
        if identity not in _open:
            _remembered[identity] = models.handed_on()
