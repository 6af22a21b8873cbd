"""Rows of an output made of records, for tests of what writes them."""

from headrace.jobs.output_batches import encoded_record, rows_together
from headrace.rows.blocks import Block


def output_rows(records, first=0):
    """Records as rows of an output, the first one's number given; neighbours with the same columns are together."""
    places = Block(0, first, records=records).places()
    return rows_together((place, encoded_record(record, None)) for place, record in zip(places, records, strict=True))
