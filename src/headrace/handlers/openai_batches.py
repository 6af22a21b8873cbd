"""OpenAI's Batch API: a file of requests goes up, a file of answers and one of errors come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import openai

from headrace.handlers.batch_api import BatchRefusedError, Collected, Request, read_lines
from headrace.handlers.batch_store import Announced, Line

__all__ = ["OpenAIBatches"]

_OURS = "headrace"
"""What our token is called in a batch's metadata."""
_EARLIER_SECS = 86_400
"""By how much the provider's clock may be behind ours. To look at too many costs little, to miss one its answers."""
_FULL = "token_limit_exceeded"
"""The code of an error that says that too many tokens are enqueued."""
_SHOWN = 3
"""Errors of a batch that was refused."""


class OpenAIBatches:
    """Batches of one kind of request. See ``BatchApi``.

    Args:
        client: OpenAI's.
        path: of single requests, such as ``"/v1/chat/completions"``.
    """

    most_requests = 50_000
    most_bytes = 200_000_000
    errors: tuple[type[Exception], ...] = (openai.APIError,)

    def __init__(self, client: openai.AsyncOpenAI, path: str) -> None:
        self._client = client
        self._path: Any = path

    async def prepare(self, token: str, requests: Sequence[Request]) -> str:
        """Uploads a file."""
        lines = [
            json.dumps({"custom_id": one.id, "method": "POST", "url": self._path, "body": one.body}) for one in requests
        ]
        data = ("\n".join(lines) + "\n").encode()
        try:
            return str((await self._client.files.create(file=(f"{token}.jsonl", data), purpose="batch")).id)
        except openai.APIError as error:
            error.args = (f"the batch's file could not be uploaded: {error}",)
            raise

    async def send(self, token: str, prepared: str) -> str:
        """Makes a batch of the file."""
        batch = await self._client.batches.create(
            completion_window="24h", endpoint=self._path, input_file_id=prepared, metadata={_OURS: token}
        )
        return str(batch.id)

    async def find(self, batch: Announced) -> str | None:
        """The id of the batch with our token in its metadata; "" if there is none."""
        async for one in self._client.batches.list(limit=100):  # the latest first
            if one.created_at < batch.at - _EARLIER_SECS:
                break
            if (one.metadata or {}).get(_OURS) == batch.token:
                return str(one.id)
        return ""

    async def collect(self, remote: str) -> Collected | None:
        """Reads both files when the batch has ended.

        Raises:
            BatchRefusedError: it failed.
        """
        batch = await self._client.batches.retrieve(remote)
        if batch.status == "failed":
            codes = {one.code for one in (batch.errors and batch.errors.data) or []}
            reason = f"the endpoint refuses batch {remote}: {_reasons(batch)}"
            raise BatchRefusedError(reason, is_for_now=codes == {_FULL})
        if batch.status not in ("completed", "expired", "cancelled"):
            return None
        if not batch.output_file_id and batch.request_counts is not None and batch.request_counts.completed:
            return None  # its answers are there, and their file is not yet
        lines: list[Line] = []
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            try:
                lines += await self._read(file)
            except openai.NotFoundError:
                if not lines:  # else there are answers, and what failed was not billed
                    raise
        return Collected(lines, batch.status)

    async def _read(self, file: str) -> list[Line]:
        content = (await self._client.files.content(file)).content
        return await asyncio.to_thread(read_lines, content, _line_of)


def _line_of(said: dict[str, Any]) -> Line:
    response = said.get("response") or {}
    status = response.get("status_code")
    if not status:
        return Line(said["custom_id"], None, str(said["error"].get("message") or ""))
    if not isinstance(status, int) or not 100 <= status < 600:
        raise ValueError("it is no status of HTTP")
    return Line(said["custom_id"], 200 if 200 <= status < 300 else status, json.dumps(response.get("body")))


def _reasons(batch: openai.types.Batch) -> str:
    errors = batch.errors.data if batch.errors and batch.errors.data else []
    said = [f"{one.message or one.code}{'' if one.line is None else f' (line {one.line})'}" for one in errors[:_SHOWN]]
    more = f"; and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
    return "; ".join(said) + more if said else "it does not say why"
