"""Formats durations as ISO 8601, to the nanosecond."""

from __future__ import annotations

from datetime import timedelta


def duration_text(value: timedelta, nanoseconds: int = 0) -> str:
    """For example ``P1DT2H3M4.000005S``; a fraction that is not zero has six digits, or nine with ``nanoseconds``.

    Args:
        value: whole microseconds.
        nanoseconds: to add to it, below 1,000.
    """
    total = (value.days * 86400 + value.seconds) * 10**9 + value.microseconds * 1000 + nanoseconds
    seconds, fraction = divmod(abs(total), 10**9)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    digits = f".{fraction:09}"[: 10 if nanoseconds else 7] if fraction else ""
    return f"{'-' if total < 0 else ''}P{days}DT{hour}H{minute}M{second}{digits}S"
