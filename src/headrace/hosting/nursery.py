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
from concurrent.futures import Future
from queue import SimpleQueue
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
_LAST_SECS = 1
"""For a zygote that ends since it is of no use."""
_TRIES = 3

T = TypeVar("T")


class Zygote:
    """One zygote process.

    Args:
        servant: pickled.
        name: of the model, for the log.
        imports: whether it shall import the servant's modules before it forks.

    Raises:
        EOFError: it has died at once.
        OSError: it cannot be started.
        RuntimeError: nor can threads, since there are too many, or since the program ends.
    """

    def __init__(self, servant: bytes, name: str, *, imports: bool) -> None:
        self._mark = new_mark()
        self._output = OutputReader(name)
        try:
            self._process, self._channel = _connected(self._mark)
        except BaseException:
            self._output.close(0)
            raise
        try:
            self._channel.send(_upbringing(servant, imports=imports), [self._output.printed, self._output.logged])
            self._output.release()
        except BrokenPipeError:
            raise EOFError(self.close()) from None
        except BaseException:
            self.close(0)
            raise

    def ready(self) -> Ready | Unfit | Failed:
        """What it says once it has imported everything.

        Raises:
            EOFError: it has died.
            TimeoutError: it takes too long.
        """
        answer: Ready | Unfit | Failed = self._channel.receive(_LONGEST_IMPORT_SECS)[0]
        return answer

    def ask(self, request: Fork | Bury, *files: int) -> int | Failed | None:
        """A host's process id, or how it has ended: None if that is not known.

        Raises:
            EOFError: the zygote has died.
            OSError: it cannot be reached, or does not answer.
        """
        self._channel.send(request, files)
        answer: int | Failed | None = self._channel.receive(_LONGEST_ANSWER_SECS)[0]
        return answer

    def kill(self) -> None:
        """Has whoever waits for it see its end; it is still to be closed."""
        self._process.kill()

    def disown(self) -> None:
        """In a fork of the owner: lets go of what is the parent's."""
        self._channel.close()
        self._process.poll()  # sees that it is no child of this process

    def close(self, patience_secs: float | None = None) -> str:
        """Ends it, its hosts and whatever they have started; returns how it ended.

        Args:
            patience_secs: how long to wait before it is killed; None: as long as an answer may take.
        """
        self._channel.shut_down()
        self._channel.close()
        try:
            self._process.wait(_LONGEST_ANSWER_SECS if patience_secs is None else patience_secs)
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
        self._newborn: Zygote | None = None
        """A zygote that is importing modules."""
        self._is_closed = False

    def fork(self, channel: int, progress: int) -> int:
        """The process id of a new host, which has the two files.

        Raises:
            HostStartError: it cannot be had.
        """
        with self._lock:
            for _ in range(_TRIES):
                self._zygote = self._zygote or self._new_zygote()
                try:
                    answer = self._zygote.ask(Fork(), channel, progress)
                except (EOFError, OSError) as error:
                    ending = self._end_zygote(error)
                except BaseException as error:
                    self._end_zygote(error)
                    raise
                else:
                    if isinstance(answer, int):
                        return answer
                    raise HostStartError(self._name, "it cannot be forked.", answer.lines if answer else ())
            raise HostStartError(self._name, f"the process that forks it {ending}, {_TRIES} times in a row.")

    def bury(self, host: int) -> int | None:
        """Kills a host and whatever it has started; returns its exit code, None if nobody knows it.

        As in ``subprocess``, minus the number of a signal that killed it.
        """
        with self._lock:
            if self._zygote is None:
                return None  # the host went with its zygote
            try:
                status = self._zygote.ask(Bury(host))
            except (EOFError, OSError) as error:
                self._end_zygote(error)
                return None
            except BaseException as error:
                self._end_zygote(error)
                raise
            return os.waitstatus_to_exitcode(status) if isinstance(status, int) else None

    def close(self) -> None:
        """Ends everything, for good."""
        self.hurry()
        with self._lock:
            self._end_zygote()

    def hurry(self) -> None:
        """Has nobody wait for a birth from now on: it fails."""
        self._is_closed = True
        if (newborn := self._newborn) is not None:
            newborn.kill()

    def disown(self) -> None:
        """In a fork of the owner: lets go of what is the parent's."""
        for zygote in (self._zygote, self._newborn):
            if zygote is not None:
                zygote.disown()

    def _end_zygote(self, error: BaseException | None = None) -> str:
        """Ends it; after an ``error``, since what it says from now on would be the answer to something else."""
        zygote, self._zygote = self._zygote, None
        if zygote is None:
            return ""
        if isinstance(error, TimeoutError):
            zygote.close(0)
            return f"did not answer for {_LONGEST_ANSWER_SECS} s"
        return zygote.close()

    def _new_zygote(self, *, again: bool = True) -> Zygote:
        """A zygote that is ready; one that dies as it imports may have been killed by an outsider, so ``again``."""
        try:
            self._newborn = zygote = Zygote(self._servant, self._name, imports=self._imports)
        except EOFError as error:
            raise HostStartError(self._name, f"it {error} as it started.") from None
        except (OSError, RuntimeError) as error:  # too few files, processes or threads
            raise HostStartError(self._name, f"{error}.") from error
        try:
            answer = self._first_words(zygote, forgives=again)
        finally:
            self._newborn = None
        if isinstance(answer, Ready):
            return zygote
        if answer is None:
            return self._new_zygote(again=False)
        zygote.close(_LAST_SECS)
        if isinstance(answer, Failed):
            raise HostStartError(self._name, "the handler cannot be unpickled there.", answer.lines)
        _LOGGER.info(
            "%s: its modules have started threads (%s) as they were imported, so each host imports them itself.",
            self._name,
            ", ".join(answer.threads),
        )
        self._imports = False
        return self._new_zygote()

    def _first_words(self, zygote: Zygote, *, forgives: bool) -> Ready | Unfit | Failed | None:
        """What it says once it has imported everything; None: it has died, and that is forgiven."""
        try:
            if self._is_closed:
                raise EOFError
            return zygote.ready()
        except TimeoutError:
            zygote.close(0)
            reason = f"its imports took {_LONGEST_IMPORT_SECS} s"
        except (EOFError, OSError):
            reason = f"it {zygote.close(0 if self._is_closed else None)}"
            if forgives and not self._is_closed:
                return None
        except BaseException:
            zygote.close(0)
            raise
        if self._is_closed:
            raise HostStartError(self._name, "its owner no longer wants one.")
        raise HostStartError(self._name, f"{reason} while it imported the handler's modules.")


def how_ended(code: int | None) -> str:
    """An exit code in words; negative: the number of a signal."""
    if code is None:
        return "was killed together with the process that had started it"
    if code >= 0:
        return f"ended itself with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _connected(mark: str) -> tuple[subprocess.Popen[bytes], Channel]:
    """A new process, and the channel to it."""
    mine, theirs = Channel.pair()
    try:
        return _STARTER.run(lambda: _start(theirs, mark)), mine
    except BaseException:
        mine.close()
        raise
    finally:
        theirs.close()


def _upbringing(servant: bytes, *, imports: bool) -> Upbringing:
    level = logging.getLogger().getEffectiveLevel()
    return Upbringing(servant, list(sys.path), _directory(), os.environ.get("PYTHONPATH"), level, imports)


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return os.sep


def _start(channel: Channel, mark: str) -> subprocess.Popen[bytes]:
    """Starts the process.

    Its parent-death signal comes when the thread that started it ends, so this runs on one that lives on.
    """
    _STARTER.end_orphans_once()
    path = [os.path.join(_directory(), entry) for entry in sys.path if isinstance(entry, str)]
    command = [sys.executable, "-m", "headrace.hosting", str(os.getpid()), str(channel.fileno())]
    return subprocess.Popen(  # noqa: S603 - this Python, with our own module
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), MARK: mark},
        cwd=os.sep,  # "-m" puts it before everything else, and what lies in the owner's may be called like our imports
        stdin=subprocess.DEVNULL,
        pass_fds=[channel.fileno()],
        start_new_session=True,  # out of reach of the terminal's Ctrl-C: its owner decides when it ends
    )


class _Starter:
    """The thread on which this process starts its zygotes; it ends when the process does, and not before."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Threads do not survive a fork."""
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._has_looked_for_orphans = False

    def run(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Starts a process there; should the wait for that be interrupted, the process is ended."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="headrace starts zygotes", daemon=True)
                thread.start()
                self._thread = thread
        started: Future[subprocess.Popen[bytes]] = Future()
        try:
            self._tasks.put(lambda: _settle(started, start))
            return started.result()
        except BaseException:
            started.add_done_callback(_undo)
            raise

    def end_orphans_once(self) -> None:
        """The first time, ends what is left of owners that have been killed."""
        if not self._has_looked_for_orphans:
            self._has_looked_for_orphans = True
            end_orphans()

    def _work(self) -> None:
        while True:
            self._tasks.get()()


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


def _undo(started: Future[subprocess.Popen[bytes]]) -> None:
    if started.exception() is None:
        process = started.result()
        process.kill()
        process.wait()


_STARTER = _Starter()
os.register_at_fork(after_in_child=_STARTER.begin)
