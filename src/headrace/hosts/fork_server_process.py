"""The owner's side of one fork server: starts it, sends it requests, ends it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.fork_server_messages import (
    Failed,
    Fork,
    ForkServerConfig,
    ForkServerSetup,
    HasThreads,
    Preloaded,
    PreloadRequest,
    Ready,
    Reap,
)
from headrace.hosts.orphans import MARK, kill_marked, kill_orphans, new_mark
from headrace.hosts.output import OutputReader
from headrace.hosts.pending import Pending
from headrace.hosts.provider import HostExit, describe_exit
from headrace.ipc.channel import Channel

_LONGEST_IMPORT_SECS = 600
"""How long the imports of the handler's modules may take."""
_LONGEST_ANSWER_SECS = 60
"""Far more than a fork server needs: reaping a host takes 20 ms per GB of its memory."""


def start_fork_server(channel: Channel, environment: ProcessEnvironment, mark: str) -> subprocess.Popen[bytes]:
    """Starts a fork server; run this on ``STARTER``'s thread.

    Linux sends the parent-death signal when the thread that started a process ends, so that thread must live on.
    """
    STARTER.kill_orphans_once()
    command = [environment.executable, "-m", "headrace.hosts", str(os.getpid()), str(channel.fileno())]
    return subprocess.Popen(  # noqa: S603 - this Python, with our own module
        command,
        env={**environment.variables, "PYTHONPATH": environment.python_path, MARK: mark},
        cwd=os.sep,  # "-m" puts the working directory first on sys.path: files in the owner's may shadow our imports
        stdin=subprocess.DEVNULL,
        pass_fds=[channel.fileno()],
        start_new_session=True,  # the terminal's Ctrl-C does not reach it: its owner decides when it ends
    )


class ForkServerStarter:
    """Runs the starts of fork servers on one daemon thread, which lives until the process exits."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Resets all state, also in a forked child: threads do not survive a fork."""
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._has_looked_for_orphans = False

    def run(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Runs ``start`` on the thread and returns its process; an interrupted wait (Ctrl-C) kills the process."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="headrace starts fork servers", daemon=True)
                thread.start()
                self._thread = thread
        started: Pending[subprocess.Popen[bytes]] = Pending()
        try:
            self._tasks.put(lambda: started.run(start))
            return started.result()
        except BaseException:
            self._tasks.put(lambda: _undo(started))  # after the start
            raise

    def kill_orphans_once(self) -> None:
        """On the first call, kills processes that killed owners have left behind."""
        if not self._has_looked_for_orphans:
            self._has_looked_for_orphans = True
            kill_orphans()

    def _work(self) -> None:
        while True:
            self._tasks.get()()


def _undo(started: Pending[subprocess.Popen[bytes]]) -> None:
    with suppress(BaseException):  # it has raised
        if started.is_over():
            process = started.result()
            process.kill()
            process.wait()


STARTER = ForkServerStarter()
os.register_at_fork(after_in_child=STARTER.begin)


class ForkServerProcess:
    """One fork server process; it imports modules ahead, and waits for its configuration.

    Args:
        output: reads what it and its hosts print and log.
        environment: the environment it runs in.
        modules: to import ahead.

    Raises:
        EOFError: it exited at once.
        OSError: it cannot be started.
        RuntimeError: no thread can be started: there are too many, or the interpreter is shutting down.
    """

    def __init__(self, output: OutputReader, environment: ProcessEnvironment, modules: Sequence[str] = ()) -> None:
        self._mark = new_mark()
        self._output = output
        try:
            self._process, self._channel = _spawned(environment, self._mark)
        except BaseException:
            self._output.close(0)
            raise
        try:
            self._channel.send(ForkServerSetup(environment, modules), [self._output.printed, self._output.logged])
            self._output.release()
        except BrokenPipeError:
            raise EOFError(self.close()) from None
        except BaseException:
            self.close(0)
            raise

    def rename(self, name: str) -> None:
        """Names the model whose hosts it is going to fork, for the log."""
        self._output.name = name

    def configure(self, request_handler: bytes, environment: ProcessEnvironment, *, imports: bool) -> None:
        """Sends the configuration.

        Args:
            request_handler: the pickled request handler.
            environment: the environment it runs in from now on.
            imports: whether it imports the request handler's modules before it forks; else each host does.

        Raises:
            OSError: it has died.
        """
        self._channel.send(ForkServerConfig(request_handler, environment, imports))

    def ready(self) -> Ready | HasThreads | Failed:
        """Waits for its answer to the configuration, after it has imported everything.

        Raises:
            EOFError: it has died.
            TimeoutError: it takes longer than 600 s.
        """
        answer: Ready | HasThreads | Failed = self._receive(_LONGEST_IMPORT_SECS, "its imports took")
        return answer

    def ask(self, request: Fork | Reap | PreloadRequest, *files: int) -> int | HostExit | Preloaded | Failed | None:
        """Returns the answer to a request; for ``Reap``, None if the host still runs or is not this fork server's.

        Raises:
            EOFError: the fork server has died.
            OSError: it cannot be reached, or does not answer within 60 s.
        """
        self._channel.send(request, files)
        answer: int | HostExit | Preloaded | Failed | None = self._receive(_LONGEST_ANSWER_SECS, "did not answer for")
        return answer

    def _receive(self, timeout_secs: float, problem: str) -> Any:
        try:
            return self._channel.receive(timeout_secs)[0]
        except TimeoutError:
            raise TimeoutError(f"{problem} {timeout_secs:g} s") from None

    @property
    def process(self) -> int:
        """Its process id."""
        return self._process.pid

    def kill(self) -> None:
        """Kills it, so that every wait for its answer ends; ``close`` is still necessary."""
        self._process.kill()

    def after_fork(self) -> None:
        """In a forked child of the owner: closes the parent's channel without ending the fork server."""
        self._channel.close()
        self._process.poll()  # notes that it is no child of this process, which silences Popen's ResourceWarning

    def close(self, patience_secs: float | None = None) -> str:
        """Ends it, its hosts and every process that they started; returns how it exited, in words that follow "it".

        Args:
            patience_secs: how long to wait before it is killed; None: 60 s.
        """
        self._channel.shut_down()
        self._channel.close()
        try:
            self._process.wait(_LONGEST_ANSWER_SECS if patience_secs is None else patience_secs)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:
            kill_marked(self._mark)
        self._output.close()
        return describe_exit(self._process.returncode)


def _spawned(environment: ProcessEnvironment, mark: str) -> tuple[subprocess.Popen[bytes], Channel]:
    """Starts a fork server; returns its process and the channel to it."""
    mine, theirs = Channel.pair()
    try:
        return STARTER.run(lambda: start_fork_server(theirs, environment, mark)), mine
    except BaseException:
        mine.close()
        raise
    finally:
        theirs.close()
