"""What Arrow holds is the same in Python, to the last digit, and back; without pandas, whatever is installed."""

import math
import subprocess
import sys
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
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


HANDLERS = """
import numpy
from headrace import ModelHandler
from headrace.core.columns import Form, Takes

class Rows(ModelHandler):
    def load_model(self): return None
    def run_inference(self, batch, model, inference_args=None): return [0.5 for _ in batch]

class Columns(Rows):
    takes = Takes(Form.ARRAYS)
    def columns_equal_rows(self): return True
    def example_from_row(self, row): return row
    def run_columns(self, columns, model, inference_args=None):
        assert isinstance(columns["name"][0], str)
        return numpy.full(len(columns["x"]), 0.5)
"""
RUN = """
import sys
from headrace.cli.main import main
for name in ("rows.jsonl", "rows.csv"):
    for handler in ("Rows", "Columns"):
        assert main(["run", name, "--handler", f"handlers:{handler}", "--output", "out.jsonl"]) == 0
        assert len(open("out.jsonl").readlines()) > 100
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


def test_run_over_text_files_does_not_import_pandas(tmp_path):
    (tmp_path / "handlers.py").write_text(HANDLERS)
    lines = '{"id": 1, "x": 0.5, "name": "a"}\n{"id": null, "x": 1e-9, "name": "\\"é"}\n'
    (tmp_path / "rows.jsonl").write_text(lines * 100)
    (tmp_path / "rows.csv").write_text('id,x,name\n1,0.5,a\n2,,"""é"\n' + 200 * "3,0.25,c\n")
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


DAYS = [date(1000, 1, 1), None, date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)]
MOMENTS = [0, 1, -1, None, 1_700_000_000_123_456, -1_700_000_000_123_456, 4_102_444_800_000_000]


@pytest.mark.parametrize(
    "column",
    [
        *(pyarrow.array(DAYS, kind) for kind in (pyarrow.date32(), pyarrow.date64())),
        *(
            pyarrow.array([count and int(count * per) for count in MOMENTS], pyarrow.timestamp(unit, zone))
            for unit, per in {"s": 1e-6, "ms": 1e-3, "us": 1, "ns": 1000}.items()
            for zone in (None, "UTC")
        ),
    ],
    ids=lambda column: str(column.type),
)
def test_texts_of_times_are_those_of_rows(column):
    expected = [value and value.isoformat() for value in as_values(column)]
    assert texts_of_times(column).to_pylist() == expected


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([0], pyarrow.timestamp("us", "Europe/Zurich")),
        pyarrow.array([-30_610_224_000_000_001], pyarrow.timestamp("us")),
        pyarrow.array([1], pyarrow.timestamp("ns")),
        pyarrow.array([10**18], pyarrow.timestamp("s")),
        pyarrow.array([1], pyarrow.time64("us")),
        pyarrow.array(["a"]),
    ],
)
def test_other_times_have_no_texts_of_their_own(column):
    assert texts_of_times(column) is None
