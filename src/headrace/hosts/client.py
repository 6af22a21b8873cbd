"""A client's side of a model's hosts: sends requests, waits for answers, gets another host should one be lost."""

from __future__ import annotations

import os
import secrets
import threading
from itertools import count
from typing import Any
from weakref import WeakSet

from headrace.core.errors import HostStartError
from headrace.hosts.connection import Call, HostConnection, HostFailure
from headrace.hosts.provider import HostProvider
from headrace.ipc.codec import Decoded, encode

_MOST_FAILED_STARTS = 5
"""So many hosts in a row may end before they have begun any request."""


class ModelHosts:
    """One or more hosts for a model, and the next ones should they be lost; thread-safe.

    A process forked from this one may use it, too, and gets hosts of its own.

    Args:
        host provider: has the hosts.
        name: of the model, for the log and for errors.
        timeout_secs: the longest that a host may do one thing; None: any time.
        copies: how many hosts there are.
    """

    def __init__(self, provider: HostProvider, name: str, timeout_secs: float | None, copies: int = 1) -> None:
        self._provider = provider
        self._name = name
        self._timeout_secs = timeout_secs
        self.copies = copies
        self._connections: list[HostConnection | None] = [None] * copies
        self._is_closed = False
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._numbers = count(secrets.randbits(31) << 32 | 1)  # hosts that are shared show them to all their clients
        self._changing = threading.Lock()
        self._failed_starts = 0
        for connection in self._connections:
            if connection is not None:
                connection.release()

    def submit(self, head: Any, rows: list[Any]) -> Call:
        """Sends a request; several may be on their way, the host takes them in turn.

        Raises:
            HostStartError: there is no host to be had.
            Exception: the request cannot be pickled.
        """
        call = Call(next(self._numbers), encode(head, rows))
        self._send(call)
        return call

    def result(self, call: Call) -> Decoded | HostFailure:
        """Waits for the answer; a request whose host is lost through no fault of its own is sent to the next one.

        Each call has one result, and one thread that asks for it.

        Raises:
            HostStartError: there is no next host to be had.
            Exception: the answer cannot be unpickled.
        """
        while True:
            connection = call.connection
            assert connection is not None, "a call has only one result"
            if not connection.is_over:
                connection.wait(call)
            if call.reply is not None:
                return connection.read(call)
            if connection.host_failure is not None and connection.host_failure.snapshot.call == call.number:
                return connection.host_failure
            self._send(call)

    def is_ready(self, call: Call) -> bool:
        """Whether ``result`` would not wait for the host to which the request was sent."""
        connection = call.connection
        return connection is None or connection.is_over or connection.is_ready(call)

    def connection(self, number: int) -> HostConnection:
        """The host of that number, alive as far as is known.

        Raises:
            HostStartError: it cannot be had.
        """
        with self._changing:
            if self._is_closed:
                raise HostStartError(self._name, "its owner has closed it.")
            connection = self._connections[number]
            if connection is not None:
                connection.look()
            return connection if connection is not None and not connection.is_over else self._renew(number)

    def start_all(self, head: Any = None) -> None:
        """Starts the hosts that there are not yet, and sends each a request, if any, whose answer nobody waits for.

        Raises:
            HostStartError: one cannot be had.
        """
        for number, connection in enumerate(self._connections):
            if connection is None or connection.is_over:
                started = self.connection(number)
                if head is not None:
                    started.send(Call(next(self._numbers), encode(head, [])))

    @property
    def processes(self) -> list[int]:
        """Of the hosts that there are."""
        return [
            connection.process for connection in self._connections if connection is not None and not connection.is_over
        ]

    def close(self) -> None:
        """Ends the hosts, or leaves them where they are shared, for good; waits a second at most for each."""
        self._is_closed = True
        self._provider.cancel_waits()
        with self._changing:
            self.end_hosts()
            self._provider.close()

    def end_hosts(self) -> None:
        """Ends, or leaves, those that there are."""
        for connection in self._connections:
            if connection is not None:
                connection.end()

    def after_fork(self) -> None:
        """In a process forked from this one: the hosts are the parent's, which must not be disturbed."""
        self._provider.after_fork()
        self._begin()

    def _send(self, call: Call) -> None:
        while True:
            connection = self._least_loaded()
            if connection.send(call):
                return
            connection.wait(None)  # until it is seen to have ended

    def _least_loaded(self) -> HostConnection:
        with self._changing:
            if self._is_closed:
                raise HostStartError(self._name, "its owner has closed it.")
            while True:
                number = min(range(self.copies), key=lambda number: self._load(self._connections[number]))
                connection = self._connections[number]
                if connection is not None and not connection.is_over:
                    return connection
                self._renew(number)  # it may be busy with what others want of it

    @staticmethod
    def _load(connection: HostConnection | None) -> float:
        """A host that is yet to be had comes after those with nothing to do, and before all others."""
        return 0.5 if connection is None or connection.is_over else connection.load

    def _renew(self, number: int) -> HostConnection:
        self._look_at_the_dead(number)
        try:
            connection = self._connections[number] = HostConnection(self._provider, number, self._timeout_secs)
        except OSError as error:
            raise HostStartError(self._name, f"{error}.") from error
        return connection

    def _look_at_the_dead(self, number: int) -> None:
        connection = self._connections[number]
        self._failed_starts = self._failed_starts + 1 if connection and not connection.has_begun else 0
        if connection and self._failed_starts >= _MOST_FAILED_STARTS:
            self._connections[number], self._failed_starts = None, 0  # whoever asks next may try again
            raise HostStartError(
                self._name, f"it {connection.ending} before its first request, {_MOST_FAILED_STARTS} times."
            )


_ALL: WeakSet[ModelHosts] = WeakSet()


def _reset_after_fork() -> None:
    for hosts in list(_ALL):
        hosts.after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)
