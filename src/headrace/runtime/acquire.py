"""Takes a lease of a model that the machine shares, which this process or a host loads for all, and maps it."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from headrace.core.engine import EngineModelHandler
from headrace.core.events import Event, HostLost, ModelLoaded
from headrace.core.result import Caught
from headrace.failures.breaker import survive_one_death
from headrace.hosts.environment import ProcessEnvironment, has_accelerator
from headrace.hosts.host import Exported, Response, encoded
from headrace.hosts.provider import HostFailure, died, load_error
from headrace.hosts.system import new_mark
from headrace.ipc.codec import decode
from headrace.ipc.serialization import PROTOCOL, pickle_or_explain, with_traceback_of
from headrace.ipc.weights_file import NotMappableError, attach, export
from headrace.machine.lease import Lease
from headrace.machine.messages import LoadRequest, ModelGrant
from headrace.models.memory import memory_of, resident_bytes, trim_memory
from headrace.runtime.engines import NOT_MAPPED, EngineRequestHandler
from headrace.runtime.model_source import Loaded, LoadsOwn, bytes_of_model_files
from headrace.runtime.request_handler import BatchRequestHandler, Done, Work, raised
from headrace.runtime.spec import SessionSpec

_LOGGER = logging.getLogger(__name__)

Report: TypeAlias = Callable[[Iterable[Event]], None]


class AcquiredModel(NamedTuple):
    """A lease on a model that the machine shares."""

    lease: Lease
    grant: ModelGrant
    page: int | None
    """Descriptor of the page that counts computing processes; None if the model lives in hosts."""
    files: Sequence[int]
    """Descriptors of the layout's files; empty if the model lives in hosts."""
    loaded: Loaded | None = None
    """The model, if this process has loaded and mapped it already."""

    def give_back(self) -> None:
        """Ends the lease and closes the files."""
        self.lease.close()
        self.close_files()

    def close_files(self) -> None:
        """Closes the descriptors of the page and the weights; mappings stay."""
        for file in self.files if self.page is None else (self.page, *self.files):
            os.close(file)


def acquire(spec: SessionSpec, name: Any, report: Report, load: LoadsOwn | None = None) -> AcquiredModel:
    """Takes a lease on a model; ``load`` loads it in this process for all, should the manager ask for that.

    A load whose process dies is repeated once: something external may have killed it.

    Raises:
        HostDiedError, TimeoutError: the process that was to load it died, or took too long; with ``of_host``, unlike
            the handler's own.
        Exception: the model cannot be loaded.
    """
    lease = Lease(load_request_for(spec, name, spec.model_identifier))
    local = LocalLoad(load) if load is not None and _may_load_here(spec, name) else None

    def take() -> tuple[ModelGrant, list[int]] | HostFailure:
        taken = lease.take(local)
        if isinstance(taken, HostFailure):
            report([HostLost(spec.plan.label(name), taken.timed_out, taken.exit_text)])
            _LOGGER.warning("%s: the host %s while it was loading the model.", spec.plan.name, taken.exit_text)
        return taken

    try:
        granted = survive_one_death(take, died)
        if isinstance(granted, HostFailure):
            lost = load_error(granted, spec.plan.name, spec.timeout_secs)
            vars(lost)["of_host"] = True
            raise lost
        return _acquired(spec, lease, granted, report, local)
    except BaseException:
        lease.close()
        raise
    finally:
        if local is not None:
            local.close()


def _acquired(
    spec: SessionSpec, lease: Lease, granted: tuple[ModelGrant, list[int]], report: Report, local: LocalLoad | None
) -> AcquiredModel:
    """What the manager granted; raises the error if loading failed."""
    grant, files = granted
    page, weights = (files[0], files[1:]) if files else (None, [])
    answer = decode(memoryview(grant.exported.load_response), own=True).head
    if not isinstance(answer, Done):
        if local is not None and local.error is not None:
            raise local.error
        if isinstance(answer, HostFailure):
            raise load_error(answer, spec.plan.name, spec.timeout_secs)
        raise with_traceback_of(*answer.caught)
    mapped, events = local.mapped_from(weights[0]) if local is not None and weights else (None, [])
    report(events)
    if grant.is_first:
        report(answer.events)
    return AcquiredModel(lease, grant, page, weights, mapped)


def attached(acquired: AcquiredModel) -> tuple[Loaded, float, int]:
    """Maps a model into this process. Also returns the seconds that it took and the bytes private to this process."""
    assert acquired.grant.exported.layout is not None
    before, started = memory_of(os.getpid()), time.perf_counter()
    loaded: Loaded = acquired.loaded or attach(acquired.files, acquired.grant.exported.layout)
    seconds, after = time.perf_counter() - started, memory_of(os.getpid())
    return loaded, seconds, max(0, after.anonymous - before.anonymous) if before and after else 0


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


def lease_for(spec: SessionSpec, name: Any, acquired: AcquiredModel) -> Lease:
    """The lease on a model; one on a model of its own if the hosts of that one run another transform's handler."""
    if acquired.grant.variant == variant_of(spec):
        return acquired.lease
    acquired.lease.close()
    return Lease(load_request_for(spec, name, f"{spec.model_identifier}\0{variant_of(spec)}"))


def work_of(name: Any) -> bytes:
    """Pickled: what a request handler is asked when it is to load the named model."""
    return pickle.dumps(Work(name), PROTOCOL)


class LocalLoad:
    """One load of a model in this process, for the machine's manager; call it as often as a manager asks.

    Attributes:
        error: what ``load`` raised.
    """

    def __init__(self, load: LoadsOwn) -> None:
        self._load = load
        self._exported: Exported | None = None
        self._files: list[int] = []
        self.error: Exception | None = None
        self._events: list[ModelLoaded] = []
        self._mapped: Loaded | None = None

    def __call__(self) -> tuple[Exported, list[int]]:
        """Loads and exports the model, the first time; returns the answer to the manager, and the weights file."""
        if self._exported is None:
            self._exported = self._load_and_export()
        return self._exported, self._files

    def mapped_from(self, file: int) -> tuple[Loaded | None, list[ModelLoaded]]:
        """The model and the event of its load, if this process has mapped it from that weights file already."""
        is_ours = bool(self._files) and os.path.sameopenfile(file, self._files[0])
        return (self._mapped, self._events) if is_ours else (None, [])

    def close(self) -> None:
        """Closes the weights file; the mapping lasts as long as something else refers to the model."""
        files, self._files, self._mapped = self._files, [], None
        for file in files:
            os.close(file)

    def _load_and_export(self) -> Exported:
        resident = resident_bytes()
        try:
            loaded, event = self._load()
        except Exception as error:
            self.error = error
            return Exported(encoded(raised(Caught.of(error), [])))
        done = encoded(Response(Done([], [], [], [])))
        is_held, what = _is_held_elsewhere(loaded), "copying it failed"
        try:
            self._files, layout = export(loaded, destroys=False, moves=not is_held)
            what = "it does not unpickle"
            self._mapped = attach(self._files, layout)
        except Exception as error:  # a host loads it again
            self.close()
            is_reason = isinstance(error, NotMappableError)
            exported = Exported(done, reason=str(error) if is_reason else f"{what} ({type(error).__name__}: {error})")
        else:
            self._events = [event]
            exported = Exported(done, layout, peak=max(layout.nbytes, resident_bytes() - resident))
        del loaded
        if is_held or exported.reason:
            trim_memory()  # what is in a reference cycle is freed only by the garbage collector
        return exported


def _may_load_here(spec: SessionSpec, name: Any) -> bool:
    """Whether this process should load the named model for others.

    Not if the model has to be in hosts anyway. Nor if its weights cannot be mapped, or may be on a device: the worker
    would load it in vain, and the framework may keep part of the device's memory. Where neither the handler nor the
    machine tells, the worker tries it.
    """
    mappable = getattr(spec.plan.models[name], "mappable", None)
    if spec.isolated or spec.copies_of(name) > 1:
        return False
    return not has_accelerator(os.environ) if mappable is None else bool(mappable)


def _is_held_elsewhere(loaded: Loaded) -> bool:
    """Whether something refers to the model already: a cache, or the model itself.

    Other threads may be computing with what is in a cache, and would go on in memory that moving an array has freed.
    """
    alone = Loaded(object(), "", {})
    changed = sum(value is loaded.model for values in loaded.changes.values() for value in values.values())
    return sys.getrefcount(loaded.model) > sys.getrefcount(alone.model) + changed
