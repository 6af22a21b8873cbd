"""A worker's background thread: the model computes there while the bundle's thread collects more elements."""

from __future__ import annotations

import contextvars
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Protocol

from headrace.batching.times import BatchTime, Untimed
from headrace.core.events import BatchCompleted, Event, HandlerMetric, Observer
from headrace.core.result import Outcome, Predictions
from headrace.runtime.engine_metrics import EngineMetrics
from headrace.runtime.overlap import AdaptiveOverlap, OverlapPolicy
from headrace.runtime.plan import ONLY
from headrace.runtime.queues import AnyBatch
from headrace.runtime.steps import ModelAccess, Steps


class _Log(list[Event | Predictions]):
    """Events of the background thread, in order. Predictions mark where the bundle's thread has to postprocess."""

    on_event = list.append


class TimedModels(ModelAccess, Protocol):
    """What the executor needs from a worker."""

    computed: float
    """Seconds spent in models so far."""


class _UntimedModels:
    """A worker's models, without times: a call beside another thread must not steer the batch size."""

    def __init__(self, worker: ModelAccess) -> None:
        self._worker = worker
        self.spec, self.plan, self.session, self.model = worker.spec, worker.plan, worker.session, worker.model

    def run(self, name: Any, model: Any, elements: Sequence[Any]) -> tuple[list[Any], BatchCompleted, BatchTime]:
        """Runs one call of the model, which is not timed."""
        predictions, event, _ = self._worker.run(name, model, elements)
        return predictions, event, Untimed.NOT_ALONE


class _BackgroundSteps(Steps):
    """Leaves postprocessing, which is user code, to the bundle's thread."""

    def __init__(self, worker: ModelAccess, log: _Log) -> None:
        super().__init__(worker, log)
        self._log = log

    def postprocess(self, tags: list[Any], values: list[Any], model: Any = ONLY) -> list[Outcome]:
        """Records the predictions; ``BackgroundThread.collect`` postprocesses them."""
        predictions = Predictions(tags, values)
        self._log.append(predictions)
        return [predictions]


class BackgroundBatch(NamedTuple):
    """A batch that runs, or waits to run, on the background thread."""

    name: Any
    size: int
    log: _Log
    future: Future[list[Outcome]]

    @property
    def is_done(self) -> bool:
        """Whether the batch has finished."""
        return self.future.done()


class BackgroundThread:
    """Runs batches one at a time on a thread that the first batch starts. Only the worker's thread may call it.

    Args:
        worker: provides the models.
        policy: decides which batches run here.
    """

    def __init__(self, worker: ModelAccess, policy: OverlapPolicy | None = None) -> None:
        self._models = _UntimedModels(worker)
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0
        """The process that started the thread."""
        self._recorders: EngineMetrics | None = None
        self.submitted = 0
        """How many submitted batches have not been collected."""
        self.policy: OverlapPolicy = policy or AdaptiveOverlap()

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
        """Waits for a batch, then reports its events and postprocesses as if ``steps`` had run it on this thread.

        Raises:
            Exception: whatever ``steps`` would have raised.
        """
        wait([task.future])
        self.submitted -= 1
        processed: dict[int, list[Outcome]] = {}
        for one in task.log:
            if isinstance(one, Predictions):
                processed[id(one)] = steps.postprocess(one.tags, one.values, task.name)
            else:
                steps.report(one)
        return [part for outcome in task.future.result() for part in processed.get(id(outcome), [outcome])]

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
        try:
            assert self._recorders is not None
            with self._recorders.recording(process_wide=False) as records:
                return _BackgroundSteps(self._models, log).run(name, batch)
        finally:
            log.extend(records)


class BackgroundExecutor:
    """An executor that runs batches on a second thread while the bundle's collects elements, where that is faster.

    Outcomes are in the order in which batches formed, whichever thread ran them.

    Args:
        worker: provides the models.
        thread: the worker's second thread.
        observer: receives the events.
    """

    preprocess_here = True
    _IN_FLIGHT = 2
    """How many batches may be in flight: one running, one waiting."""

    def __init__(self, worker: TimedModels, thread: BackgroundThread, observer: Observer) -> None:
        self._worker = worker
        self._thread = thread
        self._steps = Steps(worker, observer)
        self._clock = worker.spec.clock
        self._tasks: deque[BackgroundBatch] = deque()
        self._last_end = self._clock.time_ns()
        """When the last batch ended, or else when the bundle began."""

    def submit(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        """Runs a batch on the second thread if that is faster, and returns the outcomes that are ready."""
        if not self._thread.policy.next_in_background():
            return [*self.collect(), *self._run_here(name, batch)]
        outcomes = self._collect(self._IN_FLIGHT - 1)
        self._tasks.append(self._thread.submit(name, batch))
        return outcomes + self._collect(self._IN_FLIGHT)

    def collect(self) -> list[Outcome]:
        """Waits for the batches in flight; returns their outcomes."""
        return self._collect(0)

    def _run_here(self, name: Any, batch: AnyBatch) -> list[Outcome]:
        computed = self._worker.computed
        outcomes = self._steps.run(name, batch)
        self._thread.policy.record_inline(batch.total, self._worker.computed - computed, self._seconds())
        return outcomes

    def _collect(self, most: int) -> list[Outcome]:
        """Outcomes that are ready; waits until at most ``most`` batches are in flight."""
        outcomes: list[Outcome] = []
        while self._tasks and (len(self._tasks) > most or self._tasks[0].is_done):
            task = self._tasks.popleft()
            outcomes += self._thread.collect(task, self._steps)
            self._thread.policy.record_background(task.size, self._seconds())
        return outcomes

    def _seconds(self) -> float:
        """Seconds since the previous call."""
        before, self._last_end = self._last_end, self._clock.time_ns()
        return (self._last_end - before) / 1e9
