"""What came of a run, for programs: ``--json`` prints it as one object on standard output."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

from headrace.cli.errors import ErrorConsole
from headrace.cli.spending import usage_facts
from headrace.cli.stopwatch import Seconds
from headrace.metrics.totals import Totals

_REASONS = {
    0: "done",
    1: "failed",
    2: "wrong_argument",
    3: "refused",
    4: "budget_spent",
    130: "interrupted",
    143: "terminated",
}


class RunRecord:
    """Collects what came of a run; a context, in which standard output is kept for the record if that is wanted.

    Args:
        wanted: whether to print it.
        kept: whether standard output is kept for something else.
    """

    def __init__(self, *, wanted: bool, kept: bool = False) -> None:
        self.wanted = wanted
        self.kept = kept
        self.errors = ErrorConsole(stderr=True)
        self.totals = Totals()
        """What was counted, however the run ended."""
        self.report: Any = None
        """None: the run did not get to its end."""
        self.files: Mapping[str, str | None] = {}
        self.seconds = Seconds(0.0, 0.0, 0.0, 0.0)
        self.out: TextIO = sys.stdout
        """The real standard output."""
        self._open = ExitStack()

    def __enter__(self) -> RunRecord:
        if self.wanted or self.kept:
            self.out = self._open.enter_context(_stdout_kept())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def ended(self, code: int) -> int:
        """Prints the record, if it is wanted; returns the exit code."""
        if self.wanted:
            print(json.dumps(self._facts(code)), file=self.out, flush=True)
        return code

    def _facts(self, code: int) -> dict[str, Any]:
        """Plain values; None where a value is unknown."""
        seconds = None if self.report is None else self.seconds
        return {
            "exit_code": code,
            "exit_reason": _REASONS.get(code, "interrupted"),
            "error": self.errors.last_error,
            **_counts(self.report),
            "from_fallback": self.totals.from_fallback,
            "from_cache": self.totals.cached,
            "files": dict(self.files),
            "seconds": None if seconds is None else round(seconds.total, 3),
            "phases": None if seconds is None else {name: round(one, 3) for name, one in seconds._asdict().items()},
            **usage_facts(self.totals),
        }


def _counts(report: Any) -> dict[str, Any]:
    names = ("rows", "done_before", "predictions", "failures", "skipped", "unread")
    if report is None:
        return {**dict.fromkeys(names), "inputs": None, "failures_by_stage": {}, "causes": []}
    by_stage: Counter[str] = Counter()
    for (stage, _), count in report.dead_letters.items():
        by_stage[stage] += count
    counts = (report.rows, report.earlier, report.predictions, report.failed, report.skipped, report.unread)
    causes = [_cause(what, count) for what, count in report.messages.items()]
    inputs = None if report.inputs is None else report.inputs._asdict()
    counted = {**dict(zip(names, counts, strict=True)), "inputs": inputs}
    return {**counted, "failures_by_stage": dict(by_stage), "causes": causes}


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
