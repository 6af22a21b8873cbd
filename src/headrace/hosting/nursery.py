"""The owner's side of a zygote: starts it, has it fork and bury hosts, starts another when it has died."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.core.errors import HostStartError
from headrace.hosting.channel import Channel
from headrace.hosting.orphans import MARK, end_marked, end_orphans, new_mark
from headrace.hosting.output import OutputReader
from headrace.hosting.zygote import Bury, Failed, Fork, Ready, Unfit, Upbringing

_LOGGER = logging.getLogger(__name__)
_LONGEST_IMPORT_SECS = 600
_LONGEST_ANSWER_SECS = 60
"""A zygote computes nothing; to reap a host takes it 20 ms for each GB of its memory."""
_TRIES = 3

T = TypeVar("T")


class Zygote:
    """One zygote process.

    Args:
        servant: pickled.
        name: of the model, for the log.
        imports: whether it shall import the servant's modules before it forks.
    """

    def __init__(self, servant: bytes, name: str, *, imports: bool) -> None:
        self._mark = new_mark()
        self._output = OutputReader(name)
        mine, yours = Channel.pair()
        self._channel = mine
        try:
            self._process = _on_starting_thread(lambda: _start(yours, self._mark))
            upbringing = Upbringing(
                servant, list(sys.path), os.getcwd(), logging.getLogger().getEffectiveLevel(), imports
            )
            mine.send(upbringing, [self._output.printed, self._output.logged])
        finally:
            yours.close()
            self._output.release()

    def ready(self) -> Ready | Unfit | Failed:
        """What it says once it has imported everything.

        Raises:
            EOFError: it has died.
            TimeoutError: it takes too long.
        """
        answer: Ready | Unfit | Failed = self._channel.receive(_LONGEST_IMPORT_SECS)[0]
        return answer

    def ask(self, request: Fork | Bury, *files: int) -> int:
        """A host's process id, or how it has ended.

        Raises:
            EOFError: the zygote has died.
            OSError: it cannot be reached, or does not answer.
        """
        self._channel.send(request, files)
        answer: int = self._channel.receive(_LONGEST_ANSWER_SECS)[0]
        return answer

    def close(self) -> str:
        """Ends it, its hosts and whatever they have started; returns how it ended."""
        self._channel.close()
        try:
            self._process.wait(_LONGEST_ANSWER_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:
            end_marked(self._mark)
        self._output.close()
        return how_ended(self._process.returncode)


class Nursery:
    """Gives birth to hosts, and buries them; thread-safe.

    Args:
        servant: pickled; answers the requests of every host.
        name: of the model, for the log and for errors.
    """

    def __init__(self, servant: bytes, name: str) -> None:
        self._servant = servant
        self._name = name
        self._imports = True
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None

    def fork(self, channel: int, progress: int) -> int:
        """The process id of a new host, which has the two files.

        Raises:
            HostStartError: it cannot be had.
        """
        with self._lock:
            for _ in range(_TRIES):
                zygote = self._zygote or self._new_zygote()
                try:
                    return zygote.ask(Fork(), channel, progress)
                except (EOFError, OSError):
                    ending = self._end_zygote()
            raise HostStartError(self._name, f"the process that forks it {ending}, {_TRIES} times in a row.")

    def bury(self, host: int) -> int | None:
        """Kills a host and whatever it has started; returns its exit code, None if nobody knows it.

        As in ``subprocess``, minus the number of a signal that killed it.
        """
        with self._lock:
            if self._zygote is None:
                return None  # the host went with its zygote
            try:
                return os.waitstatus_to_exitcode(self._zygote.ask(Bury(host)))
            except (EOFError, OSError):
                self._end_zygote()
                return None

    def close(self) -> None:
        """Ends everything."""
        with self._lock:
            self._end_zygote()

    def _end_zygote(self) -> str:
        zygote, self._zygote = self._zygote, None
        return zygote.close() if zygote is not None else ""

    def _new_zygote(self) -> Zygote:
        zygote = Zygote(self._servant, self._name, imports=self._imports)
        try:
            answer = zygote.ready()
        except (EOFError, OSError) as error:
            ending = zygote.close()
            reason = f"its imports took {_LONGEST_IMPORT_SECS} s" if isinstance(error, TimeoutError) else f"it {ending}"
            raise HostStartError(self._name, f"{reason} while it imported the handler's modules.") from None
        except BaseException:
            zygote.close()
            raise
        if isinstance(answer, Ready):
            self._zygote = zygote
            return zygote
        zygote.close()
        if isinstance(answer, Failed):
            raise HostStartError(self._name, "the handler cannot be unpickled there.", answer.lines)
        _LOGGER.info(
            "%s: its modules have started threads (%s) as they were imported, so each host imports them itself.",
            self._name,
            ", ".join(answer.threads),
        )
        self._imports = False
        return self._new_zygote()


def how_ended(code: int | None) -> str:
    """An exit code in words; negative: the number of a signal."""
    if code is None:
        return "was killed together with the process that had started it"
    if code >= 0:
        return f"ended itself with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _start(channel: Channel, mark: str) -> subprocess.Popen[bytes]:
    """Starts the process.

    Its parent-death signal comes when the thread that started it ends, so this runs on one that lives on.
    """
    _end_orphans_once()
    path = os.pathsep.join([entry or os.getcwd() for entry in sys.path])
    command = [sys.executable, "-m", "headrace.hosting", str(os.getpid()), str(channel.fileno())]
    return subprocess.Popen(  # noqa: S603 - this Python, with our own module
        command,
        env={**os.environ, "PYTHONPATH": path, MARK: mark},
        stdin=subprocess.DEVNULL,
        pass_fds=[channel.fileno()],
        start_new_session=True,  # out of reach of the terminal's Ctrl-C: its owner decides when it ends
    )


class _Starter:
    """The thread on which this process starts its zygotes."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.thread = ThreadPoolExecutor(1, "headrace-starts-zygotes")
        self.has_looked_for_orphans = False


_starter = _Starter()
os.register_at_fork(after_in_child=_starter.renew)  # threads do not survive a fork


def _on_starting_thread(start: Callable[[], T]) -> T:
    return _starter.thread.submit(start).result()


def _end_orphans_once() -> None:
    if not _starter.has_looked_for_orphans:
        _starter.has_looked_for_orphans = True
        end_orphans()
