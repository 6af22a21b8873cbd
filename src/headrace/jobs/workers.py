"""Runs a job with several processes of this machine. Each takes one part of the input after the other."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from headrace.core.errors import ConfigurationError, HostDiedError
from headrace.core.events import WANTED, BatchCompleted, Event
from headrace.core.result import Caught
from headrace.hosts.connection import Call, HostConnection
from headrace.hosts.environment import ProcessEnvironment, gpu_of, has_accelerator, threads_of_each, visible_gpus
from headrace.hosts.fork_server_client import ForkServerClient
from headrace.hosts.host import RequestHandler, Response
from headrace.hosts.system import allowed_cores, why_no_hosts
from headrace.ipc.codec import encode
from headrace.ipc.progress import Activity, Progress
from headrace.ipc.serialization import exception_reducers, pickle_or_explain
from headrace.jobs.files import Source
from headrace.jobs.job import FIRST_ROWS, cancelled
from headrace.jobs.parts import leave_mark
from headrace.jobs.splits import Splits
from headrace.jobs.steps import RunSteps, SourceBundle
from headrace.jobs.storage import prefetch
from headrace.metrics.totals import Totals
from headrace.models.memory import hold_heap, memory_available, release_heap, resident_bytes
from headrace.runtime.observers import FanOut, Sampler
from headrace.runtime.open_worker import open_worker
from headrace.runtime.usage_meter import end_budget, stop_requests
from headrace.runtime.worker import AnyWorker

_PAUSE_SECONDS, _DRAIN_SECONDS = 0.25, 5.0
_MEASURED_SECONDS = 3.0
_SHARE_OF_MEMORY = 0.8


class GoOn(NamedTuple):
    """Asks a worker to begin, or to go on, perhaps with one more part of the input and the number of its source."""

    part: tuple[int, Source] | None = None


class Stop(NamedTuple):
    """Asks a worker to read no more of its parts."""

    keep: bool
    """Whether what it has done is part of the output. Else only a run that can be resumed keeps it."""


class PartProgress(NamedTuple):
    """What a worker has done since it was asked: it answers a few times a second."""

    events: list[Event]
    is_done: bool = False
    """Whether its parts of the input are finished, and those of the output written."""
    caught: Caught | None = None
    """Why it failed, if it did."""
    cpu_seconds: float = 0.0
    """What the worker's process has computed, in all."""
    failed: int = 0
    others: int = 0
    """How many rows of the parts are dead letters, and how many are not."""
    reads_last: bool = False
    """Whether it reads the last part that it has, and would go on with another one."""


class PartRunner(RequestHandler):
    """A worker: a ``RequestHandler`` of hosts, pickled to them, or in this process."""

    def __init__(self, steps: RunSteps) -> None:
        self._steps = steps
        self._steps.writer.all_may_fail = True  # the process that hands out the parts looks at all of them
        self._wanted = frozenset(WANTED)  # where the events go
        self._worker: AnyWorker | None = None
        self._bundle: SourceBundle | None = None
        self._coming: deque[tuple[int, Source]] = deque()
        """Parts of the input, which the thread that reads ahead takes."""
        self._batches: Generator[None, None, None]
        self._events: deque[Event] = deque()
        """Another thread appends samples."""
        self._sampler = Sampler(self)

    def on_event(self, event: Event) -> None:
        """Keeps an event for the next answer."""
        self._events.append(event)

    def ask(self, head: GoOn | Stop) -> PartProgress:
        """Does what it is asked for, for a moment."""
        is_done, caught = False, None
        writer = self._steps.writer
        try:
            if isinstance(head, Stop):
                self._stop(keep=head.keep)
            else:
                is_done = self._go_on(head.part)
        except Exception as error:
            writer.abandon()
            caught = Caught.of(error)
        events, cpu = [self._events.popleft() for _ in range(len(self._events))], time.process_time()
        return PartProgress(events, is_done, caught, cpu, writer.failed, writer.others, not self._coming)

    def answer(self, head: Any, rows: list[Any], progress: Progress) -> Response:
        """As ``ask``, for a host."""
        progress.mark(Activity.INFERENCE)
        self._sampler.start()
        done = self.ask(head)
        errors = [done.caught.error] if done.caught else []
        return Response(done, reducers=exception_reducers(errors, done.events))

    def unreadable(self, error: Exception) -> Response:
        """The response to a request that cannot be unpickled."""
        return Response(PartProgress([], caught=Caught.of(error)), reducers=exception_reducers([error]))

    def unsendable(self, answer: Response, error: Exception) -> Response:
        """The response in place of one that cannot be pickled."""
        return self.unreadable(error)

    def close(self) -> None:
        """Releases the model."""
        self._sampler.close()
        if self._worker is not None:
            self._worker.close()

    def _go_on(self, part: tuple[int, Source] | None) -> bool:
        if part is not None:
            self._coming.append(part)
        bundle = self._bundle = self._bundle or self._begin()
        until = time.monotonic() + _PAUSE_SECONDS
        if any(time.monotonic() > until for _ in self._batches):
            return False
        if part is None:
            self._bundle = None
            bundle.finish()
            return True
        self._batches = self._all_batches(bundle)  # of one more part, which may come
        return False

    def _begin(self) -> SourceBundle:
        if self._worker is None:
            WANTED.update(self._wanted)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed()  # forked from one process, all workers would draw the same numbers
            self._worker = open_worker(self._steps.spec)
        bundle = SourceBundle(self._steps, self._worker.bundle(self), self)
        self._batches = self._all_batches(bundle)
        return bundle

    def _all_batches(self, bundle: SourceBundle) -> Generator[None, None, None]:
        while self._coming:  # some may come while the last batches run
            yield from bundle.batches(self._coming.popleft() for _ in iter(self._coming.__len__, 0))

    def _stop(self, *, keep: bool) -> None:
        assert self._bundle is not None
        if not keep and self._steps.writer.paid:
            stop_requests(self._steps.spec, _DRAIN_SECONDS)
        self._batches.close()
        if keep:
            self._bundle.finish()
        else:
            self._bundle.drain()
            self._steps.writer.abandon()


class Workers:
    """A driver of jobs: its workers are hosts; None: this process, and as many more as it measures to have room.

    Raises:
        ConfigurationError: this system has no hosts.
        Exception: the handler cannot be pickled.
    """

    def __init__(self, steps: RunSteps, splits: Splits, workers: int | None) -> None:
        if (reason := why_no_hosts()) is not None:
            raise ConfigurationError(f"--workers needs other processes: {reason}.")
        self._may_fail = steps.writer.all_may_fail  # which a worker does not look at
        # All workers are of one pipeline: they share the models that the machine has for it.
        self._steps = steps._replace(spec=replace(steps.spec, pipeline=uuid.uuid4().hex, linger_secs=0.0))
        self._splits = splits
        self._parts_of_input = prefetch(iter(splits))
        self._workers = workers
        here, name = ProcessEnvironment.here(), steps.spec.plan.name
        self._hosts = ForkServerClient(
            pickle_or_explain(PartRunner(self._steps), name),
            name,
            environment=here if workers is None else here.with_threads(threads_of_each(workers)),
            environment_of=lambda number: gpu_of(number, workers or max(1, len(visible_gpus(os.environ))), os.environ),
        )
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._failed = self._others = 0
        """How many rows are dead letters, and how many are not."""
        self._is_over = False
        """Whether the rest of the input is left out."""
        self._is_cut = False
        """Whether some was left out since the first rows had all failed."""
        self._error: BaseException | None = None
        self._totals = Totals()
        self._observers = FanOut(self._totals)

    def execute(self) -> Totals:
        """Runs the job to the end; returns what it counted.

        Raises:
            HostDiedError: a worker has died.
            Exception: a file cannot be read or written, or the model cannot be loaded.
        """
        with ExitStack() as stack:
            hold_heap()
            stack.callback(release_heap)
            stack.callback(end_budget, self._steps.spec)
            stack.callback(self._parts_of_input.close)
            stack.callback(self._hosts.close)
            stack.callback(setattr, self, "_is_over", True)
            self._start(self._workers or 1)
            for thread in self._threads:  # which become more where they are measured
                thread.join()
        if self._error is not None:
            raise self._error
        if self._is_cut:
            leave_mark(self._steps.folder)
        return self._totals

    def cancel(self) -> None:
        """Nothing to do: each worker answers a few times a second, and is then told."""

    def _start(self, workers: int) -> None:
        for number in range(len(self._threads), len(self._threads) + workers):
            thread = threading.Thread(target=self._work, args=(number,), name=f"headrace-worker-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self, number: int) -> None:
        """Gives a worker one part after the other."""
        worker: PartRunner | _Hosted | None = None
        measure = _Measure() if self._workers is None and number == 0 else None
        try:
            while (first := self._next()) is not None:
                worker = worker or (PartRunner(self._steps) if measure else _Hosted(self._hosts, number))
                self._run(worker, first, measure)
        except BaseException as error:  # ``execute`` raises it
            self._error = self._error or error
            self._is_over = True
        finally:
            if worker is not None:
                worker.close()

    def _next(self) -> GoOn | None:
        with self._lock:
            found = None if self._is_over or self._steps.folder in cancelled else next(self._parts_of_input, None)
            self._is_cut = self._is_cut or (found is not None and self._has_only_failed())
        return None if found is None or self._is_cut else GoOn(found)

    def _has_only_failed(self) -> bool:
        return not self._may_fail and not self._others and self._failed >= FIRST_ROWS

    def _run(self, worker: PartRunner | _Hosted, first: GoOn, measure: _Measure | None) -> None:
        head: GoOn | Stop = first
        failed = others = 0
        while True:
            done = worker.ask(head)
            with self._lock:
                for event in done.events:
                    self._observers.on_event(event)
                self._failed, self._others = self._failed + done.failed - failed, self._others + done.others - others
            failed, others = done.failed, done.others
            if done.caught is not None:
                raise done.caught.error
            if measure is not None:
                self._start(measure.more_workers(done))
            if done.is_done or isinstance(head, Stop):
                return
            is_cut = self._has_only_failed()
            self._is_cut = self._is_cut or is_cut
            is_over = is_cut or self._is_over or self._steps.folder in cancelled
            more = self._next() if done.reads_last and self._splits.is_much_left else None
            head = Stop(keep=is_cut) if is_over else more or GoOn()


class _Hosted:
    """A worker that is a host."""

    def __init__(self, hosts: ForkServerClient, number: int) -> None:
        self._connection = HostConnection(hosts, number, None)
        self._number = number
        self._calls = 0

    def ask(self, head: GoOn | Stop) -> PartProgress:
        self._calls += 1
        call = Call(self._calls, encode(head, []))
        self._connection.wait(call if self._connection.send(call) else None)
        if call.reply is None:
            assert self._connection.failure is not None
            raise HostDiedError(f"worker {self._number + 1} {self._connection.failure.exit_text}.")
        done: PartProgress = self._connection.read(call).head
        return done

    def close(self) -> None:
        self._connection.leave()


class _Measure:
    """Finds out how many workers the machine has room for, while the first one works."""

    def __init__(self) -> None:
        self._since: tuple[float, float] | None = None
        """The time, and the seconds that were computed by then, once the model was loaded."""

    def more_workers(self, done: PartProgress) -> int:
        """How many more to start now."""
        now = time.monotonic()
        if self._since is None and any(isinstance(event, BatchCompleted) for event in done.events):
            self._since = now, done.cpu_seconds
        began, before = self._since or (math.inf, 0.0)
        if now - began < _MEASURED_SECONDS:
            return 0
        self._since = math.inf, 0.0  # once
        most = len(visible_gpus(os.environ)) if has_accelerator(os.environ) else allowed_cores()
        busy_cores = (done.cpu_seconds - before) / (now - began)
        return more_workers(busy_cores, most, memory_available() / resident_bytes())


def more_workers(busy_cores: float, most: int, copies: float) -> int:
    """How many workers to add: one keeps so many cores busy, of ``most``; memory has room for so many more copies."""
    return max(0, min(round(most / max(1.0, busy_cores)) - 1, int(_SHARE_OF_MEMORY * copies)))
