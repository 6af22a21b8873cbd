"""How many requests to an endpoint may be in flight, and how fast they may follow each other, found by feedback."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext

from headrace.core.phases import Look, Phase
from headrace.core.request_context import Allowance
from headrace.failures.endpoint_board import LAG_SECS, Board
from headrace.failures.latency import LatencyLimit
from headrace.failures.outages import FailureStreak, RefusalBreaker, Verdict
from headrace.failures.quota import QuotaRate

_MOST_TURNS_MISSED = 50
"""A member that has tried this often in vain goes ahead without a turn: the one that has it may be stopped."""
_MINUTE = 60 + 2 * LAG_SECS
"""A little more than a minute, so that what catches up with its schedule overruns no minute."""
_NEWEST = 0.1
"""How much the latest request counts in the mean number of tokens."""


class ConcurrencyLimit:
    """When the next request to an endpoint may leave. Pure: the time is a parameter, in seconds. Not thread-safe.

    ::

        LatencyLimit     how many in flight    from latencies
        QuotaRate        how many a second     from refusals, but for those by chance (ChanceRefusals)
        MinuteBudget     how many a minute     from the user
        RefusalBreaker   nothing but probes    while all are refused
        FailureStreak    as if refused         while all fail

    What they find out is on a ``Board``, which the processes of a machine share. So the limit is one for all of them:
    each may have a fair part of it in flight, and what the others do not use.

    Args:
        now: the time.
        most: at most this many are ever in flight from one process.
        jitter: returns random numbers in [0, 1).
        board: by default, nobody else sends requests to this endpoint.
        requests_per_minute: the user's; None: unknown.
        tokens_per_minute: the user's; None: unknown.
        patience_secs: how long requests wait for an endpoint that is down.
    """

    _LONGEST_HOLD_SECS = 60.0
    _WINDOW_SECS = 1.0
    """How long an endpoint that counts the requests of a second may refuse all of them."""
    _ROUND_TRIP = 8
    """This many refusals in a row, and a delay that the endpoint names is one for all requests."""
    _LOOK_SECS = 0.004
    """How soon to look again for what other processes have left; 20 ms later it would be lost."""

    def __init__(
        self,
        now: float,
        *,
        most: int = 1000,
        jitter: Callable[[], float] = random.random,
        board: Board | None = None,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        patience_secs: float = math.inf,
    ) -> None:
        self.board = board or Board(now)
        self._most = most
        self._latency = LatencyLimit(self.board, most)
        self._quota = QuotaRate(now, self.board)
        is_budgeted = requests_per_minute or tokens_per_minute
        self._budget = MinuteBudget(self.board, requests_per_minute, tokens_per_minute) if is_budgeted else None
        self._breaker = RefusalBreaker(jitter)
        self._streak = FailureStreak(patience_secs)
        self._restarted = -math.inf
        self._turns_missed = 0
        self._works = False
        """Whether a request of this process was answered: until then they go one at a time. Its key may be wrong."""
        self.client_is_busy = False
        """Whether requests wait for this process to compute: then more in flight deliver no more."""
        self.in_flight = 0
        """How many requests are in flight, but for those that left before the last outage and may never end."""
        self.is_throttled = False
        """Whether requests wait because the endpoint refuses some, not because many are in flight."""

    def look(self) -> Look:
        """What the requests are at."""
        quota = self.board.state.quota
        found = {"quota": quota} if 0 < quota < math.inf else {}
        return Look(
            [Phase.QUOTA] if self.is_throttled and not self.is_down else [], {"in_flight": self.in_flight, **found}
        )

    @property
    def limit(self) -> int:
        """How many requests may be in flight."""
        return int(self.board.state.limit)

    @property
    def outage_began(self) -> float | None:
        """Since when the endpoint has answered nothing; None: it answers."""
        opened, began = self._breaker.opened_at, self._streak.began
        return opened if opened is None or began is None else min(opened, began)

    @property
    def is_down(self) -> bool:
        """Whether the endpoint answers nothing because it does not work, rather than since it refuses all."""
        return self._breaker.is_down

    def take(self, now: float, waiting: int) -> tuple[int, float]:
        """How many of those that wait leave now, and seconds until the next one may.

        Infinite: none waits, or the next one not before another is finished.
        """
        self.board.look(now)
        left, wait = 0, math.inf
        if not waiting:
            self.board.wait_for_turn(now, waits=False)
        elif self._streak.is_outage and self._streak.doubts(now, waiting):
            self._breaker.answered()
            self._restarted, self.in_flight, wait = now, 0, self._LOOK_SECS
        elif now <= self._restarted:  # what left now would be forgotten, too
            wait = self._LOOK_SECS
        else:
            left, wait = self._take(now, waiting)
        self.board.show(now, self.in_flight, waiting - left)
        self.is_throttled = left < waiting and self._pause(now) > 0
        return left, wait

    def _take(self, now: float, waiting: int) -> tuple[int, float]:
        board, part, left = self.board, self._part(), 0
        if board.others:
            paces = self.outage_began is None and self.in_flight < part
            board.wait_for_turn(now, waits=paces and (self._pause(now) > 0 or bool(board.own.is_paced)))
        wait = self._wait(now, part)
        if wait == 0:
            with board.turn() if board.others else nullcontext(True) as is_mine:
                self._turns_missed = 0 if is_mine else self._turns_missed + 1
                if 0 < self._turns_missed < _MOST_TURNS_MISSED:
                    return 0, self._LOOK_SECS
                while wait == 0 and left < waiting and not (board.others and board.is_ahead(now)):
                    self.started(now)
                    board.own.turns += 1
                    left += 1
                    wait = self._wait(now, part) if left < waiting else math.inf
        if not board.others or self.outage_began is not None:
            return left, wait
        return left, max(self._pause(now), self._LOOK_SECS)  # they tell nobody what they leave

    def wait(self, now: float) -> float:
        """Seconds until the next request may leave, with no other process; infinite: not before another is finished."""
        return self._wait(now, self._part())

    def _wait(self, now: float, part: int) -> float:
        is_full = self.in_flight >= part and self._breaker.opened_at is None
        return math.inf if is_full else self._pause(now)

    def _pause(self, now: float) -> float:
        """Seconds until the next request, or probe, may leave, however many are in flight."""
        state = self.board.state
        is_open = self._breaker.opened_at is not None
        wait = self._breaker.wait(now) if is_open else max(now, state.next_at, state.held_until) - now
        return wait if self._budget is None else max(wait, self._budget.wait(now))

    def _part(self) -> int:
        """How many of all requests in flight may be this process's: a fair part, and what others do not want."""
        limit, others = self.board.state.limit if self._works else 1, self.board.others
        if others and self._works:
            fair = limit / (1 + len(others))
            wanted = sum(max(one.in_flight, min(fair, one.in_flight + one.waiting)) for one in others)
            limit = max(1, fair, limit - wanted)
        return min(self._most, int(limit))

    def started(self, now: float) -> None:
        """A request has left."""
        self.in_flight += 1
        self._latency.started(self.in_flight + self.board.in_flight_of_others)
        self._quota.started(now)
        if self._budget is not None:
            self._budget.started(now)
        if self._breaker.opened_at is not None:
            self._breaker.probed(now)

    def finished(
        self,
        now: float,
        started: float,
        reply: Verdict,
        *,
        retry_after: float = 0.0,
        size: int = 1,
        tokens: int = 0,
        has_failed: bool = False,
        allowed: Iterable[Allowance] = (),
    ) -> None:
        """A request that left at ``started`` is over, and its answer says so much about the endpoint.

        ``retry_after``: how long the endpoint asked to wait, in seconds; 0: it did not. ``size``: of elements.
        ``tokens``: what it took; 0: unknown. ``has_failed``: whether an earlier try of it has. ``allowed``: what the
        endpoint says is left: nothing leaves before there is enough for one more request.
        """
        if started > self._restarted:
            self.in_flight -= 1
        if self._budget is not None:
            self._budget.finished(tokens)
        if reply is Verdict.ANSWERED:
            self._works = True
            self._latency.answered(now, started, size, client_is_busy=self.client_is_busy)
            self._quota.answered(now, started)
            self._streak.answered()
            if self._breaker.in_a_row:
                self._breaker.answered()
        elif reply in (Verdict.DECLINED, Verdict.FAILED):
            self._quota.answered(now, started)
            if reply is Verdict.FAILED:
                self._failed(now, started, retry_after, has_failed=has_failed)
            elif not self.is_down:
                self._breaker.answered()
        elif reply is not Verdict.NOTHING:
            self._refused(now, started, reply, retry_after)
        if allowed:
            self._hold(now, allowed)

    def _hold(self, now: float, allowed: Iterable[Allowance]) -> None:
        for one in allowed:
            needed = max(1.0, self.board.state.tokens) if one.counts_tokens else 1.0
            until = now + min(one.wait(needed), self._LONGEST_HOLD_SECS)
            self.board.state.held_until = max(self.board.state.held_until, until)

    def _failed(self, now: float, started: float, retry_after: float, *, has_failed: bool) -> None:
        """Takes a failure for the endpoint's if it is down, and learns from it whether it is."""
        if not has_failed:
            self._streak.failed(now, self.in_flight)
        if self._streak.is_outage or self.is_down:
            self._refused(now, started, Verdict.UNAVAILABLE, retry_after, is_known=True)

    def _refused(
        self, now: float, started: float, reply: Verdict, retry_after: float, *, is_known: bool = False
    ) -> None:
        was_open = self._breaker.opened_at is not None
        if reply is Verdict.REFUSED:
            self._quota.refused(now, started)
            is_new = self._breaker.in_a_row + 1 < self._ROUND_TRIP
            if is_new or now - self._quota.accepted_at < self._WINDOW_SECS:
                retry_after = 0.0  # only this request waits so long: others may be accepted sooner
        if not self._breaker.refused(now, started, reply, retry_after, is_known=is_known):
            return
        if reply is Verdict.REFUSED:
            self._quota.all_refused(now, started)
        else:
            self._restarted, self.in_flight = now, 0  # requests that left before may never end
            if not was_open and not self.board.others:
                self._latency.restart(now)
        self._quota.hold()


class MinuteBudget:
    """Spreads requests evenly, so that no minute has more requests or tokens than the user says.

    How many tokens a request takes is known when it is over. Until then the mean of the others counts; before the first
    one is over, nothing. What was counted too little delays the next ones.
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
        """Counts the tokens of a request that is over; 0 if they are unknown or were not billed."""
        if not self._token_secs:
            return
        mean = self._board.state.tokens
        self._owed += tokens - mean
        if tokens:
            self._board.state.tokens = mean + _NEWEST * (tokens - mean) if mean else float(tokens)


class FixedLimit:
    """A fixed number of requests in flight, at any rate; has the methods of ``ConcurrencyLimit``. Pure."""

    is_down = False
    outage_began: float | None = None
    """An engine in this process has no outages."""
    client_is_busy = is_throttled = False

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self.board = Board(0.0)
        """Of nobody else."""

    def look(self) -> Look:
        """What the requests are at."""
        return Look(gauges={"in_flight": self.in_flight})

    def take(self, now: float, waiting: int) -> tuple[int, float]:
        """How many of those that wait leave now; and infinity: the next one not before another is finished."""
        left = max(0, min(waiting, self.limit - self.in_flight))
        self.in_flight += left
        return left, math.inf

    def finished(self, *_: object, **__: object) -> None:
        """A request is over, whatever came of it."""
        self.in_flight -= 1
