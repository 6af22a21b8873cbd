"""What Gemini's answers and errors say, beyond what Google's client makes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from google.genai.types import GenerateContentResponse

__all__ = ["answers_kept", "explain", "hooks_of", "tokens_in", "tokens_in_body", "why_without_content"]

_OK = 200

_WRONG_KEY = 401
_NOT_ALLOWED = 403
_KEY_REASONS = {"API_KEY_INVALID", "API_KEY_EXPIRED"}
_DELAY = re.compile(r"(\d+(?:\.\d+)?)s")
_kept: ContextVar[list[bytes] | None] = ContextVar("headrace_gemini_answers", default=None)


@contextmanager
def answers_kept() -> Iterator[list[bytes]]:
    """A context whose list gets the bodies of answers, if the client has the hooks of ``hooks_of``."""
    kept: list[bytes] = []
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


def hooks_of(client_args: Mapping[str, Any]) -> dict[str, Any]:
    """The hooks of an httpx client: those of its arguments, and one that keeps answers."""
    hooks = client_args.get("event_hooks") or {}
    return {**hooks, "response": [_keep_answer, *hooks.get("response", ())]}


async def _keep_answer(response: Any) -> None:
    await response.aread()
    kept = _kept.get()
    if kept is not None and response.status_code == _OK:
        kept.append(response.content)


def tokens_in_body(body: bytes) -> tuple[int, int]:
    """As ``tokens_in``, of an answer that Google's client cannot read; zeros if it has none."""
    try:
        return tokens_in(GenerateContentResponse.model_validate({"usageMetadata": json.loads(body)["usageMetadata"]}))
    except (ValueError, TypeError, LookupError, RecursionError):
        return 0, 0


def tokens_in(response: Any) -> tuple[int, int]:
    """The tokens of a ``GenerateContentResponse`` that are billed: of the prompt; of the answer, with its thoughts."""
    usage = response.usage_metadata
    read = _sum_of(usage, "prompt_token_count", "tool_use_prompt_token_count")
    return read, _sum_of(usage, "candidates_token_count", "thoughts_token_count")


def _sum_of(usage: Any, *names: str) -> int:
    return sum(getattr(usage, name, None) or 0 for name in names)


def _why_out_of_order(candidates: list[Any]) -> str | None:
    """Puts candidates in the order of their indexes (the protocol leaves out 0), or says why it cannot."""
    indexes = [one.index or 0 for one in candidates]
    if any(indexes) and sorted(indexes) != list(range(len(indexes))):
        said = f"Gemini's candidates have the indexes {indexes!s:.200}"
        return f"{said}; they must be those from 0 to {len(indexes) - 1}, each once"
    candidates.sort(key=lambda one: one.index or 0)
    return None


def why_without_content(response: Any) -> str | None:
    """Why a ``GenerateContentResponse`` has nothing in it; None if it has, and then its candidates are in order."""
    candidates = response.candidates or []
    if said := _why_out_of_order(candidates):
        return said
    if any(one.content and one.content.parts for one in candidates):
        return None
    feedback = response.prompt_feedback
    if feedback is not None and feedback.block_reason is not None:
        return f"Gemini blocked the prompt: {_said(feedback.block_reason, feedback.block_reason_message)}"
    ended = [_said(one.finish_reason, one.finish_message) for one in candidates if one.finish_reason is not None]
    if not ended:
        return "Gemini answered with nothing, and gave no reason"
    cure = "; raise max_output_tokens" if "MAX_TOKENS" in ended else ""
    return f"Gemini answered without content: {', '.join(ended)}{cure}"


def _said(reason: Any, message: str | None) -> str:
    name = str(getattr(reason, "name", reason))
    return f"{name} ({message})" if message else name


def explain(error: Any) -> None:
    """Completes an ``APIError``: its status and how long to wait, where Headrace looks for them.

    The answer itself goes: it holds the request, and that holds the key.
    """
    details = list(_details(error.details))
    error.status_code = error.code
    if error.code == 400 and _KEY_REASONS & {one.get("reason") for one in details}:
        error.status_code = _WRONG_KEY  # Google's own is 400, as for a bad prompt
    elif error.code == 400 and error.status == "FAILED_PRECONDITION":
        error.status_code = _NOT_ALLOWED  # from this country, or without billing
    error.headers = dict(getattr(error.response, "headers", None) or {})
    error.response = None
    waits = [_DELAY.fullmatch(str(one.get("retryDelay"))) for one in details]
    error.retry_after = max((float(found[1]) for found in waits if found), default=0.0)


def _details(body: Any) -> Iterator[Mapping[str, Any]]:
    """The details of Google's errors: objects of several types, in a list."""
    inner = body.get("error", body) if isinstance(body, Mapping) else {}
    found = inner.get("details") if isinstance(inner, Mapping) else None
    yield from (one for one in found or () if isinstance(one, Mapping))
