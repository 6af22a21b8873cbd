"""How a run is shown: as it goes on, by a bar on a terminal and a line every half minute elsewhere; and at its end."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from headrace.cli.console import say
from headrace.core.answer import counted
from headrace.core.events import UsageReported
from headrace.metrics.totals import Totals, added
from headrace.metrics.verdict import what_binds

if TYPE_CHECKING:
    from headrace.jobs.job import Inputs, Report

PROCESS_START = time.monotonic() - time.process_time()
"""When this process started, on the clock of ``time.monotonic``: about as long ago as it has computed until now."""

Line = tuple[str, str]
"""A name and a figure."""

_FAILED = "dead letters"
"""The line behind which the causes stand."""
_QUOTED = 3
_MOST_MODELS = 5
_LEAST_RATE = 0.01


class Seconds(NamedTuple):
    """What a run's time went to; the phases follow one another."""

    imports: float = 0.0
    """From the start of the process until the model is asked for: Python, imports, looking at the input."""
    loading: float = 0.0
    """Loading the model."""
    rows: float = 0.0
    """Reading, predicting and encoding rows."""
    writing: float = 0.0
    """Joining the parts into files, and moving those into place."""

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def phases(started: float, begun: float, loading: float, writing: float) -> Seconds:
    """What the time went to since the command ``started`` and its run had ``begun``, on ``time.monotonic``'s clock.

    A model that loads while rows are read, or in several processes, counts within the run.
    """
    running = time.monotonic() - begun - writing
    loading = min(loading, running)
    return Seconds(begun - started, loading, running - loading, writing)


def loading_seconds(totals: Totals, workers: int | None) -> float:
    """How long models were loaded: the workers, None for as many as turned out, load theirs side by side."""
    return totals.load_seconds / max(1, min(totals.loads, workers or totals.loads))


def summary(report: Report, totals: Totals, seconds: Seconds, *, verbose: bool = False) -> list[Line]:
    """The lines of the summary; ``verbose``: with what those want to know who look into how fast a run is."""
    working = seconds.rows + seconds.writing
    rate = rate_text((report.rows - report.earlier) / working) if working else ""
    return [
        ("rows", f"{report.rows:,}"),
        *([("  done before", f"{report.earlier:,}")] if report.earlier else []),
        ("predictions", f"{report.predictions:,}"),
        *([("  by the fallback", f"{totals.from_fallback:,}")] if totals.from_fallback else []),
        (_FAILED, f"{report.failed:,}"),
        *([("skipped", f"{report.skipped:,}")] if report.skipped else []),
        *usage_lines(totals),
        ("seconds", f"{seconds.total:.2f}{f' ({rate} rows/s without start and loading)' if rate else ''}"),
        *(_details(report, totals, seconds) if verbose else ()),
    ]


def inputs_lines(inputs: Inputs | None, are: str = "predicted") -> list[Line]:
    """What becomes of inputs that have an output each."""
    if inputs is None:
        return []
    lines = [("inputs", f"{inputs.predicted:,} {are}, {inputs.unchanged:,} unchanged")]
    if inputs.others:
        some = ", ".join([*inputs.others[:_QUOTED], *(["..."] if inputs.others[_QUOTED:] else [])])
        lines.append(
            ("other outputs", f"{len(inputs.others):,} of inputs that are gone or not named, which stay: {some}")
        )
    return lines


def show_run(
    report: Report, totals: Totals, seconds: Seconds, files: Mapping[str, str | None], *, verbose: bool
) -> None:
    """Prints the summary of a run that got to its end, why rows failed, and the files, by their names there."""
    lines = inputs_lines(report.inputs) + summary(report, totals, seconds, verbose=verbose)
    lines += [(name, path) for name, path in files.items() if path]
    show(Console(), lines, list(_causes(report.messages, report.failed)))


def show(console: Console, lines: Sequence[Line], causes: Sequence[str] = ()) -> None:
    """Prints lines in two columns; the causes behind the number of dead letters."""
    width = 2 + max(len(name) for name, _ in lines)
    for name, value in lines:
        for text in (f"{name:<{width}}{value}".rstrip(), *(causes if name == _FAILED else ())):
            say(console, text)


def rate_text(rate: float) -> str:
    """So many a second, in two digits below 10; empty if there are next to none."""
    if rate >= 10:
        return f"{rate:,.0f}"
    return f"{rate:.2g}" if rate >= _LEAST_RATE else ""


def time_text(seconds: float) -> str:
    """A time in days, hours or minutes if there are two of them, else in seconds."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def tokens_used(totals: Totals) -> int:
    """Tokens of prompts and answers, of all models."""
    return sum(used.input_tokens + used.output_tokens for used in totals.usage.copy().values())


def cost_of(usage: Mapping[str, UsageReported]) -> float | None:
    """What all models cost together; None: nobody knows any price."""
    costs = [used.cost for used in usage.values() if used.cost is not None]
    return sum(costs) if costs else None


def usage_lines(totals: Totals) -> Iterator[Line]:
    """The lines of the summary about usage; none if there is none."""
    if totals.cached:
        yield "from the cache", f"{totals.cached:,}"
    if not totals.usage:
        return
    everything = functools.reduce(added, totals.usage.values())
    if _is_billed(everything):
        yield "billed requests", f"{everything.requests:,}"
    yield "tokens", _tokens(everything)
    if everything.cost is not None:
        yield "cost", f"{everything.cost:,.6g}"
    if len(totals.usage) > 1:
        for model, used in sorted(totals.usage.items())[:_MOST_MODELS]:
            requests = f"{used.requests:,} requests, " if _is_billed(used) else ""
            cost = "" if used.cost is None else f", cost {used.cost:,.6g}"
            yield f"  {model}", f"{requests}{_tokens(used)}{cost}"


def _causes(messages: Mapping[str, int], failed: int) -> Iterator[str]:
    quoted = list(messages.items())[:_QUOTED]
    for message, count in quoted:
        yield f"  {count:,} x {message}"
    more = failed - sum(count for _, count in quoted)
    if more > 0 and quoted:
        yield f"  and {more:,} more with other messages"


def _details(report: Report, totals: Totals, seconds: Seconds) -> Iterator[Line]:
    imports, loading, rows, writing = seconds
    yield (
        "  of these",
        f"{imports:.2f} start and imports, {loading:.2f} loading, {rows:.2f} rows, {writing:.2f} writing",
    )
    for (stage, error_type), count in sorted(report.dead_letters.items()):
        yield f"{stage} {error_type}", f"{count:,}"
    if totals.usage and rows:
        yield "tokens/s", rate_text(tokens_used(totals) / rows) or "0"
    yield "batches", f"{totals.batches:,}"
    yield "mean batch size", f"{totals.mean_batch_size:.1f}"
    yield "model load seconds", f"{totals.load_seconds:.2f}"
    if totals.model_bytes:
        yield "model bytes", f"{totals.model_bytes:,}"


def _tokens(used: UsageReported) -> str:
    return f"{used.input_tokens:,} in, {used.output_tokens:,} out"


def _is_billed(used: UsageReported) -> bool:
    """Whether the requests went to somebody who may bill them: not to an engine on this machine."""
    return used.seconds is None


STARTING = "starting, loading the model"

_WINDOW_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_EVERY_SECONDS = 30.0
_SURE_SECONDS = 2.0
"""How long rows must have come out before the time left is estimated."""

Share = Callable[[int], float | None]
"""Turns a count of finished rows into the finished share of the input, from 0 to 1; None if unknown."""


def wait(
    done: threading.Event, progress: JobProgress, console: Console, *, show: bool, every: float = _EVERY_SECONDS
) -> None:
    """Waits until the job is done, and shows how it gets on meanwhile."""
    if show and console.is_terminal:
        with Live(progress, console=console, refresh_per_second=8, transient=True):
            while not done.wait(_PAUSE_SECONDS):
                pass
        return
    due = progress.clock() + every
    while not done.wait(_PAUSE_SECONDS):
        if show and progress.clock() >= due:
            say(console, progress.text())
            due += every


def rows_done(totals: Totals) -> int:
    """Rows that the model or the cache has answered, or that failed or were skipped before it."""
    late = sum(count for (stage, _), count in totals.failures.copy().items() if stage == "postprocessing")
    return totals.predictions + totals.cached + totals.failed - late + totals.skipped_before_the_model


@dataclass
class JobProgress:
    """Rows, share of the input, rows a second over the last few seconds, time left, failures.

    Args:
        totals: what the job has counted.
        share: tells which share of the input is done.
        clock: seconds.
        started: when the command did, on that clock; None: now.
        at_first: what the job does while nothing is counted.
        shares: tells which share of the last seconds each phase took.
    """

    totals: Totals
    share: Share = lambda _: None
    clock: Callable[[], float] = time.monotonic
    started: float | None = None
    at_first: str = field(default=STARTING, kw_only=True)
    shares: Callable[[], Mapping[str, float]] = field(default=dict, kw_only=True)

    def __post_init__(self) -> None:
        now = self.clock()
        self._began = now if self.started is None else self.started
        self._rows, self._tokens = _Rate(now), _Rate(now)
        self._first: tuple[float, float] | None = None
        """When the first rows were done, and the share that they were."""
        self._spinner = Spinner("dots")

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """The bar as it is now, on one line however narrow the terminal is."""
        share = self.share(rows_done(self.totals))
        bar = [] if share is None else [ProgressBar(1.0, share, width=10)]
        grid = Table.grid(padding=(0, 1))
        grid.add_row(self._spinner, *bar, "  ".join(self.figures(share)))
        for column in grid.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        yield grid

    def text(self) -> str:
        """All figures, on one line."""
        return ", ".join(self.figures(self.share(rows_done(self.totals))))

    def figures(self, share: float | None) -> list[str]:
        """The figures as they are now, for a share of the input that is done; the most important ones first."""
        totals, now = self.totals, self.clock()
        elapsed = f"{time_text(now - self._began)} elapsed"
        rows = rows_done(totals)
        if not rows and not totals.loads and not totals.batches:
            return [self.at_first, elapsed]
        left, cost = self._left(now, share), cost_of(totals.usage.copy())
        rate, tokens_rate = rate_text(self._rows.at(now, rows)), self._tokens.at(now, tokens_used(totals))
        return [
            counted(rows, "row"),
            *([] if share is None else [f"{share:.0%} done"]),
            *([] if left is None else [f"{time_text(left)} left"]),
            f"{totals.failed:,} failed",
            *([f"{rate} rows/s"] if rate else []),
            *what_binds(self.shares()),
            *([] if cost is None else [f"cost {cost:,.2f}" if cost >= 1 else f"cost {cost:.2g}"]),
            elapsed,
            *([f"{totals.cached:,} from the cache"] if totals.cached else []),
            *([f"{tokens_rate:,.0f} tokens/s"] if totals.usage else []),
            *([f"{totals.mean_batch_size:.1f} rows a batch"] if totals.batches else []),
        ]

    def _left(self, now: float, share: float | None) -> float | None:
        """Seconds until the job is done if the rest takes as long as what is done; None: too early to say."""
        if not share:
            return None
        began, at_first = self._first = self._first or (now, share)
        if now - began < _SURE_SECONDS or share <= at_first:
            return None
        return (now - began) * (1 - share) / (share - at_first)


class _Rate:
    """How many more of something there are a second: over the last seconds, or between the last two times."""

    def __init__(self, now: float) -> None:
        self._seen: deque[tuple[float, int]] = deque([(now, 0)])

    def at(self, now: float, count: int) -> float:
        if count != self._seen[-1][1]:
            self._seen.append((now, count))
        while len(self._seen) > 2 and now - self._seen[1][0] > _WINDOW_SECONDS:
            self._seen.popleft()
        then, before = self._seen[0]
        return (count - before) / (now - then) if now > then else 0.0
