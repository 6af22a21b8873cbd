"""``headrace run``: rows from files, through a handler, into files."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from headrace.batching.lookahead import LengthOfTag
from headrace.core.errors import ConfigurationError, as_type_name
from headrace.jobs.earlier import Earlier
from headrace.jobs.files import absolute, known_size
from headrace.jobs.folder import FolderOutput, LocalFolder
from headrace.jobs.into import CompletedOutput, LetterOrder
from headrace.jobs.job import Job, Report, cancelled, refuse_if_cancelled
from headrace.jobs.letters import others_in
from headrace.jobs.opening import InputShare
from headrace.jobs.output import Output
from headrace.jobs.parts import OutcomeWriter
from headrace.jobs.pipes import as_name, is_pipe
from headrace.jobs.reading import NO_ROWS, RowRanges, fits_columns
from headrace.jobs.resume import ResumableOutput
from headrace.jobs.splits import Splits
from headrace.jobs.steps import BlockReader, Loop, RunSteps
from headrace.jobs.storage import is_remote
from headrace.metrics.totals import Totals
from headrace.rows.columns import Fit, over_blocks
from headrace.rows.examples import (
    batching_over_columns,
    batching_over_rows,
    naming_outputs,
    over_rows,
    refuse_exploded,
    taken_of_blocks,
)
from headrace.runtime.prepare import InferenceRequest, catching, prepare
from headrace.runtime.spec import SessionSpec
from headrace.runtime.usage_meter import stop_requests, stoppable

_WHERE = re.compile(r"\s*\[while running '[^']*'\]")
_CHANGED = "the model, its handler or an option has changed since {}: all rows are predicted."
_TYPE = re.compile(r"[\w.]*(Error|Exception): ")


class Driver(Protocol):
    """Runs a job's steps: ``Loop`` or ``BeamPipeline``."""

    def execute(self) -> Totals:
        """Runs the job to the end: all parts are written."""
        ...

    def cancel(self) -> None:
        """Makes ``execute``, which runs in another thread, end soon; the job is already marked as cancelled."""
        ...


class Run:
    """One run of a job.

    Raises:
        ConfigurationError: the job is not valid.
        Exception: the handler or the runner refuses it.
    """

    def __init__(self, job: Job) -> None:
        if job.explode:
            refuse_exploded(job.examples.all_columns if job.keep is None else job.keep)
            job = replace(job, handler=naming_outputs(job.handler), fallback=naming_outputs(job.fallback))
        _refuse_options(job)
        self.columns = job.examples.all_columns if job.examples.columns is None else job.examples.columns
        """What the model sees of a row, as far as is known."""
        order = LetterOrder(job.sources, job.cause) if job.into else None
        rest = None if job.cause is None else order.others if order else others_in(job.sources, job.cause)
        self.output = _output(job, order)
        self.output.may_have_gaps = job.stop_at is not None or rest is not None
        self._earlier = Earlier.of(job, self.output.folder) if job.changed_since is not None else None
        self.notes = [self.output.note] if self.output.note else []
        """What is to be said before it runs."""
        if job.changed_since is not None and self._earlier is None:
            self.notes.append(_CHANGED.format(job.changed_since))
        self._others = 0 if rest is None else len(rest)
        """How many rows of the input are left out, dead letters of another cause."""
        if rest is not None:
            self.notes.append(f"dead letters of other causes stay: {len(rest):,}")
        steps = _steps(job, self.output, order, self._earlier, rest)
        self.is_columnar = steps.reader.fit is not None
        """Whether rows are processed in columns."""
        if isinstance(self.output, FolderOutput):
            job = replace(job, sources=self.output.pending)
        self.job = job
        cancelled.discard(self.output.folder)  # an earlier run of this output, which this one continues
        self.output.refuse_inputs(job.sources)
        _refuse_pipes(job)
        self._spec = steps.spec
        splits = _splits(job, steps)
        self._driver = _driver(job, steps, self.output, splits)
        self.share = splits or InputShare({source.path: known_size(source) for source in job.sources}, job.limit)
        """The share of the input that is done, where this process reads it."""
        self.runs_elsewhere = _runs_elsewhere(job)
        """Whether processes other than this one may run the rows."""
        self.drains = steps.writer.paid and not self.runs_elsewhere
        """Whether a run that is cancelled waits for requests in flight."""
        self.has_cache = job.cache is not None
        self.keeps_one_worker = _keeps_one_worker(job, steps.spec)
        """Whether more workers would not help, since the model computes elsewhere, or cannot share a pipe."""
        batching = steps.spec.plan.batching
        self.sorted_rows = batching.lookahead * (job.workers or 1) if batching.sorts else 0
        """How many rows the workers sort at a time, long ones first; 0: they sort none."""

    def execute(self) -> Report:
        """Runs the job to the end; only then does the output replace any earlier one, all or nothing.

        If too many rows fail, an earlier output stays in place as well: the report says so, and the dead letters go to
        a separate file.

        Raises:
            ConfigurationError: the output cannot be written to its path.
            CancelledError: the job was cancelled.
            PublishError: all rows are done, but the files are not in place; the parts remain.
            Exception: the run failed; ``describe`` says why.
        """
        try:
            self.output.prepare()
            if self._earlier is not None:
                self._earlier.fill(lambda: refuse_if_cancelled(self.output.folder))
            if self.job.folder is not None and not self.job.sources:
                return Report(0, {}, Totals(), inputs=self.output.inputs)
            self.share.earlier_rows = self.output.earlier_rows + self._others
            totals = self._driver.execute()
            began = time.monotonic()
            report = self.output.publish(lambda: refuse_if_cancelled(self.output.folder), self.job.threshold)
            seconds = time.monotonic() - began
        finally:
            self.output.clean()
        return report._replace(
            totals=totals,
            earlier=self.output.earlier_rows,
            publishing_seconds=seconds,
            inputs=self.output.inputs,
        )

    def cancel(self, seconds: float = 0.0) -> None:
        """Makes ``execute``, which runs in another thread, end soon: what is in flight has so many seconds left."""
        cancelled.add(self.output.folder)
        stop_requests(self._spec, seconds)
        self._driver.cancel()


def _needs_beam(job: Job) -> bool:
    return job.runner is not None or bool(job.options)


def _splits(job: Job, steps: RunSteps) -> Splits | None:
    """The parts of the input for several workers of this machine; None: there is one, or Beam has them."""
    if job.workers == 1 or (job.workers is None and _keeps_one_worker(job, steps.spec)):
        return None
    return Splits(job.sources, job.workers or 2)


def _keeps_one_worker(job: Job, spec: SessionSpec) -> bool:
    lives_elsewhere = spec.is_hosted_or_shared or bool(spec.plan.concurrent)
    return lives_elsewhere or any(is_pipe(source.path) for source in job.sources)


def _driver(job: Job, steps: RunSteps, output: Output, splits: Splits | None) -> Driver:
    if splits is not None:
        from headrace.jobs.workers import Workers  # noqa: PLC0415 - not every system has what this module needs

        return Workers(steps, splits, job.workers)
    if not _needs_beam(job):
        steps.writer.is_direct = type(output) is Output and output.format == "parquet" and not is_remote(output.path)
        return Loop(job.sources, steps)
    from headrace.jobs.beam_pipeline import BeamPipeline  # noqa: PLC0415 - imports Beam, which takes seconds

    return BeamPipeline(job, steps)


def without_options(arguments: Sequence[str], known: Iterable[str] = ()) -> tuple[str, ...]:
    """The file names among arguments; the rest are options of Beam's filesystems, which receive them.

    Args:
        arguments: file names and options.
        known: the caller's own options, one of which an unknown option may be meant to be.

    Raises:
        ConfigurationError: Beam does not know an option, or refuses its value.
    """
    if not any(argument.startswith("-") and argument != "-" for argument in arguments):
        return tuple(arguments)
    from headrace.jobs.beam_pipeline import take_options  # noqa: PLC0415 - imports Beam, which takes seconds

    return take_options(arguments, known)


def describe(error: BaseException) -> str:
    """An error in one line: its type and message, without Beam's additions."""
    text = _WHERE.sub("", str(error)).strip()
    if "Traceback (most recent call last)" in text:  # from a worker process: the error follows the last frame
        lines = text.splitlines()
        behind = max(place for place, line in enumerate(lines) if line.startswith((" ", "Traceback"))) + 1
        return " ".join(lines[behind:])
    line = " ".join(text.split())
    if isinstance(error, RuntimeError) and _TYPE.match(line):  # stands in for an error that Beam could not recreate
        return line
    return f"{as_type_name(error)}: {line}" if line else as_type_name(error)


def _refuse_options(job: Job) -> None:
    if job.threshold is not None and not 0 <= job.threshold <= 1:
        raise ConfigurationError(f"--threshold is a share of the rows, from 0 to 1 or 0% to 100%, not {job.threshold}.")
    beam = "--runner and Beam's options" if _needs_beam(job) else None
    workers = "--workers" if job.workers != 1 else None
    folder = "an --output that is a folder" if job.folder is not None else None
    option = "--resume" if job.resume is not None else beam or workers or folder
    if job.limit is not None and option is not None:
        raise ConfigurationError(f"--limit is for a short run in this process; leave {option} out.")
    if job.stop_at is not None and (job.resume is not None or beam or folder or job.into):
        raise ConfigurationError(
            "--stop-after is for a trial on this machine, into a new file; leave --resume, --into, a folder and Beam's "
            "options out."
        )
    if beam and workers:
        raise ConfigurationError(f"--workers are processes of this machine, without Beam; leave it or {beam} out.")
    if job.workers is not None and job.workers < 1:
        raise ConfigurationError(f"--workers is how many processes there are, or auto, not {job.workers}.")


def _output(job: Job, order: LetterOrder | None) -> Output:
    if order is not None:
        return CompletedOutput(job.output, job.dead_letters, job.resume, order)
    if job.folder is not None:
        inputs = job.output, job.dead_letters, job.folder, job.sources, job.output_format
        keeps = job.resume is not None
        if not keeps and any(is_remote(absolute(one or "")) for one in inputs[:2]):
            return FolderOutput(*inputs)
        return LocalFolder(*inputs, keeps=keeps)
    if job.resume is not None:
        return ResumableOutput(job.output, job.dead_letters, job.resume)
    return Output(job.output, job.dead_letters)


def _refuse_pipes(job: Job) -> None:
    piped = [source for source in job.sources if is_pipe(source.path)]
    option = None
    if job.resume is not None:
        option = "--resume"
    elif _needs_beam(job):
        option = "--runner and the options of workers" if piped and _runs_elsewhere(job) else None
    elif job.workers not in (1, None):
        option = "--workers"
    if piped and option:
        raise ConfigurationError(
            f"{as_name(piped[0].path)} is a pipe, which can be read only once, and by this process only; leave "
            f"{option} out, or write what comes through it to a file first."
        )


def _runs_elsewhere(job: Job) -> bool:
    if not _needs_beam(job):
        return False
    from headrace.jobs.beam_pipeline import runs_elsewhere  # noqa: PLC0415 - imports Beam, which takes seconds

    return runs_elsewhere(job)


def _steps(
    job: Job, output: Output, order: LetterOrder | None, earlier: Earlier | None, rest: RowRanges | None
) -> RunSteps:
    """The steps; they take blocks as columns only if the results are the same as those of rows."""
    handler = over_rows(job.handler, job.examples, job.reserved)  # raises for handlers that cannot run over rows
    batching = batching_over_rows(job.handler, job.batch_sizes)
    examples, fit = job.examples, None
    if job.length_column is not None:
        batching = batching.sorted_by(LengthOfTag())
    elif job.columnar and examples.key is job.fallback is None and not (job.cache or earlier):
        takes = taken_of_blocks(job.handler)
        fit = takes and Fit(examples.seen, takes, job.reserved)
        if fit is not None and not fits_columns(job.sources, job.types, examples.types, fit):
            fit.refuse_types(job.handler, examples.types)
            fit = None
    if fit is not None:
        handler = over_blocks(job.handler, examples, fit)
        batching = batching_over_columns(batching)
    is_changed = bool(job.batch_sizes or job.length_column is not None or fit is not None)
    request = InferenceRequest(
        inference_args=job.inference_args,
        batching=batching if is_changed else None,  # models by key may have options of their own
        placement=job.placement,
        isolate=job.isolate,
        timeout_secs=job.timeout,
        fallback=job.fallback,
        cache=job.cache,
        budget=job.budget,
        column_types=examples.types,
    )
    resume, folder = isinstance(output, ResumableOutput), output.folder
    spec = stoppable(catching(prepare(handler, request), Exception))
    reader = BlockReader(job, folder, fit, order, rest or NO_ROWS, earlier, resume, reads_ahead=not spec.isolated)
    writer = OutcomeWriter(
        folder,
        job.keep,
        resume=resume,
        all_may_fail=job.threshold == 1,
        paid=spec.budget is not None,
        no_bytes=output.sources_written_as("csv"),
        typed=output.sources_written_as("parquet"),
        explode=job.explode,
    )
    return RunSteps(spec, reader, writer)
