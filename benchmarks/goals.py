"""What a workload is to reach: stated beside it as data, judged by its results, and collected in one table."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import report

Results = Mapping[str, Any]
"""Of one workload, as its JSON file has them."""
Figures = Callable[[Results], Sequence[float]]
"""Takes figures from results, one for each round; ``KeyError`` if they do not have them."""

BEGIN, END = "<!-- goals: written by run.py -->", "<!-- end of goals -->"

_CONFIDENCE = 7 / 8

INTERVALS = """\
Intervals have the true median in them with a probability of 7/8; from fewer than seven rounds they are from the least
to the greatest."""


class Interval(NamedTuple):
    """The median of some figures, and between which of them the true median is."""

    median: float
    least: float
    greatest: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g} to {self.greatest:.3g})"


def interval(figures: Sequence[float]) -> Interval:
    """The narrowest one that has the true median in it with a probability of 7/8, if the figures are independent.

    Each figure is below the true median with a probability of 1/2; how many are follows a binomial distribution. From
    fewer than seven figures it is the range of them all.
    """
    ordered, count = sorted(figures), len(figures)
    outside = 0.0
    for cut in range((count + 1) // 2):
        outside += 2 * math.comb(count, cut) / 2**count
        if cut and outside > 1 - _CONFIDENCE:
            break
        least, greatest = ordered[cut], ordered[-1 - cut]
    return Interval(statistics.median(ordered), least, greatest, count)


@dataclass(frozen=True)
class Goal:
    """A figure of a workload and its limit; without one it is there for comparison, and stands on the page only."""

    what: str
    figures: Figures
    at_most: float = math.inf
    at_least: float = -math.inf
    unit: str = ""

    @property
    def limit(self) -> str:
        """In words; empty if there is none."""
        bounds = {"at most": self.at_most, "at least": self.at_least}
        return " and ".join(f"{words} {bound:g}{self.unit}" for words, bound in bounds.items() if math.isfinite(bound))

    def measured(self, results: Results) -> Interval | None:
        """None if the results do not have it, or a zero where something was not measured."""
        try:
            return interval(self.figures(results))
        except (KeyError, ZeroDivisionError):
            return None

    def verdict(self, found: Interval) -> str:
        """Undecided if the limit lies within the interval."""
        reached = [self.at_least <= figure <= self.at_most for figure in (found.least, found.greatest)]
        return {2: "reached", 1: "undecided", 0: "**missed**"}[sum(reached)]


def find(results: Results, label: str, which: str = "runs") -> Any:
    """The single runs of a case, or of the fact whose first column says so; or others that it has."""
    entries = results["cases"] if "cases" in results else results["facts"]
    return {next(iter(entry.values())): entry for entry in entries}[label][which]


def of(label: str, field: str) -> Figures:
    """A field of each run of a fact."""
    return lambda results: [run[field] for run in find(results, label)]


def ratio(first: str, second: str, field: str) -> Figures:
    """Of a field, in the runs of two facts that are of one round; one may have taken part in the first rounds only."""
    return lambda results: [one / two for one, two in _of_both(results, first, second, field)]


def difference(first: str, second: str, field: str) -> Figures:
    """As ``ratio``."""
    return lambda results: [one - two for one, two in _of_both(results, first, second, field)]


def _of_both(results: Results, first: str, second: str, field: str) -> Iterable[tuple[float, float]]:
    return zip(of(first, field)(results), of(second, field)(results), strict=False)


def ratio_of_sides(case: str, field: str = "seconds") -> Figures:
    """Of a field, in neighbouring runs of a case's first and second side."""

    def figures(results: Results) -> list[float]:
        first, second = ([run[field] for run in runs] for runs in list(find(results, case).values())[:2])
        return ratios(first, second)

    return figures


def ratios(firsts: Iterable[float], seconds: Iterable[float]) -> list[float]:
    """Round by round."""
    return [first / second for first, second in zip(firsts, seconds, strict=True)]


def render(goals: Sequence[Goal], results: Results) -> str:
    """A workload's goals on its page."""
    return "\n".join(_line(goal, found) for goal in goals if (found := goal.measured(results)))


def _line(goal: Goal, found: Interval) -> str:
    end = f"; the goal is {goal.limit}: {goal.verdict(found)}" if goal.limit else ""
    return f"- {goal.what}: {found}{goal.unit}, rounds: {found.rounds}{end}."


def table(goals: Mapping[str, Sequence[Goal]], folder: Path) -> str:
    """Every goal of the workloads, by their names, with what the results in the folder say."""
    rows = []
    for name, of_workload in goals.items():
        file = folder / f"{name}.json"
        results, link = {"facts": []}, name
        if file.exists():
            results, link = json.loads(file.read_text(encoding="utf-8")), f"[{name}](results/{name}.md)"
        rows += [{**_row(goal, results), "workload": link} for goal in of_workload if goal.limit]
    return report.table(rows)


def _row(goal: Goal, results: Results) -> dict[str, str]:
    found = goal.measured(results)
    if found is None:
        empty = dict.fromkeys(("figure", "interval", "rounds"), "")
        return {"what": goal.what, "goal": goal.limit, **empty, "verdict": "not measured", "measured": ""}
    figure, least, greatest = (f"{value:.3g}{goal.unit}" for value in found[:3])
    machine = results["machine"]
    return {
        "what": goal.what,
        "goal": goal.limit,
        "figure": figure,
        "interval": f"{least} to {greatest}",
        "rounds": str(found.rounds),
        "verdict": goal.verdict(found),
        "measured": f"{machine['date']}, {machine['CPU']}, {machine['cores']} cores, {machine['memory']}",
    }


def with_table(text: str, rendered: str) -> str:
    """A document with this table in place of what stands between the two markers."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{rendered}\n{rest[rest.index(END) :]}"
