"""How a handler reports what an endpoint says about its rate limits."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping

from headrace.core.errors import ConfigurationError

HeadersSink = Callable[[dict[str, str]], None]
"""Receives headers by their names in lower case, on the thread that the handler runs on."""

_sink: contextvars.ContextVar[HeadersSink | None] = contextvars.ContextVar("headrace_headers_sink", default=None)


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
    sink = _sink.get()
    if sink is not None:
        sink(found)


def lower_case(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers by their names in lower case.

    Raises:
        TypeError, ValueError: they are no mapping.
    """
    return {str(name).lower(): str(value) for name, value in dict(headers).items()}


def headers_go_to(sink: HeadersSink) -> None:
    """From now on, reports in the current context go to ``sink``."""
    _sink.set(sink)
