"""How a job gets on: a bar on a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from headrace.cli.console import say
from headrace.cli.summary import cost_of, rate_text, tokens_used
from headrace.metrics.totals import Totals
from headrace.metrics.verdict import what_binds

STARTING = "starting, loading the model"

_WINDOW_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_EVERY_SECONDS = 30.0
_SURE_SECONDS = 2.0
"""How long rows must have come out before the time left is estimated."""

Share = Callable[[int], float | None]
"""From the number of rows that are done to the share of the input that they are, from 0 to 1; None: nobody knows."""


def wait(done: threading.Event, progress: JobProgress, console: Console, *, show: bool) -> None:
    """Waits until the job is done, and shows how it gets on meanwhile."""
    if show and console.is_terminal:
        with Live(progress, console=console, refresh_per_second=8, transient=True):
            while not done.wait(_PAUSE_SECONDS):
                pass
        return
    for line in progress.lines(lambda: done.wait(_PAUSE_SECONDS)):
        if show:
            say(console, line)


def rows_done(totals: Totals) -> int:
    """Rows that the model or the cache has answered, or that failed or were skipped before it."""
    late = sum(count for (stage, _), count in totals.failures.copy().items() if stage == "postprocessing")
    return totals.predictions + totals.cached + totals.failed - late + totals.skipped_before_the_model


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

    def __init__(
        self,
        totals: Totals,
        share: Share = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        started: float | None = None,
        *,
        at_first: str = STARTING,
        shares: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._totals = totals
        self._share = share
        self._clock = clock
        self._started = clock() if started is None else started
        self._at_first = at_first
        self._shares = shares
        self._rows, self._tokens = _Rate(clock()), _Rate(clock())
        self._first: tuple[float, float] | None = None
        """When the first rows were done, and the share that they were."""
        self._spinner = Spinner("dots")

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """The bar as it is now, on one line however narrow the terminal is."""
        share = self._share(rows_done(self._totals))
        bar = [] if share is None else [ProgressBar(1.0, share, width=10)]
        grid = Table.grid(padding=(0, 1))
        grid.add_row(self._spinner, *bar, "  ".join(self.figures(share)))
        for column in grid.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        yield grid

    def lines(self, wait: Callable[[], bool], every: float = _EVERY_SECONDS) -> Iterator[str]:
        """A line for each ``every`` seconds, until ``wait``, which takes a moment, says that the job is done."""
        due = self._clock() + every
        while not wait():
            if self._clock() >= due:
                yield self.text()
                due += every

    def text(self) -> str:
        """All figures, on one line."""
        return ", ".join(self.figures(self._share(rows_done(self._totals))))

    def figures(self, share: float | None) -> list[str]:
        """The figures as they are now, for a share of the input that is done; the most important ones first."""
        totals, now = self._totals, self._clock()
        elapsed = f"{_duration(now - self._started)} elapsed"
        rows = rows_done(totals)
        if not rows and not totals.loads and not totals.batches:
            return [self._at_first, elapsed]
        left, cost = self._left(now, share), cost_of(totals.usage.copy())
        rate, tokens_rate = rate_text(self._rows.at(now, rows)), self._tokens.at(now, tokens_used(totals))
        return [
            f"{rows:,} row{'s'[: rows != 1]}",
            *([] if share is None else [f"{share:.0%} done"]),
            *([] if left is None else [f"{_duration(left)} left"]),
            f"{totals.failed:,} failed",
            *([f"{rate} rows/s"] if rate else []),
            *what_binds(self._shares()),
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


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, of_hour = divmod(minutes, 60)
    if hours:
        return f"{hours} h {of_hour} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
