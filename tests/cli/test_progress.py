"""The progress line shows how far a job is."""

import io
import threading

import pytest
from rich.console import Console

from headrace.cli.progress import ProgressLine, rows_done, wait
from headrace.core.events import BatchCompleted, ElementFailed, ModelLoaded
from headrace.core.result import Stage
from headrace.metrics.totals import Totals


class Clock:
    seconds = 100.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def totals():
    return Totals()


def feed(totals, *events):
    for event in events:
        totals.on_event(event)


def test_rows_that_fail_after_the_model_count_once(totals):
    feed(
        totals,
        BatchCompleted("", 10, 0, 1.0),
        *[ElementFailed(stage, ValueError()) for stage in (*Stage, Stage.INFERENCE)],
    )
    assert rows_done(totals) == 13


def test_the_progress_line_shows_rows_and_rate(totals):
    clock = Clock()
    line = ProgressLine(totals, clock)
    clock.seconds += 3
    assert line.text() == "starting, loading the model   3 s"
    feed(totals, ModelLoaded("", 1.0, 0))
    clock.seconds += 1
    feed(totals, BatchCompleted("", 1500, 0, 1.0), BatchCompleted("", 501, 0, 1.0))
    feed(totals, ElementFailed(Stage.INFERENCE, ValueError()))
    assert line.text() == "2,002 rows   500 rows/s   batches of 1000.5   1 failed   4 s"


def test_the_rate_covers_the_last_seconds(totals):
    clock = Clock()
    line = ProgressLine(totals, clock)
    rates = []
    for rows in (1000, 1000, 10, 10, 10, 10, 10, 10, 10):
        clock.seconds += 1
        feed(totals, BatchCompleted("", rows, 0, 0.1))
        rates.append(line.text().split("   ")[1])
    assert rates[1] == "1,000 rows/s"
    assert rates[-1] == "10 rows/s"


@pytest.mark.parametrize(("terminal", "show"), [(True, False), (False, True)])
def test_the_line_is_not_drawn_without_a_terminal(totals, terminal, show):
    screen, done = io.StringIO(), threading.Event()
    done.set()
    wait(done, totals, Console(file=screen, force_terminal=terminal), show=show)
    assert screen.getvalue() == ""


def test_the_line_is_drawn_on_a_terminal(totals):
    screen, done = io.StringIO(), threading.Event()
    feed(totals, BatchCompleted("", 7, 0, 1.0))
    done.set()
    wait(done, totals, Console(file=screen, force_terminal=True, width=100), show=True)
    assert "7 rows" in screen.getvalue()
