"""Replaces a model by a newer one: loads the new one beside the old, switches new batches over, drops the old one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace.core.clock import backoff
from headrace.core.events import Event, ModelRefreshed, RefreshFailed
from headrace.core.result import Caught
from headrace.models.memory import trim_memory
from headrace.runtime.open_worker import open_worker
from headrace.runtime.plan import Refreshed
from headrace.runtime.spec import (
    Change,
    FileWatch,
    ModelUpdate,
    SessionSpec,
    Version,
    change_in,
    names_to_load,
    with_models,
)
from headrace.runtime.worker import AnyWorker

_LOGGER = logging.getLogger(__name__)
_LONGEST_END_SECS = 30.0
"""Seconds for which the end of a transform waits for a load in progress, whose model is then dropped."""
_SHORTEST_PAUSE_SECS = 60.0
"""Seconds before a failed load is tried again: files may have been incomplete. Doubles with each failure in a row."""
_LONGEST_PAUSE_SECS = 3600.0
_RARITY = 10
"""The pause is also at least this many times the duration of the failed attempt."""


class RefreshPolicy:
    """Loads one version at a time; the changes wanted meanwhile follow together, the newest of each model. Pure.

    A failed load leaves the serving version in place and is tried again later, unless newer changes replace it; models
    that it does not name follow without it.

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
        self._wanted: Change = {}
        self._failed: set[tuple[Any, Refreshed]] = set()
        """What of it waits until it is due, since it could not be loaded."""
        self._failures = 0
        self._due = 0.0

    def is_newer(self, update: ModelUpdate) -> bool:
        """Whether an update has a value that differs from the latest one, and is no older."""
        if update.value is None or self._latest is None:
            return update.value is not None
        return update.value != self._latest.value and (self._waits or update.timestamp >= self._latest.timestamp)

    def request(self, update: ModelUpdate, change: Change) -> bool:
        """Asks for the change of an update, if it is news; returns whether it is."""
        is_newer = self.is_newer(update)
        if is_newer:
            self._latest, self._wanted = update, {**self._wanted, **change}
            self._forget_failures()
        return is_newer

    def first(self, change: Change) -> Version:
        """The version to begin with; the serving one if the change has just failed."""
        return self.serving if change.items() <= self._failed else self.serving.after(change)

    def next(self, now: float) -> Version | None:
        """The version to load now, if any. Report the result through ``loaded`` or ``failed``."""
        missing = self._wanted.items() - self.serving.models
        loadable = missing - self._failed or (missing if now >= self._due else set())
        return self.serving.after(dict(loadable)) if loadable else None

    def loaded(self, version: Version) -> None:
        """Records that the version was loaded and serves."""
        self.serving = version
        self._forget_failures()

    def failed(self, version: Version, now: float, seconds: float) -> None:
        """Records that the load failed after ``seconds``; what was wanted meanwhile is loaded at once."""
        failed = (version.models - self.serving.models) & self._wanted.items()
        if failed:
            self._failed, self._failures = self._failed | failed, self._failures + 1
            pause = backoff(self._failures, _SHORTEST_PAUSE_SECS, _LONGEST_PAUSE_SECS)
            self._due = now + max(pause, seconds * _RARITY)

    def _forget_failures(self) -> None:
        """Forgets those of what serves or is no longer wanted."""
        self._failed = self._failed & self._wanted.items() - self.serving.models
        self._failures = self._failures if self._failed else 0


class Served(NamedTuple):
    """A version that serves, or did."""

    version: Version
    preloader: AnyWorker
    """A worker that runs no bundles: it keeps the version's session open, so that workers that join it need not wait.
    """


class VersionedModels:
    """The versions of one transform's models in this process, or in one thread of it; thread-safe.

    Each version is a session. A thread of this object's own loads newer models and looks for newer files.

    Args:
        waits: whether bundles wait for a newer model to load, as is right in batch pipelines.
        policy: what was known when this process last closed the transform.
    """

    def __init__(
        self,
        fresh: Callable[[], SessionSpec],
        namespace: str | None = None,
        *,
        waits: bool = False,
        policy: RefreshPolicy | None = None,
    ) -> None:
        self._fresh = fresh
        self._namespace = namespace
        self.spec = fresh()
        self.plan = self.spec.plan
        self.waits = waits
        self._watch = self.spec.watch
        self.policy = policy or RefreshPolicy(waits=waits)
        self.serving: Served | None = None
        """What new batches run on; any thread may read it."""
        self._changed = threading.Condition()
        self._starting = threading.Lock()
        self._users: list[Callable[[], None]] = []
        """For each thread: has it release an older version, unless a bundle uses it."""
        self._thread: threading.Thread | None = None
        self._early_events: list[Event] = []
        self._is_closed = False

    def handle(self, update: ModelUpdate) -> None:
        """Handles an update that a thread received: starts to load a newer model if it names one.

        Raises:
            Exception: the initial model cannot be loaded, or no file matches the watched pattern.
        """
        if self.serving is None:
            with self._starting:
                if self.serving is None:
                    try:
                        self._start(update)
                    except BaseException:
                        self.policy.scan_due = None  # the next bundle looks again
                        raise
        self._request(update)
        with self._changed:
            is_due = self._is_scan_due() or self.policy.next(self._now()) is not None
            if is_due and self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._work, name="headrace-refresh", daemon=True)
                self._thread.start()
            while self.waits and self._thread is not None:
                self._changed.wait()

    def open(self) -> tuple[AnyWorker, Served]:
        """Opens a thread's own worker, of the version that serves."""
        with self._changed:  # until then the preloader keeps the session open
            assert self.serving is not None
            return self._open(self.serving.version), self.serving

    def join(self, release_older: Callable[[], None]) -> None:
        """Registers a thread, by what has it release an older version."""
        with self._changed:
            self._users.append(release_older)

    def leave(self, release_older: Callable[[], None]) -> None:
        """Unregisters a thread."""
        with self._changed:
            self._users.remove(release_older)

    def close(self, *, linger: bool = False) -> None:
        """Releases everything; a load in progress is given some time, and its model is dropped."""
        with self._changed:
            self._is_closed = True
            serving, self.serving = self.serving, None
            thread = self._thread
        if serving is not None:
            close_worker(serving.preloader, linger=linger)
        if thread is not None:
            thread.join(_LONGEST_END_SECS)

    def _open(self, version: Version) -> AnyWorker:
        return open_worker(with_models(version, self._fresh), self._namespace)

    def _request(self, update: ModelUpdate) -> None:
        change = self._change(update)
        if change is not None:
            with self._changed:
                self.policy.request(update, change)

    def _change(self, update: ModelUpdate) -> Change | None:
        """The change that an update asks for. None: nothing new, or an invalid update, which is reported once."""
        with self._changed:
            if not self.policy.is_newer(update):
                return None
        try:
            return change_in(update.value, self.plan)
        except Exception as error:
            with self._changed:
                is_news = self.policy.request(update, {})
            if is_news:
                self._report_failure(str(update.value), error)
            return None

    def _start(self, update: ModelUpdate) -> None:
        """Loads the initial model, for which all threads wait; if the newest cannot be loaded, an older one."""
        older: Sequence[ModelUpdate] = ()
        if self._watch is not None and self.policy.scan_due is None:
            update, *older = self._scan(self._watch) or [update]
        change = self._change(update)
        own = Version()
        wanted, *others = (self.policy.first(one or {}) for one in (change, *map(self._change, older)))
        errors: list[tuple[Version, Exception]] = []
        # From the newest to the handlers' own models; only the last one's failure ends the bundle.
        for version in dict.fromkeys((wanted, *others, self.policy.serving, own)):
            try:
                preloader = self._open_preloader(version)
                break
            except Exception as error:
                if version == own:
                    raise
                errors.append((version, error))
        with self._changed:
            self.policy.request(update, change or {})
            self.policy.loaded(version)
            if errors:
                self.policy.failed(wanted, self._now(), 0)
            self.serving = Served(version, preloader)
            preloader.session.events.extend(self._early_events)
            self._early_events = []
        for failed, reason in errors:
            self._report_failure(str(failed), reason)

    def _open_preloader(self, version: Version) -> AnyWorker:
        preloader = self._open(version)
        try:
            preloader.ready()
            if version.models:
                before = self.serving.preloader if self.serving else None
                in_use = before.names_in_use() if before else set()
                for name in names_to_load(preloader.plan, before.plan if before else self.plan, in_use):
                    preloader.load(name)
        except BaseException:
            preloader.close()
            raise
        return preloader

    def _is_scan_due(self) -> bool:
        due = self.policy.scan_due
        return self._watch is not None and due is not None and self._now() >= due

    def _work(self) -> None:
        """Looks for newer files and loads versions, for as long as something is due."""
        while True:
            with self._changed:
                scans = self._is_scan_due()
                version = None if scans else self.policy.next(self._now())
                if self._is_closed or not (scans or version):
                    # Decided under the lock: a change that arrives now is seen here, or starts another thread.
                    self._thread = None
                    self._changed.notify_all()
                    return
            try:
                self._scan_again() if version is None else self._load(version)
            except BaseException:  # what ends an older model may raise anything; else nothing would refresh any more
                _LOGGER.warning("%s: an older model could not be released.", self.plan.name, exc_info=True)

    def _scan_again(self) -> None:
        assert self._watch is not None
        try:
            for newest in self._scan(self._watch)[:1]:
                self._request(newest)
        except BaseException as error:  # a file system may raise anything; nothing else would report it
            self._report_failure(f"what matches {self._watch.pattern}", error)

    def _scan(self, watch: FileWatch) -> Sequence[ModelUpdate]:
        try:
            return watch.scan()
        finally:
            with self._changed:
                self.policy.scan_due = self._now() + watch.interval_secs

    def _load(self, version: Version) -> None:
        """Loads a version, beside the serving one, and has new batches run on it."""
        started = self._now()
        try:
            preloader = self._open_preloader(version)
        except BaseException as error:  # a handler may raise anything; nothing else would report it
            with self._changed:
                self.policy.failed(version, self._now(), self._now() - started)
            self._report_failure(str(version), error)
            return
        seconds = self._now() - started
        with self._changed:
            self.policy.loaded(version)
            before, users = self.serving, list(self._users)
            if before is not None:
                self.serving = Served(version, preloader)
        if before is None:  # the transform has ended
            preloader.close()
            return
        _LOGGER.info("%s: refreshed to %s in %.1f s.", self.plan.name, version, seconds)
        preloader.session.events.append(ModelRefreshed(str(version), seconds))
        # Threads move over as their next element arrives; those that are idle release the older version now.
        close_worker(before.preloader)
        for release_older in users:
            release_older()

    def _report_failure(self, what: str, error: BaseException) -> None:
        event = RefreshFailed(what, Caught.of(error).error)
        with self._changed:
            serving = self.serving
            events = self._early_events if serving is None else serving.preloader.session.events
            events.append(event)
        goes_on = "" if serving is None else f"; {serving.version} goes on"
        _LOGGER.warning("%s: the refresh to %s failed%s: %r", self.plan.name, what, goes_on, error)

    def _now(self) -> float:
        return self.spec.clock.time_ns() / 1e9


def close_worker(worker: AnyWorker, *, linger: bool = False) -> None:
    """Closes a worker of a version; its models are free at once if it was the last one."""
    worker.close(linger=linger)
    if not linger:
        trim_memory()  # models are often cyclic garbage, and the collector counts objects, not bytes
