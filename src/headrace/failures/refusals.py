"""What an answer says about an endpoint, and how one that refuses all requests, or does not work, is probed."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from headrace.failures.endpoint_board import BreakerState


class Verdict(Enum):
    """What an endpoint's answer to a request says about the endpoint."""

    ANSWERED = auto()
    """It did the work."""
    REFUSED = auto()
    """It has had enough requests for now: HTTP 429."""
    UNAVAILABLE = auto()
    """It does not work: nobody listens, or HTTP 503."""
    FAILED = auto()
    """It may not work, or only this request may: HTTP 500, a lost connection."""
    DECLINED = auto()
    """It has looked at the request, and will not do it: HTTP 400."""
    NOTHING = auto()
    """Nothing: the request was cancelled, or failed for a reason of its own."""


class HasBreaker(Protocol):
    """Where a breaker keeps what it knows."""

    breaker: BreakerState


class RefusalBreaker:
    """Stops all requests but a few probes while an endpoint refuses everything or does not work at all.

    An outage is probed once a second. A quota that is used up may be over sooner: those pauses begin with 30 ms and
    double up to a second. A pause lasts as long as the endpoint asks for (Retry-After). The first answer ends it.

    Args:
        board: has what it knows; processes that share it probe an outage together.
        jitter: returns random numbers in [0, 1), so that the clients of an endpoint do not return all at once.
    """

    _IN_A_ROW = 5
    _FIRST_SECS = 0.03
    _LONGEST_SECS = 1.0

    def __init__(self, board: HasBreaker, jitter: Callable[[], float]) -> None:
        self._board = board
        self._jitter = jitter

    def wait(self, now: float) -> float:
        """Seconds until the next request may leave."""
        return max(0.0, self._board.breaker.paused_until - now) if self._board.breaker.opened_at else 0.0

    def started(self, now: float) -> None:
        """A request has left; if it is a probe, the next one waits, even if this one is never answered."""
        if self._board.breaker.opened_at:
            self._board.breaker.paused_until = now + self._jittered(self._LONGEST_SECS)

    def answered(self) -> None:
        """The endpoint works, or may work."""
        state = self._board.breaker
        if state.in_a_row:
            state.in_a_row = state.pauses = state.opened_at = 0.0

    def refused(
        self, now: float, started: float, reply: Verdict, retry_after: float, *, is_known: bool = False
    ) -> bool:
        """Counts a refusal; returns whether a pause begins. The answers to what left before the pause do not count.

        Args:
            now: the time.
            started: when the request left.
            reply: REFUSED or UNAVAILABLE.
            retry_after: how long the endpoint asked to wait, in seconds.
            is_known: nothing need be counted: the endpoint is known to answer nothing.
        """
        state = self._board.breaker
        state.in_a_row = max(state.in_a_row + 1, self._IN_A_ROW if is_known else 0)
        if state.in_a_row < self._IN_A_ROW or (state.opened_at and started < state.paused_at):
            return False
        secs = min(self._FIRST_SECS * 2**state.pauses, self._LONGEST_SECS)
        if reply is Verdict.UNAVAILABLE:
            secs, state.gone_at = self._LONGEST_SECS, now
        state.pauses += 1
        state.paused_at, state.paused_until = now, now + max(retry_after, self._jittered(secs))
        state.opened_at = state.opened_at or now
        return True

    def _jittered(self, secs: float) -> float:
        return secs * (1 + 0.2 * self._jitter())
