"""What the log says of an endpoint: that it is down, that it answers again, that its handler does not report tokens."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from headrace.core.answer import Skip
from headrace.core.errors import as_type_name
from headrace.core.remote import ElementFailure

_LOGGER = logging.getLogger(__name__)


class EndpointLog:
    """Warns of each outage once, and of tokens that are not reported once.

    Args:
        who: the handler, and its method that sends requests.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._has_missed_tokens = False
        self.is_down = False
        """Whether the last word was that the endpoint is down."""

    def note(self, *, is_down: bool, error: BaseException | None) -> None:
        """Takes down whether the endpoint is down, and its last error."""
        if is_down and not self.is_down:
            why = "" if error is None else f" ({as_type_name(error)}: {error})"
            _LOGGER.warning("%s: the endpoint is down%s. Requests wait until it answers.", self._who, why)
        elif self.is_down and not is_down:
            _LOGGER.warning("%s: the endpoint answers again.", self._who)
        self.is_down = is_down

    def miss_tokens(self, predictions: Iterable[Any]) -> None:
        """An answer of which no tokens were reported, although they are limited; one without predictions has none."""
        if self._has_missed_tokens or all(isinstance(one, Skip | ElementFailure) for one in predictions):
            return
        self._has_missed_tokens = True
        _LOGGER.warning(
            "%s does not report what requests use, so tokens_per_minute has no effect: call headrace.report_usage in "
            "it.",
            self._who,
        )
