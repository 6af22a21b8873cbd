"""What Arrow holds is the same in Python, to the last digit, and back; without pandas, whatever is installed."""

import math
import subprocess
import sys
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow
import pyarrow.parquet
import pytest

from headrace.rows.values import array_of, as_rows, as_values, texts_of_times

BERLIN = ZoneInfo("Europe/Berlin")
COUNT = 1_234_567_890_123_456_789
DAY = 86_400_000_000_000


def array(counts, kind):
    """Of counts of a type's unit."""
    return pyarrow.array(counts, pyarrow.int64()).cast(kind)


@pytest.mark.parametrize(
    ("kind", "count", "value"),
    [
        (pyarrow.timestamp("ns"), 1000, datetime(1970, 1, 1, 0, 0, 0, 1)),
        (pyarrow.timestamp("ns"), COUNT, "2009-02-13 23:31:30.123456789"),
        (pyarrow.timestamp("ns"), -1, "1969-12-31 23:59:59.999999999"),
        (pyarrow.timestamp("ns"), -(2**63), "1677-09-21 00:12:43.145224192"),
        (pyarrow.timestamp("ns"), 2**63 - 1, "2262-04-11 23:47:16.854775807"),
        (pyarrow.timestamp("ns", "UTC"), 10**9, datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)),
        (pyarrow.timestamp("ns", "UTC"), 10**9 + 1, "1970-01-01 00:00:01.000000001Z"),
        (pyarrow.timestamp("ns", "Europe/Berlin"), 0, datetime(1970, 1, 1, 1, tzinfo=BERLIN)),
        (pyarrow.timestamp("ns", "Europe/Berlin"), COUNT, "2009-02-13 23:31:30.123456789Z"),
        (pyarrow.timestamp("ns", "-05:30"), -1, "1969-12-31 23:59:59.999999999Z"),
        (pyarrow.time64("ns"), DAY - 1000, time(23, 59, 59, 999999)),
        (pyarrow.time64("ns"), DAY - 1, "23:59:59.999999999"),
        (pyarrow.time64("ns"), 1, "00:00:00.000000001"),
        (pyarrow.time64("us"), 1, time(0, 0, 0, 1)),
        (pyarrow.duration("ns"), -1000, timedelta(microseconds=-1)),
        (pyarrow.duration("ns"), -1, "-1"),
    ],
)
def test_whole_microseconds_are_pythons_values_and_others_their_text(kind, count, value):
    column = array([count, None, 0], kind)
    assert as_values(column)[:2] == [value, None]
    assert type(as_values(column)[2]) is type(as_values(array([0], kind))[0])
    assert str(as_values(column.slice(0, 1))[0]) == str(value)  # the time zone, which == does not look at
    assert as_values(column.dictionary_encode())[:2] == [value, None]
    assert as_values(column.slice(3)) == []


MOMENTS = pyarrow.timestamp("ns", "UTC")


def test_other_values_are_those_of_pyarrow():
    columns = {
        "n": [1, None],
        "text": ["a", "b"],
        "money": [Decimal("1.50"), Decimal("-0.01")],
        "kinds": pyarrow.array([Decimal("1.50"), None]).dictionary_encode(),
        "far": pyarrow.array([2**60, -1], pyarrow.duration("us")),
        "moment": pyarrow.array([1, 2], pyarrow.timestamp("ms", "UTC")),
    }
    batch = pyarrow.record_batch(columns)
    assert as_rows(batch) == batch.to_pylist()
    assert as_rows(batch.select([])) == batch.select([]).to_pylist()


@pytest.mark.since_beam("2.77", reason="the pyarrow of older versions has no such types")
def test_extensions_of_pyarrow_have_its_values():
    ids = pyarrow.array([UUID(int=5).bytes, None], pyarrow.uuid())
    truths = pyarrow.ExtensionArray.from_storage(pyarrow.bool8(), pyarrow.array([1, 0], pyarrow.int8()))
    assert as_values(ids) == [UUID(int=5), None]
    assert as_values(truths) == [True, False]


class Celsius(pyarrow.ExtensionType):
    """A type that Python code adds to Arrow's; it is not hashable."""

    def __init__(self):
        super().__init__(pyarrow.float64(), "test.celsius")

    def __arrow_ext_serialize__(self):
        return b""


def test_values_of_a_type_that_python_code_adds():
    column = pyarrow.ExtensionArray.from_storage(Celsius(), pyarrow.array([20.5, None]))
    assert as_values(column) == [20.5, None]
    assert as_values(pyarrow.StructArray.from_arrays([column], ["t"])) == [{"t": 20.5}, {"t": None}]


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
