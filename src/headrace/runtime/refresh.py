"""Replaces a model by a newer one: loads the new one beside the old, switches new batches over, drops the old one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from headrace.core.events import Event, ModelRefreshed, RefreshFailed
from headrace.core.result import Caught
from headrace.models.memory import trim_memory
from headrace.runtime.open_worker import open_worker
from headrace.runtime.spec import FileWatch, ModelUpdate, SessionSpec
from headrace.runtime.versions import Change, RefreshPolicy, Version, change_in, names_to_load, with_models
from headrace.runtime.worker import AnyWorker

_LOGGER = logging.getLogger(__name__)
_LONGEST_END_SECS = 30.0
"""Seconds for which the end of a transform waits for a load in progress, whose model is then dropped."""


class VersionedModels:
    """The versions of one transform's models in this process, or in one thread of it; thread-safe.

    Each version is a session. A *preloader*, a worker that runs no bundles, keeps the session open while the version
    serves, so that workers that join it need not wait.

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
        self._clock = self.spec.clock
        self._watch = self.spec.watch
        self.policy = policy or RefreshPolicy(waits=waits)
        self.serving: Version | None = None
        """The version for new batches; any thread may read it."""
        self._preloader: AnyWorker | None = None
        self._changed = threading.Condition()
        self._starting = threading.Lock()
        self._users: list[Callable[[], bool]] = []
        """For each thread: releases an older version unless a bundle uses it; returns whether none is held any more."""
        self._threads: list[threading.Thread] = []
        self._early_events: list[Event] = []
        self._is_loading = self._is_scanning = self._is_closed = False

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
        change = self._change(update)
        with self._changed:
            if change is not None:
                self.policy.request(update, change)
            self._begin_loading()
            self._begin_scanning()
            while self.waits and self._is_loading:
                self._changed.wait()

    def open(self, version: Version) -> AnyWorker:
        """Opens a thread's own worker for a version that is kept open."""
        return open_worker(with_models(version, self._fresh), self._namespace)

    def join(self, release_older: Callable[[], bool]) -> None:
        """Registers a thread, by what has it release an older version."""
        with self._changed:
            self._users.append(release_older)

    def leave(self, release_older: Callable[[], bool]) -> None:
        """Unregisters a thread."""
        with self._changed:
            self._users.remove(release_older)
            self._changed.notify_all()

    def released(self) -> None:
        """Called when a thread has released an older version: wakes the thread that waits to retire it."""
        with self._changed:
            self._changed.notify_all()

    def close(self, *, linger: bool = False) -> None:
        """Releases everything; a load in progress is given some time, and its model is dropped."""
        with self._changed:
            self._is_closed = True
            preloader, self._preloader = self._preloader, None
            threads = list(self._threads)
        if preloader is not None:
            preloader.close(linger=linger)
        for thread in threads:
            thread.join(_LONGEST_END_SECS)

    def successor(self) -> RefreshPolicy:
        """The policy's state for the next ``VersionedModels`` of this transform."""
        with self._changed:
            return self.policy.successor()

    def _change(self, update: ModelUpdate) -> Change | None:
        """The change that an update asks for. None: nothing new, or an invalid update, which is reported once."""
        with self._changed:
            if not self.policy.is_newer(update):
                return None
        try:
            return change_in(update.value, self.plan)
        except Exception as error:
            with self._changed:
                if self.policy.note(update):
                    self._report_failure(str(update.value), error)
            return None

    def _start(self, update: ModelUpdate) -> None:
        """Loads the initial model, for which all threads wait; if the newest cannot be loaded, an older one."""
        older: Sequence[ModelUpdate] = ()
        if self._watch is not None and self.policy.scan_due is None:
            update, *older = self._scan(self._watch) or [update]
        change = self._change(update)
        own = Version()
        wanted, *others = (self.policy.initial(one or {}) for one in (change, *map(self._change, older)))
        errors: list[tuple[Version, Exception]] = []
        # From the newest to the handlers' own models; only the last one's failure ends the bundle.
        for version in dict.fromkeys((wanted, *others, self.policy.serving, own)):
            try:
                preloader = self._open_preloader(version)
            except Exception as error:
                if version == own:
                    raise
                errors.append((version, error))
                continue
            break
        with self._changed:
            self.policy.started(version, update, change, self._now())
            self._preloader, self.serving = preloader, version
            preloader.session.events.extend(self._early_events)
            self._early_events = []
            for failed, reason in errors:
                self._report_failure(str(failed), reason)

    def _open_preloader(self, version: Version) -> AnyWorker:
        preloader = self.open(version)
        try:
            preloader.ready()
            if version.models:
                before = self._preloader
                in_use = before.names_in_use() if before else set()
                for name in names_to_load(preloader.plan, before.plan if before else self.plan, in_use):
                    preloader.load(name)
        except BaseException:
            preloader.close()
            raise
        return preloader

    def _begin_loading(self) -> None:
        """Starts the loading thread if a version is due. The caller holds the lock."""
        if not self._is_loading and not self._is_closed and self.policy.is_due(self._now()):
            self._is_loading = True
            self._start_thread(self._load_all)

    def _begin_scanning(self) -> None:
        """Starts a look for newer files if one is due. The caller holds the lock."""
        watch, due = self._watch, self.policy.scan_due
        if watch is None or due is None or self._now() < due or self._is_scanning or self._is_closed:
            return
        self._is_scanning = True
        self._start_thread(lambda: self._scan_again(watch))

    def _scan_again(self, watch: FileWatch) -> None:
        try:
            for newest in self._scan(watch)[:1]:
                self.handle(newest)
        except BaseException as error:  # a file system may raise anything; nothing else would report it
            with self._changed:
                self._report_failure(f"what matches {watch.pattern}", error)
        finally:
            with self._changed:
                self._is_scanning = False

    def _scan(self, watch: FileWatch) -> Sequence[ModelUpdate]:
        try:
            return watch.scan()
        finally:
            with self._changed:
                self.policy.scan_due = self._now() + watch.interval_secs

    def _start_thread(self, task: Callable[[], None]) -> None:
        thread = threading.Thread(target=task, name="headrace-refresh", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _load_all(self) -> None:
        while True:
            with self._changed:
                # The end is decided under the lock, so that a change that arrives now either is seen here or starts a
                # thread.
                version = None if self._is_closed else self.policy.next(self._now())
                if version is None:
                    self._is_loading = False
                    self._changed.notify_all()
                    return
            started = self._clock.time_ns()
            try:
                preloader = self._open_preloader(version)
            except BaseException as error:  # a handler may raise anything; nothing else would report it
                with self._changed:
                    self.policy.failed(self._now(), (self._clock.time_ns() - started) / 1e9)
                    self._report_failure(str(version), error)
            else:
                self._swap(version, preloader, (self._clock.time_ns() - started) / 1e9)

    def _swap(self, version: Version, preloader: AnyWorker, seconds: float) -> None:
        with self._changed:
            self.policy.loaded()
            if not self._is_closed:
                before, self._preloader, self.serving = self._preloader, preloader, version
                _LOGGER.info("%s: refreshed to %s in %.1f s.", self.plan.name, version, seconds)
                preloader.session.events.append(ModelRefreshed(str(version), seconds))
                self._start_thread(lambda: self._retire(before))
                # From here new batches go to the new version. Threads move over as their next element arrives; the old
                # preloader closes once none of them holds the old version.
                return
        preloader.close()

    def _retire(self, preloader: AnyWorker | None) -> None:
        """Closes an older version's preloader once no thread uses that version; idle threads are made to release it."""
        with self._changed:
            while not all(release_older() for release_older in self._users):
                self._changed.wait()
        if preloader is not None:
            preloader.close()
            del preloader
        trim_memory()  # models are often cyclic garbage, and the collector counts objects, not bytes

    def _report_failure(self, what: str, error: BaseException) -> None:
        """Reports a failed refresh. The caller holds the lock."""
        event = RefreshFailed(what, Caught.of(error).error)
        if self._preloader is None:
            self._early_events.append(event)
        else:
            self._preloader.session.events.append(event)
        goes_on = "" if self.serving is None else f"; {self.serving} goes on"
        _LOGGER.warning("%s: the refresh to %s failed%s: %r", self.plan.name, what, goes_on, error)

    def _now(self) -> float:
        return self._clock.time_ns() / 1e9
