"""The summary at the end of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console

from headrace.cli.progress import rate_text
from headrace.cli.record import RunRecord
from headrace.cli.spending import summary_lines, tokens_used
from headrace.cli.stopwatch import Seconds
from headrace.metrics.totals import Totals

Line = tuple[str, str]

FAILED = "dead letters"
"""The line behind which the causes stand."""

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

    @property
    def unread(self) -> int | None:
        """Rows that were left out, if they were counted."""
        ...


def summary(counted: Counted, totals: Totals, seconds: Seconds, *, verbose: bool = False) -> list[Line]:
    """The lines of the summary: a name and a figure each.

    Args:
        counted: the rows.
        totals: what else was counted.
        seconds: what the time went to. The rate is that of the rows, without start and loading.
        verbose: whether to add what only those want to know who look into how fast a run is.
    """
    return [
        ("rows", f"{counted.rows:,}"),
        *([("  done before", f"{counted.earlier:,}")] if counted.earlier else []),
        ("predictions", f"{counted.predictions:,}"),
        *([("  by the fallback", f"{totals.from_fallback:,}")] if totals.from_fallback else []),
        (FAILED, f"{sum(counted.dead_letters.values()):,}"),
        *([("skipped", f"{counted.skipped:,}")] if counted.skipped else []),
        *([("not read", f"{counted.unread:,}")] if counted.unread else []),
        *summary_lines(totals),
        ("seconds", f"{seconds.total:.2f}{_rate(counted.rows - counted.earlier, seconds)}"),
        *(_details(counted, totals, seconds) if verbose else ()),
    ]


def inputs_lines(inputs: Any, are: str = "predicted") -> list[Line]:
    """What becomes of inputs that have an output each; nothing if ``inputs`` is None."""
    if inputs is None:
        return []
    lines = [("inputs", f"{inputs.predicted:,} {are}, {inputs.unchanged:,} unchanged")]
    if inputs.others:
        some = ", ".join([*inputs.others[:_QUOTED], *(["..."] if inputs.others[_QUOTED:] else [])])
        lines.append(
            ("other outputs", f"{len(inputs.others):,} of inputs that are gone or not named, which stay: {some}")
        )
    return lines


def show_run(counted: Any, record: RunRecord, config: str | None, *, verbose: bool) -> None:
    """Prints the summary of a run that got to its end.

    Args:
        counted: the run's report.
        record: of the run.
        config: the file that options came from, if any.
        verbose: as for ``summary``.
    """
    given = (
        ("written", record.files["predictions"]),
        ("dead letters in", record.files["dead_letters"]),
        ("options from", config),
    )
    lines = inputs_lines(counted.inputs) + summary(counted, record.totals, record.seconds, verbose=verbose)
    show(Console(), lines, {name: path for name, path in given if path}, counted.messages, counted.failed)


def show(
    console: Console,
    lines: Sequence[Line],
    files: Mapping[str, str],
    messages: Mapping[str, int] | None = None,
    failed: int = 0,
) -> None:
    """Prints the summary, why rows failed, and the files.

    Args:
        console: to print on.
        lines: of the summary.
        files: their paths, by name.
        messages: how many dead letters have each message, the most frequent first.
        failed: how many dead letters there are.
    """
    width = 2 + max(len(name) for name, _ in [*lines, *files.items()])
    for name, value in [*lines, *files.items()]:
        _print(console, f"{name:<{width}}{value}")
        for cause in _causes(messages or {}, failed) if name == FAILED else ():
            _print(console, _shortened(cause, console.width) if console.is_terminal else cause)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _causes(messages: Mapping[str, int], failed: int) -> Iterator[str]:
    quoted = list(messages.items())[:_QUOTED]
    for message, count in quoted:
        yield f"  {count:,} x {message}"
    more = failed - sum(count for _, count in quoted)
    if more > 0 and quoted:
        yield f"  and {more:,} more with other messages"


def _shortened(text: str, width: int) -> str:
    """At most two lines; the dead letters have the whole."""
    lines = textwrap.wrap(
        text,
        width,
        subsequent_indent="    ",
        max_lines=2,
        placeholder=" ...",
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def _rate(rows: int, seconds: Seconds) -> str:
    working = seconds.rows + seconds.writing
    rate = rate_text(rows / working) if working else ""
    return f" ({rate} rows/s without start and loading)" if rate else ""


def _details(counted: Counted, totals: Totals, seconds: Seconds) -> Iterator[Line]:
    yield "  of these", seconds.text()
    for (stage, error_type), count in sorted(counted.dead_letters.items()):
        yield f"{stage} {error_type}", f"{count:,}"
    if totals.usage and seconds.rows:
        yield "tokens/s", rate_text(tokens_used(totals) / seconds.rows) or "0"
    yield "batches", f"{totals.batches:,}"
    yield "mean batch size", f"{totals.mean_batch_size:.1f}"
    yield "model load seconds", f"{totals.load_seconds:.2f}"
    if totals.model_bytes:
        yield "model bytes", f"{totals.model_bytes:,}"
