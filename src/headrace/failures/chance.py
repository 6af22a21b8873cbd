"""What share of requests an endpoint refuses by chance, however few there are."""

from __future__ import annotations

import math

from headrace.failures.endpoint_board import Board


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

    Args:
        board: where the members of a machine keep what they have found out.
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
    def share(self) -> float:
        """Of all requests, that are refused by chance."""
        return self._board.state.chance

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

    def refused(self, rate: float, *, calm: bool, below: bool = False) -> bool:
        """A request was refused that left after the last cut; returns whether that is one too many.

        Args:
            rate: how many may leave in a second.
            calm: as in ``started``.
            below: whether far fewer than the quota have been accepted lately.
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
        return self.is_futile or self.share > self._GREATEST

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
