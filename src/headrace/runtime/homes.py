"""Finds out, once for a session, where its models live: mapped from the machine's memory, or in hosts, and whose."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from headrace.core.errors import HostDiedError
from headrace.core.events import Event, HostLost
from headrace.hosting.arena import Arena, attach
from headrace.hosting.client import ModelHosts
from headrace.hosting.encoding import decode
from headrace.hosting.exceptions import with_traceback_of
from headrace.hosting.lease import Lease, Order
from headrace.hosting.life import Loss
from headrace.hosting.memory import memory_available, memory_of
from headrace.hosting.nursery import Inheritance, Nursery
from headrace.hosting.portable import PROTOCOL, pickled
from headrace.hosting.surroundings import Surroundings
from headrace.hosting.system import allowed_cores
from headrace.runtime.artefacts import bytes_of_artefacts
from headrace.runtime.hosted_models import HostedModels
from headrace.runtime.plan import ONLY
from headrace.runtime.servant import Done, InferenceServant, Work
from headrace.runtime.session import Loaded, ModelSource, SessionSpec

_LOGGER = logging.getLogger(__name__)

Tell: TypeAlias = Callable[[Iterable[Event]], None]


class _Taken(NamedTuple):
    """A share in a model of the machine's."""

    lease: Lease
    arena: Arena | None
    file: int | None
    reason: str
    nbytes: int

    def give_back(self) -> None:
        """Ends the share."""
        self.lease.close()
        if self.file is not None:
            os.close(self.file)


def find_home(spec: SessionSpec, tell: Tell) -> HostedModels | ModelSource:
    """Where a session's models live that are not simply loaded into this process.

    Raises:
        HeadraceError: there is no host to be had, or no room for the model.
        Exception: the model cannot be loaded.
    """
    if not spec.shared:
        return _in_own_hosts(spec, tell)
    if spec.plan.routed and spec.isolated:
        _LOGGER.info("%s: models by key are loaded by each process's host itself.", spec.plan.name)
        return _in_own_hosts(spec, tell)
    if spec.plan.routed:
        return MappedModels(spec, tell)
    taken = _take(spec, ONLY, tell)
    if isinstance(taken, Loss):
        if spec.isolated:  # its own host will show what that means for batches
            return _in_own_hosts(spec, tell)
        raise _load_error(spec, taken)
    return _with_machine(spec, tell, taken)


def _with_machine(spec: SessionSpec, tell: Tell, taken: _Taken) -> HostedModels | ModelSource:
    if spec.automatic and not _needs_sharing(spec, taken):
        taken.give_back()
        return _in_own_hosts(spec, tell) if spec.isolated else MappedModels(replace(spec, shared=frozenset()), tell)
    if taken.file is None:
        return _in_machines_hosts(spec, tell, taken)
    if spec.isolated:
        return _in_own_hosts(spec, tell, taken)
    return MappedModels(spec, tell, {ONLY: _attached(spec, ONLY, taken)})


class MappedModels(ModelSource):
    """Models of the machine's, mapped into this process.

    Args:
        spec: of the session.
        tell: is told of loads.
        mapped: those that are here already; each is given away once.
    """

    def __init__(self, spec: SessionSpec, tell: Tell, mapped: dict[Any, Loaded] | None = None) -> None:
        self._spec = spec
        self._tell = tell
        self._mapped = mapped or {}

    def load(self, name: Any) -> Loaded | None:
        """See ``ModelSource``."""
        if name in self._mapped:
            return self._mapped.pop(name)
        if name not in self._spec.shared:
            return None
        taken = _take(self._spec, name, self._tell)
        if isinstance(taken, Loss):
            raise _load_error(self._spec, taken)
        if taken.file is None:
            taken.lease.close()
            _LOGGER.info("%s: this process loads a copy of its own.", self._spec.plan.label(name))
            return None
        return _attached(self._spec, name, taken)

    def close(self) -> None:
        """See ``ModelSource``."""
        self._mapped.clear()


def _in_own_hosts(spec: SessionSpec, tell: Tell, taken: _Taken | None = None) -> HostedModels:
    """A host for this process alone, over the machine's weights if they can be mapped."""
    keeps = ExitStack()
    inheritance = None
    if taken is not None:
        assert taken.file is not None
        assert taken.arena is not None
        keeps.callback(taken.lease.close)
        keeps.callback(os.close, taken.file)
        inheritance = Inheritance(taken.file, taken.arena, _work(ONLY))
    nursery = Nursery(pickled(InferenceServant(spec), spec.plan.name), spec.plan.name, inheritance)
    return HostedModels(spec, ModelHosts(nursery, spec.plan.name, spec.timeout_secs), tell, keeps)


def _in_machines_hosts(spec: SessionSpec, tell: Tell, taken: _Taken) -> HostedModels:
    lease = taken.lease
    if spec.model_identifier != spec.origin:  # hosts know the handler of whichever transform came first
        lease.close()
        lease = Lease(_order(spec, ONLY, spec.origin))
    why = f"since {taken.reason}" if taken.reason else f"in {spec.copies} copies that map the same weights"
    _LOGGER.info("%s: the model lives in the machine's hosts, %s.", spec.plan.name, why)
    return HostedModels(spec, ModelHosts(lease, spec.plan.name, spec.timeout_secs, spec.copies), tell)


def _take(spec: SessionSpec, name: Any, tell: Tell) -> _Taken | Loss:
    """A share in a model. A load whose process dies is repeated once, since an outsider may have killed it.

    Raises:
        Exception: it cannot be loaded.
    """
    lease = Lease(_order(spec, name, spec.model_identifier))
    for again in (True, False):
        taken = lease.take()
        if not isinstance(taken, Loss):
            break
        tell([HostLost(spec.plan.label(name), taken.timed_out, taken.ending)])
        _LOGGER.warning("%s: the host %s while it was loading the model.", spec.plan.name, taken.ending)
        if taken.timed_out or not again:
            lease.close()
            return taken
    assert not isinstance(taken, Loss)
    share, file = taken
    answer = decode(memoryview(share.told), own=True).head
    if not isinstance(answer, Done):
        lease.close()
        raise with_traceback_of(*answer.caught)
    if share.is_first:
        tell(answer.events)
    return _Taken(lease, share.arena, file, share.reason, share.nbytes)


def _attached(spec: SessionSpec, name: Any, taken: _Taken) -> Loaded:
    assert taken.arena is not None
    assert taken.file is not None
    before, started = _private(), time.perf_counter()
    try:
        loaded: Loaded = attach(taken.file, taken.arena)
    finally:
        os.close(taken.file)
    seconds, private = time.perf_counter() - started, max(0, _private() - before)
    label = spec.plan.label(name) or spec.plan.name
    text = f"{label}: mapped {taken.arena.nbytes / 1e6:,.1f} MB in {seconds * 1e3:,.0f} ms"
    if private > max(taken.arena.nbytes // 2, 1_000_000):
        text += (
            f", and {private / 1e6:,.1f} MB are this process's own: imports, and what its classes copy as they are "
            "unpickled, as trees and forests do"
        )
    _LOGGER.info("%s.", text)
    return loaded._replace(lease=taken.lease)


def _private() -> int:
    usage = memory_of(os.getpid())
    return usage.private if usage else 0


def _needs_sharing(spec: SessionSpec, taken: _Taken) -> bool:
    """Whether a copy for each process would leave less than half of the free memory to everything else."""
    processes = allowed_cores()
    needed, free = taken.nbytes * processes, memory_available() + taken.nbytes
    shares = needed > free / 2
    _LOGGER.info(
        "%s: placement='auto' has chosen %s: %.2f GB for each of %d processes, one for each core, of %.2f GB that are "
        "free for models and everything else.",
        spec.plan.name,
        "'machine'" if shares else "'process'",
        taken.nbytes / 1e9,
        processes,
        free / 1e9,
    )
    return shares


def _order(spec: SessionSpec, name: Any, identifier: str) -> Order:
    there = spec if spec.isolated else replace(spec, plan=replace(spec.plan, preprocess=(), postprocess=()))
    label = spec.plan.label(name)
    return Order(
        key=f"{spec.pipeline}\0{identifier}\0{label}",
        name=f"{spec.plan.name} {label}".strip(),
        servant=pickled(InferenceServant(there), spec.plan.name),
        work=_work(name),
        surroundings=Surroundings.here(),
        copies=spec.copies,
        hosted=spec.copies > 1 and not spec.plan.routed,
        timeout_secs=spec.timeout_secs,
        linger_secs=spec.linger_secs or 0,
        at_least=bytes_of_artefacts(spec.plan.models[name]),
    )


def _work(name: Any) -> bytes:
    return pickle.dumps(Work(name), PROTOCOL)


def _load_error(spec: SessionSpec, loss: Loss) -> Exception:
    if loss.timed_out:
        return TimeoutError(f"loading the model of {spec.plan.name} took longer than {spec.timeout_secs:g} s.")
    return HostDiedError(f"the host {loss.ending} while it was loading the model of {spec.plan.name}.")
