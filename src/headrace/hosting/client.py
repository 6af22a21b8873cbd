"""The owner's side of a model host: sends requests, waits for answers, has another one started should it be lost."""

from __future__ import annotations

import os
import threading
from itertools import count
from typing import Any
from weakref import WeakSet

from headrace.core.errors import HostStartError
from headrace.hosting.encoding import Decoded, encode
from headrace.hosting.life import Call, Life, Loss
from headrace.hosting.nursery import Nursery

_MOST_STILLBORN = 5
"""So many hosts in a row may end before they have begun any request."""


class ModelHost:
    """A host for a model, and the next one should that be lost; thread-safe.

    A process forked from its owner may use it, too, and gets a host of its own.

    Args:
        servant: pickled; see ``headrace.hosting.host.Servant``.
        name: of the model, for the log and for errors.
        timeout_secs: the longest that a host may do one thing; None: any time.
    """

    def __init__(self, servant: bytes, name: str, timeout_secs: float | None) -> None:
        self._servant = servant
        self._name = name
        self._timeout_secs = timeout_secs
        self._numbers = count(1)
        self._life: Life | None = None
        self._is_closed = False
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._nursery = Nursery(self._servant, self._name)
        self._changing = threading.Lock()
        self._stillborn = 0
        if self._life is not None:
            self._life.let_go()

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

    def close(self) -> None:
        """Ends the host and everything with it, for good; waits a second at most for what it is doing."""
        self._is_closed = True
        self._nursery.hurry()
        with self._changing:
            if self._life is not None:
                self._life.end()
            self._nursery.close()

    def _send(self, call: Call) -> None:
        while True:
            life = self._current()
            if life.send(call):
                return
            life.wait(None)  # until it is seen to have ended

    def _current(self) -> Life:
        with self._changing:
            if self._is_closed:
                raise HostStartError(self._name, "its owner has closed it.")
            if self._life is None or self._life.is_over:
                self._look_at_the_dead(self._life)
                try:
                    self._life = Life(self._nursery, self._timeout_secs)
                except OSError as error:
                    raise HostStartError(self._name, f"{error}.") from error
            return self._life

    def _look_at_the_dead(self, life: Life | None) -> None:
        self._stillborn = self._stillborn + 1 if life and not life.has_begun else 0
        if life and self._stillborn >= _MOST_STILLBORN:
            self._life, self._stillborn = None, 0  # whoever asks next may try again
            raise HostStartError(self._name, f"it {life.ending} before its first request, {_MOST_STILLBORN} times.")


_ALL: WeakSet[ModelHost] = WeakSet()


def _begin_anew() -> None:
    """In a process forked from an owner: the hosts are the parent's, which must not be disturbed."""
    for host in list(_ALL):
        host._nursery.disown()
        host._begin()


os.register_at_fork(after_in_child=_begin_anew)
