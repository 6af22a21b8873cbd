"""``headrace run`` as a pipeline: rows from files through a handler into files; nothing is shuffled, nothing held.

Reading, inference and writing are one fused stage, so that memory holds one batch whatever the number of rows. Each
bundle writes parts of its own; only the names of the parts are gathered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState
from apache_beam.transforms.combiners import ToListCombineFn
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from headrace.beam.job.durable import DurablePartWriter
from headrace.beam.job.files import Source, read_rows
from headrace.beam.job.output import Output, PartWriter, write_manifest
from headrace.beam.job.positions import Places, place_at
from headrace.beam.job.resume import ResumableOutput, load_done
from headrace.beam.job.retry import read_letters
from headrace.beam.job.rows import BrokenLine, Examples, Placed, Row, batching_over_rows, over_rows, place_of, row_of
from headrace.beam.letters import dead_letters_of_each
from headrace.beam.transform import RunInference
from headrace.core.config import Scope
from headrace.core.errors import ConfigurationError, as_type_name
from headrace.metrics.totals import Totals

DEFAULT_RUNNER = "FnApiRunner"

_WHERE = re.compile(r"\s*\[while running '[^']*'\]")
_TYPE = re.compile(r"[\w.]*(Error|Exception): ")
_cancelled: set[str] = set()
"""The folders of the jobs of this process that have been cancelled."""


class CancelledError(Exception):
    """The job was cancelled."""


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


class Report(NamedTuple):
    """What came of a run."""

    predictions: int
    dead_letters: dict[tuple[str, str], int]
    """By stage and error type."""
    totals: Totals
    """From Beam's metrics; zeros where the runner keeps none."""
    earlier: int = 0
    """Rows that were done by earlier runs."""

    @property
    def rows(self) -> int:
        """Each row is in the predictions or in the dead letters."""
        return self.predictions + sum(self.dead_letters.values())


class Run:
    """One run of a job.

    Raises:
        ConfigurationError: something is wrong with the job.
        Exception: the handler or the runner refuses it.
    """

    def __init__(self, job: Job) -> None:
        self.output = (
            Output(job.output, job.dead_letters)
            if job.resume is None
            else ResumableOutput(job.output, job.dead_letters, job.resume)
        )
        _refuse_overwriting(self.output, job.sources)
        runner = FnApiRunner() if job.runner == DEFAULT_RUNNER else job.runner
        options = PipelineOptions([*job.options])
        self._pipeline = beam.Pipeline(runner, options)
        workers = options.view_as(DirectOptions).direct_num_workers
        _build(self._pipeline, job, self.output, spread=job.runner != DEFAULT_RUNNER or workers != 1)
        self._result: Any = None

    def execute(self) -> Report:
        """Runs to the end; then, and only then, the output is there. What was there before stays if anything fails.

        Raises:
            ConfigurationError: the output cannot be written where it should be.
            CancelledError: the job was cancelled meanwhile.
            Exception: the pipeline failed; ``describe`` says why.
        """
        try:
            self.output.prepare()
            self._result = self._pipeline.run()
            _refuse_failed(self._result.wait_until_finish())
            parts = self.output.publish(lambda: refuse_if_cancelled(self.output.folder))
        finally:
            self.output.clean()
        return Report(
            sum(sum(part.counts.values()) for part in parts if part.predictions),
            _added_up(part.counts for part in parts if not part.predictions),
            _totals(self._result),
            self.output.earlier_rows,
        )

    def cancel(self) -> None:
        """Makes ``execute``, which another thread is in, end soon."""
        _cancelled.add(self.output.folder)
        if self._result is not None and hasattr(self._result, "cancel"):
            self._result.cancel()


def refuse_if_cancelled(folder: str) -> None:
    """Raises CancelledError if the job that uses this folder was cancelled."""
    if folder in _cancelled:
        raise CancelledError("cancelled")


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


def _refuse_failed(state: Any) -> None:
    if state in (PipelineState.FAILED, PipelineState.CANCELLED):
        raise RuntimeError(f"the runner ended the pipeline as {state}")


def _refuse_overwriting(output: Output, sources: Iterable[Source]) -> None:
    inputs = {source.path for source in sources}
    for path, option in ((output.path, "--output"), (output.dead_letters, "--output or --dead-letters")):
        if path in inputs:
            raise ConfigurationError(f"{path} is among the inputs and would be overwritten; choose another {option}.")


def _build(pipeline: beam.Pipeline, job: Job, output: Output, *, spread: bool) -> None:
    """Puts the pipeline together; without ``spread``, one worker alone takes the files, in their order."""
    resume = job.resume is not None
    rows = (
        pipeline
        | "Files" >> beam.Create([(n, *source) for n, source in enumerate(job.sources)], reshuffle=spread)
        | "Read" >> beam.ParDo(_Read(job.numbers, output.folder, resume=resume))
    )
    predictions, letters = rows | "RunInference" >> RunInference(
        over_rows(job.handler, job.examples),
        inference_args=job.inference_args,
        batching=batching_over_rows(job.handler, job.batch_sizes),
        placement=job.placement,
        isolate=job.isolate,
    ).with_exception_handling(timeout=job.timeout)
    good = predictions | "WritePredictions" >> beam.ParDo(_WritePredictions(output.folder, job.keep, resume=resume))
    bad = [
        rows | f"WriteDeadLetters-{n}" >> beam.ParDo(_WriteLetters(output.folder, resume=resume))
        for n, rows in enumerate(dead_letters_of_each(letters))
    ]
    _ = (
        (good, *bad)
        | beam.Flatten()
        | "Parts" >> beam.CombineGlobally(ToListCombineFn())
        | "Manifest" >> beam.Map(_write_manifest, output.folder, output.manifest)
    )


class _Read(beam.DoFn):
    """Files to rows."""

    def __init__(self, numbers: Mapping[str, type], folder: str, *, resume: bool) -> None:
        self._numbers = dict(numbers)
        self._folder = folder
        self._resume = resume

    def process(self, source: tuple[Any, ...]) -> Iterator[Any]:
        """Rows, one at a time; a line that cannot be read is left to the first operation on rows to refuse."""
        index, *fields = source
        rows: Iterator[Any] = _reading(Source(*fields), self._numbers)
        for row in _placed(rows, index, load_done(self._folder)) if self._resume else rows:
            if _cancelled:
                refuse_if_cancelled(self._folder)
            yield row


def _placed(rows: Iterator[Row | BrokenLine], source: int, done: Places) -> Iterator[Placed]:
    """The rows that are not done yet, with their places."""
    missing = done.missing(source)
    start, stop = next(missing)
    for number, row in enumerate(rows):
        if number >= stop:
            start, stop = next(missing)
        if number >= start:
            yield Placed(row, place_at(source, number))


def _reading(source: Source, numbers: Mapping[str, type]) -> Iterator[Row | BrokenLine]:
    try:
        yield from read_letters(source) if source.letters else read_rows(source, numbers)
    except Exception as error:
        raise OSError(f"cannot read {source.path} as {source.format}: {error}") from error


class _WriteLines(beam.DoFn):
    """Writes a part in each bundle and gives its name; of a bundle that fails, nobody hears the name."""

    predictions: bool

    def __init__(self, folder: str, *, resume: bool) -> None:
        self._folder = folder
        self._resume = resume
        self._part: PartWriter | DurablePartWriter | None = None

    def start_bundle(self) -> None:
        """Begins a part."""
        writer = DurablePartWriter if self._resume else PartWriter
        self._part = writer(self._folder, predictions=self.predictions)

    def _write(self, line: dict[str, Any], what: str, element: Any) -> None:
        assert self._part is not None, "written outside a bundle; this is a bug, please report it"
        self._part.write(line, what, place_of(element) if self._resume else 0)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Ends it."""
        part, self._part = self._part and self._part.finish(), None
        if part is not None:
            yield WindowedValue(json.dumps(part), MIN_TIMESTAMP, [GlobalWindow()])

    def teardown(self) -> None:
        """Keeps what a bundle that failed has done, if anything is to be kept."""
        if self._part is not None and self._resume:
            self._part.finish()


class _WritePredictions(_WriteLines):
    """Writes (row, prediction) pairs."""

    predictions = True

    def __init__(self, folder: str, keep: tuple[str, ...] | None, *, resume: bool) -> None:
        super().__init__(folder, resume=resume)
        self._keep = keep

    def process(self, pair: tuple[Any, Any]) -> None:
        """Writes a line."""
        element, prediction = pair
        row: Any = element if type(element) is dict else row_of(element)
        kept = row if self._keep is None else {name: row.get(name) for name in self._keep}
        self._write({**kept, **_fields(prediction)}, "predictions", element)


def _fields(prediction: Any) -> dict[str, Any]:
    """What a prediction adds to its row."""
    if not (hasattr(prediction, "inference") and hasattr(prediction, "example")):  # Headrace's or Beam's result
        return {"prediction": prediction}
    model_id = getattr(prediction, "model_id", None)
    answer = {"prediction": prediction.inference}
    return answer if model_id is None else {**answer, "model_id": model_id}


class _WriteLetters(_WriteLines):
    """Writes dead letters."""

    predictions = False

    def process(self, letter: Any) -> None:
        """Writes a line."""
        row = row_of(letter.element)
        is_broken = isinstance(row, BrokenLine)
        line = {
            "row": row.row if isinstance(row, BrokenLine) else row,
            "stage": "reading" if is_broken else letter.stage,
            "operation": letter.index,
            "error_type": letter.error_type,
            "message": letter.message,
            "traceback": letter.traceback,
            "attempts": getattr(row, "attempts", 0) + letter.attempts,
            "model_id": letter.model_id,
        }
        self._write(line, f"{line['stage']} {letter.error_type}", letter.element)


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
        loads=loads.count if loads else 0,
        load_seconds=loads.sum / 1e3 if loads else 0.0,
        model_bytes=memory.sum if memory else 0,
    )
