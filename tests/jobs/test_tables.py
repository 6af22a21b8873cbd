"""Files do not depend on how their rows are cut into tables."""

import io

import pyarrow
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.jobs.tables import lines_of, write_parquet


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=6))
def test_however_rows_are_cut_the_files_are_the_same(cuts):
    rows = pyarrow.table({"n": range(200), "x": [n / 7 for n in range(200)], "t": ["é" * (n % 9) for n in range(200)]})
    pieces, start = [], 0
    for size in [*cuts, 200]:
        pieces += [rows.slice(start, size)] if start < 200 else []
        start += size
    whole, cut = io.BytesIO(), io.BytesIO()
    write_parquet(whole, lambda: [rows], lambda: None)
    write_parquet(cut, lambda: pieces, lambda: None)
    assert cut.getvalue() == whole.getvalue()
    assert b"".join(lines_of(pieces)) == b"".join(lines_of([rows]))
