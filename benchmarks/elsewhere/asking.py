"""Handlers that ask the quota server, and a process: ``python -m elsewhere.asking PORT FIRST COUNT SECS [SEMAPHORE]``.

The process prints a line when it is ready, and waits for one. Then it predicts COUNT numbers from FIRST on, and prints
how many predictions were right. An outage may last SECS. With SEMAPHORE it asks by hand, so many requests at once, and
begins without waiting.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import threading
from collections.abc import Sequence
from typing import Any

import headrace

_PAUSE_SECS = 0.1
"""Before a request that was refused is sent again by hand."""


class RefusedError(Exception):
    """As clients raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


def ask(connections: threading.local, port: int, batch: Sequence[int]) -> list[int]:
    """Sends a request over this thread's connection."""
    connection = getattr(connections, "own", None)
    if connection is None:
        connection = connections.own = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/", json.dumps(list(batch)))
    answer = connection.getresponse()
    found: list[int] = json.load(answer)
    if answer.status != 200:
        raise RefusedError(answer.status)
    return found


class OnThreads(headrace.RemoteModelHandler[int, int, threading.local]):
    """Asks on threads."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port

    def create_client(self) -> threading.local:
        return threading.local()

    def request(self, batch: Sequence[int], model: threading.local, inference_args: Any = None) -> list[int]:
        return ask(model, self.port, batch)

    def batch_elements_kwargs(self) -> dict[str, int]:
        return {"max_batch_size": 1}


class Connections:
    """Idle connections to a server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, batch: Sequence[int]) -> list[int]:
        """Sends a request."""
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        data = json.dumps(list(batch)).encode()
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        head = (await reader.readuntil(b"\r\n\r\n")).split()
        body = await reader.readexactly(int(head[-1]))
        self._idle.append((reader, writer))
        if int(head[1]) != 200:
            raise RefusedError(int(head[1]))
        return json.loads(body)

    async def aclose(self) -> None:
        """Closes them."""
        for _, writer in self._idle:
            writer.close()


class Async(OnThreads):
    """Asks in the event loop."""

    async def create_client(self) -> Connections:
        return Connections(self.port)

    async def request(self, batch: Sequence[int], model: Connections, inference_args: Any = None) -> list[int]:
        return await model.ask(batch)


async def by_hand(port: int, numbers: Sequence[int], at_once: int) -> list[int]:
    """The loop that one would write."""
    places, client = asyncio.Semaphore(at_once), Connections(port)

    async def one(number: int) -> int:
        async with places:
            while True:
                try:
                    return (await client.ask([number]))[0]
                except RefusedError:
                    await asyncio.sleep(_PAUSE_SECS)

    return await asyncio.gather(*map(one, numbers))


def main(port: int, first: int, count: int, patience_secs: float, at_once: int | None = None) -> None:
    """Waits, and predicts."""
    numbers = range(first, first + count)
    if at_once is not None:
        found = iter(asyncio.run(by_hand(port, numbers, at_once)))
    else:
        print("ready", flush=True)
        sys.stdin.readline()
        found = headrace.predict(Async(port), numbers, retry=headrace.RetryConfig(timeout_secs=patience_secs))
    print(sum(one == 2 * (first + place) for place, one in enumerate(found)), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
