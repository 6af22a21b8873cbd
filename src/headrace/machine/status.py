"""This user's managers on this machine, their models and hosts, and what killed processes have left behind."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.hosts.system import kill_orphans, marked, namespace
from headrace.ipc.channel import Channel
from headrace.machine.discovery import find, is_free, manager_names, remove_stale, runtime_directory
from headrace.machine.messages import StatusRequest
from headrace.machine.shared_file import abandoned_files, remove_abandoned
from headrace.models.memory import memory_of

_TIMEOUT_SECS = 2.0
"""How long to wait for a manager: it answers in a millisecond, or never if it is stopped."""
_KILL_SECS = 2.0
"""How long to wait for killed processes to end."""
_POLL_SECS = 0.01
_BETWEEN = "a manager is about to start there, or to end."


@dataclass(frozen=True)
class ProcessState:
    """A process and its memory."""

    process: int
    pss: int | None
    """Proportional set size, in bytes: pages shared with other processes count in proportion. None: unknown."""
    private: int | None
    """Bytes in pages of this process alone; None: unknown."""


@dataclass(frozen=True)
class ModelState:
    """A model, as its manager describes it."""

    name: str
    state: str
    """``ready``, ``loading`` or ``failed``."""
    nbytes: int
    mapped: bool
    """Whether worker processes or hosts map its weights file."""
    reason: str
    """Why its weights cannot be mapped; empty if they are."""
    clients: int
    hosts: tuple[ProcessState, ...]
    linger_secs: float
    """How long it stays in memory after its last lease has ended."""


@dataclass(frozen=True)
class ManagerState:
    """A manager that answered."""

    endpoint: str
    process: ProcessState
    clients: int
    """Without the connection that asked for this state."""
    models: tuple[ModelState, ...]
    helpers: tuple[ProcessState, ...]
    """Its fork servers, and processes that its hosts have started."""


@dataclass(frozen=True)
class SilentManager:
    """An endpoint whose manager does not answer, or not intelligibly."""

    endpoint: str
    problem: str


@dataclass(frozen=True)
class MachineState:
    """Everything of Headrace's that runs, or is left over, on this machine for this user."""

    directory: str
    problem: str
    """Why the runtime directory cannot be used; empty: it can."""
    managers: tuple[ManagerState, ...]
    silent: tuple[SilentManager, ...]
    own_hosts: Mapping[int, tuple[ProcessState, ...]]
    """Unshared hosts and their fork servers, by their owner's process id."""
    stale: tuple[str, ...]
    """Endpoints that are only leftover files."""
    orphans: tuple[ProcessState, ...]
    """Hosts whose owner was killed."""
    abandoned: tuple[str, ...] = ()
    """Files of limits and budgets that no process uses, since all that did were killed."""

    @property
    def leftovers(self) -> int:
        """How many things only ``clean`` will remove."""
        return len(self.stale) + len(self.orphans) + len(self.abandoned)


def machine_status() -> MachineState:
    """Reads the state and changes nothing; takes at most a few seconds for each manager that does not answer."""
    try:
        directory, problem = runtime_directory(make=False), ""
    except ConfigurationError as error:
        directory, problem = "", str(error)
    found = [_inspect(directory, name) for name in manager_names(directory)] if directory else []
    managers = tuple(one for one in found if isinstance(one, ManagerState))
    known = {manager.process.process for manager in managers}
    own_hosts: dict[int, list[ProcessState]] = defaultdict(list)
    orphans = []
    for process, _, owner, is_orphan in marked():
        if is_orphan:
            orphans.append(_process(process))
        elif owner not in known:
            own_hosts[owner].append(_process(process))
    return MachineState(
        directory,
        problem,
        managers,
        tuple(one for one in found if isinstance(one, SilentManager)),
        {owner: tuple(hosts) for owner, hosts in own_hosts.items()},
        tuple(one for one in found if isinstance(one, str)),
        tuple(orphans),
        tuple(abandoned_files(directory)) if directory else (),
    )


def clean(state: MachineState) -> None:
    """Removes leftover files and kills orphans; spares what has come into use since ``state`` was read."""
    for name in state.stale:
        remove_stale(state.directory, name)
    for name in state.abandoned:
        remove_abandoned(os.path.join(state.directory, name))
    if state.orphans:
        kill_orphans()
        deadline = time.monotonic() + _KILL_SECS
        while any(one.is_orphan for one in marked()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECS)  # orphans are other processes' children: nothing here hears of their end


def _inspect(directory: str, name: str) -> ManagerState | SilentManager | str | None:
    """The manager at an endpoint; its name if there are only leftover files; None: nothing is left."""
    try:
        connection = find(directory, name, _TIMEOUT_SECS)
    except (OSError, ConfigurationError) as error:
        return SilentManager(name, str(error))
    if connection is not None:
        return _state(name, Channel(connection))
    if not is_free(directory, name):
        return SilentManager(name, _BETWEEN)
    return name if name in manager_names(directory) else None


def _state(name: str, channel: Channel) -> ManagerState | SilentManager:
    """Asks a manager for its state."""
    greeted = False
    try:
        channel.receive(_TIMEOUT_SECS)
        greeted = True
        channel.send(StatusRequest())
        return _parse(name, channel.receive(_TIMEOUT_SECS)[0])
    except TimeoutError:
        return SilentManager(name, f"the manager has not answered within {_TIMEOUT_SECS:g} s; is it stopped?")
    except Exception as error:  # another version's pickles may raise anything here
        if not greeted and isinstance(error, EOFError | ConnectionError):
            return SilentManager(name, _BETWEEN)
        problem = f"{type(error).__name__}: {error}".rstrip(": ")
        return SilentManager(
            name, f"the manager cannot be understood; is it of another version of Headrace? ({problem})"
        )
    finally:
        channel.close()


def _parse(name: str, answer: dict[str, Any]) -> ManagerState:
    process = answer["process"]
    is_here = answer["namespace"] == namespace()  # elsewhere the numbers of processes mean others than here
    measure = _process if is_here else lambda number: ProcessState(number, None, None)
    models = tuple(_model(model, measure) for model in answer["models"])
    hosts = {host.process for model in models for host in model.hosts}
    helpers = [one.process for one in marked() if is_here and one.owner == process and one.process not in hosts]
    return ManagerState(name, measure(process), answer["clients"] - 1, models, tuple(map(measure, helpers)))


def _model(answer: dict[str, Any], measure: Callable[[int], ProcessState]) -> ModelState:
    fields = {name: value for name, value in answer.items() if name != "key"}
    return ModelState(**{**fields, "hosts": tuple(map(measure, answer["hosts"]))})


def _process(number: int) -> ProcessState:
    usage = memory_of(number)
    return ProcessState(number, usage and usage.pss, usage and usage.private)
