"""What Arrow holds is the same in Python, to the last digit, and whatever else is installed."""

import subprocess
import sys
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow
import pyarrow.parquet
import pytest

from headrace.rows.values import as_rows, as_values

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


SCRIPT = """
import sys

class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

if sys.argv[2] == "without":
    sys.meta_path.insert(0, NoPandas())
else:
    import pandas
from headrace.jobs.files import Source
from headrace.jobs.json_lines import as_line
from headrace.jobs.reading import read_rows

for row in read_rows(Source(sys.argv[1], "parquet"), {}):
    print([(name, type(value), repr(value)) for name, value in row.items()], as_line(row))
"""


@pytest.mark.large
def test_whether_pandas_is_installed_makes_no_difference(tmp_path):
    kinds = [MOMENTS, pyarrow.timestamp("ns"), pyarrow.duration("ns"), pyarrow.time64("ns")]
    counts = [0, 1, 1000, COUNT % DAY, None]
    columns = [pyarrow.array(counts, kind) for kind in kinds]
    pyarrow.parquet.write_table(pyarrow.table(columns, list("abcd")), tmp_path / "a.parquet")
    (tmp_path / "read.py").write_text(SCRIPT)

    def told(how):
        command = [sys.executable, str(tmp_path / "read.py"), str(tmp_path / "a.parquet"), how]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    assert told("without") == told("with") != ""


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
