"""What a report shows: tables as texts, and pictures as SVG, which need the extra ``report``.

Pictures take their colours from the page's style sheet.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from statistics import fmean, stdev, variance
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"#0a0101": "--text", "#0a0102": "--line", "#0a0103": "--one", "#0a0104": "--two"}
"""Colours that nothing else has, and the page's names for what they stand for."""
_TEXT, _LINE, _ONE, _TWO = _COLOURS
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "headrace",
    "font.size": 9,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "axes.edgecolor": _LINE,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    "grid.color": _LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_INCHES = 9.0
_LARGE = 1000.0
_Z = 1.96
"""Standard errors on both sides of a 95 % interval."""
_OF_USAGE = ("Requests", "Tokens in", "Tokens out", "Cost")

Figures = Mapping[str, Any]


def tables(figures: Figures, other: Figures | None) -> Iterator[dict[str, Any]]:
    """The tables at the end of a report, with another run's figures beside: title, caption, columns, rows."""
    if other is not None:
        yield _comparison(figures, other)
    if figures["figures"]:
        counts = [[name, _number(value)] for name, value in figures["figures"].items()]
        yield _table("Counted", ["", "In all"], counts)
    if figures["latency"]:
        values = [[name, seconds_text(value)] for name, value in figures["latency"].items()]
        yield _table("Latency", ["", "Time"], values, "Of a batch or a request.")
    if figures["padding"]["padded"]:
        useful = figures["padding"]["useful"] / figures["padding"]["padded"]
        rows = [["useful", f"{useful:.1%}"], ["padding", f"{1 - useful:.1%}"]]
        yield _table("Padding", ["Of what the model computed", "Share"], rows)
    if figures["usage"]:
        rows = [[model, *_used(used)] for model, used in figures["usage"].items()]
        yield _table("Tokens and money", ["Model", *_OF_USAGE], rows, _saved(figures))
    elif figures["from_cache"]:
        yield _table("Cache", ["Predictions", "In all"], [["from the cache", f"{figures['from_cache']:,}"]])
    if figures["quote"]:
        yield _forecast(figures)
    if figures["slowest"]:
        rows = [[_place(one), seconds_text(one["seconds"] / max(1, one["rows"]))] for one in figures["slowest"]]
        yield _table("Slowest rows", ["Rows", "Each"], rows, "The time of a batch or a request, divided by its rows.")
    if figures["dearest"]:
        rows = [[_place(one), *_used(one)] for one in figures["dearest"]]
        yield _table("Dearest rows", ["Row", *_OF_USAGE], rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> dict[str, Any]:
    return {"title": title, "caption": caption, "columns": columns, "rows": rows}


def _used(one: Mapping[str, Any]) -> list[str]:
    """What ``_OF_USAGE`` says of a model or a row."""
    counts = [f"{one[name]:,}" for name in ("requests", "input_tokens", "output_tokens")]
    return [*counts, "" if one["cost"] is None else f"{one['cost']:,.6g}"]


def _place(one: Mapping[str, Any]) -> str:
    more = f" and {one['rows'] - 1:,} more" if one.get("rows", 1) > 1 else ""
    return f"{one['file']}, row {one['row']:,}{more}"


def _saved(figures: Figures) -> str:
    """What the cache gave, and what that would have cost, if it is like the rest."""
    known, cost = figures["from_cache"], figures["cost"]
    if not known:
        return ""
    asked = (figures["predictions"] or 0) - known
    saved = f": about {known * cost / asked:,.4g} saved, at the mean cost of the others" if cost and asked > 0 else ""
    return f"{known:,} predictions came from the cache{saved}."


def _forecast(figures: Figures) -> dict[str, Any]:
    quote, used = figures["quote"], figures["usage"].values()
    came = {
        "rows": figures["rows"],
        "seconds": figures["seconds"],
        **{f"tokens_{way}": sum(one[f"{way}put_tokens"] for one in used) for way in ("in", "out")},
        "money": figures["cost"],
    }
    rows = []
    for name in [name for name in came if quote.get(name) is not None and came[name] is not None]:
        ends = [quote.get(f"{name}_{end}") for end in ("low", "high")]
        is_known = None not in ends
        within = ("yes" if ends[0] <= came[name] <= ends[1] else "no") if is_known else ""
        between = f"{_number(ends[0])} to {_number(ends[1])}" if is_known else ""
        rows.append([name.replace("_", " "), _number(quote[name]), between, _number(came[name]), within])
    columns = ["", "Forecast", "Interval", "Came", "Within"]
    return _table("Forecast", columns, rows, "What headrace quote said before, and what came.")


def _comparison(figures: Figures, other: Figures) -> dict[str, Any]:
    rows = []
    for name, unit in (("seconds", "s"), ("rows", ""), ("failures", ""), ("cost", "")):
        one, before = figures[name], other[name]
        if one is not None and before is not None:
            error = math.hypot(_error(name, figures), _error(name, other))
            difference = f"{_number(one - before)}{f' ± {_number(_Z * error)}' if error else ''}"
            rows.append([name, *(f"{value} {unit}" for value in (_number(before), _number(one), difference))])
    (mean, error), (mean_before, error_before) = _rate(figures), _rate(other)
    if mean and mean_before:  # a pipeline's metrics do not say when rows came
        margin = _Z * math.hypot(error, error_before)
        difference = f"{_number(mean - mean_before)} ± {_number(margin)}"
        rows.append(["rows/s", _number(mean_before), _number(mean), difference])
    caption = (
        f"Beside the run of {other['written']}. ± is a 95 % interval: of time by how much the rate varied during the "
        "runs, of failures and cost by which rows they had."
    )
    return _table("Compared", ["", "Before", "Now", "Difference"], rows, caption)


def _error(name: str, figures: Figures) -> float:
    """The standard error of a figure of a run: of what other rows of the kind, or another hour, would have given."""
    if name == "seconds":
        mean, error = _rate(figures)
        return float(figures["seconds"] * error / mean) if mean else 0.0
    if name == "cost":
        requests = sum(used["requests"] for used in figures["usage"].values())
        costs = [one[2] for one in figures["requests"]]
        return stdev(costs) * math.sqrt(requests) if len(costs) > 1 else 0.0
    return math.sqrt(figures[name]) if name == "failures" else 0.0


def _rate(figures: Figures) -> tuple[float, float]:
    """Rows a second while rows came out, and its standard error."""
    line = figures["timeline"]
    values: Sequence[float] = [rows / line["bin_seconds"] for rows in line["rows"]]
    working = [place for place, value in enumerate(values) if value]
    if not working:
        return 0.0, 0.0
    some = values[working[0] : working[-1] + 1]
    return fmean(some), math.sqrt(variance(some) / len(some)) if len(some) > 1 else 0.0


def rows_per_second(figures: Figures) -> float | None:
    """How many rows a run did a second once its model was loaded; None: that is not known."""
    phases = figures["phases"] or {}
    working = phases.get("rows", 0.0) + phases.get("writing", 0.0)
    rows = (figures["rows"] or 0) - (figures["done_before"] or 0)
    return rows / working if working and rows else None


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def seconds_text(value: float) -> str:
    """A time, in two digits or three."""
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:,.3g} ms"


def over_time(rows: Sequence[tuple[str, Sequence[float]]], bin_seconds: float, described: str) -> str:
    """Small charts under one another, on one axis of seconds.

    Args:
        rows: the name and the values of each, one for each bin.
        bin_seconds: the width of a bin.
        described: what the picture shows, for those who do not see it.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator  # noqa: PLC0415 - of an extra

    with _figure(1.15 * len(rows) + 0.5) as figure:
        axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (name, values) in zip(axes, rows, strict=True):
            edges = [place * bin_seconds for place in range(len(values) + 1)]
            axis.stairs(values, edges, fill=True, color=_ONE, alpha=0.35)
            axis.stairs(values, edges, color=_ONE)
            axis.set_ylim(bottom=0)
            axis.set_title(name, loc="left", fontsize=9)
            axis.yaxis.set_major_locator(MaxNLocator(3))
            if max(values) >= _LARGE:
                axis.yaxis.set_major_formatter(EngFormatter(sep=""))
            axis.grid(axis="y", linewidth=0.5)
        axes[-1].set_xlabel("seconds")
        return _svg(figure, described)


def batch_curve(sizes: Sequence[Mapping[str, Any]], described: str) -> str:
    """Rows a second by batch size; the larger a point, the more rows went that way."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullLocator  # noqa: PLC0415 - of an extra

    with _figure(3.2) as figure:
        axis = figure.subplots()
        rates = [one["rows"] / one["seconds"] for one in sizes]
        most = max(one["rows"] for one in sizes)
        areas = [20 + 180 * one["rows"] / most for one in sizes]
        axis.scatter([one["size"] for one in sizes], rates, areas, color=_TWO, alpha=0.7)
        axis.set_xscale("log")
        axis.set_ylim(0, 1.15 * max(rates))
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.yaxis.set_major_formatter(EngFormatter(sep=""))
        axis.set_xlabel("rows in a batch")
        axis.set_ylabel("rows/s in the model")
        axis.grid(linewidth=0.5)
        return _svg(figure, described)


@contextmanager
def _figure(inches: float) -> Iterator[Figure]:
    """A figure of this height, in the report's style while the context is open."""
    import matplotlib  # noqa: PLC0415 - of an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    with matplotlib.rc_context(_STYLE):
        yield Figure(figsize=(_INCHES, inches), layout="constrained")


def _svg(figure: Figure, described: str) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    for colour, name in _COLOURS.items():
        text = re.sub(colour, f"var({name})", text, flags=re.IGNORECASE)
    text = re.sub(r'\bwidth="[^"]*pt"|\bheight="[^"]*pt"', "", text, count=2)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(described)}"', 1)
