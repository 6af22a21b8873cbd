"""Requests that a host answers side by side: they share an event loop and a limit; a client may have the host alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from headrace.core.event_loop import close_loop, open_loop
from headrace.hosts.client import client_of, first_call_of
from headrace.ipc.progress import Activity, Progress

_BEATS_PER_LIMIT, _LONGEST_BEAT_SECS = 20, 1.0
"""How often the event loop shows within the time limit that it turns, and at least how often."""
Answer: TypeAlias = Callable[[], Awaitable[Any]]
ALL_CLIENTS = 0
"""Stands for all clients; no single client has this number."""


class SideBySide:
    """What all requests share that a host answers side by side. Its slots and tasks are for the event loop's thread.

    Args:
        progress: shows that the loop turns, and whose requests have slots, as if they were that client's first call.
        limit: how many requests of all clients are answered at a time.
        timeout_secs: how long the loop may stand still; None: for ever.
    """

    def __init__(self, progress: Progress, limit: int, timeout_secs: float | None) -> None:
        self._progress = progress
        self._limit = limit
        self._beat_secs = min(_LONGEST_BEAT_SECS, (timeout_secs or _BEATS_PER_LIMIT) / _BEATS_PER_LIMIT)
        self._line = asyncio.Lock()
        self._left = asyncio.Event()
        self._inside = 0
        self._owner = ALL_CLIENTS
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """By number of the call."""
        self._is_lost = False
        """Whether a client has been told that the host is of no more use: the page says to the end whose it was."""

    def start(self) -> None:
        """Opens the event loop, which marks the progress page from now on."""
        self._progress.begin(first_call_of(ALL_CLIENTS))
        self.event_loop = open_loop()
        self.event_loop.call(self._beat)

    def close(self) -> None:
        """Ends the event loop."""
        close_loop()

    def begin(self, number: int, answer: Answer, send: Callable[[Any], bool], *, exclusive: bool) -> None:
        """Begins to answer a request once there is a slot for it.

        Args:
            number: of the call.
            answer: returns the response.
            send: sends the response; returns whether the host is of no more use.
            exclusive: whether no request of another client is to be answered meanwhile.
        """
        owner = client_of(number) if exclusive else ALL_CLIENTS
        self.event_loop.call(self._begin, number, answer, send, owner)

    def drop(self, which: Callable[[int], bool]) -> None:
        """Drops requests, by the numbers of their calls."""
        self.event_loop.call(self._drop, which)

    def _begin(self, number: int, answer: Answer, send: Callable[[Any], bool], owner: int) -> None:
        self._tasks[number] = self.event_loop.loop.create_task(self._answer(number, answer, send, owner))

    def _drop(self, which: Callable[[int], bool]) -> None:
        for number in filter(which, list(self._tasks)):
            self._tasks.pop(number).cancel()

    async def _answer(self, number: int, answer: Answer, send: Callable[[Any], bool], owner: int) -> None:
        async with self.slot(owner):
            response = await answer()
            self._tasks.pop(number, None)
            self._is_lost |= send(response)

    @asynccontextmanager
    async def slot(self, owner: int) -> AsyncIterator[None]:
        """A place for one request, once there is one: of a client that is to be alone, or of ``ALL_CLIENTS``."""
        if owner != self._owner or owner == ALL_CLIENTS:  # else the host is its own already
            async with self._line:
                while self._inside and (owner != self._owner or self._inside >= self._limit):
                    self._left.clear()
                    await self._left.wait()
                self._belong_to(owner)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._left.set()
            if not self._inside:
                self._belong_to(ALL_CLIENTS)

    def _belong_to(self, owner: int) -> None:
        if owner != self._owner:
            self._owner = owner
            if not self._is_lost:  # the next client is not to blame for this loss
                self._progress.begin(first_call_of(owner))

    def _beat(self) -> None:
        self._progress.mark(Activity.INFERENCE)
        self.event_loop.loop.call_later(self._beat_secs, self._beat)
