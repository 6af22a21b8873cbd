"""Notices that bundles are too small to keep an endpoint busy."""

from __future__ import annotations

import logging

_LOGGER = logging.getLogger(__name__)

_IN_A_ROW = 50


class SmallBundles:
    """Counts bundles of one request that wait for it while the endpoint would take more; says so once.

    Args:
        who: the handler, for the message.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._in_a_row = 0
        self._has_said_so = False

    def note(self, requests: int, *, could_send_more: bool) -> None:
        """Notes a bundle that now waits for its requests.

        Args:
            requests: how many it has sent.
            could_send_more: whether the endpoint takes more than all bundles have sent.
        """
        self._in_a_row = self._in_a_row + 1 if requests == 1 and could_send_more else 0
        if self._in_a_row < _IN_A_ROW or self._has_said_so:
            return
        self._has_said_so = True
        _LOGGER.warning(
            "%s: the endpoint would take more requests at a time than it gets. The runner hands over bundles of one "
            "request each, and each thread waits for its own: give workers more threads "
            "(--number_of_worker_harness_threads), or, if a request may hold several elements, let them wait for each "
            "other (max_batch_duration_secs).",
            self._who,
        )
