"""What results show in a notebook: texts, whatever they hold, and no more than fits."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from headrace import PredictionResult, predict
from headrace.core.transferable import html_table
from headrace.jobs.quote import Quote
from headrace.metrics.report import ReportPage
from headrace.testing import simulate
from toys import Acting, each

HOSTILE = "</pre></td></table><script>alert(\"1\")</script><img src=x onerror='alert(2)'>&amp;"
OURS = {"table", "caption", "tr", "th", "td", "details", "summary", "pre"}


class Shown(HTMLParser):
    """The elements of a text of HTML, and what a reader sees."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attrs = attrs

    def handle_data(self, data):
        self.text += data


def raising(example):
    raise ValueError(example)


def failure_of(example):
    (failure,) = predict(Acting(each(raising)), [example], on_failure="yield")
    return failure


QUOTE = {"rows": 10, "seconds": 2.5, "seconds_low": 2.0, "seconds_high": 3.0, "options": {"x": 1}}
QUOTE |= {"money": None, "money_high": 1.0, "money_low": 0.0}
QUOTE |= {"recommended": HOSTILE, "alternatives": [{"alternative": HOSTILE, "error": HOSTILE}]}
MODEL = {"load_seconds": 1, "memory_gb": 1, "batch_seconds": {"fixed": 1, "per_row": 1}}


@pytest.mark.parametrize(
    "shown",
    [
        PredictionResult(HOSTILE, {HOSTILE: HOSTILE}, HOSTILE),
        failure_of(HOSTILE),
        Quote(QUOTE),
        simulate({"rows": 10, "models": {HOSTILE: MODEL}}),
    ],
)
def test_hostile_texts_are_texts(shown):
    html = shown._repr_html_()
    found = Shown(html)
    assert set(found.tags) <= OURS
    assert "<script" not in html
    assert "<script>alert(" in found.text


def test_texts_that_utf_8_cannot_encode_are_shown():
    failure = failure_of("a\ud800b")
    for shown in (f"{failure}", failure._repr_html_()):
        assert b"a\\ud800b" in shown.encode()


def test_big_things_are_cut():
    size = 10**5
    failure = failure_of("x" * size)
    quote = Quote(dict.fromkeys(map(str, range(size)), "x" * 100))
    for shown in (PredictionResult("x" * size, ["x"] * size, "m"), failure, quote):
        assert len(shown._repr_html_()) < 20_000


def test_rows_that_are_left_out_are_named():
    assert "only the first 50 rows are shown" in html_table("t", ((str(n), "") for n in range(51)))
    assert "only" not in html_table("t", ((str(n), "") for n in range(50)))


def test_a_failure_shows_where_it_was_raised_and_a_quote_its_intervals():
    for shown, texts in (
        (failure_of("bad"), ("inference failed", "in raising")),
        (Quote(QUOTE), ("2.5 (2 to 3)", "not known (0 to 1)")),
    ):
        assert all(text in Shown(shown._repr_html_()).text for text in texts)


def test_a_report_shows_its_page_without_scripts(tmp_path):
    path = tmp_path / "run.html"
    path.write_text(f'<p title="{HOSTILE}">{HOSTILE}')
    shown = Shown(ReportPage(str(path))._repr_html_())
    assert shown.tags == ["iframe"]
    assert ("sandbox", None) in shown.attrs
    assert dict(shown.attrs)["srcdoc"] == path.read_text()
    path.write_text("x" * 2_000_001)
    assert ReportPage(str(path))._repr_html_() is None
    path.unlink()
    assert ReportPage(str(path))._repr_html_() is None
