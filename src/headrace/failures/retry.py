"""Transient errors: which they are, and how long to wait before the next try."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

from headrace.core.clock import backoff
from headrace.core.config import RetryConfig
from headrace.core.errors import as_type_name, attribute

_LOGGER = logging.getLogger(__name__)

_CLASSES = {
    *("APIConnectionError", "ConnectionError", "Timeout", "TransportError"),  # openai, anthropic, requests, httpx
    *("ClientConnectionError", "ChunkedEncodingError", "IncompleteRead", "IncompleteReadError"),  # aiohttp and others
}
"""Error classes of HTTP clients that do not derive from Python's."""
_STATUSES = {408, 425, 429, 500, 502, 503, 504}
"""HTTP: too early, too often, or a fault of the server."""
_CODES = {"ABORTED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}
"""The same for gRPC."""


def is_retryable(error: BaseException, config: RetryConfig) -> bool:
    """Whether the same call may succeed a little later; ``config.retryable`` decides if given, else ``is_transient``.

    False if deciding raises, so that the original error is reported and not a second one in its place.
    """
    try:
        return bool((config.retryable or is_transient)(error))
    except Exception:
        name = as_type_name(type(error))
        _LOGGER.warning("%s is not retried: whether it is transient could not be decided.", name, exc_info=True)
        return False


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed a little later.

    The error's own attribute ``retryable`` decides if it has one. Otherwise lost connections, timeouts, and the status
    codes that HTTP and gRPC clients set on their errors count as transient.
    """
    retryable = getattr(error, "retryable", None)
    if isinstance(retryable, bool):
        return retryable
    return is_lost(error) or bool(statuses_of(error) & (_STATUSES | _CODES))


def is_lost(error: BaseException) -> bool:
    """Whether a client has lost its connection, or has waited for too long."""
    return isinstance(error, TimeoutError) or bool(_CLASSES & {cls.__name__ for cls in type(error).__mro__})


def statuses_of(error: BaseException) -> set[Any]:
    """The HTTP statuses and names of gRPC codes that an error of a client has, whatever the client calls them."""
    found = [attribute(error, name) for name in ("status_code", "code", "status")]
    return {_plain(status) for status in (*found, attribute(attribute(error, "response"), "status_code"))} - {None}


def _plain(status: Any) -> Any:
    """A status number, or the name of a gRPC code, which gRPC errors return from a method."""
    if isinstance(status, int):
        return int(status)
    try:
        return status().name if callable(status) else None
    except Exception:
        return None


class RetryBudget:
    """Decides for one batch whether to retry after a transient error, and waits before the retry.

    The longest pause doubles with each try, up to 20 seconds; the actual pause is a random part of it, so that the
    clients of a server do not return all at once. Two bounds apply: tries of one call, and seconds since the batch
    first failed.

    Args:
        config: the bounds.
        now_ns: returns the time in nanoseconds.
        sleep: waits for a number of seconds.
        jitter: returns random numbers in [0, 1).
    """

    def __init__(
        self,
        config: RetryConfig,
        now_ns: Callable[[], int],
        sleep: Callable[[float], None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._now_ns = now_ns
        self._sleep = sleep
        self._jitter = jitter
        self._ends_ns: int | None = None

    def is_retryable(self, error: BaseException) -> bool:
        """Whether the same call may succeed a little later."""
        return is_retryable(error, self._config)

    def allows_immediate_retry(self, error: BaseException, failed: int) -> bool:
        """Whether to try once more without a pause: only after the first failure, and only if it is transient."""
        return failed == 1 and self._config.attempts > 1 and self.is_retryable(error)

    def allows_retry(self, error: BaseException, failed: int) -> bool:
        """Waits and returns True; or returns False at once if the error is not transient or a bound is reached.

        Args:
            error: what the last try raised.
            failed: how many tries of the same call have failed, at least 1.
        """
        if failed >= self._config.attempts or not self.is_retryable(error):
            return False
        now = self._now_ns()
        if self._ends_ns is None:
            self._ends_ns = now + int(self._config.timeout_secs * 1e9)
        pause = self._jitter() * backoff(failed)
        if now + int(pause * 1e9) > self._ends_ns:
            return False
        self._sleep(pause)
        return True


class RetryTokens:
    """How many requests to an endpoint may be repeated: while most fail, repeating them all would only add load.

    A retry costs 5 tokens of 500, after a timeout 10. A success brings back what the request's retries have cost, or a
    token if it had none (much as in botocore's standard mode).
    """

    _MOST = 500
    _RETRY = 5
    _AFTER_TIMEOUT = 10

    def __init__(self) -> None:
        self.spent = 0

    def take(self, error: BaseException) -> int:
        """Pays for a retry after this error; returns what it cost, 0 if there was not enough."""
        cost = self._AFTER_TIMEOUT if isinstance(error, TimeoutError) else self._RETRY
        if self.spent + cost > self._MOST:
            return 0
        self.spent += cost
        return cost

    def succeeded(self, paid: int = 0) -> None:
        """Brings back what a request has paid, or a token."""
        self.spent = max(self.spent - (paid or 1), 0)
