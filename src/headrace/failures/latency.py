"""How many requests an endpoint answers side by side without letting them wait, found from their latencies."""

from __future__ import annotations

import math


class _Round:
    """The latencies of requests that left one after the other: of all, since those that end first are the short ones.

    Args:
        began: when the first may leave.
        size: how many there are.
    """

    _FEWEST, _MOST = 8, 128
    """The fewest answers that mean anything, and the most that are waited for to be precise."""
    _PRECISION = 0.1
    """The standard error of the mean, relative to it."""
    _OVERDUE = 4
    """A round waits for its answers until this many times its size have come: what is missing then may hang."""

    def __init__(self, began: float, size: float) -> None:
        self._began = began
        self._size = math.ceil(size)
        self._last = math.inf
        """When the last one left."""
        self._left = self._ended = self._answers = 0
        self._count = 0
        """How many of them were answered."""
        self._sum = self._squares = 0.0
        self.in_flight = 0
        """At most."""

    @property
    def mean(self) -> float:
        """In seconds."""
        return self._sum / self._count if self._count else 0.0

    @property
    def is_over(self) -> bool:
        """Whether all have ended, or nearly all."""
        return self._ended >= self._left >= self._size or self._answers >= self._OVERDUE * self._size + self._FEWEST

    def started(self, now: float, in_flight: int) -> None:
        """A request has left."""
        if self._left < self._size:
            self._left += 1
            self.in_flight = max(self.in_flight, in_flight)
            self._last = now if self._left == self._size else math.inf

    def finished(self, now: float, started: float, *, answered: bool) -> None:
        """A request is over."""
        self._answers += 1
        if self._began <= started <= self._last:
            self._ended += 1
            if answered:
                self._add(now - started)

    def is_precise(self) -> bool:
        """Whether the mean is known well enough."""
        if not self._FEWEST <= self._count < self._MOST:
            return self._count >= self._MOST
        return self._squares / self._count - self.mean**2 <= self._count * (self._PRECISION * self.mean) ** 2

    def go_on(self, size: float) -> None:
        """Lets more requests take part."""
        self._last = math.inf
        self._answers = 0
        self._size = self._left + math.ceil(size)

    def _add(self, latency: float) -> None:
        self._count += 1
        self._sum += latency
        self._squares += latency**2


class LatencyLimit:
    """How many requests may be in flight: as many as the endpoint answers side by side without letting them wait.

    The limit grows by 2 and a quarter with each round of answers until latency rises. From then on each round sets it
    to ``g * limit + sqrt(limit) / 2``, where ``g = min(1, 1.5 * alone / latency)``: the gradient of Netflix's
    concurrency-limits. ``latency`` is the round's mean, and ``alone`` that of an endpoint at which little waits. It
    follows lower means, and is measured anew now and then, in a round at a third of the limit. A round that uses less
    than half of the limit says nothing about it.

    Args:
        most: the limit's upper bound.
    """

    _TOLERANCE = 1.5
    _GROWTH = 1.25
    _STEP = 2
    _CALM = 4
    """This many rounds without a rise in latency, and the limit grows as at first."""
    _BETWEEN_LOOKS = 50
    """Rounds between two that measure the endpoint with a third of the requests."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size_class = 0
        self.restart(-math.inf)

    def restart(self, now: float) -> None:
        """Begins again with a single request: the endpoint is not what it was."""
        self.value = 1.0
        self._calm = self._CALM
        """For how many rounds in a row latency has not risen."""
        self._alone = 0.0
        """The mean latency in seconds when little waits; 0: not known yet."""
        self._rounds = 0
        self._full = 0.0
        """The limit to go back to after a look; 0: this is no look."""
        self._round = _Round(now, 1)

    def started(self, now: float, in_flight: int) -> None:
        """A request has left; ``in_flight`` counts it, too."""
        self._round.started(now, in_flight)

    def finished(self, now: float, started: float, size: int, *, answered: bool) -> None:
        """Learns from a request that is over.

        Args:
            now: in seconds.
            started: when the request was sent.
            size: the number of elements in the request; larger requests may take longer.
            answered: whether the endpoint did the work.
        """
        if answered and size.bit_length() != self._size_class:
            self._size_class, self._alone = size.bit_length(), 0.0
            self.value, self._full = self._full or self.value, 0.0
            self._round = _Round(started, self.value)
            self._round.started(started, 1)
        self._round.finished(now, started, answered=answered)
        if self._round.is_over:
            self._end_round(now)

    def _end_round(self, now: float) -> None:
        used, mean = self._round.in_flight >= self.value / 2, self._round.mean
        if not self._alone:  # the first answers count as undisturbed, though the limit grows meanwhile
            if used and mean:
                self.value = min(self._GROWTH * self.value + 0.5, self._most)
            self._round.go_on(self.value)
            if not self._round.is_precise():
                return
            self._alone = mean
        elif not self._round.is_precise():
            self._round.go_on(self.value)
            return
        elif self._full:
            self.value, self._full, self._alone = self._full, 0.0, mean
        elif used:
            self._adapt(mean)
        self._round = _Round(now, self.value)

    def _adapt(self, latency: float) -> None:
        if latency < self._alone:
            self._alone += 0.2 * (latency - self._alone)
        gradient = min(1.0, self._TOLERANCE * self._alone / latency)
        self._calm = self._calm + 1 if gradient == 1 else 0
        steady = max(0.5, gradient) * self.value + math.sqrt(self.value) / 2
        grown = self._GROWTH * self.value + self._STEP if self._calm >= self._CALM else 0.0
        self.value = max(1.0, min(max(steady, grown), self._most))
        self._rounds += 1
        if self._rounds % self._BETWEEN_LOOKS == 0 and self.value > 3:
            self._full, self.value = self.value, self.value / 3
