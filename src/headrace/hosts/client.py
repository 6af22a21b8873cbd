"""Sends requests to a model's hosts, waits for responses, and replaces hosts that are lost."""

from __future__ import annotations

import secrets
import threading
from itertools import count
from typing import Any

from headrace.core.errors import HostStartError
from headrace.hosts.connection import Call, HostConnection
from headrace.hosts.provider import HostFailure, HostProvider
from headrace.hosts.system import reset_in_forks
from headrace.ipc.codec import Decoded, encode
from headrace.ipc.progress import ActivitySnapshot

_MOST_FAILED_STARTS = 5
"""After this many hosts in a row have exited before their first request, starting another is an error."""


class ModelHosts:
    """A model's hosts, started on first use and replaced when lost; thread-safe.

    A process forked from this one may use it, too, and gets hosts of its own.

    Args:
        provider: starts the hosts, or gives access to shared ones.
        name: the model's name, for the log and for errors.
        timeout_secs: time limit for each operation of a host; None: no limit.
        copies: number of hosts.
        side_by_side: whether a host answers any number of requests at once, as engines do.
        first: the number of the provider's first one that is meant.
    """

    def __init__(
        self,
        provider: HostProvider,
        name: str,
        timeout_secs: float | None,
        copies: int = 1,
        *,
        side_by_side: bool = False,
        first: int = 0,
    ) -> None:
        self._provider = provider
        self._name = name
        self._timeout_secs = timeout_secs
        self.copies = copies
        self._side_by_side = side_by_side
        self._first = first
        self._connections: list[HostConnection | None] = [None] * copies
        self._is_closed = False
        self.after_fork()
        reset_in_forks(self)

    def after_fork(self) -> None:
        """Starts afresh: in a forked child the hosts are the parent's."""
        # Call numbers begin with their client's, since every client of a shared host sees the current one.
        self.client = secrets.randbits(31) or 1
        self._numbers = count(first_call_of(self.client))
        self._changing = threading.Lock()
        self._failed_starts = 0
        for connection in self._connections:
            if connection is not None:
                connection.release()

    def next_number(self) -> int:
        """The next call's number; ``client_of`` tells whose it is."""
        return next(self._numbers)

    def submit(self, head: Any, rows: list[Any]) -> Call:
        """Sends a request to the least loaded host, which processes its requests in turn.

        Raises:
            HostStartError: no host can be started.
            Exception: the request cannot be pickled.
        """
        call = Call(next(self._numbers), encode(head, rows))
        self._send(call)
        return call

    def result(self, call: Call) -> Decoded | HostFailure:
        """Waits for the response. Call it once per call, from one thread.

        Returns:
            The response, or the failure of the host if this request was the one in progress when it was lost.

        Raises:
            HostStartError: the host was lost, and no other can be started.
            Exception: the response cannot be unpickled.
        """
        # Recovery: a host that is lost takes all its unfinished requests with it. Only the one in progress can be the
        # reason, and is returned as a failure for the caller to judge; the others are sent to the next host.
        while True:
            connection: HostConnection | None = call.connection
            assert connection is not None, "a call has only one result"
            if call.reply is None:
                connection.wait(call)
            if call.reply is not None:
                return connection.read(call)
            if connection.failure is not None and connection.failure.snapshot.call == call.number:
                return connection.failure
            self._send(call)

    def connection(self, number: int) -> HostConnection:
        """The connection to host ``number``, which is started if it is not known to run.

        Raises:
            HostStartError: it cannot be started.
        """
        with self._changing:
            if self._is_closed:
                raise HostStartError(self._name, "its owner has closed it.")
            connection = self._connections[number]
            return self._restart(number) if connection is None or connection.is_ready(None) else connection

    def start_all(self, head: Any = None) -> None:
        """Starts every host that does not run; sends each a request with ``head``, if any, and ignores the response.

        Raises:
            HostStartError: a host cannot be started.
        """
        for number, connection in enumerate(self._connections):
            if connection is None or connection.is_over:
                started = self.connection(number)
                if head is not None:
                    started.send(Call(next(self._numbers), encode(head, [])))

    @property
    def processes(self) -> list[int]:
        """Process ids of the running hosts."""
        return [one.process for one in self._connections if one is not None and not one.is_over]

    @property
    def snapshots(self) -> list[ActivitySnapshot]:
        """What the running hosts are doing; nothing of those that do many things at once."""
        connections = [] if self._side_by_side else self._connections
        return [found for one in connections if one is not None and (found := one.snapshot()) is not None]

    def hang_up(self) -> None:
        """As ``close``, without waiting; ``close`` is still necessary."""
        self._is_closed = True
        self._provider.cancel_waits()
        for connection in self._connections:
            if connection is not None:
                connection.hang_up()

    def close(self) -> None:
        """Ends the hosts (shared ones keep running for others) and starts no more; waits up to a second for each."""
        self._is_closed = True
        self._provider.cancel_waits()
        with self._changing:
            self.stop_hosts()
            self._provider.close()

    def stop_hosts(self) -> None:
        """Ends the running hosts, or leaves them to others where they are shared; the next request starts new ones."""
        for connection in self._connections:
            if connection is not None:
                connection.leave()

    def _send(self, call: Call) -> None:
        while True:
            connection = self._least_loaded()
            if connection.send(call):
                return
            connection.wait(None)  # sending failed: the host is ending; wait until that is noticed, then try another

    def _least_loaded(self) -> HostConnection:
        only = self._connections[0] if self.copies == 1 else None
        if only is not None and not only.is_over:
            return only
        with self._changing:
            if self._is_closed:
                raise HostStartError(self._name, "its owner has closed it.")
            while True:
                number = min(range(self.copies), key=lambda number: self._load(self._connections[number]))
                connection = self._connections[number]
                if connection is not None and not connection.is_over:
                    return connection
                self._restart(number)  # then compare again: a shared host may be busy with other clients' requests

    @staticmethod
    def _load(connection: HostConnection | None) -> float:
        """Requests in progress; 0.5 for a host not yet started, so that idle hosts go first and busy ones last."""
        return 0.5 if connection is None or connection.is_over else connection.load

    def _restart(self, number: int) -> HostConnection:
        last = self._connections[number]
        self._failed_starts = self._failed_starts + 1 if last and not last.has_begun else 0
        if last and last.failure and self._failed_starts >= _MOST_FAILED_STARTS:
            self._connections[number], self._failed_starts = None, 0  # the next request may try again
            why = f"it {last.failure.exit_text} before its first request, {_MOST_FAILED_STARTS} times."
            raise HostStartError(self._name, why)
        try:
            connection = self._connections[number] = HostConnection(
                self._provider, self._first + number, self._timeout_secs, side_by_side=self._side_by_side
            )
        except OSError as error:
            raise HostStartError(self._name, f"{error}.") from error
        if self._is_closed:  # meanwhile: ``hang_up`` has not seen it
            connection.hang_up()
        return connection


def first_call_of(client: int) -> int:
    """The number of a client's first call."""
    return client << 32 | 1


def client_of(call: int) -> int:
    """The number of the client (its ``ModelHosts``) that made a call; 0: none, or all of them."""
    return call >> 32
