"""Files do not depend on how their rows are cut into tables."""

import io
import json
import os
import tempfile
from itertools import cycle

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.jobs import text_tables
from headrace.jobs.files import match
from headrace.jobs.parquet_tables import write_parquet
from headrace.jobs.reading import infer_schema, read_rows
from headrace.jobs.text_tables import csv_of, lines_of
from output_rows import output_table


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=6))
def test_however_rows_are_cut_the_files_are_the_same(cuts):
    floats = {
        "x": [n / 7 for n in range(200)],
        "y": [n**4 / 1e6 for n in range(200)],
        "z": [n % 3 / 1 for n in range(200)],
    }
    rows = pyarrow.table({"n": range(200), **floats, "t": ["é" * (n % 9) for n in range(200)]})
    pieces, start = [], 0
    for size in [*cuts, 200]:
        pieces += [rows.slice(start, size)] if start < 200 else []
        start += size
    whole, cut = io.BytesIO(), io.BytesIO()
    write_parquet(whole, lambda: [rows], lambda: None)
    write_parquet(cut, lambda: pieces, lambda: None)
    assert cut.getvalue() == whole.getvalue()
    assert b"".join(lines_of(pieces)) == b"".join(lines_of([rows]))
    assert b"".join(csv_of(lambda: pieces, ",")) == b"".join(csv_of(lambda: [rows], ","))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('",;\t\n\r\0\ufeff [{5.'), max_size=6)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
COLUMNS = [
    TEXTS,
    st.integers(-(2**70), 2**70),
    st.integers(-9, 9),
    NUMBERS,
    st.integers(-9, 9).map(float),
    st.booleans(),
    st.lists(NUMBERS | TEXTS | st.integers() | st.none(), max_size=3),
    st.dictionaries(TEXTS, st.none() | st.booleans(), min_size=1, max_size=2),
]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(",\t"))
def test_headrace_reads_the_same_values_out_of_csv(data, delimiter):
    """But for blank texts beside lists, which are nulls there, and a text that is JSON alone in its column."""
    names = data.draw(st.lists(TEXTS, min_size=1, max_size=4, unique=True))
    kinds = [data.draw(st.sampled_from(COLUMNS)) for _ in names]
    row = st.tuples(*(kind | st.none() for kind in kinds)).map(lambda values: dict(zip(names, values, strict=True)))
    rows = [{"first": place, **row} for place, row in enumerate(data.draw(st.lists(row, min_size=1, max_size=5)))]
    tables = [output_table(rows)]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.csv")
        with open(path, "wb") as file:
            file.writelines(csv_of(lambda: tables, delimiter))
        (source,) = match([path], delimiter=delimiter)
        found = list(read_rows(source, infer_schema([source]).csv))
    assert list(map(repr, found)) == list(map(repr, rows))


@pytest.mark.parametrize("text", ["é", 'two\n"lines"'])
def test_rows_that_arrow_writes_are_as_those_that_it_does_not(monkeypatch, text):
    floats = [n + 0.5 for n in range(400)]
    for place, value in {0: 1.0, 7: -0.0, 8: 1e300, 200: None, 399: 2.0}.items():
        floats[place] = value
    whole = [None, *map(float, range(399))]
    rows = pyarrow.table({"x": floats, "w": whole, "n": range(400), "t": [text, None] * 200})
    written = b"".join(csv_of(lambda: [rows], ","))
    monkeypatch.setattr(text_tables, "_FEW", 10**9)
    assert written == b"".join(csv_of(lambda: [rows], ","))


@pytest.mark.parametrize("every", [2, 40, 399])
@pytest.mark.parametrize("text", ["é\x7f", 'a"', "\\", "\x1f"])
def test_json_lines_have_each_number_and_text(every, text):
    odd = cycle([1e-5, -3e-7, 5e-324, 1e16, 1e300, 2.0, 1234567890123.0])
    floats = [next(odd) if n % every in (0, 1) else None if n % 7 == 3 else n + 0.125 for n in range(400)]
    rows = [{"x": x, "v": [x or 0.0, 1e-9], "t": text if n == 5 else f"{n}"} for n, x in enumerate(floats)]
    lines = b"".join(lines_of([pyarrow.Table.from_pylist(rows)])).splitlines()
    assert repr(list(map(json.loads, lines))) == repr(rows)


def test_a_lonely_null_is_a_row(tmp_path):
    rows = pyarrow.table({"n": pyarrow.array([None, 1, None])})
    assert b"".join(csv_of(lambda: [rows], ",")) == b'n\n""\n1\n""\n'


def test_csv_has_the_columns_of_all_tables():
    tables = [pyarrow.table({"a b": [1.0, 0.25]}), pyarrow.table({"t": ['x"', None], "é": [True, None]})]
    text = '"a b",t,"é"\n1.0,,\n0.25,,\n,"x""",true\n,,\n'
    assert b"".join(csv_of(lambda: tables, ",")).decode() == text
    assert b"".join(csv_of(list, ",")) == b""
