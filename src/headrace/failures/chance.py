"""Whether an endpoint refuses a request because there are too many, or as it refuses a share of all by chance."""

from __future__ import annotations

import math

from headrace.failures.endpoint_board import Board


class ChanceRefusals:
    """Tells refusals that slowing down would avoid from those that come however few requests there are.

    Those are a share of all requests. It is learnt in the unit of time after a cut, when the quota is not overrun: a
    refusal counts if the answer before it was none, since those of a quota come in runs. The lower one of the last two
    shares is believed, for what was refused after one cut may have been too many, and half of it is kept if they are
    much lower than before. After some of the cuts the rate is lower than usual, so that a share is found out that is
    another client's doing.

    Then a cumulative sum (CUSUM) tells whether more are refused: each refusal adds, and each request takes away, how
    much likelier it is if a tenth more of all are refused. While no share is known, that goes for the unit after a cut,
    and for the time before the first one; at other times each refusal is one too many.

    Args:
        board: where the members of a machine keep what they have found out.
    """

    _MORE = 0.1
    """How much more is refused if there are too many, as the sum has it."""
    _FALSE_ALARMS = 1.0, 200, 5000
    """In which time chance alone makes the sum too high once, about, in seconds; in how many requests at least, and at
    most."""
    _LEAST, _GREATEST = 0.005, 0.08
    """A lower share counts as none; a greater one is not believed."""
    _UNKNOWN = 0.02
    """The share while none is known."""
    _TESTED = 2
    """In how many cuts a share that is believed is tested once."""
    _PHASE, _LONGEST, _FEWEST = 100, 600, 3
    """How many requests tell the share if so many of them are refused, or would be; how many tell it in any case."""
    _DOUBT = 20
    """How many are taken to have been accepted before."""

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
        state.counted += calm and self._learns
        if state.surplus:
            state.surplus = max(0.0, state.surplus + math.log(1 - self._MORE / (1 - (state.chance or self._UNKNOWN))))

    def accepted(self) -> None:
        """A request was accepted."""
        self._board.state.was_refused = 0.0

    def refused(self, rate: float, *, calm: bool, below: bool = False) -> bool:
        """A request was refused that left after the last cut; returns whether that is one too many.

        Args:
            rate: how many may leave in a second.
            calm: as in ``started``.
            below: whether far fewer than the quota have been accepted lately.
        """
        state = self._board.state
        state.by_chance += calm and self._learns and not state.was_refused
        state.was_refused = 1.0
        if self._is_enough(calm=calm):
            self._learn()
        if not (state.chance or calm or below):
            return True
        state.surplus += math.log(1 + self._MORE / (state.chance or self._UNKNOWN))
        secs, fewest, most = self._FALSE_ALARMS
        return state.surplus > math.log(max(fewest, min(most, secs * rate)))

    def cut(self) -> None:
        """The rate was cut."""
        state = self._board.state
        state.surplus, state.cuts = 0.0, state.cuts + 1

    def _is_enough(self, *, calm: bool) -> bool:
        """Whether what has been counted tells the share."""
        state = self._board.state
        if state.counted >= self._LONGEST:
            return True
        expected = state.by_chance + state.chance * state.counted
        return state.counted >= self._PHASE * (1 + calm) and expected >= self._FEWEST

    def _learn(self) -> None:
        state = self._board.state
        share = state.by_chance / (state.counted + self._DOUBT)
        lower = min(share, state.share_before, self._GREATEST)
        found = max(lower, state.chance / (2 if state.by_chance else 4))
        state.chance, state.share_before = found if found >= self._LEAST else 0.0, share
        state.counted = state.by_chance = 0.0

    @property
    def _learns(self) -> bool:
        return not self._board.state.chance or self.is_tested
