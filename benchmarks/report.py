"""Results as Markdown for people and JSON for programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import NO_OP, Comparison

Row = Mapping[str, Any]
"""A line of a table, by column. Values that are not text are not shown: they are for programs only."""


def page(title: str, parts: Sequence[str], machine: Row) -> str:
    """A workload's page; empty parts are left out."""
    return "\n\n".join([f"# {title}", *filter(None, parts), _machine(machine)])


def render_comparisons(comparisons: Sequence[Comparison]) -> str:
    """The tables of a timed workload."""
    ratios = table([_ratio_row(comparison) for comparison in comparisons])
    times = table([_time_row(one, side) for one in comparisons for side in (*one.case.sides, NO_OP)])
    below = "Ratios of times: below 1 the first is faster. All predictions were compared; they are equal."
    return "\n\n".join([below, ratios, "Seconds for one run of the pipeline:", times])


def as_data(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The cases, with every single run."""
    return [
        {
            "name": one.case.name,
            "rows": one.case.rows,
            "tolerance": one.case.tolerance,
            "ratio_of_medians": one.ratio_of_medians,
            "median_of_ratios": one.median_of_ratios,
            "ratio_of_cpu_medians": one.ratio_of_cpu_medians,
            "ratio_of_bundle_medians": one.ratio_of_bundle_medians,
            "median_of_bundle_ratios": one.median_of_bundle_ratios,
            "runs": {side: [asdict(run) for run in runs] for side, runs in one.runs.items()},
        }
        for one in comparisons
    ]


def table(rows: Sequence[Row]) -> str:
    """Markdown; the columns are those of the first row."""
    columns = [column for column, value in rows[0].items() if isinstance(value, str)]
    lines = [columns, ["---"] * len(columns), *([row[column] for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(folder: Path, name: str, page: str, data: Mapping[str, Any]) -> None:
    """Writes ``<name>.md`` and ``<name>.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(page + "\n", encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _ratio_row(comparison: Comparison) -> Row:
    return {
        "case": comparison.case.name,
        "transforms": " / ".join(comparison.case.sides),
        "rows": f"{comparison.case.rows:,}",
        "ratio of medians": f"{comparison.ratio_of_medians:.3f}",
        "median of pairwise ratios": f"{comparison.median_of_ratios:.3f}",
        "ratio of CPU medians": f"{comparison.ratio_of_cpu_medians:.3f}",
        "bundles: ratio of medians": f"{comparison.ratio_of_bundle_medians:.3f}",
        "bundles: median of pairwise ratios": f"{comparison.median_of_bundle_ratios:.3f}",
    }


def _time_row(comparison: Comparison, side: str) -> Row:
    seconds = comparison.seconds(side)
    median = statistics.median(seconds)
    return {
        "case": comparison.case.name,
        "transform": side,
        "runs": str(len(seconds)),
        "batches": "" if side == NO_OP else f"{statistics.median(run.batches for run in comparison.runs[side]):,.0f}",
        "median": f"{median:.3f}",
        "min": f"{min(seconds):.3f}",
        "max": f"{max(seconds):.3f}",
        "spread": f"{(max(seconds) - min(seconds)) / median:.0%}",
        "CPU median": f"{statistics.median(comparison.cpu_seconds(side)):.3f}",
        "bundles median": f"{statistics.median(comparison.bundle_seconds(side)):.3f}",
        "start-up median": f"{comparison.start_up_seconds(side):.3f}",
        "µs a row above no-op": "" if side == NO_OP else f"{comparison.microseconds_a_row(side):.2f}",
    }


def _machine(machine: Row) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in machine.items())
