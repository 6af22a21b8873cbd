"""The summary reports the outcome of a run."""

import dataclasses

import pytest

from headrace.cli.summary import Seconds, loading_seconds, summary, usage_lines
from headrace.core.events import UsageReported
from headrace.jobs.job import Report
from headrace.metrics.totals import Totals

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


def test_the_summary_has_a_line_for_each_count():
    assert summary(REPORT, TOTALS, SECONDS) == LINES


def test_figures_of_the_engine_are_for_those_who_ask():
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
