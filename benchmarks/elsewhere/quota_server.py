"""An HTTP server with a latency and a quota, in a process of its own: ``python -m elsewhere.quota_server QUOTA``.

It prints its port. A POST costs a token of a bucket that holds those of a tenth of a second, or is answered with 429. A
GET answers with what it has counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

LATENCY_SECS = 0.05
_BURST_SECS = 0.1


class QuotaServer:
    def __init__(self, quota: float) -> None:
        self._quota = quota
        self._tokens, self._at = quota * _BURST_SECS, time.monotonic()
        self._counts = {"accepted": 0, "refused": 0, "first": 0.0, "last": 0.0}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().lower().splitlines()
                length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
                body = await reader.readexactly(length)
                status, answer = (200, self._counts) if head.startswith(b"GET") else await self._answer(body)
                data = json.dumps(answer).encode()
                reason = "OK" if status == 200 else "Too Many Requests"
                writer.write(f"HTTP/1.1 {status} {reason}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, body: bytes) -> tuple[int, list[int]]:
        accepted = self._takes_token()
        self._counts["accepted" if accepted else "refused"] += 1
        self._counts["first"] = self._counts["first"] or time.monotonic()
        await asyncio.sleep(LATENCY_SECS)
        self._counts["last"] = time.monotonic()
        return (200, [2 * one for one in json.loads(body)]) if accepted else (429, [])

    def _takes_token(self) -> bool:
        now = time.monotonic()
        self._tokens = min(self._quota * _BURST_SECS, self._tokens + (now - self._at) * self._quota)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


async def main() -> None:
    server = await asyncio.start_server(QuotaServer(float(sys.argv[1])).serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
