"""What Gemini's answers and errors say, beyond what Google's client makes of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["explain", "tokens_in", "why_without_content"]

_WRONG_KEY = 401
_NOT_ALLOWED = 403
_KEY_REASONS = {"API_KEY_INVALID", "API_KEY_EXPIRED"}
_DELAY = re.compile(r"(\d+(?:\.\d+)?)s")


def tokens_in(response: Any) -> tuple[int, int]:
    """The tokens of a ``GenerateContentResponse`` that are billed: of the prompt; of the answer, with its thoughts."""
    usage = response.usage_metadata
    read = _sum_of(usage, "prompt_token_count", "tool_use_prompt_token_count")
    return read, _sum_of(usage, "candidates_token_count", "thoughts_token_count")


def _sum_of(usage: Any, *names: str) -> int:
    return sum(getattr(usage, name, None) or 0 for name in names)


def why_without_content(response: Any) -> str | None:
    """Why a ``GenerateContentResponse`` has nothing in it; None if it has."""
    candidates = response.candidates or []
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
