"""What a run is asked to do, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.core.config import Scope
from headrace.jobs.files import Source
from headrace.jobs.rows import RESERVED, Examples
from headrace.metrics.totals import Totals


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
    runner: str | None = None
    """Beam's runner; None: Beam's own in this process if there are ``options``, else a plain loop, without Beam."""
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
    """Zeros where Beam's runner keeps no metrics."""
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


def too_many(failed: int, rows: int, threshold: float | None) -> str | None:
    """What is to be said if too many rows failed: more than a share, by default all; None if not."""
    if failed and failed == rows and (threshold is None or threshold < 1):
        return f"every row failed ({failed:,} of {rows:,})"
    if threshold is None or not failed or failed / rows <= threshold:
        return None
    return f"too many rows failed: {failed:,} of {rows:,} ({failed / rows:.3%}), and --threshold allows {threshold:.3%}"
