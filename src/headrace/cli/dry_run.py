"""``headrace run --dry-run``: the rows, their types and the first examples, without a model."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.cli.summary import inputs_lines

_FAILURES = 3
_LONGEST = 2000
"""Characters of an example."""


def show_dry_run(out: Console, run: Any) -> None:
    """Prints what a run would do with its first rows."""
    from headrace.jobs.dry_run import dry_run  # noqa: PLC0415 - importing numpy takes a while

    job, inputs = run.job, run.output.inputs
    found = dry_run(job)
    if inputs is not None:
        for name, text in inputs_lines(inputs, "to predict"):
            _say(out, f"{name}: {text}")
    which = "the first " if found.may_be_more else ""
    skipped = f", {found.skipped:,} skipped" if found.skipped else ""
    _say(out, f"{which}{found.rows:,} row{'s'[: found.rows != 1]}: {len(found.failures):,} would fail{skipped}")
    for failure in found.failures[:_FAILURES]:
        _say(out, f"  {failure}")
    if len(found.failures) > _FAILURES:
        _say(out, f"  and {len(found.failures) - _FAILURES:,} more")
    _say(out, "")
    out.print(_columns(job, found.first), markup=False)
    for number, example in enumerate(found.examples, 1):
        _say(out, f"\nexample {number}\n{_shown(example)}")
    _say(out, "\nNo model was loaded, and nothing was written.")


def _columns(job: Any, first: dict[str, Any]) -> Table:
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
    text = example if isinstance(example, str) else None
    if text is None:
        as_table = getattr(example, "to_string", None)  # a data frame's
        text = as_table(index=False) if as_table else repr(example)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _say(out: Console, text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
