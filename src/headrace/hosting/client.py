"""A client's side of a model's hosts: sends requests, waits for answers, gets another host should one be lost."""

from __future__ import annotations

import os
import secrets
import threading
from itertools import count
from typing import Any
from weakref import WeakSet

from headrace.core.errors import HostStartError
from headrace.hosting.encoding import Decoded, encode
from headrace.hosting.life import Call, Life, Loss
from headrace.hosting.tenancy import Landlord

_MOST_STILLBORN = 5
"""So many hosts in a row may end before they have begun any request."""


class ModelHosts:
    """One or more hosts for a model, and the next ones should they be lost; thread-safe.

    A process forked from this one may use it, too, and gets hosts of its own.

    Args:
        landlord: has the hosts.
        name: of the model, for the log and for errors.
        timeout_secs: the longest that a host may do one thing; None: any time.
        copies: how many hosts there are.
    """

    def __init__(self, landlord: Landlord, name: str, timeout_secs: float | None, copies: int = 1) -> None:
        self._landlord = landlord
        self._name = name
        self._timeout_secs = timeout_secs
        self.copies = copies
        self._lives: list[Life | None] = [None] * copies
        self._is_closed = False
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._numbers = count(secrets.randbits(31) << 32 | 1)  # hosts that are shared show them to all their clients
        self._changing = threading.Lock()
        self._stillborn = 0
        for life in self._lives:
            if life is not None:
                life.let_go()

    def submit(self, head: Any, rows: list[Any]) -> Call:
        """Sends a request; several may be on their way, the host takes them in turn.

        Raises:
            HostStartError: there is no host to be had.
            Exception: the request cannot be pickled.
        """
        call = Call(next(self._numbers), encode(head, rows))
        self._send(call)
        return call

    def result(self, call: Call) -> Decoded | Loss:
        """Waits for the answer; a request whose host is lost through no fault of its own is sent to the next one.

        Each call has one result, and one thread that asks for it.

        Raises:
            HostStartError: there is no next host to be had.
            Exception: the answer cannot be unpickled.
        """
        while True:
            life = call.life
            assert life is not None, "a call has only one result"
            if not life.is_over:
                life.wait(call)
            if call.reply is not None:
                return life.read(call)
            if life.loss is not None and life.loss.moment.call == call.number:
                return life.loss
            self._send(call)

    def is_ready(self, call: Call) -> bool:
        """Whether ``result`` would not wait for the host to which the request was sent."""
        life = call.life
        return life is None or life.is_over or life.is_ready(call)

    def life(self, number: int) -> Life:
        """The host of that number, alive as far as is known.

        Raises:
            HostStartError: it cannot be had.
        """
        with self._changing:
            if self._is_closed:
                raise HostStartError(self._name, "its owner has closed it.")
            life = self._lives[number]
            if life is not None:
                life.look()
            return life if life is not None and not life.is_over else self._renew(number)

    def start_all(self, head: Any = None) -> None:
        """Starts the hosts that there are not yet, and sends each a request, if any, whose answer nobody waits for.

        Raises:
            HostStartError: one cannot be had.
        """
        for number, life in enumerate(self._lives):
            if life is None or life.is_over:
                started = self.life(number)
                if head is not None:
                    started.send(Call(next(self._numbers), encode(head, [])))

    @property
    def processes(self) -> list[int]:
        """Of the hosts that there are."""
        return [life.process for life in self._lives if life is not None and not life.is_over]

    def close(self) -> None:
        """Ends the hosts, or leaves them where they are shared, for good; waits a second at most for each."""
        self._is_closed = True
        self._landlord.hurry()
        with self._changing:
            self.end_hosts()
            self._landlord.close()

    def end_hosts(self) -> None:
        """Ends, or leaves, those that there are."""
        for life in self._lives:
            if life is not None:
                life.end()

    def disown(self) -> None:
        """In a process forked from this one: the hosts are the parent's, which must not be disturbed."""
        self._landlord.disown()
        self._begin()

    def _send(self, call: Call) -> None:
        while True:
            life = self._least_loaded()
            if life.send(call):
                return
            life.wait(None)  # until it is seen to have ended

    def _least_loaded(self) -> Life:
        with self._changing:
            if self._is_closed:
                raise HostStartError(self._name, "its owner has closed it.")
            while True:
                number = min(range(self.copies), key=lambda number: self._load(self._lives[number]))
                life = self._lives[number]
                if life is not None and not life.is_over:
                    return life
                self._renew(number)  # it may be busy with what others want of it

    @staticmethod
    def _load(life: Life | None) -> float:
        """A host that is yet to be had comes after those with nothing to do, and before all others."""
        return 0.5 if life is None or life.is_over else life.load

    def _renew(self, number: int) -> Life:
        self._look_at_the_dead(number)
        try:
            life = self._lives[number] = Life(self._landlord, number, self._timeout_secs)
        except OSError as error:
            raise HostStartError(self._name, f"{error}.") from error
        return life

    def _look_at_the_dead(self, number: int) -> None:
        life = self._lives[number]
        self._stillborn = self._stillborn + 1 if life and not life.has_begun else 0
        if life and self._stillborn >= _MOST_STILLBORN:
            self._lives[number], self._stillborn = None, 0  # whoever asks next may try again
            raise HostStartError(self._name, f"it {life.ending} before its first request, {_MOST_STILLBORN} times.")


_ALL: WeakSet[ModelHosts] = WeakSet()


def _begin_anew() -> None:
    for hosts in list(_ALL):
        hosts.disown()


os.register_at_fork(after_in_child=_begin_anew)
