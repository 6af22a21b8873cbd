"""Rates that are known: a minute's requests and tokens from the user, and what the headers of answers say is left."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from headrace.failures.endpoint_board import LAG_SECS, Board

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
_MINUTE = 60 + 2 * LAG_SECS
"""A little more than a minute, so that what catches up with its schedule overruns no minute."""
_NEWEST = 0.1
"""How much the latest request counts in the mean number of tokens."""


class MinuteBudget:
    """Spreads requests evenly, so that no minute has more requests or tokens than the user says.

    How many tokens a request takes is known when it is over. Until then the mean of the others counts; before the first
    one is over, nothing. What was counted too little delays the next ones.

    Args:
        board: where the members of a machine keep when the next request may leave.
        requests: a minute; None: any number.
        tokens: a minute; None: any number.
    """

    def __init__(self, board: Board, requests: float | None, tokens: float | None) -> None:
        self._board = board
        self._request_secs = _MINUTE / requests if requests else 0.0
        self._token_secs = _MINUTE / tokens if tokens else 0.0
        self._owed = 0.0
        """Tokens that have been counted too little so far; negative: too many."""

    def wait(self, now: float) -> float:
        """Seconds until the next request may leave; negative: it may have left before."""
        wait = 0.0
        if self._request_secs:
            wait = self._board.state.request_at - now
        if self._token_secs:
            wait = max(wait, self._board.state.token_at + self._owed * self._token_secs - now)
        return wait

    def started(self, now: float) -> None:
        """A request has left; only in this member's turn."""
        state = self._board.state
        if self._request_secs:
            state.request_at = max(state.request_at, now - LAG_SECS) + self._request_secs
        if self._token_secs:
            secs = (self._owed + state.tokens) * self._token_secs
            state.token_at = max(state.token_at, now - LAG_SECS) + secs
            self._owed = 0.0

    def finished(self, tokens: int) -> None:
        """A request is over.

        Args:
            tokens: what it took; 0: unknown, or it was not billed.
        """
        if not self._token_secs:
            return
        mean = self._board.state.tokens
        self._owed += tokens - mean
        if tokens:
            self._board.state.tokens = mean + _NEWEST * (tokens - mean) if mean else float(tokens)


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
    found: list[Allowance] = []
    for name, value in headers.items():
        match = _LEFT.fullmatch(name)
        if match is None:
            continue
        remaining = _number(value)
        reset = seconds_from_now(headers.get(name.replace("remaining", "reset"), ""), wall_clock)
        if remaining is not None and reset is not None:
            counts_tokens = any(kind is not None and kind.endswith("tokens") for kind in match.groups())
            limit = _number(headers.get(name.replace("remaining", "limit")))
            found.append(Allowance(counts_tokens, remaining, reset, limit))
    return found


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def seconds_from_now(value: str, wall_clock: Callable[[], float]) -> float | None:
    """How long a header says to wait: a number, ``6m0.5s``, or a date in HTTP's or ISO's form; None: none of these."""
    number = _number(value)
    if number is not None:
        return max(0.0, number - wall_clock()) if number > _FIRST_DATE else number
    parts = _PARTS.findall(value)
    if parts and "".join(map("".join, parts)) == value:
        return sum(float(count) * _UNITS[unit] for count, unit in parts)
    for parse in (parsedate_to_datetime, _iso_date):
        with suppress(TypeError, ValueError, OverflowError, OSError):
            return max(0.0, parse(value).timestamp() - wall_clock())
    return None


def _iso_date(value: str) -> datetime:
    date = datetime.fromisoformat(value.replace("Z", "+00:00"))
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)
