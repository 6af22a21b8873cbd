"""One thread's worker: its own copy of the handlers, over the models that all threads share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from headrace.core.events import Observer
from headrace.failures.retry import is_retryable
from headrace.runtime.bundle import AnyBundle, Bundle, BypassExecutor, Executor, FallbackBundle, WithoutFailures
from headrace.runtime.local_executor import BackgroundThread, LocalExecutor
from headrace.runtime.operations import catches, check_device
from headrace.runtime.plan import ONLY, Plan
from headrace.runtime.remote_executor import RemoteExecutor
from headrace.runtime.session import InferenceSession, close_session, open_session
from headrace.runtime.spec import SessionSpec
from headrace.runtime.steps import ModelAccess


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

    def bundle(self, observer: Observer) -> AnyBundle:
        """A new bundle; ``observer`` receives its events. What its models cannot do goes to the fallbacks, if any.

        Raises:
            DeviceLostError: this process has lost the device of its models, or of pre- and postprocessing.
        """
        check_device(self.spec)
        if not self.plan.has_fallback:
            return Bundle(self.spec, self.session, self.executor(observer), observer)
        failures_left_out = WithoutFailures(observer)
        executor = BypassExecutor(self.executor(failures_left_out), self.spec, self.session)
        bundle: AnyBundle = Bundle(self.spec, self.session, executor, failures_left_out)
        for fallback in self.fallbacks:
            if not fallback.plan.has_fallback:
                bundle = FallbackBundle(bundle, fallback.bundle(observer), self.spec, fallback.plan)
            else:  # its own functions are part of inference
                other = fallback.bundle(WithoutFailures(observer, of_any_stage=True))
                bundle = FallbackBundle(bundle, other, self.spec, fallback.plan, observer)
        return bundle

    @abstractmethod
    def executor(self, observer: Observer) -> Executor:
        """Runs the batches of a new bundle."""

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

    _requests: RemoteExecutor | None = None
    _background: BackgroundThread

    def executor(self, observer: Observer) -> Executor:
        """Runs the batches of a new bundle; those of an abandoned one are dropped."""
        self._background.clear()
        self._abandon_requests()
        local = LocalExecutor(self.access, observer, self._background if self.plan.batching.overlap else None)
        if not self.plan.concurrent:
            return local
        self._requests = RemoteExecutor(self.access, observer, local, self._throttled_secs)
        return self._requests

    def ready(self) -> None:
        """Returns at once: opening it has loaded the model."""

    def load(self, name: Any) -> None:
        """Loads the named model if it is not in memory."""
        check_device(self.spec)
        try:
            self.access.borrow(name).release()
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
        self.access = ModelAccess(self.spec, self.session)
        self._background = BackgroundThread(self.access)
        self._throttled_secs: dict[str, float] = {}
        self._load_only(self.load)
