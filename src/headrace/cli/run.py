"""``headrace run`` and ``headrace retry``: from the command line's words to a job, and the job run with a display."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any, NamedTuple

from rich.console import Console

from headrace.cli import standard_output
from headrace.cli.ahead import importing_ahead
from headrace.cli.columns import asked_types, choose, contents_of, csv_types, examples_of, one_of, refuse_reserved
from headrace.cli.dry_run import show_dry_run
from headrace.cli.errors import console_logging, report_error
from headrace.cli.fallbacks import make_fallbacks
from headrace.cli.handlers import parse_arguments
from headrace.cli.hints import about_failures, about_model, misplaced
from headrace.cli.option import option_names
from headrace.cli.options import RetryArgs, RunArgs
from headrace.cli.progress import STARTING, JobProgress, wait
from headrace.cli.recognition import Recognised, columns_of, handler_of, recognised
from headrace.cli.record import RunRecord
from headrace.cli.resume import decisive
from headrace.cli.settings import one_output
from headrace.cli.signals import Signals
from headrace.cli.spending import budget_of
from headrace.cli.stopwatch import phases, process_start
from headrace.cli.summary import show_run
from headrace.cli.thread import RunThread
from headrace.cli.worker_output import without_noise
from headrace.core.errors import BudgetError, ConfigurationError, EndpointError, as_type_name
from headrace.core.files import is_folder_name
from headrace.runtime.observers import subscribed

FAILED, MISUSED, REFUSED, SPENT, INTERRUPTED = 1, 2, 3, 4, 130

_GRACE_SECONDS, _DRAIN_SECONDS, _LOOK_SECONDS = 1.5, 5.0, 0.1
_FROM_CACHE = " the same command goes on from the cache."
_NOWHERE = ".headrace-dry-run.jsonl"
"""The output of a dry run that names none; it is never written."""
_ELSEWHERE = "running in other processes; rows are counted at the end"


class _Shell(NamedTuple):
    """What a run gets from the command line, and where it reports."""

    args: RunArgs | RetryArgs
    record: RunRecord
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
    is_stream = args.output == standard_output.SIGN
    with RunRecord(wanted=args.as_json, kept=is_stream) as record, standard_output.in_a_file(args) as inner:
        code = _execute(inner, started, record)
        if code == 0 and is_stream and record.report is not None and not standard_output.send(inner.output, record):
            code = FAILED
        return record.ended(code)


def _execute(args: RunArgs | RetryArgs, started: float, record: RunRecord) -> int:
    errors = record.errors
    with console_logging(errors, verbose=args.verbose), Signals() as signals, ExitStack() as ahead:
        busy = errors.status("starting") if not args.no_progress and errors.is_terminal else nullcontext()
        try:
            with busy:
                args, known = recognised(args)
                ahead.enter_context(importing_ahead(args))
                run = _prepare(args, known, errors)
                if run.output.note:
                    errors.print(run.output.note, markup=False, highlight=False, soft_wrap=True)
            if isinstance(args, RunArgs) and args.dry_run:
                show_dry_run(Console(), run)
                return 0
            if not signals.received:  # something that was being imported may have swallowed the interrupt
                return _run(run, _Shell(args, record, signals, started))
        except (KeyboardInterrupt, Exception) as error:  # what is found before anything runs is the user's to correct
            if not signals.received:
                own_words = isinstance(error, ValueError) and str(error)
                message = str(error) if own_words else f"{as_type_name(error)}: {error}"
                return _fail(errors, _code_of(error), message, error, verbose=args.verbose)
        return _interrupted(errors, signals)


def _prepare(args: RunArgs | RetryArgs, known: Recognised | None, errors: Console) -> Any:
    from headrace.jobs import run  # noqa: PLC0415 - importing numpy takes a while
    from headrace.jobs.job import Job  # noqa: PLC0415 - as above

    inputs, into = _given_inputs(args), getattr(args, "into", None)
    handler = handler_of(args, known)
    sources, head = _inputs(args, inputs)
    keep = choose("--keep", args.keep, head.columns)
    refuse_reserved(head.columns if keep is None else keep)
    columns = columns_of(args, handler, head, known)
    if known is not None and (line := known.line(args, columns)):
        errors.print(line, markup=False, highlight=False, soft_wrap=True)
    is_folder = isinstance(args, RunArgs) and is_folder_name(args.output)
    deciding = partial(decisive, args, columns=columns, keep=keep, types=head.csv)
    return run.Run(
        Job(
            handler=handler,
            fallback=make_fallbacks(args),
            sources=sources,
            output=_output(args, into),
            into=into is not None,
            dead_letters=args.dead_letters,
            examples=examples_of(args, head, columns),
            types=head.csv,
            contents=contents_of(args, head, columns),
            keep=keep,
            explode=args.explode,
            inference_args=parse_arguments("--inference-arg", args.inference_args) or None,
            batch_sizes=_batch_sizes(args),
            length_column=one_of("--length-column", args.length_column, head.columns),
            placement=args.placement.value if args.placement else None,
            isolate=args.isolate,
            timeout=args.timeout,
            cache=args.cache,
            budget=budget_of(args),
            threshold=args.threshold,
            limit=args.limit if isinstance(args, RunArgs) else None,
            workers=args.workers if isinstance(args, RunArgs) else 1,
            resume=deciding(sources) if args.resume else None,
            folder=deciding(()) if is_folder else None,
            output_format=args.output_format and args.output_format.value,
            runner=args.runner,
            options=() if len(inputs) == len(args.arguments) else tuple(args.arguments),
        )
    )


def _output(args: RunArgs | RetryArgs, into: str | None) -> str:
    standard_output.refuse_mistakes(args)
    is_dry = isinstance(args, RunArgs) and args.dry_run
    return _NOWHERE if is_dry and args.output is None else one_output(args.output, into)


def _given_inputs(args: RunArgs | RetryArgs) -> tuple[str, ...]:
    from headrace.jobs import run  # noqa: PLC0415 - as above

    has_pairs = bool(args.handler_args or args.inference_args)
    if (wrong := misplaced(args.arguments, args.columns, has_pairs=has_pairs)) is not None:
        raise ConfigurationError(wrong)
    inputs = run.without_options(args.arguments, option_names(type(args)))
    if not inputs:
        name = "DEAD_LETTERS" if isinstance(args, RetryArgs) else "INPUT"
        raise ConfigurationError(f"no {name} is given; name at least one file or glob.")
    return inputs


def _batch_sizes(args: RunArgs | RetryArgs) -> dict[str, int]:
    fewest = args.max_batch_size if args.min_batch_size is None and args.batch_directory else args.min_batch_size
    sizes = {"min_batch_size": fewest, "max_batch_size": args.max_batch_size}
    return {name: size for name, size in sizes.items() if size is not None}


def _inputs(args: RunArgs | RetryArgs, paths: Sequence[str]) -> tuple[Any, Any]:
    """The files, and the types of their columns."""
    from headrace.jobs import files, reading  # noqa: PLC0415 - as above
    from headrace.jobs.retry import (  # noqa: PLC0415 - as above
        are_of_files,
        columns_of_lines,
        dead_letter_columns,
        match_dead_letters,
    )
    from headrace.rows.files import CONTENT  # noqa: PLC0415 - as above

    if isinstance(args, RetryArgs):
        sources = match_dead_letters(paths)
        types = asked_types(args.types, columns_of_lines(sources)) if args.types else {}
        content = (CONTENT,) if are_of_files(sources) else ()
        return sources, reading.InputSchema(dead_letter_columns(sources, types), types, {}, content)
    sources = files.match(paths, args.file_format and args.file_format.value, args.delimiter)
    head = reading.infer_schema(sources)
    return sources, head._replace(csv=csv_types(args, sources, head))


def _run(run: Any, shell: _Shell) -> int:
    args, errors, totals = shell.args, shell.record.errors, shell.record.totals
    thread, begun = RunThread(run), time.monotonic()
    at_first = _ELSEWHERE if run.runs_elsewhere else STARTING
    progress = JobProgress(totals, run.share.at, started=shell.started, at_first=at_first)
    quiet = without_noise() if run.runs_elsewhere and not args.verbose else nullcontext()
    with subscribed(totals):
        try:
            with quiet:
                thread.start()
                wait(thread.done, progress, errors, show=not args.no_progress)
            shell.signals.heeded = False  # what is left takes a moment, and the files are there
        except KeyboardInterrupt:
            shell.signals.heeded = False
            _stop(run, thread, shell)
            code = _interrupted(errors, shell.signals, f"{_left(run, thread)}{_sent(args)}")
            return code if thread.done.is_set() else _leave(shell.record.ended(code))
    if isinstance(thread.error, ConfigurationError):
        raise thread.error
    if thread.error is not None:
        if (spent := _spent(thread.error)) is not None:
            after = _kept(run) or (f" Nothing was written;{_FROM_CACHE}" if run.has_cache else "")
            return _fail(errors, SPENT, f"{spent}{after}", thread.error, verbose=args.verbose)
        code = FAILED if run.had_input else REFUSED
        unloaded = not (totals.loads or totals.batches) and run.had_input
        message = _why(run, thread.error, args if unloaded else None)
        return _fail(errors, code, message, thread.error, verbose=args.verbose)
    figures = totals if totals.batches else thread.report.totals
    shell.record.report, shell.record.totals = thread.report, figures
    shell.record.seconds = phases(shell.started, begun, figures.load_seconds, thread.report.publishing_seconds)
    return _conclude(run, thread.report, shell)


def _conclude(run: Any, report: Any, shell: _Shell) -> int:
    """Prints the summary; returns the exit code."""
    args, record, output = shell.args, shell.record, run.output
    letters = output.failed_letters if report.refusal else output.dead_letters
    path = standard_output.NAME if record.kept else output.path
    record.files = {
        "predictions": None if report.refusal else path,
        "dead_letters": letters if report.failed else None,
    }
    if not record.wanted:
        show_run(report, record, args.config, verbose=args.verbose)
    if report.refusal:
        known = {"chosen": bool(args.columns), "retried": isinstance(args, RetryArgs)}
        hint = "" if report.predictions else about_failures(report.dead_letters, run.columns, run.job.handler, **known)
        said = f"{report.refusal}; {path} was not written.{hint}{_kept(run, refused=True)}"
        report_error(record.errors, said)
        return REFUSED
    if not report.rows and (report.inputs is None or report.inputs.predicted):
        report_error(record.errors, "there are no rows in the input.", "warning")
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
    said = f"the run failed: {describe(error).removeprefix(f'{as_type_name(EndpointError)}: ')}"  # which says enough
    if unloaded is not None and unloaded.model is not None and "cannot read " not in said:  # which is about an input
        hint = about_model(unloaded.handler or "", unloaded.model)
        said = f"{unloaded.handler} cannot load --model {unloaded.model}: {describe(error).rstrip('.')}{hint}"
    return f"{said}{_kept(run)}"


def _spent(error: BaseException) -> str | None:
    """What a run says whose budget is spent; a runner may have made another error of that one. None of other errors."""
    from headrace.jobs.run import describe  # noqa: PLC0415 - as above

    name, _, said = describe(error).partition(": ")
    cure = "give it with --price MODEL=INPUT,OUTPUT"
    return said.replace("add it to the prices", cure) if name == as_type_name(BudgetError) else None


def _left(run: Any, thread: RunThread) -> str:
    """Message about partial output after an interrupt; one that comes while files are being moved changes nothing."""
    if thread.report is not None:
        return "everything was written."
    if run.output.keeps_parts and thread.error is not None:
        return _why(run, thread.error)
    from_cache = run.has_cache and not run.output.kept_rows
    return f"nothing was written;{_FROM_CACHE}" if from_cache else f"nothing was written.{_kept(run)}"


def _sent(args: RunArgs | RetryArgs) -> str:
    said = (
        f" Batches that were sent stay at the provider: the same command, with what is in {args.batch_directory}, "
        "collects them, and nothing is paid twice."
    )
    return "" if args.batch_directory is None else said


def _stop(run: Any, thread: RunThread, shell: _Shell) -> None:
    """Ends the run; one that is stuck in a model is left behind, after its parts are removed."""
    if run.drains and not shell.args.batch_directory and not thread.done.is_set():
        said = f"waiting up to {_DRAIN_SECONDS:g} s for requests in flight; interrupt again to end at once."
        report_error(shell.record.errors, said, "interrupted")
        run.cancel(_DRAIN_SECONDS)
        for _ in range(round(_DRAIN_SECONDS / _LOOK_SECONDS)):
            if thread.done.wait(_LOOK_SECONDS) or len(shell.signals.received) > 1:
                break
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


def _interrupted(console: Console, signals: Signals, what: str = "nothing was written.") -> int:
    """Says so; returns the exit code."""
    report_error(console, f"interrupted; {what}")
    return signals.exit_code


def _leave(code: int) -> int:
    """Ends this process at once; threads that are stuck are not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fail(console: Console, code: int, message: str, error: BaseException, *, verbose: bool) -> int:
    if verbose:
        traceback.print_exception(error)
    report_error(console, message)
    return code
