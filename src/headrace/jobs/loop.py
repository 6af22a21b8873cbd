"""Runs a job in this process without Beam: one loop over the rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack

from headrace.core.result import DeadLetter, Failure, Outcome, Predictions
from headrace.jobs.job import Job
from headrace.jobs.parts import write_manifest
from headrace.jobs.steps import RunSteps, refuse_if_cancelled
from headrace.metrics.totals import Totals
from headrace.runtime.heap import hold_heap, release_heap
from headrace.runtime.observers import FanOut
from headrace.runtime.open_worker import open_worker
from headrace.runtime.prepare import InferenceRequest, catching, prepare


class Loop:
    """Feeds all rows to a single bundle; holds about a batch of rows in memory.

    Args:
        job: what to run.
        steps: how to read, predict and write.
        folder: of the parts.
        manifest: the file that lists the parts at the end.

    Raises:
        ConfigurationError: the handler or one of its options is wrong.
    """

    def __init__(self, job: Job, steps: RunSteps, folder: str, manifest: str) -> None:
        request = InferenceRequest(
            inference_args=job.inference_args,
            batching=steps.batching,
            placement=job.placement,
            isolate=job.isolate,
            timeout_secs=job.timeout,
        )
        self._spec = catching(prepare(steps.handler, request), Exception)
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
        writers = (self._steps.predictions, self._steps.dead_letters, self._steps.skipped)
        with ExitStack() as stack:
            hold_heap()
            stack.callback(release_heap)
            worker = open_worker(self._spec)
            stack.callback(worker.close)
            for writer in writers:
                writer.begin()
                stack.callback(writer.abandon)
            bundle = worker.bundle(FanOut(totals))
            for index, source in enumerate(self._sources):
                for element in self._steps.reader.read(index, source):
                    if outcomes := bundle.add(element, None):
                        self._write(outcomes)
            self._write(bundle.finish())
            parts = [part for writer in writers for part in writer.finish()]
        refuse_if_cancelled(self._folder)
        write_manifest(self._manifest, [json.dumps(part) for part in parts])
        return totals

    def cancel(self) -> None:
        """Nothing to do: the reader checks for cancellation before each row."""

    def _write(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Predictions):
                self._steps.predictions.write(outcome.values)
            elif isinstance(outcome, Failure):
                self._steps.dead_letters.write([DeadLetter.of(outcome.record, outcome.stage, outcome.index)])
            else:
                self._steps.skipped.write(outcome.elements)
