"""Decides, once per session, where its models live: mapped from the machine's shared memory, or in hosts."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from headrace.core.events import Event, HostLost
from headrace.failures.load_policy import load_error, survive_one_death
from headrace.hosts.client import ModelHosts
from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.fork_server_client import ForkServerClient, Preload
from headrace.hosts.orphans import new_mark
from headrace.hosts.provider import HostFailure, died
from headrace.hosts.system import allowed_cores
from headrace.hosts.thread_budget import ComputingPage, ThreadBudget
from headrace.ipc.codec import decode
from headrace.ipc.exceptions import with_traceback_of
from headrace.ipc.unpicklable import PROTOCOL, pickle_or_explain
from headrace.ipc.weights_file import WeightsLayout, attach
from headrace.machine.lease import Lease
from headrace.machine.messages import LoadRequest, ModelGrant
from headrace.models.memory import memory_of
from headrace.runtime.hosted_models import HostedModels
from headrace.runtime.local_load import LocalLoad, local_load
from headrace.runtime.messages import DeviceLost, Done, Work
from headrace.runtime.model_files import bytes_of_model_files
from headrace.runtime.model_proxy import HostedModelProxy
from headrace.runtime.model_source import Loaded, LoadsOwn, ModelSource
from headrace.runtime.placement_choice import choose
from headrace.runtime.plan import ONLY
from headrace.runtime.request_handler import BatchRequestHandler, Source, WaitContext
from headrace.runtime.session import InferenceSession
from headrace.runtime.spec import SessionSpec

_LOGGER = logging.getLogger(__name__)

Report: TypeAlias = Callable[[Iterable[Event]], None]


class AcquiredModel(NamedTuple):
    """A lease on a model that the machine shares."""

    lease: Lease
    layout: WeightsLayout | None
    file: int | None
    """Descriptor of the weights file; None if the model lives in hosts."""
    page: int | None
    """Descriptor of the page that counts computing processes."""
    reason: str
    """Why the model cannot be mapped; empty if it can."""
    nbytes: int
    free: int
    """Bytes of memory that were free before the model was loaded."""
    variant: str
    """The variant of the request handler in the machine's hosts, from ``_variant``."""
    peak: int | None
    """Peak bytes of the process that loaded the model."""
    loaded: Loaded | None = None
    """The model, if this process has loaded and mapped it already."""

    def give_back(self) -> None:
        """Ends the lease and closes the files."""
        self.lease.close()
        self.close_files()

    def close_files(self) -> None:
        """Closes the descriptors of the weights file and the page; mappings stay."""
        for file in (self.file, self.page):
            if file is not None:
                os.close(file)


def place_models(spec: SessionSpec, session: InferenceSession) -> HostedModels | ModelSource:
    """Places a session's models outside this process, or maps them into it.

    Args:
        spec: one thread's own copy; its handler may load a model for all processes.
        session: receives the events of loading.

    Raises:
        HeadraceError: no host can be started, or the model does not fit into memory.
        Exception: the model cannot be loaded.
    """
    report = session.events.extend
    if not spec.shared:
        return _in_own_hosts(spec, report)
    if spec.plan.routed and spec.isolated:
        return _in_own_hosts(spec, report, source=MappedModels)  # the host asks for each model when its key first comes
    if spec.plan.routed:
        return MappedModels(spec, report)
    with local_load(spec, ONLY, lambda: session.load_here(ONLY, spec.plan.models[ONLY])) as local:
        acquired = acquire(spec, ONLY, report, local)
    if isinstance(acquired, HostFailure):
        if spec.isolated:  # its own host will report this failure for each batch
            return _in_own_hosts(spec, report)
        raise load_error(acquired, spec.plan.name, spec.timeout_secs)
    return _with_machine(spec, report, acquired)


def _with_machine(spec: SessionSpec, report: Report, acquired: AcquiredModel) -> HostedModels | ModelSource:
    if spec.automatic and not _needs_sharing(spec, acquired):  # keep the lease: others must choose alike
        unshared, acquired = replace(spec, shared=frozenset()), acquired._replace(loaded=None)
        return (
            _in_own_hosts(unshared, report, acquired)
            if spec.isolated
            else MappedModels(unshared, report, acquired=acquired)
        )
    if acquired.file is None:
        return connect_shared_hosts(spec, report, acquired)
    if spec.isolated:
        return _in_own_hosts(spec, report, acquired)
    return MappedModels(spec, report, acquired=acquired)


class MappedModels(ModelSource):
    """Maps the machine's models into this process.

    Args:
        spec: of the session.
        report: receives the events of loading.
        elsewhere: a context for waiting on other processes.
        acquired: the lease on the only model, if there is only one.
    """

    def __init__(
        self,
        spec: SessionSpec,
        report: Report,
        elsewhere: WaitContext = nullcontext,
        acquired: AcquiredModel | None = None,
    ) -> None:
        self._spec = spec
        self._report = report
        self._elsewhere = elsewhere
        self._acquired = {ONLY: acquired} if acquired else {}
        """Leases for models that have not been asked for yet."""
        self._failed: Lease | None = None
        """The last failed lease: keeps the manager alive, which remembers failed loads until its last client leaves."""

    def load(self, name: Any, load_here: LoadsOwn, fresh_secs: float = 0.0) -> Loaded | None:
        """Maps the named model, or stands in for it if it lives in hosts; None if the model is not shared."""
        if name not in self._spec.shared:
            return None
        acquired = self._acquired.pop(name, None) or self._take(name, load_here, fresh_secs)
        if isinstance(acquired, HostFailure):
            raise load_error(acquired, self._spec.plan.name, self._spec.timeout_secs)
        if acquired.file is None:
            models = connect_shared_hosts(self._spec, self._report, acquired, name)
            model = HostedModelProxy(name, models, self._report, self._elsewhere)
            return Loaded(model, self._spec.transform, {})
        return self._attached(name, acquired)

    def close(self) -> None:
        """Ends the leases that are left."""
        if self.thread_budget is not None:
            self.thread_budget.release()
        for acquired in self._acquired.values():
            acquired.give_back()
        self._acquired.clear()
        self._keep_failed(None)

    def _take(self, name: Any, load_here: LoadsOwn, fresh_secs: float) -> AcquiredModel | HostFailure:
        lease = Lease(_load_request(self._spec, name, self._spec.model_identifier)._replace(fresh_secs=fresh_secs))
        try:
            if self._elsewhere is not nullcontext:  # in a host, which has a time limit
                with self._elsewhere():
                    return acquire(self._spec, name, self._report, given=lease)
            with local_load(self._spec, name, load_here) as local:
                return acquire(self._spec, name, self._report, local, lease)
        except BaseException:
            self._keep_failed(lease)
            raise

    def _keep_failed(self, lease: Lease | None) -> None:
        before, self._failed = self._failed, lease
        if before is not None:
            before.close()

    def _attached(self, name: Any, acquired: AcquiredModel) -> Loaded:
        assert acquired.file is not None
        assert acquired.page is not None
        self.thread_budget = self.thread_budget or ThreadBudget(ComputingPage.received(os.dup(acquired.page)))
        try:
            loaded = _attached(self._spec.plan.label(name) or self._spec.plan.name, acquired)
        except BaseException:
            acquired.lease.close()  # the error may outlive this call; the lease must not
            raise
        finally:
            acquired.close_files()
        return loaded._replace(lease=acquired.lease)


def _in_own_hosts(
    spec: SessionSpec, report: Report, acquired: AcquiredModel | None = None, source: Source | None = None
) -> HostedModels:
    """Starts a host for this process alone; it maps the machine's weights if that is possible."""
    keeps = ExitStack()
    preload = None
    if acquired is not None:
        keeps.callback(acquired.give_back)
    if acquired is not None and spec.shared:
        preload = Preload(_work(ONLY), acquired.file, acquired.layout, page=acquired.page)
    fork_server = ForkServerClient(
        pickle_or_explain(BatchRequestHandler(spec, source), spec.plan.name), spec.plan.name, preload=preload
    )
    return HostedModels(spec, ModelHosts(fork_server, spec.plan.name, spec.timeout_secs), report, keeps)


def connect_shared_hosts(spec: SessionSpec, report: Report, acquired: AcquiredModel, name: Any = ONLY) -> HostedModels:
    """Connects to the hosts that all processes of the machine share; takes over the model's lease."""
    lease = acquired.lease
    if acquired.variant != _variant(spec):  # these hosts run another transform's handler
        lease.close()
        lease = Lease(_load_request(spec, name, f"{spec.model_identifier}\0{_variant(spec)}"))
    copies = spec.copies_of(name)
    why = f"since {acquired.reason}" if acquired.reason else f"in {copies} copies that map the same weights"
    label = spec.plan.label(name) or spec.plan.name
    _LOGGER.info("%s: the model lives in the machine's hosts, %s.", label, why)
    return HostedModels(spec, ModelHosts(lease, spec.plan.name, spec.timeout_secs, copies), report)


def acquire(
    spec: SessionSpec, name: Any, report: Report, local: LocalLoad | None = None, given: Lease | None = None
) -> AcquiredModel | HostFailure:
    """Takes a lease on a model; a load whose process dies is repeated once.

    Something external may have killed the process.

    Args:
        spec: of the session.
        name: of the model.
        report: receives the events of loading.
        local: loads the model in this process, should the manager ask for that.
        given: the lease to use; stays the caller's to close if the model cannot be loaded.

    Returns:
        The model, or the failure of the process that was to load it.

    Raises:
        Exception: the model cannot be loaded.
    """
    lease = given or Lease(_load_request(spec, name, spec.model_identifier))

    def take() -> tuple[ModelGrant, list[int]] | HostFailure:
        taken = lease.take(local)
        if isinstance(taken, HostFailure):
            report([HostLost(spec.plan.label(name), taken.timed_out, taken.exit_text)])
            _LOGGER.warning("%s: the host %s while it was loading the model.", spec.plan.name, taken.exit_text)
        return taken

    acquired = survive_one_death(take, died)
    if isinstance(acquired, HostFailure):
        lease.close()
        return acquired
    grant, files = acquired
    file, page = files or (None, None)
    answer = decode(memoryview(grant.load_response), own=True).head
    if not isinstance(answer, Done):
        if given is None:
            lease.close()
        if local is not None and local.error is not None:
            raise local.error
        if isinstance(answer, DeviceLost):
            raise load_error(answer.failure, spec.plan.name, spec.timeout_secs)
        raise with_traceback_of(*answer.caught)
    if local is not None and local.event is not None and grant.layout is not None:
        report([local.event])
    elif grant.is_first:
        report(answer.events)
    return AcquiredModel(
        *(lease, grant.layout, file, page, grant.reason, grant.nbytes, grant.free, grant.variant, grant.peak),
        loaded=local.mapped_from(file) if local and file is not None else None,
    )


def attached(acquired: AcquiredModel) -> tuple[Loaded, float, int]:
    """Maps a model into this process. Also returns the seconds that it took and the bytes private to this process.

    Raises:
        Exception: whatever unpickling raises.
    """
    assert acquired.layout is not None
    assert acquired.file is not None
    before, started = _private(), time.perf_counter()
    loaded: Loaded = acquired.loaded or attach(acquired.file, acquired.layout)
    return loaded, time.perf_counter() - started, max(0, _private() - before)


def _attached(label: str, acquired: AcquiredModel) -> Loaded:
    assert acquired.layout is not None
    loaded, seconds, private = attached(acquired)
    text = f"{label}: mapped {acquired.layout.nbytes / 1e6:,.1f} MB in {seconds * 1e3:,.0f} ms"
    if private > max(acquired.layout.nbytes // 2, 1_000_000):
        text += (
            f", and {private / 1e6:,.1f} MB are this process's own: imports, and what its classes copy as they are "
            "unpickled, as trees and forests do"
        )
    _LOGGER.info("%s.", text)
    return loaded


def _private() -> int:
    usage = memory_of(os.getpid())
    return usage.anonymous if usage else 0


def _needs_sharing(spec: SessionSpec, acquired: AcquiredModel) -> bool:
    choice = choose(acquired.nbytes, allowed_cores(), acquired.free)
    _LOGGER.info("%s: placement='auto' has chosen %r: %s.", spec.plan.name, choice.placement, choice.why)
    return choice.shares


def _load_request(spec: SessionSpec, name: Any, identifier: str) -> LoadRequest:
    there = spec if spec.isolated else replace(spec, plan=replace(spec.plan, preprocess=(), postprocess=()))
    if spec.plan.routed:  # HostedModelProxy in the calling process handles failures
        there = replace(there, caught=(), plan=replace(there.plan, remote=frozenset(there.plan.models)))
    label = spec.plan.label(name)
    return LoadRequest(
        key=f"{spec.pipeline}\0{identifier}\0{spec.plan.cache_key(name)!r}",  # a label would not distinguish 1 from "1"
        variant=_variant(spec),
        name=f"{spec.plan.name} {label}".strip(),
        request_handler=pickle_or_explain(BatchRequestHandler(there), spec.plan.name),
        work=_work(name),
        environment=ProcessEnvironment.here(),
        copies=spec.copies_of(name),
        hosted=spec.copies_of(name) > 1,
        timeout_secs=spec.timeout_secs,
        process=new_mark().rpartition(":")[0],
        linger_secs=spec.linger_secs or 0,
        at_least=bytes_of_model_files(spec.plan.models[name]),
    )


def _variant(spec: SessionSpec) -> str:
    """Identifies what a request handler does with its model: hosts of different variants are not interchangeable."""
    return repr((spec.origin, spec.isolated, spec.timeout_secs, spec.caught, spec.branch))


def _work(name: Any) -> bytes:
    return pickle.dumps(Work(name), PROTOCOL)
