"""``headrace run`` as a pipeline: rows from files through a handler into files; nothing is shuffled, nothing held.

Reading, inference and writing are one fused stage, so that memory holds one batch whatever the number of rows. Each
bundle writes parts of its own; only the names of the parts are gathered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState
from apache_beam.transforms.combiners import ToListCombineFn

from headrace.beam.dead_letters import dead_letters_of_each
from headrace.beam.transform import RunInference
from headrace.core.config import Scope
from headrace.core.errors import ConfigurationError, as_type_name
from headrace.jobs.files import Source, location
from headrace.jobs.messages import Messages
from headrace.jobs.output import Output, OutputPart, write_manifest
from headrace.jobs.pipes import as_name, is_pipe, was_silent
from headrace.jobs.resume import ResumableOutput
from headrace.jobs.rows import (
    RESERVED,
    Examples,
    batching_over_rows,
    over_rows,
    takes_columns,
)
from headrace.jobs.steps import (
    Read,
    RunSteps,
    WriteLetters,
    WritePredictions,
    WriteSkipped,
    cancelled,
    refuse_if_cancelled,
)
from headrace.metrics.totals import Totals

DEFAULT_RUNNER = "FnApiRunner"

_WHERE = re.compile(r"\s*\[while running '[^']*'\]")
_TYPE = re.compile(r"[\w.]*(Error|Exception): ")


@dataclass(frozen=True)
class Job:
    """All that a run needs to know."""

    handler: Any
    sources: tuple[Source, ...]
    output: str
    """The file of the predictions, ``.jsonl`` or ``.parquet``."""
    examples: Examples = field(default_factory=Examples)
    """What of a row the handler is fed."""
    numbers: Mapping[str, type] = field(default_factory=dict)
    """Which columns of CSV files are numbers."""
    keep: tuple[str, ...] | None = None
    """The columns that go into the output; None: all."""
    inference_args: dict[str, Any] | None = None
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    """``min_batch_size`` and ``max_batch_size``, where they replace the handler's."""
    placement: Scope | None = None
    """Where the model lives; None: as the handler says."""
    isolate: bool = False
    """Whether the model lives in a process of its own."""
    timeout: float | None = None
    """The longest that one operation may take, in seconds."""
    runner: str = DEFAULT_RUNNER
    options: tuple[str, ...] = ()
    """Beam's pipeline options, as on the command line."""
    dead_letters: str | None = None
    """The file of the dead letters, as ``output``; None: beside that one, ``.jsonl``."""
    resume: Mapping[str, Any] | None = None
    """What decides the predictions, by the names that the user has for it, as JSON has it; rows that an earlier run of
    the same output and the same of these has done are not done again. None: every run begins anew."""
    threshold: float | None = None
    """The share of rows, from 0 to 1, that may fail; if more do the run is refused. None: not all may."""
    columnar: bool = True
    """Whether rows may go through in columns, where the same comes of it."""

    @property
    def reserved(self) -> tuple[str, ...]:
        """The columns that no row may have; where they are not kept, it may."""
        return RESERVED if self.keep is None else ()


class Report(NamedTuple):
    """What came of a run."""

    predictions: int
    dead_letters: dict[tuple[str, str], int]
    """By stage and error type."""
    totals: Totals
    """From Beam's metrics; zeros where the runner keeps none."""
    earlier: int = 0
    """Rows that were done by earlier runs."""
    messages: dict[str, int] = {}  # noqa: RUF012 - a NamedTuple's default, which nothing changes
    """How many dead letters have which message, by stage, error type and message; of the most frequent ones."""
    skipped: int = 0
    """Rows without an output, on purpose."""
    refusal: str | None = None
    """Why the predictions are no output: too many rows failed. Their dead letters are ``Output.failed_letters``."""

    @property
    def rows(self) -> int:
        """Each row is in the predictions or in the dead letters, or was skipped."""
        return self.predictions + self.failed + self.skipped

    @property
    def failed(self) -> int:
        """Rows in the dead letters."""
        return sum(self.dead_letters.values())


class Run:
    """One run of a job.

    Raises:
        ConfigurationError: something is wrong with the job.
        Exception: the handler or the runner refuses it.
    """

    def __init__(self, job: Job) -> None:
        _refuse_no_share(job.threshold)
        self._threshold = job.threshold
        self._sources = job.sources
        self.output = (
            Output(job.output, job.dead_letters)
            if job.resume is None
            else ResumableOutput(job.output, job.dead_letters, job.resume)
        )
        cancelled.discard(self.output.folder)  # of a run of the same output, from which this one goes on
        _refuse_overwriting(self.output, job.sources)
        runner = FnApiRunner() if job.runner == DEFAULT_RUNNER else job.runner
        options = PipelineOptions(["--pickle_library=cloudpickle", *job.options])  # Beam's default since 2.65
        self._pipeline = beam.Pipeline(runner, options)
        direct = options.view_as(DirectOptions)
        spread = job.runner != DEFAULT_RUNNER or direct.direct_num_workers != 1
        _refuse_pipes(job, elsewhere=spread or direct.direct_running_mode == "multi_processing")
        way = _in_columns(job, self.output)
        self.is_columnar = way is not None
        """Whether rows go through in columns."""
        self.output.columnar = self.is_columnar
        way = way or _row_by_row(job, self.output)
        _build(self._pipeline, job, self.output, way, spread=spread)
        self._result: Any = None

    def execute(self) -> Report:
        """Runs to the end; then, and only then, the output is there. What was there before stays if anything fails.

        If too many rows fail the output stays, too; the report says so, and the dead letters have a place of their own.

        Raises:
            ConfigurationError: the output cannot be written where it should be.
            CancelledError: the job was cancelled meanwhile.
            PublishError: everything is done, but the files are not in their places; the parts stay.
            Exception: the pipeline failed; ``describe`` says why.
        """
        try:
            self.output.prepare()
            self._result = self._pipeline.run()
            _refuse_failed(self._result.wait_until_finish())
            parts = self.output.publish(lambda: refuse_if_cancelled(self.output.folder), self._accepts)
        finally:
            self.output.clean()
        return self._report(parts)._replace(totals=_totals(self._result), earlier=self.output.earlier_rows)

    def _accepts(self, parts: Iterable[OutputPart]) -> bool:
        return self._report(parts).refusal is None

    def _report(self, parts: Iterable[OutputPart]) -> Report:
        good, bad, none = ([part for part in parts if part.predictions is kind] for kind in (True, False, None))
        messages = Messages()
        for part in bad:
            messages.add_all(part.messages)
        report = Report(
            sum(sum(part.counts.values()) for part in good),
            _added_up(part.counts for part in bad),
            Totals(),
            messages=messages.most_frequent(),
            skipped=sum(sum(part.counts.values()) for part in none),
        )
        return report._replace(refusal=too_many(report.failed, report.rows - report.skipped, self._threshold))

    @property
    def was_fed(self) -> bool:
        """Whether something came through each pipe that was read."""
        return not any(was_silent(source.path) for source in self._sources)

    def cancel(self) -> None:
        """Makes ``execute``, which another thread is in, end soon."""
        cancelled.add(self.output.folder)
        if self._result is not None and hasattr(self._result, "cancel"):
            self._result.cancel()


def too_many(failed: int, rows: int, threshold: float | None) -> str | None:
    """What is to be said if too many rows failed: more than a share, by default all; None if not."""
    if failed and failed == rows and (threshold is None or threshold < 1):
        return f"every row failed ({failed:,} of {rows:,})"
    if threshold is None or not failed or failed / rows <= threshold:
        return None
    return f"too many rows failed: {failed:,} of {rows:,} ({failed / rows:.3%}), and --threshold allows {threshold:.3%}"


def take_options(arguments: Sequence[str]) -> tuple[str, ...]:
    """Gives Beam's filesystems their options; returns what belongs to none of Beam's options: names of files.

    Raises:
        ConfigurationError: an option that Beam does not know, or a value that it does not take.
    """
    parsers: list[Any] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    parser = parsers[0]
    parser.error = _raise_configuration_error
    rest = parser.parse_known_args(list(arguments))[1]
    for argument in rest:
        if argument.startswith("-") and argument != "-":
            raise ConfigurationError(f"neither headrace nor Beam has an option {argument.partition('=')[0]}.")
    FileSystems.set_options(PipelineOptions(list(arguments)))
    return tuple(rest)


def describe(error: BaseException) -> str:
    """An error in one line: its type and message, without Beam's additions."""
    text = _WHERE.sub("", str(error)).strip()
    if "Traceback (most recent call last)" in text:  # of a worker process: the cause stands behind the last frame
        lines = text.splitlines()
        behind = max(place for place, line in enumerate(lines) if line.startswith((" ", "Traceback"))) + 1
        return " ".join(lines[behind:])
    line = " ".join(text.split())
    if isinstance(error, RuntimeError) and _TYPE.match(line):  # in place of an error that Beam could not make anew
        return line
    return f"{as_type_name(error)}: {line}" if line else as_type_name(error)


def _raise_configuration_error(message: str) -> NoReturn:
    raise ConfigurationError(f"{message}.")


def _refuse_no_share(threshold: float | None) -> None:
    if threshold is not None and not 0 <= threshold <= 1:
        raise ConfigurationError(f"--threshold is a share of the rows, from 0 to 1 (0.05: 5 %), not {threshold}.")


def _refuse_failed(state: Any) -> None:
    if state in (PipelineState.FAILED, PipelineState.CANCELLED):
        raise RuntimeError(f"the runner ended the pipeline as {state}")


def _refuse_overwriting(output: Output, sources: Sequence[Source]) -> None:
    paths = [source.path for source in sources]
    inputs = {*map(location, paths), *(os.path.realpath(path) for path in paths if "://" not in path)}
    letters = "--output or --dead-letters"
    for path, option in ((output.path, "--output"), (output.dead_letters, letters), (output.failed_letters, letters)):
        if location(path) in inputs:
            raise ConfigurationError(f"{path} is among the inputs and would be overwritten; choose another {option}.")


def _refuse_pipes(job: Job, *, elsewhere: bool) -> None:
    for source in job.sources:
        if is_pipe(source.path) and (elsewhere or job.resume is not None):
            option = "--resume" if job.resume is not None else "--runner and the options of workers"
            raise ConfigurationError(
                f"{as_name(source.path)} is a pipe, which can be read only once, and by this process only; leave "
                f"{option} out, or write what comes through it to a file first."
            )


def _build(pipeline: beam.Pipeline, job: Job, output: Output, way: RunSteps, *, spread: bool) -> None:
    """Puts the pipeline together; without ``spread``, one worker alone takes the files, in their order."""
    sources = [(index, *source) for index, source in enumerate(job.sources)]
    elements = pipeline | "Files" >> beam.Create(sources, reshuffle=spread) | "Read" >> beam.ParDo(way.read)
    predictions, letters, skipped = (
        elements
        | "RunInference"
        >> RunInference(
            way.handler,
            inference_args=job.inference_args,
            batching=way.batching,
            placement=job.placement,
            isolate=job.isolate,
        )
        .with_exception_handling(timeout=job.timeout)
        .with_skipped_elements()
    )
    good = predictions | "WritePredictions" >> beam.ParDo(way.write)
    bad = [
        rows | f"WriteDeadLetters-{n}" >> beam.ParDo(way.write_letters)
        for n, rows in enumerate(dead_letters_of_each(letters))
    ]
    _ = (
        (good, *bad, skipped | "WriteSkipped" >> beam.ParDo(way.write_skipped))
        | beam.Flatten()
        | "Parts" >> beam.CombineGlobally(ToListCombineFn())
        | "Manifest" >> beam.Map(_write_manifest, output.folder, output.manifest)
    )


def _row_by_row(job: Job, output: Output) -> RunSteps:
    handler = over_rows(job.handler, job.examples, job.reserved)
    batching = batching_over_rows(job.handler, job.batch_sizes)
    resume = job.resume is not None
    read = Read(job.numbers, output.folder, resume=resume)
    write = WritePredictions(output.folder, job.keep, resume=resume)
    letters, skipped = (kind(output.folder, resume=resume) for kind in (WriteLetters, WriteSkipped))
    return RunSteps(read, handler, batching, write, letters, skipped)


def _in_columns(job: Job, output: Output) -> RunSteps | None:
    """None where the same would not come of it."""
    over_rows(job.handler, job.examples)  # refuses what rows cannot be given to
    examples = job.examples
    names = examples.all_columns if examples.columns is None else examples.columns
    if not job.columnar or examples.key is not None or not takes_columns(job.handler):
        return None
    try:
        from headrace.jobs.column_steps import in_columns  # noqa: PLC0415 - needs pyarrow
    except ImportError:
        return None
    return in_columns(job, output, names)


def _write_manifest(parts: list[str], folder: str, path: str) -> None:
    refuse_if_cancelled(folder)
    write_manifest(path, parts)


def _added_up(counts: Iterable[Mapping[str, int]]) -> dict[tuple[str, str], int]:
    totals: dict[tuple[str, str], int] = {}
    for part in counts:
        for what, count in part.items():
            stage, _, error_type = what.partition(" ")
            totals[stage, error_type] = totals.get((stage, error_type), 0) + count
    return totals


def _totals(result: Any) -> Totals:
    """What Beam counted, as far as the runner lets us know."""
    try:
        found = result.metrics().query()
    except (AttributeError, NotImplementedError):
        return Totals()
    counters = {counter.key.metric.name: counter.result for counter in found["counters"]}
    figures = {distribution.key.metric.name: distribution.result for distribution in found["distributions"]}
    batches, loads = figures.get("inference_request_batch_size"), figures.get("load_model_latency_milli_secs")
    memory = figures.get("model_byte_size")
    return Totals(
        predictions=counters.get("num_inferences", 0),
        batches=batches.count if batches else 0,
        failed_batches=counters.get("failed_batches_counter", 0),
        skipped=counters.get("skipped_elements_counter", 0),
        loads=loads.count if loads else 0,
        load_seconds=loads.sum / 1e3 if loads else 0.0,
        model_bytes=memory.sum if memory else 0,
    )
