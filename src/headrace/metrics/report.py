"""The report of a run: its figures as JSON, and one page of HTML that needs no network and no JavaScript."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from headrace.core.errors import ConfigurationError, extra_required
from headrace.core.files import replacing
from headrace.metrics.report_parts import batch_curve, over_time, seconds_text, tables
from headrace.metrics.timeline import Timeline
from headrace.metrics.verdict import advice, verdict

VERSION = 1
_MOST_SHOWN = 2_000_000
"""Bytes."""
_BEGIN = b'{"report": '
RUNNING = "running"
"""The ``exit_reason`` of a run that goes on."""
_PHASES = {
    "imports": "start and imports",
    "loading": "loading the model",
    "rows": "rows",
    "writing": "joining and moving files",
}

Figures = Mapping[str, Any]

_UNKNOWN: Figures = {
    "notes": [],
    "figures": {},
    "error": None,
    "handler": None,
    "causes": [],
    "files": {},
    "workers": 1,
    "keeps_one_worker": False,
    "sorted_rows": 0,
    "formats": [],
    "cores": 1,
    "from_cache": 0,
    "usage": {},
    "retry_options": "",
    "identity": None,
    "quote": None,
    **dict.fromkeys(
        ("rows", "done_before", "predictions", "failures", "skipped", "unread", "seconds", "phases", "cost")
    ),
}
"""What a report shows, where nobody says."""


def refuse_unwritable(path: str) -> None:
    """Raises ConfigurationError if a report cannot be made, before anything runs."""
    if os.path.splitext(path)[1] not in (".html", ".json"):
        raise ConfigurationError(f"--report is a file that ends in .html or .json, not {path}.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise ConfigurationError(f"--report: there is no folder {os.path.dirname(path)!r}.")
    data = os.path.splitext(path)[0] + ".json"
    if os.path.exists(data) and not _begins_as_report(data):
        raise ConfigurationError(
            f"--report writes its figures into {data}, which is no report and would be lost; choose another name."
        )
    if path.endswith(".html"):
        _require_extra()


def _begins_as_report(path: str) -> bool:
    with suppress(OSError), open(path, "rb") as file:
        return file.read(len(_BEGIN)) in (_BEGIN, b"")
    return False


def report_figures(facts: Figures, timeline: Timeline) -> dict[str, Any]:
    """All that a report shows, as plain values: the facts of ``--json``, and how the run went over time."""
    written = datetime.now(timezone.utc).isoformat(" ", "seconds")
    about = {"report": VERSION, "headrace": version("headrace"), "written": written}
    return {**about, **_UNKNOWN, **facts, **timeline.figures()}


def write_report(figures: Figures, path: str) -> ReportPage:
    """Writes the figures beside the page, as ``.json``; only them if the path has that ending.

    Raises:
        OSError: a file cannot be written.
    """
    data, page = (os.path.splitext(path)[0] + ending for ending in (".json", ".html"))
    write_text(data, json.dumps(figures))
    if path.endswith(".html"):
        write_text(page, render(figures))
    return ReportPage(path)


class ReportPage(NamedTuple):
    """A report that is written; a notebook shows its page, if that has at most 2 MB."""

    path: str

    def _repr_html_(self) -> str | None:
        with suppress(OSError):  # it may be gone
            if self.path.endswith(".html") and os.path.getsize(self.path) <= _MOST_SHOWN:
                page = escape(Path(self.path).read_text(encoding="utf-8"))
                return f'<iframe sandbox style="width: 100%; height: 40em; border: 0" srcdoc="{page}"></iframe>'
        return None


def read_figures(path: str) -> dict[str, Any]:
    """The figures of a report, from its ``.json``.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        figures = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} is no report of headrace run: {error}") from error
    if not isinstance(figures, dict) or figures.get("report") != VERSION:
        raise ConfigurationError(f"{path} is no report of this version of headrace run --report.")
    return {**_UNKNOWN, **Timeline(lambda: 0.0).figures(), **figures}


def report_of(output: str) -> Figures | None:
    """The figures of the run that has written a local output, from the newest report beside it; None: there is none.

    A report that is older than the output is of an earlier run; that of a retry says nothing of most rows.
    """
    with suppress(OSError):
        written = os.path.getmtime(output)
        folder = os.path.dirname(os.path.abspath(output))
        found = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json")]
        newer = [(when, path) for path in found if (when := os.path.getmtime(path)) >= written]
        for _, path in sorted(newer, reverse=True):
            with suppress(ConfigurationError):
                figures = read_figures(path) if _begins_as_report(path) else {"files": {}}
                wrote = figures["files"].get("predictions")
                is_it = wrote and os.path.realpath(wrote) == os.path.realpath(output)
                if is_it and not figures["exit_code"] and figures.get("command") == "run":
                    return figures
    return None


def render(figures: Figures, other: Figures | None = None) -> str:
    """The page; with another run's figures beside."""
    _require_extra()
    import jinja2  # noqa: PLC0415 - of an extra

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    return template.render(_context(figures, other))


def _require_extra() -> None:
    with extra_required("report"):
        import jinja2  # noqa: F401, PLC0415 - of an extra
        import matplotlib  # noqa: F401, PLC0415 - as above


def write_text(path: str, text: str) -> None:
    """Writes a file, or leaves the one that is there."""
    with replacing(path) as part:
        Path(part).write_text(text, encoding="utf-8")


def _context(figures: Figures, other: Figures | None) -> dict[str, Any]:
    return {
        "title": f"headrace {figures['command']}" + (f": {figures['handler']}" if figures["handler"] else ""),
        "subtitle": f"{figures['written']}, {figures['exit_reason'].replace('_', ' ')}, headrace {figures['headrace']}",
        "is_live": figures["exit_reason"] == RUNNING,
        "notes": figures["notes"],
        "verdict": verdict(figures),
        "error": figures["error"],
        "advice": [{**one._asdict(), "gain": seconds_text(one.gain_seconds)} for one in advice(figures)],
        "ledger": _ledger(figures),
        "failures": [_failure(one, _retry(figures)) for one in figures["causes"]],
        "retry": _retry(figures),
        "time": _time(figures),
        "pictures": list(_pictures(figures)),
        "tables": list(tables(figures, other)),
        "data": json.dumps(figures).replace("<", "\\u003c"),
    }


def _ledger(figures: Figures) -> dict[str, Any]:
    names = {"predictions": "predictions", "failures": "dead letters", "skipped": "skipped", "unread": "not read"}
    places = {"predictions": figures["files"].get("predictions"), "failures": figures["files"].get("dead_letters")}
    known = {name: figures[name] for name in names if figures[name] is not None}
    rows = [
        {"name": label, "count": f"{known[name]:,}", "where": places.get(name) or ""}
        for name, label in names.items()
        if known.get(name) or (name == "predictions" and name in known)
    ]
    if figures["rows"] is None:
        balance = "How many rows came in is not known."
        if figures["exit_reason"] == RUNNING:
            balance = "Until now."
        elif figures["exit_code"]:
            balance = "The run did not get to its end: no row is out."
        return {"balance": balance, "rows": rows}
    total = sum(count for name, count in known.items() if name != "unread")
    sign = "=" if total == figures["rows"] else "is not"
    before = f" {figures['done_before']:,} of them were done before." if figures["done_before"] else ""
    balance = f"{figures['rows']:,} rows in {sign} {total:,} predictions, dead letters and skipped rows.{before}"
    return {"balance": balance, "rows": rows}


def _failure(cause: Mapping[str, Any], retry: str) -> dict[str, str]:
    said = f"{cause['error_type']}: {cause.get('message') or ''}".rstrip(" ")
    of_it = shlex.quote(f"{cause['stage']} {said.removesuffix('...')}")
    own = f"{retry} --cause {of_it}" if retry else ""
    return {"stage": cause["stage"], "error": said.removesuffix(":"), "count": f"{cause['count']:,}", "retry": own}


def _retry(figures: Figures) -> str:
    letters, output = figures["files"].get("dead_letters"), figures["files"].get("predictions")
    is_file = output and os.path.isabs(output) and not output.endswith("/")
    if not (letters and is_file):
        return ""
    return f"headrace retry {shlex.quote(letters)} --into {shlex.quote(output)} {figures['retry_options']}".rstrip()


def _time(figures: Figures) -> dict[str, Any]:
    phases = figures["phases"]
    if phases is None:
        whole = figures["wall"]["sampled_seconds"]
        busy = figures["wall"]["busy_seconds"]
        return {
            "caption": "Until now." if figures["exit_reason"] == RUNNING else "Until the run ended.",
            "rows": [_bar(name, seconds, 0.0, whole) for name, seconds in busy.items()],
        }
    whole = sum(phases.values())
    busy, sampled = figures["wall"]["busy_seconds"], figures["wall"]["sampled_seconds"]
    processes = max(1, round(sampled / (whole - phases["imports"]))) if whole > phases["imports"] else 1
    within = {name: seconds / processes for name, seconds in busy.items() if name != "loading"}
    rows, began = [], 0.0
    for phase, label in _PHASES.items():
        rows.append(_bar(label, phases[phase], began, whole))
        if phase == "rows":
            rows += [_bar(f"·\N{NO-BREAK SPACE}{name}", seconds, began, whole) for name, seconds in within.items()]
        began += phases[phase]
    caption = "One after the other; what is within rows (·) is sampled, and overlaps where threads work side by side."
    caption += f" It is the mean of {processes} processes." if processes > 1 else ""
    return {"caption": caption, "rows": rows}


def _bar(name: str, seconds: float, began: float, whole: float) -> dict[str, Any]:
    share = seconds / whole if whole else 0.0
    left = min(100.0, 100 * began / whole) if whole else 0.0
    return {
        "name": name,
        "seconds": f"{seconds:,.2f}",
        "share": f"{share:.0%}",
        "left": round(left, 2),
        "width": round(min(100 * share, 100 - left), 2),
    }


def _pictures(figures: Figures) -> Iterator[dict[str, str]]:
    line, width = figures["timeline"], figures["timeline"]["bin_seconds"]
    wanted = {
        "rows/s": [value / width for value in line["rows"]],
        "rows in a batch": [r / b if b else 0.0 for r, b in zip(line["rows"], line["batches"], strict=True)],
        "cores busy": [value / width for value in line["cpu_seconds"]],
        "dead letters/s": [value / width for value in line["failed"]],
        "tokens/s": [value / width for value in line["tokens"]],
        "requests in flight": line.get("in_flight", []),
        "quota found, requests/s": line.get("quota", []),
        "memory, bytes": line.get("memory", []),
        "GPUs busy": line.get("gpu_busy", []),
        "memory of GPUs, bytes": line.get("gpu_memory", []),
    }
    rows = [(name, values) for name, values in wanted.items() if any(values)]
    if rows:
        described = "; ".join(f"{name}: at most {max(values):,.4g}" for name, values in rows)
        caption = f"Seconds since the command began; each step is {width:g} s."
        yield {"title": "Over time", "svg": over_time(rows, width, described), "caption": caption}
    sizes = [one for one in figures["batch_sizes"] if one["seconds"] > 0]
    if len(sizes) > 1:
        described = "; ".join(f"{one['size']:,} rows: {one['rows'] / one['seconds']:,.4g} rows/s" for one in sizes)
        caption = "Larger points are sizes by which more rows went."
        yield {"title": "Batch sizes", "svg": batch_curve(sizes, described), "caption": caption}
