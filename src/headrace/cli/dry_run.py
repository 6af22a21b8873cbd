"""``headrace run --dry-run``: the first rows, their types and the first examples, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.cli.console import say
from headrace.cli.display import inputs_lines
from headrace.core.answer import SKIP, counted
from headrace.jobs.job import Job
from headrace.jobs.reading import SAMPLED_ROWS, read_rows
from headrace.jobs.run import Run
from headrace.rows.blocks import BrokenLine, Record, Row
from headrace.rows.examples import over_rows
from headrace.runtime.plan import make_plan

_EXAMPLES = 3
_FAILURES = 3
_LONGEST = 2000
"""Characters of an example."""


def show_dry_run(out: Console, run: Run) -> None:
    """Prints what a run would do with its first rows, at most ``--limit`` or 1,000."""
    job, most = run.job, run.job.limit or SAMPLED_ROWS
    functions = make_plan(over_rows(job.handler, job.examples, job.reserved)).preprocess
    failures: list[str] = []
    examples: list[Any] = []
    first: Row = {}
    rows = skipped = 0
    for where, row in islice(_placed(job), most):
        rows += 1
        first = first or ({} if isinstance(row, BrokenLine) else row)
        try:
            example: Any = row
            for function in functions:
                example = example if example is SKIP else function(example)
        except Exception as error:
            failures.append(f"{where}: {error}")
            continue
        skipped += example is SKIP
        if example is not SKIP and len(examples) < _EXAMPLES:
            examples.append(example)
    for name, text in inputs_lines(run.output.inputs, "to predict"):
        say(out, f"{name}: {text}")
    which = "the first " if rows == most else ""
    left_out = f", {skipped:,} skipped" if skipped else ""
    say(out, f"{which}{counted(rows, 'row')}: {len(failures):,} would fail{left_out}")
    for failure in failures[:_FAILURES]:
        say(out, f"  {failure}")
    if len(failures) > _FAILURES:
        say(out, f"  and {len(failures) - _FAILURES:,} more")
    say(out, "")
    out.print(_columns(job, first), markup=False)
    for number, example in enumerate(examples, 1):
        say(out, f"\nexample {number}\n{_shown(example)}")
    say(out, "\nNo model was loaded, and nothing was written.")


def _placed(job: Job) -> Iterator[tuple[str, Record]]:
    rows = (
        (row, f"row {number} of {source.paths[number - 1] if source.files else source.path}")
        for source in job.sources
        for number, row in enumerate(read_rows(source, job.types), 1)
    )
    return ((where, row) for row, where in (job.contents._replace(ahead=False).of(rows) if job.contents else rows))


def _columns(job: Job, first: Row) -> Table:
    """The columns, their types, which of them the model sees, and their values in the first row."""
    table = Table(box=None, pad_edge=False)
    for title in ("column", "type", "for the model", "first value"):
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    examples = job.examples
    seen = examples.all_columns if examples.columns is None else examples.columns
    for name in examples.all_columns:
        role = "key" if name == examples.key else "yes" if name in seen else "no"
        table.add_row(name, str(examples.types.get(name, "")), role, repr(first.get(name)))
    return table


def _shown(example: Any) -> str:
    as_table = getattr(example, "to_string", None)  # a data frame's
    text = example if isinstance(example, str) else as_table(index=False) if as_table else repr(example)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
