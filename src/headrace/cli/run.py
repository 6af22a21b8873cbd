"""``headrace run`` and ``headrace retry``: from the command line's words to a job, and the job run with a display."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from rich.console import Console

from headrace.cli.ahead import importing_ahead
from headrace.cli.columns import choose, one_of
from headrace.cli.errors import console_logging, report_error
from headrace.cli.fallbacks import make_fallbacks
from headrace.cli.handlers import make_handler, parse_arguments
from headrace.cli.hints import about_columns, about_model, misplaced
from headrace.cli.options import NAMED, RetryArgs, RunArgs, option_names
from headrace.cli.progress import STARTING, JobProgress, wait
from headrace.cli.resume import decisive
from headrace.cli.signals import Signals
from headrace.cli.spending import budget_of
from headrace.cli.stopwatch import Seconds, process_start
from headrace.cli.summary import Line, show, summary
from headrace.cli.worker_output import without_noise
from headrace.core.errors import BudgetError, ConfigurationError, EndpointError, as_type_name
from headrace.metrics.totals import Totals
from headrace.runtime.observers import subscribed

FAILED, MISUSED, REFUSED, SPENT, INTERRUPTED = 1, 2, 3, 4, 130

_GRACE_SECONDS = 1.5
_ELSEWHERE = "at work in other processes, whose rows are counted at the end"


class _Shell(NamedTuple):
    """What a run gets from the command line, and where it reports."""

    args: RunArgs | RetryArgs
    errors: Console
    out: Console
    signals: Signals
    started: float
    """When the command did, on the clock of ``time.monotonic``."""


def execute(args: RunArgs | RetryArgs, called: float | None = None) -> int:
    """Runs; returns the exit code.

    Args:
        args: the options.
        called: when, on the clock of ``time.monotonic``; None: with this process.
    """
    started = process_start() if called is None else called
    errors, out = Console(stderr=True), Console()
    with console_logging(errors, verbose=args.verbose), Signals() as signals, importing_ahead(args):
        busy = errors.status("starting") if not args.no_progress and errors.is_terminal else nullcontext()
        try:
            with busy:
                run = _prepare(args)
            if not signals.received:  # something that was being imported may have swallowed the interrupt
                return _run(run, _Shell(args, errors, out, signals, started))
        except (KeyboardInterrupt, Exception) as error:  # what is found before anything runs is the user's to correct
            if not signals.received:
                own_words = isinstance(error, ValueError) and str(error)
                message = str(error) if own_words else f"{as_type_name(error)}: {error}"
                return _fail(errors, _code_of(error), message, error, verbose=args.verbose)
        return _interrupted(errors, signals)


def _prepare(args: RunArgs | RetryArgs) -> Any:
    from headrace.jobs import run  # noqa: PLC0415 - importing numpy takes a while
    from headrace.jobs.job import Job  # noqa: PLC0415 - as above
    from headrace.rows.examples import Examples  # noqa: PLC0415 - as above

    wrong = misplaced(args.arguments, args.columns, has_pairs=bool(args.handler_args or args.inference_args))
    if wrong is not None:
        raise ConfigurationError(wrong)
    inputs = _given_inputs(args)
    named = {name: value for name in NAMED if (value := getattr(args, name)) is not None}
    handler = make_handler(args.handler, parse_arguments("--handler-arg", args.handler_args), args.model, named)
    fallback = make_fallbacks(args)
    sources, head, text = _inputs(args, inputs)
    key = one_of("--key", args.key or None, head.columns)
    length = one_of("--length-column", args.length_column, head.columns)
    keep = choose("--keep", args.keep, head.columns)
    _refuse_reserved(head.columns if keep is None else keep)
    columns = _columns(args, handler, head.columns)
    examples = Examples(columns, head.columns, key)
    return run.Run(
        Job(
            handler=handler,
            fallback=fallback,
            sources=sources,
            output=args.output,
            dead_letters=args.dead_letters,
            examples=examples,
            numbers=head.numbers_without(text),
            keep=keep,
            inference_args=parse_arguments("--inference-arg", args.inference_args) or None,
            batch_sizes=_batch_sizes(args),
            length_column=length,
            placement=args.placement.value if args.placement else None,
            isolate=args.isolate,
            timeout=args.timeout,
            cache=args.cache,
            budget=budget_of(args),
            threshold=args.threshold,
            resume=decisive(args, sources, columns=examples.columns, keep=keep, text=text) if args.resume else None,
            runner=args.runner,
            options=() if len(inputs) == len(args.arguments) else tuple(args.arguments),
        )
    )


def _given_inputs(args: RunArgs | RetryArgs) -> tuple[str, ...]:
    from headrace.jobs import run  # noqa: PLC0415 - as above

    inputs = run.without_options(args.arguments, option_names(type(args)))
    if not inputs:
        name = "DEAD_LETTERS" if isinstance(args, RetryArgs) else "INPUT"
        raise ConfigurationError(f"no {name} is given; name at least one file or glob.")
    return inputs


def _batch_sizes(args: RunArgs | RetryArgs) -> dict[str, int]:
    fewest = args.max_batch_size if args.min_batch_size is None and args.batch_directory else args.min_batch_size
    sizes = {"min_batch_size": fewest, "max_batch_size": args.max_batch_size}
    return {name: size for name, size in sizes.items() if size is not None}


def _inputs(args: RunArgs | RetryArgs, paths: Sequence[str]) -> tuple[Any, Any, tuple[str, ...]]:
    """The files, their columns, and which of these stay text."""
    from headrace.jobs import files, reading  # noqa: PLC0415 - as above
    from headrace.jobs.retry import dead_letter_columns, match_dead_letters  # noqa: PLC0415 - as above

    if isinstance(args, RetryArgs):
        sources = match_dead_letters(paths)
        return sources, reading.InputSchema(dead_letter_columns(sources), {}), ()
    sources = files.match(paths, args.file_format and args.file_format.value, args.delimiter)
    head = reading.infer_schema(sources)
    return sources, head, choose("--text-columns", args.text_columns, head.columns) or ()


def _columns(args: RunArgs | RetryArgs, handler: Any, all_columns: Sequence[str]) -> tuple[str, ...] | None:
    """The columns that the model sees; None: all. The prompt's are among them."""
    columns = choose("--columns", args.columns, all_columns)
    if columns == ():
        raise ConfigurationError("--columns names no column; leave it out if the model is to see all of them.")
    seen = columns or all_columns
    of_prompt = getattr(handler, "columns_of_rows", None)  # the user's own may do with prompts and rows what it likes
    choose("--prompt", of_prompt() if args.prompt is not None and of_prompt else None, seen)
    if ":" not in args.handler and (refuse := getattr(handler, "refuse_columns", None)) is not None:
        refuse(seen)
    return columns


def _refuse_reserved(columns: Sequence[str]) -> None:
    from headrace.rows.examples import RESERVED  # noqa: PLC0415 - as above

    for name in RESERVED:
        if name in columns:
            raise ConfigurationError(
                f"the input has a column {name!r}, where the prediction goes; name the columns to keep with --keep."
            )


def _run(run: Any, shell: _Shell) -> int:
    totals, thread, begun = Totals(), _RunThread(run), time.monotonic()
    args, errors = shell.args, shell.errors
    at_first = _ELSEWHERE if run.runs_elsewhere else STARTING
    progress = JobProgress(totals, run.share.at, started=shell.started, at_first=at_first)
    try:
        quiet = without_noise() if run.runs_elsewhere and not args.verbose else nullcontext()
        with quiet, subscribed(totals):
            thread.start()
            wait(thread.done, progress, errors, show=not args.no_progress)
    except KeyboardInterrupt:
        shell.signals.heeded = False
        _stop(run, thread)
        left = f"{_left(run, thread)}{_sent(args)}"
        return _interrupted(errors, shell.signals, left, stuck=not thread.done.is_set())
    if isinstance(thread.error, ConfigurationError):
        raise thread.error
    if thread.error is not None:
        if (spent := _spent(thread.error)) is not None:
            return _fail(errors, SPENT, f"{spent}{_after_budget(run)}", thread.error, verbose=args.verbose)
        code = FAILED if run.had_input else REFUSED
        unloaded = not (totals.loads or totals.batches) and run.had_input
        message = _why(run, thread.error, args if unloaded else None)
        return _fail(errors, code, message, thread.error, verbose=args.verbose)
    figures = totals if totals.batches else thread.report.totals
    lines = summary(thread.report, figures, _seconds(shell.started, begun, thread.report, figures))
    return _conclude(run, thread.report, lines, shell)


def _seconds(started: float, begun: float, report: Any, figures: Totals) -> Seconds:
    """What the time went to. A model that loads while rows are read, or in several processes, counts within the run."""
    running = time.monotonic() - begun - report.publishing_seconds
    loading = min(figures.load_seconds, running)
    return Seconds(begun - started, loading, running - loading, report.publishing_seconds)


def _conclude(run: Any, report: Any, lines: Sequence[Line], shell: _Shell) -> int:
    """Prints the summary; returns the exit code."""
    args = shell.args
    written = {} if report.refusal else {"written": run.output.path}
    letters = run.output.failed_letters if report.refusal else run.output.dead_letters
    settings = {"options from": args.config} if args.config else {}
    show(shell.out, lines, {**written, "dead letters in": letters, **settings}, report.messages)
    if report.refusal:
        hint = "" if report.predictions else about_columns(run.columns, chosen=bool(args.columns))
        said = f"{report.refusal}; {run.output.path} was not written.{hint}{_kept(run, refused=True)}"
        report_error(shell.errors, said)
        return REFUSED
    if not report.rows:
        report_error(shell.errors, "there are no rows in the input.", "warning")
    return 0


def _code_of(error: BaseException) -> int:
    from headrace.jobs.pipes import EmptyPipeError  # noqa: PLC0415 - as above

    return REFUSED if isinstance(error, EmptyPipeError) else MISUSED


def _why(run: Any, error: BaseException, unloaded: RunArgs | RetryArgs | None = None) -> str:
    """Why a run failed; ``unloaded``: its options, if no model was loaded."""
    from headrace.jobs.publishing import PublishError  # noqa: PLC0415 - as above
    from headrace.jobs.run import describe  # noqa: PLC0415 - as above

    if isinstance(error, PublishError):
        return f"{error}{_kept(run)}"
    said = (
        f"the run failed: {describe(error).removeprefix(f'{as_type_name(EndpointError)}: ')}"  # it says enough itself
    )
    if unloaded is not None and unloaded.model is not None and "cannot read " not in said:  # which is about an input
        hint = about_model(unloaded.handler, unloaded.model)
        said = f"{unloaded.handler} cannot load --model {unloaded.model}: {describe(error).rstrip('.')}{hint}"
    return f"{said}{_kept(run)}"


def _spent(error: BaseException) -> str | None:
    """What a run says whose budget is spent; a runner may have made another error of that one. None of other errors."""
    from headrace.jobs.run import describe  # noqa: PLC0415 - as above

    name, _, said = describe(error).partition(": ")
    cure = "give it with --price MODEL=INPUT,OUTPUT"
    return said.replace("add it to the prices", cure) if name == as_type_name(BudgetError) else None


def _after_budget(run: Any) -> str:
    kept = _kept(run)
    return kept or (" Nothing was written; the same command goes on from the cache." if run.has_cache else "")


def _left(run: Any, thread: _RunThread) -> str:
    """What an interrupt has left; one that comes while files are being moved changes nothing."""
    if thread.report is not None:
        return "everything was written."
    if run.output.keeps_parts and thread.error is not None:
        return _why(run, thread.error)
    return f"nothing was written.{_kept(run)}"


def _sent(args: RunArgs | RetryArgs) -> str:
    if args.batch_directory is None:
        return ""
    return (
        f" Batches that were sent stay at the provider: the same command, with what is in {args.batch_directory}, "
        "collects them, and nothing is paid twice."
    )


class _RunThread(threading.Thread):
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


def _stop(run: Any, thread: _RunThread) -> None:
    """Ends the run; one that is stuck in a model is left behind, after its parts are removed."""
    run.cancel()
    thread.done.wait(_GRACE_SECONDS)
    run.output.clean()  # waits for files that are being moved
    if run.output.published or run.output.keeps_parts:
        thread.done.wait()


def _kept(run: Any, *, refused: bool = False) -> str:
    rows = run.output.kept_rows
    if not rows:
        return ""
    are = f"{rows:,} rows are" if rows > 1 else "1 row is"
    if refused:
        return (
            f" ({are} done and kept in {run.output.folder}. The same command with a higher --threshold "
            "writes them; to have all rows predicted again, delete that folder first.)"
        )
    return f" ({are} done and kept; the same command goes on from there.)"


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
