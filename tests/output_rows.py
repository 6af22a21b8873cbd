"""Rows of an output made of records, for tests of what writes them."""

import json

import pyarrow

from headrace.jobs.json_lines import as_line
from headrace.jobs.output_batches import batch_of_lines


def output_table(records):
    """Records as a run writes them that were predicted one by one."""
    return pyarrow.Table.from_batches([batch_of_lines([as_line(record)[:-1].decode() for record in records])])


def write_rows(part, rows):
    """Writes rows, each with its place, into a part, as those that were predicted one by one."""
    part.write_lines([(place, json.dumps(row)) for place, row in rows])
