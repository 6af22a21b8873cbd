"""What the log says of an endpoint: that it is down, that it answers again, that it gets less than it could take."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

from headrace.core.answer import Skip
from headrace.core.errors import as_type_name
from headrace.core.remote import ElementFailure

_LOGGER = logging.getLogger(__name__)

_WORTH_SAYING_SECS = 10.0
_SMALL_IN_A_ROW = 50


class EndpointLog:
    """Warns of each outage once; once of tokens that are not reported, and of bundles that keep it from being busy."""

    def __init__(self, caller: str) -> None:
        self._caller = caller
        self._has_missed_tokens = False
        self._waits_until = -math.inf
        self._small_bundles = 0
        """How many were too small, in a row; or more than enough, once the log has said so."""
        self.is_down = False
        """Whether the last word was that the endpoint is down."""

    def note(self, *, is_down: bool, error: BaseException | None) -> None:
        """Takes down whether the endpoint is down, and its last error."""
        if is_down and not self.is_down:
            why = "" if error is None else f" ({as_type_name(error)}: {error})"
            _LOGGER.warning("%s: the endpoint is down%s. Requests wait until it answers.", self._caller, why)
        elif self.is_down and not is_down:
            _LOGGER.warning("%s: the endpoint answers again.", self._caller)
        self.is_down = is_down

    def note_delay(self, now: float, secs: float, longest_secs: float, error: BaseException) -> None:
        """Takes down how long the endpoint asks to wait, and requests do at most; says so once, unless it is short."""
        if secs < _WORTH_SAYING_SECS or now < self._waits_until:
            return
        self._waits_until = now + min(secs, longest_secs)
        what = "such requests wait"
        if secs > longest_secs:
            what = f"such requests are given up: RetryConfig(max_retry_after_secs={longest_secs:g}) is less"
        said = f"{as_type_name(error)}: {error}"
        _LOGGER.warning("%s: the endpoint asks to wait for %.0f s (%s); %s.", self._caller, secs, said, what)

    def miss_tokens(self, predictions: Iterable[Any]) -> None:
        """An answer of which no tokens were reported, although they are limited; one without predictions has none."""
        if self._has_missed_tokens or all(isinstance(one, Skip | ElementFailure) for one in predictions):
            return
        self._has_missed_tokens = True
        _LOGGER.warning(
            "%s does not report what requests use, so tokens_per_minute has no effect: call headrace.report_usage in "
            "it.",
            self._caller,
        )

    def note_bundle(self, *, is_too_small: bool) -> None:
        """Notes a bundle; too small is one of a single request while the endpoint would take more."""
        if self._small_bundles < _SMALL_IN_A_ROW:
            self._small_bundles = self._small_bundles + 1 if is_too_small else 0
            if self._small_bundles == _SMALL_IN_A_ROW:
                _LOGGER.warning(
                    "%s: the endpoint would take more requests at a time than it gets. The runner hands over bundles "
                    "of one request each, and each thread waits for its own: give workers more threads "
                    "(--number_of_worker_harness_threads), or, if a request may hold several elements, let them wait "
                    "for each other (max_batch_duration_secs).",
                    self._caller,
                )
