"""The summary reports the outcome of a run."""

import dataclasses
import io
from types import SimpleNamespace

import pytest
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
    unread=0,
)
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
PATH = "/a/[bold]" + "long" * 30 + ".jsonl"


def shown(messages=None, failed=0, **options):
    screen = io.StringIO()
    show(Console(file=screen, width=60, **options), LINES, {"written": PATH}, messages, failed)
    return screen.getvalue()


def test_the_summary_has_a_line_for_each_count():
    assert summary(COUNTED, TOTALS, SECONDS) == LINES


def test_figures_of_the_engine_are_for_those_who_ask():
    assert summary(COUNTED, TOTALS, SECONDS, verbose=True) == LINES + DETAILS
    of_endpoint = dataclasses.replace(TOTALS, model_bytes=0)
    assert "model bytes" not in dict(summary(COUNTED, of_endpoint, SECONDS, verbose=True))


def test_the_summary_says_how_many_rows_the_fallback_answered():
    lines = summary(COUNTED, dataclasses.replace(TOTALS, from_fallback=3), SECONDS)
    assert lines[1:3] == [("predictions", "1,998"), ("  by the fallback", "3")]


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
    lines = dict(summary(SimpleNamespace(**{**vars(COUNTED), "earlier": earlier}), TOTALS, seconds))
    assert lines["seconds"] == said
    assert lines.get("  done before", "0") == f"{earlier:,}"


def test_skipped_rows_are_shown_if_any():
    lines = summary(SimpleNamespace(**{**vars(COUNTED), "skipped": 1200}), TOTALS, SECONDS)
    assert lines[3] == ("skipped", "1,200")


@pytest.mark.parametrize("terminal", [False, True])
def test_figures_and_files_stand_in_plain_lines(terminal):
    text = shown(force_terminal=terminal)
    assert set(text) - set(map(chr, range(32, 127))) == {"\n"}
    assert "dead letters  2\nseconds       7.00 (500 " in text
    assert text.endswith(f"written       {PATH}\n")


def test_the_most_frequent_causes_follow_the_count():
    messages = {"inference ValueError: [red]": 1200, "b: y": 3, "c: z": 2, "d: w": 1}
    begin = "dead letters  2\n  1,200 x inference ValueError: [red]\n  3 x b: y\n  2 x c: z\n"
    assert f"{begin}  and 1,001 more with other messages\nseconds" in shown(messages, 2206)
    assert f"{begin}seconds" in shown(messages, 1205)


def test_a_terminal_shows_two_lines_of_a_cause():
    text = shown({"inference ValueError: " + "many words " * 30: 1}, 1, force_terminal=True)
    _, _, _, first, second, last, *_ = text.splitlines()
    assert first.startswith("  1 x inference ValueError: many words")
    assert second.startswith("    ")
    assert second.endswith(" ...")
    assert max(len(first), len(second)) <= 60
    assert last.startswith("seconds")
