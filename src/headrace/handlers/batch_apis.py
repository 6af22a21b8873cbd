"""What a provider's Batch API does, and how OpenAI and Anthropic do it."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.core.errors import EndpointError, HeadraceError
from headrace.handlers.batch_store import Announced, Line
from headrace.handlers.text_endpoints import status_of

_ID = re.compile(rb'"custom_id"\s*:\s*"([^"\\]+)"')
_OURS = "headrace"
"""Our token's name in OpenAI's metadata of a batch."""
_OPENAI_EARLIER_SECS, _ANTHROPIC_EARLIER_SECS = 86_400, 600
"""How far the provider's clock may be behind ours. To look at too many batches costs little with OpenAI."""
_FULL = "token_limit_exceeded"
"""OpenAI's code of an error: too many tokens are enqueued."""
_SHOWN = 3
"""Errors of a batch that was refused."""
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
"""HTTP's statuses for Anthropic's kinds of errors."""
_LOGGER = logging.getLogger(__name__)


class BatchRefusedError(HeadraceError, RuntimeError):
    """The provider refuses a whole batch: nothing of it is done."""

    is_for_now = False
    """Whether the batch would be accepted when others have ended."""


Requests = Mapping[str, Mapping[str, Any]]
"""The bodies of requests by ids, which are digests of their content."""
Collected = tuple[list[Line], str]
"""What a batch leaves behind, in any order, perhaps without requests that it has not come to; and how it ended."""


class OpenAIBatches:
    """A file of requests goes up, a file of answers and one of errors come back.

    Args:
        client: OpenAI's.
        path: of single requests, such as ``"/v1/chat/completions"``.
    """

    most_requests = 50_000
    """In a batch."""
    most_bytes = 200_000_000
    """Of a batch."""

    def __init__(self, client: Any, path: str) -> None:
        self._client = client
        self._path = path

    async def prepare(self, token: str, requests: Requests) -> str:
        """Does what has to be done before there can be a batch, uploads a file; returns what ``send`` needs."""
        same = {"method": "POST", "url": self._path}
        lines = [json.dumps({"custom_id": name, **same, "body": body}) + "\n" for name, body in requests.items()]
        try:
            return str(
                (await self._client.files.create(file=(f"{token}.jsonl", "".join(lines).encode()), purpose="batch")).id
            )
        except Exception as error:
            error.args = (f"the batch's file could not be uploaded: {error}",)
            raise

    async def send(self, token: str, prepared: str) -> str:
        """Makes a batch of the file; returns its id."""
        batch = await self._client.batches.create(
            completion_window="24h", endpoint=self._path, input_file_id=prepared, metadata={_OURS: token}
        )
        return str(batch.id)

    async def find(self, batch: Announced) -> str | None:
        """The id of a batch that may have arrived, by our token in its metadata; "" if there is none."""
        async for one in self._client.batches.list(limit=100):  # the latest first
            if one.created_at < batch.at - _OPENAI_EARLIER_SECS:
                break
            if (one.metadata or {}).get(_OURS) == batch.token:
                return str(one.id)
        return ""

    async def collect(self, remote: str) -> Collected | None:
        """What a batch leaves behind, in both files; None while it runs. BatchRefusedError: the whole batch failed."""
        batch = await self._client.batches.retrieve(remote)
        if batch.status == "failed":
            errors = (batch.errors and batch.errors.data) or []
            refused = BatchRefusedError(f"the endpoint refuses batch {remote}: {_reasons(errors)}")
            refused.is_for_now = {one.code for one in errors} == {_FULL}
            raise refused
        if batch.status not in ("completed", "expired", "cancelled"):
            return None
        if not batch.output_file_id and batch.request_counts is not None and batch.request_counts.completed:
            return None  # its answers are there, and their file is not yet
        lines: list[Line] = []
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            try:
                content = (await self._client.files.content(file)).content
            except Exception as error:
                if status_of(error) != 404 or not lines:  # else there are answers, and what failed was not billed
                    raise
            else:
                lines += await asyncio.to_thread(_read_lines, content, _openai_line)
        return lines, batch.status


def _openai_line(said: dict[str, Any]) -> Line:
    response = said.get("response") or {}
    status = response.get("status_code")
    if not status:
        return Line(said["custom_id"], None, str(said["error"].get("message") or ""))
    if not isinstance(status, int) or not 100 <= status < 600:
        raise ValueError("it is no status of HTTP")
    return Line(said["custom_id"], 200 if 200 <= status < 300 else status, json.dumps(response.get("body")))


def _reasons(errors: Sequence[Any]) -> str:
    said = [f"{one.message or one.code}{'' if one.line is None else f' (line {one.line})'}" for one in errors[:_SHOWN]]
    said += [f"and {len(errors) - _SHOWN} more"] if len(errors) > _SHOWN else []
    return "; ".join(said) or "it does not say why"


class AnthropicBatches:
    """Requests go up together, results come back as JSON lines.

    Args:
        client: returns Anthropic's, before each request: its key may have expired.
    """

    most_requests = 100_000
    most_bytes = 256_000_000

    def __init__(self, client: Callable[[], Any]) -> None:
        self._client = client

    async def prepare(self, token: str, requests: Requests) -> Any:
        """The requests as Anthropic has them, which keeps no token."""
        return [{"custom_id": name, "params": body} for name, body in requests.items()]

    async def send(self, token: str, prepared: Any) -> str:
        """Makes a batch."""
        return str((await self._client().messages.batches.create(requests=prepared)).id)

    async def find(self, batch: Announced) -> str | None:
        """The id of the batch with our requests; "" if there is none; None: that cannot be told yet.

        Anthropic says which requests a batch has when it has ended: until then, one of as many might be it.
        """
        undecided = False
        async for one in self._client().messages.batches.list(limit=100):  # the latest first
            if one.created_at.timestamp() < batch.at - _ANTHROPIC_EARLIER_SECS:
                break
            if one.id in batch.elsewhere or _size_of(one.request_counts) != len(batch.ids):
                continue
            if one.processing_status != "ended":
                undecided = True
            elif one.results_url:
                named = {line.id for line in await self._results(one.id)}
                if named and named <= batch.ids:
                    return str(one.id)
        return None if undecided else ""

    async def collect(self, remote: str) -> Collected | None:
        """The results of a batch; None while it runs. EndpointError: Anthropic has them no longer."""
        batch = await self._client().messages.batches.retrieve(remote)
        if batch.processing_status != "ended":
            return None
        if not batch.results_url:
            raise EndpointError(
                f"the endpoint no longer has the answers of batch {remote}: Anthropic keeps them for 29 days. Name "
                "another batch_directory to ask again."
            )
        return await self._results(remote), "some of it expired or was cancelled"

    async def _results(self, remote: str) -> list[Line]:
        response = (await self._client().messages.batches.results(remote)).http_response
        try:
            content = await response.aread()  # the client's own reader ends at a line that is damaged
        except Exception as error:  # the HTTP client's
            raise ConnectionError(f"the answers broke off: {error}") from error
        return await asyncio.to_thread(_read_lines, content, _anthropic_line)


def _size_of(counts: Any) -> int:
    """How many requests a batch has; other counts may come to be among these."""
    return int(counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired)


def _anthropic_line(said: dict[str, Any]) -> Line:
    result = said["result"]
    if result["type"] == "succeeded":
        return Line(said["custom_id"], 200, json.dumps(result["message"]))
    if result["type"] == "errored":
        status = _STATUSES.get(result["error"]["error"]["type"], 500)
        return Line(said["custom_id"], status, json.dumps(result["error"]))
    return Line(said["custom_id"], None, f"the request {'expired' if result['type'] == 'expired' else 'was cancelled'}")


BatchApi = OpenAIBatches | AnthropicBatches
"""A provider's Batch API."""


def _read_lines(content: bytes, line_of: Callable[[Any], Line]) -> list[Line]:
    """The lines of a file of results. A damaged one was paid for all the same: its request's answer cannot be used."""
    lines: list[Line] = []
    for raw in filter(bytes.strip, content.split(b"\n")):
        try:
            line = line_of(json.loads(raw))
            if not isinstance(line.id, str):
                raise TypeError("the id is no text")
            lines.append(line._replace(body=line.body.encode(errors="replace").decode()))  # SQLite takes no surrogates
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            said = f"the batch's results have a damaged line: {raw[:200].decode(errors='replace')!r}"
            _LOGGER.warning("%s", said)
            lines += [Line(one.decode(errors="replace"), 200, json.dumps(said)) for one in _ID.findall(raw)]
    return lines
