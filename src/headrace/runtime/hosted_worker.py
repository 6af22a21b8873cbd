"""Workers whose models are not simply loaded into their process."""

from __future__ import annotations

from typing import Any

from headrace.core.events import Observer
from headrace.failures.retry import may_pass
from headrace.hosts.connection import HostFailure
from headrace.ipc.exceptions import with_traceback_of
from headrace.runtime.devices import check_device
from headrace.runtime.host_executor import Done, Work
from headrace.runtime.hosted_bundle import HostedBundle
from headrace.runtime.hosted_models import HostedModels
from headrace.runtime.placement import load_error, place_models
from headrace.runtime.plan import ONLY
from headrace.runtime.worker import AnyWorker


class HostedWorker(AnyWorker):
    """One thread's way to models in hosts; opening it loads the model where there is only one."""

    def bundle(self, observer: Observer) -> HostedBundle:
        """A new bundle, whose batches run in the host; it tells ``observer`` what happens there."""
        check_device(self.spec)  # on which this process may do what comes before inference, and after
        return HostedBundle(self.spec, self.session, self._models, observer, self._join())

    def _begin(self) -> None:
        """Loads the model.

        Raises:
            HostStartError: no host can be had.
            Exception: the model cannot be loaded; where loading hangs, kills its host, or fails for a passing reason,
                and such errors are caught, the batches will get them.
        """
        self._models: HostedModels = self.session.shared(lambda: place_models(self.spec, self.session.tell))
        if not self.plan.routed:
            try:
                self._load(ONLY)
            except self.spec.caught as error:
                if not may_pass(error, self.spec.retry):
                    raise

    def load(self, name: Any) -> None:
        """See ``AnyWorker``."""
        host_failure = self._load(name)
        if host_failure is not None:
            raise load_error(self.spec, host_failure)

    def names_in_use(self) -> set[Any]:
        """See ``AnyWorker``."""
        return set(self._models.asked_for)

    def _load(self, name: Any) -> HostFailure | None:
        """Has a model loaded; a host that was lost before or after it loaded tells nothing of it."""
        answer, _ = self._models.ask(Work(name), [])
        if isinstance(answer, HostFailure):
            return answer
        if not isinstance(answer, Done):
            raise with_traceback_of(*answer.caught)
        self.session.tell(answer.events)
        return None
