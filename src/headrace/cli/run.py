"""``headrace run`` and ``headrace retry``: from the command line's words to a job, and the job run with a display."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from headrace.cli.columns import choose
from headrace.cli.errors import orderly, report_error
from headrace.cli.handlers import make_handler, parse_arguments
from headrace.cli.progress import wait
from headrace.cli.resume import decisive
from headrace.cli.signals import Signals
from headrace.cli.summary import show, summary
from headrace.core.config import Scope
from headrace.core.errors import ConfigurationError, as_type_name
from headrace.metrics.totals import Totals
from headrace.runtime.observers import subscribed

FAILED, MISUSED, REFUSED, INTERRUPTED = 1, 2, 3, 130

_GRACE_SECONDS = 1.5


@dataclass(frozen=True)
class Words:
    """The command line, as it was typed."""

    arguments: Sequence[str]
    """Inputs, mixed with options that are not ours."""
    handler: str
    output: str
    dead_letters: str | None = None
    retry: bool = False
    """Whether the inputs are dead letters of an earlier run."""
    model: str | None = None
    handler_args: Sequence[str] = ()
    inference_args: Sequence[str] = ()
    columns: Sequence[str] | None = None
    keep: Sequence[str] | None = None
    key: str | None = None
    text_columns: Sequence[str] | None = None
    file_format: str | None = None
    delimiter: str | None = None
    min_batch_size: int | None = None
    max_batch_size: int | None = None
    placement: Scope | None = None
    isolate: bool = False
    timeout: float | None = None
    threshold: float | None = None
    resume: bool = False
    runner: str | None = None
    progress: bool = True
    verbose: bool = False


def execute(words: Words) -> int:
    """Runs; returns the exit code."""
    errors, out = Console(stderr=True), Console()
    with orderly(errors, verbose=words.verbose), Signals() as signals:
        busy = errors.status("starting") if words.progress and errors.is_terminal else nullcontext()
        try:
            with busy:
                run = _prepare(words)
            if not signals.received:  # something that was being imported may have swallowed the interrupt
                return _run(run, words, errors, out, signals)
        except (KeyboardInterrupt, Exception) as error:  # what is found before anything runs is the user's to correct
            if not signals.received:
                own_words = isinstance(error, ValueError) and str(error)
                message = str(error) if own_words else f"{as_type_name(error)}: {error}"
                return _fail(errors, _code_of(error), message, error, verbose=words.verbose)
        return _interrupted(errors, signals)


def _prepare(words: Words) -> Any:
    from headrace.beam.job import files, pipeline, reading  # noqa: PLC0415 - importing Beam takes seconds, which --help need not
    from headrace.beam.job.retry import match_letters, peek_letters  # noqa: PLC0415 - as above
    from headrace.beam.job.rows import Examples  # noqa: PLC0415 - as above

    inputs = pipeline.take_options(words.arguments)
    if not inputs:
        name = "DEAD_LETTERS" if words.retry else "INPUT"
        raise ConfigurationError(f"no {name} is given; name at least one file or glob.")
    handler = make_handler(words.handler, parse_arguments("--handler-arg", words.handler_args), words.model)
    if words.retry:
        sources = match_letters(inputs)
        head = reading.Head(peek_letters(sources), {})
    else:
        sources = files.match(inputs, words.file_format, words.delimiter)
        head = reading.peek(sources)
    text = choose("--text-columns", words.text_columns, head.columns) or ()
    key = choose("--key", [words.key] if words.key else None, head.columns)
    keep = choose("--keep", words.keep, head.columns)
    _refuse_reserved(head.columns if keep is None else keep)
    columns = choose("--columns", words.columns, head.columns)
    if columns == ():
        raise ConfigurationError("--columns names no column; leave it out if the model is to see all of them.")
    examples = Examples(columns, head.columns, key[0] if key else None)
    sizes = {"min_batch_size": words.min_batch_size, "max_batch_size": words.max_batch_size}
    return pipeline.Run(
        pipeline.Job(
            handler=handler,
            sources=sources,
            output=words.output,
            dead_letters=words.dead_letters,
            examples=examples,
            numbers={name: kind for name, kind in head.numbers.items() if name not in text},
            keep=keep,
            inference_args=parse_arguments("--inference-arg", words.inference_args) or None,
            batch_sizes={name: size for name, size in sizes.items() if size is not None},
            placement=words.placement,
            isolate=words.isolate,
            timeout=words.timeout,
            threshold=words.threshold,
            resume=decisive(words, sources, columns=examples.columns, keep=keep, text=text) if words.resume else None,
            runner=words.runner or pipeline.DEFAULT_RUNNER,
            options=tuple(words.arguments) if len(inputs) < len(words.arguments) else (),
        )
    )


def _refuse_reserved(columns: Sequence[str]) -> None:
    from headrace.beam.job.rows import RESERVED  # noqa: PLC0415 - as above

    for name in RESERVED:
        if name in columns:
            raise ConfigurationError(
                f"the input has a column {name!r}, where the prediction goes; name the columns to keep with --keep."
            )


def _run(run: Any, words: Words, errors: Console, out: Console, signals: Signals) -> int:
    totals, worker = Totals(), _Worker(run)
    started = time.monotonic()
    try:
        with subscribed(totals):
            worker.start()
            wait(worker.done, totals, errors, show=words.progress)
    except KeyboardInterrupt:
        signals.heeded = False
        _stop(run, worker)
        return _interrupted(errors, signals, _left(run, worker), stuck=not worker.done.is_set())
    if isinstance(worker.error, ConfigurationError):
        raise worker.error
    if worker.error is not None:
        code = FAILED if run.was_fed else REFUSED
        return _fail(errors, code, _why(run, worker.error), worker.error, verbose=words.verbose)
    report = worker.report
    figures = totals if totals.batches else report.totals
    written = {} if report.refusal else {"written": run.output.path}
    letters = run.output.failed_letters if report.refusal else run.output.dead_letters
    lines = summary(report, figures, time.monotonic() - started)
    show(out, lines, {**written, "dead letters in": letters}, report.messages)
    if report.refusal:
        report_error(errors, f"{report.refusal}; {run.output.path} was not written.{_kept(run, refused=True)}")
        return REFUSED
    if not report.rows:
        report_error(errors, "there are no rows in the input.", "warning")
    return 0


def _code_of(error: BaseException) -> int:
    from headrace.beam.job.pipes import EmptyPipeError  # noqa: PLC0415 - as above

    return REFUSED if isinstance(error, EmptyPipeError) else MISUSED


def _why(run: Any, error: BaseException) -> str:
    from headrace.beam.job.pipeline import describe  # noqa: PLC0415 - as above
    from headrace.beam.job.publishing import PublishError  # noqa: PLC0415 - as above

    said = str(error) if isinstance(error, PublishError) else f"the pipeline failed: {describe(error)}"
    return f"{said}{_kept(run)}"


def _left(run: Any, worker: _Worker) -> str:
    """What an interrupt has left; one that comes while files are being moved changes nothing."""
    if worker.report is not None:
        return "everything was written."
    if run.output.keeps_parts and worker.error is not None:
        return _why(run, worker.error)
    return f"nothing was written.{_kept(run)}"


class _Worker(threading.Thread):
    """Runs the pipeline, so that the main thread can draw and be interrupted.

    Its end is an event: a ``Thread.join`` that an interrupt ends takes the thread for ended, too.
    """

    def __init__(self, run: Any) -> None:
        super().__init__(name="headrace-run", daemon=True)
        self._run = run
        self.done = threading.Event()
        self.report: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Runs it and keeps what came of it."""
        try:
            self.report = self._run.execute()
        except BaseException as error:  # the main thread reports it
            self.error = error
        finally:
            self.done.set()


def _stop(run: Any, worker: _Worker) -> None:
    """Ends the run; one that is stuck in a model is left behind, after its parts are removed."""
    run.cancel()
    worker.done.wait(_GRACE_SECONDS)
    run.output.clean()  # waits for files that are being moved
    if run.output.published or run.output.keeps_parts:
        worker.done.wait()


def _kept(run: Any, *, refused: bool = False) -> str:
    rows = run.output.kept_rows
    if not rows:
        return ""
    if refused:
        return (
            f" ({rows:,} rows are done and kept in {run.output.folder}. The same command with a higher --threshold "
            "writes them; to have all rows predicted again, delete that folder first.)"
        )
    return f" ({rows:,} rows are done and kept; the same command goes on from there.)"


def _interrupted(console: Console, signals: Signals, what: str = "nothing was written.", *, stuck: bool = False) -> int:
    """Says so; returns the exit code. Threads that are stuck are not waited for."""
    report_error(console, f"interrupted; {what}")
    if stuck:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(signals.exit_code)
    return signals.exit_code


def _fail(console: Console, code: int, message: str, error: BaseException, *, verbose: bool) -> int:
    if verbose:
        traceback.print_exception(error)
    report_error(console, message)
    return code
