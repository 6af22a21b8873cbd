"""A client's lease of a shared model: asks the manager for the model and its hosts; replaces a manager that dies."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from headrace.core.errors import HeadraceError, HostStartError
from headrace.failures.load_policy import survive_one_death
from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.orphans import MANAGER, MARK
from headrace.hosts.output import OutputReader
from headrace.hosts.provider import HostExit, HostFailure, HostHandle, died
from headrace.hosts.system import oom_score_raise
from headrace.ipc.channel import Channel
from headrace.ipc.segment import Segment
from headrace.ipc.weights_file import WeightsLayout
from headrace.machine.discovery import find_or_launch
from headrace.machine.runtime_directory import runtime_directory

_TRIES = 5
"""How many managers in a row may die during one request."""
_GREETING_TIMEOUT_SECS = 30
_FINAL_OUTPUT_SECS = 1.0
"""How long to wait for the last output of a loader that has failed."""

T = TypeVar("T")


class LoadRequest(NamedTuple):
    """A client's request for a model; the first request for a key decides for all later ones."""

    key: str
    variant: str
    """Identifies what the request handler does; a client may join hosts of its own variant only."""
    name: str
    """The model's name in logs and errors."""
    request_handler: bytes
    """Pickled; loads the model, and answers requests if the model lives in hosts."""
    work: bytes
    """Pickled; the load request for the request handler."""
    environment: ProcessEnvironment
    copies: int
    """How many hosts to start."""
    hosted: bool
    """Whether to use hosts even if clients could map the model."""
    timeout_secs: float | None
    """Time limit for loading, in seconds."""
    process: str
    """The client's process, unique on the machine: one with several leases counts once among those that compute."""
    linger_secs: float
    """How long the model stays in memory after its last lease has ended."""
    at_least: int | None
    """A lower bound, in bytes, for what loading takes; None: unknown."""
    fresh_secs: float = 0.0
    """If loading raised for another client at most this long ago, the manager answers with that error."""


class ModelGrant(NamedTuple):
    """The manager's answer to a LoadRequest.

    If the client is to map the model, two files come along: the weights file, and the page that counts the processes
    that compute with shared models.
    """

    load_response: bytes
    """The request handler's reply to the load, an encoded message."""
    layout: WeightsLayout | None
    reason: str
    """Why there is no weights file; if empty as well, loading failed, and ``load_response`` holds the error."""
    nbytes: int
    """Memory that the model takes, in bytes."""
    is_first: bool
    """Whether it was loaded for this client."""
    variant: str
    """The variant of the client for which it was loaded."""
    free: int
    """Free memory before the load, in bytes."""
    peak: int | None = None
    """Peak memory of the process that loaded it, in bytes; None: unknown."""

    @property
    def is_loaded(self) -> bool:
        """Whether loading succeeded, be the model mapped or in hosts."""
        return self.layout is not None or bool(self.reason)


class Refused(NamedTuple):
    """The manager's answer: it cannot provide the model or the host."""

    error: HeadraceError


class JoinHost(NamedTuple):
    """A client's request to connect to the host with this number."""

    number: int


class JoinedHost(NamedTuple):
    """The manager's answer to JoinHost. Files: the client's end of a channel, the progress page, the watched file."""

    process: int


class EndHost(NamedTuple):
    """A client's question how a host ended; the manager kills it first if it is ``late``."""

    process: int
    late: bool


class StatusRequest(NamedTuple):
    """A request for the manager's state."""


class Lease:
    """Keeps one shared model in memory until closed or garbage-collected. Thread-safe.

    It is the ``HostProvider`` of the model's hosts.

    Args:
        load_request: which model, and how to load it.
    """

    def __init__(self, load_request: LoadRequest) -> None:
        self._load_request = load_request
        self._is_closed = False
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._channel: Channel | None = None
        self._output: OutputReader | None = None

    def take(self) -> tuple[ModelGrant, list[int]] | HostFailure:
        """Has the manager load the model if it is not in memory.

        Returns:
            The grant and its files, which the caller closes; or how the loading process was lost.

        Raises:
            HeadraceError: the manager refused, or managers keep dying.
        """
        with self._lock:
            return self._with_manager(self._take)

    def host(self, number: int) -> HostHandle:
        """Joins the shared host with that number, as one client of several.

        Raises:
            HeadraceError: the manager cannot provide the host, or managers keep dying.
        """

        def join() -> HostHandle:
            if self._channel is None:  # hosts die with their manager; its successor must load the model first
                self._reload()
            answer, files = self._ask(JoinHost(number))
            channel, progress, *pidfd = files
            size = os.fstat(progress).st_size
            segment = Segment(0, progress, size)
            return HostHandle(answer.process, Channel.inherited(channel), segment, pidfd[0] if pidfd else None, True)

        with self._lock:
            return self._with_manager(join)

    def reap(self, process: int, *, late: bool = False) -> HostExit | None:
        """Asks the manager how a host ended; a ``late`` one is killed for all of its clients."""
        with self._lock:
            if self._channel is None:
                return None  # the host died with its manager
            try:
                exit_text: HostExit | None = self._ask(EndHost(process, late))[0]
            except (EOFError, OSError):
                self._disconnect()
                return None
            return exit_text

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
        if self._channel is not None:
            self._channel.close()
        if self._output is not None:
            self._output.close(0)
        self._begin()

    def __del__(self) -> None:
        channel = getattr(self, "_channel", None)
        if channel is not None:
            self.close()

    def _take(self) -> tuple[ModelGrant, list[int]] | HostFailure:
        if self._channel is None:
            self._channel = _manager()
        if self._output is None:
            self._output = OutputReader(self._load_request.name)
        try:
            answer, files = self._ask(self._load_request, self._output.logged)
        finally:
            self._output.release()
        if files:  # this process maps the model, so there is no host whose output could come
            self._end_output()
        elif not (isinstance(answer, ModelGrant) and answer.is_loaded):
            self._end_output(_FINAL_OUTPUT_SECS)
        if isinstance(answer, ModelGrant):
            return answer, files
        if isinstance(answer, Refused):
            raise answer.error
        assert isinstance(answer, HostFailure)
        return answer

    def _reload(self) -> None:
        """After the manager died: has its successor load the model again."""
        taken = survive_one_death(self._take, died)
        if isinstance(taken, HostFailure):
            raise self._start_error(f"it {taken.exit_text} while it was loading the model.")
        grant, files = taken
        for file in files:
            os.close(file)
        if not grant.is_loaded:
            raise self._start_error("the model, which had been loaded before, could not be loaded again.")

    def _ask(self, request: Any, *files: int) -> tuple[Any, list[int]]:
        assert self._channel is not None
        self._channel.send(request, files)
        answer, received = self._channel.receive()
        if isinstance(answer, Refused) and not isinstance(request, LoadRequest):
            raise answer.error
        return answer, received

    def _with_manager(self, work: Callable[[], T]) -> T:
        """Runs ``work``; if the manager dies meanwhile, runs it again with the next one."""
        # End of file means that the manager died. Disconnecting makes the next try elect a manager, in this process or
        # in another client that noticed first. The bound is for a request that itself kills every manager.
        for _ in range(_TRIES):
            if self._is_closed:
                raise self._start_error("its owner no longer wants one.")
            try:
                return work()
            except (EOFError, BrokenPipeError, ConnectionError):
                self._disconnect()
            except BaseException:
                self._disconnect()
                raise
        raise self._start_error(f"the manager of this machine's models died {_TRIES} times in a row.")

    def _start_error(self, why: str) -> HostStartError:
        return HostStartError(self._load_request.name, why)

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.shut_down()
            channel.close()
        self._end_output()

    def _end_output(self, patience_secs: float = 0) -> None:
        """Stops reading the hosts' output, after passing on what has arrived within ``patience_secs`` seconds."""
        output, self._output = self._output, None
        if output is not None:
            output.close(patience_secs)


_ALL: WeakSet[Lease] = WeakSet()


def _reset_after_fork() -> None:
    """In a forked child: leases belong to the parent and end with it."""
    for lease in list(_ALL):
        lease.after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)


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
    environment = {key: value for key, value in here.variables.items() if key != MARK}
    process = subprocess.Popen(  # noqa: S603 - this Python, with our own module
        [sys.executable, "-m", MANAGER, directory, name, str(lock), str(listening), str(oom_score_raise())],
        env={**environment, "PYTHONPATH": here.python_path},
        cwd=os.sep,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[lock, listening],
        start_new_session=True,  # it outlives this process and its terminal
    )
    threading.Thread(target=process.wait, name="headrace waits for the manager's end", daemon=True).start()
