"""Workers whose models are in hosts."""

from __future__ import annotations

from functools import partial
from typing import Any

from headrace.batching.batcher import Batcher
from headrace.core.events import Observer
from headrace.failures.load_policy import load_error
from headrace.hosts.provider import HostFailure
from headrace.ipc.exceptions import with_traceback_of
from headrace.runtime.bundle import AnyBundle, Bundle, PreprocessFirst
from headrace.runtime.devices import check_device
from headrace.runtime.host_executor import HostExecutor, preprocesses_first
from headrace.runtime.hosted_models import HostedModels
from headrace.runtime.messages import Done, Work
from headrace.runtime.placement import place_models
from headrace.runtime.worker import AnyWorker

_PREPROCESSED_TOGETHER = 256
"""At most how many elements one request preprocesses when preprocessing comes before batching."""


class HostedWorker(AnyWorker):
    """One thread's access to models in hosts. Opening it loads the model if there is only one."""

    def bundle(self, observer: Observer) -> AnyBundle:
        """A new bundle, whose batches run in the hosts; ``observer`` receives their events."""
        check_device(self.spec)  # pre- and postprocessing may use it in this process
        executor = partial(HostExecutor, self.spec, self.session, self._models, observer)
        bundle = Bundle(self.spec, self.session, executor(), observer, self._join())
        if not preprocesses_first(self.spec):
            return bundle
        config = self.plan.batching
        most = 1 if config.columnar else min(_PREPROCESSED_TOGETHER, config.max_batch_size)  # more would not pay
        batcher = Batcher(lambda: most, most, max_bytes=config.lookahead_bytes)
        return PreprocessFirst(executor(infers=False), batcher, bundle)

    def _load_first(self) -> None:
        """Loads the only model.

        Raises:
            HostStartError: no host can be started.
            Exception: the model cannot be loaded. If loading hangs, kills its host, or fails with a transient error,
                and the session catches that, it fails batches instead.
        """
        self._models: HostedModels = self.session.shared(lambda: place_models(self.spec, self.session))
        self._load_only(self._load)

    def load(self, name: Any) -> None:
        """Loads the named model; raises if its host was lost."""
        host_failure = self._load(name)
        if host_failure is not None:
            raise load_error(host_failure, self.plan.name, self.spec.timeout_secs)

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
        self.session.events.extend(answer.events)
        return None
