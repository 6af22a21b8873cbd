"""The process that holds a machine's models for all of a user's programs; ``python -m headrace.machine.manager``.

One thread accepts clients, one serves each client, one loads each model. A connection is a lease: when it closes, for
whatever reason, the client no longer keeps its model in memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import sys
import threading
import time
from typing import Any

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError
from headrace.hosts.system import KILLED_FIRST, change_oom_score, namespace
from headrace.ipc.channel import Channel, is_readable
from headrace.machine.discovery import ManagerEndpoint
from headrace.machine.messages import EndHost, JoinHost, LoadRequest, StatusRequest
from headrace.machine.model_table import ModelTable

_FIRST_CLIENT_SECS = 10.0
"""A manager that no client has connected to within this time exits."""
_RETRY_SECS = 0.1
"""After how long a client is accepted again, once that has failed."""


class Manager:
    """Serves clients until there are none, and no model lingers."""

    def __init__(self, endpoint: ManagerEndpoint, clock: Clock | None = None) -> None:
        self._endpoint = endpoint
        self._models = ModelTable(clock or SystemClock())

    def run(self) -> None:
        """Serves until the last client has left and the last model has lingered long enough."""
        if is_readable(self._endpoint.fileno(), _FIRST_CLIENT_SECS):
            self._accept_client()
            threading.Thread(target=self._accept_clients, name="welcomes clients", daemon=True).start()
            self._models.run()
        self._endpoint.remove()

    def status(self) -> dict[str, Any]:
        """The manager's state in plain values, which other versions of Headrace can unpickle."""
        return {"process": os.getpid(), "namespace": namespace(), **self._models.describe()}

    def _accept_clients(self) -> None:
        while self._endpoint.fileno() >= 0:
            self._accept_client()

    def _accept_client(self) -> None:
        try:
            channel = Channel(self._endpoint.accept())
        except OSError:  # the endpoint was removed; or too many files are open, which may pass, but not at once
            time.sleep(_RETRY_SECS)
            return
        self._models.join(channel)
        threading.Thread(target=self._serve, args=[channel], name="serves a client", daemon=True).start()

    def _serve(self, channel: Channel) -> None:
        try:
            channel.send("welcome")
            while True:
                request, files = channel.receive()
                self._answer(channel, request, files)
        except (EOFError, OSError, pickle.UnpicklingError):
            pass
        finally:
            self._models.leave(channel)
            channel.close()

    def _answer(self, channel: Channel, request: Any, files: list[int]) -> None:
        if isinstance(request, LoadRequest):
            channel.send(*self._models.take(channel, request, files[0]))
        elif isinstance(request, StatusRequest):
            channel.send(self.status())
        elif isinstance(request, EndHost):
            channel.send(self._models.model_of(channel).reap(request.process, late=request.late))
        else:
            self._join(channel, request)

    def _join(self, channel: Channel, request: JoinHost) -> None:
        try:
            process, files = self._models.model_of(channel).join(request.number)
        except HeadraceError as error:
            channel.send(error)
            return
        try:
            channel.send(process, files)
        finally:
            for file in files:
                os.close(file)


def main() -> None:
    """Arguments: the runtime directory, the endpoint's name, the descriptors of its lock and its socket."""
    directory, name, lock, listening = sys.argv[1:]
    change_oom_score(-KILLED_FIRST)  # a host may have started it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS allows fewer than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Manager(ManagerEndpoint(directory, name, int(lock), int(listening))).run()


if __name__ == "__main__":
    main()
