"""A fork server that imports modules before it is known who needs it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress

from headrace.hosts.environment import ProcessEnvironment
from headrace.hosts.fork_server_process import ForkServerProcess
from headrace.hosts.output import OutputReader


class SpareForkServer:
    """At most one fork server that a process has started in advance; its next client takes it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: ForkServerProcess | None = None
        self._threads: int | None = None

    def start(self, name: str, modules: Sequence[str], threads: int | None = None) -> None:
        """Starts one that imports modules, while this process does the same; if that fails, there is none.

        Args:
            name: for the log, until somebody takes it.
            modules: those that the handler needs.
            threads: how many each framework may compute with; None: its default.
        """
        self.drop()
        self._threads = threads
        with suppress(EOFError, OSError, RuntimeError), self._lock:
            here = ProcessEnvironment.here()
            environment = here if threads is None else here.with_threads(threads)
            self._process = ForkServerProcess(OutputReader(name), environment, modules)

    def suits(self, environment: ProcessEnvironment | None) -> bool:
        """Whether it is for a client with this environment: this process's (None), or one with its limit of threads."""
        if self._threads is None or environment is None:
            return self._threads is None and environment is None
        return environment.threads == self._threads

    def take(self, name: str | None = None) -> ForkServerProcess | None:
        """The fork server, if there is one, which is then the caller's; ``name`` is the model's, for the log."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None and name is not None:
            process.rename(name)
        return process

    def drop(self) -> None:
        """Ends it if nobody has taken it."""
        process = self.take()
        if process is not None:
            process.kill()
            process.close(0)

    def after_fork(self) -> None:
        """In a forked child: leaves it to the parent."""
        self._lock = threading.Lock()
        process = self.take()
        if process is not None:
            process.after_fork()


SPARE = SpareForkServer()
os.register_at_fork(after_in_child=SPARE.after_fork)
