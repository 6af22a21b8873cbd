"""The quotas of an endpoint that the user knows: requests and tokens a minute."""

from __future__ import annotations

from headrace.failures.endpoint_board import Board
from headrace.failures.quota import LAG_SECS

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
