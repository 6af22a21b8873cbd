"""How fast requests to an endpoint may follow each other, found from those that it refuses, but for those by chance."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from operator import itemgetter

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

    def started(self, now: float) -> None:
        """A request has left."""
        state = self._board.state
        self._chance.started(calm=self._is_calm(now))
        if state.quota < math.inf:
            each = 1 / self._rate(now)
            state.next_at = max(state.next_at, now - max(LAG_SECS, each)) + each

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
        below, known = lately < state.quota / 2, state.chance
        if self._chance.refused(self._rate(now), calm=self._is_calm(started), below=below):
            self._cut(now, started, lately)
        elif self._chance.is_futile and state.chance > known:
            state.quota = max(state.quota, state.first_quota)
            state.cut_at -= self._AHEAD * unit

    def _cut(self, now: float, started: float, lately: float) -> None:
        state, unit = self._board.state, self._unit()
        rate, measured, share = self._rate(now), self._measured(now), state.chance
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
        """Whether a refusal says how much is accepted: where nothing was for a unit, others have used up the quota."""
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
        state = self._board.state
        found = settling.quota(is_over=is_over) / (1 - state.chance)
        if found < _MUCH_LESS * state.quota:
            state.quota, state.known_since, settling.found = found, now, found
        elif is_over and state.quota == settling.found < found:  # what was known first was the end of a burst
            state.quota = min(found, settling.before)
        if is_over:
            if settling.was_steady or settling.took_none:
                lately, least = state.lately / (1 - state.chance), self._LARGEST_CUT * state.quota
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
            state.quota = state.lately / (1 - state.chance)
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
        """Requests accepted a second since the last cut, or in the last 3/8 of all time: at first, rates grow."""
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

    They are a ``share`` of all members'; ``before``: the quota by the cut; ``was_steady``: the rate was much the same
    for a unit of time before.
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


class ChanceRefusals:
    """Tells refusals that slowing down would avoid from those that come however few requests there are.

    Those are a share of all requests. It is learnt in the unit of time after a cut, when the quota is not overrun: a
    refusal counts if the answer before it was none, since those of a quota come in runs. The lower one of the last two
    shares is believed, for what was refused after one cut may have been too many, and most of it is kept if they are
    much lower than before. After some of the cuts the rate is lower than usual, so that a share is found out that is
    another client's doing.

    Then a cumulative sum (CUSUM) tells whether more are refused: each refusal adds, and each request takes away, how
    much likelier it is if a tenth more of all are refused. While no share is known, that goes for the unit after a cut,
    and for the time before the first one; at other times each refusal is one too many.

    Cuts that come before the rate is above the last one's quota avoid nothing. After three from the start, or six in a
    row later, more is believed and sooner, and the quota goes back to the first cut's.
    """

    _MORE = 0.1
    """How much more is refused if there are too many, as the sum has it."""
    _FALSE_ALARMS = 1.0, 200, 5000
    """In how many seconds chance alone makes the sum too high once; in how many requests at least, and at most."""
    _LEAST, _GREATEST, _UNKNOWN = 0.005, 0.08, 0.02
    """A lower share counts as none; a greater one is not believed; the share while none is known."""
    _FUTILE, _DOUBTED, _GREATEST_IF_FUTILE, _FEWEST_IF_FUTILE = 3, -3.0, 0.6, 12
    """Early cuts that show a greater share; where they begin later; the greatest; the fewest refusals that show it."""
    _HALVED, _IF_HALVED = 0.5, 0.05
    """Below which part of the quota early cuts show at once, how great a share."""
    _KEPT, _KEPT_IF_NONE = 0.7, 0.25
    """What part of a share is kept at least, if some are refused when it is measured again, and if none is."""
    _TESTED = 2
    """In how many cuts a share that is believed is tested once."""
    _PHASE, _FEWEST, _LONGEST, _DOUBT = 100, 3, 600, 20
    """Requests in a phase that measures the share; refusals it needs; its longest; accepted ones assumed beforehand."""

    def __init__(self, board: Board) -> None:
        self._board = board

    @property
    def is_tested(self) -> bool:
        """Whether to send much less for a while, to see whether as many are refused: by others' fault they are not."""
        state = self._board.state
        return state.share_before >= self._LEAST if not state.chance else state.cuts % self._TESTED == 0

    def started(self, *, calm: bool) -> None:
        """A request has left; ``calm``: when the quota cannot have been overrun."""
        state = self._board.state
        state.counted += calm and (not state.chance or self.is_tested)
        if state.surplus:
            state.surplus = max(0.0, state.surplus + math.log(1 - self._MORE / (1 - self._usual)))

    def refused(self, rate: float, *, calm: bool, below: bool) -> bool:
        """A request was refused that left after the last cut; returns whether that is one too many.

        ``rate``: how many may leave in a second; ``below``: whether far fewer than the quota were accepted lately.
        """
        state = self._board.state
        state.by_chance += calm and (not state.chance or self.is_tested) and not state.was_refused
        state.was_refused = 1.0
        if self._is_enough(calm=calm):
            self._learn()
        if not (state.chance or calm or below):
            return True
        state.surplus += math.log(1 + self._MORE / self._usual)
        secs, fewest, most = self._FALSE_ALARMS
        return state.surplus > math.log(max(fewest, min(most, secs * rate)))

    @property
    def is_futile(self) -> bool:
        """Whether cut after cut has avoided no refusals."""
        return self._board.state.early_cuts >= self._FUTILE

    @property
    def _usual(self) -> float:
        """The share that is known, or what it looks like."""
        usual = self._board.state.chance or self._UNKNOWN
        return max(usual, min(self._GREATEST_IF_FUTILE, self._counted())) if self.is_futile else usual

    def _is_great(self) -> bool:
        return self.is_futile or self._board.state.chance > self._GREATEST

    def _counted(self) -> float:
        state = self._board.state  # a refusal after another one does not count
        return state.by_chance / (state.counted - self._is_great() * state.by_chance + self._DOUBT)

    def cut(self, *, is_early: bool) -> None:
        """The rate was cut; ``is_early``: a little, and before it was above the quota again."""
        state = self._board.state
        state.first_quota = state.first_quota if is_early else state.quota
        state.early_cuts = state.early_cuts + 1 if is_early else self._DOUBTED * bool(state.cuts)
        state.surplus, state.cuts = 0.0, state.cuts + 1

    def _is_enough(self, *, calm: bool) -> bool:
        """Whether what has been counted tells the share."""
        state = self._board.state
        if state.counted >= self._LONGEST or (self.is_futile and state.by_chance >= self._FEWEST_IF_FUTILE):
            return True
        enough = state.counted >= self._PHASE * (1 + calm)
        return enough and state.by_chance + state.chance * state.counted >= self._FEWEST

    def _learn(self) -> None:
        state = self._board.state
        share, has_halved = self._counted(), self.is_futile and state.quota < self._HALVED * state.first_quota
        before = max(state.share_before, self._IF_HALVED * has_halved)
        lower = min(share, before, self._GREATEST_IF_FUTILE if self._is_great() else self._GREATEST)
        found = max(lower, state.chance * (self._KEPT if state.by_chance else self._KEPT_IF_NONE))
        state.chance, state.share_before = found if found >= self._LEAST else 0.0, share
        state.counted = state.by_chance = 0.0
