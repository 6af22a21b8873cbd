"""Rows of an output made of records, for tests of what writes them."""

import pyarrow

from headrace.jobs.json_lines import as_line
from headrace.jobs.output_batches import OutputLine, batch_of_lines


def output_table(records):
    """Records as a run writes them that were predicted one by one."""
    lines = [OutputLine(place, as_line(record)[:-1].decode()) for place, record in enumerate(records)]
    return pyarrow.Table.from_batches([batch_of_lines(lines)])
