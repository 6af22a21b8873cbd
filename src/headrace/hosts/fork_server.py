"""Forks model hosts: a small single-threaded process that has imported what a handler needs, and computes nothing.

Started with ``python -m headrace.hosts``. It ends, and its hosts and whatever they started with it, when its
owner does.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace.core.files import keep_copies
from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.host import serve
from headrace.hosts.orphans import is_manager
from headrace.hosts.provider import ExitCause, HostExit
from headrace.hosts.redirect import redirect_output
from headrace.hosts.system import adopt_orphans, be_killed_first, die_with_parent, has_ended
from headrace.hosts.thread_budget import inherit_page, limit_threads
from headrace.ipc.channel import Channel
from headrace.ipc.serialization import all_reducers
from headrace.ipc.weights_file import WeightsFile, attach
from headrace.models.memory import oom_kills
from headrace.models.procfs import children

_LAST_MOMENTS_SECS = 1.0
"""For a host that closes its connections as it ends."""


@dataclass(frozen=True)
class ForkServerConfig:
    """What the owner tells its fork server first."""

    request_handler: bytes
    """Pickled; it answers the requests."""
    environment: ProcessEnvironment
    imports: bool
    """Whether to unpickle the request handler, and so import its modules, before hosts are forked or in each host."""


class Ready:
    """The fork server's answer: it can fork."""


@dataclass(frozen=True)
class HasThreads:
    """The fork server's answer: it has imported modules that have started threads, which no fork survives."""

    threads: list[str]


@dataclass(frozen=True)
class Failed:
    """The fork server's answer: the request handler cannot be unpickled here, or no host can be forked."""

    lines: list[str]
    """Of the traceback."""


@dataclass(frozen=True)
class PreloadRequest:
    """The owner's request to take what hosts that are yet to be forked should have. Its files come along."""

    arena: WeightsFile | None
    """Of a model to map."""
    work: bytes
    """Pickled; what the model was exported for."""
    copies: Sequence[str]
    """URIs of which the machine has copies: the last files."""
    has_page: bool = False
    """Whether the second file says how many processes compute."""


class Preloaded:
    """The fork server's answer: it has."""


@dataclass(frozen=True)
class Fork:
    """The owner's request for a host. Files that come with it: the host's channel, the memory for its progress."""

    environment: Mapping[str, str]
    """What this host has in its environment besides."""


@dataclass(frozen=True)
class Reap:
    """The owner's request to end a host and whatever it started, and to say how it ended."""

    host: int
    spares: bool = False
    """Whether a host is left alone that does not end by itself in a moment."""


class _OwnerEnded(BaseException):
    pass


class ForkServer:
    """Does what its owner asks.

    Args:
        channel: to the owner.
        upbringing: what the owner said first.
    """

    def __init__(self, channel: Channel, upbringing: ForkServerConfig) -> None:
        self._channel = channel
        self._upbringing = upbringing
        self._request_handler: Any = None
        self._unattached: tuple[PreloadRequest, int] | None = None
        """A model, and its file, that hosts must map themselves, since they import the modules themselves."""
        self._has_model = False
        self._hosts: dict[int, int | None] = {}
        """With how many processes the kernel had killed for want of memory when each was born."""
        self._helpers: set[int] = set()
        """Processes that modules have started as they were imported."""

    def prepare(self) -> Ready | HasThreads | Failed:
        """Imports what the handler needs."""
        if self._upbringing.imports:
            try:
                self._request_handler = pickle.loads(self._upbringing.request_handler)
                all_reducers(None)  # looks for plug-ins, which takes a while, once for all hosts
            except Exception:
                return Failed(traceback.format_exc().splitlines())
            others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
            if others:
                return HasThreads(others)
            self._helpers = set(children())
        gc.collect()
        gc.freeze()  # what hosts share should not be copied only because a collector has looked at it
        return Ready()

    def run(self) -> None:
        """Until the owner ends."""
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # children would vanish before they are waited for
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with contextlib.suppress(_OwnerEnded):  # which may come while the end of the channel is being noticed
            with contextlib.suppress(EOFError, OSError):
                self._serve()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for host in list(self._hosts):
            self._reap(host)
        self.end_helpers()
        if self._has_model:
            _flush()
            os._exit(0)  # what finalizers of the model do is for hosts to do, which have used it

    def end_helpers(self) -> None:
        """Ends what was started here, and is no host."""
        self._helpers = set()
        self._end_orphans()

    def _serve(self) -> NoReturn:
        while True:
            request, files = self._channel.receive()
            answer: Any
            if isinstance(request, Fork):
                answer = self._fork(request, *files)
            elif isinstance(request, PreloadRequest):
                answer = self._attach(request, files)
            else:
                answer = self._reap(request.host, spares=request.spares)
            self._channel.send(answer)

    def _attach(self, request: PreloadRequest, files: list[int]) -> Preloaded | Failed:
        copies = files[len(files) - len(request.copies) :]
        keep_copies(dict(zip(request.copies, copies, strict=True)))
        if request.has_page:
            inherit_page(files[1])
        if request.arena is None:
            return Preloaded()
        file = files[0]
        if self._request_handler is None:
            self._unattached = request, file
            return Preloaded()
        try:
            _attach(self._request_handler, request, file)
        except Exception:
            return Failed(traceback.format_exc().splitlines())
        finally:
            os.close(file)
        self._has_model = True
        gc.collect()
        gc.freeze()
        return Preloaded()

    def _fork(self, request: Fork, channel: int, progress: int) -> int | Failed:
        fork_server, killed = os.getpid(), oom_kills()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until it is clear whose it is
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of native threads: their libraries survive forks
                host = os.fork()
            if not host:
                os.environ.update(request.environment)
                self._become_host(fork_server, channel, progress)
            self._hosts[host] = killed
        except OSError:
            return Failed(traceback.format_exc().splitlines())
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            os.close(channel)
            os.close(progress)
        with contextlib.suppress(OSError):  # either of the two may be first
            os.setpgid(host, host)
        return host

    def _become_host(self, fork_server: int, channel: int, progress: int) -> NoReturn:
        code = 1
        try:
            to_owner = Channel.inherited(channel)  # a name, so that it is not closed before this process ends
            os.setpgid(0, 0)
            die_with_parent(signal.SIGKILL, fork_server)
            adopt_orphans()
            be_killed_first()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            self._channel.close()
            request_handler, self._request_handler = (
                self._request_handler or pickle.loads(self._upbringing.request_handler),
                None,
            )
            threads = self._upbringing.environment.threads
            if threads is not None:
                limit_threads(threads)
            if self._unattached is not None:
                _attach(request_handler, *self._unattached)
            serve(request_handler, to_owner, progress)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            logging.getLogger(__name__).critical("The model host has failed.", exc_info=True)
        finally:
            _flush()
            os._exit(code & 0xFF)

    def _reap(self, host: int, *, spares: bool = False) -> HostExit | None:
        if host not in self._hosts:
            return None
        ending = HostExit(None)
        with contextlib.suppress(ChildProcessError):  # a module had children waited for: the number is free for others
            ended_itself = has_ended(host, _LAST_MOMENTS_SECS if spares else 0)
            if spares and not ended_itself:
                return None
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses where only zombies are left
                os.killpg(host, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(host, signal.SIGKILL)  # should it have left its group
            code = os.waitstatus_to_exitcode(os.waitpid(host, 0)[1])
            is_killed = ended_itself and code == -signal.SIGKILL
            ending = HostExit(code, self._why_killed(host) if is_killed else ExitCause.OTHER)
        self._hosts.pop(host)
        self._end_orphans()
        return ending

    def _why_killed(self, host: int) -> ExitCause:
        before, now = self._hosts[host], oom_kills()
        if before is None or now is None:
            return ExitCause.UNKNOWN
        if now <= before:
            return ExitCause.OTHER
        for other, count in self._hosts.items():  # each kill explains the end of one host
            self._hosts[other] = None if count is None else count + 1
        return ExitCause.MEMORY

    def _end_orphans(self) -> None:
        """What hosts had started and left behind has become ours; a host that lives keeps its own.

        A manager is everybody's.
        """
        kept = self._hosts.keys() | self._helpers
        while orphans := [child for child in children() if child not in kept and not is_manager(child)]:
            for orphan in orphans:
                with contextlib.suppress(ChildProcessError):  # as above
                    if not has_ended(orphan):
                        os.kill(orphan, signal.SIGKILL)
                    os.waitpid(orphan, 0)


def _attach(request_handler: Any, request: PreloadRequest, file: int) -> None:
    assert request.arena is not None
    request_handler.attach(pickle.loads(request.work), attach(file, request.arena))


def _end(*_: object) -> NoReturn:
    raise _OwnerEnded


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def main() -> None:
    """Takes the owner's process id and the descriptor of the channel as its arguments."""
    owner, descriptor = map(int, sys.argv[1:])
    die_with_parent(signal.SIGTERM, owner)
    adopt_orphans()
    channel = Channel.inherited(descriptor)
    upbringing, (printed, logged) = channel.receive()
    redirect_output(printed, logged, upbringing.environment.log_level)
    faulthandler.enable(2)
    upbringing.environment.take()
    fork_server = ForkServer(channel, upbringing)
    answer = fork_server.prepare()
    if isinstance(answer, Ready):
        channel.send(answer)
        fork_server.run()
    else:
        fork_server.end_helpers()
        channel.send(answer)
