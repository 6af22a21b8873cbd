"""Workers whose models are in hosts."""

from __future__ import annotations

from typing import Any

from headrace.core.events import Observer
from headrace.failures.retry import is_retryable
from headrace.hosts.connection import HostFailure
from headrace.ipc.exceptions import with_traceback_of
from headrace.runtime.devices import check_device
from headrace.runtime.hosted_bundle import HostedBundle
from headrace.runtime.hosted_models import HostedModels
from headrace.runtime.placement import load_error, place_models
from headrace.runtime.plan import ONLY
from headrace.runtime.request_handler import Done, Work
from headrace.runtime.worker import AnyWorker


class HostedWorker(AnyWorker):
    """One thread's access to models in hosts. Opening it loads the model if there is only one."""

    def bundle(self, observer: Observer) -> HostedBundle:
        """A new bundle, whose batches run in the hosts; ``observer`` receives their events."""
        check_device(self.spec)  # pre- and postprocessing may use it in this process
        return HostedBundle(self.spec, self.session, self._models, observer, self._join())

    def _begin(self) -> None:
        """Loads the only model.

        Raises:
            HostStartError: no host can be started.
            Exception: the model cannot be loaded. If loading hangs, kills its host, or fails with a transient error,
                and the session catches that, it fails batches instead.
        """
        self._models: HostedModels = self.session.shared(lambda: place_models(self.spec, self.session.tell))
        if not self.plan.routed:
            try:
                self._load(ONLY)
            except self.spec.caught as error:
                if not is_retryable(error, self.spec.retry):
                    raise

    def load(self, name: Any) -> None:
        """Loads the named model; raises if its host was lost."""
        host_failure = self._load(name)
        if host_failure is not None:
            raise load_error(self.spec, host_failure)

    def names_in_use(self) -> set[Any]:
        """The names of the models that have been loaded."""
        return set(self._models.asked_for)

    def _load(self, name: Any) -> HostFailure | None:
        """Loads a model; returns the failure if its host was lost, which may have happened outside the load itself."""
        answer, _ = self._models.ask(Work(name), [])
        if isinstance(answer, HostFailure):
            return answer
        if not isinstance(answer, Done):
            raise with_traceback_of(*answer.caught)
        self.session.tell(answer.events)
        return None
