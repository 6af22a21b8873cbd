"""Runs a job in this process without Beam: one loop over the rows."""

from __future__ import annotations

from contextlib import ExitStack

from headrace.core.events import BatchCompleted, Event
from headrace.jobs.job import Job, refuse_if_cancelled
from headrace.jobs.parts import write_manifest
from headrace.jobs.steps import RunSteps
from headrace.metrics.totals import Totals
from headrace.models.memory import hold_heap, release_heap
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.usage_meter import end_budget


class Loop:
    """Feeds all rows to a single bundle; holds about a batch of rows in memory.

    Args:
        job: what to run.
        steps: how to read, predict and write.
        folder: of the parts.
        manifest: the file that lists the parts at the end.
    """

    def __init__(self, job: Job, steps: RunSteps, folder: str, manifest: str) -> None:
        self._sources = job.sources
        self._steps = steps
        self._folder = folder
        self._manifest = manifest

    def execute(self) -> Totals:
        """Runs the job to the end; returns what it counted.

        Raises:
            Exception: a file cannot be read or written, the model cannot be loaded, or the job was cancelled.
        """
        totals = Totals()
        with ExitStack() as stack:
            hold_heap()
            stack.callback(release_heap)
            worker = open_worker(self._steps.spec)
            stack.callback(end_budget, self._steps.spec)
            stack.callback(worker.close)
            stack.callback(self._steps.writer.abandon)
            observers = [totals] if self._steps.writer.paid else [totals, _Cancellation(self._folder)]
            bundle = self._steps.bundle(worker.bundle(FanOut(*observers)))
            for index, source in enumerate(self._sources):
                bundle.run(index, source)
            written = bundle.finish()
        refuse_if_cancelled(self._folder)
        write_manifest(self._manifest, [written])
        return totals

    def cancel(self) -> None:
        """Nothing to do: the bundle checks for cancellation before each row, and after each batch."""


class _Cancellation:
    """Ends a cancelled run between two batches: those of rows that are sorted together take long until the next row."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def on_event(self, event: Event) -> None:
        """Raises CancelledError after a batch if the job was cancelled."""
        if isinstance(event, BatchCompleted):
            refuse_if_cancelled(self._folder)
