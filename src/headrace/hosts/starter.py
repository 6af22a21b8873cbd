"""Starts fork servers from a thread that lives as long as the process."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.orphans import MARK, end_orphans
from headrace.ipc.channel import Channel

T = TypeVar("T")


def start_fork_server(channel: Channel, environment: ProcessEnvironment, mark: str) -> subprocess.Popen[bytes]:
    """Starts a fork server; run this on ``STARTER``'s thread.

    Linux sends the parent-death signal when the thread that started a process ends, so that thread must live on.
    """
    STARTER.end_orphans_once()
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
        started: Future[subprocess.Popen[bytes]] = Future()
        try:
            self._tasks.put(lambda: _settle(started, start))
            return started.result()
        except BaseException:
            started.add_done_callback(_undo)
            raise

    def end_orphans_once(self) -> None:
        """On the first call, kills processes that killed owners have left behind."""
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


STARTER = ForkServerStarter()
os.register_at_fork(after_in_child=STARTER.begin)
