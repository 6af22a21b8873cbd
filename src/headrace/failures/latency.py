"""How many requests an endpoint answers side by side without letting them wait, found from their latencies."""

from __future__ import annotations

import math

from headrace.failures.endpoint_board import Board, Undo


class _Round:
    """Latencies of at least ``size`` requests, all sent after the round ``began``."""

    _FEWEST, _MOST = 8, 128
    """The fewest answers that mean anything, and the most that are waited for to be precise."""
    _PRECISION = 0.1
    """The standard error of the mean, relative to it."""

    def __init__(self, began: float, size: float) -> None:
        self.began = began
        self._size = max(size, self._FEWEST)
        self._count = 0
        self._squares = 0.0
        self.mean = 0.0
        """In seconds."""
        self.in_flight = 0
        """At most."""

    def add(self, latency: float) -> bool:
        """Adds that of an answer; returns whether there are enough for the mean to be known well."""
        self._count += 1
        self.mean += (latency - self.mean) / self._count
        self._squares += latency**2
        if self._count < self._size:
            return False
        variance = self._squares / self._count - self.mean**2
        return self._count >= self._MOST or variance <= self._count * (self._PRECISION * self.mean) ** 2


class LatencyLimit:
    """How many requests may be in flight: as many as the endpoint answers side by side without letting them wait.

    At first, each answer that comes as soon as the others lets half a request more leave; beyond a limit of 12 it is 6
    for a round trip, and beyond 75, 8 % of the limit if that takes 50 ms, up to all of it if it takes longer. Once
    latency rises, each round of answers sets the limit to ``g * limit + sqrt(limit) / 2``, where ``g = min(1, 1.5 *
    alone / latency)``: the gradient of Netflix's concurrency-limits. ``latency`` is the round's mean, and ``alone``
    the mean while few requests wait; lower means lower it. A round at a third of the limit measures it anew, every 50
    rounds and once the limit has halved. If that round is slow, too, the limit is restored, unless the next round is
    slower still: then requests wait for each other, or for those of others. A round that uses less than half of the
    limit says nothing about it.

    If this process computes all the time, the requests in flight wait for it, and more of them would only make HTTP
    clients slower. Then the limit does not grow, and falls if the latency is more than a fifth above ``alone``.
    """

    _TOLERANCE, _TOLERANCE_IF_BUSY = 1.5, 1.2
    _SOON = 1.25
    """How much of the mean latency an answer may take at first that lets more requests leave."""
    _MOST_EACH, _FOR_ALL, _LEAST_EACH = 0.5, 6, 1.6
    """How many more: for an answer, for as many answers as the limit, and for each second that an answer takes."""
    _BETWEEN_LOOKS = 50
    """Rounds between two that measure the endpoint with a third of the requests."""
    _FALLEN = 0.5
    """Below what part of the highest limit since then one comes at once: the endpoint may be slower for good."""

    def __init__(self, board: Board, most: int) -> None:
        self._board = board
        self._most = most
        self._in_flight = 0
        self._turn(board.state.turned_at)

    def restart(self, now: float) -> None:
        """Begins again with a single request: the endpoint is not what it was."""
        state = self._board.state
        state.limit, state.begins = 1.0, 1.0
        state.alone = state.rounds = state.full = state.peak = state.has_restored = 0.0
        state.undo = Undo()
        self._turn(now)

    def started(self, in_flight: int) -> None:
        """A request has left; ``in_flight`` counts it, too."""
        self._in_flight = in_flight
        self._round.in_flight = max(self._round.in_flight, in_flight)

    def answered(self, now: float, started: float, size: int, *, client_is_busy: bool = False) -> None:
        """Learns from an answered request; ``size`` is its number of elements: larger requests may take longer."""
        state, latency = self._board.state, now - started
        if state.turned_at > self._round.began:  # another process has ended a round: it counts once
            self._turn(state.turned_at)
        if size.bit_length() != state.size_class:
            state.size_class, state.alone = size.bit_length(), 0.0
            state.limit, state.full = state.full or state.limit, 0.0
            self._turn(started)
        is_over = started >= self._round.began and self._round.add(latency)
        is_busy = client_is_busy and not self._board.others
        if state.begins and not is_busy:
            self._grow(latency)
        if is_over:
            self._end_round(now, is_busy=is_busy)

    def _grow(self, latency: float) -> None:
        """Lets more requests leave after an answer, if the limit is used and latency has not risen."""
        state = self._board.state
        if self._in_flight < state.limit / 2 or latency > self._SOON * (state.alone or self._round.mean):
            return
        step = max(min(self._MOST_EACH, self._FOR_ALL / state.limit), min(1.0, self._LEAST_EACH * latency))
        state.limit = min(state.limit + step, self._bound())

    def _turn(self, now: float) -> None:
        state = self._board.state
        state.turned_at = now
        self._round = _Round(now, state.limit / (1 + len(self._board.others)))

    def _end_round(self, now: float, *, is_busy: bool) -> None:
        state, mean = self._board.state, self._round.mean
        used = self._round.in_flight >= state.limit / 2
        if not state.alone:
            state.alone = mean
        elif state.full:
            if state.full < self._FALLEN * state.peak and mean > self._TOLERANCE * state.alone:
                state.undo, state.has_restored = Undo(state.full, state.alone), 1.0
                state.full, state.begins = state.peak, 1.0
            state.peak = state.limit = state.full
            state.full, state.alone = 0.0, mean
        elif used and state.undo.limit and mean > self._SOON * state.alone:  # they wait for each other, or for others'
            state.peak = state.limit = state.undo.limit
            state.alone, state.begins, state.undo = state.undo.alone, 0.0, Undo()
        elif used:
            state.undo = Undo()
            self._adapt(mean, is_busy=is_busy)
        self._turn(now)

    def _bound(self) -> int:
        """The most requests that all processes may have in flight."""
        return self._most * (1 + len(self._board.others))

    def _adapt(self, latency: float, *, is_busy: bool) -> None:
        state = self._board.state
        tolerance, more = (self._TOLERANCE, math.sqrt(state.limit) / 2) if not is_busy else (self._TOLERANCE_IF_BUSY, 0)
        if latency < state.alone:
            state.alone += 0.2 * (latency - state.alone)
        gradient = min(1.0, tolerance * state.alone / latency)
        if gradient < 1:
            state.begins = 0.0
        state.peak = max(state.peak, state.limit)
        state.limit = max(1.0, min(max(0.5, gradient) * state.limit + more, self._bound()))
        if is_busy:  # then fewer in flight would only waste time
            return
        state.rounds += 1
        has_fallen = state.limit < self._FALLEN * state.peak and not state.has_restored
        if has_fallen or state.rounds >= self._BETWEEN_LOOKS:
            state.rounds = state.has_restored = 0.0
            state.full, state.limit = state.limit, max(1.0, state.limit / 3)
