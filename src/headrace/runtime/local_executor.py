"""Runs batches in this process: on the bundle's thread, or on a second one where that is faster."""

from __future__ import annotations

import contextvars
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from headrace.batching.size import BatchTime, Untimed
from headrace.core.events import Event, HandlerMetric, Observer
from headrace.core.result import Outcome, Predictions
from headrace.runtime.observers import EngineMetrics
from headrace.runtime.plan import ONLY
from headrace.runtime.queues import AnyBatch
from headrace.runtime.session import SessionModel
from headrace.runtime.steps import ModelAccess, Steps


class _Log(list[Event]):
    """Events of the background thread, in order."""

    on_event = list.append
    has_loaded = False
    """Whether the batch waited for its model."""


class _BackgroundSteps(Steps):
    """Leaves postprocessing, which is user code, to the bundle's thread."""

    def postprocess(self, tags: list[Any], values: list[Any], model: Any = ONLY) -> list[Outcome]:
        """The predictions as they are; ``BackgroundThread.collect`` postprocesses them."""
        return [Predictions(tags, values)]

    def learn(self, model: SessionModel, batch: AnyBatch, time: BatchTime) -> None:
        """Learns no times: a call beside another thread must not steer the batch size."""
        super().learn(model, batch, time if isinstance(time, Untimed) else Untimed.NOT_ALONE)


class BackgroundBatch(NamedTuple):
    """A batch that runs, or waits to run, on the background thread."""

    name: Any
    size: int
    log: _Log
    future: Future[list[Outcome]]


class _InlineTimes(NamedTuple):
    """A batch that ran on the bundle's thread."""

    size: int
    call: float
    whole: float
    """Seconds since the previous batch: collecting elements, calling the model, emitting predictions."""


class AdaptiveOverlap:
    """Tries the background thread now and then, and uses it for as long as it is faster.

    Batches run inline first. Once their size has settled, calls are long enough, and the bundle's thread has enough
    other work, a period of batches runs in the background. Then one runs inline again, which measures an undisturbed
    call, and the two ways are compared. If the background was not clearly faster, as with Python code that holds the
    GIL, all batches run inline for a rest; each failed trial makes the next rest longer.
    """

    _SHORTEST_CALL = 0.002
    _SHORTEST_SAVING = 0.0005
    """Seconds per batch: ten times the cost of handing it to another thread."""
    _LEAST_SHARE = 0.1
    """The least fraction of a batch's time that the background has to save."""
    _ENOUGH = 3
    _REMEMBERED = 8
    _SETTLED = 1.3
    _PERIODS = (16, 128)
    _RESTS = (32, 2048)

    def __init__(self) -> None:
        self._here: deque[_InlineTimes] = deque(maxlen=self._REMEMBERED)
        self._left = 0
        """How many batches of this period have yet to run in the background."""
        self._size, self._seconds = 0, 0.0
        """Elements and seconds of this period's collected batches."""
        self._period, _ = self._PERIODS
        self._rest, _ = self._RESTS
        self._resting = 0

    def next_in_background(self) -> bool:
        """Whether this period has batches left."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def record_inline(self, size: int, call: float, whole: float) -> None:
        """Ends the period if one is running, and starts the next if it promises enough."""
        if self._size:
            self._end_period()
        if self._resting:
            self._resting -= 1
        if call < self._SHORTEST_CALL:
            self._here.clear()
            return
        settled = size <= self._SETTLED * max((one.size for one in self._here), default=0)
        self._here.append(_InlineTimes(size, call, whole))
        if settled and not self._resting and self._is_worth_trying():
            self._left = self._period

    def record_background(self, size: int, seconds: float) -> None:
        """Adds the batch to this period's measurements."""
        self._size += size
        self._seconds += seconds

    def _is_worth_trying(self) -> bool:
        count = len(self._here)
        call, whole = (sum(seconds) / count for seconds in list(zip(*self._here, strict=True))[1:])
        saving = min(call, whole - call)
        return count >= self._ENOUGH and saving >= max(self._SHORTEST_SAVING, self._LEAST_SHARE * whole)

    def _end_period(self) -> None:
        """Compares the two ways: repeats a period that paid, and rests after one that did not."""
        whole = sum(one.whole for one in self._here) / max(1, sum(one.size for one in self._here))
        if self._seconds / self._size < (1 - self._LEAST_SHARE) * whole:
            self._period = min(2 * self._period, self._PERIODS[1])
            self._rest = self._RESTS[0]
        else:
            self._period, self._resting = self._PERIODS[0], self._rest
            self._rest = min(4 * self._rest, self._RESTS[1])
        self._size, self._seconds, self._left = 0, 0.0, 0


class BackgroundThread:
    """Runs batches one at a time on a thread that the first batch starts. Only the worker's thread may call it."""

    def __init__(self, access: ModelAccess) -> None:
        self._access = access
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0
        self._recorders: EngineMetrics | None = None
        self.submitted = 0
        """How many submitted batches have not been collected."""
        self.policy = AdaptiveOverlap()

    def submit(self, name: Any, batch: AnyBatch) -> BackgroundBatch:
        """Queues a batch; it runs with the caller's context variables."""
        if self._executor is None or self._process != os.getpid():  # a forked child inherits no threads
            self._process = os.getpid()
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-model")
            self._recorders = EngineMetrics()
        log = _Log()
        future = self._executor.submit(contextvars.copy_context().run, self._run, name, batch, log)
        self.submitted += 1
        return BackgroundBatch(name, batch.total, log, future)

    def collect(self, task: BackgroundBatch, steps: Steps) -> list[Outcome]:
        """Waits for a batch, then reports its events and postprocesses as if ``steps`` had run it on this thread."""
        wait([task.future])
        self.submitted -= 1
        for event in task.log:
            steps.report(event)
        outcomes: list[Outcome] = []
        for one in task.future.result():
            outcomes += steps.postprocess(one.tags, one.values, task.name) if isinstance(one, Predictions) else [one]
        return outcomes

    def clear(self) -> None:
        """Drops the batches of an abandoned bundle; waits for the one that is running."""
        if self.submitted:
            self.close()

    def close(self) -> None:
        """Stops the thread; waits for the batch that is running."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        self._executor, self.submitted = None, 0

    def _run(self, name: Any, batch: AnyBatch, log: _Log) -> list[Outcome]:
        records: list[HandlerMetric] = []
        loads = self._access.loads
        try:
            assert self._recorders is not None
            with self._recorders.recording(process_wide=False) as records:
                return _BackgroundSteps(self._access, log).run(name, batch)
        finally:
            log.extend(records)
            log.has_loaded = self._access.loads > loads


class LocalExecutor:
    """An executor that runs each batch at once, or on a second thread while the bundle's collects elements.

    Batches of sizes that are still being learnt run here, alone. Those that waited for their model are no measure.
    Outcomes are in the order in which batches formed, whichever thread ran them.

    Args:
        thread: the second one, where options allow it.
    """

    _IN_FLIGHT = 2
    """How many batches may be in flight on the second thread: one running, one waiting."""

    def __init__(self, access: ModelAccess, observer: Observer, thread: BackgroundThread | None) -> None:
        self._access = access
        self._thread = thread
        self._steps = Steps(access, observer)
        self._time_ns = access.spec.clock.time_ns
        self._tasks: deque[BackgroundBatch] = deque()
        self._last_end = self._time_ns()
        """When the last batch ended, or else when the bundle began."""

    def submit(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        """Runs a batch, on the second thread if that is faster, and returns the outcomes that are ready."""
        if self._thread is None:
            return self._steps.run(name, batch)
        policy, model = self._thread.policy, self._access.session.models[name]
        is_known = model.sizes.knows(model.size_of(batch))
        if is_known and policy.next_in_background():
            outcomes = self.collect(self._IN_FLIGHT - 1)
            self._tasks.append(self._thread.submit(name, batch))
            return outcomes + self.collect(self._IN_FLIGHT)
        outcomes = self.collect() if self._tasks else []
        computed, loads = self._access.computed, self._access.loads
        outcomes += self._steps.run(name, batch)
        before, self._last_end = self._last_end, self._time_ns()
        if is_known and self._access.loads == loads:
            policy.record_inline(batch.total, self._access.computed - computed, (self._last_end - before) / 1e9)
        return outcomes

    def collect(self, most: int = 0) -> list[Outcome]:
        """Waits until no more batches than that are in flight; returns the outcomes that are ready."""
        outcomes: list[Outcome] = []
        while self._tasks and (len(self._tasks) > most or self._tasks[0].future.done()):
            assert self._thread is not None
            task = self._tasks.popleft()
            outcomes += self._thread.collect(task, self._steps)
            before, self._last_end = self._last_end, self._time_ns()
            if not task.log.has_loaded:
                self._thread.policy.record_background(task.size, (self._last_end - before) / 1e9)
        return outcomes
