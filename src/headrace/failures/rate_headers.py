"""What the headers of an endpoint's answer say about how many requests and tokens are left for now."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import NamedTuple

_LEFT = re.compile(
    r"""(?: x-ratelimit-remaining-(?P<openai>requests|tokens)            # OpenAI, Groq, Azure
          | anthropic-ratelimit-(?P<anthropic>requests|tokens|input-tokens|output-tokens)-remaining
          | (?P<plain>(?:x-)?ratelimit)-remaining                        # the IETF's draft, Together
        )""",
    re.VERBOSE,
)
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_FIRST_DATE = 1e9
"""Larger numbers are seconds since 1970."""


class Allowance(NamedTuple):
    """What is left of one of an endpoint's quotas."""

    counts_tokens: bool
    """Tokens; else requests."""
    remaining: float
    reset_secs: float
    """After how long all of it will be there again."""
    limit: float | None
    """All of it; None: the endpoint did not say."""

    def wait(self, needed: float) -> float:
        """Seconds until as much as ``needed`` is left; quotas are refilled steadily."""
        if self.remaining >= needed:
            return 0.0
        missing = math.inf if self.limit is None else self.limit - self.remaining
        return self.reset_secs * min(1.0, (needed - self.remaining) / missing) if self.limit else self.reset_secs


def allowances(headers: Mapping[str, str], wall_clock: Callable[[], float] = time.time) -> list[Allowance]:
    """The allowances that the headers of an answer tell, as OpenAI, Anthropic and others name them.

    Args:
        headers: by name, in lower case.
        wall_clock: returns seconds since 1970.
    """
    return list(_found(headers, wall_clock))


def _found(headers: Mapping[str, str], wall_clock: Callable[[], float]) -> Iterator[Allowance]:
    for name, value in headers.items():
        match = _LEFT.fullmatch(name)
        if match is None:
            continue
        remaining = _number(value)
        reset = _seconds(headers.get(name.replace("remaining", "reset"), ""), wall_clock)
        if remaining is not None and reset is not None:
            counts_tokens = any(kind is not None and kind.endswith("tokens") for kind in match.groups())
            yield Allowance(counts_tokens, remaining, reset, _number(headers.get(name.replace("remaining", "limit"))))


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _seconds(value: str, wall_clock: Callable[[], float]) -> float | None:
    """Seconds from now: a number, ``6m0.5s``, or a date; None: none of these."""
    number = _number(value)
    if number is not None:
        return max(0.0, number - wall_clock()) if number > _FIRST_DATE else number
    parts = _PARTS.findall(value)
    if parts and "".join(map("".join, parts)) == value:
        return sum(float(count) * _UNITS[unit] for count, unit in parts)
    try:
        date = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=timezone.utc)
    return max(0.0, date.timestamp() - wall_clock())
