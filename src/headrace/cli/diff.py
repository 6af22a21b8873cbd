"""``headrace diff`` and ``report``: what changed between the outputs of two runs, and the page of one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.console import ExitCode
from headrace.cli.option import argument, option, share
from headrace.core.errors import ConfigurationError

if TYPE_CHECKING:
    from headrace.jobs.diff import ColumnDiff, Diff, Interval

_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class DiffArgs:
    """Compare the predictions of two runs, row by row: how many changed, and by how much.

    Rows are matched by --id, or by their place. The share that changed, and the mean of new - old, have 95 % intervals,
    for which the rows count as a random sample.

    Exit codes: 0 compared, 2 a wrong argument or outputs that cannot be compared, 3 more rows changed than --threshold.
    """

    old: str = argument("OLD", "The output of an earlier run: JSON lines, CSV or Parquet; a file or a glob.")
    new: str = argument("NEW", "The output to compare with it, in any of these formats.")
    ids: list[str] | None = option(
        "The columns that identify a row in both outputs; by default its place does.", "A,B", name="--id"
    )
    columns: list[str] | None = option(
        "The columns to compare. By default prediction, or prediction_* after --explode.", "A,B"
    )
    tolerance: float = option("Numbers that differ by no more than this are the same.", "NUMBER", default=0.0)
    threshold: float | None = option(
        "Exit with code 3 if more than this share of the rows changed, as 0.01 or 1%.", "SHARE", parser=share
    )
    output: str | None = option(
        "Write the rows that changed, or that one output lacks: .jsonl, .csv or .parquet.", "FILE"
    )
    as_json: bool = option("Print one JSON object.", name="--json", default=False)


def run_diff(args: DiffArgs) -> int:
    """Compares and reports; returns the exit code.

    Raises:
        ConfigurationError: a wrong argument, or files that cannot be compared.
    """
    from headrace.jobs.diff import diff_outputs  # noqa: PLC0415 - needs pyarrow
    from headrace.jobs.output import write_rows  # noqa: PLC0415 - as above

    if args.output and os.path.realpath(args.output) in map(os.path.realpath, (args.old, args.new)):
        raise ConfigurationError(f"{args.output} is compared and would be overwritten; choose another --output.")
    found = diff_outputs(
        args.old, args.new, ids=_names(args.ids), columns=_names(args.columns), tolerance=args.tolerance
    )
    if args.output:
        write_rows(found.rows, args.output)
    runs = [_run_of(path) for path in (args.old, args.new)]
    if args.as_json:
        facts = json.dumps({**_facts(found), "runs": dict(zip(("old", "new"), runs, strict=True))}, default=str)
        typer.echo(json.dumps(json.loads(facts, parse_constant=lambda _: None)))  # JSON has no NaN
    else:
        for line in (*_run_lines(runs), *_lines(found, args.output)):
            typer.echo(line)
    return ExitCode.REFUSED if args.threshold is not None and found.changed.value > args.threshold else ExitCode.DONE


def _run_of(output: str) -> dict[str, float | None] | None:
    """What the run took that has written an output; None: no report beside it says."""
    from headrace.metrics.report import report_of  # noqa: PLC0415 - only for this
    from headrace.metrics.report_parts import rows_per_second  # noqa: PLC0415 - as above

    figures = report_of(output)
    if figures is None:
        return None
    rate = rows_per_second(figures)
    return {"seconds": figures["seconds"], "rows_per_second": rate and round(rate, 2), "cost": figures["cost"]}


def _run_lines(runs: Sequence[Mapping[str, float | None] | None]) -> Iterator[str]:
    old, new = ({} if run is None else run for run in runs)
    for name in [name for name in old if old[name] is not None and new.get(name) is not None]:
        label = name.replace("_per_", "/").replace("/second", "/s")
        yield f"{label:<17}{old[name]:,.6g} -> {new[name]:,.6g}"


def _names(given: list[str] | None) -> list[str]:
    return [name.strip() for one in given or () for name in one.split(",")]


def _facts(found: Diff) -> dict[str, Any]:
    counts = {name: getattr(found, name) for name in ("matched", "only_old", "only_new")}
    columns = [{**asdict(column), "mean": column.mean and column.mean._asdict()} for column in found.columns]
    return {**counts, "changed": found.changed_rows, "share": found.changed._asdict(), "columns": columns}


def _lines(found: Diff, output: str | None) -> Iterator[str]:
    yield f"rows in both     {found.matched:,}"
    for name, count in (("only in OLD", found.only_old), ("only in NEW", found.only_new)):
        if count:
            yield f"{name:<17}{count:,}"
    yield f"changed          {found.changed_rows:,} ({_interval(found.changed, '.2%')})"
    for column in found.columns:
        yield from _column_lines(column)
    if output:
        yield f"written          {output}"
    else:
        yield from _first_rows(found.rows)


def _column_lines(column: ColumnDiff) -> Iterator[str]:
    yield f"{column.name}: {column.changed:,} changed"
    if column.mean is not None:
        yield f"  new - old      {_interval(column.mean, '.4g')} in the mean of all rows"
    if column.absolute is not None:
        sizes = ", ".join(f"{name} {value:.4g}" for name, value in column.absolute.items())
        yield f"  by             {sizes}"
    if column.cosine is not None:
        yield "  cosine         {:.6f} in the mean, {:.6f} at least".format(*column.cosine)
    for old, new, rows in column.moves:
        yield f"  {rows:<14,} {_shown(old)} -> {_shown(new)}"


def _first_rows(rows: Any) -> Iterator[str]:
    for row in rows.slice(0, _SHOWN).to_pylist():
        yield "  " + ", ".join(f"{name}={_shown(value)}" for name, value in row.items())
    if len(rows) > _SHOWN:
        yield f"  and {len(rows) - _SHOWN:,} more, which --output FILE writes"


def _interval(value: Interval, how: str) -> str:
    middle, low, high = (format(one, how) for one in value)
    return f"{middle}, 95 % interval {low} to {high}"


def _shown(value: Any, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


@dataclass(frozen=True, kw_only=True)
class ReportArgs:
    """Make the page of a run again, from the figures that headrace run --report has written beside it.

    With --compare, another run's figures stand beside.
    """

    run: str = argument("RUN", "The .json that headrace run --report has written.")
    compare: str | None = option("Another run's .json, to set beside.", "OTHER")
    output: str | None = option("The page; by default RUN with .html.", "PAGE")


def run_report(args: ReportArgs) -> int:
    """Writes the page of a run, and prints its verdict; returns the exit code.

    Raises:
        ConfigurationError: a file is no report, or the page cannot be written.
    """
    from headrace.metrics.report import read_figures, render, write_text  # noqa: PLC0415 - only for this
    from headrace.metrics.verdict import verdict  # noqa: PLC0415 - as above

    page = args.output or f"{os.path.splitext(args.run)[0]}.html"
    figures = read_figures(args.run)
    text = render(figures, read_figures(args.compare) if args.compare else None)
    try:
        write_text(page, text)
    except OSError as error:
        raise ConfigurationError(f"cannot write {page}: {error.strerror or error}.") from error
    typer.echo(f"{verdict(figures)}\nwritten  {page}")
    return 0
