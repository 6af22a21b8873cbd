"""The tables of a report, as texts: counts, latencies, tokens and money, the forecast, and rows by their places."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev, variance
from typing import Any

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


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def seconds_text(value: float) -> str:
    """A time, in two digits or three."""
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:,.3g} ms"
