"""Asks the quota server with httpx2: ``python -m elsewhere.refused PORT COUNT [SEMAPHORE]``.

Prints how many answers were right. With SEMAPHORE by hand, so many requests at once; without, with Headrace.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import httpx2

import headrace

_PAUSE_SECS = 0.1
_NO_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=None)


class Handler(headrace.RemoteModelHandler[int, int, httpx2.AsyncClient]):
    """Asks with httpx2."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._url = f"http://127.0.0.1:{port}/"

    async def create_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(limits=_NO_LIMITS)

    async def request(self, batch: Sequence[int], model: httpx2.AsyncClient, inference_args: Any = None) -> list[int]:
        answer = await model.post(self._url, json=list(batch))
        answer.raise_for_status()
        return list(answer.json())

    def batch_elements_kwargs(self) -> dict[str, int]:
        return {"max_batch_size": 1}


async def by_hand(port: int, count: int, at_once: int) -> list[int]:
    """The loop that one would write."""
    places = asyncio.Semaphore(at_once)
    async with httpx2.AsyncClient(limits=_NO_LIMITS) as client:

        async def ask(number: int) -> int:
            async with places:
                while (answer := await client.post(f"http://127.0.0.1:{port}/", json=[number])).status_code == 429:
                    await asyncio.sleep(float(answer.headers.get("retry-after", _PAUSE_SECS)))
                return int(answer.raise_for_status().json()[0])

        return await asyncio.gather(*map(ask, range(count)))


def main(port: int, count: int, at_once: int | None = None) -> None:
    """Asks for the doubles of as many numbers."""
    if at_once is None:
        found = list(headrace.predict(Handler(port), range(count)))
    else:
        found = asyncio.run(by_hand(port, count, at_once))
    print(sum(one == 2 * number for number, one in enumerate(found)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
