"""Decides which version of the models to load next. Pure: no threads, no clock."""

from __future__ import annotations

from copy import copy

from headrace.runtime.spec import ModelUpdate
from headrace.runtime.versions import Change, Version

_SHORTEST_PAUSE_SECS = 60.0
"""Seconds before a failed load is tried again: files may have been incomplete. Doubles with each failure in a row."""
_LONGEST_PAUSE_SECS = 3600.0
_RARITY = 10
"""The pause is also at least this many times the duration of the failed attempt."""


class RefreshPolicy:
    """Loads one version at a time; changes wanted meanwhile follow, unless a newer one replaces them entirely.

    A failed load leaves the serving version in place and is tried again later, unless a newer change replaces it.

    Args:
        waits: whether to take updates in order of arrival, whatever their timestamps: the thread must follow its own
            input.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self.serving = Version()
        self.scan_due: float | None = None
        """When to look for files next, in seconds; None: not looked yet."""
        self._waits = waits
        self._latest: ModelUpdate | None = None
        self._wanted: list[Change] = []
        self._loading: tuple[Change, Version] | None = None
        self._failed: Change | None = None
        self._failures = 0
        self._due = 0.0

    def is_newer(self, update: ModelUpdate) -> bool:
        """Whether an update has a value that differs from the latest one, and is no older."""
        if update.value is None:
            return False
        latest = self._latest
        if latest is None:
            return True
        return update.value != latest.value and (self._waits or update.timestamp >= latest.timestamp)

    def request(self, update: ModelUpdate, change: Change) -> None:
        """Queues the change of an update, if it is news."""
        if not self.note(update) or not change:
            return
        self._wanted = [one for one in self._wanted if not one.keys() <= change.keys()] + [change]
        if self._failed is not None and self._failed.keys() <= change.keys():
            self._failed, self._failures = None, 0

    def note(self, update: ModelUpdate) -> bool:
        """Records an update; returns whether it is news."""
        is_newer = self.is_newer(update)
        if is_newer:
            self._latest = update
        return is_newer

    def initial(self, change: Change) -> Version:
        """The version to begin with; the serving one if the change has just failed."""
        return self.serving if change == self._failed else self.serving.after(change)

    def started(self, version: Version, update: ModelUpdate, change: Change | None, now: float) -> None:
        """Records the initial version, which may be older than the wanted one."""
        self.note(update)
        wanted = self.serving.after(change or {})
        missing = dict(wanted.models - version.models)
        self.serving = version
        if missing and missing != self._failed:
            self._loading = missing, wanted
            self.failed(now, 0)

    def is_due(self, now: float) -> bool:
        """Whether there may be a version to load now."""
        return bool(self._wanted) or (self._failed is not None and now >= self._due)

    def next(self, now: float) -> Version | None:
        """The version to load now, if any. Report the result through ``loaded`` or ``failed``."""
        while self.is_due(now):
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
        """Records that the version was loaded and serves."""
        assert self._loading is not None
        (_, self.serving), self._loading, self._failures = self._loading, None, 0

    def failed(self, now: float, seconds: float) -> None:
        """Records that the load failed after ``seconds``."""
        assert self._loading is not None
        (change, _), self._loading = self._loading, None
        if any(change.keys() <= newer.keys() for newer in self._wanted):
            return
        pause = min(_SHORTEST_PAUSE_SECS * 2**self._failures, _LONGEST_PAUSE_SECS)
        self._failed, self._failures = change, self._failures + 1
        self._due = now + max(pause, seconds * _RARITY)

    def successor(self) -> RefreshPolicy:
        """A copy for the next process or session; what is loading here counts as wanted there."""
        policy = copy(self)
        policy._wanted, policy._loading = list(self._wanted), None
        if self._loading is not None:
            policy._wanted.insert(0, self._loading[0])
        return policy
