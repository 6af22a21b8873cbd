"""Forks model hosts: a small single-threaded process that has imported what a handler needs, and computes nothing.

Started with ``python -m headrace.hosting``. It ends, and its hosts and whatever they started with it, when its
owner does.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import pickle
import select
import signal
import sys
import threading
import traceback
import warnings
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace.hosting.channel import Channel
from headrace.hosting.host import serve
from headrace.hosting.output import divert_output
from headrace.hosting.system import adopt_orphans, be_killed_first, children, die_with_parent


@dataclass(frozen=True)
class Upbringing:
    """What the owner tells its zygote first."""

    servant: bytes
    """Pickled; it answers the requests."""
    path: list[str]
    """``sys.path``."""
    directory: str
    log_level: int
    imports: bool
    """Whether to unpickle the servant, and so import its modules, before hosts are forked or in each host."""


class Ready:
    """The zygote's answer: it can fork."""


@dataclass(frozen=True)
class Unfit:
    """The zygote's answer: it has imported modules that have started threads, which no fork survives."""

    threads: list[str]


@dataclass(frozen=True)
class Failed:
    """The zygote's answer: the servant cannot be unpickled here."""

    lines: list[str]
    """Of the traceback."""


@dataclass(frozen=True)
class Fork:
    """The owner's request for a host. Files that come with it: the host's channel, the memory for its progress."""


@dataclass(frozen=True)
class Bury:
    """The owner's request to end a host and whatever it started, and to say how it ended (as ``os.wait`` does)."""

    host: int


class _OwnerHasEnded(BaseException):
    pass


class Zygote:
    """Does what its owner asks.

    Args:
        channel: to the owner.
        upbringing: what the owner said first.
    """

    def __init__(self, channel: Channel, upbringing: Upbringing) -> None:
        self._channel = channel
        self._upbringing = upbringing
        self._servant: Any = None
        self._hosts: set[int] = set()

    def prepare(self) -> Ready | Unfit | Failed:
        """Imports what the handler needs."""
        if self._upbringing.imports:
            try:
                self._servant = pickle.loads(self._upbringing.servant)
            except Exception:
                return Failed(traceback.format_exc().splitlines())
            others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
            if others:
                return Unfit(others)
        gc.collect()
        gc.freeze()  # what hosts share should not be copied only because a collector has looked at it
        return Ready()

    def run(self) -> None:
        """Until the owner ends."""
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while True:
                select.select([self._channel], [], [])
                request, files = self._channel.receive()
                answer = self._fork(*files) if isinstance(request, Fork) else self._bury(request.host)
                self._channel.send(answer)
        except (_OwnerHasEnded, EOFError, OSError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for host in list(self._hosts):
            self._bury(host)

    def _fork(self, channel: int, progress: int) -> int:
        zygote = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of native threads: their libraries survive forks
            host = os.fork()
        if not host:
            self._become_host(zygote, channel, progress)
        with contextlib.suppress(OSError):  # either of the two may be first
            os.setpgid(host, host)
        self._hosts.add(host)
        os.close(channel)
        os.close(progress)
        return host

    def _become_host(self, zygote: int, channel: int, progress: int) -> NoReturn:
        code, to_owner = 1, Channel.inherited(channel)  # which must not be closed before this process ends
        try:
            os.setpgid(0, 0)
            die_with_parent(signal.SIGKILL, zygote)
            adopt_orphans()
            be_killed_first()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            self._channel.close()
            servant, self._servant = self._servant or pickle.loads(self._upbringing.servant), None
            serve(servant, to_owner, progress)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            logging.getLogger(__name__).critical("The model host has failed.", exc_info=True)
        finally:
            _flush()
            os._exit(code & 0xFF)

    def _bury(self, host: int) -> int:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses where only zombies are left
            os.killpg(host, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(host, signal.SIGKILL)  # should it have left its group
        _, status = os.waitpid(host, 0)
        self._hosts.discard(host)
        self._end_orphans()
        return status

    def _end_orphans(self) -> None:
        """What hosts had started and left behind has become ours; a host that lives keeps its own."""
        while orphans := set(children()) - self._hosts:
            for orphan in orphans:
                os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, 0)


def _end(*_: object) -> NoReturn:
    raise _OwnerHasEnded


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
    divert_output(printed, logged, upbringing.log_level)
    faulthandler.enable(2)
    sys.path[:] = upbringing.path
    os.chdir(upbringing.directory)
    zygote = Zygote(channel, upbringing)
    answer = zygote.prepare()
    channel.send(answer)
    if isinstance(answer, Ready):
        zygote.run()
