"""A client's share in a model of the machine: asks the manager for it and for hosts; should it die, elects another."""

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
from headrace.hosts.connection import HostFailure
from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.orphans import MANAGER, MARK
from headrace.hosts.output import OutputReader
from headrace.hosts.provider import HostExit, HostHandle
from headrace.hosts.system import offered
from headrace.ipc.channel import Channel
from headrace.ipc.segment import Segment
from headrace.ipc.weights_file import WeightsFile
from headrace.machine.discovery import find_or_launch, runtime_directory

_TRIES = 5
"""So many managers in a row may die over one request."""
_LONGEST_GREETING_SECS = 30
_LAST_WORDS_SECS = 1.0
"""How long to wait for what a loader has said that has failed."""

T = TypeVar("T")


class LoadRequest(NamedTuple):
    """What a client wants of the manager; the first one's counts for all who use the same key."""

    key: str
    variant: str
    """Hosts serve only clients with the same: their request handlers do the same."""
    name: str
    """What the log and errors call the model."""
    request_handler: bytes
    """Pickled; loads the model, and answers requests where the model lives in hosts."""
    work: bytes
    """Pickled; the request to the request handler that has it load."""
    environment: ProcessEnvironment
    copies: int
    """How many hosts there are to be."""
    hosted: bool
    """Whether hosts are wanted even if the model can be mapped."""
    timeout_secs: float | None
    """The longest that loading may take."""
    process: str
    """Whose order it is, unique on the machine: a process that has several shares computes once."""
    linger_secs: float
    """How long the model stays when nobody uses it any more."""
    at_least: int | None
    """Bytes that loading will take, if anything is known."""
    fresh_secs: float = 0.0
    """A load that raised for another client, this long ago at most, is answered with the same."""


class ModelGrant(NamedTuple):
    """The manager's answer.

    Where the client is to map the model, the file of its arena comes along, and that of the page that says how many
    processes do.
    """

    told: bytes
    """What the request handler said when it loaded, as a message."""
    arena: WeightsFile | None
    reason: str
    """Why the model lives in hosts, if it does; empty without an arena: loading failed, as ``told`` says."""
    nbytes: int
    """How many bytes the model takes."""
    is_first: bool
    """Whether it was loaded for this client."""
    variant: str
    """That of the client for which it was loaded."""
    free: int
    """Bytes of memory that were free before it was loaded."""
    peak: int | None = None
    """Bytes that the process took, at most, that has loaded it; None: not known."""

    @property
    def is_loaded(self) -> bool:
        """Whether there is a model: mapped or in hosts."""
        return self.arena is not None or bool(self.reason)


class Refused(NamedTuple):
    """The manager's answer: the model cannot be had."""

    error: HeadraceError


class JoinHost(NamedTuple):
    """A client's request for a way to a host."""

    number: int


class JoinedHost(NamedTuple):
    """The manager's answer. With it come the client's end of a channel, the progress page, and the watched file."""

    process: int


class EndHost(NamedTuple):
    """A client's request to say how a host has ended; and to kill it, if it is late."""

    process: int
    late: bool


class StatusRequest(NamedTuple):
    """A request for the manager's state."""


class Lease:
    """A share in one model, held until it is closed or forgotten; thread-safe. It is a ``HostProvider`` of the hosts.

    Args:
        order: what is wanted.
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
        """The model, which is loaded if need be; and its files, now the caller's. Or how loading ended.

        Raises:
            HeadraceError: it cannot be had.
        """
        with self._lock:
            return self._persist(self._take)

    def host(self, number: int) -> HostHandle:
        """See ``HostProvider``."""

        def join() -> HostHandle:
            if self._channel is None:
                self._retake()
            answer, files = self._ask(JoinHost(number))
            channel, progress, *watched = files
            size = os.fstat(progress).st_size
            segment = Segment(0, progress, size)
            return HostHandle(
                answer.process, Channel.inherited(channel), segment, watched[0] if watched else None, True
            )

        with self._lock:
            return self._persist(join)

    def reap(self, process: int, *, late: bool = False) -> HostExit | None:
        """See ``HostProvider``."""
        with self._lock:
            if self._channel is None:
                return None  # the host went with its manager
            try:
                ending: HostExit | None = self._ask(EndHost(process, late))[0]
            except (EOFError, OSError):
                self._disconnect()
                return None
            return ending

    def cancel_waits(self) -> None:
        """See ``HostProvider``."""
        self._is_closed = True
        channel = self._channel
        if channel is not None:
            channel.shut_down()

    def close(self) -> None:
        """Gives the share back."""
        self.cancel_waits()
        with self._lock:
            self._disconnect()

    def after_fork(self) -> None:
        """See ``HostProvider``."""
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
        if files:  # there are no hosts to be heard from
            self._end_output()
        elif not (isinstance(answer, ModelGrant) and answer.is_loaded):
            self._end_output(_LAST_WORDS_SECS)
        if isinstance(answer, ModelGrant):
            return answer, files
        if isinstance(answer, Refused):
            raise answer.error
        assert isinstance(answer, HostFailure)
        return answer

    def _retake(self) -> None:
        """After a manager has died: has the next one load the model again."""
        taken = self._take()
        if isinstance(taken, HostFailure) and not taken.timed_out:
            taken = self._take()  # an outsider may have killed the loader
        if isinstance(taken, HostFailure):
            raise HostStartError(self._load_request.name, f"it {taken.ending} while it was loading the model.")
        grant, files = taken
        for file in files:
            os.close(file)
        if not grant.is_loaded:
            raise HostStartError(
                self._load_request.name, "the model, which had been loaded before, could not be loaded again."
            )

    def _ask(self, request: Any, *files: int) -> tuple[Any, list[int]]:
        assert self._channel is not None
        self._channel.send(request, files)
        answer, received = self._channel.receive()
        if isinstance(answer, Refused) and not isinstance(request, LoadRequest):
            raise answer.error
        return answer, received

    def _persist(self, work: Callable[[], T]) -> T:
        """Does something with the manager; with another one, should one die over it."""
        for _ in range(_TRIES):
            if self._is_closed:
                raise HostStartError(self._load_request.name, "its owner no longer wants one.")
            try:
                return work()
            except (EOFError, BrokenPipeError, ConnectionError):
                self._disconnect()
            except BaseException:
                self._disconnect()
                raise
        raise HostStartError(
            self._load_request.name, f"the manager of this machine's models died {_TRIES} times in a row."
        )

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.shut_down()
            channel.close()
        self._end_output()

    def _end_output(self, patience_secs: float = 0) -> None:
        """What has come by then is passed on."""
        output, self._output = self._output, None
        if output is not None:
            output.close(patience_secs)


_ALL: WeakSet[Lease] = WeakSet()


def _reset_after_fork() -> None:
    """In a fork: the shares are the parent's, and end when it does."""
    for lease in list(_ALL):
        lease.after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)


@cache
def manager_name() -> str:
    """Of the manager for programs like this one: with another Python or another Headrace they have another manager.

    Where their virtual environments are does not matter: engines make one for each worker process.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(f"{sys.version}\0{sys.base_prefix}\0{version('headrace')}".encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _manager() -> Channel:
    """A connection to this machine's manager, which is started if there is none.

    Raises:
        EOFError: it has just ended.
        HeadraceError: there can be none.
    """
    directory, name = runtime_directory(), manager_name()
    channel = Channel(find_or_launch(directory, name, lambda lock, endpoint: _launch(directory, name, lock, endpoint)))
    try:
        channel.receive(_LONGEST_GREETING_SECS)
    except BaseException:
        channel.close()
        raise
    return channel


def _launch(directory: str, name: str, lock: int, listening: int) -> None:
    here = ProcessEnvironment.here()
    environment = {key: value for key, value in here.variables.items() if key != MARK}
    process = subprocess.Popen(  # noqa: S603 - this Python, with our own module
        [sys.executable, "-m", MANAGER, directory, name, str(lock), str(listening), str(offered())],
        env={**environment, "PYTHONPATH": here.python_path},
        cwd=os.sep,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[lock, listening],
        start_new_session=True,  # it outlives this process, and any terminal
    )
    threading.Thread(target=process.wait, name="headrace waits for the manager's end", daemon=True).start()
