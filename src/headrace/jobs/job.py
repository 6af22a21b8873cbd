"""What a run is asked to do, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.core.config import Budget, Scope
from headrace.jobs.files import Source
from headrace.metrics.totals import Totals
from headrace.rows.examples import RESERVED, Examples
from headrace.rows.files import Contents

FIRST_ROWS = 1000
"""A run ends once this many rows have failed and none has succeeded."""

cancelled: set[str] = set()
"""The output folders of this process's cancelled jobs."""


class CancelledError(Exception):
    """The job was cancelled."""


def refuse_if_cancelled(folder: str) -> None:
    """Raises CancelledError if the job with this output folder was cancelled."""
    if folder in cancelled:
        raise CancelledError("cancelled")


@dataclass(frozen=True)
class Job:
    """All that a run needs to know."""

    handler: Any
    sources: tuple[Source, ...]
    output: str
    """The predictions' file, ``.jsonl``, ``.csv`` or ``.parquet``; or the folder of a file for each source."""
    examples: Examples = field(default_factory=Examples)
    """How to make the handler's examples from rows."""
    types: Mapping[str, str] = field(default_factory=dict)
    """The types of the columns of CSV files, but for those of text."""
    keep: tuple[str, ...] | None = None
    """The input columns to output; None: all."""
    explode: bool = False
    """Whether predictions of several values become several columns."""
    fallback: Any = None
    """The handler for rows that the first one's model could not do, if any."""
    inference_args: dict[str, Any] | None = None
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    """``min_batch_size`` and ``max_batch_size``, in place of the handler's."""
    length_column: str | None = None
    """The column by which rows are sorted before batches are cut, if any: its number, or the length of its text."""
    placement: Scope | None = None
    """Where the model lives; None: the handler decides."""
    isolate: bool = False
    """Whether the model lives in a process of its own."""
    timeout: float | None = None
    """The longest that one operation may take, in seconds."""
    runner: str | None = None
    """Beam's runner. None: the plain loop, without Beam; or, if there are ``options``, Beam's runner in this process.
    """
    workers: int | None = 1
    """How many processes of this machine run the rows, without Beam; None: as many as it turns out to have room for."""
    options: tuple[str, ...] = ()
    """Beam's pipeline options, as on the command line."""
    changed_since: str | None = None
    """An earlier output, whose predictions are those of rows that have not changed; None: all rows are predicted."""
    into: bool = False
    """Whether the rows of the sources, dead letters, are put into the output, which is there already."""
    cause: str | None = None
    """A text in what is said of the dead letters that are retried, ``STAGE TYPE: MESSAGE``; None: all are."""
    dead_letters: str | None = None
    """The dead letters' file, like ``output``; None: beside the output, ``.jsonl``."""
    resume: Mapping[str, Any] | None = None
    """Everything that determines the predictions, by the user's name for it; values are JSON. Rows that an earlier run
    with the same output and the same values finished are not repeated. None: every run starts afresh."""
    folder: Mapping[str, Any] | None = None
    """As ``resume`` but for the sources, if ``output`` is a folder; None: it is a file."""
    output_format: str | None = None
    """Of the files of a folder; None: that of each source."""
    limit: int | None = None
    """How many rows to read; None: all."""
    stop_at: float | None = None
    """When to read no more rows, on this machine's clock of ``time.monotonic``; None: never."""
    threshold: float | None = None
    """The fraction of rows, 0 to 1, that may fail; beyond it the run is refused. None: only if all rows fail."""
    cache: str | None = None
    """The file of earlier predictions; None: none are reused."""
    budget: Budget | None = None
    """The prices of requests, and a limit for all worker processes of a machine."""
    columnar: bool = True
    """Whether rows may be processed in columns if the results are the same."""

    contents: Contents | None = None
    """How the contents of files that are rows are read; None: they are not."""

    @property
    def reserved(self) -> tuple[str, ...]:
        """Columns that no row may have, since the output adds them; none if the columns to keep were chosen."""
        return RESERVED if self.keep is None else ()


class Inputs(NamedTuple):
    """What became of the inputs of an output that is a folder."""

    predicted: int
    unchanged: int
    """Since their outputs were written: they were not predicted."""
    others: list[str]
    """Outputs of inputs that are gone, or that this run did not name: they stay."""


class Report(NamedTuple):
    """The result of a run."""

    predictions: int
    dead_letters: dict[tuple[str, str], int]
    """Counts by stage and error type."""
    totals: Totals = Totals()
    """Zeros if Beam's runner has no metrics."""
    earlier: int = 0
    """Rows finished by earlier runs."""
    messages: dict[str, int] = {}  # noqa: RUF012 - a NamedTuple's default, never modified
    """Counts of the most frequent dead letters by stage, error type and message."""
    skipped: int = 0
    """Rows without output on purpose."""
    is_cut: bool = False
    """Whether rows were left out since the first ones all failed."""
    refusal: str | None = None
    """Why the predictions were not published: too many rows failed. The dead letters are in ``Output.failed_letters``.
    """
    publishing_seconds: float = 0.0
    """How long it took to join the parts into files and to move those into place."""
    inputs: Inputs | None = None
    """None: the output is no folder."""

    @property
    def rows(self) -> int:
        """All rows: predicted, failed, or skipped."""
        return self.predictions + self.failed + self.skipped

    @property
    def failed(self) -> int:
        """Rows in the dead letters."""
        return sum(self.dead_letters.values())

    def why_refused(self, threshold: float | None) -> str | None:
        """A message if too many of the rows that were tried failed (more than ``threshold``, or all); else None."""
        if self.is_cut:
            return f"the first {FIRST_ROWS:,} rows failed, and the rest was not read (--threshold 1 reads on)"
        failed, rows = self.failed, self.rows - self.skipped
        if failed and failed == rows and (threshold is None or threshold < 1):
            return f"every row failed ({failed:,} of {rows:,})"
        if threshold is None or not failed or failed / rows <= threshold:
            return None
        allowed = f"and --threshold allows {_percent(threshold)}"
        return f"too many rows failed: {failed:,} of {rows:,} ({_percent(failed / rows)}), {allowed}"


def _percent(share: float) -> str:
    return f"{100 * share:.5g}%"
