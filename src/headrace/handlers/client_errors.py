"""What the errors of the official clients of endpoints have in common."""

from __future__ import annotations

__all__ = ["is_final", "status_of"]

_PASSING = (408, 409, 425, 429)
"""Those of the statuses 400 to 499 that may pass."""


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an endpoint's answer; None: there was none."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def is_final(status: int | None) -> bool:
    """Whether the same request would get this status again."""
    return status is not None and 400 <= status < 500 and status not in _PASSING
