"""What the errors of the official clients of endpoints have in common."""

from __future__ import annotations

__all__ = ["NO_KEY", "is_final", "sent_no_key", "status_of"]

NO_KEY = "none"
"""What servers are sent that need no key, by clients that want one."""

_PASSING = (408, 409, 425, 429)
"""Those of the statuses 400 to 499 that may pass."""


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an endpoint's answer; None: there was none."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def is_final(status: int | None) -> bool:
    """Whether the same request would get this status again."""
    return status is not None and 400 <= status < 500 and status not in _PASSING


def sent_no_key(error: BaseException) -> bool:
    """Whether an endpoint refused a request for want of a key, and none was sent."""
    headers = getattr(getattr(error, "request", None), "headers", None) or {}
    return status_of(error) == 401 and headers.get("authorization") == f"Bearer {NO_KEY}"
