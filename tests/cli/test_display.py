"""What a run shows: a bar on a terminal, lines elsewhere, and its summary."""

import dataclasses
import io
import re
import threading

import pytest
from rich.console import Console

from headrace.cli.display import JobProgress, Seconds, loading_seconds, rows_done, summary, usage_lines, wait
from headrace.core.events import BatchCompleted, CacheUsed, ElementFailed, ElementsSkipped, ModelLoaded, UsageReported
from headrace.core.result import Stage
from headrace.jobs.job import Report
from headrace.metrics.totals import Totals


class Clock:
    seconds = 100.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def totals():
    return Totals()


@pytest.fixture
def clock():
    return Clock()


def feed(totals, *events):
    for event in events:
        totals.on_event(event)


def test_rows_that_fail_after_the_model_count_once(totals):
    feed(
        totals,
        BatchCompleted("", 10, 0, 1.0),
        *[ElementFailed(stage, ValueError()) for stage in (*Stage, Stage.INFERENCE)],
        *[ElementsSkipped("", stage, 2) for stage in Stage],
    )
    assert rows_done(totals) == 15


def test_progress_shows_rows_and_rate(totals, clock):
    progress = JobProgress(totals, clock=clock, started=98.0)
    clock.seconds += 3
    assert progress.text() == "starting, loading the model, 5.0 s elapsed"
    clock.seconds += 1
    feed(totals, ModelLoaded("", 1.0, 0), BatchCompleted("", 1500, 0, 1.0), BatchCompleted("", 501, 0, 1.0))
    feed(totals, ElementFailed(Stage.INFERENCE, ValueError()))
    assert progress.text() == "2,002 rows, 1 failed, 500 rows/s, 6.0 s elapsed, 1000.5 rows a batch"
    feed(totals, CacheUsed("", 98, 10), UsageReported("m", 5000, 1000, cost=0.25))
    assert progress.text() == (
        "2,100 rows, 1 failed, 525 rows/s, cost 0.25, 6.0 s elapsed, 98 from the cache, 1,500 tokens/s, "
        "1000.5 rows a batch"
    )


def test_progress_shows_share_and_time_left(totals, clock):
    progress = JobProgress(totals, lambda rows: rows / 100_000, clock)
    texts = []
    for seconds in (1, 1, 2, 200):
        clock.seconds += seconds
        feed(totals, BatchCompleted("", 100 * seconds, 0, 0.1))
        texts.append(progress.text())
    assert texts[1].startswith("200 rows, 0% done, 0 failed, 100 rows/s, 2.0 s elapsed")  # too early to say
    assert texts[2].startswith("400 rows, 0% done, 16.6 min left, 0 failed, ")
    assert texts[3].startswith("20,400 rows, 20% done, 13.3 min left, 0 failed, 100 rows/s, 3.4 min elapsed")


def test_progress_says_what_holds_the_job_back(totals, clock):
    shares = {"model": 0.712, "reading": 0.2}
    progress = JobProgress(totals, clock=clock, shares=lambda: shares)
    feed(totals, BatchCompleted("", 10, 0, 1.0))
    assert ", model-bound 71%," in progress.text()
    shares["model"] = 0.4
    assert "bound" not in progress.text()


@pytest.mark.parametrize("width", [60, 160])
def test_the_bar_is_one_line(totals, clock, width):
    progress = JobProgress(totals, lambda done: done / 2e9, clock)
    feed(totals, BatchCompleted("", 123_456, 0, 1.0), UsageReported("m", 10, 10, cost=1e4))
    screen = io.StringIO()
    Console(file=screen, force_terminal=True, color_system=None, width=width).print(progress)
    (line,) = screen.getvalue().splitlines()
    assert "123,456 rows  0% done" in line
    assert ("123456.0 rows a batch" in line) is (width == 160)


def test_a_line_is_printed_every_half_minute(totals, clock):
    progress = JobProgress(totals, clock=clock)
    feed(totals, ModelLoaded("", 1.0, 0))

    class Working(threading.Event):
        def wait(self, timeout=None):
            clock.seconds += 10
            feed(totals, BatchCompleted("", 10, 0, 0.1))
            return clock.seconds > 165

    screen = io.StringIO()
    wait(Working(), progress, Console(file=screen), show=True)
    assert [line.split(",")[0] for line in screen.getvalue().splitlines()] == ["30 rows", "60 rows"]


def test_time_left_counts_from_the_first_rows_on(totals, clock):
    """A run that goes on finds half of its input done, and that took no time."""
    progress = JobProgress(totals, lambda rows: 0.5 + rows / 2000, clock)
    feed(totals, BatchCompleted("", 1, 0, 0.1))
    assert "left" not in progress.text()
    clock.seconds += 100
    feed(totals, BatchCompleted("", 499, 0, 0.1))
    assert ", 100.2 s left, " in progress.text()
    clock.seconds += 36_000
    feed(totals, BatchCompleted("", 100, 0, 0.1))
    assert ", 6.7 h left, 0 failed, 10.0 h elapsed" in re.sub(" [^,]* rows/s,", "", progress.text())


def test_the_rate_covers_the_last_seconds(totals, clock):
    progress = JobProgress(totals, clock=clock)
    rates = []
    for rows in (1000, 1000, 10, 10, 10, 10, 10, 10, 10):
        clock.seconds += 1
        feed(totals, BatchCompleted("", rows, 0, 0.1))
        rates.append(progress.text().split(", ")[2])
    assert rates[1] == "1,000 rows/s"
    assert rates[-1] == "10 rows/s"


class Finishing(threading.Event):
    """Over when it was asked often enough."""

    asked = 0

    def wait(self, timeout=None):
        self.asked += 1
        return self.asked > 3


@pytest.mark.parametrize(("show", "count"), [(True, 3), (False, 0)])
def test_lines_are_printed_without_a_terminal_if_wanted(totals, show, count):
    screen = io.StringIO()
    wait(Finishing(), JobProgress(totals, clock=lambda: 7.0), Console(file=screen, width=20), show=show, every=0.0)
    assert screen.getvalue() == "starting, loading the model, 0.0 s elapsed\n" * count


REPORT = Report(1998, {("reading", "ValueError"): 1, ("inference", "KeyError"): 1}, Totals())
TOTALS = Totals(predictions=1999, batches=4, load_seconds=0.5, model_bytes=12_345_678)
SECONDS = Seconds(2.0, 1.0, 3.5, 0.5)
LINES = [
    ("rows", "2,000"),
    ("predictions", "1,998"),
    ("dead letters", "2"),
    ("seconds", "7.00 (500 rows/s without start and loading)"),
]
DETAILS = [
    ("  of these", "2.00 start and imports, 1.00 loading, 3.50 rows, 0.50 writing"),
    ("inference KeyError", "1"),
    ("reading ValueError", "1"),
    ("batches", "4"),
    ("mean batch size", "499.8"),
    ("model load seconds", "0.50"),
    ("model bytes", "12,345,678"),
]


def test_the_summary_has_a_line_for_each_count_and_figures_of_the_engine_for_those_who_ask():
    assert summary(REPORT, TOTALS, SECONDS) == LINES
    assert summary(REPORT, TOTALS, SECONDS, verbose=True) == LINES + DETAILS
    of_endpoint = dataclasses.replace(TOTALS, model_bytes=0)
    assert "model bytes" not in dict(summary(REPORT, of_endpoint, SECONDS, verbose=True))


@pytest.mark.parametrize(
    ("earlier", "seconds", "said"),
    [
        (1200, SECONDS, "7.00 (200 rows/s without start and loading)"),
        (1999, SECONDS, "7.00 (0.25 rows/s without start and loading)"),
        (2000, SECONDS, "7.00"),
        (0, Seconds(1.0, 0.0, 0.0, 0.0), "1.00"),
    ],
)
def test_the_rate_is_that_of_this_runs_rows_and_never_zero(earlier, seconds, said):
    lines = dict(summary(REPORT._replace(earlier=earlier), TOTALS, seconds))
    assert lines["seconds"] == said
    assert lines.get("  done before", "0") == f"{earlier:,}"


def test_summary_of_several_models_has_lines_for_each():
    totals = Totals(usage={"b": UsageReported("b", 10, 5, 2, 1.25), "a": UsageReported("a", 1000, 1)})
    assert list(usage_lines(totals)) == [
        ("billed requests", "3"),
        ("tokens", "1,010 in, 6 out"),
        ("cost", "1.25"),
        ("  a", "1 requests, 1,000 in, 1 out"),
        ("  b", "2 requests, 10 in, 5 out, cost 1.25"),
    ]


@pytest.mark.parametrize(
    ("loads", "workers", "seconds"), [(0, 2, 0.0), (1, 1, 6.0), (3, 1, 6.0), (2, 2, 3.0), (4, 2, 3.0), (3, None, 2.0)]
)
def test_workers_load_side_by_side(loads: int, workers: int | None, seconds: float) -> None:
    totals = Totals(loads=loads, load_seconds=6.0 if loads else 0.0)
    assert loading_seconds(totals, workers) == seconds
