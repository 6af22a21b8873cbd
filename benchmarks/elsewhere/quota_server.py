"""An HTTP server with a latency and a quota: ``python -m elsewhere.quota_server QUOTA [AT_ONCE [CHANCE]]``.

QUOTA is requests a second, or several for a quota that changes: ``1000,10:200,20:1000`` is 200 from ten seconds after
the first request on. A quota of 0 is an outage: requests get 503 at once. It prints its port. A POST costs a token of a
bucket that holds those of a tenth of a second, or is answered with 429. With AT_ONCE, no more requests are worked on at
once, and the others wait in a queue. With CHANCE, this share of all requests is answered with 429, whatever there is in
the bucket. A GET answers with what it has counted.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from typing import Any

LATENCY_SECS = 0.05
_BURST_SECS = 0.1
_REASONS = {200: "OK", 429: "Too Many Requests", 503: "Service Unavailable"}


class QuotaServer:
    """Answers requests and counts them.

    Args:
        steps: quotas, and since when they hold, in seconds after the first request.
        at_once: how many requests are worked on side by side; the others wait.
        chance: the share of requests that are refused at random.
    """

    def __init__(self, steps: list[tuple[float, float]], at_once: int = sys.maxsize, chance: float = 0.0) -> None:
        self._steps, self._chance = steps, chance
        self._random = random.Random(7)
        self._tokens, self._at = steps[0][1] * _BURST_SECS, time.monotonic()
        self._places = asyncio.Semaphore(at_once)
        self._counts: dict[str, float] = {
            "accepted": 0,
            "refused": 0,
            "by_chance": 0,
            "first": 0.0,
            "last": 0.0,
            "inside": 0.0,
        }
        self._seconds: dict[int, Counter[int]] = {200: Counter(), 429: Counter(), 503: Counter()}
        """How many requests of each status there were in each second since the first one."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().lower().splitlines()
                length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
                body = await reader.readexactly(length)
                status, answer = (200, self._report()) if head.startswith(b"GET") else await self._answer(body)
                data = json.dumps(answer).encode()
                reply = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
                writer.write(f"{reply}Content-Length: {len(data)}\r\n\r\n".encode() + data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, body: bytes) -> tuple[int, Any]:
        now = time.monotonic()
        self._counts["first"] = self._counts["first"] or now
        since = now - self._counts["first"]
        quota = next(quota for begin, quota in reversed(self._steps) if since >= begin)
        by_chance = self._random.random() < self._chance
        self._counts["by_chance"] += by_chance
        status = 503 if quota == 0 else 200 if not by_chance and self._takes_token(now, quota) else 429
        self._seconds[status][int(since)] += 1
        self._counts["accepted"] += status == 200
        self._counts["refused"] += status == 429
        if quota:
            async with self._places:
                await asyncio.sleep(LATENCY_SECS)
        self._counts["last"] = time.monotonic()
        self._counts["inside"] += self._counts["last"] - now
        return (200, [2 * one for one in json.loads(body)]) if status == 200 else (status, [])

    def _takes_token(self, now: float, quota: float) -> bool:
        self._tokens = min(quota * _BURST_SECS, self._tokens + (now - self._at) * quota)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _report(self) -> dict[str, object]:
        return {**self._counts, "seconds": self._seconds}


def parsed(quota: str) -> list[tuple[float, float]]:
    """``1000,10:200`` as pairs of seconds and quotas."""
    pairs = [step.rpartition(":") for step in quota.split(",")]
    return [(float(since or 0), float(value)) for since, _, value in pairs]


async def serve(endpoint: QuotaServer) -> None:
    """Serves on a port of this machine, which it prints, until the process ends."""
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(QuotaServer(parsed(sys.argv[1]), *map(int, sys.argv[2:3]), *map(float, sys.argv[3:]))))
