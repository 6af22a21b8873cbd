"""The page of a report: it is whole, balanced and readable, and tells no row's text."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ConfigurationError
from headrace.core.events import BatchCompleted, ElementFailed, UsageReported, WorkSampled
from headrace.core.phases import Phase
from headrace.core.result import Stage
from headrace.metrics.report import read_figures, refuse_unwritable, render, report_figures, write_report
from headrace.metrics.report_parts import tables
from headrace.metrics.timeline import Timeline

pytest.importorskip("matplotlib")

FACTS = {
    "exit_code": 0,
    "exit_reason": "done",
    "error": None,
    "rows": 1000,
    "done_before": 0,
    "predictions": 990,
    "failures": 8,
    "skipped": 2,
    "unread": 0,
    "causes": [{"stage": "inference", "error_type": "ValueError", "message": "<b>'smudge'</b>", "count": 8}],
    "from_cache": 5,
    "files": {"predictions": "/data/out.jsonl", "dead_letters": "/data/out.dead-letters.jsonl"},
    "seconds": 12.5,
    "phases": {"imports": 1.0, "loading": 1.5, "rows": 9.0, "writing": 1.0},
    "usage": {"gpt": {"requests": 10, "input_tokens": 1000, "output_tokens": 50, "cost": 0.25}},
    "cost": 0.25,
    "command": "run",
    "handler": "sklearn-numpy",
    "workers": 1,
    "formats": ["csv"],
    "columnar": False,
    "cores": 2,
}
_VOID = {"meta", "br", "hr", "img", "link", "input"}


class Elements(HTMLParser):
    """The elements of a page, each of which must end where it has to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def timeline() -> Timeline:
    now = [0.0]
    timeline = Timeline(lambda: now[0])
    for second in range(20):
        now[0] = second / 2
        for size in (8, 64):
            timeline.on_event(BatchCompleted("", size, 0, size / 1000 + 0.01, useful=6, padded=8))
        timeline.on_event(WorkSampled(1, 0.5, {"model": 0.4, "reading": 0.3}, 0.6, {"memory": 1 << 28}))
    timeline.on_event(UsageReported("gpt", 1000, 50, 10, 0.25))
    timeline.on_event(ElementFailed(Stage.INFERENCE, ValueError()))
    return timeline


@pytest.fixture
def figures(timeline: Timeline) -> dict[str, Any]:
    return report_figures(FACTS, timeline)


def test_page_holds_together(figures: dict[str, Any]) -> None:
    page = render(figures, figures)
    elements = Elements(page)
    text = " ".join("".join(elements.texts).split())
    assert "1,000 rows in = 1,000 predictions, dead letters and skipped rows." in text
    assert "headrace retry /data/out.dead-letters.jsonl --into /data/out.jsonl" in text
    for heading in ("Rows", "Dead letters", "Time", "Over time", "Batch sizes", "Latency", "Padding", "Compared"):
        assert heading in text
    assert "<b>'smudge'" not in page.replace("\\u003c", "")
    assert len(page) < 300_000
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page), "asks for the network"
    data = next(one for one in elements.texts if one.startswith('{"report"'))
    assert json.loads(data) == figures


def test_page_is_for_those_who_listen_too(figures: dict[str, Any]) -> None:
    seen = Elements(render(figures)).seen
    assert ("html", {"lang": "en"}) in seen
    assert [tag for tag, _ in seen].count("h1") == 1
    pictures = [attributes for tag, attributes in seen if tag == "svg"]
    assert [(one["role"], bool(one["aria-label"])) for one in pictures] == [("img", True)] * 2
    assert {attributes["scope"] for tag, attributes in seen if tag == "th"} == {"row", "col"}


def test_a_page_of_all_that_may_be_there_is_small() -> None:
    now = [0.0]
    timeline = Timeline(lambda: now[0])
    gauges = {"memory": 1 << 30, "in_flight": 9, "quota": 40.5, "gpu_busy": 0.7, "gpu_memory": 1 << 34}
    for place in range(2000):
        now[0] = place / 3.0
        varied = {name: value * (1 + place % 17 / 10) for name, value in gauges.items()}
        timeline.on_event(WorkSampled(1, 0.5, {phase.value: 0.3 for phase in Phase}, place % 5, varied))
        timeline.on_event(BatchCompleted("", 1 + place % 300, 0, 0.1 + place % 7, where=(f"/data/{place}.csv", place)))
        timeline.on_event(UsageReported("gpt", place, 5, cost=place / 7, where=("/data/in.csv", place)))
        timeline.on_event(ElementFailed(Stage.INFERENCE, ValueError()))
    page = render(report_figures(FACTS, timeline))
    assert len(page) < 300_000
    text = "".join(Elements(page).texts)
    for name in ("requests in flight", "quota found", "GPUs busy", "memory of GPUs", "Slowest rows", "Dearest rows"):
        assert name in text
    for phase in Phase:
        assert phase is Phase.LOADING or phase.value in text


def test_the_time_of_several_processes_is_their_mean() -> None:
    now = [12.0]
    timeline = Timeline(lambda: now[0], 0.0)
    for process in (1, 2):
        timeline.on_event(WorkSampled(process, 11.0, {"model": 8.0}, 0.6, {"memory": 1 << 28}))
    page = " ".join(Elements(render(report_figures(FACTS, timeline))).texts)
    assert re.search(r"model\s+8.00\s+64%", page)
    assert "mean of 2 processes" in page


def test_a_forecast_stands_beside_what_came() -> None:
    quote = {"seconds": 10.0, "seconds_low": 9.0, "seconds_high": 12.0, "money": 0.2, "money_low": 0.1, "tokens_in": 9}
    text = " ".join(Elements(render(report_figures({**FACTS, "quote": quote}, Timeline()))).texts)
    found = text[text.index("What headrace quote said") :]
    assert re.search(r"seconds\s+10\s+9 to 12\s+12.5\s+no\s", found)
    assert re.search(r"tokens in\s+9\s+1,000\s", found)
    assert re.search(r"money\s+0.2\s+0.25\s", found), "half an interval is none"


def test_what_the_cache_gave_is_worth_what_the_others_cost(figures: dict[str, Any]) -> None:
    assert "about 0.001269 saved" in render(figures)
    (table,) = [one for one in tables({**figures, "usage": {}}, None) if "ache" in str(one)]
    assert table["rows"] == [["from the cache", "5"]]


def test_differences_of_runs_have_intervals(figures: dict[str, Any], timeline: Timeline) -> None:
    timeline.on_event(UsageReported("gpt", 1000, 50, 10, 0.5))
    timeline.on_event(BatchCompleted("", 100, 0, 0.1))
    compared, *_ = tables(report_figures(FACTS, timeline), figures)
    differences = {name: difference for name, *_, difference in compared["rows"]}
    assert "±" not in differences["rows"]
    assert all("±" in differences[name] for name in ("seconds", "failures", "cost", "rows/s"))
    compared, *_ = tables(figures, report_figures(FACTS, Timeline()))
    assert [name for name, *_ in compared["rows"]] == ["seconds", "rows", "failures", "cost"], "what is known"


def test_a_run_that_failed_at_once_has_a_page(timeline: Timeline) -> None:
    nothing = dict.fromkeys(("rows", "done_before", "predictions", "failures", "skipped", "unread", "phases"))
    facts = {**FACTS, **nothing, "exit_code": 1, "seconds": None, "error": "It broke."}
    facts |= {"causes": [], "files": {}, "usage": {}}
    for line in (Timeline(lambda: 0.0), timeline):
        text = "".join(Elements(render(report_figures(facts, line))).texts)
        assert "The run did not get to its end: no row is out." in text
        assert "It broke." in text


@pytest.mark.parametrize("output", [None, "standard output", "/data/out/"])
def test_dead_letters_that_cannot_be_put_back_have_no_command(output: str | None) -> None:
    facts = {**FACTS, "files": {"predictions": output, "dead_letters": "/data/letters.jsonl"}}
    assert "headrace retry" not in render(report_figures(facts, Timeline()))


def test_figures_come_back_from_their_file(tmp_path: Path) -> None:
    figures = report_figures(FACTS, Timeline())
    write_report(figures, str(tmp_path / "run.html"))
    assert read_figures(str(tmp_path / "run.json")) == figures
    assert {path.name for path in tmp_path.iterdir()} == {"run.html", "run.json"}
    (tmp_path / "other.json").write_text('{"rows": 1}')
    for name in ("other.json", "none.json", "run.html"):
        with pytest.raises(ConfigurationError, match="no report"):
            read_figures(str(tmp_path / name))


def test_a_report_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    """Figures replace only those of another report: the model of ``--model run.json`` is not to be lost."""
    path = str(tmp_path / "run.html")
    write_report(report_figures(FACTS, Timeline()), path)
    refuse_unwritable(path)
    (tmp_path / "run.json").write_text('{"learner": {}}')
    wrong = {"run.pdf": "ends in", "no-such/run.html": "no folder 'no-such'", path: r"run\.json, which is no report"}
    for name, message in wrong.items():
        with pytest.raises(ConfigurationError, match=message):
            refuse_unwritable(name)


@pytest.mark.large
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_it_whole(figures: dict[str, Any], tmp_path: Path, width: int) -> None:
    """Nothing is wider than the window, and no picture is empty."""
    probe = (
        "<script>document.title = JSON.stringify([document.documentElement.scrollWidth, innerWidth, "
        "...[...document.querySelectorAll('svg, td.bar div')].map(one => one.getBoundingClientRect().height)])</script>"
    )
    page = tmp_path / "page.html"
    page.write_text(render(figures, figures).replace("</body>", f"{probe}</body>"))
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command = [*browser, f"--window-size={width},900", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    found = re.search(r"<title>(\[.*?\])</title>", done.stdout)
    assert found, done.stderr
    content, window, *heights = json.loads(found.group(1))
    assert content <= window
    assert len(heights) > 5
    assert min(heights) > 5
