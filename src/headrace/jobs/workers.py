"""Runs a job with several processes of this machine. Each takes one part of the input after the other."""

from __future__ import annotations

import os
import threading
import time
import uuid
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from headrace.core.errors import ConfigurationError, HostDiedError
from headrace.core.events import BatchCompleted
from headrace.core.result import Stage
from headrace.hosts.connection import Call, HostConnection
from headrace.hosts.environment import ProcessEnvironment, gpu_of, has_accelerator, threads_of_each, visible_gpus
from headrace.hosts.fork_server_client import ForkServerClient
from headrace.hosts.system import allowed_cores, why_no_hosts
from headrace.ipc.codec import encode
from headrace.ipc.serialization import pickle_or_explain
from headrace.jobs.flow import FIRST_ROWS
from headrace.jobs.job import cancelled, refuse_if_cancelled
from headrace.jobs.part_runner import Begin, GoOn, PartProgress, PartRunner, Stop
from headrace.jobs.parts import BundleParts, write_manifest
from headrace.jobs.splits import Splits
from headrace.jobs.steps import RunSteps
from headrace.metrics.totals import Totals
from headrace.models.memory import hold_heap, memory_available, release_heap, resident_bytes
from headrace.runtime.observers import FanOut
from headrace.runtime.usage_meter import end_budget

_MEASURED_SECONDS = 3.0
_SHARE_OF_MEMORY = 0.8


class _Worker(Protocol):
    def ask(self, head: Begin | GoOn | Stop) -> PartProgress:
        """What it has done; raises HostDiedError if it has died."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class Workers:
    """A driver of jobs: its workers are hosts. The output is in the order of the input.

    Args:
        steps: how to read, predict and write.
        folder: of the parts of the output.
        manifest: the file that lists them at the end.
        splits: the parts of the input.
        workers: how many; None: this process, and as many more as the cores have room for, which it measures.

    Raises:
        ConfigurationError: this system has no hosts.
        Exception: the handler cannot be pickled.
    """

    def __init__(self, steps: RunSteps, folder: str, manifest: str, splits: Splits, workers: int | None) -> None:
        if (reason := why_no_hosts()) is not None:
            raise ConfigurationError(f"--workers needs other processes: {reason}.")
        self._may_fail = steps.writer.all_may_fail  # which a worker does not look at
        # All workers are of one pipeline: they share the models that the machine has for it.
        self._steps = steps._replace(spec=replace(steps.spec, pipeline=uuid.uuid4().hex, linger_secs=0.0))
        self._folder = folder
        self._manifest = manifest
        self._splits = iter(splits)
        self._workers = workers
        self._hosts = _fork_server(self._steps, workers)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._parts: list[BundleParts] = []
        self._is_over = False
        """Whether the rest of the input is left out."""
        self._is_cut = False
        """Whether the rest is left out since the first rows have all failed."""
        self._error: BaseException | None = None
        self._totals = Totals()
        self._observers = FanOut(self._totals)

    def execute(self) -> Totals:
        """Runs the job to the end; returns what it counted.

        Raises:
            HostDiedError: a worker has died.
            Exception: a file cannot be read or written, the model cannot be loaded, or the job was cancelled.
        """
        with ExitStack() as stack:
            hold_heap()
            stack.callback(release_heap)
            stack.callback(end_budget, self._steps.spec)
            stack.callback(self._hosts.close)
            stack.callback(self._end)
            self._start(self._workers or 1)
            for thread in self._threads:  # which become more where they are measured
                thread.join()
        if self._error is not None:
            raise self._error
        refuse_if_cancelled(self._folder)
        write_manifest(self._manifest, [part._replace(is_cut=self._is_cut) for part in self._parts])
        return self._totals

    def cancel(self) -> None:
        """Nothing to do: each worker answers a few times a second, and is then told."""

    def _start(self, workers: int) -> None:
        for number in range(len(self._threads), len(self._threads) + workers):
            thread = threading.Thread(target=self._work, args=(number,), name=f"headrace-worker-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _end(self) -> None:
        self._is_over = True

    def _work(self, number: int) -> None:
        """Gives a worker one part after the other."""
        worker: _Worker | None = None
        measure = _Measure() if self._workers is None and number == 0 else None
        try:
            while (task := self._next()) is not None:
                worker = worker or (self._started(number) if measure is None else PartRunner(self._steps))
                self._run(worker, task, measure)
        except BaseException as error:  # ``execute`` raises it
            self._error = self._error or error
            self._end()
        finally:
            if worker is not None:
                worker.close()

    def _started(self, number: int) -> _Worker:
        return _Hosted(HostConnection(self._hosts, number, None), number)

    def _next(self) -> Begin | None:
        with self._lock:
            found = None if self._stops() else next(self._splits, None)
        return None if found is None else Begin(*found)

    def _stops(self) -> bool:
        return self._is_over or self._folder in cancelled

    def _run(self, worker: _Worker, task: Begin, measure: _Measure | None) -> None:
        head: Begin | GoOn | Stop = task
        while True:
            done = worker.ask(head)
            with self._lock:
                for event in done.events:
                    self._observers.on_event(event)
                if not self._may_fail and _all_failed(self._totals):
                    self._is_cut = self._is_over = True
            if done.caught is not None:
                raise done.caught.error
            if measure is not None:
                self._start(measure.more_workers(done))
            if done.parts is not None:
                self._parts.append(done.parts)
            if done.parts is not None or isinstance(head, Stop):
                return
            head = Stop(keep=self._is_cut) if self._stops() else GoOn()


def _all_failed(totals: Totals) -> bool:
    late = sum(count for (stage, _), count in totals.failures.items() if stage == Stage.POSTPROCESSING.value)
    return totals.failed >= FIRST_ROWS and totals.predictions + totals.cached + totals.skipped <= late


def _fork_server(steps: RunSteps, workers: int | None) -> ForkServerClient:
    """Starts workers, of which so many share the cores; None: that is not known."""
    environment = ProcessEnvironment.here()
    if workers is not None:
        environment = environment.with_threads(threads_of_each(workers))
    name = steps.spec.plan.name
    return ForkServerClient(
        pickle_or_explain(PartRunner(steps), name),
        name,
        environment=environment,
        environment_of=lambda number: gpu_of(number, workers or 2, os.environ),
    )


class _Hosted:
    """A worker that is a host."""

    def __init__(self, connection: HostConnection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._calls = 0

    def ask(self, head: Begin | GoOn | Stop) -> PartProgress:
        self._calls += 1
        call = Call(self._calls, encode(head, []))
        if self._connection.send(call):
            self._connection.wait(call)
        else:
            self._connection.wait(None)
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
        self._is_over = False

    def more_workers(self, done: PartProgress) -> int:
        """How many more to start now."""
        now = time.monotonic()
        if self._since is None:
            if any(isinstance(event, BatchCompleted) for event in done.events):
                self._since = now, done.cpu_seconds
            return 0
        began, before = self._since
        if self._is_over or now - began < _MEASURED_SECONDS:
            return 0
        self._is_over = True
        most = len(visible_gpus(os.environ)) if has_accelerator(os.environ) else allowed_cores()
        busy_cores = (done.cpu_seconds - before) / (now - began)
        return more_workers(busy_cores, most, memory_available() / resident_bytes())


def more_workers(busy_cores: float, most: int, copies: float) -> int:
    """How many workers to add, given the cores that one keeps busy.

    Args:
        busy_cores: on average.
        most: how many cores, or devices, there are.
        copies: how many more processes of its size the memory has room for.
    """
    wanted = round(most / max(1.0, busy_cores)) - 1
    return max(0, min(wanted, int(_SHARE_OF_MEMORY * copies)))
