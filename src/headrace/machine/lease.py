"""A client's lease of a shared model: asks the manager for the model and its hosts; replaces a manager that dies."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from headrace.core.errors import HeadraceError, HostStartError
from headrace.failures.breaker import survive_one_death
from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.host import Exported
from headrace.hosts.output import OutputReader
from headrace.hosts.provider import HostExit, HostFailure, HostHandle, died
from headrace.hosts.system import MANAGER, MARK, reset_in_forks
from headrace.ipc.channel import Channel
from headrace.ipc.segment import Segment
from headrace.machine.discovery import find_or_launch, runtime_directory
from headrace.machine.messages import EndHost, JoinHost, LoadHere, LoadRequest, ModelGrant

_TRIES = 5
"""How many managers in a row may die during one request."""
_GREETING_TIMEOUT_SECS = 30

T = TypeVar("T")
LoadsHere: TypeAlias = Callable[[], tuple[Exported, Sequence[int]]]
"""Loads a model in this process; returns the message for the manager, and the weights file if there is one."""


class Lease:
    """Keeps one shared model in memory until closed or garbage-collected. Thread-safe.

    It is the ``HostProvider`` of the model's hosts.
    """

    def __init__(self, load_request: LoadRequest) -> None:
        self._load_request = load_request
        self._is_closed = False
        self._channel: Channel | None = None
        self._output: OutputReader | None = None
        self.after_fork()
        reset_in_forks(self)

    def take(self, load_here: LoadsHere | None = None) -> tuple[ModelGrant, list[int]] | HostFailure:
        """Has the model loaded if it is not in memory.

        Args:
            load_here: loads and exports it in this process, should the manager ask for that: what it returns is for all
                clients. Called again if the manager dies meanwhile. None: a process of the manager's loads it.

        Returns:
            The grant and its files, which the caller closes; or how the loading process was lost.

        Raises:
            HeadraceError: the manager refused, or managers keep dying.
        """
        with self._lock:
            return self._with_manager(lambda: self._take(load_here))

    def host(self, number: int) -> HostHandle:
        """As of ``HostProvider``: joins a shared host, as one client of several."""

        def join() -> HostHandle:
            if self._channel is None:  # hosts die with their manager; its successor must load the model first
                self._reload()
            answer, files = self._ask(JoinHost(number))
            channel, progress, *pidfd = files
            page = Segment.received(progress)
            return HostHandle(answer, Channel.inherited(channel), page, pidfd[0] if pidfd else None, True)

        with self._lock:
            return self._with_manager(join)

    def reap(self, process: int, *, late: bool = False) -> HostExit | None:
        """As of ``HostProvider``: asks the manager; a ``late`` host is killed for all of its clients."""
        with self._lock:
            if self._channel is None:
                return None  # the host died with its manager
            try:
                ended: HostExit | None = self._ask(EndHost(process, late))[0]
            except (EOFError, OSError):
                self._disconnect()
                return None
            return ended

    def cancel_waits(self) -> None:
        """Makes every wait for the manager fail from now on."""
        self._is_closed = True
        channel = self._channel
        if channel is not None:
            channel.shut_down()

    def close(self) -> None:
        """Ends the lease."""
        self.cancel_waits()
        with self._lock:
            self._disconnect()

    def after_fork(self) -> None:
        """In a forked child: drops the parent's connection without ending the lease, and starts without one."""
        self._lock = threading.RLock()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        self._end_output()

    def __del__(self) -> None:
        channel = getattr(self, "_channel", None)
        if channel is not None:
            self.close()

    def _take(self, load_here: LoadsHere | None = None) -> tuple[ModelGrant, list[int]] | HostFailure:
        if self._channel is None:
            self._channel = _manager()
        self._end_output()
        output = self._output = OutputReader(self._load_request.name)
        try:
            answer, files = self._ask(self._load_request._replace(offers=load_here is not None), output.logged)
        finally:
            output.release()
        if isinstance(answer, LoadHere):
            assert load_here is not None
            exported, made = load_here()
            answer, files = self._ask(exported, *made)
        return (answer, files) if isinstance(answer, ModelGrant) else answer

    def _reload(self) -> None:
        """After the manager died: has its successor load the model again."""
        taken = survive_one_death(self._take, died)
        if isinstance(taken, HostFailure):
            raise HostStartError(self._load_request.name, f"it {taken.exit_text} while it was loading the model.")
        grant, files = taken
        for file in files:
            os.close(file)
        if not grant.is_loaded:
            why = "the model, which had been loaded before, could not be loaded again."
            raise HostStartError(self._load_request.name, why)

    def _ask(self, request: Any, *files: int) -> tuple[Any, list[int]]:
        assert self._channel is not None
        self._channel.send(request, files)
        answer, received = self._channel.receive()
        if isinstance(answer, HeadraceError):
            raise answer
        return answer, received

    def _with_manager(self, work: Callable[[], T]) -> T:
        """Runs ``work``; if the manager dies meanwhile, runs it again with the next one."""
        # End of file means that the manager died. Disconnecting makes the next try elect a manager, in this process or
        # in another client that noticed first. The bound is for a request that itself kills every manager.
        for _ in range(_TRIES):
            if self._is_closed:
                raise HostStartError(self._load_request.name, "its owner no longer wants one.")
            try:
                return work()
            except BaseException as error:
                self._disconnect()
                if not isinstance(error, EOFError | ConnectionError):
                    raise
        why = f"the manager of this machine's models died {_TRIES} times in a row."
        raise HostStartError(self._load_request.name, why)

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.shut_down()
            self._channel.close()
            self._channel = None
        self._end_output()

    def _end_output(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            output.close()


@cache
def manager_name() -> str:
    """Name of the manager for this Python and this Headrace; others have a manager of their own.

    The path of a virtual environment does not count: engines create one for each worker process.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(f"{sys.version}\0{sys.base_prefix}\0{version('headrace')}".encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _manager() -> Channel:
    """Connects to this machine's manager, and launches one if there is none.

    Raises:
        EOFError: it has just ended.
        HeadraceError: none can be launched.
    """
    directory, name = runtime_directory(), manager_name()
    channel = Channel(find_or_launch(directory, name, lambda lock, endpoint: _launch(directory, name, lock, endpoint)))
    try:
        channel.receive(_GREETING_TIMEOUT_SECS)
    except BaseException:
        channel.close()
        raise
    return channel


def _launch(directory: str, name: str, lock: int, listening: int) -> None:
    here = ProcessEnvironment.here()
    unmarked = replace(here, variables={key: value for key, value in here.variables.items() if key != MARK})
    files, nothing = [lock, listening], subprocess.DEVNULL
    process = unmarked.start(MANAGER, directory, name, *files, files=files, stdout=nothing, stderr=nothing)
    threading.Thread(target=process.wait, name="headrace waits for the manager's end", daemon=True).start()
