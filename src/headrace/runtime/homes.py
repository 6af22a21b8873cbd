"""Finds out, once for a session, where its models live: mapped from the machine's memory, or in hosts, and whose."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
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
from headrace.hosting.memory import memory_of
from headrace.hosting.nursery import Inheritance, Nursery
from headrace.hosting.orphans import new_mark
from headrace.hosting.portable import PROTOCOL, pickled
from headrace.hosting.surroundings import Surroundings
from headrace.hosting.system import allowed_cores
from headrace.hosting.threads import ComputingPage, ThreadBudget
from headrace.runtime.artefacts import bytes_of_artefacts
from headrace.runtime.devices import DeviceLostInHostError
from headrace.runtime.elsewhere import HostedModel
from headrace.runtime.hosted_models import HostedModels
from headrace.runtime.placement import choose
from headrace.runtime.plan import ONLY
from headrace.runtime.servant import DeviceLost, Done, Elsewhere, InferenceServant, Source, Work
from headrace.runtime.session import Loaded, ModelSource, SessionSpec

_LOGGER = logging.getLogger(__name__)

Tell: TypeAlias = Callable[[Iterable[Event]], None]


class Taken(NamedTuple):
    """A share in a model of the machine's."""

    lease: Lease
    arena: Arena | None
    file: int | None
    """The arena's; None where it lives in hosts."""
    page: int | None
    """Says how many processes compute."""
    reason: str
    """Why it cannot be mapped, if so."""
    nbytes: int
    free: int
    """Bytes of memory that were free before it was loaded."""
    variant: str
    """What the machine's hosts do; see ``_variant``."""
    peak: int | None
    """Bytes that the process took, at most, that has loaded it."""

    def give_back(self) -> None:
        """Ends the share."""
        self.lease.close()
        self.close_files()

    def close_files(self) -> None:
        """Of the arena and of the page; what is mapped stays."""
        for file in (self.file, self.page):
            if file is not None:
                os.close(file)


def find_home(spec: SessionSpec, tell: Tell) -> HostedModels | ModelSource:
    """Where a session's models live that are not simply loaded into this process.

    Raises:
        HeadraceError: there is no host to be had, or no room for the model.
        Exception: the model cannot be loaded.
    """
    if not spec.shared:
        return _in_own_hosts(spec, tell)
    if spec.plan.routed and spec.isolated:
        return _in_own_hosts(spec, tell, source=MappedModels)  # it asks for each model when its key comes
    if spec.plan.routed:
        return MappedModels(spec, tell)
    taken = take(spec, ONLY, tell)
    if isinstance(taken, Loss):
        if spec.isolated:  # its own host will show what that means for batches
            return _in_own_hosts(spec, tell)
        raise load_error(spec, taken)
    return _with_machine(spec, tell, taken)


def _with_machine(spec: SessionSpec, tell: Tell, taken: Taken) -> HostedModels | ModelSource:
    if spec.automatic and not _needs_sharing(spec, taken):  # the share is kept, so that other processes find the same
        unshared = replace(spec, shared=frozenset())
        return _in_own_hosts(unshared, tell, taken) if spec.isolated else MappedModels(unshared, tell, taken=taken)
    if taken.file is None:
        return in_machines_hosts(spec, tell, taken)
    if spec.isolated:
        return _in_own_hosts(spec, tell, taken)
    return MappedModels(spec, tell, taken=taken)


class MappedModels(ModelSource):
    """Models of the machine's, mapped into this process.

    Args:
        spec: of the session.
        tell: is told of loads.
        elsewhere: a context for what other processes do.
        taken: a share in the only model, if there is only one.
    """

    def __init__(
        self, spec: SessionSpec, tell: Tell, elsewhere: Elsewhere = nullcontext, taken: Taken | None = None
    ) -> None:
        self._spec = spec
        self._tell = tell
        self._elsewhere = elsewhere
        self._taken = {ONLY: taken} if taken else {}
        """What has not been asked for yet."""
        self._failed: Lease | None = None
        """The way to the manager that knows of failed loads: were nobody there, it would end, and forget."""

    def load(self, name: Any, fresh_secs: float = 0.0) -> Loaded | None:
        """See ``ModelSource``."""
        if name not in self._spec.shared:
            return None
        taken = self._taken.pop(name, None) or self._take(name, fresh_secs)
        if isinstance(taken, Loss):
            raise load_error(self._spec, taken)
        if taken.file is None:
            models = in_machines_hosts(self._spec, self._tell, taken, name)
            model = HostedModel(name, models, self._tell, self._elsewhere)
            return Loaded(model, self._spec.transform, {})
        return self._attached(name, taken)

    def close(self) -> None:
        """See ``ModelSource``."""
        for taken in self._taken.values():
            taken.give_back()
        self._taken.clear()
        self._keep_failed(None)

    def _take(self, name: Any, fresh_secs: float) -> Taken | Loss:
        lease = Lease(_order(self._spec, name, self._spec.model_identifier)._replace(fresh_secs=fresh_secs))
        try:
            with self._elsewhere():
                return take(self._spec, name, self._tell, lease)
        except BaseException:
            self._keep_failed(lease)
            raise

    def _keep_failed(self, lease: Lease | None) -> None:
        before, self._failed = self._failed, lease
        if before is not None:
            before.close()

    def _attached(self, name: Any, taken: Taken) -> Loaded:
        assert taken.file is not None
        assert taken.page is not None
        self.thread_budget = self.thread_budget or ThreadBudget(ComputingPage.received(os.dup(taken.page)))
        try:
            loaded = _attached(self._spec.plan.label(name) or self._spec.plan.name, taken)
        except BaseException:
            taken.lease.close()  # whoever keeps the error keeps no share
            raise
        finally:
            taken.close_files()
        return loaded._replace(lease=taken.lease)


def _in_own_hosts(
    spec: SessionSpec, tell: Tell, taken: Taken | None = None, source: Source | None = None
) -> HostedModels:
    """A host for this process alone, over the machine's weights if they can be mapped."""
    keeps = ExitStack()
    inheritance = None
    if taken is not None:
        keeps.callback(taken.give_back)
    if taken is not None and spec.shared:
        inheritance = Inheritance(_work(ONLY), taken.file, taken.arena, page=taken.page)
    nursery = Nursery(pickled(InferenceServant(spec, source), spec.plan.name), spec.plan.name, inheritance=inheritance)
    return HostedModels(spec, ModelHosts(nursery, spec.plan.name, spec.timeout_secs), tell, keeps)


def in_machines_hosts(spec: SessionSpec, tell: Tell, taken: Taken, name: Any = ONLY) -> HostedModels:
    """Hosts for all of the machine's processes; the share in the model is theirs from now on."""
    lease = taken.lease
    if taken.variant != _variant(spec):  # these hosts do what another transform wants
        lease.close()
        lease = Lease(_order(spec, name, f"{spec.model_identifier}\0{_variant(spec)}"))
    copies = spec.copies_of(name)
    why = f"since {taken.reason}" if taken.reason else f"in {copies} copies that map the same weights"
    label = spec.plan.label(name) or spec.plan.name
    _LOGGER.info("%s: the model lives in the machine's hosts, %s.", label, why)
    return HostedModels(spec, ModelHosts(lease, spec.plan.name, spec.timeout_secs, copies), tell)


def take(spec: SessionSpec, name: Any, tell: Tell, given: Lease | None = None) -> Taken | Loss:
    """A share in a model. A load whose process dies is repeated once, since an outsider may have killed it.

    Args:
        spec: of the session.
        name: of the model.
        tell: is told of what happens.
        given: with what to take it; stays the caller's if it cannot be loaded.

    Raises:
        Exception: it cannot be loaded.
    """
    lease = given or Lease(_order(spec, name, spec.model_identifier))
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
    share, files = taken
    file, page = files or (None, None)
    answer = decode(memoryview(share.told), own=True).head
    if not isinstance(answer, Done):
        if given is None:
            lease.close()
        if isinstance(answer, DeviceLost):
            loss = Loss(answer.moment, timed_out=False, ending=answer.ending, device_lost=True)
            raise load_error(spec, loss)
        raise with_traceback_of(*answer.caught)
    if share.is_first:
        tell(answer.events)
    return Taken(lease, share.arena, file, page, share.reason, share.nbytes, share.free, share.variant, share.peak)


def attached(taken: Taken) -> tuple[Loaded, float, int]:
    """A model, mapped into this process; the seconds that it took, and the bytes that are this process's own.

    Raises:
        Exception: what unpickling raises.
    """
    assert taken.arena is not None
    assert taken.file is not None
    before, started = _private(), time.perf_counter()
    loaded: Loaded = attach(taken.file, taken.arena)
    return loaded, time.perf_counter() - started, max(0, _private() - before)


def _attached(label: str, taken: Taken) -> Loaded:
    assert taken.arena is not None
    loaded, seconds, private = attached(taken)
    text = f"{label}: mapped {taken.arena.nbytes / 1e6:,.1f} MB in {seconds * 1e3:,.0f} ms"
    if private > max(taken.arena.nbytes // 2, 1_000_000):
        text += (
            f", and {private / 1e6:,.1f} MB are this process's own: imports, and what its classes copy as they are "
            "unpickled, as trees and forests do"
        )
    _LOGGER.info("%s.", text)
    return loaded


def _private() -> int:
    usage = memory_of(os.getpid())
    return usage.anonymous if usage else 0


def _needs_sharing(spec: SessionSpec, taken: Taken) -> bool:
    choice = choose(taken.nbytes, allowed_cores(), taken.free)
    _LOGGER.info("%s: placement='auto' has chosen %r: %s.", spec.plan.name, choice.placement, choice.why)
    return choice.shares


def _order(spec: SessionSpec, name: Any, identifier: str) -> Order:
    there = spec if spec.isolated else replace(spec, plan=replace(spec.plan, preprocess=(), postprocess=()))
    if spec.plan.routed:  # whoever calls the model from elsewhere sees to what fails: see HostedModel
        there = replace(there, caught=(), plan=replace(there.plan, remote=frozenset(there.plan.models)))
    label = spec.plan.label(name)
    return Order(
        key=f"{spec.pipeline}\0{identifier}\0{spec.plan.stored(name)!r}",  # the label of 1 and "1" is the same
        variant=_variant(spec),
        name=f"{spec.plan.name} {label}".strip(),
        servant=pickled(InferenceServant(there), spec.plan.name),
        work=_work(name),
        surroundings=Surroundings.here(),
        copies=spec.copies_of(name),
        hosted=spec.copies_of(name) > 1,
        timeout_secs=spec.timeout_secs,
        process=new_mark().rpartition(":")[0],
        linger_secs=spec.linger_secs or 0,
        at_least=bytes_of_artefacts(spec.plan.models[name]),
    )


def _variant(spec: SessionSpec) -> str:
    """What a servant does depends on this, beside its model."""
    return repr((spec.origin, spec.isolated, spec.timeout_secs, spec.caught, spec.branch))


def _work(name: Any) -> bytes:
    return pickle.dumps(Work(name), PROTOCOL)


def load_error(spec: SessionSpec, loss: Loss) -> Exception:
    """What to raise where the process was lost that was to load a model."""
    if loss.timed_out:
        return TimeoutError(f"loading the model of {spec.plan.name} took longer than {spec.timeout_secs:g} s.")
    died = DeviceLostInHostError if loss.device_lost else HostDiedError
    return died(f"the host {loss.ending} while it was loading the model of {spec.plan.name}.")
