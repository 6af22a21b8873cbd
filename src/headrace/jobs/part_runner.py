"""Runs parts of the input, one after the other, in a worker: a host, or this process."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any, NamedTuple

from headrace.core.events import Event
from headrace.core.result import Caught
from headrace.hosts.host import Response
from headrace.ipc.exceptions import stand_ins
from headrace.ipc.progress import Activity, Progress
from headrace.jobs.files import Source
from headrace.jobs.job import CancelledError
from headrace.jobs.parts import BundleParts
from headrace.jobs.steps import RunSteps, SourceBundle
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.usage_meter import stop_requests
from headrace.runtime.worker import AnyWorker

_PAUSE_SECONDS = 0.25
_DRAIN_SECONDS = 5.0


class Begin(NamedTuple):
    """Asks a worker to begin with a part of the input."""

    number: int
    """Of the job's source."""
    source: Source


class GoOn(NamedTuple):
    """Asks a worker to go on with its part."""


class Stop(NamedTuple):
    """Asks a worker to read no more of its part."""

    keep: bool
    """Whether what it has done is part of the output. Else only a run that can be resumed keeps it."""


class PartProgress(NamedTuple):
    """What a worker has done since it was asked: it answers a few times a second."""

    events: list[Event]
    parts: BundleParts | None = None
    """Of the output; None: the part of the input is not finished."""
    caught: Caught | None = None
    """Why it failed, if it did."""
    cpu_seconds: float = 0.0
    """What the worker's process has computed, in all."""


class PartRunner:
    """A ``RequestHandler`` of hosts, pickled to them.

    Args:
        steps: how to read, predict and write.
    """

    def __init__(self, steps: RunSteps) -> None:
        self._steps = steps
        self._steps.writer.all_may_fail = True  # the process that hands out the parts looks at all of them
        self._worker: AnyWorker | None = None
        self._bundle: SourceBundle
        self._batches: Generator[None, None, None]
        self._events: list[Event] = []

    def on_event(self, event: Event) -> None:
        """Keeps an event for the next answer."""
        self._events.append(event)

    def ask(self, head: Begin | GoOn | Stop) -> PartProgress:
        """Does what it is asked for, for a moment."""
        parts = caught = None
        try:
            if isinstance(head, Begin):
                self._begin(head)
            parts = self._stop(keep=head.keep) if isinstance(head, Stop) else self._go_on()
        except Exception as error:
            self._steps.writer.abandon()
            caught = Caught.of(error)
        events, self._events = self._events, []
        return PartProgress(events, parts, caught, time.process_time())

    def answer(self, head: Any, rows: list[Any], progress: Progress) -> Response:
        """As ``ask``, for a host."""
        progress.mark(Activity.INFERENCE)
        done = self.ask(head)
        errors = [event.error for event in done.events if hasattr(event, "error")]
        return Response(done, reducers=stand_ins([*errors, *([done.caught.error] if done.caught else [])]))

    def unreadable(self, error: Exception) -> Response:
        """The response to a request that cannot be unpickled."""
        caught = Caught.of(error)
        return Response(PartProgress([], None, caught), reducers=stand_ins([caught.error]))

    def unsendable(self, answer: Response, error: Exception) -> Response:
        """The response in place of one that cannot be pickled."""
        return self.unreadable(error)

    def exports(self, work: Any) -> None:
        """Nothing: other processes load their own models."""

    def attach(self, work: Any, value: Any) -> None:
        """Nothing, as above."""

    def close(self) -> None:
        """Releases the model."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _go_on(self) -> BundleParts | None:
        until = time.monotonic() + _PAUSE_SECONDS
        for _ in self._batches:
            if time.monotonic() > until:
                return None
        return self._bundle.finish()

    def _begin(self, head: Begin) -> None:
        if self._worker is None:
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed()  # forked from one process, all workers would draw the same numbers
            self._worker = open_worker(self._steps.spec)
        self._bundle = self._steps.bundle(self._worker.bundle(FanOut(self)))
        self._batches = self._bundle.batches(head.number, head.source)

    def _stop(self, *, keep: bool) -> BundleParts | None:
        if keep:
            self._batches.close()
            return self._bundle.finish()
        if self._steps.writer.paid:
            stop_requests(self._steps.spec, _DRAIN_SECONDS)
        with suppress(CancelledError):
            self._batches.throw(CancelledError("cancelled"))
        self._steps.writer.abandon()
        return None
