"""Takes a lease of a model that the machine shares, which has it loaded, and maps it."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from headrace.core.engine import EngineModelHandler
from headrace.core.events import Event, HostLost
from headrace.failures.load_policy import load_error, survive_one_death
from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.orphans import new_mark
from headrace.hosts.provider import HostFailure, died
from headrace.ipc.codec import decode
from headrace.ipc.exceptions import with_traceback_of
from headrace.ipc.serialization import PROTOCOL, pickle_or_explain
from headrace.ipc.weights_file import WeightsLayout, attach
from headrace.machine.lease import Lease
from headrace.machine.messages import LoadRequest, ModelGrant
from headrace.models.memory import memory_of
from headrace.runtime.engine_host import NOT_MAPPED, EngineRequestHandler
from headrace.runtime.local_load import LocalLoad
from headrace.runtime.messages import DeviceLost, Done, Work
from headrace.runtime.model_files import bytes_of_model_files
from headrace.runtime.model_source import Loaded
from headrace.runtime.request_handler import BatchRequestHandler
from headrace.runtime.spec import SessionSpec

_LOGGER = logging.getLogger(__name__)

Report: TypeAlias = Callable[[Iterable[Event]], None]


class AcquiredModel(NamedTuple):
    """A lease on a model that the machine shares."""

    lease: Lease
    layout: WeightsLayout | None
    page: int | None
    """Descriptor of the page that counts computing processes; None if the model lives in hosts."""
    files: Sequence[int]
    """Descriptors of the layout's files; empty if the model lives in hosts."""
    reason: str
    """Why the model cannot be mapped; empty if it can."""
    nbytes: int
    free: int
    """Bytes of memory that were free before the model was loaded."""
    variant: str
    """The variant of the request handler in the machine's hosts, from ``variant_of``."""
    peak: int | None
    """Peak bytes of the process that loaded the model."""
    loaded: Loaded | None = None
    """The model, if this process has loaded and mapped it already."""
    file_bytes: int = 0
    """Bytes of the model's own files that are mapped; not in ``nbytes``."""

    def give_back(self) -> None:
        """Ends the lease and closes the files."""
        self.lease.close()
        self.close_files()

    def close_files(self) -> None:
        """Closes the descriptors of the page and the weights; mappings stay."""
        for file in self.files if self.page is None else (self.page, *self.files):
            os.close(file)


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
    lease = given or Lease(load_request_for(spec, name, spec.model_identifier))

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
    try:
        return _acquired(spec, lease, acquired, report, local)
    except BaseException:
        if given is None:
            lease.close()
        raise


def _acquired(
    spec: SessionSpec, lease: Lease, granted: tuple[ModelGrant, list[int]], report: Report, local: LocalLoad | None
) -> AcquiredModel:
    """What the manager granted; raises the error if loading failed."""
    grant, files = granted
    page, weights = (files[0], files[1:]) if files else (None, [])
    answer = decode(memoryview(grant.load_response), own=True).head
    if not isinstance(answer, Done):
        if local is not None and local.error is not None:
            raise local.error
        if isinstance(answer, DeviceLost):
            raise load_error(answer.failure, spec.plan.name, spec.timeout_secs)
        raise with_traceback_of(*answer.caught)
    mapped, events = local.mapped_from(weights[0]) if local is not None and weights else (None, [])
    report(events)
    if grant.is_first:
        report(answer.events)
    return AcquiredModel(
        *(lease, grant.layout, page, weights, grant.reason, grant.nbytes, grant.free, grant.variant, grant.peak),
        file_bytes=grant.file_bytes,
        loaded=mapped,
    )


def attached(acquired: AcquiredModel) -> tuple[Loaded, float, int]:
    """Maps a model into this process. Also returns the seconds that it took and the bytes private to this process.

    Raises:
        Exception: whatever unpickling raises.
    """
    assert acquired.layout is not None
    before, started = _private(), time.perf_counter()
    loaded: Loaded = acquired.loaded or attach(acquired.files, acquired.layout)
    return loaded, time.perf_counter() - started, max(0, _private() - before)


def _private() -> int:
    usage = memory_of(os.getpid())
    return usage.anonymous if usage else 0


def load_request_for(spec: SessionSpec, name: Any, identifier: str) -> LoadRequest:
    """The request for the named model; all that ask with the same identifier share it."""
    there = spec if spec.isolated else replace(spec, plan=replace(spec.plan, preprocess=(), postprocess=()))
    if spec.plan.routed:  # HostedModelProxy in the calling process handles failures
        there = replace(there, caught=(), plan=replace(there.plan, remote=frozenset(there.plan.models)))
    label = spec.plan.label(name)
    handler = EngineRequestHandler(there, name) if spec.has_engines_in_hosts else BatchRequestHandler(there)
    return LoadRequest(
        key=f"{spec.pipeline}\0{identifier}\0{spec.plan.cache_key(name)!r}",  # a label would not distinguish 1 from "1"
        variant=variant_of(spec),
        name=f"{spec.plan.name} {label}".strip(),
        request_handler=pickle_or_explain(handler, spec.plan.name),
        work=work_of(name),
        environment=ProcessEnvironment.here(),
        copies=spec.copies_of(name),
        hosted=spec.copies_of(name) > 1,
        timeout_secs=spec.timeout_secs,
        process=new_mark().rpartition(":")[0],
        linger_secs=spec.linger_secs or 0,
        at_least=bytes_of_model_files(spec.plan.models[name]),
        refusal=NOT_MAPPED if isinstance(spec.plan.models[name], EngineModelHandler) else "",
    )


def variant_of(spec: SessionSpec) -> str:
    """Identifies what a request handler does with its model: hosts of different variants are not interchangeable."""
    if spec.has_engines_in_hosts:  # each request says the rest
        return repr(("engine", spec.origin, spec.timeout_secs))
    return repr((spec.origin, spec.isolated, spec.timeout_secs, spec.caught, spec.branch))


def work_of(name: Any) -> bytes:
    """Pickled: what a request handler is asked when it is to load the named model."""
    return pickle.dumps(Work(name), PROTOCOL)
