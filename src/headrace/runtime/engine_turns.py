"""Who may give an engine requests: all of its clients together, or one of them alone, first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

EVERYBODY = 1
"""The number of all clients; it is also that of the first answer, so that no single client has it."""
_IDLE_SECS = 3.0
"""Who has an engine alone, and gives it nothing for longer, loses it."""


class EngineTurns:
    """Keeps the requests of one client apart from those of others while it finds out which of its own kill a host.

    For the event loop's thread.

    Args:
        limit: how many requests the engine is given at a time.
        note: takes the owner of the engine's requests from now on: a client's number, or ``EVERYBODY``.
    """

    def __init__(self, limit: int, note: Callable[[int], object]) -> None:
        self._limit = limit
        self._note = note
        self._line = asyncio.Lock()
        self._room = asyncio.Semaphore(limit)
        self._alone = EVERYBODY
        self._taken = self._in_use = 0
        """How many requests of clients that were alone there were, and are."""

    @asynccontextmanager
    async def place(self, client: int) -> AsyncIterator[None]:
        """A place for one request, once there is one."""
        if client == self._alone:  # it has taken all
            self._taken += 1
            self._in_use += 1
            try:
                yield
            finally:
                self._in_use -= 1
            return
        async with self._line:
            await self._room.acquire()
        try:
            yield
        finally:
            self._room.release()

    @asynccontextmanager
    async def alone(self, client: int) -> AsyncIterator[None]:
        """All places for one client, once the engine has answered what it was given before."""
        taken = 0
        try:
            async with self._line:
                while taken < self._limit:
                    await self._room.acquire()
                    taken += 1
            self._take(client)
            yield
        finally:
            if self._alone == client:
                self._take(EVERYBODY)
            for _ in range(taken):
                self._room.release()

    async def idle(self) -> None:
        """Waits until whoever has the engine alone makes no use of it, such as a process that was stopped."""
        before = -1
        while self._in_use or self._taken != before:
            before = self._taken
            await asyncio.sleep(_IDLE_SECS)

    def _take(self, client: int) -> None:
        self._alone = client
        self._note(client)
