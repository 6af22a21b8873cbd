"""Anthropic's Message Batches API: requests go up together, results come back as JSON lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import anthropic

from headrace.core.errors import EndpointError
from headrace.handlers.batch_api import Collected, Request, read_lines
from headrace.handlers.batch_store import Announced, Line

__all__ = ["AnthropicBatches"]

_EARLIER_SECS = 600
"""By how much the provider's clock may be behind ours."""
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Of the kinds of errors, with HTTP."""


class AnthropicBatches:
    """Batches of messages. See ``BatchApi``.

    Args:
        client: Anthropic's.
        renew: called before each request: the client's key may have expired.
    """

    most_requests = 100_000
    most_bytes = 256_000_000
    errors: tuple[type[Exception], ...] = (anthropic.APIError,)

    def __init__(self, client: anthropic.AsyncAnthropic, renew: Callable[[], None]) -> None:
        self._client = client
        self._renew = renew

    async def prepare(self, token: str, requests: Sequence[Request]) -> Any:
        """The requests as Anthropic has them, which keeps no token."""
        return [{"custom_id": request.id, "params": request.body} for request in requests]

    async def send(self, token: str, prepared: Any) -> str:
        """Makes a batch."""
        self._renew()
        return str((await self._client.messages.batches.create(requests=prepared)).id)

    async def find(self, batch: Announced) -> str | None:
        """The id of the batch with our requests; "" if there is none.

        Which requests a batch has is not said before it has ended: until then, one of as many might be it.
        """
        undecided = False
        self._renew()
        async for one in self._client.messages.batches.list(limit=100):  # the latest first
            if one.created_at.timestamp() < batch.at - _EARLIER_SECS:
                break
            if one.id in batch.elsewhere or _size_of(one) != len(batch.ids):
                continue
            if one.processing_status != "ended":
                undecided = True
            elif one.results_url:
                named = {line.id for line in await self._results(one.id)}
                if named and named <= batch.ids:
                    return str(one.id)
        return None if undecided else ""

    async def collect(self, remote: str) -> Collected | None:
        """Reads the results when the batch has ended.

        Raises:
            EndpointError: Anthropic has them no longer.
        """
        self._renew()
        batch = await self._client.messages.batches.retrieve(remote)
        if batch.processing_status != "ended":
            return None
        if not batch.results_url:
            raise EndpointError(
                f"the endpoint no longer has the answers of batch {remote}: Anthropic keeps them for 29 days. Name "
                "another batch_directory to ask again."
            )
        return Collected(await self._results(remote), "some of it expired or was cancelled")

    async def _results(self, remote: str) -> list[Line]:
        response = (await self._client.messages.batches.results(remote)).http_response
        try:
            content = await response.aread()  # the client's own reader ends at a line that is damaged
        except Exception as error:  # the HTTP client's
            message = f"the answers broke off: {error}"
            raise anthropic.APIConnectionError(message=message, request=response.request) from error
        return await asyncio.to_thread(read_lines, content, _line_of)


def _size_of(batch: Any) -> int:
    counts = batch.request_counts
    return int(counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired)


def _line_of(said: dict[str, Any]) -> Line:
    result = said["result"]
    kind = result["type"]
    if kind == "succeeded":
        return Line(said["custom_id"], 200, json.dumps(result["message"]))
    if kind == "errored":
        status = _STATUSES.get(result["error"]["error"]["type"], 500)
        return Line(said["custom_id"], status, json.dumps(result["error"]))
    return Line(said["custom_id"], None, f"the request {'expired' if kind == 'expired' else 'was cancelled'}")
