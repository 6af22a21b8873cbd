"""Decides, once per session, where its models live: mapped from the machine's shared memory, or in hosts.

``HostedWorker`` is the worker of a thread whose models are in hosts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from headrace.batching.batcher import Batcher
from headrace.core.errors import ConfigurationError, HostDiedError
from headrace.core.events import Observer
from headrace.hosts.client import ModelHosts
from headrace.hosts.environment import Preload, ThreadBudget, visible_gpus
from headrace.hosts.fork_server_client import ForkServerClient
from headrace.hosts.provider import HostProvider
from headrace.hosts.system import allowed_cores
from headrace.ipc.segment import Segment
from headrace.ipc.serialization import pickle_or_explain
from headrace.models.admission import format_bytes
from headrace.runtime.acquire import AcquiredModel, Report, acquire, attached, lease_for, work_of
from headrace.runtime.bundle import AnyBundle, Executor, PreprocessFirst
from headrace.runtime.engines import EngineCopies, EngineRequestHandler
from headrace.runtime.host_executor import HostExecutor, preprocesses_first
from headrace.runtime.host_transport import HostTransport
from headrace.runtime.hosted_models import HostedModelProxy, HostedModels
from headrace.runtime.model_source import Loaded, LoadsOwn, ModelSource
from headrace.runtime.plan import ONLY
from headrace.runtime.request_handler import BatchRequestHandler, Source, WaitContext
from headrace.runtime.session import InferenceSession
from headrace.runtime.spec import SessionSpec
from headrace.runtime.worker import AnyWorker

_LOGGER = logging.getLogger(__name__)
_PREPROCESSED_TOGETHER = 256
"""At most how many elements one request preprocesses when preprocessing comes before batching."""


def place_models(spec: SessionSpec, session: InferenceSession) -> HostedModels | ModelSource:
    """Places a session's models outside this process, or maps them into it.

    The spec is one thread's own copy: its handler may load a model for all processes.

    Raises:
        HeadraceError: no host can be started, or the model does not fit into memory.
    """
    report = session.events.extend
    if spec.has_engines_in_hosts:
        return EngineSource(spec, report)
    if not spec.shared:
        return _in_own_hosts(spec, report)
    if spec.plan.routed:  # whoever maps them asks for each model when its key first comes
        return _in_own_hosts(spec, report, source=MappedModels) if spec.isolated else MappedModels(spec, session)
    try:
        acquired = acquire(spec, ONLY, report, lambda: session.load_for_all(ONLY, spec.plan.models[ONLY]))
    except (HostDiedError, TimeoutError) as error:
        if not (spec.isolated and hasattr(error, "of_host")):
            raise
        return _in_own_hosts(spec, report)  # which will report this failure for each batch
    choice = Choice(acquired.grant.nbytes, allowed_cores(), acquired.grant.free)
    if spec.automatic:
        _LOGGER.info("%s: placement='auto' has chosen %r: %s.", spec.plan.name, choice.placement, choice.why)
    if spec.automatic and choice.placement != "machine":  # keep the lease: others must choose alike
        spec, acquired = replace(spec, shared=frozenset()), acquired._replace(loaded=None)
    elif not acquired.files:
        return connect_shared_hosts(spec, report, acquired)
    return _in_own_hosts(spec, report, acquired) if spec.isolated else MappedModels(spec, session, acquired=acquired)


class MappedModels(ModelSource):
    """Maps the machine's models into this process.

    Args:
        acquired: the lease on the only model, if there is only one.
    """

    def __init__(
        self,
        spec: SessionSpec,
        session: InferenceSession,
        elsewhere: WaitContext = nullcontext,
        acquired: AcquiredModel | None = None,
    ) -> None:
        self._spec = spec
        self._session = session
        self._report = session.events.extend
        self._elsewhere = elsewhere
        self._acquired = {ONLY: acquired} if acquired else {}
        """Leases for models that have not been asked for yet."""

    def load(self, name: Any, load_here: LoadsOwn) -> Loaded | None:
        """Maps the named model, or stands in for it if it lives in hosts; None if the model is not shared."""
        if name not in self._spec.shared:
            return None
        acquired = self._acquired.pop(name, None) or self._take(name, load_here)
        if not acquired.files:
            models = connect_shared_hosts(self._spec, self._report, acquired, name)
            model = HostedModelProxy(name, models, self._report, self._elsewhere)
            return Loaded(model, self._spec.transform, {})
        return self._attached(name, acquired)

    def close(self) -> None:
        """Ends the leases that are left."""
        for acquired in self._acquired.values():
            acquired.give_back()
        self._acquired.clear()

    def _take(self, name: Any, load_here: LoadsOwn) -> AcquiredModel:
        if self._elsewhere is not nullcontext:  # in a host, which has a time limit
            with self._elsewhere():
                return acquire(self._spec, name, self._report)
        return acquire(self._spec, name, self._report, load_here)

    def _attached(self, name: Any, acquired: AcquiredModel) -> Loaded:
        assert acquired.page is not None
        if self._session.thread_budget is None:
            self._session.thread_budget = ThreadBudget(Segment.received(os.dup(acquired.page)))
        assert acquired.grant.exported.layout is not None
        try:
            loaded, seconds, private = attached(acquired)
        except BaseException:
            acquired.lease.close()  # the error may outlive this call; the lease must not
            raise
        finally:
            acquired.close_files()
        label, layout = self._spec.plan.label(name) or self._spec.plan.name, acquired.grant.exported.layout
        text = "%s: mapped %.1f MB in %.0f ms; %.1f MB more are this process's own, with imports."
        _LOGGER.info(text, label, (layout.nbytes + layout.file_bytes) / 1e6, seconds * 1e3, private / 1e6)
        return loaded._replace(lease=acquired.lease)


class EngineSource(ModelSource):
    """Loads each engine in hosts, of its own or of the machine's; what this process gets stands in for it."""

    def __init__(self, spec: SessionSpec, report: Report) -> None:
        self._spec = spec
        self._report = report

    def load(self, name: Any, load_here: LoadsOwn) -> Loaded:
        """Waits until the engine is loaded, in a new host or in those that all processes of the machine share.

        Raises:
            ConfigurationError: there are fewer GPUs than copies.
        """
        spec, copies, gpus = self._spec, list[HostTransport](), len(visible_gpus(os.environ))
        if (count := spec.copies_of(name)) > gpus > 0:
            raise ConfigurationError(
                f"{spec.plan.name}: each of model_copies={count} engines needs a GPU of its own, and this "
                f"machine has {gpus}: ask for no more. Set CUDA_VISIBLE_DEVICES='' for engines on the CPU."
            )
        try:
            for number in range(count):
                provider, limit = self._provider(name), spec.timeout_secs
                hosts = ModelHosts(provider, spec.plan.name, limit, side_by_side=True, first=number)
                copies.append(HostTransport(spec, name, hosts, self._report))
                copies[-1].load()
        except BaseException:
            for copy in copies:
                copy.close()
            raise
        if name in spec.shared:
            text = "%s: the engine lives in %d hosts of the machine, for all of its worker processes."
            _LOGGER.info(text, spec.plan.name, count)
        handler = spec.plan.models[name]
        prefix = None if spec.plan.prebatched else handler.prefix
        return Loaded(EngineCopies(copies, handler.max_concurrent, prefix), spec.transform, {})

    def _provider(self, name: Any) -> HostProvider:
        label = self._spec.plan.name
        if name not in self._spec.shared:
            return ForkServerClient(pickle_or_explain(EngineRequestHandler(self._spec, name), label), label)
        return lease_for(self._spec, name, acquire(self._spec, name, self._report))

    def close(self) -> None:
        """Nothing: an engine's host, or the lease of it, ends with what stands in for it."""


def _in_own_hosts(
    spec: SessionSpec, report: Report, acquired: AcquiredModel | None = None, source: Source | None = None
) -> HostedModels:
    """Starts a host for this process alone; it maps the machine's weights if that is possible."""
    keeps, preload, name = ExitStack(), None, spec.plan.name
    if acquired is not None:
        keeps.callback(acquired.give_back)
        if spec.shared:
            preload = Preload(work_of(ONLY), acquired.files, acquired.grant.exported.layout, page=acquired.page)
    handler = pickle_or_explain(BatchRequestHandler(spec, source), name)
    fork_server = ForkServerClient(handler, name, preload=preload)
    return HostedModels(spec, ModelHosts(fork_server, name, spec.timeout_secs), report, keeps)


def connect_shared_hosts(spec: SessionSpec, report: Report, acquired: AcquiredModel, name: Any = ONLY) -> HostedModels:
    """Connects to the hosts that all processes of the machine share; takes over the model's lease."""
    lease = lease_for(spec, name, acquired)
    copies = spec.copies_of(name)
    reason = acquired.grant.exported.reason
    why = f"since {reason}" if reason else f"in {copies} copies that map the same weights"
    label = spec.plan.label(name) or spec.plan.name
    _LOGGER.info("%s: the model lives in the machine's hosts, %s.", label, why)
    return HostedModels(spec, ModelHosts(lease, spec.plan.name, spec.timeout_secs, copies), report)


class Choice(NamedTuple):
    """Where ``placement="auto"`` has a model live, and why."""

    nbytes: int
    processes: int
    free: int
    """Bytes available for models and everything else, including those of the copy that is already loaded."""

    @property
    def placement(self) -> str:
        """All share one copy if a copy in each process would take more than half of the memory."""
        return "machine" if self.nbytes * self.processes > self.free / 2 else "process"

    @property
    def why(self) -> str:
        """The figures behind the choice."""
        nbytes, free = format_bytes(self.nbytes), format_bytes(self.free)
        each = f"{nbytes} for each of {self.processes} processes, one for each core"
        return f"{each}, of {free} that are free for models and everything else"


class HostedWorker(AnyWorker):
    """One thread's access to models in hosts.

    Opening it starts an isolated model's host, and the load if there is only one model, in the background: imports and
    load overlap with what this process does until the first batch, which waits for them.
    """

    _is_ready = False

    def bundle(self, observer: Observer) -> AnyBundle:
        """A new bundle, whose batches run in the hosts; ``observer`` receives their events."""
        bundle = super().bundle(observer)
        if not preprocesses_first(self.spec):
            return bundle
        config = self.plan.batching
        most = 1 if config.columnar else min(_PREPROCESSED_TOGETHER, config.max_batch_size)  # more would not pay
        batcher = Batcher(lambda: most, most, max_bytes=config.lookahead_bytes)
        return PreprocessFirst(self.spec, self.executor(observer, infers=False), batcher, bundle)

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
        self._begun: Callable[[], None] | None = None
        if not self.spec.isolated:
            self.ready()  # the machine has loaded the model already
        elif self.plan.routed:
            self._models.in_background(self._models.start)  # a failure is the first batch's, which tries again
        else:
            self._begun = self._models.in_background(partial(self._load, ONLY))

    def _await_load(self, name: Any) -> None:
        begun, self._begun = self._begun, None
        if begun is None or os.getpid() != self._process:  # a fork does not have the thread that loads
            begun = partial(self._load, name)
        begun()

    def _load(self, name: Any) -> None:
        """Loads a model, unless its host is lost, perhaps not to the load itself: the first batch will tell."""
        self.session.events.extend(self._models.load(name, may_be_lost=True))

    def executor(self, observer: Observer, *, infers: bool = True) -> Executor:
        """Sends the batches of a new bundle to the hosts; without ``infers`` only to be preprocessed."""
        ready = None if self._is_ready else self.ready
        return HostExecutor(self.spec, self.session, self._models, observer, infers=infers, ready=ready)

    def load(self, name: Any) -> None:
        """Loads the named model; raises if its host was lost."""
        self.session.events.extend(self._models.load(name))

    def names_in_use(self) -> set[Any]:
        """The names of the models that have been loaded."""
        return set(self._models.asked_for)
