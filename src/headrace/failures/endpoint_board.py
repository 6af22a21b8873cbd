"""What the processes of a machine know about an endpoint together: numbers in one piece of memory, a row for each."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, TypeVar

StructureT = TypeVar("StructureT", bound=ctypes.Structure)

MEMBERS = 128
"""How many may share a board; further ones take the rows of those that have been silent for longest."""
_ALIVE_SECS = 2.0
"""For how long a member counts after it was last seen: a killed one gives back what it held after this time."""
_FORGOTTEN_SECS = 60.0
"""After how long without any member what was found out about the endpoint is no longer believed."""
_PRESENT_SECS = 0.25
"""For how long after a member was last seen the others let it go first: one that is killed must not stop them."""
_LOOK_SECS = 0.002
"""For how long what was read of the other members is good enough."""
LAG_SECS = 0.02
"""How far sending may be behind its schedule and still catch up."""
_AHEAD = 16
"""How many turns a member may be ahead of another one: those between two looks of a slow one."""


class Undo(ctypes.Structure):
    """What a limit that was restored after a look goes back to if the next round is slower; all 0: it stays."""

    _fields_: ClassVar = [("limit", ctypes.c_double), ("alone", ctypes.c_double)]

    limit: float
    alone: float


_KINDS = {"float": ctypes.c_double, "Undo": Undo}


def _with_fields(cls: type[StructureT]) -> type[StructureT]:
    """Makes a field of each annotation; numbers have 8 bytes of floating point."""
    cls._fields_ = [(name, _KINDS[kind]) for name, kind in cls.__annotations__.items()]
    return cls


@_with_fields
class EndpointState(ctypes.Structure):
    """What was found out about the endpoint. Times are in seconds, of a clock that all members share."""

    members: float
    """How many rows of members have ever been in use."""
    quota: float
    """Requests a second that the endpoint accepts; infinite: it has refused none."""
    cut_at: float
    """When the quota was last lowered."""
    known_since: float
    """Refusals of requests that left before teach nothing new."""
    accepts: float
    """Whether anything has been accepted since the last cut or pause: else refusals say nothing about the quota."""
    next_at: float
    """When the next request may leave, if the quota is finite."""
    first_cut_at: float
    """When the quota was last lowered for the first time in a unit of time."""
    lately: float
    """Requests a second accepted in the unit before a refusal: the least of those since then."""
    chance: float
    """Which share of all requests is refused however few there are."""
    counted: float
    """How many requests have left since that was last found out, while there cannot have been too many."""
    by_chance: float
    """How many of those were refused."""
    share_before: float
    """The share that was found before the last one."""
    surplus: float
    """The sum that tells whether more are refused."""
    cuts: float
    """How often the quota was lowered."""
    early_cuts: float
    """How often in a row before the rate was above it again; negative at first if that was not so before."""
    first_quota: float
    """The quota before those."""
    news: float
    """How long it takes until a refusal is known, in seconds."""
    was_refused: float
    """Whether the latest one was refused."""
    limit: float
    """How many requests may be in flight; 0: nothing is known."""
    begins: float
    """Whether latency has not risen yet, and so the limit grows with each answer."""
    alone: float
    """The mean latency in seconds when little waits; 0: not known yet."""
    rounds: float
    full: float
    """The limit to go back to after a look; 0: this is no look."""
    peak: float
    """The highest limit since the last look, or the one that it has restored."""
    has_restored: float
    """Whether the last look has restored a fallen limit: then one that falls is no reason for another."""
    undo: Undo
    size_class: float
    """The bit length of the number of elements in a request."""
    turned_at: float
    """When the last round ended."""
    held_until: float
    """No request leaves before, since the endpoint has said that it would refuse it."""
    request_at: float
    """When the next request may leave by ``requests_per_minute``."""
    token_at: float
    """When the next request may leave by ``tokens_per_minute``."""
    tokens: float
    """The mean number of tokens of a request; 0: not known yet."""


@_with_fields
class Member(ctypes.Structure):
    """What a process shows the others. It alone writes its row."""

    owner: float
    """Identifies it; 0: the row is free."""
    seen: float
    """When it was last there."""
    accepted: float
    """How many requests of this row's processes the endpoint has accepted; never goes back."""
    in_flight: float
    waiting: float
    turns: float
    """How many requests have left while others waited, too."""
    is_paced: float
    """Whether its requests wait for their time, and for nothing else."""


class Memory(ctypes.Structure):
    """Everything on a board; at first all 0."""

    _fields_: ClassVar = [("state", EndpointState), ("members", Member * MEMBERS)]

    state: EndpointState
    members: Sequence[Member]


LAYOUT = repr([Undo._fields_, EndpointState._fields_, Member._fields_, MEMBERS])
"""Processes with another one cannot share a board."""


class Board:
    """A member's view of the board. Not thread-safe; of several processes, each has one over the same memory.

    Plain numbers, which each process reads and writes without a lock: two that write at the same time overwrite what
    they have found out with nearly the same. Only what is used up, the time of the next request, is taken in turns.

    Args:
        now: the time.
        memory: shared with the other members; None: with nobody.
    """

    own: Member

    def __init__(self, now: float, memory: Memory | None = None) -> None:
        self.is_shared = memory is not None
        """Whether there may be other members."""
        self._memory = Memory() if memory is None else memory
        self.state = self._memory.state
        self._token = random.random() + 1.0  # noqa: S311 - tells members apart
        self._looked_at = -math.inf
        self.others: list[Member] = []
        """The other members that used the endpoint at the last ``look``."""
        self.in_flight_of_others = 0
        self._accepted_by_others = 0.0
        self._join(now)

    def turn(self) -> AbstractContextManager[bool]:
        """A context in which no other member takes what is used up; its value says whether that is so."""
        return nullcontext(True)

    def look(self, now: float) -> None:
        """Reads what the other members show, unless that was read just before."""
        if self.is_shared and not 0 <= now - self._looked_at < _LOOK_SECS:
            self._look(now)

    @property
    def accepted(self) -> float:
        """How many requests the endpoint has accepted from all members ever."""
        return self.own.accepted + self._accepted_by_others

    def show(self, now: float, in_flight: int, waiting: int) -> None:
        """Shows what this member has; call it now and then while it has any requests, or it counts as gone."""
        own = self.own
        if own.owner != self._token:  # it was silent for so long that its row is another's now
            self._join(now)
            own = self.own
        own.seen, own.in_flight, own.waiting = now, in_flight, waiting

    def is_ahead(self, now: float) -> bool:
        """Whether it is another member's turn: one that waits for nothing else has had too few."""
        return self.own.turns > self._fewest_turns(now) + _AHEAD

    def wait_for_turn(self, now: float, *, waits: bool) -> None:
        """Shows whether this member waits for its time; if it has just come, it has missed no turns."""
        if waits == self.own.is_paced:
            return
        if waits:
            fewest = self._fewest_turns(now)
            self.own.turns = max(self.own.turns, fewest if fewest < math.inf else 0.0)
        self.own.is_paced = waits

    def _fewest_turns(self, now: float) -> float:
        """Of the other members that wait for their time and for nothing else; infinite: there is none."""
        paced = (one.turns for one in self.others if one.is_paced and now - one.seen < _PRESENT_SECS)
        return min(paced, default=math.inf)

    def close(self) -> None:
        """Leaves the board, and its memory alone; what is found out from now on is no other member's."""
        if self.own.owner == self._token:
            self.own.owner = 0.0
        self.is_shared, self.others, self.in_flight_of_others = False, [], 0
        self._memory = Memory.from_buffer_copy(self._memory)
        self.state, self.own = self._memory.state, self._memory.members[0]

    def _join(self, now: float) -> None:
        with self.turn():
            rows = self._memory.members[: MEMBERS if self.is_shared else 1]
            seen = max((one.seen for one in rows), default=0.0)
            if not self.state.limit or abs(now - seen) > _FORGOTTEN_SECS:
                self._forget()
            place, self.own = min(enumerate(rows), key=_preference)
            self.own.owner, self.own.seen = self._token, now
            self.own.in_flight = self.own.waiting = self.own.is_paced = 0.0
            self.state.members = max(self.state.members, place + 1)
        self._look(now)

    def _forget(self) -> None:
        """Forgets what was found out, but not the rows of members."""
        self._memory.state = EndpointState(
            members=self.state.members,
            quota=math.inf,
            cut_at=-math.inf,
            known_since=-math.inf,
            first_cut_at=-math.inf,
            limit=1.0,
            begins=1.0,
            turned_at=-math.inf,
        )

    def _look(self, now: float) -> None:
        self._looked_at = now
        rows = [one for one in self._memory.members[: int(self.state.members)] if one.owner != self._token]
        self.others = [one for one in rows if one.owner and abs(now - one.seen) < _ALIVE_SECS]
        self.in_flight_of_others = int(sum(one.in_flight for one in self.others))
        self._accepted_by_others = sum(one.accepted for one in rows)


def _preference(row: tuple[int, Member]) -> tuple[bool, float]:
    """Sorts the first free row to the front, then those whose members have been silent for longest."""
    place, member = row
    return bool(member.owner), member.seen if member.owner else place
