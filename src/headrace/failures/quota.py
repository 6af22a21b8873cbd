"""How fast requests to an endpoint may follow each other, found from those that it refuses."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from operator import itemgetter

from headrace.failures.chance import ChanceRefusals
from headrace.failures.endpoint_board import LAG_SECS, Board

_MUCH_LESS = 0.75
"""What part of an estimate has to be found for another one to replace it."""


class QuotaRate:
    """How many requests a second to send to an endpoint that refuses some.

    Unlimited until the first refusal that is not by chance (``ChanceRefusals``). Then the rate at which the endpoint
    has lately accepted requests is the estimate ``q`` of its quota, and ``t`` seconds later the rate is ``q * (0.97 +
    exp((t - 4) / 0.8))``: 2 % below the quota at once, 5 % above it after two seconds, four times as much after five,
    until the next refusal. Where requests are rare, or refusals slow, the unit is not a second but the time of 20
    requests, or twice that of a refusal. For large quotas the exponential counts down to 0.7 times as much: of machines
    that know nothing of each other, the one with the smaller part probes for more.

    That estimate looks back over a second, and the quota may just have been lowered, or a reserve used up. So what
    becomes of the requests that left between the first that was refused and the news of it is counted, too: if much
    less of it is accepted, that is the quota.

    Endpoints that count the requests of a second, of the clock or of the last one, accept all until it is full, then
    few or none, whatever the quota. So what was accepted in the whole unit before the last refusal limits the estimate
    from above, and a unit after the first cut the estimate goes back up to it if later cuts made it much lower.

    Args:
        now: the time.
        board: where the members of a machine keep what they have found out.
    """

    _BELOW, _DIP = 0.03, 0.06
    """How much lower than the quota the rate is at first, and how much more if a share by chance is tested."""
    _PROBING = 4.0, 0.8
    """When probing reaches twice the quota, and in which time it grows by a factor of e, in units."""
    _MODEST, _LEAST_EAGER = 200.0, 0.7
    """Above how many requests a second the exponential counts less, and how little at least."""
    _LARGEST_CUT = 0.5
    """How much of the rate a cut leaves at least."""
    _FEW = 4
    """Where fewer are accepted after a cut, those of the unit of time before count as much as they."""
    _EARLY, _AHEAD = 2, 3
    """Until which unit a cut is early; how many units of growth are left out after such cuts."""
    _ROUND_TRIPS, _NEWEST = 2, 0.1
    """How many of the time that refusals take; how much the latest one counts in it."""
    _UNIT, _UNIT_BY_CHANCE = 20, 80
    """How many requests have to fit into the unit of time; how many if some are refused by chance."""

    def __init__(self, now: float, board: Board) -> None:
        self._board = board
        self._began = now
        self._totals = deque([(now, board.accepted)])
        """Times, and how many requests of all members had been accepted then."""
        self.accepted_at = -math.inf
        """When a request of this member was last accepted."""
        self._settling: _Settling | None = None
        self._chance = ChanceRefusals(board)
        self._rated, self._rated_for = math.inf, (-math.inf, math.inf)
        """The rate, at a time and for a quota."""

    def started(self, now: float) -> None:
        """A request has left."""
        state = self._board.state
        self._chance.started(calm=self._is_calm(now))
        if state.quota == math.inf:
            return
        if (now, state.quota) != self._rated_for:  # else it leaves together with others
            self._rated_for, self._rated = (now, state.quota), self._rate(now)
        state.next_at = max(state.next_at, now - max(LAG_SECS, 1 / self._rated)) + 1 / self._rated

    def answered(self, now: float, started: float) -> None:
        """A request was accepted."""
        board, totals = self._board, self._totals
        board.own.accepted += 1
        board.state.accepts, board.state.was_refused = 1.0, 0.0
        self.accepted_at = now
        totals.append((now, board.accepted))
        first = now - self._unit()
        while totals[1][0] < first:
            totals.popleft()
        if self._settling is not None:
            self._settle(self._settling, now, started, accepted=True)

    def refused(self, now: float, started: float) -> None:
        """A request that left at ``started`` was refused: before the last cut, that is no reason for another."""
        if self._settling is not None:
            self._settle(self._settling, now, started, accepted=False)
        state, unit = self._board.state, self._unit()
        state.news += self._NEWEST * (now - started - state.news)
        lately = self._accepted_since(now - unit, now)
        state.lately = min(state.lately, lately)
        if not self._teaches(now, started):
            return
        below, known = lately < state.quota / 2, self._chance.share
        if self._chance.refused(self._rate(now), calm=self._is_calm(started), below=below):
            self._cut(now, started, lately)
        elif self._chance.is_futile and self._chance.share > known:
            state.quota = max(state.quota, state.first_quota)
            state.cut_at -= self._AHEAD * unit

    def _cut(self, now: float, started: float, lately: float) -> None:
        state, unit = self._board.state, self._unit()
        rate, measured, share = self._rate(now), self._measured(now), self._chance.share
        was_steady = rate < math.inf and now - state.cut_at >= unit
        if now - state.first_cut_at >= unit:
            state.first_cut_at, state.lately = now, lately
        accepted = measured
        if share and rate < math.inf:
            accepted = max(measured, lately)
        elif rate < math.inf and measured * (now - state.cut_at) < self._FEW:
            accepted = (measured + lately) / 2
        found = accepted / (1 - share)
        state.quota = found if math.isinf(rate) else min(rate, max(found, self._LARGEST_CUT * rate))
        early = now - state.cut_at < self._EARLY * unit and state.quota > (self._LARGEST_CUT + 0.01) * rate
        state.cut_at = state.next_at = state.known_since = now
        self.hold()
        self._chance.cut(is_early=early)
        part = 1 / (1 + len(self._board.others))
        self._settling = _Settling(started, now, part, state.quota, was_steady=was_steady)

    def _teaches(self, now: float, started: float) -> bool:
        """Whether a refusal says how much is accepted: where nothing was lately, others have used up the quota.

        Lately is in the unit of time, or, from other members, since this one's last.
        """
        board = self._board
        if started <= board.state.known_since or not board.state.accepts:
            return False
        return now - self.accepted_at <= self._unit() or board.accepted > self._totals[-1][1]

    def hold(self) -> None:
        """Refusals teach nothing new before anything is accepted again."""
        self._board.state.accepts = 0.0

    def all_refused(self, now: float, started: float) -> None:
        """Many in a row are refused, this one the last: that is no chance."""
        if self._teaches(now, started):
            self._cut(now, started, self._accepted_since(now - self._unit(), now))

    def _settle(self, settling: _Settling, now: float, started: float, *, accepted: bool) -> None:
        """Learns from what left before the last cut and after the first refusal."""
        is_over = started > settling.until
        if not is_over:
            settling.count(started, accepted=accepted)
        elif not accepted:
            return
        found, state = settling.quota(is_over=is_over) / (1 - self._chance.share), self._board.state
        if found < _MUCH_LESS * state.quota:
            state.quota, state.known_since, settling.found = found, now, found
        elif is_over and state.quota == settling.found < found:  # what was known first was the end of a burst
            state.quota = min(found, settling.before)
        if is_over:
            if settling.was_steady or settling.took_none:
                lately, least = state.lately / (1 - self._chance.share), self._LARGEST_CUT * state.quota
                state.quota = min(state.quota, max(lately, least))
            self._settling = None

    def _is_calm(self, started: float) -> bool:
        """Whether a request left when the rate was below the quota, as far as that is known."""
        return math.isinf(self._board.state.quota) or started - self._board.state.cut_at < self._unit()

    def _unit(self) -> float:
        """Seconds over which to measure and to grow."""
        state = self._board.state
        requests = self._UNIT if not state.chance else self._UNIT_BY_CHANCE
        return max(1.0, requests / state.quota, self._ROUND_TRIPS * state.news)

    def _rate(self, now: float) -> float:
        state = self._board.state
        if state.quota < _MUCH_LESS * state.lately and now - state.first_cut_at >= self._unit():
            state.quota = state.lately / (1 - self._chance.share)
        quota = state.quota
        if math.isinf(quota):
            return quota
        twice, growth = self._PROBING
        since = min((now - state.cut_at) / self._unit(), 2 * twice)
        eagerness = max(self._LEAST_EAGER, min(1.0, math.pow(self._MODEST / quota, 0.25)))
        below = self._BELOW + (self._DIP if since < 1 and self._chance.is_tested else 0.0)
        probing = quota * (1 - below + eagerness * math.exp((since - twice) / growth))
        return min(probing, max(quota, 2 * self._measured(now)))

    def _measured(self, now: float) -> float:
        """Requests of all members accepted a second, lately.

        That is since the last cut, or in the last three eighths of all time if that is short: at first, rates grow.
        """
        since = max(self._board.state.cut_at, now - self._unit(), self._began + 5 / 8 * (now - self._began))
        return self._accepted_since(since, now)

    def _accepted_since(self, since: float, now: float) -> float:
        """Requests of all members accepted a second."""
        totals = self._totals
        at = bisect_left(totals, since, key=itemgetter(0))
        if at < len(totals) and now - totals[at][0] > (now - since) / 2:
            since = totals[at][0]  # members accept by turns: what was accepted before may have been since the last look
        else:
            at = max(0, at - 1)
        return max(1, self._board.accepted - totals[at][1]) / max(0.02, now - since)


class _Settling:
    """What became of the requests that left from ``first`` until the news that this one was refused.

    Args:
        first: when the first one left, which was refused.
        until: when that was known.
        share: how much of all requests are this member's.
        before: the quota by the cut.
        was_steady: whether the rate was much the same for a unit of time before.
    """

    _FEWEST = 8
    """Refusals that tell enough."""
    _MIXED = 4
    """Changes from accepted to refused, or back."""

    def __init__(self, first: float, until: float, share: float, before: float, *, was_steady: bool) -> None:
        self.until, self.before, self.was_steady = until, before, was_steady
        self.found = math.inf
        """What the quota seemed to be before all of them were over; infinite: no less than ``before``."""
        self._first, self._last, self._share = first, first, share
        self._accepted = self._refused = self._switches = 0
        self._accepted_last = False

    def count(self, started: float, *, accepted: bool) -> None:
        """One of them is over."""
        if started < self._first:
            return
        self._last = max(self._last, started)
        self._switches += accepted != self._accepted_last
        self._accepted_last = accepted
        self._accepted += accepted
        self._refused += not accepted

    @property
    def took_none(self) -> bool:
        """Whether the endpoint refused all of them."""
        return not self._accepted and self._refused >= self._MIXED

    def quota(self, *, is_over: bool) -> float:
        """What was accepted a second, or a little more; infinite: too little is known.

        Where those that are refused are not mixed with those that are accepted, a quota is renewed now and then: how
        long that takes is more than can be seen here.
        """
        seconds = self._last - self._first
        if self._switches < self._MIXED or self._refused < self._FEWEST or seconds <= 0:
            return math.inf
        return (self._accepted + math.sqrt(self._accepted) * (1 if is_over else 2)) / seconds / self._share
