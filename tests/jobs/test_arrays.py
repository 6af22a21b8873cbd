"""Arrow arrays of Python's values, made without pandas."""

import math
import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy
import pyarrow
import pytest

from headrace.rows.values import array_of, as_values, numbers_as_array, numbers_of, texts_of_times

HANDLER = """
from headrace import ModelHandler

class Lengths(ModelHandler):
    def load_model(self): return None
    def run_inference(self, batch, model, inference_args=None): return [len(row) for row in batch]
"""
BY_NAME = """
import numpy
from headrace import ModelHandler
from headrace.core.columns import Form, Takes

class Lengths(ModelHandler):
    takes = Takes(Form.ARRAYS)
    def load_model(self): return None
    def columns_equal_rows(self): return True
    def example_from_row(self, row): return row
    def run_inference(self, batch, model, inference_args=None): return [0.5 for _ in batch]
    def run_columns(self, columns, model, inference_args=None):
        assert isinstance(columns["name"][0], str)
        return numpy.full(len(columns["x"]), 0.5)
"""
RUN = """
import sys
from headrace.cli.main import main
main(["run", sys.argv[1], "--handler", "lengths:Lengths", "--output", sys.argv[2]])
sys.exit("pandas" in sys.modules)
"""


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pyarrow.bool_(), [True, False, False, True, True, True, False, False, True]),
        (pyarrow.int64(), [0, -1, 2**63 - 1, -(2**63)]),
        (pyarrow.float64(), [0.0, -0.0, 1.5, math.inf, 1e300]),
        (pyarrow.string(), ["", "a", "é", "😀", "\0"]),
    ],
)
def test_array_of_values_is_that_of_pyarrow(kind, values):
    for some in (values, [], [None], [*values, None, *values], [None, *values]):
        array, expected = array_of(some, kind), pyarrow.array(some, kind)
        array.validate(full=True)
        assert array.null_count == expected.null_count
        assert list(map(repr, array.to_pylist())) == list(map(repr, expected.to_pylist()))


def test_array_of_refuses_what_arrow_cannot_hold():
    with pytest.raises(OverflowError):
        array_of([2**63], pyarrow.int64())
    with pytest.raises(UnicodeEncodeError):
        array_of(["\ud800"], pyarrow.string())


def test_truths_of_a_slice():
    truths = [True, False, True, True, False, False, True, False, True, True]
    assert numbers_of(pyarrow.array(truths)[3:]).tolist() == truths[3:]


@pytest.mark.parametrize("handler", [HANDLER, BY_NAME], ids=["rows", "columns"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.jsonl", '{"id": 1, "x": 0.5, "name": "a"}\n{"id": null, "x": 1e-9, "name": "\\"é"}\n'),
        ("rows.csv", 'id,x,name\n1,0.5,a\n2,,"""é"\n'),
    ],
)
def test_run_over_text_files_does_not_import_pandas(tmp_path: Path, name, text, handler):
    pytest.importorskip("pandas")
    (tmp_path / "lengths.py").write_text(handler)
    (tmp_path / name).write_text(text * 100 if name.endswith("l") else text + 200 * "3,0.25,c\n")
    command = [sys.executable, "-c", RUN, name, "out.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) > 100


@pytest.mark.parametrize("kind", ["bool", "int8", "uint64", "float16", "float32", "float64"])
def test_numbers_of_numpy_are_those_of_arrow(kind):
    for numbers in (numpy.arange(9).astype(kind)[1::2], numpy.zeros(0, kind)):
        assert numbers_as_array(numbers).equals(pyarrow.array(numbers))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Zurich"])
def test_texts_of_timestamps_are_those_of_rows(unit, zone):
    micros = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}[unit]
    counts = [0, 1, -1, None, 1_700_000_000_123_456, -1_700_000_000_123_456, 4_102_444_800_000_000]
    counts = [count and count // micros * (1000 if unit == "ns" else 1) for count in counts]
    column = pyarrow.array(counts, pyarrow.timestamp(unit, zone))
    expected = [value and value.isoformat() for value in as_values(column)]
    found = texts_of_times(column)
    assert (found is None) is (zone == "Europe/Zurich")
    assert found is None or found.to_pylist() == expected


@pytest.mark.parametrize("kind", [pyarrow.date32(), pyarrow.date64()])
def test_texts_of_dates_are_those_of_rows(kind):
    days = [date(1000, 1, 1), None, date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)]
    assert texts_of_times(pyarrow.array(days, kind)).to_pylist() == [day and day.isoformat() for day in days]


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([-30_610_224_000_000_001], pyarrow.timestamp("us")),
        pyarrow.array([1], pyarrow.timestamp("ns")),
        pyarrow.array([10**18], pyarrow.timestamp("s")),
        pyarrow.array([1], pyarrow.time64("us")),
        pyarrow.array(["a"]),
    ],
)
def test_other_times_have_no_texts_of_their_own(column):
    assert texts_of_times(column) is None
