"""Failures that may pass by themselves: which they are, and how long to wait before the next try."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

from headrace.core.config import RetryConfig
from headrace.core.errors import as_type_name

_LOGGER = logging.getLogger(__name__)

_LONGEST_PAUSE_SECS = 20.0
_CLASSES = {"APIConnectionError", "ConnectionError", "Timeout", "TransportError"}
"""Of HTTP's clients whose errors are not derived from Python's own: openai, anthropic, requests, httpx, google-auth."""
_STATUSES = {408, 425, 429, 500, 502, 503, 504}
"""Of HTTP: asked too early or too often, or the server is not itself."""
_CODES = {"ABORTED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}
"""Of gRPC, likewise."""


def may_pass(error: BaseException, config: RetryConfig) -> bool:
    """Whether the same call may succeed a little later, by the user's function if there is one.

    Where that cannot be told, since the function or a property of the error raises, it may not: the error is to go its
    way, and not another in its place.
    """
    try:
        return bool((config.retryable or is_transient)(error))
    except Exception:
        name = as_type_name(type(error))
        _LOGGER.warning("%s is not tried again: asking whether it may pass failed.", name, exc_info=True)
        return False


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed a little later.

    An error's own attribute ``retryable`` decides where it has one; else lost connections, time limits, and the status
    codes that clients of HTTP and gRPC put on their errors.
    """
    retryable = getattr(error, "retryable", None)
    if isinstance(retryable, bool):
        return retryable
    is_lost = isinstance(error, TimeoutError) or bool(_CLASSES & {cls.__name__ for cls in type(error).__mro__})
    return is_lost or bool(_status_of(error) & (_STATUSES | _CODES))


def _status_of(error: BaseException) -> set[Any]:
    response = getattr(error, "response", None)
    found = [getattr(error, "status_code", None), getattr(error, "code", None), getattr(response, "status_code", None)]
    return {_plain(status) for status in found}


def _plain(status: Any) -> Any:
    """A number, or the name of a code of gRPC, whose errors have a method that tells."""
    if isinstance(status, int):
        return int(status)
    try:
        return status().name if callable(status) else None
    except Exception:
        return None


class RetryBudget:
    """Says for one batch whether to try again what failed for a passing reason, and waits until then.

    Pauses grow to twice as much each time, 20 seconds at most, and are a random part of that, so that many clients of
    one server do not come back together. There are two bounds: tries of one call, and seconds since the batch first
    failed.

    Args:
        config: the bounds.
        now_ns: tells the time, in nanoseconds.
        sleep: waits so many seconds.
        jitter: gives numbers from 0 up to 1.
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

    def may_pass(self, error: BaseException) -> bool:
        """Whether the same call may succeed a little later."""
        return may_pass(error, self._config)

    def allows_immediate_retry(self, error: BaseException, failed: int) -> bool:
        """Whether to try once more without a pause, which need not help; see ``again``."""
        return failed == 1 and self._config.attempts > 1 and self.may_pass(error)

    def allows_retry(self, error: BaseException, failed: int) -> bool:
        """Waits and returns True; or returns False at once: the error does not pass, or a bound is reached.

        Args:
            error: what the last try raised.
            failed: how many tries of the same call have failed, at least 1.
        """
        if failed >= self._config.attempts or not self.may_pass(error):
            return False
        now = self._now_ns()
        if self._ends_ns is None:
            self._ends_ns = now + int(self._config.timeout_secs * 1e9)
        pause = self._jitter() * min(2.0 ** (failed - 1), _LONGEST_PAUSE_SECS)
        if now + int(pause * 1e9) > self._ends_ns:
            return False
        self._sleep(pause)
        return True
