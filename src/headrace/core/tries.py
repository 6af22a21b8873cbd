"""What a request that is tried again may keep from one try to the next: what was paid for already."""

from __future__ import annotations

import contextvars
from typing import Any

_kept: contextvars.ContextVar[dict[Any, Any] | None] = contextvars.ContextVar(
    "headrace_kept_for_next_try", default=None
)


def begin_tries() -> None:
    """Makes the current context that of one request, with all its tries."""
    _kept.set({})


def kept_for_next_try() -> dict[Any, Any]:
    """What earlier tries of this request have put there; outside a request, nothing."""
    kept = _kept.get()
    return {} if kept is None else kept
