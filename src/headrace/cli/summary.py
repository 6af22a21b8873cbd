"""The summary at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from rich.console import Console
from rich.table import Table

from headrace.cli.spending import summary_lines
from headrace.cli.stopwatch import Seconds
from headrace.metrics.totals import Totals

Line = tuple[str, str]

_QUOTED = 3


class Counted(Protocol):
    """What a run counted."""

    @property
    def rows(self) -> int:
        """All of them."""
        ...

    @property
    def earlier(self) -> int:
        """Rows that were done by earlier runs."""
        ...

    @property
    def predictions(self) -> int:
        """Rows in the output."""
        ...

    @property
    def dead_letters(self) -> Mapping[tuple[str, str], int]:
        """By stage and error type."""
        ...

    @property
    def skipped(self) -> int:
        """Rows without an output, on purpose."""
        ...


def summary(counted: Counted, totals: Totals, seconds: Seconds) -> list[Line]:
    """The lines of the summary: a name and a figure each. The rate is that of the rows, without start and loading."""
    working = seconds.rows + seconds.writing
    return [
        ("rows", f"{counted.rows:,}"),
        *([("  done before", f"{counted.earlier:,}")] if counted.earlier else []),
        ("predictions", f"{counted.predictions:,}"),
        *([("  by the fallback", f"{totals.from_fallback:,}")] if totals.from_fallback else []),
        ("dead letters", f"{sum(counted.dead_letters.values()):,}"),
        *_by_cause(counted.dead_letters),
        *([("skipped", f"{counted.skipped:,}")] if counted.skipped else []),
        ("seconds", f"{seconds.total:.2f}"),
        ("  of these", seconds.text()),
        ("rows/s", f"{(counted.rows - counted.earlier) / working if working else 0:,.0f}"),
        *summary_lines(totals, working),
        ("batches", f"{totals.batches:,}"),
        ("mean batch size", f"{totals.mean_batch_size:.1f}"),
        ("model load seconds", f"{totals.load_seconds:.2f}"),
        ("model bytes", f"{totals.model_bytes:,}"),
    ]


def show(
    console: Console, lines: Sequence[Line], files: Mapping[str, str], messages: Mapping[str, int] | None = None
) -> None:
    """Prints the summary (a table on a terminal, plain lines elsewhere), the files, and why rows failed.

    Args:
        console: to print on.
        lines: of the summary.
        files: their paths, by name.
        messages: how many dead letters have each message, the most frequent first.
    """
    if console.is_terminal:
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for line in lines:
            table.add_row(*line)
        console.print(table)
    width = 2 + max(len(name) for name, _ in [*lines, *files.items()])
    for name, value in [*([] if console.is_terminal else lines), *files.items()]:
        console.print(f"{name:<{width}}{value}", markup=False, highlight=False, soft_wrap=True)
    for message, count in list((messages or {}).items())[:_QUOTED]:
        console.print(f"  {count:,} x {message}", markup=False, highlight=False, soft_wrap=True)


def _by_cause(dead_letters: Mapping[tuple[str, str], int]) -> Iterator[Line]:
    for (stage, error_type), count in sorted(dead_letters.items()):
        yield f"  {stage} {error_type}", f"{count:,}"
