"""Standard output of a run: its record as one JSON object (``--json``), or its predictions (``--output -``)."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from headrace.cli.console import ErrorConsole, ExitCode, report_error
from headrace.cli.display import Seconds, cost_of
from headrace.core.errors import ConfigurationError
from headrace.core.files import is_folder_name
from headrace.hosts.system import allowed_cores
from headrace.metrics.timeline import Timeline
from headrace.metrics.totals import Totals, usage_figures

if TYPE_CHECKING:
    from headrace.cli.options import RetryArgs, RunArgs
    from headrace.jobs.job import Report

STDOUT = "-"
STDOUT_NAME = "standard output"


class RunRecord:
    """Collects what came of a run; a context, in which standard output is kept for it if that is wanted.

    Args:
        args: the options of the run.
        started: when the command did, on the clock of ``time.monotonic``.
        quote: what was forecast.
    """

    def __init__(self, args: RunArgs | RetryArgs, started: float, quote: Mapping[str, Any] | None = None) -> None:
        self._report_path = args.report
        self._quotes_messages = args.report_messages
        self._quote = quote
        self.started = started
        self.timeline = Timeline(began=started)
        self.subject: dict[str, Any] = {"command": args.command}
        """What was run, for the report."""
        self.wanted = args.as_json
        """Whether it is printed."""
        self.kept = args.output == STDOUT
        """Whether standard output is kept for the predictions."""
        self.errors = ErrorConsole(stderr=True)
        self.totals = Totals()
        """What was counted, however the run ended."""
        self.report: Report | None = None
        """None: the run did not get to its end."""
        self.files: Mapping[str, str | None] = {}
        self.seconds = Seconds()
        self._out: TextIO = sys.stdout
        """The real standard output."""
        self._open = ExitStack()

    def __enter__(self) -> RunRecord:
        if self.wanted or self.kept:
            self._out = self._open.enter_context(_stdout_kept())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def send(self, path: str) -> bool:
        """Copies a file to standard output; returns whether that takes all, and if not says so."""
        out = self._out.buffer
        try:
            with open(path, "rb") as file:
                shutil.copyfileobj(file, out)
            out.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # what is left would be written when it is closed
            report_error(self.errors, f"{STDOUT_NAME} did not take all predictions: {error.strerror or error}.")
            return False
        return True

    def ended(self, code: int) -> int:
        """Prints the record, and writes the report, if they are wanted; returns the exit code."""
        if self.wanted:
            print(json.dumps(self._facts(code)), file=self._out, flush=True)
        if self._report_path is not None:
            self._write_report(self._report_path, code)
        return code

    def _write_report(self, path: str, code: int) -> None:
        from headrace.metrics.report import write_report  # noqa: PLC0415 - only for this

        facts = self._facts(code)
        if not self._quotes_messages:
            facts["causes"] = _silent(self.report.dead_letters if self.report else {})
            if facts["error"] and code in (
                ExitCode.FAILED,
                ExitCode.WRONG_ARGUMENT,
            ):  # whose errors may hold values of rows
                facts["error"] = "The run ended with an error; --report-messages quotes it."
        try:
            write_report(self._figures(facts), path)
        except OSError as error:
            report_error(self.errors, f"--report: cannot write {path}: {error.strerror or error}.", "warning")

    def live_figures(self) -> dict[str, Any]:
        """The figures of a report, of a run that goes on."""
        totals = self.totals
        failures = totals.failures.copy()
        so_far = {
            "exit_reason": "running",
            "predictions": totals.predictions + totals.cached,
            "failures": sum(failures.values()),
            "skipped": totals.skipped,
            "causes": _silent(failures),
        }
        return self._figures({**self._facts(0), **so_far})

    def _figures(self, facts: dict[str, Any]) -> dict[str, Any]:
        from headrace.metrics.report import report_figures  # noqa: PLC0415 - only for this

        return report_figures({**facts, **self.subject, "cores": allowed_cores()}, self.timeline)

    def _facts(self, code: int) -> dict[str, Any]:
        """Plain values; None where a value is unknown."""
        ended, usage = self.report is not None, self.totals.usage.copy()
        phases = {name: round(seconds, 3) for name, seconds in self.seconds._asdict().items()}
        return {
            "exit_code": code,
            "exit_reason": ExitCode(code).name.lower(),
            "error": self.errors.last_error,
            **_counts(self.report),
            "from_fallback": self.totals.from_fallback,
            "from_cache": self.totals.cached,
            "files": dict(self.files),
            "seconds": round(self.seconds.total, 3) if ended else None,
            "phases": phases if ended else None,
            "usage": usage_figures(usage),
            "cost": cost_of(usage),
            **({} if self._quote is None else {"quote": self._quote}),
        }


def _counts(report: Report | None) -> dict[str, Any]:
    names = ("rows", "done_before", "predictions", "failures", "skipped", "unread")
    if report is None:
        return {**dict.fromkeys(names), "inputs": None, "failures_by_stage": {}, "causes": []}
    by_stage: Counter[str] = Counter()
    for (stage, _), count in report.dead_letters.items():
        by_stage[stage] += count
    unread = None if report.is_cut else 0
    counts = (report.rows, report.earlier, report.predictions, report.failed, report.skipped, unread)
    return {
        **dict(zip(names, counts, strict=True)),
        "inputs": report.inputs and report.inputs._asdict(),
        "failures_by_stage": dict(by_stage),
        "causes": [_cause(what, count) for what, count in report.messages.items()],
    }


def _silent(failures: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    """The causes of dead letters, the most frequent first, without messages."""
    return [
        {"stage": stage, "error_type": kind, "message": "", "count": count}
        for (stage, kind), count in Counter(failures).most_common()
    ]


def _cause(what: str, count: int) -> dict[str, Any]:
    """Of a message with its stage and error type in front."""
    stage, _, error = what.partition(" ")
    error_type, _, message = error.partition(": ")
    return {"stage": stage, "error_type": error_type, "message": message, "count": count}


@contextmanager
def _stdout_kept() -> Iterator[TextIO]:
    """The real standard output; meanwhile what handlers, their libraries and their processes print goes to the other.

    Where a program has replaced ``sys.stdout``, that is the real one.
    """
    before = sys.stdout
    before.flush()
    kept = os.dup(1)
    with os.fdopen(os.dup(kept), "w", encoding="utf-8") as direct:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        try:
            yield direct if before is sys.__stdout__ else before
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            sys.stdout = before


@contextmanager
def output_in_file(args: RunArgs | RetryArgs) -> Iterator[RunArgs | RetryArgs]:
    """The options, with a file in a temporary folder in place of standard output.

    Raises:
        ConfigurationError: standard output cannot be used as the options ask.
    """
    if (misuse := _misuse(args)) is not None:
        raise ConfigurationError(misuse)
    if args.output != STDOUT:
        yield args
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        kind = args.output_format or "jsonl"
        yield replace(args, output=os.path.join(folder, f"predictions.{kind}"), output_format=None)


def _misuse(args: RunArgs | RetryArgs) -> str | None:
    if args.output != STDOUT:
        has_use = args.output_format is None or is_folder_name(args.output)
        return None if has_use else "--output-format is for --output - or FOLDER/; elsewhere the name decides."
    if args.output_format == "parquet":
        return "--output - takes no Parquet, which is written from its end: name a file, or another --output-format."
    if args.dead_letters is None:
        return "--output - needs --dead-letters FILE: there is no output beside which they could be."
    if args.resume:
        return "--output - keeps nothing that a later run could go on from; leave --resume out, or name a file."
    return "--json prints on standard output, as --output - does; leave one of them out." if args.as_json else None
