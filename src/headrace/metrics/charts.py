"""The pictures of a report, as SVG that takes its colours from the page's style sheet. Needs the extra ``report``."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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


def timeline(rows: Sequence[tuple[str, Sequence[float]]], bin_seconds: float, described: str) -> str:
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
    label = described.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
