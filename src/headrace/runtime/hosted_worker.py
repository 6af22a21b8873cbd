"""Workers whose models are in hosts."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from headrace.batching.batcher import Batcher
from headrace.core.events import Observer
from headrace.hosts.provider import HostFailure
from headrace.ipc.exceptions import with_traceback_of
from headrace.runtime.bundle import AnyBundle, Executor, PreprocessFirst
from headrace.runtime.host_executor import HostExecutor, preprocesses_first
from headrace.runtime.hosted_models import HostedModels, Pending
from headrace.runtime.messages import Done, Work
from headrace.runtime.operations import check_device
from headrace.runtime.placement import place_models
from headrace.runtime.plan import ONLY
from headrace.runtime.worker import AnyWorker

_PREPROCESSED_TOGETHER = 256
"""At most how many elements one request preprocesses when preprocessing comes before batching."""


class HostedWorker(AnyWorker):
    """One thread's access to models in hosts.

    Opening it starts an isolated model's host, and the load if there is only one model, in the background: imports and
    load overlap with what this process does until the first batch, which waits for them.
    """

    _is_ready = False

    def bundle(self, observer: Observer) -> AnyBundle:
        """A new bundle, whose batches run in the hosts; ``observer`` receives their events."""
        check_device(self.spec)  # pre- and postprocessing may use it in this process
        bundle = self._bundle(observer, self._executor)
        if not preprocesses_first(self.spec):
            return bundle
        config = self.plan.batching
        most = 1 if config.columnar else min(_PREPROCESSED_TOGETHER, config.max_batch_size)  # more would not pay
        batcher = Batcher(lambda: most, most, max_bytes=config.lookahead_bytes)
        return PreprocessFirst(self.spec, self._executor(observer, infers=False), batcher, bundle)

    def ready(self) -> None:
        """Waits until the only model is loaded.

        Raises:
            HostStartError: no host can be started.
            Exception: the model cannot be loaded. If loading hangs, kills its host, or fails with a transient error,
                and the session catches that, it fails batches instead. The next call tries again.
        """
        if not self._is_ready:
            self._load_only(self._await_load)
            self._is_ready = True

    def _load_first(self) -> None:
        self._models: HostedModels = self.session.shared(lambda: place_models(self.spec, self.session))
        self._process = os.getpid()
        self._begun: Pending[HostFailure | None] | None = None
        if not self.spec.isolated:
            self.ready()  # the machine has loaded the model already
        elif self.plan.routed:
            self._models.in_background(self._models.start)  # a failure is the first batch's, which tries again
        else:
            self._begun = self._models.in_background(partial(self._load, ONLY))

    def _await_load(self, name: Any) -> None:
        begun, self._begun = self._begun, None
        if begun is None or os.getpid() != self._process:  # a fork does not have the thread that loads
            self._load(name)
        else:
            begun.result()

    def _executor(self, observer: Observer, *, infers: bool = True) -> Executor:
        ready = None if self._is_ready else self.ready
        return HostExecutor(self.spec, self.session, self._models, observer, infers=infers, ready=ready)

    def load(self, name: Any) -> None:
        """Loads the named model; raises if its host was lost."""
        self.session.events.extend(self._models.load(name))

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
