"""Finds the elements that kill or hang their model host, so that the rest of the batch outlasts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

from headrace.core.result import Stage

ResultT = TypeVar("ResultT")

TIMEOUTS_BORNE = 3
"""How many more timeouts a batch may have after its first; the next one fails what is unanswered.

Each costs the whole time limit, so a model that hangs on everything must not cost one for each element.
"""

LETHAL_IN_A_ROW = 16
"""After how many lethal elements, with no answer to another in between, what is unanswered fails.

Each costs new hosts, so a model that dies of everything must not cost two for each element.
"""


@dataclass(frozen=True)
class Lost:
    """An attempt that got no answer, since its host hung or died."""

    error: BaseException
    """With what those elements fail that are not tried again."""
    timed_out: bool
    """Whether the host was killed because an operation overran; else it died."""
    stage: Stage
    """The kind of operation that ran."""
    position: int | None = None
    """The element, by its place in the whole batch, whose pre- or postprocessing operation ran; None: the inference
    of all that were tried together, or nobody knows."""
    index: int = 0
    """Which operation of its stage, counted from 0."""
    too_large: bool = False
    """Whether the host died for want of memory, so that fewer elements may do."""


@dataclass(frozen=True)
class Sentence:
    """What an element is condemned to: this operation is not run on it, but fails with this error."""

    stage: Stage
    index: int
    """Which operation of its stage, counted from 0."""
    error: BaseException


Attempt = Callable[[Sequence[int], Mapping[int, Sentence]], ResultT | Lost]
"""Runs the elements at these positions together; the condemned among them fail as their sentences say."""


def outlast(
    positions: Sequence[int], first: Lost, attempt: Attempt[ResultT], *, settles_alone: bool = False
) -> Iterator[tuple[Sequence[int], ResultT | Lost]]:
    """Tries a batch whose host was lost again, until what is lethal or endless is condemned and the rest answered.

    A *death* may be an outsider's doing: the batch is repeated once as it is, unless it was for want of memory. If it
    dies again in inference it is halved, and a half that dies is halved at once, until an element stands alone; that
    one is repeated once, since the deaths of its group prove nothing about it, and then condemned. If it dies twice in
    one element's pre- or postprocessing, that element is condemned for that operation and the others stay together. A
    *timeout* is nobody else's doing, and dear: after one in inference the elements go one by one; one that overruns
    alone, or in an operation of its own, is condemned at once.

    Condemned elements are tried once more, so that the host can make their failures of the right value; an element
    that is lost although condemned is given up. ``TIMEOUTS_BORNE`` and ``LETHAL_IN_A_ROW`` end it all early.

    Args:
        positions: distinct places in the batch of the elements that were tried together, at least one.
        first: what happened to them.
        attempt: runs some of them, in another host where the last was lost; its answer is about all of them.
        settles_alone: whether an element that stands alone and is condemned for inference is given up at once. Right
            where there is no preprocessing: the caller has what its inference was given.

    Yields:
        (part, answer) as they come; the parts together are ``positions``, each once. Every element of a part whose
        answer is a Lost is to fail with its error. n elements cost at most 5n attempts, whatever attempts return;
        one that is lethal in inference costs at most 2 ceil(log2 n) + 3.
    """
    trial = _Trial(settles_alone)
    waiting: list[_Part] = []
    part = _Part(positions, repeatable=True)
    answer: ResultT | Lost = first
    while True:
        if isinstance(answer, Lost):
            given_up, again = trial.judge(part, answer)
            if trial.is_hopeless:
                yield [position for left in (part, *reversed(waiting)) for position in left.positions], answer
                return
            if given_up:
                yield given_up, answer
            waiting.extend(reversed(again))
        else:
            trial.acquit(part.positions)
            yield part.positions, answer
        if not waiting:
            return
        part = waiting.pop()
        answer = attempt(part.positions, trial.sentences_among(part.positions))


class _Part(NamedTuple):
    """Elements that are tried together."""

    positions: Sequence[int]
    repeatable: bool
    """Whether its next death is taken for an outsider's doing."""


class _Trial:
    """What the attempts have shown so far about the elements of a batch."""

    def __init__(self, settles_alone: bool) -> None:
        self._settles_alone = settles_alone
        self._sentences: dict[int, Sentence] = {}
        self._timeouts = 0
        self._suspected: set[int] = set()
        """In whose own operation a host died once."""
        self._lethal_in_a_row: set[int] = set()

    @property
    def is_hopeless(self) -> bool:
        """Whether what is still unanswered should fail without another attempt."""
        return self._timeouts > 1 + TIMEOUTS_BORNE or len(self._lethal_in_a_row) >= LETHAL_IN_A_ROW

    def sentences_among(self, positions: Sequence[int]) -> dict[int, Sentence]:
        """The sentences of those that are condemned."""
        return {position: self._sentences[position] for position in positions if position in self._sentences}

    def acquit(self, positions: Sequence[int]) -> None:
        """Takes note of an answer; one about condemned elements only shows no more than that they were spared."""
        if any(position not in self._sentences for position in positions):
            self._lethal_in_a_row.clear()

    def judge(self, part: _Part, lost: Lost) -> tuple[Sequence[int], list[_Part]]:
        """Takes note of a loss: which elements are given up, and what is tried next."""
        self._timeouts += lost.timed_out
        suspect = _suspect(part.positions, lost)
        if suspect is not None and suspect in self._sentences:
            return self._give_up(suspect, part, lost)
        is_first_suspicion = len(part.positions) > 1 and suspect is not None and suspect not in self._suspected
        if suspect is not None:
            self._suspected.add(suspect)
        would_help = len(part.positions) == 1 or not lost.too_large
        if not lost.timed_out and (part.repeatable or is_first_suspicion) and would_help:
            return (), [part._replace(repeatable=False)]
        if suspect is None:
            return (), _split(part.positions, len(part.positions) if lost.timed_out else 2)
        sentence = _sentence(suspect, lost)
        if self._settles_alone and sentence.stage is Stage.INFERENCE:  # then it stands alone
            return self._give_up(suspect, part, lost)
        self._sentences[suspect] = sentence
        self._count(suspect, lost)
        return (), [part]

    def _give_up(self, suspect: int, part: _Part, lost: Lost) -> tuple[Sequence[int], list[_Part]]:
        """Goes on without the suspect."""
        self._count(suspect, lost)
        others = [position for position in part.positions if position != suspect]
        return (suspect,), [_Part(others, part.repeatable or len(others) == 1)] if others else []

    def _count(self, suspect: int, lost: Lost) -> None:
        if not lost.timed_out:
            self._lethal_in_a_row.add(suspect)


def _suspect(positions: Sequence[int], lost: Lost) -> int | None:
    """The one element that the loss must be laid to, if there is one."""
    if len(positions) > 1:
        return lost.position if _names_one(positions, lost) else None
    return positions[0]


def _sentence(suspect: int, lost: Lost) -> Sentence:
    """For the operation that ran; for inference where that is not known."""
    if _names_one([suspect], lost):
        return Sentence(lost.stage, lost.index, lost.error)
    return Sentence(Stage.INFERENCE, 0, lost.error)


def _names_one(positions: Sequence[int], lost: Lost) -> bool:
    """Whether an operation of one of these ran; only pre- and postprocessing have elements of their own."""
    return lost.stage is not Stage.INFERENCE and lost.position in positions


def _split(positions: Sequence[int], count: int) -> list[_Part]:
    """Cuts a group into so many parts, of which those that stand alone may be repeated."""
    bounds = [len(positions) * n // count for n in range(count + 1)]
    parts = [positions[start:stop] for start, stop in pairwise(bounds)]
    return [_Part(part, repeatable=len(part) == 1) for part in parts]
