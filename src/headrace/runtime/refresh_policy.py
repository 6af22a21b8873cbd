"""Which version of a transform's models is wanted, which is being loaded, and which serves; no threads, no clock."""

from __future__ import annotations

from copy import copy

from headrace.runtime.spec import ModelUpdate
from headrace.runtime.versions import Change, Version

_SHORTEST_PAUSE_SECS = 60.0
"""Before what failed is tried again: a file may not have been complete. Each further failure in a row doubles it."""
_LONGEST_PAUSE_SECS = 3600.0
_RARITY = 10
"""How many times as long as the attempt took nobody tries again, at least."""


class RefreshPolicy:
    """Loads one version at a time; what was wanted meanwhile comes next, unless something newer replaces all of it.

    A version that fails leaves what serves as it is, and is tried again later, unless newer ones are wanted instead.

    Args:
        waits: whether the order of moments does not matter, since the thread is to have what it is told.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self.serving = Version()
        self.look_due: float | None = None
        """When files are to be looked for; None: they never were."""
        self._waits = waits
        self._latest: ModelUpdate | None = None
        self._wanted: list[Change] = []
        self._loading: tuple[Change, Version] | None = None
        self._failed: Change | None = None
        self._failures = 0
        self._due = 0.0

    def is_news(self, update: ModelUpdate) -> bool:
        """Whether it says something, and something else than the latest."""
        if update.value is None:
            return False
        latest = self._latest
        return latest is None or (update.value != latest.value and (self._waits or update.moment >= latest.moment))

    def want(self, update: ModelUpdate, change: Change) -> None:
        """Takes note of news, if they are any, and of what they ask for."""
        if not self._note(update) or not change:
            return
        self._wanted = [one for one in self._wanted if not one.keys() <= change.keys()] + [change]
        if self._failed is not None and self._failed.keys() <= change.keys():
            self._failed, self._failures = None, 0

    def refuse(self, update: ModelUpdate) -> bool:
        """Takes note of news that make no sense; returns whether that is to be said."""
        return self._note(update)

    def first(self, change: Change) -> Version:
        """With what to begin; what serves already, if that has just failed."""
        return self.serving if change == self._failed else self.serving.after(change)

    def started(self, version: Version, update: ModelUpdate, change: Change | None, now: float) -> None:
        """It has begun, with this version, which may be an older one than wanted."""
        self._note(update)
        wanted = self.serving.after(change or {})
        missing = dict(wanted.models - version.models)
        self.serving = version
        if missing and missing != self._failed:
            self._loading = missing, wanted
            self.failed(now, 0)

    def is_due(self, now: float) -> bool:
        """Whether there may be something to load."""
        return bool(self._wanted) or (self._failed is not None and now >= self._due)

    def next(self, now: float) -> Version | None:
        """What to load now, if anything; ``loaded`` or ``failed`` says what came of it."""
        while self._wanted or (self._failed is not None and now >= self._due):
            if self._wanted:
                change = self._wanted.pop(0)
            else:
                assert self._failed is not None
                change, self._failed = self._failed, None
            version = self.serving.after(change)
            if version != self.serving:
                self._loading = change, version
                return version
        return None

    def loaded(self) -> None:
        """It serves from now on."""
        assert self._loading is not None
        (_, self.serving), self._loading, self._failures = self._loading, None, 0

    def failed(self, now: float, seconds: float) -> None:
        """It cannot be had; so long it took to find out."""
        assert self._loading is not None
        (change, _), self._loading = self._loading, None
        if any(change.keys() <= newer.keys() for newer in self._wanted):
            return
        pause = min(_SHORTEST_PAUSE_SECS * 2**self._failures, _LONGEST_PAUSE_SECS)
        self._failed, self._failures = change, self._failures + 1
        self._due = now + max(pause, seconds * _RARITY)

    def handed_on(self) -> RefreshPolicy:
        """The same for whoever goes on with it, who has nothing loading yet: what loads here is still wanted there."""
        policy = copy(self)
        policy._wanted, policy._loading = list(self._wanted), None
        if self._loading is not None:
            policy._wanted.insert(0, self._loading[0])
        return policy

    def _note(self, update: ModelUpdate) -> bool:
        is_news = self.is_news(update)
        if is_news:
            self._latest = update
        return is_news
