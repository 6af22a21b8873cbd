"""One thread's worker for a transform whose models or inference arguments change while it runs."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import cloudpickle

from headrace.core.events import Observer
from headrace.core.registry import Registry
from headrace.core.result import Outcome
from headrace.runtime.bundle import AnyBundle
from headrace.runtime.refresh import RefreshPolicy, Served, VersionedModels, close_worker
from headrace.runtime.spec import ModelUpdate, SessionSpec
from headrace.runtime.worker import AnyWorker

Observe = Callable[[AnyWorker], Observer]
Fresh = Callable[[], SessionSpec]

AS_IN_SPEC: Any = object()
"""In place of arguments: those of the spec."""


class SwitchingWorker:
    """Runs each element with the models and arguments that are current when it arrives; its thread has to close it.

    Other arguments are another session over the same models.

    Args:
        waits: whether bundles wait for a newer model to load, as is right in batch pipelines.
    """

    def __init__(self, fresh: Fresh, namespace: str | None = None, *, waits: bool = False) -> None:
        self._fresh = fresh
        self._spec = fresh()
        self._open_models = partial(_open_models, namespace=namespace, waits=waits)
        self._branch: str | None = None
        self._models: VersionedModels | None = None
        self._served: Served | None = None
        """The version that the worker is of."""
        self._worker: AnyWorker | None = None
        self._lock = threading.Lock()
        self._is_busy = False

    @property
    def models(self) -> VersionedModels:
        """The versions of the models, with the current arguments; ``use`` comes first."""
        assert self._models is not None
        return self._models

    @property
    def is_current(self) -> bool:
        """Whether the thread has a worker, and no newer version serves than that worker's."""
        return self._served is not None and self._served is self.models.serving

    def bundle(self, observe: Observe) -> SwitchingBundle:
        """A new bundle."""
        return SwitchingBundle(self, observe)

    def branch_of(self, arguments: Any) -> str | None:
        """Identifies the session for other arguments; None if it is the current one."""
        # By their pickle, since arrays have no equality.
        given = b"" if arguments is AS_IN_SPEC else cloudpickle.dumps(arguments)
        branch = hashlib.sha256(given).hexdigest()[:16] if given else ""
        return None if branch == self._branch else branch

    def use(self, arguments: Any, branch: str, update: ModelUpdate) -> None:
        """Switches to the session for other arguments; loads its models if they are not in memory.

        Raises:
            Exception: the handler refuses the arguments, or the initial model cannot be loaded.
        """
        if arguments is not AS_IN_SPEC:
            for spec in (self._spec, *self._spec.fallbacks):
                spec.plan.handler.validate_inference_args(arguments)
        if self._spec.isolated:  # one host at a time; elsewhere the next session takes the model over
            self.close()
        models = self._open_models(partial(_with_arguments, self._fresh, arguments, branch))
        try:
            models.handle(update)
        except BaseException:
            _close_models(models)
            raise
        self.close()
        self._models, self._branch = models, branch
        models.join(self._release_older)

    def current(self) -> AnyWorker:
        """A worker for the serving version; releases the worker of the previous one."""
        with self._lock:
            self._is_busy = True
        if self._worker is None or not self.is_current:
            worker, served = self.models.open()
            self._close_worker()
            self._worker, self._served = worker, served
        return self._worker

    def idle(self) -> None:
        """Marks the thread idle, after its bundle or when it ran out of elements."""
        with self._lock:
            self._is_busy = False
        if self._models is not None:
            self._release_older()

    def _release_older(self) -> None:
        """Releases an older version unless a bundle is using it; any thread may call it."""
        with self._lock:
            if not (self._is_busy or self.is_current):
                self._close_worker()

    def close(self, *, linger: bool = False) -> None:
        """Releases the worker and unregisters the thread; ``use`` may follow."""
        if self._models is None:
            return
        with self._lock:
            self._close_worker(linger=linger and self.is_current)
        models, self._models, self._branch = self._models, None, None
        models.leave(self._release_older)
        _close_models(models, linger=linger)

    def _close_worker(self, *, linger: bool = False) -> None:
        worker, self._worker, self._served = self._worker, None, None
        if worker is not None:
            close_worker(worker, linger=linger)


class SwitchingBundle:
    """A bundle that runs each element with what is current when it arrives; used by one thread.

    At a switch, elements that arrived before it run as they would have, and their outcomes come first.
    """

    def __init__(self, worker: SwitchingWorker, observe: Observe) -> None:
        self._worker = worker
        self._observe = observe
        self._bundle: AnyBundle | None = None
        self._finished: list[Outcome] = []
        """Outcomes of elements that arrived before a switch."""

    @property
    def spent(self) -> bool:
        """As ``Bundle.spent``."""
        return self._bundle is not None and self._bundle.spent

    def follow(self, update: ModelUpdate, arguments: Any = AS_IN_SPEC) -> None:
        """Handles what the engine says of the models and arguments for the next element; once before the first one.

        Raises:
            Exception: an earlier element failed, the handler refuses the arguments, or the initial model cannot be
                loaded.
        """
        branch = self._worker.branch_of(arguments)
        if branch is None:
            self._worker.models.handle(update)
        else:
            self._end()
            self._worker.use(arguments, branch, update)

    def add(self, element: Any, tag: Any) -> Sequence[Outcome]:
        """Accepts an element; finishes the inner bundle first if it is not to run there."""
        if self._bundle is not None and self._worker.is_current:
            return self._bundle.add(element, tag)
        self._end()
        worker = self._worker.current()
        self._bundle = worker.bundle(self._observe(worker))
        outcomes, self._finished = self._finished, []
        return [*outcomes, *self._bundle.add(element, tag)]

    def finish(self) -> Iterator[Outcome]:
        """Runs everything that still waits, and marks the thread idle."""
        finished, self._finished = self._finished, []
        yield from finished
        bundle, self._bundle = self._bundle, None
        if bundle is not None:
            yield from bundle.finish()
        self._worker.idle()

    def _end(self) -> None:
        bundle, self._bundle = self._bundle, None
        if bundle is not None:
            self._finished += bundle.finish()


def _with_arguments(fresh: Fresh, arguments: Any, branch: str) -> SessionSpec:
    spec = fresh()
    return spec if arguments is AS_IN_SPEC else replace(spec, inference_args=arguments, branch=branch)


_OPEN: Registry[str, VersionedModels] = Registry()
"""The process's ``VersionedModels``, by transform."""
_remembered: dict[str, RefreshPolicy] = {}
"""The state of the transform closed last: some engines close and reopen workers between bundles."""


def _open_models(fresh: Fresh, namespace: str | None, *, waits: bool) -> VersionedModels:
    """Workers that wait for updates have models of their own: threads may see different updates at the same time.

    Workers with the same version still share its session and model.
    """
    if waits:
        return VersionedModels(fresh, namespace, waits=True)
    identity = fresh().identity
    return _OPEN.open(identity, lambda: VersionedModels(fresh, namespace, policy=_remembered.pop(identity, None)))


def _close_models(models: VersionedModels, *, linger: bool = False) -> None:
    if models.waits:
        models.close(linger=linger)
        return
    identity = models.spec.identity
    if _OPEN.close(identity) is None:
        return
    models.close(linger=linger)
    with _OPEN.lock:
        _remembered.clear()
        if identity not in _OPEN:
            _remembered[identity] = copy(models.policy)
