"""What a handler reports during a request, and keeps for the next try of it; what an answer's headers say is left."""

from __future__ import annotations

import contextvars
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from operator import index
from typing import Any, NamedTuple

from headrace.core.errors import ConfigurationError, RowCostError, as_type_name
from headrace.core.events import UsageReported

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


UsageSink = Callable[[UsageReported], None]
"""Receives reports on the thread that the handler runs on; must neither block nor raise."""
AllowancesSink = Callable[[list[Allowance]], None]
"""Receives what an answer's headers say is left, on the thread that the handler runs on."""


class RowCost:
    """What the requests for an element have cost, and may cost; elements of one request have equal parts in it."""

    def __init__(self, most: float, elements: int) -> None:
        self._most, self._cost = most, 0.0
        self.elements = elements
        """How many a request is for: fewer, once some have their answers."""

    def add(self, cost: float) -> None:
        """Adds what a request has cost."""
        self._cost += cost / self.elements

    def error(self, last: BaseException) -> RowCostError | None:
        """Why nothing more is to be requested after a ``last`` error; None: it may be."""
        if self._cost <= self._most:
            return None
        said = f"its requests have cost {self._cost:.6g}, and max_cost_per_row is {self._most:g}, so none is sent after"
        error = RowCostError(f"{said} {as_type_name(last)}: {last}")
        error.__cause__ = last
        return error


class RequestState(NamedTuple):
    """Where the reports of one request go: ``current_request`` has that of the code that runs."""

    usage_sinks: tuple[UsageSink, ...] = ()
    allowances_sink: AllowancesSink | None = None
    is_paid: bool = False
    """Whether an earlier request has paid for the answers that are reported."""
    kept: dict[Any, Any] | None = None
    """None: there is no next try."""
    row_cost: RowCost | None = None


_NO_REQUEST = RequestState()
current_request = contextvars.ContextVar("headrace_request", default=_NO_REQUEST)


def report_usage(model: str, *, input_tokens: int = 0, output_tokens: int = 0, cached_tokens: int = 0) -> None:
    """Counts what one request used; a handler calls it in ``request`` or ``run_inference``, plain or ``async``.

    Call it once for each request that the provider bills, whatever comes of it: before an error about the answer is
    raised, too. What a run has used is shown in its metrics and in the summary of ``headrace run``. Outside a request
    it does nothing.

    Args:
        model: the name by which the user knows the model.
        input_tokens: tokens of the prompt.
        output_tokens: tokens of the answer, including hidden ones.
        cached_tokens: those of ``input_tokens`` that the provider had in its cache, and bills as such.

    Raises:
        ConfigurationError: the model is not named, a number of tokens is negative or not an integer, or more are cached
            than there are.
    """
    used = _used(model, input_tokens, output_tokens)
    cached = _tokens("cached_tokens", cached_tokens) if cached_tokens else 0
    if cached > used.input_tokens:
        raise ConfigurationError(
            f"report_usage: cached_tokens are some of input_tokens, and {cached} are more than {used.input_tokens}."
        )
    report_used(replace(used, cached_tokens=cached) if cached else used)


def report_generation(
    model: str, *, input_tokens: int, output_tokens: int, seconds: float, first_token_secs: float | None = None
) -> None:
    """As ``report_usage``, for a language model's engine in this process, which knows how long a request took, too.

    Args:
        model: the name by which the user knows the model.
        input_tokens: tokens of the prompt.
        output_tokens: tokens of the answer.
        seconds: from when the engine got the request to its last token.
        first_token_secs: from when the engine got it to its first token; None: not known.

    Raises:
        ConfigurationError: as ``report_usage``; or a time is no number of seconds.
    """
    used = _used(model, input_tokens, output_tokens)
    for name, given in (("seconds", seconds), ("first_token_secs", first_token_secs or 0.0)):
        if not isinstance(given, int | float) or not 0 <= given < math.inf:
            raise ConfigurationError(f"report_generation: {name} must be a number of at least 0, not {given!r:.80}.")
    report_used(replace(used, seconds=seconds, first_token_secs=first_token_secs))


def _used(model: str, input_tokens: int, output_tokens: int) -> UsageReported:
    if not isinstance(model, str) or not model:
        raise ConfigurationError(f"report_usage needs the model's name, not {model!r:.80}.")
    return UsageReported(model, _tokens("input_tokens", input_tokens), _tokens("output_tokens", output_tokens))


def _tokens(name: str, given: int) -> int:
    with suppress(TypeError):  # an array is an index only if it is a single integer
        if index(given) >= 0:
            return index(given)
    raise ConfigurationError(f"report_usage: {name} must be an int of at least 0, not {given!r:.80}.")


def report_used(used: UsageReported) -> None:
    """Hands on a report, such as one that comes from another process."""
    request = current_request.get()
    if request.is_paid:
        used = replace(used, requests=0, input_tokens=0, output_tokens=0, cached_tokens=0)
    for sink in request.usage_sinks:
        sink(used)


def report_rate_limit(headers: Mapping[str, str]) -> None:
    """Reports the headers of an endpoint's answer; a handler calls it in ``request``, plain or ``async``.

    If they say that nothing is left of a rate limit, no request leaves before there is enough for one again. Known are
    ``x-ratelimit-remaining-requests`` and ``-tokens``, ``anthropic-ratelimit-*-remaining``, and ``ratelimit-remaining``
    with or without ``x-``, each with its ``limit`` and ``reset``. The headers of an exception that ``request`` raises
    count without being reported. Outside a request it does nothing.

    Args:
        headers: all headers of the answer; others are ignored.

    Raises:
        ConfigurationError: they are no mapping.
    """
    try:
        found = lower_case(headers)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"report_rate_limit needs an answer's headers, by name, not {type(headers).__name__}."
        ) from None
    sink = current_request.get().allowances_sink
    if sink is not None:
        sink(allowances(found))


def lower_case(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers by their names in lower case; raises TypeError or ValueError if they are no mapping."""
    pairs = headers.items() if hasattr(headers, "items") else dict(headers).items()
    return {str(name).lower(): str(value) for name, value in pairs}


def kept_for_next_try() -> dict[Any, Any]:
    """What earlier tries of this request have put there, such as an answer that was paid for; outside, nothing."""
    kept = current_request.get().kept
    return {} if kept is None else kept


def row_cost_error(last: BaseException) -> RowCostError | None:
    """Why a handler is not to send another request after an answer that it cannot use; None: it may."""
    row_cost = current_request.get().row_cost
    return None if row_cost is None else row_cost.error(last)


def request_context(usage: UsageSink, row_cost: RowCost | None = None) -> contextvars.Context:
    """A copy of the current context variables for one request, with all its tries: its usage goes to ``usage``."""
    context = contextvars.copy_context()
    context.run(current_request.set, RequestState((usage,), kept={}, row_cost=row_cost))
    return context


def also_report_to(usage: UsageSink, allowed: AllowancesSink) -> None:
    """From now on, reports in the current context go to these sinks; those of usage to the earlier ones, too."""
    request = current_request.get()
    current_request.set(request._replace(usage_sinks=(usage, *request.usage_sinks), allowances_sink=allowed))


def usage_was_paid_before(is_paid: bool) -> None:
    """From now on, reports in the current context are of answers that an earlier request paid for, or not."""
    current_request.set(current_request.get()._replace(is_paid=is_paid))


def allowances(headers: Mapping[str, str]) -> list[Allowance]:
    """The allowances that the headers of an answer tell, by names in lower case, as OpenAI and others have them."""
    found: list[Allowance] = []
    for name, value in headers.items():
        match = _LEFT.fullmatch(name)
        if match is None:
            continue
        remaining = _number(value)
        reset = seconds_from_now(headers.get(name.replace("remaining", "reset"), ""))
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


def seconds_from_now(value: str) -> float | None:
    """How long a header says to wait: a number, ``6m0.5s``, or a date in HTTP's or ISO's form; None: none of these."""
    number = _number(value)
    if number is not None:
        return max(0.0, number - time.time()) if number > _FIRST_DATE else number
    parts = _PARTS.findall(value)
    if parts and "".join(map("".join, parts)) == value:
        return sum(float(count) * _UNITS[unit] for count, unit in parts)
    for parse in (parsedate_to_datetime, _iso_date):
        with suppress(TypeError, ValueError, OverflowError, OSError):
            return max(0.0, parse(value).timestamp() - time.time())
    return None


def _iso_date(value: str) -> datetime:
    date = datetime.fromisoformat(value.replace("Z", "+00:00"))
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)
