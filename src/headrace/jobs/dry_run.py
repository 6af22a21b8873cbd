"""What a run would do with its first rows: reads them and makes examples of them, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from headrace.core.answer import SKIP
from headrace.jobs.job import Job
from headrace.jobs.reading import SAMPLED_ROWS, read_rows
from headrace.rows.examples import over_rows
from headrace.rows.records import BrokenLine, Record, Row
from headrace.runtime.plan import make_plan

_EXAMPLES = 3


class DryRun(NamedTuple):
    """What became of the first rows."""

    rows: int
    """How many were read."""
    may_be_more: bool
    """Whether reading ended before the input did."""
    failures: list[str]
    """Why rows cannot be read, or no example can be made of them, with their places."""
    skipped: int
    """Rows that a function leaves out on purpose."""
    first: Row
    """The first row that can be read; empty if none can."""
    examples: list[Any]
    """The first ones, as the handler would get them."""


def dry_run(job: Job) -> DryRun:
    """Reads the first rows, at most ``job.limit`` or 1,000, and makes an example of each."""
    functions = make_plan(over_rows(job.handler, job.examples, job.reserved)).preprocess
    failures: list[str] = []
    examples: list[Any] = []
    first: Row = {}
    rows = skipped = 0
    most = job.limit or SAMPLED_ROWS
    for name, number, row in islice(_numbered(job), most):
        rows += 1
        if not isinstance(row, BrokenLine):
            first = first or row
        try:
            example: Any = row
            for function in functions:
                example = function(example)
                if example is SKIP:
                    break
        except Exception as error:
            failures.append(f"row {number} of {name}: {error}")
            continue
        if example is SKIP:
            skipped += 1
        elif len(examples) < _EXAMPLES:
            examples.append(example)
    return DryRun(rows, rows == most, failures, skipped, first, examples)


def _numbered(job: Job) -> Iterator[tuple[str, int, Record]]:
    """The rows of all files, each with its file and its number there, counted from 1."""
    rows = (
        (row, (source.paths[number - 1] if source.files else source.path, number))
        for source in job.sources
        for number, row in enumerate(read_rows(source, job.types), 1)
    )
    return ((*where, row) for row, where in (job.contents._replace(ahead=False).of(rows) if job.contents else rows))
