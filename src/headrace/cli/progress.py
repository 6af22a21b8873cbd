"""The line that shows the progress of a job."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from headrace.metrics.totals import Totals

_WINDOW_SECONDS = 5.0
_PAUSE_SECONDS = 0.1


def wait(done: threading.Event, totals: Totals, console: Console, *, show: bool) -> None:
    """Waits until the job is done and shows its progress, if ``console`` is a terminal."""
    display = Live(ProgressLine(totals, time.monotonic), console=console, refresh_per_second=8, transient=True)
    with display if show and console.is_terminal else nullcontext():
        while not done.wait(_PAUSE_SECONDS):
            pass


def rows_done(totals: Totals) -> int:
    """Rows that the model has answered, or that failed before it."""
    late = sum(count for (stage, _), count in totals.failures.copy().items() if stage == "postprocessing")
    return totals.predictions + totals.failed - late


class ProgressLine:
    """Rows, rows a second over the last few seconds, mean batch size, failures."""

    def __init__(self, totals: Totals, clock: Callable[[], float]) -> None:
        self._totals = totals
        self._clock = clock
        self._started = clock()
        self._seen: deque[tuple[float, int]] = deque([(self._started, 0)])
        self._spinner = Spinner("dots")

    def __rich__(self) -> Any:
        """The line as it is now."""
        self._spinner.update(text=Text(self.text()))
        return self._spinner

    def text(self) -> str:
        """The line."""
        totals, now = self._totals, self._clock()
        elapsed = f"{now - self._started:.0f} s"
        if not totals.loads and not totals.batches:
            return f"starting, loading the model   {elapsed}"
        rows = rows_done(totals)
        return (
            f"{rows:,} rows   {self._rate(now, rows):,.0f} rows/s   batches of {totals.mean_batch_size:.1f}   "
            f"{totals.failed:,} failed   {elapsed}"
        )

    def _rate(self, now: float, rows: int) -> float:
        self._seen.append((now, rows))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_SECONDS:
            self._seen.popleft()
        before, rows_before = self._seen[0]
        return (rows - rows_before) / (now - before) if now > before else 0.0
