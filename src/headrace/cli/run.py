"""``headrace run`` and ``headrace retry``: a job, run with a display."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from headrace.cli.columns import about_failures
from headrace.cli.console import ExitCode, Signals, console_logging, error_text, fail, report_error, say
from headrace.cli.display import PROCESS_START, STARTING, JobProgress, loading_seconds, phases, show_run, wait
from headrace.cli.handlers import search_here
from headrace.cli.options import RetryArgs, RunArgs
from headrace.cli.recognition import about_model, recognised
from headrace.cli.record import STDOUT_NAME, RunRecord, output_in_file
from headrace.cli.words import retry_options
from headrace.core.errors import BudgetError, ConfigurationError, EndpointError, as_type_name
from headrace.core.spelling import factory_place
from headrace.runtime.exporting import exporting, stop_exporting
from headrace.runtime.observers import FanOut, Sampler, subscribed

if TYPE_CHECKING:
    from headrace.jobs.job import Report
    from headrace.jobs.run import Run

_GRACE_SECONDS, _DRAIN_SECONDS, _LOOK_SECONDS = 1.5, 5.0, 0.1
_RUNS_PARTS = "headrace.jobs.workers"
_FROM_CACHE = " the same command goes on from the cache."
_ELSEWHERE = "running in other processes; rows are counted at the end"
_SENT = (
    " Batches that were sent stay at the provider: the same command, with what is in {}, collects them, and nothing is "
    "paid twice."
)
_IDLE = {"OPENBLAS_THREAD_TIMEOUT": "20", "GOMP_SPINCOUNT": "10000"}
"""How long a thread of OpenBLAS (the logarithm of the cycles), or of OpenMP (turns of a loop), that has nothing to do
keeps its core busy before it sleeps: less than a millisecond. By default it is 10 to 30 ms behind each call, so nearly
always, and what reads, decodes and writes needs that core."""


class _Shell(NamedTuple):
    """What a run gets from the command line, and where it reports."""

    args: RunArgs | RetryArgs
    record: RunRecord
    signals: Signals


class _RunThread(threading.Thread):
    """Runs the pipeline, so that the main thread can draw and be interrupted.

    Its end is an event: a ``Thread.join`` that an interrupt ends takes the thread for ended, too.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(name="headrace-run", daemon=True)
        self._run = run
        self.done = threading.Event()
        self.report: Report | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.report = self._run.execute()
        except BaseException as error:  # the main thread reports it
            self.error = error
        finally:
            self.done.set()


def execute(args: RunArgs | RetryArgs, called: float | None = None) -> int:
    """Runs what was ``called`` on the clock of ``time.monotonic`` (None: with this process); returns the exit code."""
    started = PROCESS_START if called is None else called
    if args.report is not None:
        from headrace.metrics.report import refuse_unwritable  # noqa: PLC0415 - only for this

        refuse_unwritable(args.report)
    quote = None
    if args.quote is not None:
        from headrace.cli.quote import take_quote  # noqa: PLC0415 - only for this

        args, quote = take_quote(args, args.quote)
    with RunRecord(args, started, quote) as record, output_in_file(args) as inner:
        code = _execute(inner, record)
        if code == 0 and record.kept and record.report is not None and not record.send(str(inner.output)):
            code = ExitCode.FAILED
        return record.ended(code)


def _execute(args: RunArgs | RetryArgs, record: RunRecord) -> int:
    errors = record.errors
    with console_logging(errors, verbose=args.verbose), Signals() as signals, ExitStack() as ahead:
        busy = errors.status("starting") if not args.no_progress and errors.is_terminal else nullcontext()
        try:
            with busy, importing():
                ahead.enter_context(exporting(args.prometheus, samples=False, several=bool(args.runner)))
                args, known = recognised(args)
                ahead.enter_context(importing_ahead(args))
                from headrace.cli.prepare import prepare  # noqa: PLC0415 - importing numpy takes a while
                from headrace.models.memory import hold_heap, release_heap  # noqa: PLC0415 - as above

                run, notes = prepare(args, known)
                hold_heap()
                ahead.callback(release_heap)
            for note in notes:
                say(errors, note)
            if args.dry_run:
                from headrace.cli.dry_run import show_dry_run  # noqa: PLC0415 - as above

                show_dry_run(Console(), run)
                return 0
            if not signals.received:  # something that was being imported may have swallowed the interrupt
                return _run(run, _Shell(args, record, signals))
        except (KeyboardInterrupt, Exception) as error:  # what is found before anything runs is the user's to correct
            if not signals.received:
                return fail(errors, _code_of(error), error_text(error), error, verbose=args.verbose)
        return _interrupted(errors, signals)


@contextmanager
def importing() -> Iterator[None]:
    """While the context is open, no garbage is collected: what is imported stays, and to look for it takes 0.2 s."""
    for name, value in _IDLE.items():
        if name != "GOMP_SPINCOUNT" or "OMP_WAIT_POLICY" not in os.environ:  # which says the same of OpenMP's threads
            os.environ.setdefault(name, value)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def importing_ahead(args: RunArgs | RetryArgs) -> Iterator[None]:
    """While the context is open, a fork server imports the handler's module, if the run is going to need one.

    To import it takes both processes seconds.
    """
    from headrace.hosts.system import why_no_hosts  # noqa: PLC0415 - the other commands need no hosts

    is_isolated = (args.isolate or args.timeout is not None) and not args.placement and not args.runner
    workers = 1 if args.runner else getattr(args, "workers", 1) or 1
    place = factory_place(args.handler or "") if (is_isolated or workers > 1) and why_no_hosts() is None else None
    if place is None:
        yield
        return
    from headrace.hosts.environment import threads_of_each  # noqa: PLC0415 - not every system has what this needs
    from headrace.hosts.fork_server_client import SPARE  # noqa: PLC0415 - as above

    search_here()
    module, name = place
    if workers > 1:
        SPARE.start(name, [_RUNS_PARTS, module], threads_of_each(workers))
    else:
        SPARE.start(name, [module])
    try:
        yield
    finally:
        SPARE.drop()


def _run(run: Run, shell: _Shell) -> int:
    args, errors, totals = shell.args, shell.record.errors, shell.record.totals
    thread, begun = _RunThread(run), time.monotonic()
    shell.record.subject = _subject(run, args) | ({"identity": _identity(run)} if args.report else {})
    at_first = _ELSEWHERE if run.runs_elsewhere else STARTING
    progress = JobProgress(
        totals, run.share.at, started=shell.record.started, at_first=at_first, shares=shell.record.timeline.recent
    )
    timeline = shell.record.timeline
    with subscribed(totals), subscribed(timeline), Sampler(FanOut(), gpus=True), _watched(args, shell.record):
        try:
            thread.start()
            wait(thread.done, progress, errors, show=not args.no_progress)
            shell.signals.heeded = False  # what is left takes a moment, and the files are there
        except KeyboardInterrupt:
            shell.signals.heeded = False
            _stop(run, thread, shell)
            sent = _SENT.format(args.batch_directory) if args.batch_directory else ""
            code = _interrupted(errors, shell.signals, f"{_left(run, thread)}{sent}")
            return code if thread.done.is_set() else _leave(shell.record.ended(code))
    if isinstance(thread.error, ConfigurationError):
        raise thread.error
    if thread.error is not None:
        if (spent := _spent(thread.error)) is not None:
            after = _kept(run) or (f" Nothing was written;{_FROM_CACHE}" if run.has_cache else "")
            return fail(errors, ExitCode.BUDGET_SPENT, f"{spent}{after}", thread.error, verbose=args.verbose)
        code = ExitCode.FAILED if _code_of(thread.error.__cause__) == ExitCode.WRONG_ARGUMENT else ExitCode.REFUSED
        unloaded = not (totals.loads or totals.batches) and code == ExitCode.FAILED
        message = _why(run, thread.error, args if unloaded else None)
        return fail(errors, code, message, thread.error, verbose=args.verbose)
    report = thread.report
    assert report is not None
    figures = totals if totals.batches else report.totals
    shell.record.report, shell.record.totals = report, figures
    loading = loading_seconds(figures, args.workers)
    shell.record.seconds = phases(shell.record.started, begun, loading, report.publishing_seconds)
    return _conclude(run, report, shell)


@contextmanager
def _watched(args: RunArgs | RetryArgs, record: RunRecord) -> Iterator[None]:
    if args.watch is None:
        yield
        return
    from headrace.cli.watch import LivePage  # noqa: PLC0415 - only for this

    with LivePage(record.live_figures, args.watch) as page:
        say(record.errors, f"watch at {page.address}")
        yield


def _subject(run: Run, args: RunArgs | RetryArgs) -> dict[str, Any]:
    return {
        "command": args.command,
        "handler": args.handler,
        "workers": args.workers,
        "retry_options": retry_options(args),
        "keeps_one_worker": run.keeps_one_worker,
        "sorted_rows": run.sorted_rows,
        "formats": sorted({source.format for source in run.job.sources}),
    }


def _identity(run: Run) -> str | None:
    """What decides the predictions, for a later ``--changed-since``; None: that cannot be told."""
    from headrace.jobs.earlier import identity_of  # noqa: PLC0415 - importing numpy takes a while

    with suppress(Exception):
        return identity_of(run.job)
    return None


def _conclude(run: Run, report: Report, shell: _Shell) -> int:
    args, record, output = shell.args, shell.record, run.output
    letters = output.failed_letters if report.refusal else output.dead_letters
    path = STDOUT_NAME if record.kept else output.path
    record.files = {
        "predictions": None if report.refusal else path,
        "dead_letters": letters if report.failed else None,
    }
    if not record.wanted:
        files = {
            "written": record.files["predictions"],
            "dead letters in": record.files["dead_letters"],
            "options from": args.config,
        }
        show_run(report, record.totals, record.seconds, files, verbose=args.verbose)
    if report.refusal:
        hint = "" if report.predictions else about_failures(report.dead_letters, run.columns)
        said = f"{report.refusal}; {path} was not written.{hint}{_kept(run, refused=True)}"
        report_error(record.errors, said)
        return ExitCode.REFUSED
    if not report.rows and (report.inputs is None or report.inputs.predicted):
        report_error(record.errors, "there are no rows in the input.", "warning")
    return 0


def _code_of(error: BaseException | None) -> int:
    from headrace.jobs.pipes import EmptyPipeError  # noqa: PLC0415 - importing numpy takes a while

    return ExitCode.REFUSED if isinstance(error, EmptyPipeError) else ExitCode.WRONG_ARGUMENT


def _why(run: Run, error: BaseException, unloaded: RunArgs | RetryArgs | None = None) -> str:
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


def _left(run: Run, thread: _RunThread) -> str:
    """Message about partial output after an interrupt; one that comes while files are being moved changes nothing."""
    if thread.report is not None:
        return "everything was written."
    if run.output.keeps_parts and thread.error is not None:
        return _why(run, thread.error)
    from_cache = run.has_cache and not run.output.kept_rows
    return f"nothing was written;{_FROM_CACHE}" if from_cache else f"nothing was written.{_kept(run)}"


def _stop(run: Run, thread: _RunThread, shell: _Shell) -> None:
    """Ends the run; one that is stuck in a model is left behind, after its parts are removed."""
    if run.drains and not shell.args.batch_directory and not thread.done.is_set():
        run.cancel(_DRAIN_SECONDS)  # first: what is sent meanwhile is paid for, too
        said = f"waiting up to {_DRAIN_SECONDS:g} s for requests in flight; interrupt again to end at once."
        report_error(shell.record.errors, said, "interrupted")
        for _ in range(round(_DRAIN_SECONDS / _LOOK_SECONDS)):
            if thread.done.wait(_LOOK_SECONDS) or len(shell.signals.received) > 1:
                break
    run.cancel()
    thread.done.wait(_GRACE_SECONDS)
    run.output.clean()  # waits for files that are being moved
    if run.output.published or run.output.keeps_parts:
        thread.done.wait()


def _kept(run: Run, *, refused: bool = False) -> str:
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
    report_error(console, f"interrupted; {what}")
    return signals.exit_code


def _leave(code: int) -> int:
    """Ends this process at once; threads that are stuck are not waited for."""
    stop_exporting()  # as the context would that is left
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
