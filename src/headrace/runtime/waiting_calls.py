"""The calls of an endpoint that wait to be sent, and which of them is next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter

from headrace.runtime.endpoint_calls import EndpointCall


class WaitingCalls:
    """Calls in the order in which they leave. Not thread-safe.

    The first one goes alone, to show whether the endpoint works at all. Those for an engine are sorted by prefix, and
    go together at once.

    Args:
        for_engine: whether they are for an engine.
    """

    def __init__(self, *, for_engine: bool) -> None:
        self._calls: deque[EndpointCall] = deque()
        self._for_engine = for_engine
        self._sorted = 0
        """How many of them, at the front, are sorted by prefix."""
        self._canary: EndpointCall | None = None
        """The one that goes alone."""
        self._canary_done = for_engine

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[EndpointCall]:
        return iter(self._calls)

    def append(self, call: EndpointCall) -> None:
        """Adds a call at the back."""
        self._calls.append(call)

    def put_in_front(self, call: EndpointCall) -> None:
        """Adds a call that is sent again."""
        self._calls.appendleft(call)

    def ready(self) -> int:
        """How many may leave as far as the first one is concerned, which goes before all others."""
        if self._canary_done or not self._calls:
            return len(self._calls)
        first = self._canary
        if first is not None and first in self._calls:
            self._calls.remove(first)
            self._calls.appendleft(first)
        return int(first in (None, self._calls[0]))

    def take(self, *, newest: bool) -> EndpointCall:
        """Removes the next call.

        Those for an engine are sorted when all that were sorted before have left: none waits for long.

        Args:
            newest: the one at the back, rather than one that is sent again: each probe is another request.
        """
        if self._sorted <= 0 and self._for_engine and self._canary is None:
            self._calls = deque(sorted(self._calls, key=attrgetter("prefix")))
            self._sorted = len(self._calls)
        self._sorted -= 1
        call = self._calls.pop() if newest and self._canary is None else self._calls.popleft()
        if not self._canary_done:
            self._canary = self._canary or call
        return call

    def remove(self, which: Callable[[EndpointCall], bool] = lambda _: True) -> list[EndpointCall]:
        """Removes calls, by default all, and returns them."""
        removed = [call for call in self._calls if which(call)]
        if removed:
            self._calls = deque(call for call in self._calls if not which(call))
        return removed

    def abandon(self) -> None:
        """Forgets the calls of bundles that were abandoned."""
        self.remove(_is_abandoned)
        if self._canary is not None and _is_abandoned(self._canary):
            self._canary = None

    def finish_canary(self) -> None:
        """Lets all others go: the first one has shown what it could."""
        self._canary, self._canary_done = None, True

    def reset_canary(self) -> None:
        """Has the next one go alone, too."""
        self._canary, self._canary_done = None, False


def _is_abandoned(call: EndpointCall) -> bool:
    return call.inbox.abandoned
