"""The summary reports the outcome of a run."""

import dataclasses
import io
from types import SimpleNamespace

from rich.console import Console

from headrace.cli.stopwatch import Seconds
from headrace.cli.summary import show, summary
from headrace.metrics.totals import Totals

COUNTED = SimpleNamespace(
    rows=2000,
    predictions=1998,
    dead_letters={("reading", "ValueError"): 1, ("inference", "KeyError"): 1},
    earlier=0,
    skipped=0,
)
TOTALS = Totals(predictions=1999, batches=4, load_seconds=0.5, model_bytes=12_345_678)
SECONDS = Seconds(2.0, 1.0, 3.5, 0.5)
LINES = [
    ("rows", "2,000"),
    ("predictions", "1,998"),
    ("dead letters", "2"),
    ("  inference KeyError", "1"),
    ("  reading ValueError", "1"),
    ("seconds", "7.00"),
    ("  of these", "2.00 start and imports, 1.00 loading, 3.50 rows, 0.50 writing"),
    ("rows/s", "500"),
    ("batches", "4"),
    ("mean batch size", "499.8"),
    ("model load seconds", "0.50"),
    ("model bytes", "12,345,678"),
]


def shown(**options):
    screen = io.StringIO()
    show(Console(file=screen, width=60, **options), LINES, {"written": "/a/[bold]" + "long" * 30 + ".jsonl"})
    return screen.getvalue()


def test_the_summary_has_a_line_for_each_count():
    assert summary(COUNTED, TOTALS, SECONDS) == LINES
    assert ("rows/s", "0") in summary(COUNTED, TOTALS, Seconds(1.0, 0.0, 0.0, 0.0))


def test_the_summary_says_how_many_rows_the_fallback_answered():
    lines = summary(COUNTED, dataclasses.replace(TOTALS, from_fallback=3), SECONDS)
    assert lines[1:3] == [("predictions", "1,998"), ("  by the fallback", "3")]


def test_rows_of_earlier_runs_do_not_count_in_the_rate():
    lines = summary(SimpleNamespace(**{**vars(COUNTED), "earlier": 1200}), TOTALS, SECONDS)
    assert lines[1] == ("  done before", "1,200")
    assert ("rows/s", "200") in lines


def test_skipped_rows_are_shown_if_any():
    lines = summary(SimpleNamespace(**{**vars(COUNTED), "skipped": 1200}), TOTALS, SECONDS)
    assert lines[5] == ("skipped", "1,200")


def test_the_summary_is_plain_without_a_terminal():
    text = shown()
    assert text.isascii()
    assert set(text) - set(map(chr, range(32, 127))) == {"\n"}
    assert "dead letters          2\n  inference KeyError  1\n" in text
    assert text.endswith("written               /a/[bold]" + "long" * 30 + ".jsonl\n")


def test_the_summary_is_a_table_on_a_terminal():
    text = shown(force_terminal=True)
    assert "│ mean batch size" in text
    assert text.endswith("/a/[bold]" + "long" * 30 + ".jsonl\n")


def test_the_most_frequent_messages_are_quoted():
    screen = io.StringIO()
    messages = {"inference ValueError: [red]": 1200, "b: y": 3, "c: z": 2, "d: w": 1}
    show(Console(file=screen, width=60), LINES, {"written": "p.jsonl"}, messages)
    assert screen.getvalue().endswith("p.jsonl\n  1,200 x inference ValueError: [red]\n  3 x b: y\n  2 x c: z\n")
