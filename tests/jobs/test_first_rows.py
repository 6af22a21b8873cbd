"""A bundle whose first thousand rows have all failed reads no further."""

from headrace.jobs.first_rows import FIRST_ROWS, FirstRows
from headrace.rows.blocks import Block


def ended(failed, read=1200, *, may_fail=False):
    first = FirstRows(may_fail=may_fail)
    blocks = [Block(0, start, records=[{}] * 300) for start in range(0, read, 300)]
    assert [*first.noted(blocks)] == blocks
    for place in failed:
        first.failed(place)
    return first.end()


def test_only_the_first_rows_count_and_all_of_them():
    assert ended(range(FIRST_ROWS))
    assert ended(reversed(range(1200)))
    assert not ended(range(1, 1200))
    assert not ended(range(900), read=900)
    assert not ended(range(1200), may_fail=True)
